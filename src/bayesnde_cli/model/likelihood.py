"""The model's density: z ~ N(0, I), x | z ~ N(mean(z), diag variance(z)); columns of values with noise by their cells.

Training, HMC and bridge all read it here, with all constants. Networks compute in float32; `dtype` says in which the
cells are computed from what they say and added up, and so what comes out: float64 where log-densities are compared or
averaged, nothing (the dtype of the networks) where only a gradient is wanted.
"""

from collections.abc import Callable
from math import log, pi

import tensorflow as tf

from bayesnde_cli.model import random_numbers
from bayesnde_cli.model.cells import Cells, log_cells

# z -> (mean, variance), or (z, y) -> (mean, variance) for a conditional model; where columns have cells, these come
# third.
DecoderLike = Callable[..., tuple[tf.Tensor, ...]]

LOG_TWO_PI = log(2.0 * pi)


def log_normal(x: tf.Tensor, mean: tf.Tensor, variance: tf.Tensor) -> tf.Tensor:
    """log N(x; mean, variance) of each cell, that is -(log 2 pi + log variance + (x - mean)^2 / variance) / 2."""
    return -0.5 * (LOG_TWO_PI + tf.math.log(variance) + tf.square(x - mean) / variance)


def log_likelihood(
    x: tf.Tensor,
    mean: tf.Tensor,
    variance: tf.Tensor,
    cells: Cells | None = None,
    *,
    mask: tf.Tensor | None = None,
    dtype: tf.DType | None = None,
) -> tf.Tensor:
    """log p(x | z) = sum over columns of log N(x_j; mean_j, variance_j), in `cells` that of the cell. (…, p) -> (…,).

    x has as many axes as mean; a length of 1 is repeated, as in (rows, 1, p) against (rows, chains, p). `mask` is
    True where a cell of x is observed; the others may hold anything, NaN too, and count as integrated out.
    """
    if len(x.shape) != len(mean.shape) or x.shape[-1] != mean.shape[-1]:
        raise ValueError(f"expected x with the axes of the mean {mean.shape}, got shape {x.shape}")
    if dtype is not None:
        # Far outside of the data the square of a difference is beyond float32, and its rounding is beyond a nat.
        x, mean, variance = (tf.cast(part, dtype) for part in (x, mean, variance))
    # Twice: a NaN that is only masked after the fact would still spoil the gradient.
    place = x if mask is None else tf.where(mask, x, mean)
    if cells is None:
        each = log_normal(place, mean, variance)
    else:
        found = cells.find(x)  # nowhere for NaN
        each = log_cells(place, mean, variance, found, cells)
        if not cells.fills_line:
            each = tf.where(found.is_inside, each, log_normal(place, mean, variance))
    return _total(each if mask is None else tf.where(mask, each, tf.zeros_like(each)), dtype)


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
    given_z = decoder(z) if y is None else decoder(z, y)
    return log_likelihood(x, *given_z, mask=mask, dtype=dtype) + log_prior(z, dtype=dtype)


def draw_rows(
    decoder: DecoderLike, n_rows: int, latent_dim: int, seed: tf.Tensor, *, y: tf.Tensor | None = None
) -> tf.Tensor:
    """Rows of the model: x = mean(z) + sd(z) * noise, z from the prior; in a cell, anywhere in it. (n_rows, p)."""
    seeds = tf.random.split(seed, 2)
    z = random_numbers.normal([n_rows, latent_dim], seeds[0])
    mean, variance, *cells = decoder(z) if y is None else decoder(z, y)
    x = mean + tf.sqrt(variance) * random_numbers.normal(mean.shape, seeds[1])
    if not cells:
        return x
    uniform = random_numbers.uniform(mean.shape, tf.random.experimental.stateless_fold_in(seed, 2), minval=1e-7)
    return cells[0].drawn_inside(x, uniform)


def _total(cells: tf.Tensor, dtype: tf.DType | None) -> tf.Tensor:
    return tf.reduce_sum(cells if dtype is None else tf.cast(cells, dtype), axis=-1)
