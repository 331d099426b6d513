"""The model's density: z ~ N(0, I), x | z ~ N(mean(z), diag variance(z)), with every constant.

Training, HMC and bridge sampling all evaluate it here. Networks compute in float32. `dtype` sets the precision of the
cells and of their sum: float64 where log-densities are compared or averaged, None (the dtype of the networks) where
only a gradient is needed.

A lattice or categorical value v has a cell [a, b) in the model's space, and noise puts it anywhere inside. A column
whose cells are known has

    p(x | z) = P(a < t < b) w(x | a, b),    t ~ N(mean(z), variance(z)),

with the density w of the noise inside the cell, so a model need not learn the noise or the edges of the cells. Outside
all cells p(x | z) is the normal density of x. Over all places that noise can reach, both together integrate to one."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from bayesnde_cli.model import backend
from bayesnde_cli.rows import Rows

# z -> (mean, variance), or (z, y) -> (mean, variance) for a conditional model; cells come third where columns have any.
DecoderLike = Callable[..., tuple[tf.Tensor, ...]]
# (rows, d) -> (rows,): each value depends on its own row alone. float64 values make float64 energies.
LogDensity = Callable[[tf.Tensor], tf.Tensor]

LOG_TWO_PI = math.log(2.0 * math.pi)
# No value lies beyond: cells that reach to infinity end here. Unused cells of a column lie beyond that.
END = 100.0
_NOWHERE = 2.0 * END
# The same for pixels. The outermost levels are levels like others, and a model may be far more certain of black.
LEVELS_END = 1e4
# Below this the logarithm of the normal distribution function comes from its series, whose error is then 1e-6: in
# float32 the function itself underflows at -13.
_FAR = -10.0
# Beyond this many standard deviations a cell is nearly as informative about the mean as a point.
_FAR_END = 15.0


def log_normal(x: tf.Tensor, mean: tf.Tensor, variance: tf.Tensor) -> tf.Tensor:
    """log N(x; mean, variance) of each cell, that is -(log 2 pi + log variance + (x - mean)^2 / variance) / 2."""
    return -0.5 * (LOG_TWO_PI + tf.math.log(variance) + tf.square(x - mean) / variance)


def log_likelihood(
    x: tf.Tensor,
    mean: tf.Tensor,
    variance: tf.Tensor,
    cells: "Cells | None" = None,
    *,
    mask: tf.Tensor | None = None,
    dtype: tf.DType | None = None,
) -> tf.Tensor:
    """log p(x | z) = sum over columns of log N(x_j; mean_j, variance_j), or the log-mass of a cell. (…, p) -> (…,).

    x has as many axes as mean; those of length 1 are broadcast. `mask` is True where a cell of x is observed; other
    cells may hold anything, even NaN, and are integrated out.
    """
    if len(x.shape) != len(mean.shape):
        raise ValueError(f"expected x with the axes of the mean {mean.shape}, got shape {x.shape}")
    if dtype is not None:
        # Far outside the data the squared difference overflows float32, and its rounding exceeds a nat.
        x, mean, variance = (tf.cast(part, dtype) for part in (x, mean, variance))
    # Mask twice: a NaN that is masked only in the result would still spoil the gradient.
    place = x if mask is None else tf.where(mask, x, mean)
    if cells is None:
        each = log_normal(place, mean, variance)
    else:
        found = cells.find(x)  # no cell contains NaN
        each = log_normal_mass(*standard_edges(mean, variance, found)) + cells.log_noise(place, found)
        if isinstance(cells, ValueCells):  # there are places outside all cells
            each = tf.where(found.is_inside, each, log_normal(place, mean, variance))
    return _total(each if mask is None else tf.where(mask, each, tf.zeros_like(each)), dtype)


def log_prior(z: tf.Tensor, *, dtype: tf.DType | None = None) -> tf.Tensor:
    """log p(z) = log N(z; 0, I). (…, d) -> (…,)."""
    return _total(-0.5 * (LOG_TWO_PI + tf.square(z)), dtype)


def _total(cells: tf.Tensor, dtype: tf.DType | None) -> tf.Tensor:
    return tf.reduce_sum(cells if dtype is None else tf.cast(cells, dtype), axis=-1)


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
    """Rows (n_rows, p) of the model: x = mean(z) + sd(z) noise, with z from the prior; in a cell, noise of the cell."""
    seeds = tf.random.split(seed, 2)
    z = backend.normal([n_rows, latent_dim], seeds[0])
    mean, variance, *cells = decoder(z) if y is None else decoder(z, y)
    x = mean + tf.sqrt(variance) * backend.normal(mean.shape, seeds[1])
    if not cells:
        return x
    uniform = backend.uniform(mean.shape, tf.random.experimental.stateless_fold_in(seed, 2), minval=1e-7)
    return cells[0].draw_inside(x, uniform)


class Target(NamedTuple):
    """The rows of a block as tensors; their latent posteriors, up to constants, are what chains sample."""

    x: tf.Tensor  # (rows, p)
    observed: tf.Tensor | None = None  # (rows, p) bool; None: every cell
    y: tf.Tensor | None = None  # (rows, classes), one-hot

    @staticmethod
    def from_rows(rows: Rows) -> "Target":
        """The tensors of some rows, with 0 in missing cells."""
        y = None if rows.y is None else tf.constant(rows.y)
        if rows.observed is None:
            return Target(tf.constant(rows.x), None, y)
        x = np.where(rows.observed, rows.x, 0.0).astype(np.float32)
        return Target(tf.constant(x), tf.constant(rows.observed), y)

    def change(self, function: Callable[[tf.Tensor], tf.Tensor]) -> "Target":
        """Apply a function to each tensor that is there."""
        return Target(*(None if part is None else function(part) for part in self))

    def take(self, index: np.ndarray) -> "Target":
        """Some rows of a target of arrays."""
        return self.change(lambda part: part[index])

    def repeat(self, times: int) -> "Target":
        """Repeat each row, the copies next to each other: one for every chain."""
        return self.change(lambda part: tf.repeat(part, times, axis=0))

    def log_joint(self, decoder: DecoderLike, z: tf.Tensor) -> tf.Tensor:
        """log p(x, z) of one latent or of several for each row. z (rows, [draws,] d) -> (rows[, draws]) float64."""
        x, observed, y = self if len(z.shape) == 2 else self.change(lambda part: part[:, None, :])
        return log_joint(z, x, decoder, y=y, mask=observed, dtype=tf.float64)

    def log_density(self, decoder: DecoderLike, at_once: int | None = None) -> LogDensity:
        """The function z (rows, d) -> log p(x, z) (rows,) float64.

        With `at_once`, value and gradient are computed for batches of at most that many rows, so that the activations
        of large networks stay in the cache. The gradient is then not differentiable again.
        """
        n_rows = self.x.shape[0]
        if at_once is None or at_once >= n_rows:
            return lambda z: self.log_joint(decoder, z)
        n_each = largest_divisor(n_rows, at_once)
        batches = self.change(lambda part: tf.reshape(part, [-1, n_each, part.shape[1]]))

        @tf.custom_gradient
        def log_density(z: tf.Tensor) -> tuple[tf.Tensor, Callable[[tf.Tensor], tf.Tensor]]:
            z_batches = tf.reshape(z, [-1, n_each, z.shape[1]])

            def batch_value(index: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
                some, own = z_batches[index], batches.change(lambda part: part[index])
                with tf.GradientTape() as tape:
                    tape.watch(some)
                    value = own.log_joint(decoder, some)
                return value, tape.gradient(value, some)

            indices = tf.range(n_rows // n_each)
            value, gradient = tf.map_fn(batch_value, indices, fn_output_signature=(tf.float64, z.dtype))
            gradient = tf.reshape(gradient, z.shape)  # of each row's own value
            return tf.reshape(value, [n_rows]), lambda upstream: tf.cast(upstream, z.dtype)[:, None] * gradient

        return log_density


def largest_divisor(n: int, most: int) -> int:
    """The largest divisor of n that is at most `most`, at least 1: the size of equal batches of n."""
    return max(size for size in range(1, max(1, min(n, most)) + 1) if n % size == 0)


# Cells.


@dataclass(frozen=True)
class ColumnCells:
    """The cells of one column in the model's space, disjoint and in increasing order; -END and END are infinity.

    Inside a cell, noise is uniform with this `width` around the value, which lies half a `step` from the ends. A width
    of 0 stands for the standard normal distribution truncated to the cell, as after a map through the column's own
    distribution.
    """

    lower: tuple[float, ...] = ()
    upper: tuple[float, ...] = ()
    width: float = 0.0
    step: float = 0.0


class FoundCells(NamedTuple):
    """The cell that contains each place, each field in the shape of x."""

    is_inside: tf.Tensor  # whether there is one
    lower: tf.Tensor  # arbitrary where there is none
    upper: tf.Tensor


@dataclass(frozen=True, eq=False)
class ValueCells:
    """The cells of all columns, padded with cells beyond all values."""

    lower: np.ndarray  # (p, cells) float32
    upper: np.ndarray
    width: np.ndarray  # (p,) float32
    step: np.ndarray

    def find(self, x: tf.Tensor) -> FoundCells:
        """Find the cell that contains each place. x (…, p)."""
        place = tf.cast(x, tf.float32)[..., None]
        here = (place >= self.lower) & (place < self.upper)  # (…, p, cells)
        is_inside = tf.reduce_any(here, axis=-1)
        lower, upper = (tf.reduce_sum(tf.where(here, edges, 0.0), axis=-1) for edges in (self.lower, self.upper))
        lower, upper = tf.where(is_inside, lower, -1.0), tf.where(is_inside, upper, 1.0)
        return FoundCells(is_inside, tf.cast(lower, x.dtype), tf.cast(upper, x.dtype))

    def log_noise(self, x: tf.Tensor, found: FoundCells) -> tf.Tensor:
        """log w(x | a, b) of each place, in a cell or not."""
        width = tf.cast(self.width, x.dtype)
        is_normal = tf.equal(width, 0.0)
        log_width = tf.math.log(tf.where(is_normal, tf.ones_like(width), width))
        log_mass = log_normal_mass(found.lower, found.upper)
        return tf.where(is_normal, -0.5 * tf.square(x) - 0.5 * LOG_TWO_PI - log_mass, -log_width)

    def draw_inside(self, x: tf.Tensor, uniform: tf.Tensor) -> tf.Tensor:
        """Replace places inside cells by draws of w(x | a, b). uniform in (0, 1)."""
        is_inside, lower, upper = self.find(x)
        is_right = lower + upper > 0.0  # mirrored, to use the left tail
        low, high = tf.where(is_right, -upper, lower), tf.where(is_right, -lower, upper)
        below, above = (0.5 * tf.math.erfc(-math.sqrt(0.5) * edge) for edge in (low, high))
        place = tf.math.ndtri(below + uniform * (above - below))
        normal = tf.clip_by_value(tf.where(is_right, -place, place), lower, upper)
        # The value of a cell that reaches to infinity lies half a step from its other end.
        value = 0.5 * (lower + upper)
        value = tf.where(upper >= END, lower + 0.5 * self.step, value)
        value = tf.where(lower <= -END, upper - 0.5 * self.step, value)
        even = value + (uniform - 0.5) * self.width
        return tf.where(is_inside, tf.where(tf.equal(self.width, 0.0), normal, even), x)


@dataclass(frozen=True)
class LevelCells:
    """The cells of pixels, the same for all columns: level v = 0, 1, … has [logit(v / n), logit((v + 1) / n)).

    They cover the line. Noise is uniform over a level, which the logit turns into w(x) = n s (1 - s) in every cell,
    with the logistic function s of x.
    """

    n_levels: float

    def find(self, x: tf.Tensor) -> FoundCells:
        """Find the cell that contains each place. x (…, p)."""
        inner = np.arange(1.0, self.n_levels)
        edges = np.concatenate([[-LEVELS_END], np.log(inner) - np.log(self.n_levels - inner), [LEVELS_END]])
        table, level = tf.constant(edges, x.dtype), tf.cast(self._level(x), tf.int32)
        return FoundCells(~tf.math.is_nan(x), tf.gather(table, level), tf.gather(table, level + 1))

    def log_noise(self, x: tf.Tensor, found: FoundCells) -> tf.Tensor:
        """log w(x) of each place."""
        away = tf.abs(x)
        return math.log(self.n_levels) - away - 2.0 * tf.math.log1p(tf.exp(-away))

    def draw_inside(self, x: tf.Tensor, uniform: tf.Tensor) -> tf.Tensor:
        """Replace places by draws of the noise in their cells. uniform in (0, 1)."""
        n_levels, level = tf.cast(self.n_levels, x.dtype), self._level(x)
        return tf.math.log(level + uniform) - tf.math.log((n_levels - 1.0 - level) + (1.0 - uniform))

    def _level(self, x: tf.Tensor) -> tf.Tensor:
        # Always in float64: at the edge of a cell two precisions would find two levels.
        level = tf.floor(self.n_levels * tf.sigmoid(tf.cast(x, tf.float64)))
        level = tf.cast(tf.clip_by_value(level, 0.0, self.n_levels - 1.0), x.dtype)
        return tf.where(tf.math.is_nan(x), tf.zeros_like(x), level)


Cells = ValueCells | LevelCells


@lru_cache(maxsize=8)
def join_cells(columns: tuple[ColumnCells, ...]) -> ValueCells | None:
    """The cells of all columns together; None if no column has any."""
    n_cells = max((len(column.lower) for column in columns), default=0)
    if not n_cells:
        return None
    lower, upper = (np.full((len(columns), n_cells), _NOWHERE, np.float32) for _ in range(2))
    for position, column in enumerate(columns):
        lower[position, : len(column.lower)] = column.lower
        upper[position, : len(column.upper)] = column.upper
    width, step = (np.array([getattr(column, name) for column in columns], np.float32) for name in ("width", "step"))
    return ValueCells(lower, upper, width, step)


def standard_edges(mean: tf.Tensor, variance: tf.Tensor, found: FoundCells) -> tuple[tf.Tensor, tf.Tensor]:
    """The edges of the cells in standard deviations from the mean."""
    sd = tf.sqrt(variance)
    return (found.lower - mean) / sd, (found.upper - mean) / sd


def information_share(low: tf.Tensor, high: tf.Tensor) -> tf.Tensor:
    """The information of a cell about the mean, as a share of that of a point. Edges in s.d. from the mean.

    It is -d^2 log P(low < t < high) / d mean^2 in units of 1 / variance, or 1 minus the variance of a standard normal t
    truncated to the cell: between 0 and 1, near 0 where the cell has all the mass.
    """
    log_mass = log_normal_mass(low, high)
    at_low, at_high = (tf.exp(-0.5 * tf.square(edge) - 0.5 * LOG_TWO_PI - log_mass) for edge in (low, high))
    share = tf.square(at_low - at_high) + high * at_high - low * at_low
    # Far out these terms are large and cancel; there t is near the edge, with a variance of about 1 / edge^2.
    end = tf.where(low > 0.0, low, tf.where(high < 0.0, -high, tf.zeros_like(low)))
    far = 1.0 - 1.0 / tf.square(tf.maximum(end, _FAR_END))
    return tf.clip_by_value(tf.where(end > _FAR_END, far, share), 0.0, 1.0)


def log_normal_mass(low: tf.Tensor, high: tf.Tensor) -> tf.Tensor:
    """log(Phi(high) - Phi(low)) for low < high, with its full relative precision in both tails."""
    is_right = low + high > 0.0  # mirrored, to use the left tail
    low, high = tf.where(is_right, -high, low), tf.where(is_right, -low, high)
    log_high, log_low = log_normal_cdf(high), log_normal_cdf(low)
    least = 1e-6 if low.dtype == tf.float32 else 1e-14  # for cells that rounding has left without width
    return log_high + tf.math.log(-tf.math.expm1(-tf.maximum(log_high - log_low, least)))


def log_normal_cdf(t: tf.Tensor) -> tf.Tensor:
    """log Phi(t), accurate in the far left tail, for t up to about 5; beyond, it is 0."""
    near, far = tf.maximum(t, _FAR), tf.minimum(t, _FAR)  # keeps NaN out of the gradient of either branch
    is_near, square = t > _FAR, tf.square(far)
    inverse = 1.0 / square
    series = 1.0 - inverse * (1.0 - 3.0 * inverse * (1.0 - 5.0 * inverse))
    tail = series / (-math.sqrt(2.0 * math.pi) * far)  # Phi(far) exp(far^2 / 2)
    # One logarithm for both branches: it is the expensive part.
    log_part = tf.math.log(tf.where(is_near, 0.5 * tf.math.erfc(-math.sqrt(0.5) * near), tail))
    return log_part - tf.where(is_near, tf.zeros_like(square), 0.5 * square)
