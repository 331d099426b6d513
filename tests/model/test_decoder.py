"""The decoder: two heads of one trunk, and a variance that is always usable."""

import numpy as np
import pytest
import tensorflow as tf
from naive_networks import random_parameters

from bayesnde_cli.model import networks
from bayesnde_cli.model.decoder import VARIANCE_FLOOR, Decoder, decoder_spec
from bayesnde_cli.model.likelihood import log_likelihood
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
def test_the_paper_s_decoder_is_five_times_256_in_the_regime_of_its_columns(n_columns: int, kind: str) -> None:
    spec = decoder_spec(4, n_columns, n_classes=3)
    assert (spec.n_in, spec.n_out, spec.n_classes, spec.kind, spec.width, spec.depth) == (4, n_columns, 3, kind, 256, 5)
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
def test_the_variance_is_finite_and_never_below_the_floor(compiled: bool) -> None:
    decoder = _decoder_with_raw_variance(EXTREMES)
    z = tf.constant(generator(0, "z").standard_normal((4, 2)), tf.float32)
    _, variance = (tf.function(decoder, jit_compile=True) if compiled else decoder)(z)
    assert np.all(np.asarray(variance) >= np.float32(VARIANCE_FLOOR))
    expected = np.logaddexp(0, EXTREMES) + VARIANCE_FLOOR
    np.testing.assert_allclose(variance, np.broadcast_to(expected, (4, len(EXTREMES))), rtol=1e-6)  # float32


def test_the_gradient_of_the_likelihood_is_finite_at_the_extremes() -> None:
    decoder = _decoder_with_raw_variance(EXTREMES)
    z = tf.constant(generator(0, "z").standard_normal((4, 2)), tf.float32)
    with tf.GradientTape() as tape:
        tape.watch(decoder.parameters)
        tape.watch(z)
        value = tf.reduce_sum(log_likelihood(tf.zeros((4, len(EXTREMES))), *decoder(z)))
    for gradient in tf.nest.flatten(tape.gradient(value, (z, decoder.parameters))):
        assert np.all(np.isfinite(gradient))


def test_one_row_does_not_depend_on_the_other_rows_of_its_batch() -> None:
    spec = decoder_spec(2, 12)
    decoder = Decoder(spec, networks.initial_parameters(spec, 0, "decoder"))
    z = tf.constant(generator(0, "z").standard_normal((6, 2)), tf.float32)
    for together, alone in zip(decoder(z), decoder(z[:1]), strict=True):
        np.testing.assert_allclose(together[:1], alone, rtol=1e-4, atol=1e-5)  # float32, another blocking of the sums
