"""The model's density: z ~ N(0, I), x | z ~ N(mean(z), diag variance(z)).

Training, HMC and bridge all read it here, with all constants. Networks compute in float32; `dtype` says in which the
cells are computed from what they say and added up, and so what comes out: float64 where log-densities are compared or
averaged, nothing (the dtype of the networks) where only a gradient is wanted.
"""

from collections.abc import Callable
from math import log, pi

import tensorflow as tf

from bayesnde_cli.model import random_numbers

# z -> (mean, variance), or (z, y) -> (mean, variance) for a conditional model.
DecoderLike = Callable[..., tuple[tf.Tensor, tf.Tensor]]

LOG_TWO_PI = log(2.0 * pi)


def log_normal(x: tf.Tensor, mean: tf.Tensor, variance: tf.Tensor) -> tf.Tensor:
    """log N(x; mean, variance) of each cell, that is -(log 2 pi + log variance + (x - mean)^2 / variance) / 2."""
    return -0.5 * (LOG_TWO_PI + tf.math.log(variance) + tf.square(x - mean) / variance)


def log_likelihood(
    x: tf.Tensor,
    mean: tf.Tensor,
    variance: tf.Tensor,
    *,
    mask: tf.Tensor | None = None,
    dtype: tf.DType | None = None,
) -> tf.Tensor:
    """log p(x | z) = sum over columns of log N(x_j; mean_j, variance_j). (…, p) -> (…,).

    x has as many axes as mean; a length of 1 is repeated, as in (rows, 1, p) against (rows, chains, p). `mask` is
    True where a cell of x is observed; the others may hold anything, NaN too, and count as integrated out.
    """
    if len(x.shape) != len(mean.shape) or x.shape[-1] != mean.shape[-1]:
        raise ValueError(f"expected x with the axes of the mean {mean.shape}, got shape {x.shape}")
    if dtype is not None:
        # Far outside of the data the square of a difference is beyond float32, and its rounding is beyond a nat.
        x, mean, variance = (tf.cast(part, dtype) for part in (x, mean, variance))
    if mask is None:
        return _total(log_normal(x, mean, variance), dtype)
    # Twice: a NaN that is only masked after the fact would still spoil the gradient.
    cells = log_normal(tf.where(mask, x, mean), mean, variance)
    return _total(tf.where(mask, cells, tf.zeros_like(cells)), dtype)


def log_prior(z: tf.Tensor, *, dtype: tf.DType | None = None) -> tf.Tensor:
    """log p(z) = log N(z; 0, I). (…, d) -> (…,)."""
    return _total(-0.5 * (LOG_TWO_PI + tf.square(z)), dtype)


def log_joint(
    z: tf.Tensor,
    x: tf.Tensor,
    decoder: DecoderLike,
    *,
    y: tf.Tensor | None = None,
    mask: tf.Tensor | None = None,
    dtype: tf.DType | None = None,
) -> tf.Tensor:
    """log p(x | z) + log p(z), the latent posterior of x up to its constant. z (…, d), x (…, p) -> (…,)."""
    mean, variance = decoder(z) if y is None else decoder(z, y)
    return log_likelihood(x, mean, variance, mask=mask, dtype=dtype) + log_prior(z, dtype=dtype)


def draw_rows(
    decoder: DecoderLike, n_rows: int, latent_dim: int, seed: tf.Tensor, *, y: tf.Tensor | None = None
) -> tf.Tensor:
    """Rows of the model: x = mean(z) + sd(z) * noise, z from the prior. (n_rows, p)."""
    seeds = tf.random.split(seed, 2)
    z = random_numbers.normal([n_rows, latent_dim], seeds[0])
    mean, variance = decoder(z) if y is None else decoder(z, y)
    return mean + tf.sqrt(variance) * random_numbers.normal(mean.shape, seeds[1])


def _total(cells: tf.Tensor, dtype: tf.DType | None) -> tf.Tensor:
    return tf.reduce_sum(cells if dtype is None else tf.cast(cells, dtype), axis=-1)
