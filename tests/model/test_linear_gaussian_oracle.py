"""The oracle's closed forms, and that our likelihood integrates to them."""

from dataclasses import replace

import numpy as np
import pytest
import tensorflow as tf
from linear_gaussian_oracle import LinearGaussianOracle, random_oracle
from scipy.special import logsumexp
from scipy.stats import multivariate_normal

from bayesnde_cli.model.likelihood import log_joint, log_likelihood
from bayesnde_cli.rng import generator

N_DRAWS = 100_000


def _sigmas_from_closed_form(oracle: LinearGaussianOracle, closed_form: LinearGaussianOracle) -> float:
    """The largest distance over ten rows, in standard errors, of the average likelihood over prior draws."""
    _, x = oracle.sample(10, generator(0, "rows"))
    z = tf.constant(generator(0, "prior").standard_normal((1, N_DRAWS, oracle.weights.shape[1])), tf.float32)
    mean, variance = oracle(z)  # (1, draws, p)
    log_weights = log_likelihood(tf.constant(x[:, None], tf.float32), mean, variance, dtype=tf.float64)
    log_mean = logsumexp(log_weights, axis=1) - np.log(N_DRAWS)  # (rows,)
    relative = np.exp(log_weights - log_mean[:, None])  # mean one in each row
    standard_error = relative.std(axis=1) / np.sqrt(N_DRAWS)  # of the log, by the delta method
    return float(np.max(np.abs(log_mean - closed_form.log_density(x)) / standard_error))


@pytest.mark.parametrize(("n_columns", "latent_dim"), [(1, 1), (3, 2), (5, 3)])
def test_the_average_likelihood_over_the_prior_is_the_closed_form(n_columns: int, latent_dim: int) -> None:
    oracle = random_oracle(n_columns, latent_dim)
    assert _sigmas_from_closed_form(oracle, oracle) < 5
    assert _sigmas_from_closed_form(oracle, replace(oracle, variance=1.1 * oracle.variance)) > 5


@pytest.mark.parametrize(("n_columns", "latent_dim"), [(1, 1), (3, 2), (2, 4)])
def test_the_joint_is_the_closed_form_density_times_the_closed_form_posterior(n_columns: int, latent_dim: int) -> None:
    oracle = random_oracle(n_columns, latent_dim)
    rng = generator(0, "identity")
    _, x = oracle.sample(5, rng)
    z = rng.standard_normal((5, latent_dim))
    posterior = oracle.posterior(x)
    log_posterior = [multivariate_normal(posterior.mean[row], posterior.covariance).logpdf(z[row]) for row in range(5)]
    found = log_joint(tf.constant(z), tf.constant(x), oracle)
    np.testing.assert_allclose(found, oracle.log_density(x) + log_posterior, rtol=1e-10)


def test_the_gradient_of_the_joint_is_the_score_of_the_posterior() -> None:
    oracle = random_oracle(5, 3)
    z, x = oracle.sample(6, generator(0, "score"))
    posterior = oracle.posterior(x)
    latent = tf.constant(z)
    with tf.GradientTape() as tape:
        tape.watch(latent)
        value = log_joint(latent, tf.constant(x), oracle)
    expected = -(z - posterior.mean) @ np.linalg.inv(posterior.covariance)
    np.testing.assert_allclose(tape.gradient(value, latent), expected, rtol=1e-9, atol=1e-9)
