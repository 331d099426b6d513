"""The marginal log-density by importance sampling: exact on linear-Gaussian models, from any start."""

from dataclasses import replace

import numpy as np
import pytest
import tensorflow as tf
from linear_gaussian_oracle import random_oracle

from bayesnde_cli.inference.importance import log_marginal, marginal_scorer
from bayesnde_cli.inference.mode_search import find_mode
from bayesnde_cli.inference.modes import Mode
from bayesnde_cli.inference.proposal import factorise
from bayesnde_cli.model.coders import Proposal, decoder_of, decoder_spec, encoder_spec, initial_autoencoder
from bayesnde_cli.model.likelihood import Target


def test_a_factor_and_its_inverse() -> None:
    rng = np.random.default_rng(0)
    half = rng.normal(size=(5, 7, 12)).astype(np.float32)
    matrix = half @ half.transpose(0, 2, 1) + np.eye(7, dtype=np.float32)
    factor, inverse = (part.numpy() for part in factorise(tf.constant(matrix)))
    np.testing.assert_allclose(factor, np.linalg.cholesky(matrix), rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(inverse @ factor, np.broadcast_to(np.eye(7), matrix.shape), atol=1e-3)
    # A matrix that rounding has made singular has a factor all the same: two directions of four are lost in 1e8.
    slope = rng.normal(size=(256, 4, 2)).astype(np.float32) * 1e4
    factor, inverse = (
        part.numpy() for part in factorise(tf.constant(slope @ slope.transpose(0, 2, 1) + np.eye(4, dtype=np.float32)))
    )
    assert np.isfinite(factor).all()
    assert np.isfinite(inverse).all()
    assert np.all(np.diagonal(factor, axis1=1, axis2=2) > 0.0)
    assert np.median(np.abs(inverse @ factor - np.eye(4))) < 1e-3


ORACLE = random_oracle(6, 4, seed=1)


@pytest.fixture(scope="module")
def rows() -> np.ndarray:
    return ORACLE.sample(64, np.random.default_rng(0))[1]


def test_the_mode_of_a_linear_model_is_its_posterior(rows: np.ndarray) -> None:
    start = 3.0 * tf.ones([64, 4])  # far from it
    mode = find_mode(ORACLE, Target(tf.constant(rows, tf.float32)), start)
    exact = ORACLE.posterior(rows)
    np.testing.assert_allclose(mode.z.numpy(), exact.mean, atol=1e-3)
    precision = (mode.factor @ tf.linalg.matrix_transpose(mode.factor)).numpy()
    np.testing.assert_allclose(precision, np.broadcast_to(np.linalg.inv(exact.covariance), precision.shape), rtol=1e-3)


def _error(rows: np.ndarray, *, sd: float, n_draws: int = 256) -> np.ndarray:
    """Of the estimate, from a proposal at 3 instead of the posterior's mean."""
    proposal = Proposal(tf.fill([64, 4], 3.0), tf.fill([64, 4], sd))
    target = Target(tf.constant(rows, tf.float32))
    found = log_marginal(ORACLE, target, proposal, n_draws=n_draws, seed=tf.constant([1, 2]))
    assert found.dtype == tf.float64
    return found.numpy() - ORACLE.log_density(rows)


@pytest.mark.parametrize("sd", [1e-4, 0.5, 30.0])
def test_the_estimate_is_exact_from_a_useless_proposal(rows: np.ndarray, sd: float) -> None:
    error = _error(rows, sd=sd)
    assert abs(error.mean()) < 0.02
    assert error.std() < 0.1


def test_without_the_part_around_the_mode_it_would_not_be(rows: np.ndarray, monkeypatch: pytest.MonkeyPatch) -> None:
    def stay(decoder, target, start):  # type: ignore[no-untyped-def]
        eye = tf.eye(start.shape[1], batch_shape=[start.shape[0]])
        return Mode(start, 1e3 * eye, 1e-3 * eye, tf.ones([start.shape[0]], tf.bool))

    monkeypatch.setattr("bayesnde_cli.inference.importance.find_mode", stay)
    assert _error(rows, sd=1e-4).mean() < -0.1


def test_a_network_s_marginal_is_that_of_quadrature_without_a_trained_encoder() -> None:
    decoder, encoder = (replace(spec(1, 3), width=32, depth=2) for spec in (decoder_spec, encoder_spec))
    parameters = initial_autoencoder(decoder, encoder, 4)
    parameters["decoder/raw_variance/bias"] -= 4.0  # narrow: the posterior's s.d. is far below the encoder's
    z = np.linspace(-8.0, 8.0, 8001, dtype=np.float32)[:, None]
    mean, variance = (part.numpy().astype(float) for part in decoder_of(decoder, parameters)(tf.constant(z)))
    x = mean[3000:5000:25] + np.sqrt(variance[3000:5000:25]) * np.random.default_rng(0).normal(size=(80, 3))
    log_joint = -0.5 * np.sum((x[:, None, :] - mean) ** 2 / variance + np.log(2 * np.pi * variance), axis=2)
    log_joint += -0.5 * z[:, 0].astype(float) ** 2 - 0.5 * np.log(2 * np.pi)
    exact = np.logaddexp.reduce(log_joint, axis=1) + np.log(0.002)
    score = marginal_scorer(decoder, encoder, n_draws=512, block_rows=32)
    found = score(parameters, tf.constant(x, tf.float32), None, tf.constant(2)).numpy()
    assert found.shape == (80,)
    assert abs(np.mean(found - exact)) < 0.02
    assert np.max(np.abs(found - exact)) < 0.5
