"""The multivariate t: the kernel of every proposal and of every jump between modes."""

import math

import tensorflow as tf


def log_t(square: tf.Tensor, log_det: tf.Tensor, *, freedom: int, d: int) -> tf.Tensor:
    """Its log-density where |L^-1 (z - m)|^2 = square, with the location m, the scale matrix L L' and log det L.

    log t = log G((nu + d) / 2) - log G(nu / 2) - d / 2 log(nu pi) - log det L - (nu + d) / 2 log(1 + square / nu)
    """
    constant = math.lgamma(0.5 * (freedom + d)) - math.lgamma(0.5 * freedom) - 0.5 * d * math.log(freedom * math.pi)
    return constant - log_det - 0.5 * (freedom + d) * tf.math.log1p(square / freedom)
