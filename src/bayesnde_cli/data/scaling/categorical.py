"""A categorical column, as label codes 0..C-1 with noise, to a standard normal."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from bayesnde_cli.data.scaling import stored as read
from bayesnde_cli.data.scaling.cells import (
    HALF_LOG_TWO_PI,
    Cells,
    Counts,
    background_weight,
    chunks,
    sums_before,
)
from bayesnde_cli.data.scaling.column_map import Array, Noise, as_float, given, narrow, rounded_number


@dataclass(frozen=True)
class CategoricalMarginal:
    """`u = Phi^-1(C(v) + P(v) * fraction)` with `P(v) = (1 - w) frequency(v) + w/C`, `f(y) = P(v)/(high - low)`.

    The categories are the support: a code outside has no density, and `forward` raises ValueError.
    """

    counts: Array  # (C,) training rows of each code
    background_weight: float
    noise: Noise

    @cached_property
    def _cells(self) -> Cells:
        w = self.background_weight
        mass = (1.0 - w) * (self.counts / np.sum(self.counts)) + w / len(self.counts)
        return Cells(sums_before(mass), mass, sums_before(mass[::-1])[::-1])

    def forward(self, value: Array, fraction: Array | None = None) -> tuple[Array, Array]:
        code, fraction = as_float(value), given(fraction)
        is_code = (code >= 0) & (code < len(self.counts)) & (code == np.floor(code))
        if not is_code.all():
            raise ValueError(f"expected a code from 0 to {len(self.counts) - 1}, got {code[~is_code][0]:g}")
        log_density = np.log(self._cells.mass / self.noise.width)
        u = np.empty_like(code)
        log_slope = np.empty_like(code)
        for rows in chunks(len(code)):
            index = code[rows].astype(np.int64)
            u[rows] = self._cells.take(index).normal_at(fraction[rows])
            log_slope[rows] = log_density[index] + (0.5 * u[rows] ** 2 + HALF_LOG_TWO_PI)
        return u, log_slope

    def inverse(self, u: Array) -> Array:
        u = as_float(u)
        starts = self._cells.normal_at(np.zeros(len(self.counts)))
        index = np.maximum(np.searchsorted(starts, u, side="right") - 1, 0)
        return self.noise.add(index.astype(np.float64), self._cells.take(index).fraction_at(u))

    def to_value(self, y: Array) -> Array:
        """The code that `y` belongs to, clipped to the codes that exist."""
        return np.clip(self.noise.remove(y), 0.0, len(self.counts) - 1.0)

    def to_json(self) -> dict[str, Any]:
        return {
            "kind": "categorical",
            "counts": [int(count) for count in self.counts],
            "background_weight": self.background_weight,
            "noise": list(self.noise),
        }


def fit_categorical(
    train_codes: Array, validation_codes: Array, *, n_categories: int, noise: Noise | None = None
) -> CategoricalMarginal:
    """The map with the training frequencies; the weight of the uniform background is chosen on unseen rows."""
    counts = np.bincount(as_float(train_codes).astype(np.int64), minlength=n_categories)
    validation_counts = np.bincount(as_float(validation_codes).astype(np.int64), minlength=n_categories)
    if len(counts) > n_categories or len(validation_counts) > n_categories:
        found = max(len(counts), len(validation_counts)) - 1
        raise ValueError(f"expected codes from 0 to {n_categories - 1}, got {found}")
    uniform = np.full(n_categories, 1.0 / n_categories)
    weight, _ = background_weight(Counts(as_float(counts), as_float(validation_counts)), uniform)
    return CategoricalMarginal(as_float(counts), rounded_number(weight), narrow(noise or Noise()))


def categorical_from_json(stored: dict[str, Any]) -> CategoricalMarginal:
    counts = read.numbers(stored["counts"], "counts", least=0)
    if not np.sum(counts) > 0:
        raise ValueError("counts are all 0")
    weight = read.number(stored["background_weight"], "background_weight", above=0, most=1)
    return CategoricalMarginal(counts, weight, narrow(read.noise(stored["noise"])))
