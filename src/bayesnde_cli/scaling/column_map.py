"""Dequantisation noise, the interface of all column maps, and the maps without a fitted distribution."""

from typing import Annotated, Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from pydantic import ConfigDict, Field, PlainSerializer, PlainValidator
from pydantic.dataclasses import dataclass
from scipy.special import expit, ndtri

HALF_LOG_TWO_PI = 0.9189385332046727
ROOT_TWO_PI = 2.5066282746310002
# Rows processed at a time: the work arrays stay in the processor's cache, and memory does not grow with the table.
_CHUNK = 16_384


def as_float(value: ArrayLike) -> np.ndarray:
    return np.ascontiguousarray(value, dtype=np.float64)


# A list of numbers in a stored map, an array in memory. Shape (K,).
Numbers = Annotated[np.ndarray, PlainValidator(as_float), PlainSerializer(lambda array: array.tolist())]

# Maps are frozen dataclasses that pydantic stores and reads.
STORED = ConfigDict(arbitrary_types_allowed=True, extra="forbid")


class Noise(NamedTuple):
    """Dequantisation: the lattice value `v` becomes `y = v + low + (high - low) * fraction`."""

    low: float = -0.5
    high: float = 0.5

    @property
    def width(self) -> float:
        return self.high - self.low

    def add(self, value: np.ndarray, fraction: np.ndarray) -> np.ndarray:
        return value + (self.low + self.width * fraction)

    def remove(self, y: np.ndarray) -> np.ndarray:
        """The nearest lattice value. Shape of `y`; exact if the noise is at most as wide as the step of 1."""
        return np.rint(y - 0.5 * (self.low + self.high))


class ColumnMap:
    """An increasing map from one column, in the units of the file, to the model's space.

    log p_file(y) = log p_scaled(u) + log du/dy, summed over the columns.
    """

    noise: Noise | None

    def forward(self, value: np.ndarray, fraction: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
        """`u` and `log du/dy`, each of shape (n,); `fraction` in (0, 1) places the noise of a map that has noise."""
        value = as_float(value)
        u, log_slope = np.empty_like(value), np.empty_like(value)
        for start in range(0, len(value), _CHUNK):
            rows = slice(start, start + _CHUNK)
            part = np.empty(0) if fraction is None else as_float(fraction[rows])
            u[rows], log_slope[rows] = self._forward(value[rows], part)
        return u, log_slope

    def inverse(self, u: np.ndarray) -> np.ndarray:
        """`y`, in the units of the file, noise included. Shape (n,)."""
        u = as_float(u)
        y = np.empty_like(u)
        for start in range(0, len(u), _CHUNK):
            rows = slice(start, start + _CHUNK)
            y[rows] = self._inverse(u[rows])
        return y

    def to_value(self, y: np.ndarray) -> np.ndarray:
        """The cell of the file that `y` belongs to: `y` without its noise. Shape (n,)."""
        return y if self.noise is None else self.noise.remove(y)

    def _forward(self, value: np.ndarray, fraction: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        raise NotImplementedError

    def _inverse(self, u: np.ndarray) -> np.ndarray:
        raise NotImplementedError

    def _add_noise(self, value: np.ndarray, fraction: np.ndarray) -> np.ndarray:
        return value if self.noise is None else self.noise.add(value, fraction)


def normal_score(lower: np.ndarray, upper: np.ndarray) -> np.ndarray:
    """Phi^-1 of a probability that is known from both sides: the smaller one keeps its precision. Shape (n,)."""
    u = ndtri(np.minimum(lower, upper))
    return np.where(lower <= upper, u, -u)


@dataclass(frozen=True, config=STORED)
class Affine(ColumnMap):
    """`u = (y - shift) / scale` with `log du/dy = -log scale`."""

    kind: Literal["affine"] = Field(default="affine", kw_only=True)
    shift: float
    scale: float
    noise: Noise | None = None

    def _forward(self, value: np.ndarray, fraction: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        u = (self._add_noise(value, fraction) - self.shift) / self.scale
        return u, np.full(len(u), -np.log(self.scale))

    def _inverse(self, u: np.ndarray) -> np.ndarray:
        return self.shift + self.scale * u


def fit_standard(y: np.ndarray, noise: Noise | None = None) -> Affine:
    """Mean 0 and s.d. 1 on the training values `y` (noise included); a constant column keeps its scale."""
    return Affine(float(np.mean(y)), float(np.std(y)) or 1.0, noise)


def fit_minmax(y: np.ndarray, noise: Noise | None = None) -> Affine:
    """The training values `y` (noise included) on [0, 1]; a constant column keeps its scale."""
    return Affine(float(np.min(y)), float(np.max(y) - np.min(y)) or 1.0, noise)


# The values of a pixel.
LOWEST, HIGHEST = 0.0, 255.0
_LEVELS = 256.0


@dataclass(frozen=True, config=STORED)
class Logit(ColumnMap):
    """`u = log s - log(1 - s)` with `s = (v + fraction) / 256`, and `log du/dy = -log 256 - log s - log(1 - s)`.

    For whole numbers v from 0 to 255. The noise is U(0, 1), so their cells fill (0, 256) without a gap.
    """

    kind: Literal["logit"] = Field(default="logit", kw_only=True)
    noise: Noise = Field(default=Noise(0.0, 1.0), init=False, exclude=True)

    def _forward(self, value: np.ndarray, fraction: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        # 256 - (v + fraction) from its two parts: next to 256 the last digits of the fraction would be lost
        log_below = np.log(value + fraction)
        log_above = np.log((HIGHEST - value) + (1.0 - fraction))
        return log_below - log_above, np.log(_LEVELS) - log_below - log_above

    def _inverse(self, u: np.ndarray) -> np.ndarray:
        return np.asarray(_LEVELS * expit(u))

    def to_value(self, y: np.ndarray) -> np.ndarray:
        """The whole number below `y`, from 0 to 255."""
        return np.clip(np.floor(y), LOWEST, HIGHEST)
