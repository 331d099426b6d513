"""Decoder and encoder of images, as the paper has them for MNIST (appendix, its table of networks).

With c the number of channels `width` (the paper's: 32), h and w the sides of the image, halves rounded up, and the
condition y as further channels:

    to_image:    [z, y] -> dense h/4 w/4 4c -> transposed conv 2c -> transposed conv c -> conv c -> 1x1 conv per head
    from_image:  [x, y] -> conv c, stride 2 -> conv 2c, stride 2 -> conv 4c -> [., y] -> dense 8c -> dense per head

All convolutions have kernels of 3, batch normalisation and LeakyReLU behind them; the dense layers have no
normalisation. The latent joins y in `to_image` at the dense layer, and y comes once more beside its output.

With `class_maps` that dense layer is [z, y, z (x) y] -> …, z (x) y all products of a latent and a class: beside the map
of the latents that the paper has, every class has one of its own. Classes that share their map learn to draw each
other's images by latents far from their own, and p(x | y) of the wrong classes is then too high: of MNIST, with 16
channels, 10,000 images and 12 epochs, own maps were worth 29 nats a validation image, and the class of 97 % instead of
90 % of them was found.
"""

from typing import TYPE_CHECKING

import tensorflow as tf

from bayesnde_cli.model.image_layers import (
    Statistics,
    batch_norm,
    batch_norm_shapes,
    conv,
    conv_shapes,
    images,
    laid_flat,
    tiled,
    transposed_conv,
)
from bayesnde_cli.model.layers import ACTIVATIONS, dense, dense_shapes, joined
from bayesnde_cli.model.parameters import Parameters, Shapes

if TYPE_CHECKING:
    from bayesnde_cli.model.networks import NetworkSpec

_KERNEL = 3


def halved(size: int) -> int:
    """What a convolution of stride 2 leaves of a side."""
    return -(-size // 2)


def to_image_shapes(spec: "NetworkSpec") -> Shapes:
    """The parameters of a decoder of images."""
    height, width, channels = spec.image_shape
    c, n_classes = spec.width, spec.n_classes
    n_first = halved(halved(height)) * halved(halved(width)) * 4 * c
    n_own = spec.n_in * n_classes if spec.class_maps else 0  # for the maps that classes have of their own
    shapes = dense_shapes("dense", spec.n_in + n_classes + n_own, n_first)
    for k, (n_in, n_out) in enumerate([(4 * c + n_classes, 2 * c), (2 * c, c), (c, c)], start=1):
        shapes |= conv_shapes(f"conv{k}", n_in, n_out, _KERNEL) | batch_norm_shapes(f"norm{k}", n_out)
    for head in spec.heads:
        shapes |= dense_shapes(head, c, channels)
    return shapes


def to_image(
    spec: "NetworkSpec", parameters: Parameters, z: tf.Tensor, y: tf.Tensor | None, statistics: Statistics | None
) -> tuple[tf.Tensor, ...]:
    """z (n, d), y (n, classes) -> an image for each head, laid flat: (n, h w channels)."""
    height, width, channels = spec.image_shape
    activation = ACTIVATIONS[spec.activation]
    half_height, half_width = halved(height), halved(width)
    h = activation(dense(parameters, "dense", _by_class(z, y) if spec.class_maps and y is not None else joined(z, y)))
    h = images(h, [halved(half_height), halved(half_width), 4 * spec.width])
    h = h if y is None else tiled(y, h)
    h = transposed_conv(parameters, "conv1", h, height=half_height, width=half_width)
    h = activation(batch_norm(parameters, "norm1", h, statistics))
    h = transposed_conv(parameters, "conv2", h, height=height, width=width)
    h = activation(batch_norm(parameters, "norm2", h, statistics))
    h = activation(batch_norm(parameters, "norm3", conv(parameters, "conv3", h, stride=1), statistics))
    pixels = tf.reshape(tf.transpose(h, [1, 0, 2, 3]), [-1, spec.width])  # a 1x1 convolution is a dense layer of pixels
    return tuple(tf.reshape(dense(parameters, head, pixels), [-1, height * width * channels]) for head in spec.heads)


def _by_class(z: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
    """[z, y, z (x) y]: a dense layer of it has a map of z for all classes, and one for each. (n, d + c + d c)."""
    products = tf.reshape(z[:, :, None] * y[:, None, :], [-1, z.shape[1] * y.shape[1]])
    return tf.concat([z, y, products], axis=1)


def from_image_shapes(spec: "NetworkSpec") -> Shapes:
    """The parameters of an encoder of images."""
    height, width, channels = spec.image_shape
    c, n_classes = spec.width, spec.n_classes
    shapes: dict[str, tuple[int, ...]] = {}
    for k, (n_in, n_out) in enumerate([(channels + n_classes, c), (c, 2 * c), (2 * c, 4 * c)], start=1):
        shapes |= conv_shapes(f"conv{k}", n_in, n_out, _KERNEL) | batch_norm_shapes(f"norm{k}", n_out)
    n_flat = halved(halved(height)) * halved(halved(width)) * 4 * c
    shapes |= dense_shapes("dense", n_flat + n_classes, 8 * c)
    for head in spec.heads:
        shapes |= dense_shapes(head, 8 * c, spec.n_out)
    return shapes


def from_image(
    spec: "NetworkSpec", parameters: Parameters, x: tf.Tensor, y: tf.Tensor | None, statistics: Statistics | None
) -> tuple[tf.Tensor, ...]:
    """Images x laid flat (n, h w channels) in logit space, y (n, classes) -> (n, n_out) for each head."""
    activation = ACTIVATIONS[spec.activation]
    h = images(tf.sigmoid(x), spec.image_shape)  # from 0 to 1, what the paper's networks see
    h = h if y is None else tiled(y, h)
    for k, stride in enumerate((2, 2, 1), start=1):
        h = conv(parameters, f"conv{k}", h, stride=stride)
        h = activation(batch_norm(parameters, f"norm{k}", h, statistics))
    features = activation(dense(parameters, "dense", joined(laid_flat(h), y)))  # (n, 8 c)
    return tuple(dense(parameters, head, features) for head in spec.heads)


def pixels_by_layer(spec: "NetworkSpec") -> dict[str, int]:
    """The pixels that each convolution goes over, by the name of its layer."""
    height, width, _ = spec.image_shape
    full, half = height * width, halved(height) * halved(width)
    quarter = halved(halved(height)) * halved(halved(width))
    if spec.kind == "to_image":
        return {"conv1": quarter, "conv2": half, "conv3": full, **dict.fromkeys(spec.heads, full)}
    return {"conv1": half, "conv2": quarter, "conv3": quarter}
