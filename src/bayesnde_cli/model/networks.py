"""Bodies of decoders, encoders and discriminators as pure functions of a spec and parameters.

With f the activation, LN layer normalisation and [a, y] the columns of a and y side by side (a alone without a
condition), there are two families for tables (paper, appendix S1),

    mlp:       h_0 = x,             h_k = f(D_k [h_{k-1}, y])
    residual:  h_0 = D_0 [x, y],    h_k = (h_{k-1} + LN f(D_k2 LN f(D_k1 [h_{k-1}, y]))) / sqrt 2
    heads:     D_head [h_depth, y], linear, one for each head

and two for images, the paper's for MNIST. With c channels (the paper's: 32), sides h and w, halves rounded up, and the
condition y as further channels,

    to_image:    [z, y] -> dense h/4 w/4 4c -> transposed conv 2c -> transposed conv c -> conv c -> 1x1 conv per head
    from_image:  [x, y] -> conv c, stride 2 -> conv 2c, stride 2 -> conv 4c -> [., y] -> dense 8c -> dense per head

Convolutions have kernels of size 3, followed by batch normalisation and the activation; dense layers are not
normalised. In `to_image`, y joins z at the dense layer and once more its output.

With `class_maps` that dense layer sees [z, y, z (x) y], where z (x) y are all products of a latent and a class: every
class has a map of its own. Classes that share one learn to draw each other's images with latents far from their own,
and p(x | y) of wrong classes is then too high. On MNIST, with 16 channels, 10,000 images and 12 epochs, class maps
gained 29 nats per validation image, and 97 % instead of 90 % of the classes were right."""

from collections.abc import Callable
from dataclasses import dataclass
from math import sqrt
from typing import ClassVar, Literal

import tensorflow as tf

from bayesnde_cli.model import layers
from bayesnde_cli.model.layers import ACTIVATIONS, Blueprint, Parameters, Statistics, halve
from bayesnde_cli.model.likelihood import Cells, ColumnCells, LevelCells, join_cells

# The smallest variance of a column given its latent, part of the model. Far below the noise of scaled data, with an
# s.d. of 0.001, and far above what float32 cannot divide by.
VARIANCE_FLOOR = 1e-6
# The paper's bounds of the variance of a pixel, in logit space.
IMAGE_VARIANCE = (1e-4, 4.0)
# Kernel sizes of a discriminator of images, each of stride 2.
_DISCRIMINATOR_KERNELS = (5, 5, 3)

Kind = Literal["mlp", "residual", "to_image", "from_image"]
Image = tuple[int, int, int]  # height, width and channels
Outputs = tuple[tf.Tensor, ...]


@dataclass(frozen=True)
class NetworkSpec:
    """The architecture of a network; with a seed it determines the initial parameters.

    `depth` counts hidden layers (mlp) or blocks of two layers (residual). Networks of images have a fixed depth, and
    `width` is their number of channels. Each head has `n_out` columns. Change a spec with `dataclasses.replace`.
    """

    n_in: int
    n_out: int
    heads: tuple[str, ...] = ("output",)
    n_classes: int = 0
    kind: Kind = "mlp"
    width: int = 256
    depth: int = 5
    activation: str = "leaky_relu"
    image: Image | None = None
    cells: tuple[ColumnCells, ...] = ()  # of each column of a decoder's output; empty: no column has cells
    levels: int = 0  # of the pixels of a decoder's output, which then have cells; 0: pixels are points
    class_maps: bool = False  # whether a decoder of images has a map of the latents for each class

    @property
    def output_cells(self) -> Cells | None:
        """The cells of the columns of a decoder's output, if any has cells."""
        return LevelCells(float(self.levels)) if self.levels else join_cells(self.cells)


@dataclass(frozen=True)
class DiscriminatorSpec:
    """Hidden layers of these widths with LeakyReLU, as in the paper; its authors' code has BatchNorm and tanh.

    With an `image`, all layers but the last are convolutions.
    """

    kind: ClassVar[str] = "discriminator"

    n_in: int
    n_classes: int = 0
    widths: tuple[int, ...] = (256, 256, 128, 64)
    activation: str = "leaky_relu"
    has_batch_norm: bool = False  # in dense layers, with the statistics of each batch: no density depends on it
    image: Image | None = None


Spec = NetworkSpec | DiscriminatorSpec


def parameter_shapes(spec: Spec) -> Blueprint:
    """The shape of every parameter by name, from input to output: the network runs once on a row of zeros."""
    blueprint = Blueprint()
    apply(spec, blueprint, tf.zeros([1, spec.n_in]), tf.zeros([1, spec.n_classes]) if spec.n_classes else None)
    return blueprint


def n_products(spec: Spec) -> int:
    """Approximate number of multiplications per row: each weight once, those of a convolution for every pixel."""
    return parameter_shapes(spec).n_products


def initial_parameters(spec: Spec, seed: int, name: str) -> dict[str, tf.Tensor]:
    """The random initial parameters of the network of this name under this seed."""
    return layers.initialise(parameter_shapes(spec), seed, name)


def apply(
    spec: Spec, parameters: Parameters, x: tf.Tensor, y: tf.Tensor | None = None, statistics: Statistics | None = None
) -> Outputs:
    """The output of each head. x (…, n_in), one-hot y (…, n_classes) with as many axes -> a tuple of (…, n_out).

    `statistics` is for networks of images in training, see `batch_norm`.
    """
    x_rows, y_rows = layers.as_rows(x, y, spec.n_in)
    outputs = _BODIES[spec.kind](spec, parameters, x_rows, y_rows, statistics)
    return tuple(layers.like(rows, x) for rows in outputs)


def decoder_variance(spec: NetworkSpec, raw: tf.Tensor) -> tf.Tensor:
    """The variances of a decoder's columns from its raw output.

    softplus(raw) + VARIANCE_FLOOR, or low + (high - low) (1 - exp(-softplus(raw))) with the bounds of IMAGE_VARIANCE.
    """
    if spec.image is None:
        # TensorFlow computes softplus as max(raw, 0) + log(1 + exp(-|raw|)), which overflows at neither end.
        return tf.math.softplus(raw) + VARIANCE_FLOOR
    low, high = IMAGE_VARIANCE
    return low + (high - low) * tf.sigmoid(raw)  # 1 - exp(-softplus(raw)) is the sigmoid


def _mlp(spec: NetworkSpec, parameters: Parameters, x: tf.Tensor, y: tf.Tensor | None, _: Statistics | None) -> Outputs:
    activation = ACTIVATIONS[spec.activation]
    h = x
    for k in range(1, spec.depth + 1):
        h = activation(layers.dense(parameters, f"hidden{k}", layers.join(h, y), spec.width))  # (n, width)
    return _heads(spec, parameters, layers.join(h, y))


def _residual(
    spec: NetworkSpec, parameters: Parameters, x: tf.Tensor, y: tf.Tensor | None, _: Statistics | None
) -> Outputs:
    activation = ACTIVATIONS[spec.activation]
    h = layers.dense(parameters, "projection", layers.join(x, y), spec.width)  # (n, width)
    for k in range(1, spec.depth + 1):
        branch = activation(layers.dense(parameters, f"block{k}/dense1", layers.join(h, y), spec.width))
        branch = layers.layer_norm(parameters, f"block{k}/norm1", branch)
        branch = activation(layers.dense(parameters, f"block{k}/dense2", branch, spec.width))
        branch = layers.layer_norm(parameters, f"block{k}/norm2", branch)
        h = (h + branch) / sqrt(2.0)  # (n, width); the root keeps the scale of h from block to block
    return _heads(spec, parameters, layers.join(h, y))


def _heads(spec: NetworkSpec, parameters: Parameters, features: tf.Tensor) -> Outputs:
    return tuple(layers.dense(parameters, head, features, spec.n_out) for head in spec.heads)


def _to_image(
    spec: NetworkSpec, parameters: Parameters, z: tf.Tensor, y: tf.Tensor | None, statistics: Statistics | None
) -> Outputs:
    """z (n, d), y (n, classes) -> a flat image for each head, (n, h w channels)."""
    assert spec.image is not None
    (height, width, channels), c, activation = spec.image, spec.width, ACTIVATIONS[spec.activation]
    half = halve(height), halve(width)
    quarter = halve(half[0]), halve(half[1])
    first = layers.join(z, y)
    if y is not None and spec.class_maps:  # [z, y, z (x) y], (n, d + k + d k)
        first = tf.concat([first, tf.reshape(z[:, :, None] * y[:, None, :], [-1, z.shape[1] * y.shape[1]])], axis=1)
    h = activation(layers.dense(parameters, "dense", first, quarter[0] * quarter[1] * 4 * c))
    h = layers.as_images(h, [*quarter, 4 * c], y)
    h = layers.transposed_conv(parameters, "conv1", h, 2 * c, half)
    h = activation(layers.batch_norm(parameters, "norm1", h, statistics))
    h = layers.transposed_conv(parameters, "conv2", h, c, (height, width))
    h = activation(layers.batch_norm(parameters, "norm2", h, statistics))
    h = layers.conv(parameters, "conv3", h, kernel=(3, c), stride=1)
    h = activation(layers.batch_norm(parameters, "norm3", h, statistics))
    pixels = tf.reshape(tf.transpose(h, [1, 0, 2, 3]), [-1, c])  # a 1x1 convolution is a dense layer of pixels
    heads = (layers.dense(parameters, head, pixels, channels) for head in spec.heads)
    return tuple(tf.reshape(head, [-1, height * width * channels]) for head in heads)


def _from_image(
    spec: NetworkSpec, parameters: Parameters, x: tf.Tensor, y: tf.Tensor | None, statistics: Statistics | None
) -> Outputs:
    """Flat images x (n, h w channels) in logit space, y (n, classes) -> (n, n_out) for each head."""
    assert spec.image is not None
    c, activation = spec.width, ACTIVATIONS[spec.activation]
    h = layers.as_images(tf.sigmoid(x), spec.image, y)  # from 0 to 1, as the paper's networks see them
    for k, (n_out, stride) in enumerate([(c, 2), (2 * c, 2), (4 * c, 1)], start=1):
        h = layers.conv(parameters, f"conv{k}", h, kernel=(3, n_out), stride=stride)
        h = activation(layers.batch_norm(parameters, f"norm{k}", h, statistics))
    features = layers.dense(parameters, "dense", layers.join(layers.flatten(h), y), 8 * c)
    return _heads(spec, parameters, activation(features))


def _discriminator(
    spec: DiscriminatorSpec, parameters: Parameters, x: tf.Tensor, y: tf.Tensor | None, _: Statistics | None
) -> Outputs:
    """(n, 1)."""
    h, widths, activation = x, spec.widths, ACTIVATIONS[spec.activation]
    if spec.image is not None:
        pictures = layers.as_images(tf.sigmoid(x), spec.image, y)
        for k, kernel in enumerate(zip(_DISCRIMINATOR_KERNELS, widths, strict=False), start=1):
            pictures = activation(layers.conv(parameters, f"conv{k}", pictures, kernel=kernel, stride=2))
        h, widths = layers.flatten(pictures), widths[len(_DISCRIMINATOR_KERNELS) :]
    h = layers.join(h, y)  # the condition joins only the first dense layer
    for k, width in enumerate(widths, start=1):
        h = layers.dense(parameters, f"hidden{k}", h, width)
        h = activation(layers.batch_norm(parameters, f"norm{k}", h, {}) if spec.has_batch_norm else h)
    return (layers.dense(parameters, "output", h, 1),)


_BODIES: dict[str, Callable[..., Outputs]] = {
    "mlp": _mlp,
    "residual": _residual,
    "to_image": _to_image,
    "from_image": _from_image,
    "discriminator": _discriminator,
}
