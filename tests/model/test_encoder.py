"""The encoder: a proposal whose draws and density belong together."""

import numpy as np
import pytest
import tensorflow as tf
from scipy.stats import norm

from bayesnde_cli.model import networks
from bayesnde_cli.model.encoder import SD_FLOOR, Encoder, Proposal, encoder_spec
from bayesnde_cli.model.likelihood import log_prior
from bayesnde_cli.rng import generator


def _proposal() -> Proposal:
    """Wider than the prior, so that the weights p/q are bounded and their mean has a finite error."""
    return Proposal(tf.constant([[0.3, -0.2]], tf.float64), tf.constant([[1.2, 1.5]], tf.float64))


def _sigmas_from_one(log_weights: tf.Tensor) -> float:
    weights = np.exp(log_weights)
    return abs(weights.mean() - 1) / (weights.std() / np.sqrt(len(weights)))


def test_the_density_of_a_proposal_is_that_of_its_draws() -> None:
    proposal = _proposal()
    z = proposal.draw(tf.constant(generator(0, "noise").standard_normal((100_000, 2))))
    log_prob = proposal.log_prob(z)
    np.testing.assert_allclose(log_prob, norm(proposal.mean, proposal.sd).logpdf(z).sum(axis=-1), rtol=1e-12)
    # E_q[p / q] = 1 if and only if the draws follow the density; five standard errors.
    assert _sigmas_from_one(log_prior(z) - log_prob) < 5
    other = Proposal(proposal.mean, 1.05 * proposal.sd)
    assert _sigmas_from_one(log_prior(z) - other.log_prob(z)) > 5


def test_the_s_d_is_softplus_of_its_head_above_a_floor_and_finite_at_the_extremes() -> None:
    spec = networks.NetworkSpec(3, 2, ("mean", "raw_sd"), width=8, depth=2)
    weights = networks.initial_parameters(spec, 0, "encoder")
    x = tf.constant(generator(0, "x").standard_normal((4, 3)), tf.float32)
    for raw in (-1e4, -5.0, 0.0, 1e4):
        constant = {"raw_sd/kernel": tf.zeros((8, 2)), "raw_sd/bias": tf.fill([2], raw)}
        proposal = Encoder(spec, weights | constant)(x)
        np.testing.assert_allclose(proposal.sd, np.full((4, 2), np.logaddexp(0, raw) + SD_FLOOR), rtol=1e-6)
        assert np.all(np.isfinite(proposal.log_prob(proposal.draw(tf.ones((4, 2))), dtype=tf.float64)))


@pytest.mark.parametrize("n_columns", [3, 11])
def test_an_encoder_takes_rows_and_labels_and_gives_latents(n_columns: int) -> None:
    spec = encoder_spec(2, n_columns, n_classes=3)
    assert spec.kind == networks.regime(n_columns)
    encoder = Encoder(spec, networks.initial_parameters(spec, 0, "encoder"))
    x = tf.constant(generator(0, "x").standard_normal((5, 1, n_columns)), tf.float32)
    proposal = encoder(x, tf.one_hot([[0], [1], [2], [0], [1]], 3))
    assert proposal.mean.shape == proposal.sd.shape == (5, 1, 2)
    draws = proposal.draw(tf.ones((5, 7, 2)))  # (rows, chains, d)
    assert draws.shape == (5, 7, 2)
    assert proposal.log_prob(draws, dtype=tf.float64).shape == (5, 7)


def test_gradients_pass_through_draws_to_every_parameter() -> None:
    spec = networks.NetworkSpec(3, 2, ("mean", "raw_sd"), width=8, depth=2)
    weights = networks.initial_parameters(spec, 0, "encoder")
    x, noise = (
        tf.constant(generator(0, part).standard_normal((32, n)), tf.float32) for part, n in (("x", 3), ("e", 2))
    )
    with tf.GradientTape() as tape:
        tape.watch(weights)
        proposal = Encoder(spec, weights)(x)
        z = proposal.draw(noise)
        bound = tf.reduce_mean(log_prior(z) - proposal.log_prob(z))
    for name, gradient in tape.gradient(bound, weights).items():
        assert np.all(np.isfinite(gradient) & (np.asarray(gradient) != 0)), name
