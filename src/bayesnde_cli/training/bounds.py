"""Lower bounds of log p(x) from an encoder's Gaussian proposal q(z|x) = N(mean, diag sd^2), and their gradients."""

import math
from collections.abc import Callable

import tensorflow as tf


def gaussian_kl(mean: tf.Tensor, log_sd: tf.Tensor) -> tf.Tensor:
    """KL(N(mean, diag sd^2) || N(0, I)) of each row, in closed form. (rows, d) twice -> (rows,).

    sum over j of (sd_j^2 + mean_j^2 - 1)/2 - log sd_j
    """
    return tf.reduce_sum(0.5 * (tf.exp(2.0 * log_sd) + tf.square(mean) - 1.0) - log_sd, axis=-1)


def elbo(log_likelihood: tf.Tensor, kl: tf.Tensor, kl_weight: tf.Tensor | float) -> tf.Tensor:
    """log p(x|z) - kl_weight * KL of each row; with weight 1 a lower bound of log p(x). (rows,) twice -> (rows,)."""
    return log_likelihood - kl_weight * kl


def log_importance_weights(log_likelihood: tf.Tensor, z: tf.Tensor, mean: tf.Tensor, log_sd: tf.Tensor) -> tf.Tensor:
    """log p(x|z) + log N(z; 0, I) - log q(z|x) of each draw. (rows, draws), (rows, draws, d), (rows, d) twice.

    -> (rows, draws). The factors (2 pi)^(-d/2) of prior and proposal cancel.
    """
    mean, log_sd = mean[:, None, :], log_sd[:, None, :]
    standard = (z - mean) * tf.exp(-log_sd)  # (rows, draws, d)
    return log_likelihood + tf.reduce_sum(0.5 * (tf.square(standard) - tf.square(z)) + log_sd, axis=-1)


def importance_weighted_bound(log_weights: tf.Tensor) -> tf.Tensor:
    """log of the mean weight of each row (Burda et al. 2016). (rows, draws) -> (rows,)."""
    return tf.reduce_logsumexp(log_weights, axis=1) - math.log(log_weights.shape[1])


def doubly_reparameterised_loss(z: tf.Tensor, log_weight: Callable[[tf.Tensor], tf.Tensor]) -> tf.Tensor:
    """The mean over rows of minus the importance-weighted bound, with the gradients of Tucker et al. (2019), "DReG".

    With w_k the weight of draw k of a row and v_k = w_k / sum_l w_l, the gradients of the bound are

        decoder:  sum_k v_k   d log w_k / d theta                       (that of Burda et al.)
        encoder:  sum_k v_k^2 (d log w_k / d z_k) (d z_k / d phi)       (unbiased too, with less noise)

    The second holds when phi enters log w_k through z_k only. `z` (rows, draws, d) must therefore depend on the
    encoder, z = mean + sd * noise, while `log_weight` maps z to log w (rows, draws) with a *detached* mean and log_sd:

        log_importance_weights(log_likelihood(z), z, tf.stop_gradient(mean), tf.stop_gradient(log_sd))

    The value is right, the first derivatives are those above; second derivatives mean nothing.
    """
    draws = tf.stop_gradient(z)
    with tf.GradientTape() as tape:
        tape.watch(draws)
        log_w = log_weight(draws)
        share = tf.stop_gradient(tf.nn.softmax(log_w, axis=1))  # v, (rows, draws)
        # The gradient for theta; the one for z in the next line needs the same backward pass, which XLA does once.
        decoder_part = -tf.reduce_mean(tf.reduce_sum(share * log_w, axis=1))
    pull = tf.stop_gradient(tape.gradient(decoder_part, draws))  # -v_k d log w_k / d z_k / rows, (rows, draws, d)
    encoder_part = tf.reduce_sum(share[:, :, None] * pull * z)
    surrogate = decoder_part + encoder_part
    bound = tf.reduce_mean(importance_weighted_bound(log_w))
    return tf.stop_gradient(-bound - surrogate) + surrogate
