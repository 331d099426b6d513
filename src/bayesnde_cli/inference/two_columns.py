"""The joint density of two columns, with all other columns integrated out, as an average over latents from the prior.

Given z the columns are independent. With the densities k_1(a; z) and k_2(b; z) of both columns,

    p(a, b) = E_z[ k_1(a; z) k_2(b; z) ],        p(a, b | c) = E_z[ w k_1 k_2 ] / E_z[ w ],  w = k_c(c; z),

where a third column may be held at c. The sums over latents are products of matrices. `grid` and the maps of the
report use them."""

import math

import numpy as np
from scipy.special import ndtr

# Smaller sums of squares have lost terms to underflow, and the error is unknown.
_LEAST_SQUARES = 1e-250


def point_density(u: np.ndarray, log_slope: np.ndarray, mean: np.ndarray, sd: np.ndarray) -> np.ndarray:
    """The density at points u, where scaling has this log-slope. (latents,) -> (latents, points)."""
    z = (u - mean[:, None]) / sd[:, None]
    return np.asarray(np.exp(log_slope - 0.5 * z * z) / (math.sqrt(2.0 * math.pi) * sd[:, None]))


def cell_probability(low: np.ndarray, high: np.ndarray, mean: np.ndarray, sd: np.ndarray) -> np.ndarray:
    """The probability of cells of the model's space, given each latent. (latents,) -> (latents, cells)."""
    below, above = ((edge - mean[:, None]) / sd[:, None] for edge in (low, high))
    # Mirrored to the lower tail: a difference of two numbers near 1 has no digits.
    side = np.where(below > 0, -1.0, 1.0)
    return np.asarray(np.abs(ndtr(side * above) - ndtr(side * below)))


class PairSums:
    """Sums over latents at every point of a grid."""

    def __init__(self, n_first: int, n_second: int) -> None:
        self._weighted, self._squared, self._crossed = np.zeros((3, n_first, n_second))
        self._weight = self._weight_squared = 0.0
        self._n = 0

    def add(self, first: np.ndarray, second: np.ndarray, weight: np.ndarray | None = None) -> None:
        """Add latents: densities of both columns, (latents, points) each, and weights (latents,), 1 by default."""
        weighted = first if weight is None else weight[:, None] * first
        total = weighted.T @ second
        self._weighted += total
        self._crossed += total if weight is None else (weight[:, None] * weighted).T @ second
        self._squared += np.square(weighted).T @ np.square(second)
        self._n += len(first)
        self._weight += len(first) if weight is None else float(weight.sum())
        self._weight_squared += len(first) if weight is None else float(np.square(weight).sum())

    @property
    def density(self) -> np.ndarray:
        """p, (first, second)."""
        return np.asarray(self._weighted / self._weight)

    @property
    def mean_weight(self) -> float:
        return self._weight / max(self._n, 1)

    @property
    def n_effective(self) -> float:
        """The number of latents of equal weight that would be as precise."""
        return self._weight**2 / self._weight_squared if self._weight_squared else 0.0

    def estimate(self) -> tuple[np.ndarray, np.ndarray]:
        """log p and its standard error, (first, second) each; the error is infinite where it is unknown.

        By the delta method: Var(p) = sum of (w k - w p)² / (sum of w)².
        """
        p = self.density
        squares = self._squared - 2.0 * p * self._crossed + np.square(p) * self._weight_squared
        with np.errstate(divide="ignore", invalid="ignore"):
            relative = np.sqrt(np.maximum(squares, 0.0)) / self._weighted
            return np.log(p), np.where(self._squared > _LEAST_SQUARES, relative, np.inf)
