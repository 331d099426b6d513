"""What every column map has in common: its interface, its noise, and the rounding of its parameters."""

import math
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[np.float64]

# Fitted parameters keep so many significant digits. The tenth digit may depend on the processor's rounding;
# nine are the same everywhere, and the density cannot tell the difference.
SIGNIFICANT_DIGITS = 9


class Noise(NamedTuple):
    """Dequantisation: the lattice value `v` becomes `y = v + low + (high - low) * fraction`."""

    low: float = -0.5
    high: float = 0.5

    @property
    def width(self) -> float:
        return self.high - self.low

    def add(self, value: Array, fraction: Array) -> Array:
        return value + (self.low + self.width * fraction)

    def remove(self, y: Array) -> Array:
        """The nearest lattice value. Shape of `y`; exact wherever the noise is no wider than the step of 1."""
        return np.rint(y - 0.5 * (self.low + self.high))


class ColumnMap(Protocol):
    """An increasing map from one column, in the units of the file, to the model's space.

    log p_file(y) = log p_scaled(u) + log du/dy, summed over the columns.
    """

    @property
    def noise(self) -> Noise | None: ...

    def forward(self, value: Array, fraction: Array | None = None) -> tuple[Array, Array]:
        """`u` and `log du/dy`, each of shape (n,). `fraction` in (0, 1) is given if and only if there is noise."""
        ...

    def inverse(self, u: Array) -> Array:
        """`y`, in the units of the file, noise included. Shape (n,)."""
        ...

    def to_value(self, y: Array) -> Array:
        """The cell of the file that `y` belongs to: `y` itself, or without its noise. Shape (n,)."""
        ...

    def to_json(self) -> dict[str, Any]: ...


def dequantised(value: Array, fraction: Array | None, noise: Noise | None) -> Array:
    """The continuous quantity `y` that a map without cells works on. Shape of `value`."""
    if noise is not None:
        return noise.add(as_float(value), given(fraction))
    if fraction is not None:
        raise ValueError(f"expected no fraction (the map has no noise), got {np.size(fraction)} fractions")
    return as_float(value)


def given(fraction: Array | None) -> Array:
    """The fractions of a map with noise."""
    if fraction is None:
        raise ValueError("expected a fraction for each value (the map has noise), got none")
    return as_float(fraction)


def narrow(noise: Noise) -> Noise:
    """The noise itself, after a check that the cells of neighbouring lattice values do not overlap."""
    if not 0 < noise.width <= 1:
        raise ValueError(f"expected noise of a width in (0, 1], got {noise.width:g}")
    return noise


def as_float(value: ArrayLike) -> Array:
    return np.ascontiguousarray(value, dtype=np.float64)


def rounded(parameters: Array) -> Array:
    """The parameters at nine significant digits: what is stored is what is used. Shape (K,)."""
    return np.array([rounded_number(number) for number in parameters.tolist()], dtype=np.float64)


def rounded_number(parameter: float) -> float:
    return float(f"{parameter:.{SIGNIFICANT_DIGITS - 1}e}")


def rounded_place(place: float, scale: float) -> float:
    """A place at nine digits of its distance unit: a mean of 1.6e9 with an s.d. of 10 keeps its decimals."""
    if not scale > 0:
        return place
    return round(place, SIGNIFICANT_DIGITS - 1 - math.floor(math.log10(scale)))


def noise_to_json(noise: Noise | None) -> list[float] | None:
    return None if noise is None else [noise.low, noise.high]
