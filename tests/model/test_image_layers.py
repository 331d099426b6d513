"""Convolutions as matrix products are TensorFlow's own, and batch normalisation keeps rows apart once it is frozen."""

import numpy as np
import pytest
import tensorflow as tf

from bayesnde_cli.model import image_layers as layers
from bayesnde_cli.rng import generator


def _random(*shape: int) -> tf.Tensor:
    return tf.constant(generator(7, "test", *shape).normal(size=shape))


def _parameters(size: int, n_in: int, n_out: int) -> dict[str, tf.Tensor]:
    return {name: _random(*shape) for name, shape in layers.conv_shapes("a", n_in, n_out, size).items()}


def _as_tensorflow_has_it(x: tf.Tensor) -> tf.Tensor:
    return tf.transpose(x, [1, 0, 2, 3])


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("size", [3, 5])
@pytest.mark.parametrize(("height", "width"), [(8, 8), (7, 9), (2, 5)])
def test_a_convolution_is_that_of_tensorflow(height: int, width: int, size: int, stride: int) -> None:
    x, parameters = _random(height, 3, width, 2), _parameters(size, 2, 4)
    ours = layers.conv(parameters, "a", x, stride=stride)
    theirs = tf.nn.conv2d(_as_tensorflow_has_it(x), parameters["a/kernel"], stride, "SAME") + parameters["a/bias"]
    np.testing.assert_allclose(_as_tensorflow_has_it(ours), theirs, atol=1e-12)


@pytest.mark.parametrize(("height", "width"), [(8, 8), (6, 14)])
def test_a_transposed_convolution_is_that_of_tensorflow(height: int, width: int) -> None:
    x, parameters = _random(height // 2, 3, width // 2, 2), _parameters(3, 2, 4)
    ours = layers.transposed_conv(parameters, "a", x, height=height, width=width)
    kernel = tf.transpose(parameters["a/kernel"], [0, 1, 3, 2])
    theirs = tf.nn.conv2d_transpose(_as_tensorflow_has_it(x), kernel, [3, height, width, 4], 2, "SAME")
    np.testing.assert_allclose(_as_tensorflow_has_it(ours), theirs + parameters["a/bias"], atol=1e-12)


def test_a_transposed_convolution_to_odd_sides_is_one_to_even_sides_cut_off() -> None:
    x, parameters = _random(4, 3, 5, 2), _parameters(3, 2, 4)
    whole = layers.transposed_conv(parameters, "a", x, height=8, width=10)
    np.testing.assert_array_equal(layers.transposed_conv(parameters, "a", x, height=7, width=9), whole[:7, :, :9])


def test_rows_laid_flat_come_back_as_the_same_images() -> None:
    flat = _random(3, 4 * 5 * 2)
    x = layers.images(flat, (4, 5, 2))
    assert x.shape == (4, 3, 5, 2)
    np.testing.assert_array_equal(x[1, 2, 3], tf.reshape(flat, [3, 4, 5, 2])[2, 1, 3])
    np.testing.assert_array_equal(layers.laid_flat(x), flat)


def _norm() -> dict[str, tf.Tensor]:
    shapes = layers.batch_norm_shapes("a", 2)
    return {name: tf.exp(_random(*shape, index)[:, 0]) for index, (name, shape) in enumerate(shapes.items(), start=1)}


def test_frozen_batch_normalisation_of_an_image_does_not_depend_on_the_others() -> None:
    x, parameters = _random(4, 3, 5, 2), _norm()
    whole = layers.batch_norm(parameters, "a", x, None)
    np.testing.assert_array_equal(layers.batch_norm(parameters, "a", x[:, :1], None), whole[:, :1])
    # That of a network that learns does: the test above can fail.
    learning = layers.batch_norm(parameters, "a", x, {})
    assert np.abs(layers.batch_norm(parameters, "a", x[:, :1], {}) - learning[:, :1]).max() > 0.01


def test_learning_batch_normalisation_gives_every_channel_its_gain_and_bias_and_leaves_its_statistics() -> None:
    x, parameters = 3.0 + 2.0 * _random(4, 30, 5, 2), _norm()
    seen: layers.Statistics = {}
    normal = layers.batch_norm(parameters, "a", x, seen)
    np.testing.assert_allclose(tf.reduce_mean(normal, axis=[0, 1, 2]), parameters["a/bias"], atol=1e-12)
    mean, variance = tf.nn.moments(x, axes=[0, 1, 2])
    np.testing.assert_allclose(seen["a/moving_mean"], mean)
    np.testing.assert_allclose(seen["a/moving_variance"], variance)
    share = variance / (variance + layers.BATCH_NORM_EPSILON)
    np.testing.assert_allclose(tf.math.reduce_variance(normal, axis=[0, 1, 2]), parameters["a/gain"] ** 2 * share)
    frozen = layers.batch_norm(parameters | seen, "a", x, None)
    np.testing.assert_allclose(frozen, normal, atol=1e-12)


def test_no_gradient_moves_frozen_statistics() -> None:
    x, parameters = _random(4, 3, 5, 2), _norm()
    with tf.GradientTape() as tape:
        tape.watch(parameters)
        total = tf.reduce_sum(tf.square(layers.batch_norm(parameters, "a", x, None)))
    gradients = tape.gradient(total, parameters)
    assert [name for name, gradient in gradients.items() if gradient is None] == [
        "a/moving_mean", "a/moving_variance",
    ]  # fmt: skip
