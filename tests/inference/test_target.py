"""The log-density that chains follow: the same a few rows at a time."""

import numpy as np
import pytest
import tensorflow as tf

from bayesnde_cli.inference import hmc
from bayesnde_cli.inference.target import Target, largest_divisor
from bayesnde_cli.model.decoder import Decoder, image_decoder_spec
from bayesnde_cli.model.networks import initial_parameters

N_ROWS, LATENTS, SIZE, CLASSES = 12, 3, 6, 2


@pytest.fixture(scope="module")
def decoder() -> Decoder:
    spec = image_decoder_spec(LATENTS, (SIZE, SIZE, 1), CLASSES)
    return Decoder(spec, initial_parameters(spec, 1, "decoder"))


def _phase(target: Target, decoder: Decoder, z: tf.Tensor, at_once: int | None) -> hmc.Phase:
    density = target.log_density(decoder, at_once)
    return tf.function(lambda z: hmc.phase(density, z, z), jit_compile=True, autograph=False)(z)


@pytest.mark.parametrize("at_once", [1, 5, 6, 12, 100])
@pytest.mark.parametrize("has_gaps", [False, True])
def test_a_few_rows_at_a_time_have_the_values_and_gradients_of_all(
    decoder: Decoder, at_once: int, *, has_gaps: bool
) -> None:
    rng = np.random.default_rng(2)
    x = tf.constant(rng.standard_normal((N_ROWS, SIZE**2)), tf.float32)
    observed = tf.constant(rng.random((N_ROWS, SIZE**2)) < 0.7) if has_gaps else None
    target = Target(x, observed, tf.one_hot(tf.range(N_ROWS) % CLASSES, CLASSES))
    z = tf.constant(rng.standard_normal((N_ROWS, LATENTS)), tf.float32)
    whole, lots = (_phase(target, decoder, z, size) for size in (None, at_once))
    assert lots.log_density.dtype == tf.float64
    np.testing.assert_allclose(lots.log_density, whole.log_density, rtol=1e-6)
    np.testing.assert_allclose(lots.gradient, whole.gradient, rtol=1e-4, atol=1e-4)
    # Negative control: the gradients of other rows are others.
    with pytest.raises(AssertionError):
        np.testing.assert_allclose(lots.gradient, np.roll(whole.gradient, 1, axis=0), rtol=1e-4, atol=1e-4)


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


def test_lots_are_equal_and_as_large_as_they_may_be() -> None:
    assert [largest_divisor(12, most) for most in (0, 1, 5, 6, 11, 12, 100)] == [1, 1, 4, 6, 6, 12, 12]
    assert largest_divisor(13, 12) == 1
