"""The density of two columns on a grid as an average over latents from the prior, with its Monte-Carlo error.

Given z the columns are independent, so with k_1(a; z) the density of the first at a, and k_2(b; z) of the second at b,

    p(a, b) = E_z[ k_1(a; z) k_2(b; z) ],        p(a, b | c) = E_z[ w k_1 k_2 ] / E_z[ w ],  w = k_c(c; z),

the second where another column is held at c. All other columns are integrated out exactly: they are left out. The sums
over latents are products of matrices.
"""

import numpy as np

# Sums of squares below this have lost terms to underflow, and say nothing of the error.
_LEAST_SQUARES = 1e-250


class GridSums:
    """Sums over latents, for every point of the grid."""

    def __init__(self, n_first: int, n_second: int) -> None:
        shape = n_first, n_second
        self._weighted, self._squared, self._crossed = np.zeros(shape), np.zeros(shape), np.zeros(shape)
        self._weight = self._weight_squared = 0.0
        self._n = 0

    def add(self, first: np.ndarray, second: np.ndarray, weight: np.ndarray | None = None) -> None:
        """Some latents: densities (latents, points) of either column, and weights (latents,), 1 if there are none."""
        weighted = first if weight is None else weight[:, None] * first
        total = weighted.T @ second
        self._weighted += total
        self._crossed += total if weight is None else (weight[:, None] * weighted).T @ second
        self._squared += np.square(weighted).T @ np.square(second)
        self._n += len(first)
        self._weight += len(first) if weight is None else float(weight.sum())
        self._weight_squared += len(first) if weight is None else float(np.square(weight).sum())

    @property
    def mean_weight(self) -> float:
        return self._weight / max(self._n, 1)

    @property
    def n_effective(self) -> float:
        """How many latents of equal weight these are worth."""
        return self._weight**2 / self._weight_squared if self._weight_squared else 0.0

    def estimate(self) -> tuple[np.ndarray, np.ndarray]:
        """log p and its standard error, (first, second) each; the error is infinite where it is not known.

        By the delta method: Var(p) = sum of (w k - w p)^2 / (sum of w)^2.
        """
        p = self._weighted / self._weight
        squares = self._squared - 2.0 * p * self._crossed + np.square(p) * self._weight_squared
        with np.errstate(divide="ignore", invalid="ignore"):
            relative = np.sqrt(np.maximum(squares, 0.0)) / self._weighted
            return np.log(p), np.where(self._squared > _LEAST_SQUARES, relative, np.inf)
