"""The density of the model against SciPy, finite differences and closed forms, whole and in batches."""

from dataclasses import replace

import numpy as np
import pytest
import tensorflow as tf
from linear_gaussian_oracle import LinearGaussianOracle, random_oracle
from scipy.stats import multivariate_normal, norm

from bayesnde_cli.inference import hmc
from bayesnde_cli.model import likelihood, networks
from bayesnde_cli.model.coders import Decoder, image_decoder_spec
from bayesnde_cli.model.likelihood import Target, log_joint, log_likelihood, log_prior
from bayesnde_cli.rng import generator


def _cells(*shape: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """x, mean and variance; the variances span the floor to wide."""
    rng = generator(0, "cells", *shape)
    variance = 10.0 ** rng.uniform(-6, 2, shape)
    mean = rng.standard_normal(shape)
    return mean + np.sqrt(variance) * rng.standard_normal(shape), mean, variance


def _observed(*shape: int) -> np.ndarray:
    return generator(0, "mask").random(shape) < 0.6


def test_likelihood_and_prior_are_sums_of_normal_log_densities_with_all_constants() -> None:
    x, mean, variance = _cells(4, 3, 5)
    found = log_likelihood(*map(tf.constant, (x, mean, variance)))
    np.testing.assert_allclose(found, norm(mean, np.sqrt(variance)).logpdf(x).sum(axis=-1), rtol=1e-11)
    np.testing.assert_allclose(log_prior(tf.constant(x)), norm.logpdf(x).sum(axis=-1), rtol=1e-12)


def test_cells_are_computed_and_added_up_in_float64_when_asked() -> None:
    parts = [tf.constant(part, tf.float32) for part in _cells(3, 2000)]
    exact = np.asarray(likelihood.log_normal(*(tf.cast(part, tf.float64) for part in parts))).sum(axis=-1)
    wide = log_likelihood(*parts, dtype=tf.float64)
    assert wide.dtype == tf.float64
    np.testing.assert_allclose(wide, exact, rtol=1e-13)
    narrow = log_likelihood(*parts)
    assert narrow.dtype == tf.float32
    assert np.any(np.abs(np.asarray(narrow, np.float64) - exact) > 1e-13 * np.abs(exact))
    assert log_prior(parts[0], dtype=tf.float64).dtype == tf.float64
    # A square that float32 has no number for.
    far = log_likelihood(tf.constant([1e20]), tf.constant([0.0]), tf.constant([1.0]), dtype=tf.float64)
    np.testing.assert_allclose(far, -0.5e40, rtol=1e-6)


def test_a_row_is_compared_with_each_of_its_chains_and_never_with_another_row() -> None:
    x, mean, variance = (tf.constant(part) for part in _cells(4, 4, 5))  # as many rows as chains: the trap
    found = log_likelihood(x[:, :1], mean, variance)
    for row in range(4):
        for chain in range(4):
            expected = log_likelihood(x[row, 0], mean[row, chain], variance[row, chain])
            assert float(found[row, chain]) == pytest.approx(float(expected), rel=1e-12)
    with pytest.raises(ValueError, match=r"with the axes of the mean \(4, 4, 5\), got shape \(4, 5\)"):
        log_likelihood(x[:, 0], mean, variance)


def test_a_mask_drops_exactly_the_masked_cells() -> None:
    x, mean, variance = _cells(20, 5)
    observed = _observed(20, 5)
    observed[0], observed[1] = False, True
    holes = np.where(observed, x, np.nan)
    found = log_likelihood(*map(tf.constant, (holes, mean, variance)), mask=tf.constant(observed))
    expected = np.where(observed, norm(mean, np.sqrt(variance)).logpdf(x), 0).sum(axis=-1)
    np.testing.assert_allclose(found, expected, rtol=1e-11)
    assert found[0] == 0
    np.testing.assert_allclose(found[1], log_likelihood(*(tf.constant(part)[1] for part in (x, mean, variance))))


def test_gradients_with_missing_cells_are_finite_and_zero_where_nothing_was_seen() -> None:
    x, mean, variance = (tf.constant(part) for part in _cells(20, 5))
    observed = tf.constant(_observed(20, 5))
    with tf.GradientTape() as tape:
        tape.watch((mean, variance))
        value = tf.reduce_sum(log_likelihood(tf.where(observed, x, np.nan), mean, variance, mask=observed))
    for gradient in tape.gradient(value, (mean, variance)):
        np.testing.assert_array_equal(np.asarray(gradient) != 0, observed)
        assert np.all(np.isfinite(gradient))


def test_drawn_rows_have_the_density_that_scores_them() -> None:
    """E[q(x) / p(x)] = 1 for rows x of p and any density q inside it; the control draws from another decoder."""
    oracle = random_oracle(3, 2)
    covariance = 0.5 * (oracle.weights @ oracle.weights.T + np.diag(oracle.variance))
    narrow = multivariate_normal(oracle.offset, covariance)

    def ratio(decoder: LinearGaussianOracle) -> np.ndarray:
        x = likelihood.draw_rows(decoder, 20_000, 2, tf.constant([3, 4])).numpy()
        return np.exp(narrow.logpdf(x) - oracle.log_density(x))

    right = ratio(oracle)
    assert right.mean() == pytest.approx(1.0, abs=4 * right.std() / np.sqrt(len(right)))
    wrong = ratio(replace(oracle, variance=2.0 * oracle.variance))
    assert abs(wrong.mean() - 1.0) > 10 * wrong.std() / np.sqrt(len(wrong))


@pytest.mark.parametrize(("n_columns", "latent_dim"), [(1, 1), (3, 2), (2, 4)])
def test_the_joint_and_its_gradient_are_those_of_the_closed_form(n_columns: int, latent_dim: int) -> None:
    oracle = random_oracle(n_columns, latent_dim)
    rng = generator(0, "identity")
    _, x = oracle.sample(5, rng)
    z = tf.constant(rng.standard_normal((5, latent_dim)))
    posterior = oracle.posterior(x)
    log_posterior = [multivariate_normal(posterior.mean[row], posterior.covariance).logpdf(z[row]) for row in range(5)]
    with tf.GradientTape() as tape:
        tape.watch(z)
        found = log_joint(z, tf.constant(x), oracle)
    np.testing.assert_allclose(found, oracle.log_density(x) + log_posterior, rtol=1e-10)
    score = -(z - posterior.mean) @ np.linalg.inv(posterior.covariance)
    np.testing.assert_allclose(tape.gradient(found, z), score, rtol=1e-9, atol=1e-9)


N_ROWS, LATENTS, SIZE, CLASSES = 12, 3, 6, 2


@pytest.fixture(scope="module")
def decoder() -> Decoder:
    spec = replace(image_decoder_spec(LATENTS, (SIZE, SIZE, 1), CLASSES), width=2)
    return Decoder(spec, networks.initial_parameters(spec, 1, "decoder"))


@pytest.mark.parametrize(("at_once", "has_gaps"), [(1, False), (5, True)])
def test_a_few_rows_at_a_time_have_the_values_and_gradients_of_all(
    decoder: Decoder, at_once: int, *, has_gaps: bool
) -> None:
    rng = np.random.default_rng(2)
    x = tf.constant(rng.standard_normal((N_ROWS, SIZE**2)), tf.float32)
    observed = tf.constant(rng.random((N_ROWS, SIZE**2)) < 0.7) if has_gaps else None
    target = Target(x, observed, tf.one_hot(tf.range(N_ROWS) % CLASSES, CLASSES))
    z = tf.constant(rng.standard_normal((N_ROWS, LATENTS)), tf.float32)
    whole, parts = (hmc.phase_point(target.log_density(decoder, size), z, z) for size in (None, at_once))
    assert parts.log_density.dtype == tf.float64
    np.testing.assert_allclose(parts.log_density, whole.log_density, rtol=1e-6)
    np.testing.assert_allclose(parts.gradient, whole.gradient, rtol=1e-4, atol=1e-4)
    # Negative control: the gradients of other rows are others.
    with pytest.raises(AssertionError):
        np.testing.assert_allclose(parts.gradient, np.roll(whole.gradient, 1, axis=0), rtol=1e-4, atol=1e-4)


def test_the_gradient_of_a_weighted_sum_has_the_weights(decoder: Decoder) -> None:
    target = Target(tf.ones([N_ROWS, SIZE**2]), None, tf.one_hot(tf.zeros(N_ROWS, tf.int32), CLASSES))
    z, weights = tf.ones([N_ROWS, LATENTS]), tf.range(N_ROWS, dtype=tf.float64)
    density = target.log_density(decoder, 4)
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(z)
        value = density(z)
        weighted = tf.reduce_sum(weights * value)
    expected = weights.numpy()[:, None] * tape.gradient(value, z).numpy()
    np.testing.assert_allclose(tape.gradient(weighted, z), expected, rtol=1e-5)


def test_batches_are_equal_and_as_large_as_they_may_be() -> None:
    assert [likelihood.largest_divisor(12, most) for most in (0, 1, 5, 6, 11, 12, 100)] == [1, 1, 4, 6, 6, 12, 12]
    assert likelihood.largest_divisor(13, 12) == 1
