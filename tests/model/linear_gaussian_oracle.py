"""A decoder for which everything is known in closed form: z -> (W z + b, s2), the same variance everywhere.

With z ~ N(0, I): p(x) = N(x; b, W W' + diag s2), and the posterior of z given x is normal too.
For decoders of one or two latents that are not linear, there is quadrature.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import tensorflow as tf
from scipy.special import logsumexp
from scipy.stats import multivariate_normal, norm

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


def mean_log_density(decoder: Callable, x: np.ndarray, latent_dim: int, y: np.ndarray | None = None) -> float:
    """The mean of log p(x | y) over rows (n, p) with one-hot classes, if any, on a dense grid of latents."""
    axis = np.linspace(-6.0, 6.0, {1: 801, 2: 121}[latent_dim])
    z = np.stack(np.meshgrid(*[axis] * latent_dim), axis=-1).reshape(-1, latent_dim)
    total = 0.0
    for one_hot in [None] if y is None else np.unique(y, axis=0):
        given = () if one_hot is None else (tf.constant(np.repeat(one_hot[None], len(z), axis=0)),)
        mean, variance = (np.asarray(part, float) for part in decoder(tf.constant(z, tf.float32), *given))
        own = x if y is None else x[np.all(y == one_hot, axis=1)]
        log_joint = norm.logpdf(z).sum(axis=1) - 0.5 * np.log(2.0 * np.pi * variance).sum(axis=1)  # (latents,)
        # The square of x - mean over the variance, as products of matrices. (rows, latents)
        log_joint = log_joint - 0.5 * (own**2 @ (1.0 / variance).T - 2.0 * own @ (mean / variance).T)
        total += logsumexp(log_joint - 0.5 * (mean**2 / variance).sum(axis=1), axis=1).sum()
    return total / len(x) + latent_dim * np.log(axis[1] - axis[0])


def random_oracle(n_columns: int, latent_dim: int, seed: int = 0) -> LinearGaussianOracle:
    """An oracle whose noise is between half and all of the size of its signal, so that plain Monte Carlo works."""
    rng = generator(seed, "linear-gaussian-oracle", n_columns, latent_dim)
    return LinearGaussianOracle(
        rng.standard_normal((n_columns, latent_dim)) / np.sqrt(latent_dim),
        rng.standard_normal(n_columns),
        rng.uniform(0.5, 1.0, n_columns) ** 2,
    )
