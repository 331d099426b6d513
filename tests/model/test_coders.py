"""Decoder, encoder and discriminators: formulas, limits, and gradients that reach every parameter."""

import numpy as np
import pytest
import tensorflow as tf
from naive_networks import random_parameters
from scipy.stats import norm

from bayesnde_cli.model import networks
from bayesnde_cli.model.coders import SD_FLOOR, Decoder, Encoder, Proposal, decoder_spec, encoder_spec
from bayesnde_cli.model.likelihood import log_likelihood, log_prior
from bayesnde_cli.model.networks import VARIANCE_FLOOR, DiscriminatorSpec
from bayesnde_cli.rng import generator

EXTREMES = (-1e4, -200.0, -50.0, -20.0, -1.0, 0.0, 1.0, 50.0, 1e4)


def _decoder_with_raw_variance(raw: tuple[float, ...]) -> Decoder:
    """A decoder whose second head gives these values everywhere, one in each column."""
    n_columns = len(raw)
    spec = networks.NetworkSpec(2, n_columns, ("mean", "raw_variance"), width=8, depth=2)
    weights = networks.initial_parameters(spec, 0, "decoder")
    constant = {"raw_variance/kernel": tf.zeros((8, n_columns)), "raw_variance/bias": tf.constant(raw)}
    return Decoder(spec, weights | constant)


@pytest.mark.parametrize(("n_columns", "kind"), [(10, "mlp"), (11, "residual")])
def test_the_paper_s_networks_are_five_times_256_of_the_kind_for_their_columns(n_columns: int, kind: str) -> None:
    decoder, encoder = decoder_spec(4, n_columns, n_classes=3), encoder_spec(4, n_columns, n_classes=3)
    assert (decoder.n_in, decoder.n_out, encoder.n_in, encoder.n_out) == (4, n_columns, n_columns, 4)
    for spec in (decoder, encoder):
        assert (spec.n_classes, spec.kind, spec.width, spec.depth) == (3, kind, 256, 5)
        assert spec.activation == "leaky_relu"


@pytest.mark.parametrize("kind", ["mlp", "residual"])
def test_mean_and_variance_come_from_two_linear_heads_of_one_trunk(kind: networks.Kind) -> None:
    spec = networks.NetworkSpec(2, 3, ("mean", "raw_variance"), 2, kind, width=8, depth=2)
    weights = random_parameters(networks.parameter_shapes(spec))
    z = tf.constant(generator(0, "z").standard_normal((4, 5, 2)))  # (rows, chains, d)
    y = tf.one_hot([0, 1, 1, 0], 2, dtype=tf.float64)[:, None, :]
    mean, variance = Decoder(spec, weights)(z, y)
    assert mean.shape == variance.shape == (4, 5, 3)
    expected_mean, raw = networks.apply(spec, weights, z, y)
    np.testing.assert_array_equal(mean, expected_mean)
    np.testing.assert_allclose(variance, np.log1p(np.exp(raw)) + 1e-6, rtol=1e-12)


@pytest.mark.parametrize("compiled", [False, True])
def test_variance_and_gradient_are_finite_and_the_variance_is_never_below_the_floor(compiled: bool) -> None:
    decoder = _decoder_with_raw_variance(EXTREMES)
    z = tf.constant(generator(0, "z").standard_normal((4, 2)), tf.float32)

    def variance_and_gradient(z: tf.Tensor) -> tuple[tf.Tensor, dict]:
        with tf.GradientTape() as tape:
            tape.watch(decoder.parameters)
            mean, variance = decoder(z)
            value = tf.reduce_sum(log_likelihood(tf.zeros((4, len(EXTREMES))), mean, variance))
        return variance, tape.gradient(value, decoder.parameters)

    call = tf.function(variance_and_gradient, jit_compile=True) if compiled else variance_and_gradient
    variance, gradients = call(z)
    assert np.all(np.asarray(variance) >= np.float32(VARIANCE_FLOOR))
    expected = np.logaddexp(0, EXTREMES) + VARIANCE_FLOOR
    np.testing.assert_allclose(variance, np.broadcast_to(expected, (4, len(EXTREMES))), rtol=1e-6)  # float32
    assert all(np.all(np.isfinite(gradient)) for gradient in gradients.values())


def test_one_row_does_not_depend_on_the_other_rows_of_its_batch() -> None:
    spec = decoder_spec(2, 12)
    decoder = Decoder(spec, networks.initial_parameters(spec, 0, "decoder"))
    z = tf.constant(generator(0, "z").standard_normal((6, 2)), tf.float32)
    for together, alone in zip(decoder(z), decoder(z[:1]), strict=True):
        np.testing.assert_allclose(together[:1], alone, rtol=1e-4, atol=1e-5)  # float32, another blocking of the sums


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


def test_the_paper_s_widths_are_the_default() -> None:
    shapes = networks.parameter_shapes(DiscriminatorSpec(17, 4))
    kernels = [shape for name, shape in shapes.items() if name.endswith("kernel")]
    assert kernels == [(21, 256), (256, 256), (256, 128), (128, 64), (64, 1)]
