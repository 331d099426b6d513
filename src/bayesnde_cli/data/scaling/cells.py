"""From probabilities to normal scores, and cells of probability that a uniform fraction spreads out.

A cell has the mass below it (`lower`), its own (`mass`), and the mass above it (`upper`). All three are kept, so that
both tails have their full relative precision.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from scipy.special import ndtr, ndtri

from bayesnde_cli.data.scaling.column_map import Array

HALF_LOG_TWO_PI = 0.9189385332046727
ROOT_TWO_PI = 2.5066282746310002
# Rows that are worked on at a time: the work arrays stay in the processor's cache and out of the memory bill.
_CHUNK = 16_384
# Fractions of a cell stay off its ends, as those that were handed in did.
_LEAST_FRACTION = 2.0**-53
_LEAST_MASS = 1e-300
# Weights of the background that are tried: 1/(n+1) times powers of the root of 2, up to 1.
_LADDER = 1.4142135623730951
# A gain in nats, over all rows, that is not rounding error.
LEAST_GAIN = 1e-6


class Cells(NamedTuple):
    """Cells of probability, in increasing order. Shapes (C,)."""

    lower: Array
    mass: Array
    upper: Array

    def take(self, index: np.ndarray) -> "Cells":
        return Cells(self.lower[index], self.mass[index], self.upper[index])

    def normal_at(self, fraction: Array) -> Array:
        """u at a fraction of each cell. Shape (C,)."""
        return normal_score(self.lower + self.mass * fraction, self.upper + self.mass * (1.0 - fraction))

    def fraction_at(self, u: Array) -> Array:
        """Where u lies in each cell, strictly between 0 and 1. Shape (C,)."""
        mass = np.maximum(self.mass, _LEAST_MASS)
        from_below = (ndtr(u) - self.lower) / mass
        from_above = (ndtr(-u) - self.upper) / mass
        fraction = np.where(u <= 0, from_below, 1.0 - from_above)
        return np.clip(fraction, _LEAST_FRACTION, 1.0 - _LEAST_FRACTION)


class Counts(NamedTuple):
    """How often each value occurs. Shapes (C,), over the same values."""

    train: Array
    validation: Array


def chunks(n_rows: int) -> Iterator[slice]:
    for start in range(0, n_rows, _CHUNK):
        yield slice(start, start + _CHUNK)


def normal_score(lower: Array, upper: Array) -> Array:
    """Phi^-1 of a probability known from both sides: the smaller one keeps its precision. Shape (n,)."""
    u = ndtri(np.minimum(lower, upper))
    return np.where(lower <= upper, u, -u)


def sums_before(mass: Array) -> Array:
    """The sum of all earlier elements, for each element. Shape (C,)."""
    return np.concatenate([np.zeros(1), np.cumsum(mass)[:-1]])


def background_weight(counts: Counts, background: Array, *, discount: float = 0.0) -> tuple[float, float]:
    """The weight w of the background in [1/(n+1), 1] that suits unseen rows best, and their log-probability.

    A value seen c times has the probability `(1 - w) max(c - discount, 0)/total + w background`. The judges are
    the validation rows, and each training row under the counts of the others, c - 1.
    """
    n = float(np.sum(counts.train))
    kept = np.maximum(counts.train - discount, 0.0)
    total = max(float(np.sum(kept)), 1.0)
    left_out = np.maximum(kept - 1.0, 0.0)
    ladder = [1.0 / (n + 1.0)]
    while ladder[-1] < 1.0:
        ladder.append(min(_LADDER * ladder[-1], 1.0))
    best, best_score = 1.0, -np.inf
    for weight in ladder:
        own = (1.0 - weight) / total
        unseen = counts.validation * np.log(own * kept + weight * background)
        one_by_one = counts.train * np.log(own * left_out + weight * background)
        score = float(np.sum(unseen) + np.sum(one_by_one))
        if score > best_score + LEAST_GAIN:
            best, best_score = weight, score
    return best, best_score
