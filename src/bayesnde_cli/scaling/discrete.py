"""Marginals of columns with noise: integers on a lattice, and the codes of categories."""

from functools import cached_property
from typing import Annotated, Literal, NamedTuple

import numpy as np
from pydantic import Field, PlainSerializer
from pydantic.dataclasses import dataclass
from scipy.special import log_ndtr, ndtr, ndtri_exp

from bayesnde_cli.scaling.column_map import (
    HALF_LOG_TWO_PI,
    STORED,
    Affine,
    ColumnMap,
    Noise,
    Numbers,
    as_float,
    normal_score,
)
from bayesnde_cli.scaling.mixture import Mixture, Tail, select_mixture

# A fraction of a cell stays off both ends, like the fractions that `prepare` draws.
_LEAST_FRACTION = 2.0**-53
_LEAST_MASS = 1e-300
# A tail below this one is taken by its logarithm; the fraction no longer matters there.
_FAR_TAIL = 1e-290
_LOG_WHOLE = -1e-12  # log of a probability that is still below 1


class Cells(NamedTuple):
    """Cells of probability, in increasing order: the mass below each, its own, and the mass above. Shapes (C,).

    All three are kept, so that both tails have their full relative precision.
    """

    lower: np.ndarray
    mass: np.ndarray
    upper: np.ndarray

    def take(self, index: np.ndarray) -> "Cells":
        return Cells(self.lower[index], self.mass[index], self.upper[index])

    def normal_at(self, fraction: np.ndarray | Literal[0, 1]) -> np.ndarray:
        """u at a fraction of each cell. Shape (C,)."""
        return normal_score(self.lower + self.mass * fraction, self.upper + self.mass * (1.0 - fraction))

    def fraction_at(self, u: np.ndarray) -> np.ndarray:
        """Where u lies in each cell, strictly between 0 and 1. Shape (C,)."""
        mass = np.maximum(self.mass, _LEAST_MASS)
        fraction = np.where(u <= 0, (ndtr(u) - self.lower) / mass, 1.0 - (ndtr(-u) - self.upper) / mass)
        return np.clip(fraction, _LEAST_FRACTION, 1.0 - _LEAST_FRACTION)


@dataclass(frozen=True, config=STORED)
class LatticeMarginal(ColumnMap):
    """`u = Phi^-1(C(v) + P(v) * fraction)`, `f(y) = P(v)/(high - low)`, C the mass below v, and

        P(v) = (1 - w) frequency(v) + w (M(v + 1/2) - M(v - 1/2)),

    M the distribution function of the background. Every integer has mass, even one that was never seen.
    """

    kind: Literal["lattice"] = Field(default="lattice", kw_only=True)
    values: Numbers  # (C,) distinct training values, increasing
    counts: Numbers  # (C,) how often each was seen, less the fit's discount
    background: Mixture
    background_weight: float
    noise: Noise  # at most as wide as the step of 1

    @cached_property
    def _frequencies(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Frequency of each value, and the frequencies below and above each place between values, (C + 1,)."""
        n = np.sum(self.counts)
        below = np.concatenate([np.zeros(1), np.cumsum(self.counts)]) / n
        above = np.concatenate([np.cumsum(self.counts[::-1])[::-1], np.zeros(1)]) / n
        return self.counts / n, below, above

    @cached_property
    def _table(self) -> Cells:
        """The cells of the values seen."""
        return self._cells_at(self.values)

    def _cells_at(self, value: np.ndarray) -> Cells:
        w = self.background_weight
        frequency, below, above = self._frequencies
        left = np.searchsorted(self.values, value, side="left")
        right = np.searchsorted(self.values, value, side="right")
        own = np.where(right > left, frequency[np.minimum(left, len(frequency) - 1)], 0.0)
        lower = (1.0 - w) * below[left] + w * self.background.tails(value - 0.5)[0]
        upper = (1.0 - w) * above[right] + w * self.background.tails(value + 0.5)[1]
        mass = (1.0 - w) * own + w * np.exp(self.background.log_mass(value))
        return Cells(lower, mass, upper)

    def _forward(self, value: np.ndarray, fraction: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        index = np.minimum(np.searchsorted(self.values, value), len(self.values) - 1)
        u = self._table.take(index).normal_at(fraction)
        log_mass = np.log(self._table.mass)[index]
        new = self.values[index] != value
        if new.any():
            u[new], log_mass[new] = self._unseen(value[new], fraction[new])
        return u, log_mass + (0.5 * u**2 + (HALF_LOG_TWO_PI - np.log(self.noise.width)))

    def _unseen(self, value: np.ndarray, fraction: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """u and log P(v) of values that are not in the table."""
        cells = self._cells_at(value)
        u = cells.normal_at(fraction)
        far = np.minimum(cells.lower, cells.upper) < _FAR_TAIL
        if far.any():
            log_tail = np.log(self.background_weight) + self.background.log_far_tail(value[far])
            u[far] = np.copysign(ndtri_exp(log_tail), value[far] - self.background.centre)
        return u, np.log(self.background_weight) + self.background.log_mass(value)

    def _inverse(self, u: np.ndarray) -> np.ndarray:
        y = np.empty_like(u)
        starts, ends = self._table.normal_at(0), self._table.normal_at(1)
        gap_after = np.append(np.diff(self.values) > 1, True)
        index = np.searchsorted(starts, u, side="right") - 1
        is_seen = (index >= 0) & ((u <= ends[index]) | ~gap_after[index])
        seen = index[is_seen]
        y[is_seen] = self.noise.add(self.values[seen], self._table.take(seen).fraction_at(u[is_seen]))
        if not is_seen.all():
            y[~is_seen] = self._between(u[~is_seen], index[~is_seen])
        return y

    def _between(self, u: np.ndarray, index: np.ndarray) -> np.ndarray:
        """y for u after the cell `index` of the table and before the next: the largest integer that starts below u."""
        low = np.where(index >= 0, self.values[index] + 1.0, -np.inf)
        high = np.append(self.values - 1.0, np.inf)[index + 1]
        # Outside the table only the background has mass, and its quantile is close.
        side = np.where(index < 0, 1.0, -1.0)
        log_tail = log_ndtr(side * u) - np.log(self.background_weight)
        guess = np.rint(self.background.from_normal(side * ndtri_exp(np.minimum(log_tail, _LOG_WHOLE))))
        slack = 2.0 + 1e-9 * np.abs(guess)
        low = np.where(np.isinf(low), np.minimum(np.floor(guess - slack), high), low)
        high = np.where(np.isinf(high), np.maximum(np.floor(guess + slack), low), high)
        for _ in range(64):
            if not (low < high).any():
                break
            middle = np.ceil(low + 0.5 * (high - low))
            starts_below = self._cells_at(middle).normal_at(0) <= u
            low = np.where(starts_below, middle, low)
            high = np.where(starts_below, high, np.maximum(middle - 1.0, low))
        return self.noise.add(low, self._cells_at(low).fraction_at(u))


@dataclass(frozen=True, config=STORED)
class CategoricalMarginal(ColumnMap):
    """`u = Phi^-1(C(v) + P(v) * fraction)` with `P(v) = (1 - w) frequency(v) + w/C`, `f(y) = P(v)/(high - low)`.

    For the codes v from 0 to C - 1.
    """

    kind: Literal["categorical"] = Field(default="categorical", kw_only=True)
    counts: Annotated[Numbers, PlainSerializer(lambda array: array.astype(np.int64).tolist())]  # (C,) training rows
    background_weight: float
    noise: Noise  # at most as wide as the step of 1

    @cached_property
    def _cells(self) -> Cells:
        w = self.background_weight
        mass = (1.0 - w) * (self.counts / np.sum(self.counts)) + w / len(self.counts)
        below, above = (np.concatenate([np.zeros(1), np.cumsum(side)[:-1]]) for side in (mass, mass[::-1]))
        return Cells(below, mass, above[::-1])

    def _forward(self, value: np.ndarray, fraction: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        index = value.astype(np.int64)
        u = self._cells.take(index).normal_at(fraction)
        return u, np.log(self._cells.mass / self.noise.width)[index] + (0.5 * u**2 + HALF_LOG_TWO_PI)

    def _inverse(self, u: np.ndarray) -> np.ndarray:
        index = np.maximum(np.searchsorted(self._cells.normal_at(0), u, side="right") - 1, 0)
        return self.noise.add(index.astype(np.float64), self._cells.take(index).fraction_at(u))

    def to_value(self, y: np.ndarray) -> np.ndarray:
        """The code that `y` belongs to, clipped to the codes that exist."""
        return np.clip(self.noise.remove(y), 0.0, len(self.counts) - 1.0)


# Fitting: counts, a smooth background, and how much of each.

# A column with more distinct values, or with fewer rows for each, gets a fitted mixture as its background. The
# others (say, the pixels of images) have their frequencies, and one Gaussian is enough for the remainder.
_MANY_VALUES = 256
_FEW_ROWS_PER_VALUE = 16
_TAIL_WEIGHT = 0.1  # of the Student-t component next to that one Gaussian
_LEAST_SCALE = 0.5  # half a lattice step, for a column that is constant or nearly so
_DISCOUNTS = (0.0, 1.0, 4.0, 16.0, 64.0, 256.0, 1024.0)
# A value seen more than this many times as often as the average value is a spike. Spikes that make up less than this
# share of the rows are not worth a second fit.
_SPIKE = 4.0
_SPIKE_SHARE = 0.02
# A longer table would need unbounded memory, and values seen once say little about their frequency.
_MAX_TABLE = 16_384
# Candidate weights of the background: 1/(n+1) times powers of the square root of 2, up to 1.
_LADDER = 1.4142135623730951
# A gain in nats, over all rows, that is larger than rounding error.
_LEAST_GAIN = 1e-6


def fit_lattice(train: np.ndarray, validation: np.ndarray, *, noise: Noise | None = None) -> LatticeMarginal:
    """The map whose background, discount and weight between counts and background suit unseen rows best.

    With a discount, a value keeps only the counts beyond it: the spike at zero of a column of amounts stays a spike,
    while the amounts, each seen once or twice, are left to the background.
    """
    train, validation = as_float(train), as_float(validation)
    values, n_seen = np.unique(train, return_counts=True)
    validation_values, n_validation = np.unique(validation, return_counts=True)
    union, counts = np.union1d(values, validation_values), n_seen.astype(np.float64)
    train_counts, validation_counts = np.zeros(len(union)), np.zeros(len(union))
    train_counts[np.searchsorted(union, values)] = counts
    validation_counts[np.searchsorted(union, validation_values)] = n_validation
    if len(values) > _MANY_VALUES or len(values) * _FEW_ROWS_PER_VALUE > len(train):
        backgrounds = [select_mixture(train, validation), *_without_spikes(values, counts, validation)]
        lengths = [(discount, int(np.sum(counts > discount))) for discount in _DISCOUNTS]
        discounts = [discount for discount, length in lengths if 0 < length <= _MAX_TABLE]
    else:
        backgrounds = [_single_gaussian(values, counts)]
        discounts = [0.0]
    best_score, best = -np.inf, (backgrounds[0], 0.0, 1.0)  # the background alone, if every table is too long
    for candidate in backgrounds:
        mass = np.exp(candidate.log_mass(union))
        for discount in discounts:
            weight, score = _background_weight(train_counts, validation_counts, mass, discount)
            if score > best_score + _LEAST_GAIN:
                best_score, best = score, (candidate, discount, weight)
    background, discount, weight = best
    # With all weight on the background no table is needed; one value keeps the map's form.
    is_kept = counts > discount if weight < 1.0 else np.arange(len(values)) == np.argmax(counts)
    return LatticeMarginal(values[is_kept], counts[is_kept] - discount, background, weight, noise or Noise())


def fit_categorical(
    train: np.ndarray, validation: np.ndarray, *, n_categories: int, noise: Noise | None = None
) -> CategoricalMarginal:
    """The map with the training frequencies; the weight of the uniform background is chosen on unseen rows."""
    counts, validation_counts = (
        np.bincount(as_float(codes).astype(np.int64), minlength=n_categories).astype(np.float64)
        for codes in (train, validation)
    )
    uniform = np.full(n_categories, 1.0 / n_categories)
    weight, _ = _background_weight(counts, validation_counts, uniform)
    return CategoricalMarginal(counts, weight, noise or Noise())


def _background_weight(
    train: np.ndarray, validation: np.ndarray, background: np.ndarray, discount: float = 0.0
) -> tuple[float, float]:
    """The weight w of the background in [1/(n+1), 1] that predicts held-out rows best, and their log-probability.

    A value seen c times has the probability `(1 - w) max(c - discount, 0)/total + w background`. The held-out rows
    are the validation rows, and each training row under the counts of the others, c - 1. Counts have shape (C,).
    """
    n = float(np.sum(train))
    kept = np.maximum(train - discount, 0.0)
    total = max(float(np.sum(kept)), 1.0)
    left_out = np.maximum(kept - 1.0, 0.0)
    ladder = [1.0 / (n + 1.0)]
    while ladder[-1] < 1.0:
        ladder.append(min(_LADDER * ladder[-1], 1.0))
    best, best_score = 1.0, -np.inf
    for weight in ladder:
        own = (1.0 - weight) / total
        held_out = validation * np.log(own * kept + weight * background)
        leave_one_out = train * np.log(own * left_out + weight * background)
        score = float(np.sum(held_out) + np.sum(leave_one_out))
        if score > best_score + _LEAST_GAIN:
            best, best_score = weight, score
    return best, best_score


def _without_spikes(values: np.ndarray, counts: np.ndarray, validation: np.ndarray) -> list[Mixture]:
    """The mixture of a column whose spikes are cut down to a few times the mean count; none without spikes."""
    cap = max(_SPIKE, np.floor(_SPIKE * np.sum(counts) / len(values)))
    is_spike = counts > cap
    if np.sum(counts[is_spike]) < _SPIKE_SHARE * np.sum(counts):
        return []
    rows = np.repeat(values, np.minimum(counts, cap).astype(np.int64))
    return [select_mixture(rows, validation[~np.isin(validation, values[is_spike])])]


def _single_gaussian(values: np.ndarray, counts: np.ndarray) -> Mixture:
    n = np.sum(counts)
    mean = float(np.sum(values * counts) / n)
    sd = float(np.sqrt(np.sum((values - mean) ** 2 * counts) / n))
    one = np.ones(1)
    tail = Tail(_TAIL_WEIGHT, 0.0, 1.0)
    return Mixture((1.0 - _TAIL_WEIGHT) * one, 0.0 * one, one, tail, centre=mean, scale=max(sd, _LEAST_SCALE))


def noise_inside(column: ColumnMap) -> tuple[float, float] | None:
    """The width of uniform noise inside a cell and the step from value to value; None if noise leaves the cells.

    Both are 0 where the noise has become a standard normal distribution, cut to the cell.
    """
    if isinstance(column, CategoricalMarginal | LatticeMarginal):
        return 0.0, 0.0
    if isinstance(column, Affine) and column.noise is not None and column.noise.width <= 1.0:
        return column.noise.width / column.scale, 1.0 / column.scale
    return None
