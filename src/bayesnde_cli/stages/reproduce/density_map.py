"""A log-density on a grid of two columns."""

from dataclasses import dataclass

import numpy as np
from scipy.stats import rankdata

# What has a larger log-density is a spike beyond all colours, and is kept from overflow.
_LARGEST = 300.0


@dataclass(frozen=True)
class DensityMap:
    """A log-density at every pair of two columns' values, in the units of the file."""

    x1: np.ndarray  # (n1,), growing, at equal distances
    x2: np.ndarray  # (n2,)
    log_density: np.ndarray  # (n1, n2)

    @property
    def points(self) -> np.ndarray:
        """The points of the grid, the second column fastest. (n1 * n2, 2)."""
        return grid_points(self.x1, self.x2)

    @property
    def density(self) -> np.ndarray:
        """The density at every point, 0 where there is none. (n1, n2)."""
        return np.nan_to_num(np.exp(np.minimum(self.log_density, _LARGEST)), nan=0.0)

    def is_beside(self, other: "DensityMap") -> bool:
        """Whether both have the same points."""
        return np.array_equal(self.x1, other.x1) and np.array_equal(self.x2, other.x2)

    def spearman(self, other: "DensityMap") -> float | None:
        """The rank correlation with another map of the same points; None if one of them has no ranks.

        A density of 0 is the lowest rank and counts, as it does in the picture; no number at all does not.
        """
        both = ~(np.isnan(self.log_density) | np.isnan(other.log_density))
        ranks = [rankdata(found.log_density[both]) for found in (self, other)]
        if any(len(rank) < 2 or rank.min() == rank.max() for rank in ranks):
            return None
        return float(np.corrcoef(*ranks)[0, 1])


def grid_points(x1: np.ndarray, x2: np.ndarray) -> np.ndarray:
    """All pairs, the second fastest. (n1 * n2, 2)."""
    return np.stack(np.meshgrid(x1, x2, indexing="ij"), axis=-1).reshape(-1, 2)
