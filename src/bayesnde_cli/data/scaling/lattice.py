"""A column of integers with noise to a standard normal: frequencies of the values seen, smooth mass for the rest."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from scipy.special import log_ndtr, ndtri_exp

from bayesnde_cli.data.scaling import stored as read
from bayesnde_cli.data.scaling.cells import (
    HALF_LOG_TWO_PI,
    Cells,
    chunks,
)
from bayesnde_cli.data.scaling.column_map import (
    Array,
    Noise,
    as_float,
    given,
    narrow,
)
from bayesnde_cli.data.scaling.mixture import Mixture, mixture_from_json

# Beyond this distance in u a cell's tail is taken by its logarithm; the fraction no longer matters there.
_FAR_TAIL = 1e-290
_LOG_WHOLE = -1e-12  # log of a probability that is still below 1


@dataclass(frozen=True)
class LatticeMarginal:
    """`u = Phi^-1(C(v) + P(v) * fraction)`, `f(y) = P(v)/(high - low)`, C the mass below v, and

        P(v) = (1 - w) frequency(v) + w (M(v + 1/2) - M(v - 1/2)),

    M the distribution function of the background. Every integer has mass, also those never seen.
    """

    values: Array  # (C,) distinct training values, increasing
    counts: Array  # (C,) how often each was seen, less the fit's discount
    background: Mixture
    background_weight: float
    noise: Noise

    @cached_property
    def _frequencies(self) -> tuple[Array, Array, Array]:
        """Frequency of each value, and the frequencies below and above each place between values, (C + 1,)."""
        n = np.sum(self.counts)
        below = np.concatenate([np.zeros(1), np.cumsum(self.counts)]) / n
        above = np.concatenate([np.cumsum(self.counts[::-1])[::-1], np.zeros(1)]) / n
        return self.counts / n, below, above

    @cached_property
    def _table(self) -> Cells:
        """The cells of the values seen."""
        return self._cells_at(self.values)

    def _cells_at(self, value: Array) -> Cells:
        w = self.background_weight
        frequency, below, above = self._frequencies
        left = np.searchsorted(self.values, value, side="left")
        right = np.searchsorted(self.values, value, side="right")
        own = np.where(right > left, frequency[np.minimum(left, len(frequency) - 1)], 0.0)
        lower = (1.0 - w) * below[left] + w * self.background.tails(value - 0.5)[0]
        upper = (1.0 - w) * above[right] + w * self.background.tails(value + 0.5)[1]
        mass = (1.0 - w) * own + w * np.exp(self.background.log_mass(value))
        return Cells(lower, mass, upper)

    def forward(self, value: Array, fraction: Array | None = None) -> tuple[Array, Array]:
        value, fraction = as_float(value), given(fraction)
        u = np.empty_like(value)
        log_slope = np.empty_like(value)
        table_log_mass = np.log(self._table.mass)
        for rows in chunks(len(value)):
            index = np.minimum(np.searchsorted(self.values, value[rows]), len(self.values) - 1)
            u[rows] = self._table.take(index).normal_at(fraction[rows])
            log_slope[rows] = table_log_mass[index]
            new = self.values[index] != value[rows]
            if new.any():
                u[rows][new], log_slope[rows][new] = self._unseen(value[rows][new], fraction[rows][new])
            log_slope[rows] += 0.5 * u[rows] ** 2 + (HALF_LOG_TWO_PI - np.log(self.noise.width))
        return u, log_slope

    def _unseen(self, value: Array, fraction: Array) -> tuple[Array, Array]:
        """u and log P(v) of values that are not in the table."""
        cells = self._cells_at(value)
        u = cells.normal_at(fraction)
        far = np.minimum(cells.lower, cells.upper) < _FAR_TAIL
        if far.any():
            log_tail = np.log(self.background_weight) + self.background.log_far_tail(value[far])
            u[far] = np.copysign(ndtri_exp(log_tail), value[far] - self.background.centre)
        return u, np.log(self.background_weight) + self.background.log_mass(value)

    def inverse(self, u: Array) -> Array:
        u = as_float(u)
        y = np.empty_like(u)
        starts = self._table.normal_at(np.zeros(len(self.values)))
        ends = self._table.normal_at(np.ones(len(self.values)))
        gap_after = np.append(np.diff(self.values) > 1, True)
        for rows in chunks(len(u)):
            index = np.searchsorted(starts, u[rows], side="right") - 1
            is_seen = (index >= 0) & ((u[rows] <= ends[index]) | ~gap_after[index])
            seen = index[is_seen]
            fraction = self._table.take(seen).fraction_at(u[rows][is_seen])
            y[rows][is_seen] = self.noise.add(self.values[seen], fraction)
            if not is_seen.all():
                y[rows][~is_seen] = self._between(u[rows][~is_seen], index[~is_seen])
        return y

    def _between(self, u: Array, index: np.ndarray) -> Array:
        """y for u that falls after the cell `index` of the table and before the next one: background only."""
        low = np.where(index >= 0, self.values[index] + 1.0, -np.inf)
        high = np.append(self.values - 1.0, np.inf)[index + 1]
        guess = self._outside(u, index < 0)
        slack = 2.0 + 1e-9 * np.abs(guess)
        low = np.where(np.isinf(low), np.minimum(np.floor(guess - slack), high), low)
        high = np.where(np.isinf(high), np.maximum(np.floor(guess + slack), low), high)
        # The largest integer whose cell starts at or below u, by bisection.
        for _ in range(64):
            middle = np.ceil(low + 0.5 * (high - low))
            starts_below = self._cells_at(middle).normal_at(np.zeros(len(u))) <= u
            low = np.where(starts_below, middle, low)
            high = np.where(starts_below, high, np.maximum(middle - 1.0, low))
            if not (low < high).any():
                break
        return self.noise.add(low, self._cells_at(low).fraction_at(u))

    def _outside(self, u: Array, is_below: np.ndarray) -> Array:
        """Where u lies beyond the table, below or above it: only the background has mass there. Shape (n,)."""
        side = np.where(is_below, 1.0, -1.0)
        log_tail = log_ndtr(side * u) - np.log(self.background_weight)
        return np.rint(self.background.from_normal(side * ndtri_exp(np.minimum(log_tail, _LOG_WHOLE))))

    def to_value(self, y: Array) -> Array:
        return self.noise.remove(y)

    def to_json(self) -> dict[str, Any]:
        return {
            "kind": "lattice",
            "values": self.values.tolist(),
            "counts": self.counts.tolist(),
            "background": self.background.to_json(),
            "background_weight": self.background_weight,
            "noise": list(self.noise),
        }


def lattice_from_json(stored: dict[str, Any]) -> LatticeMarginal:
    values, counts = read.numbers(stored["values"], "values"), read.numbers(stored["counts"], "counts", least=0)
    if len(values) != len(counts) or not np.all(np.diff(values) > 0) or not np.sum(counts) > 0:
        raise ValueError(f"{len(counts)} counts of {len(values)} values, which must increase")
    return LatticeMarginal(
        values=values,
        counts=counts,
        background=mixture_from_json(stored["background"]),
        background_weight=read.number(stored["background_weight"], "background_weight", above=0, most=1),
        noise=narrow(read.noise(stored["noise"])),
    )
