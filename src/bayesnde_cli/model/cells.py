"""Columns of values with noise: the likelihood of a value's whole cell, not of the point in it where the noise fell.

A lattice or categorical value v has a cell [a, b) in the model's space, in which dequantisation noise puts it anywhere.
Where the noise fell says nothing of the row, so a column whose cells are known has

    p(x | z) = P(a < t < b) w(x | a, b),    t ~ N(mean(z), variance(z)),

w the density of the noise inside the cell. A model need then not learn that rows are spread in their cells as the noise
is, nor how sharply cells end. Outside of all cells p(x | z) is the normal density of x itself; over all places that
noise can reach, both together integrate to one.
"""

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import tensorflow as tf

HALF_LOG_TWO_PI = 0.5 * math.log(2.0 * math.pi)
_ROOT_TWO_PI = math.sqrt(2.0 * math.pi)
# Beyond this the logarithm of the normal distribution function is taken from its series, whose error is then 1e-6:
# in float32 the function itself ends at -13.
_FAR = -10.0
# Nothing lies beyond: cells that reach to infinity end here.
END = 100.0
_NOWHERE = 2.0 * END
# The same of pixels, whose ends of the line are levels like others: a model may be far more sure of black than that.
LEVELS_END = 1e4
# Beyond so many standard deviations a cell says nearly as much of the mean as a point.
_FAR_END = 15.0


@dataclass(frozen=True)
class ColumnCells:
    """The cells of one column, apart from each other and in increasing order, in the model's space.

    Inside, noise is uniform over so much `width` around the value, which lies half a `step` from the ends; a width of 0
    stands for the standard normal distribution cut to the cell, which uniform noise becomes where a column went through
    its own distribution. Ends at -END and END stand for infinity.
    """

    lower: tuple[float, ...] = ()
    upper: tuple[float, ...] = ()
    width: float = 0.0
    step: float = 0.0

    def __post_init__(self) -> None:
        edges = [edge for pair in zip(self.lower, self.upper, strict=True) for edge in pair]
        is_sound = all(a < b for a, b in zip(self.lower, self.upper, strict=True)) and edges == sorted(edges)
        # The noise of a value stays in its cell.
        is_sound = is_sound and 0.0 <= self.width <= 1.001 * self.step < math.inf
        if not is_sound or (edges and max(map(abs, edges)) > END):
            raise ValueError("expected cells in increasing order, with room for their noise")


class FoundCells(NamedTuple):
    """The cell of each place, of the shape of x each."""

    is_inside: tf.Tensor  # whether there is one
    lower: tf.Tensor  # some cell where there is none
    upper: tf.Tensor


class ValueCells(NamedTuple):
    """The cells of all columns, filled up with cells where nothing lies."""

    lower: np.ndarray  # (p, cells) float32
    upper: np.ndarray
    width: np.ndarray  # (p,) float32
    step: np.ndarray

    @property
    def fills_line(self) -> bool:
        """Whether there is a cell wherever a place may lie."""
        return False

    def find(self, x: tf.Tensor) -> FoundCells:
        """The cell that each place lies in. x (…, p)."""
        place = tf.cast(x, tf.float32)[..., None]
        here = (place >= self.lower) & (place < self.upper)  # (…, p, cells)
        is_inside = tf.reduce_any(here, axis=-1)
        lower, upper = (tf.reduce_sum(tf.where(here, edges, 0.0), axis=-1) for edges in (self.lower, self.upper))
        found = is_inside, tf.where(is_inside, lower, -1.0), tf.where(is_inside, upper, 1.0)
        return FoundCells(found[0], *(tf.cast(edge, x.dtype) for edge in found[1:]))

    def log_noise(self, x: tf.Tensor, found: FoundCells) -> tf.Tensor:
        """log w(x | a, b) of each place, whether in a cell or not."""
        width = tf.cast(self.width, x.dtype)
        is_normal = tf.equal(width, 0.0)
        log_width = tf.math.log(tf.where(is_normal, tf.ones_like(width), width))
        log_mass = log_normal_mass(found.lower, found.upper)
        return tf.where(is_normal, -0.5 * tf.square(x) - HALF_LOG_TWO_PI - log_mass, -log_width)

    def drawn_inside(self, x: tf.Tensor, uniform: tf.Tensor) -> tf.Tensor:
        """Places that lie in cells, moved to where noise puts them there: draws of w(x | a, b). uniform in (0, 1)."""
        found = self.find(x)
        is_right = found.lower + found.upper > 0.0
        low, high = (
            tf.where(is_right, -far, near) for far, near in ((found.upper, found.lower), (found.lower, found.upper))
        )
        below, above = (0.5 * tf.math.erfc(-math.sqrt(0.5) * edge) for edge in (low, high))
        place = tf.math.ndtri(below + uniform * (above - below))
        normal = tf.clip_by_value(tf.where(is_right, -place, place), found.lower, found.upper)
        # A cell that reaches to infinity has its value half a step from its other end.
        value = tf.where(
            found.lower <= -END, found.upper - 0.5 * self.step,
            tf.where(found.upper >= END, found.lower + 0.5 * self.step, 0.5 * (found.lower + found.upper)),
        )  # fmt: skip
        even = value + (uniform - 0.5) * self.width
        return tf.where(found.is_inside, tf.where(tf.equal(self.width, 0.0), normal, even), x)


class LevelCells(NamedTuple):
    """The cells of pixels, for all columns alike: level v of 0, 1, … has [logit(v / n), logit((v + 1) / n)).

    Together they fill the line. Noise is uniform over a level, which under a logit is w(x) = n s (1 - s) with the
    logistic function s of x, in every cell.
    """

    n_levels: float

    @property
    def fills_line(self) -> bool:
        """Whether there is a cell wherever a place may lie."""
        return True

    def find(self, x: tf.Tensor) -> FoundCells:
        """The cell that each place lies in. x (…, p)."""
        inner = np.arange(1.0, self.n_levels)
        edges = np.concatenate([[-LEVELS_END], np.log(inner) - np.log(self.n_levels - inner), [LEVELS_END]])
        table, level = tf.constant(edges, x.dtype), tf.cast(self._level(x), tf.int32)
        return FoundCells(~tf.math.is_nan(x), tf.gather(table, level), tf.gather(table, level + 1))

    def log_noise(self, x: tf.Tensor, found: FoundCells) -> tf.Tensor:
        """log w(x) of each place."""
        away = tf.abs(x)
        return math.log(self.n_levels) - away - 2.0 * tf.math.log1p(tf.exp(-away))

    def drawn_inside(self, x: tf.Tensor, uniform: tf.Tensor) -> tf.Tensor:
        """Places moved to where noise puts them in their cells. uniform in (0, 1)."""
        n_levels, level = tf.cast(self.n_levels, x.dtype), self._level(x)
        return tf.math.log(level + uniform) - tf.math.log((n_levels - 1.0 - level) + (1.0 - uniform))

    def _level(self, x: tf.Tensor) -> tf.Tensor:
        # In float64 always: at the end of a cell two precisions would find two levels.
        level = tf.floor(self.n_levels * tf.sigmoid(tf.cast(x, tf.float64)))
        level = tf.cast(tf.clip_by_value(level, 0.0, self.n_levels - 1.0), x.dtype)
        return tf.where(tf.math.is_nan(x), tf.zeros_like(x), level)


Cells = ValueCells | LevelCells


@lru_cache(maxsize=8)
def joined_cells(columns: tuple[ColumnCells, ...]) -> ValueCells | None:
    """The cells of these columns; None if there is none."""
    n_cells = max((len(column.lower) for column in columns), default=0)
    if not n_cells:
        return None
    lower, upper = (np.full((len(columns), n_cells), _NOWHERE, np.float32) for _ in range(2))
    for position, column in enumerate(columns):
        lower[position, : len(column.lower)] = column.lower
        upper[position, : len(column.upper)] = column.upper
    sizes = (np.array([getattr(column, name) for column in columns], np.float32) for name in ("width", "step"))
    return ValueCells(lower, upper, *sizes)


def log_cells(x: tf.Tensor, mean: tf.Tensor, variance: tf.Tensor, found: FoundCells, cells: Cells) -> tf.Tensor:
    """log P(a < t < b) + log w(x | a, b) of each place, whether in a cell or not. Shapes as in `log_normal`."""
    return log_normal_mass(*standard_edges(mean, variance, found)) + cells.log_noise(x, found)


def standard_edges(mean: tf.Tensor, variance: tf.Tensor, found: FoundCells) -> tuple[tf.Tensor, tf.Tensor]:
    """The edges of the cells in standard deviations from the mean."""
    sd = tf.sqrt(variance)
    return (found.lower - mean) / sd, (found.upper - mean) / sd


def information_share(low: tf.Tensor, high: tf.Tensor) -> tf.Tensor:
    """What a cell, in standard deviations from the mean, says of the mean, as a share of what a point would say.

    It is -d^2 log P(low < t < high) / d mean^2 in units of 1 / variance, that is 1 less the variance of a standard
    normal t inside the cell: between 0 and 1, near 0 where the cell has all the mass.
    """
    log_mass = log_normal_mass(low, high)
    at_low, at_high = (tf.exp(-0.5 * tf.square(edge) - HALF_LOG_TWO_PI - log_mass) for edge in (low, high))
    share = tf.square(at_low - at_high) + high * at_high - low * at_low
    # Far out these terms are large and cancel; t is then near the end of the cell, with a variance of about 1 / end^2.
    end = tf.where(low > 0.0, low, tf.where(high < 0.0, -high, tf.zeros_like(low)))
    far = 1.0 - 1.0 / tf.square(tf.maximum(end, _FAR_END))
    return tf.clip_by_value(tf.where(end > _FAR_END, far, share), 0.0, 1.0)


def log_normal_mass(low: tf.Tensor, high: tf.Tensor) -> tf.Tensor:
    """log(Phi(high) - Phi(low)) for low < high, with its full relative precision in both tails."""
    is_right = low + high > 0.0  # there the tails are taken from the other side
    low, high = tf.where(is_right, -high, low), tf.where(is_right, -low, high)
    log_high, log_low = log_normal_cdf(high), log_normal_cdf(low)
    least = 1e-6 if low.dtype == tf.float32 else 1e-14  # cells that rounding has left no width
    return log_high + tf.math.log(-tf.math.expm1(-tf.maximum(log_high - log_low, least)))


def log_normal_cdf(t: tf.Tensor) -> tf.Tensor:
    """log Phi(t) to the far left tail, for t up to about 5: to the right it is 0."""
    near, far = tf.maximum(t, _FAR), tf.minimum(t, _FAR)  # neither branch sees what would spoil its slope
    is_near, square = t > _FAR, tf.square(far)
    inverse = 1.0 / square
    series = 1.0 - inverse * (1.0 - 3.0 * inverse * (1.0 - 5.0 * inverse))
    # One logarithm for both, as logarithms are what this costs.
    tail = series / (-_ROOT_TWO_PI * far)  # Phi(far) exp(far^2 / 2)
    return tf.math.log(tf.where(is_near, 0.5 * tf.math.erfc(-math.sqrt(0.5) * near), tail)) - tf.where(
        is_near, tf.zeros_like(square), 0.5 * square
    )
