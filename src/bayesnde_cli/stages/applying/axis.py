"""An axis of a grid: points of one column, and how much of the model's density given a latent lies there.

A continuous column has a density at each point. A lattice or categorical column, whose values stand for cells of the
model's space, has a probability at each value: the integral over its cell. So do the densities of a file add up to 1:
integrated over continuous columns, summed over the values of the others.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from scipy.special import ndtr

from bayesnde_cli.data.kinds import Kind
from bayesnde_cli.data.made_rows import MadeColumn, cells
from bayesnde_cli.data.scaling import Logit
from bayesnde_cli.data.scaling.logit import HIGHEST, LOWEST
from bayesnde_cli.data.schema import Feature
from bayesnde_cli.errors import BadUsage

_ROOT_TWO_PI = 2.5066282746310002


@dataclass(frozen=True)
class Axis(ABC):
    """Points of a column, in order; of categories their positions."""

    feature: Feature
    places: np.ndarray  # (points,) float64

    @property
    def cells(self) -> pa.Array:
        """The points as cells of the file."""
        return cells(self.feature, MadeColumn(self.places, None))

    @property
    def step(self) -> float:
        """How much of the axis a point stands for."""
        return float(self.places[1] - self.places[0]) if len(self.places) > 1 else 1.0

    @abstractmethod
    def density(self, mean: np.ndarray, sd: np.ndarray) -> np.ndarray:
        """The density at each point given each latent, in the units of the file. (latents,) -> (latents, points)."""

    @abstractmethod
    def peak(self, sd: float) -> np.ndarray:
        """The highest density at each point that a latent with this standard deviation can have. (points,)."""


@dataclass(frozen=True)
class PointAxis(Axis):
    """Points u of the model's space, and the log-slope of the column's map there."""

    u: np.ndarray  # (points,)
    log_slope: np.ndarray  # (points,)

    def density(self, mean: np.ndarray, sd: np.ndarray) -> np.ndarray:
        z = (self.u - mean[:, None]) / sd[:, None]
        return np.asarray(np.exp(self.log_slope - 0.5 * z * z) / (_ROOT_TWO_PI * sd[:, None]))

    def peak(self, sd: float) -> np.ndarray:
        return np.asarray(np.exp(self.log_slope) / (_ROOT_TWO_PI * sd))


@dataclass(frozen=True)
class CellAxis(Axis):
    """Cells of the model's space, one for each value."""

    low: np.ndarray  # (points,)
    high: np.ndarray  # (points,)

    def density(self, mean: np.ndarray, sd: np.ndarray) -> np.ndarray:
        below, above = ((edge - mean[:, None]) / sd[:, None] for edge in (self.low, self.high))
        # On the side where both are small: the difference of two numbers near 1 has no digits.
        side = np.where(below > 0, -1.0, 1.0)
        return np.asarray(np.abs(ndtr(side * above) - ndtr(side * below)))

    def peak(self, sd: float) -> np.ndarray:
        return np.asarray(2.0 * ndtr((self.high - self.low) / (2.0 * sd)) - 1.0)


def axis_at(feature: Feature, places: np.ndarray) -> Axis:
    """The axis of a column with these points."""
    if feature.map.noise is None:
        return PointAxis(feature, places, *feature.map.forward(places))
    return CellAxis(feature, places, *feature.cells(places))


def axis_between(feature: Feature, low: float, high: float, n_points: int) -> Axis:
    """The axis with about so many points; all values of categories, whole numbers of a lattice."""
    if feature.kind is Kind.CATEGORICAL:
        return axis_at(feature, np.arange(float(len(feature.categories))))
    if feature.kind is Kind.CONTINUOUS:
        return axis_at(feature, np.linspace(low, high, n_points))
    first, last = np.ceil(low), np.floor(high)
    if isinstance(feature.map, Logit):  # beyond there is no value
        first, last = max(first, LOWEST), min(last, HIGHEST)
    if last < first:
        raise BadUsage(
            f"--range: there is no whole number between {low:g} and {high:g}",
            found=f"column '{feature.name}' holds whole numbers{_bounds(feature)}",
            hint="give a wider range",
        )
    step = max(1.0, np.ceil((last - first) / (n_points - 1)))
    return axis_at(feature, np.arange(first, last + 1.0, step))


def _bounds(feature: Feature) -> str:
    return " from 0 to 255" if isinstance(feature.map, Logit) else ""
