"""The independent Gaussian mixture of the paper's appendix S1, as it is or rotated."""

import numpy as np

from bayesnde_cli.data.simulators.simulator import as_rows, column_names
from bayesnde_cli.rng import generator

# Paper, appendix S1: each coordinate is 1/3 N(-1, 0.1^2) + 1/3 N(0, 0.1^2) + 1/3 N(1, 0.1^2).
COMPONENT_MEANS = (-1.0, 0.0, 1.0)
COMPONENT_SD = 0.1

# The root of the seed of the rotation. Part of the distribution: another number is another distribution.
ROTATION_SEED = 0


class IndependentMixture:
    """Independent coordinates, each a mixture of three normals: 3^p modes of equal weight.

    With `rotate`, rows are multiplied by a fixed rotation. The coordinates are then dependent, and a model that
    treats the columns one by one no longer finds the modes; the density at corresponding rows is unchanged.
    """

    def __init__(self, dim: int, *, rotate: bool = False) -> None:
        self.names = column_names(dim)
        self.rotation = rotation_matrix(dim) if rotate else None  # (p, p)

    def sample(self, n: int, rng: np.random.Generator) -> np.ndarray:
        """`n` rows. (n, p)."""
        shape = (n, len(self.names))
        y = rng.choice(COMPONENT_MEANS, size=shape) + COMPONENT_SD * rng.standard_normal(shape)
        return y if self.rotation is None else y @ self.rotation.T

    def log_density(self, x: np.ndarray) -> np.ndarray:
        """The sum over coordinates of log 1/3 sum over mu of N(y_j; mu, 0.1^2), y = x rotated back. (n, p) -> (n,)."""
        rows = as_rows(x, len(self.names))
        y = rows if self.rotation is None else rows @ self.rotation
        log_mixture = np.full(y.shape, -np.inf)  # (n, p)
        with np.errstate(over="ignore"):
            for mean in COMPONENT_MEANS:
                np.logaddexp(log_mixture, -0.5 * ((y - mean) / COMPONENT_SD) ** 2, out=log_mixture)
        log_constant = 0.5 * np.log(2.0 * np.pi) + np.log(COMPONENT_SD) + np.log(len(COMPONENT_MEANS))
        return log_mixture.sum(axis=1) - len(self.names) * log_constant


def rotation_matrix(dim: int) -> np.ndarray:
    """A rotation drawn once and for all, uniformly, for each dimension. (dim, dim).

    The orthogonal factor of a Gaussian matrix, with signs chosen so that the factorisation is unique and the
    determinant is one (Mezzadri 2007, "How to generate random matrices from the classical compact groups").
    """
    gaussian = generator(ROTATION_SEED, "gmm-rotation", dim).standard_normal((dim, dim))
    orthogonal, upper = np.linalg.qr(gaussian)
    rotation = orthogonal * np.sign(np.diag(upper))
    rotation[:, 0] *= np.linalg.slogdet(rotation).sign
    return rotation
