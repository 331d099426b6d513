"""A multivariate normal with the structure of factor analysis: the oracle of latent-variable models."""

import numpy as np

from bayesnde_cli.data.simulators.simulator import as_rows, column_names
from bayesnde_cli.rng import generator

# The root of the seed of W, b and the noise. Part of the distribution: another number is another distribution.
PARAMETER_SEED = 0
# Noise between a tenth and half of the signal's size: the latent matters, and no column is noise alone.
NOISE_SD_RANGE = (0.1, 0.5)


class LinearGaussian:
    """x = W z + b + noise, z ~ N(0, I), noise ~ N(0, diag(noise_sd^2)); hence x ~ N(b, W W' + diag(noise_sd^2)).

    `weights` (p, d), `offset` (p,) and `noise_sd` (p,) depend on (p, d) alone. Each row of W has mean squared
    length one.
    """

    def __init__(self, dim: int, latent_dim: int) -> None:
        rng = generator(PARAMETER_SEED, "linear-gaussian", dim, latent_dim)
        self.names = column_names(dim)
        self.weights = rng.standard_normal((dim, latent_dim)) / np.sqrt(latent_dim)  # (p, d)
        self.offset = rng.standard_normal(dim)  # (p,)
        self.noise_sd = rng.uniform(*NOISE_SD_RANGE, size=dim)  # (p,)
        self.covariance = self.weights @ self.weights.T + np.diag(self.noise_sd**2)  # (p, p)
        lower = np.linalg.cholesky(self.covariance)
        self._whitening = np.linalg.solve(lower, np.eye(dim))  # (p, p)
        self._log_determinant = 2.0 * np.log(np.diag(lower)).sum()

    def sample(self, n: int, rng: np.random.Generator) -> np.ndarray:
        """`n` rows. (n, p)."""
        z = rng.standard_normal((n, self.weights.shape[1]))  # (n, d)
        noise = self.noise_sd * rng.standard_normal((n, len(self.names)))
        return z @ self.weights.T + self.offset + noise

    def log_density(self, x: np.ndarray) -> np.ndarray:
        """log N(x; b, W W' + diag(noise_sd^2)). (n, p) -> (n,)."""
        white = (as_rows(x, len(self.names)) - self.offset) @ self._whitening.T  # (n, p)
        with np.errstate(over="ignore"):
            squared_length = np.einsum("np,np->n", white, white)
        return -0.5 * (squared_length + self._log_determinant + len(self.names) * np.log(2.0 * np.pi))
