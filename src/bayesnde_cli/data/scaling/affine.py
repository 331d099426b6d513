"""Shift and scale: `u = (y - shift) / scale`. No scaling, standardisation, and min-max are of this kind."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from bayesnde_cli.data.scaling import stored as read
from bayesnde_cli.data.scaling.column_map import (
    Array,
    Noise,
    as_float,
    dequantised,
    noise_to_json,
    rounded_number,
    rounded_place,
)


@dataclass(frozen=True)
class Affine:
    """`u = (y - shift) / scale` with `log du/dy = -log scale`."""

    shift: float
    scale: float
    noise: Noise | None = None

    def __post_init__(self) -> None:
        if not self.scale > 0:
            raise ValueError(f"expected a positive scale, got {self.scale}")

    def forward(self, value: Array, fraction: Array | None = None) -> tuple[Array, Array]:
        y = dequantised(value, fraction, self.noise)
        return (y - self.shift) / self.scale, np.full(len(y), -np.log(self.scale))

    def inverse(self, u: Array) -> Array:
        return self.shift + self.scale * as_float(u)

    def to_value(self, y: Array) -> Array:
        return y if self.noise is None else self.noise.remove(y)

    def to_json(self) -> dict[str, Any]:
        return {
            "kind": "affine",
            "shift": self.shift,
            "scale": self.scale,
            "noise": noise_to_json(self.noise),
        }


def affine_from_json(stored: dict[str, Any]) -> Affine:
    noise = None if stored["noise"] is None else read.noise(stored["noise"])
    return Affine(read.number(stored["shift"], "shift"), read.number(stored["scale"], "scale", above=0), noise)


def fit_none(noise: Noise | None = None) -> Affine:
    """The identity."""
    return Affine(0.0, 1.0, noise)


def fit_standard(y: Array, noise: Noise | None = None) -> Affine:
    """Mean 0 and s.d. 1 on the training values `y` (noise included); the s.d. divides by n."""
    y = as_float(y)
    scale = rounded_number(float(np.std(y)))
    return _with_spread(rounded_place(float(np.mean(y)), scale), scale, noise)


def fit_minmax(y: Array, noise: Noise | None = None) -> Affine:
    """The training values `y` (noise included) on [0, 1]."""
    y = as_float(y)
    return _with_spread(float(np.min(y)), float(np.max(y) - np.min(y)), noise)


def _with_spread(shift: float, scale: float, noise: Noise | None) -> Affine:
    # A constant column has no scale of its own and keeps the file's.
    return Affine(shift, scale if scale > 0 else 1.0, noise)
