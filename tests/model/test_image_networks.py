"""Networks of images: convolutions as TensorFlow's own, the paper's sizes, rows apart once statistics are frozen."""

from dataclasses import replace

import numpy as np
import pytest
import tensorflow as tf

from bayesnde_cli.model import coders, layers
from bayesnde_cli.model.coders import Decoder, Encoder, image_decoder_spec, image_encoder_spec
from bayesnde_cli.model.networks import IMAGE_VARIANCE, NetworkSpec, initial_parameters, n_products, parameter_shapes
from bayesnde_cli.rng import generator

MNIST = (28, 28, 1)


def _random(*shape: int, dtype: type = np.float64) -> tf.Tensor:
    return tf.constant(generator(3, "test", *shape).normal(size=shape).astype(dtype))


def _as_tensorflow_has_it(x: tf.Tensor) -> tf.Tensor:
    return tf.transpose(x, [1, 0, 2, 3])


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("size", [3, 5])
@pytest.mark.parametrize(("height", "width"), [(8, 8), (7, 9), (2, 5)])
def test_a_convolution_is_that_of_tensorflow(height: int, width: int, size: int, stride: int) -> None:
    x, parameters = _random(height, 3, width, 2), {"a/kernel": _random(size, size, 2, 4), "a/bias": _random(4)}
    ours = layers.conv(parameters, "a", x, kernel=(size, 4), stride=stride)
    theirs = tf.nn.conv2d(_as_tensorflow_has_it(x), parameters["a/kernel"], stride, "SAME") + parameters["a/bias"]
    np.testing.assert_allclose(_as_tensorflow_has_it(ours), theirs, atol=1e-12)


@pytest.mark.parametrize(("height", "width"), [(8, 8), (6, 14)])
def test_a_transposed_convolution_is_that_of_tensorflow_and_odd_sides_are_cut_off(height: int, width: int) -> None:
    x, parameters = _random(height // 2, 3, width // 2, 2), {"a/kernel": _random(3, 3, 2, 4), "a/bias": _random(4)}
    ours = layers.transposed_conv(parameters, "a", x, 4, (height, width))
    kernel = tf.transpose(parameters["a/kernel"], [0, 1, 3, 2])
    theirs = tf.nn.conv2d_transpose(_as_tensorflow_has_it(x), kernel, [3, height, width, 4], 2, "SAME")
    np.testing.assert_allclose(_as_tensorflow_has_it(ours), theirs + parameters["a/bias"], atol=1e-12)
    odd = layers.transposed_conv(parameters, "a", x, 4, (height - 1, width - 1))
    np.testing.assert_array_equal(odd, ours[:-1, :, :-1])


def test_flat_rows_come_back_as_the_same_images_with_classes_as_channels() -> None:
    flat = _random(3, 4 * 5 * 2)
    x = layers.as_images(flat, (4, 5, 2))
    assert x.shape == (4, 3, 5, 2)
    np.testing.assert_array_equal(x[1, 2, 3], tf.reshape(flat, [3, 4, 5, 2])[2, 1, 3])
    np.testing.assert_array_equal(layers.flatten(x), flat)
    y = tf.one_hot([0, 1, 0], 2, dtype=tf.float64)
    np.testing.assert_array_equal(layers.as_images(flat, (4, 5, 2), y)[1, 2, 3], [*x[1, 2, 3].numpy(), 1.0, 0.0])


def _norm() -> dict[str, tf.Tensor]:
    names = ("gain", "bias", "moving_mean", "moving_variance")
    return {f"a/{name}": tf.exp(_random(2, index)[:, 0]) for index, name in enumerate(names, start=1)}


def test_frozen_batch_normalisation_of_an_image_does_not_depend_on_the_others() -> None:
    x, parameters = _random(4, 3, 5, 2), _norm()
    with tf.GradientTape() as tape:
        tape.watch(parameters)
        whole = layers.batch_norm(parameters, "a", x, None)
    np.testing.assert_array_equal(layers.batch_norm(parameters, "a", x[:, :1], None), whole[:, :1])
    gradients = tape.gradient(whole, parameters)
    assert [name for name in gradients if gradients[name] is None] == ["a/moving_mean", "a/moving_variance"]
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
    np.testing.assert_allclose(layers.batch_norm(parameters | seen, "a", x, None), normal, atol=1e-12)


def test_the_paper_s_networks_of_mnist() -> None:
    def kernels(spec: NetworkSpec | coders.DiscriminatorSpec) -> dict[str, tuple[int, ...]]:
        return {name[:-7]: shape for name, shape in parameter_shapes(spec).items() if name.endswith("/kernel")}

    assert kernels(image_decoder_spec(10, MNIST, 10)) == {
        "dense": (20, 6272),
        "conv1": (3, 3, 138, 64),
        "conv2": (3, 3, 64, 32),
        "conv3": (3, 3, 32, 32),
        "mean": (32, 1),
        "raw_variance": (32, 1),
    }
    assert kernels(image_encoder_spec(10, MNIST, 10)) == {
        "conv1": (3, 3, 11, 32),
        "conv2": (3, 3, 32, 64),
        "conv3": (3, 3, 64, 128),
        "dense": (6282, 256),
        "mean": (256, 10),
        "raw_sd": (256, 10),
    }
    assert kernels(coders.of_images(MNIST, 10)) == {
        "conv1": (5, 5, 11, 32),
        "conv2": (5, 5, 32, 64),
        "conv3": (3, 3, 64, 128),
        "hidden1": (2058, 128),
        "output": (128, 1),
    }


def test_products_count_a_convolution_for_every_pixel() -> None:
    kernels = 20 * 6272 + 49 * 9 * 138 * 64 + 196 * 9 * 64 * 32 + 784 * 9 * 32 * 32 + 784 * 64
    biases = 6272 + 49 * 64 + 196 * 32 + 784 * 32 + 784 * 2 + 4 * (64 + 32 + 32)  # those of convolutions likewise
    assert n_products(image_decoder_spec(10, MNIST, 10)) == kernels + biases
    kernels = 196 * 9 * 11 * 32 + 49 * 9 * 32 * 64 + 49 * 9 * 64 * 128 + 6282 * 256 + 256 * 20
    biases = 196 * 32 + 49 * 64 + 49 * 128 + 256 + 20 + 4 * (32 + 64 + 128)
    assert n_products(image_encoder_spec(10, MNIST, 10)) == kernels + biases
    assert n_products(NetworkSpec(3, 4, width=5, depth=1)) == 3 * 5 + 5 + 5 * 4 + 4


@pytest.mark.parametrize("image", [(8, 8, 1), (7, 9, 3), (5, 2, 2)])
@pytest.mark.parametrize("n_classes", [0, 2])
def test_any_size_and_number_of_channels(image: tuple[int, int, int], n_classes: int) -> None:
    p = int(np.prod(image))
    decoder_spec = replace(image_decoder_spec(3, image, n_classes), width=2)
    encoder_spec = replace(image_encoder_spec(3, image, n_classes), width=2)
    decoder = Decoder(decoder_spec, initial_parameters(decoder_spec, 0, "decoder"))
    encoder = Encoder(encoder_spec, initial_parameters(encoder_spec, 0, "encoder"))
    z, x = (_random(4, 6, n, dtype=np.float32) for n in (3, p))  # leading axes as HMC has them
    y = tf.one_hot(np.arange(4) % 2, 2)[:, None, :] if n_classes else None
    mean, variance = decoder(5.0 * z, y)
    assert mean.shape == variance.shape == (4, 6, p)
    assert IMAGE_VARIANCE[0] <= tf.reduce_min(variance) < tf.reduce_max(variance) <= IMAGE_VARIANCE[1]
    proposal = encoder(x, y)
    assert proposal.mean.shape == proposal.sd.shape == (4, 6, 3)
    # A row of the batch alone is the same row: to rounding, as products of other sizes add up in another order.
    own = None if y is None else y[1:2]
    np.testing.assert_allclose(decoder(5.0 * z[1:2, 2:3], own)[0][0, 0], mean[1, 2], atol=1e-5)
    np.testing.assert_allclose(encoder(x[1:2, 2:3], own).mean[0, 0], proposal.mean[1, 2], atol=1e-5)


def test_the_decoder_is_the_one_that_tensorflow_s_own_layers_make() -> None:
    spec = replace(image_decoder_spec(3, (8, 4, 2), 2), width=2)
    parameters = initial_parameters(spec, 0, "decoder")
    z, y = _random(5, 3, dtype=np.float32), tf.one_hot([0, 1, 1, 0, 1], 2)

    def normal(k: int, h: tf.Tensor) -> tf.Tensor:
        scale = parameters[f"norm{k}/gain"] / tf.sqrt(parameters[f"norm{k}/moving_variance"] + 1e-3)
        return tf.nn.leaky_relu((h - parameters[f"norm{k}/moving_mean"]) * scale + parameters[f"norm{k}/bias"], 0.2)

    def kernel(k: int) -> tf.Tensor:
        return tf.transpose(parameters[f"conv{k}/kernel"], [0, 1, 3, 2])

    h = tf.nn.leaky_relu(tf.concat([z, y], 1) @ parameters["dense/kernel"] + parameters["dense/bias"], 0.2)
    h = tf.reshape(h, [5, 2, 1, 8])
    h = tf.concat([h, tf.broadcast_to(y[:, None, None], [5, 2, 1, 2])], axis=3)
    h = normal(1, tf.nn.conv2d_transpose(h, kernel(1), [5, 4, 2, 4], 2, "SAME"))
    h = normal(2, tf.nn.conv2d_transpose(h, kernel(2), [5, 8, 4, 2], 2, "SAME"))
    h = normal(3, tf.nn.conv2d(h, parameters["conv3/kernel"], 1, "SAME"))
    expected = tf.reshape(h @ parameters["mean/kernel"] + parameters["mean/bias"], [5, 64])
    np.testing.assert_allclose(Decoder(spec, parameters)(z, y)[0], expected, atol=1e-5)


def test_with_class_maps_every_class_has_the_decoder_whose_map_is_the_common_one_plus_its_own() -> None:
    plain = replace(image_decoder_spec(3, (8, 4, 2), 2), width=2)
    spec = replace(plain, class_maps=True)
    parameters = initial_parameters(spec, 0, "decoder")
    common, of_y, own = tf.split(parameters["dense/kernel"], [3, 2, 6])
    own = tf.reshape(own, [3, 2, -1])  # (latents, classes, …)
    z, classes = _random(6, 3, dtype=np.float32), np.array([0, 1, 1, 0, 1, 0])
    found = Decoder(spec, parameters)(z, tf.one_hot(classes, 2))[0].numpy()
    for index in range(2):
        given = tf.one_hot(np.full(6, index), 2)
        decoder = Decoder(plain, {**parameters, "dense/kernel": tf.concat([common + own[:, index], of_y], axis=0)})
        expected = decoder(z, given)[0].numpy()
        np.testing.assert_allclose(found[classes == index], expected[classes == index], atol=1e-5)
        # Under the other class's map the same latents make other images.
        assert (np.abs(found - expected)[classes != index].max(axis=1) > 1e-3).all()


def test_the_discriminators_of_images_score_every_row() -> None:
    for spec, y in (
        (coders.of_images((8, 8, 1), 3), tf.one_hot([0, 1, 2, 0, 1], 3)),
        (coders.of_latents_of_images(4), None),
    ):
        rows = _random(5, spec.n_in, dtype=np.float32)
        scores = coders.discriminate(spec, initial_parameters(spec, 0, "x"), rows, y)
        assert scores.shape == (5,)
        assert np.std(scores) > 0.0
