"""Decoder and encoder of images: the paper's sizes, rows apart once statistics are frozen, bounded variances."""

from dataclasses import replace

import numpy as np
import pytest
import tensorflow as tf

from bayesnde_cli.model import discriminator
from bayesnde_cli.model.decoder import IMAGE_VARIANCE, Decoder, image_decoder_spec
from bayesnde_cli.model.encoder import Encoder, image_encoder_spec
from bayesnde_cli.model.networks import NetworkSpec, initial_parameters, n_products, parameter_shapes
from bayesnde_cli.rng import generator

MNIST = (28, 28, 1)


def _random(*shape: int) -> tf.Tensor:
    return tf.constant(generator(3, "test", *shape).normal(size=shape).astype(np.float32))


def test_the_paper_s_networks_of_mnist() -> None:
    decoder = parameter_shapes(image_decoder_spec(10, MNIST, 10))
    kernels = {name: shape for name, shape in decoder.items() if name.endswith("kernel")}
    assert kernels == {
        "dense/kernel": (20, 6272),
        "conv1/kernel": (3, 3, 138, 64),
        "conv2/kernel": (3, 3, 64, 32),
        "conv3/kernel": (3, 3, 32, 32),
        "mean/kernel": (32, 1),
        "raw_variance/kernel": (32, 1),
    }
    encoder = parameter_shapes(image_encoder_spec(10, MNIST, 10))
    kernels = {name: shape for name, shape in encoder.items() if name.endswith("kernel")}
    assert kernels == {
        "conv1/kernel": (3, 3, 11, 32),
        "conv2/kernel": (3, 3, 32, 64),
        "conv3/kernel": (3, 3, 64, 128),
        "dense/kernel": (6282, 256),
        "mean/kernel": (256, 10),
        "raw_sd/kernel": (256, 10),
    }
    of_images = discriminator.parameter_shapes(discriminator.of_images(MNIST, 10))
    kernels = {name: shape for name, shape in of_images.items() if name.endswith("kernel")}
    assert kernels == {
        "conv1/kernel": (5, 5, 11, 32),
        "conv2/kernel": (5, 5, 32, 64),
        "conv3/kernel": (3, 3, 64, 128),
        "hidden1/kernel": (2058, 128),
        "output/kernel": (128, 1),
    }


def test_products_count_a_convolution_for_every_pixel() -> None:
    spec = image_decoder_spec(10, MNIST, 10)
    kernels = 20 * 6272 + 49 * 9 * 138 * 64 + 196 * 9 * 64 * 32 + 784 * 9 * 32 * 32 + 784 * 64
    assert kernels < n_products(spec) < 1.02 * kernels  # biases and normalisation are the rest
    table = NetworkSpec(3, 4, width=5, depth=1)
    assert n_products(table) == 3 * 5 + 5 + 5 * 4 + 4


@pytest.mark.parametrize("image", [(8, 8, 1), (7, 9, 3), (5, 2, 2)])
@pytest.mark.parametrize("n_classes", [0, 2])
def test_any_size_and_number_of_channels(image: tuple[int, int, int], n_classes: int) -> None:
    p = int(np.prod(image))
    decoder_spec = replace(image_decoder_spec(3, image, n_classes), width=2)
    encoder_spec = replace(image_encoder_spec(3, image, n_classes), width=2)
    decoder = Decoder(decoder_spec, initial_parameters(decoder_spec, 0, "decoder"))
    encoder = Encoder(encoder_spec, initial_parameters(encoder_spec, 0, "encoder"))
    z, x = 5.0 * _random(4, 6, 3), _random(4, 6, p)  # leading axes as HMC has them
    y = tf.one_hot(np.arange(4) % 2, 2)[:, None, :] if n_classes else None
    mean, variance = decoder(z, y)
    assert mean.shape == variance.shape == (4, 6, p)
    assert IMAGE_VARIANCE[0] <= tf.reduce_min(variance) < tf.reduce_max(variance) <= IMAGE_VARIANCE[1]
    proposal = encoder(x, y)
    assert proposal.mean.shape == proposal.sd.shape == (4, 6, 3)
    # A row of the batch alone is the same row: to rounding, as products of other sizes add up in another order.
    alone = decoder(z[1:2, 2:3], None if y is None else y[1:2])
    np.testing.assert_allclose(alone[0][0, 0], mean[1, 2], atol=1e-5)
    np.testing.assert_allclose(encoder(x[1:2, 2:3], None if y is None else y[1:2]).mean[0, 0], proposal.mean[1, 2],
                               atol=1e-5)  # fmt: skip


def test_the_decoder_is_the_one_that_tensorflow_s_own_layers_make() -> None:
    spec = replace(image_decoder_spec(3, (8, 4, 2), 2), width=2)
    parameters = initial_parameters(spec, 0, "decoder")
    z, y = _random(5, 3), tf.one_hot([0, 1, 1, 0, 1], 2)

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
    z, classes = _random(6, 3), np.array([0, 1, 1, 0, 1, 0])
    found = Decoder(spec, parameters)(z, tf.one_hot(classes, 2))[0].numpy()
    for index in range(2):
        given = tf.one_hot(np.full(6, index), 2)
        decoder = Decoder(plain, {**parameters, "dense/kernel": tf.concat([common + own[:, index], of_y], axis=0)})
        expected = decoder(z, given)[0].numpy()
        np.testing.assert_allclose(found[classes == index], expected[classes == index], atol=1e-5)
        # Under the other class's map the same latents make other images.
        assert (np.abs(found - expected)[classes != index].max(axis=1) > 1e-3).all()


def test_class_maps_are_for_decoders_with_classes() -> None:
    for spec in (image_decoder_spec(3, (8, 8, 1)), image_encoder_spec(3, (8, 8, 1), 2), NetworkSpec(3, 4, n_classes=2)):
        with pytest.raises(ValueError, match="maps for each class of a decoder of images with classes alone"):
            replace(spec, class_maps=True)


def test_a_network_of_images_needs_an_image_and_its_pixels() -> None:
    with pytest.raises(ValueError, match="as many columns as the image has pixels"):
        NetworkSpec(3, 10, kind="to_image", image=(2, 2, 1))
    with pytest.raises(ValueError, match="an image for networks of images alone"):
        NetworkSpec(3, 4, kind="to_image")
    with pytest.raises(ValueError, match="an image for networks of images alone"):
        NetworkSpec(3, 4, image=(2, 2, 1))


def test_the_discriminators_of_images_score_every_row() -> None:
    of_images = discriminator.of_images((8, 8, 1), 3)
    parameters = discriminator.initial_parameters(of_images, 0, "x")
    y = tf.one_hot([0, 1, 2, 0, 1], 3)
    assert discriminator.apply(of_images, parameters, _random(5, 64), y).shape == (5,)
    of_latents = discriminator.of_latents_of_images(4)
    scores = discriminator.apply(of_latents, discriminator.initial_parameters(of_latents, 0, "z"), _random(5, 4))
    assert scores.shape == (5,)
    assert np.std(scores) > 0.0
