"""A decoder for which everything is known in closed form: z -> (W z + b, s2), the same variance everywhere.

With z ~ N(0, I): p(x) = N(x; b, W W' + diag s2), and the posterior of z given x is normal too.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import tensorflow as tf
from scipy.stats import multivariate_normal

from bayesnde_cli.rng import generator


class Posterior(NamedTuple):
    """N(mean, covariance): the posterior of z for each of the rows, (n, d), with a covariance (d, d) common to all."""

    mean: np.ndarray
    covariance: np.ndarray


@dataclass(frozen=True)
class LinearGaussianOracle:
    """`weights` (p, d), `offset` (p,), `variance` (p,), all float64. Call it where a decoder is expected."""

    weights: np.ndarray
    offset: np.ndarray
    variance: np.ndarray

    def __call__(self, z: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Mean and variance in the dtype of z. (…, d) -> (…, p) and (…, p)."""
        weights, offset, variance = (tf.cast(part, z.dtype) for part in (self.weights, self.offset, self.variance))
        mean = tf.einsum("...d,pd->...p", z, weights) + offset
        return mean, tf.broadcast_to(variance, tf.shape(mean))

    def sample(self, n: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """Latents (n, d) and their rows (n, p): each latent is an exact draw from the posterior of its row."""
        z = rng.standard_normal((n, self.weights.shape[1]))
        noise = np.sqrt(self.variance) * rng.standard_normal((n, len(self.offset)))
        return z, z @ self.weights.T + self.offset + noise

    def log_density(self, x: np.ndarray) -> np.ndarray:
        """log N(x; b, W W' + diag s2). (n, p) -> (n,)."""
        covariance = self.weights @ self.weights.T + np.diag(self.variance)
        return np.atleast_1d(multivariate_normal(self.offset, covariance).logpdf(x))

    def posterior(self, x: np.ndarray) -> Posterior:
        """Covariance C = (I + W' diag(1/s2) W)^-1 and mean C W' diag(1/s2) (x - b)."""
        scaled = self.weights / self.variance[:, None]  # (p, d)
        covariance = np.linalg.inv(np.eye(self.weights.shape[1]) + self.weights.T @ scaled)
        return Posterior((x - self.offset) @ scaled @ covariance, covariance)


def random_oracle(n_columns: int, latent_dim: int, seed: int = 0) -> LinearGaussianOracle:
    """An oracle whose noise is between half and all of the size of its signal, so that plain Monte Carlo works."""
    rng = generator(seed, "linear-gaussian-oracle", n_columns, latent_dim)
    return LinearGaussianOracle(
        rng.standard_normal((n_columns, latent_dim)) / np.sqrt(latent_dim),
        rng.standard_normal(n_columns),
        rng.uniform(0.5, 1.0, n_columns) ** 2,
    )
