"""The density of the model against SciPy, finite differences and closed forms."""

from dataclasses import replace

import numpy as np
import pytest
import tensorflow as tf
from linear_gaussian_oracle import LinearGaussianOracle, random_oracle
from naive_networks import random_parameters
from scipy.stats import multivariate_normal, norm

from bayesnde_cli.model import networks
from bayesnde_cli.model.decoder import Decoder
from bayesnde_cli.model.likelihood import draw_rows, log_joint, log_likelihood, log_normal, log_prior
from bayesnde_cli.rng import generator


def _cells(*shape: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """x, mean and variance; the variances span the floor to wide."""
    rng = generator(0, "cells", *shape)
    variance = 10.0 ** rng.uniform(-6, 2, shape)
    mean = rng.standard_normal(shape)
    return mean + np.sqrt(variance) * rng.standard_normal(shape), mean, variance


def _observed(*shape: int) -> np.ndarray:
    return generator(0, "mask").random(shape) < 0.6


def test_the_log_likelihood_is_the_sum_of_normal_log_densities_with_all_constants() -> None:
    x, mean, variance = _cells(4, 3, 5)
    found = log_likelihood(*map(tf.constant, (x, mean, variance)))
    np.testing.assert_allclose(found, norm(mean, np.sqrt(variance)).logpdf(x).sum(axis=-1), rtol=1e-11)


def test_the_log_prior_is_standard_normal() -> None:
    z = generator(0, "z").standard_normal((4, 3, 5))
    np.testing.assert_allclose(log_prior(tf.constant(z)), norm.logpdf(z).sum(axis=-1), rtol=1e-12)


def test_cells_are_computed_and_added_up_in_float64_when_asked() -> None:
    parts = [tf.constant(part, tf.float32) for part in _cells(3, 2000)]
    exact = np.asarray(log_normal(*(tf.cast(part, tf.float64) for part in parts))).sum(axis=-1)
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
    with pytest.raises(ValueError, match=r"got shape \(4, 4, 1\)"):
        log_likelihood(x[:, :, :1], mean, variance)


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


def test_the_joint_is_the_likelihood_times_the_prior() -> None:
    oracle = random_oracle(5, 3)
    z, x = (tf.constant(part) for part in oracle.sample(6, generator(0, "rows")))
    observed = tf.constant(_observed(6, 5))
    expected = log_likelihood(x, *oracle(z), mask=observed) + log_prior(z)
    np.testing.assert_allclose(log_joint(z, x, oracle, mask=observed), expected, rtol=1e-12)
    assert log_joint(tf.cast(z, tf.float32), tf.cast(x, tf.float32), oracle, dtype=tf.float64).dtype == tf.float64


@pytest.mark.parametrize("n_classes", [0, 2])
@pytest.mark.parametrize("kind", ["mlp", "residual"])
def test_the_gradient_of_the_joint_is_that_of_finite_differences(kind: networks.Kind, n_classes: int) -> None:
    spec = networks.NetworkSpec(3, 4, ("mean", "raw_variance"), n_classes, kind, width=8, depth=2)
    decoder = Decoder(spec, random_parameters(networks.parameter_shapes(spec)))
    rng = generator(0, "joint")
    z, x = tf.constant(rng.standard_normal((5, 2, 3))), tf.constant(rng.standard_normal((5, 1, 4)))
    y = tf.one_hot([[0], [1], [0], [1], [1]], 2, dtype=tf.float64) if n_classes else None
    with tf.GradientTape() as tape:
        tape.watch(z)
        value = log_joint(z, x, decoder, y=y)
    gradient = tape.gradient(value, z)
    # Float64 and a central difference: its error is about 1e-10 from h^2 and 1e-10 from rounding / h.
    h = 1e-5
    for j in range(3):
        shift = h * np.eye(3)[j]
        slope = (log_joint(z + shift, x, decoder, y=y) - log_joint(z - shift, x, decoder, y=y)) / (2 * h)
        np.testing.assert_allclose(gradient[..., j], slope, rtol=1e-6, atol=1e-7)


def test_the_compiled_joint_and_its_gradient_equal_the_eager_ones() -> None:
    spec = networks.NetworkSpec(3, 4, ("mean", "raw_variance"), kind="residual", width=16, depth=2)
    decoder = Decoder(spec, networks.initial_parameters(spec, 0, "decoder"))
    rng = generator(0, "compiled")
    z, x = (tf.constant(rng.standard_normal(shape), tf.float32) for shape in ((6, 4, 3), (6, 1, 4)))

    def value_and_gradient(z: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        with tf.GradientTape() as tape:
            tape.watch(z)
            value = log_joint(z, x, decoder, dtype=tf.float64)
        return value, tape.gradient(value, z)

    compiled = tf.function(value_and_gradient, jit_compile=True)
    for found, expected in zip(compiled(z), value_and_gradient(z), strict=True):
        assert found.dtype == expected.dtype
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)  # float32 networks, sums in another order


def test_drawn_rows_have_the_density_that_scores_them() -> None:
    """E[q(x) / p(x)] = 1 for rows x of p and any density q inside it; the control draws from another decoder."""
    oracle = random_oracle(3, 2)
    covariance = 0.5 * (oracle.weights @ oracle.weights.T + np.diag(oracle.variance))
    narrow = multivariate_normal(oracle.offset, covariance)

    def ratio(decoder: LinearGaussianOracle) -> np.ndarray:
        x = draw_rows(decoder, 20_000, 2, tf.constant([3, 4])).numpy()
        return np.exp(narrow.logpdf(x) - oracle.log_density(x))

    right = ratio(oracle)
    assert right.mean() == pytest.approx(1.0, abs=4 * right.std() / np.sqrt(len(right)))
    wrong = ratio(replace(oracle, variance=2.0 * oracle.variance))
    assert abs(wrong.mean() - 1.0) > 10 * wrong.std() / np.sqrt(len(wrong))
