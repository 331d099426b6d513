"""The critics of the warm start: how real a row (or a latent) looks, as one unbounded number."""

from dataclasses import dataclass
from math import prod

import tensorflow as tf

from bayesnde_cli.model import parameters as parameter
from bayesnde_cli.model.image_layers import batch_norm, conv, conv_shapes, images, laid_flat, tiled
from bayesnde_cli.model.layers import ACTIVATIONS, as_rows, dense, dense_shapes, joined, layer_norm_shapes, like
from bayesnde_cli.model.parameters import Parameters, Shapes

# Sizes of the kernels of a discriminator of images, each of stride 2.
_KERNELS = (5, 5, 3)


@dataclass(frozen=True)
class DiscriminatorSpec:
    """Hidden layers of these widths with LeakyReLU, as the paper says; its authors' code has BatchNorm and tanh.

    With an `image` (height, width, channels) they are convolutions, all but the last.
    """

    n_in: int
    n_classes: int = 0
    widths: tuple[int, ...] = (256, 256, 128, 64)
    activation: str = "leaky_relu"
    has_batch_norm: bool = False  # of dense layers; by the batch at hand, as no density ever comes from a critic
    image: tuple[int, int, int] | None = None

    def __post_init__(self) -> None:
        if self.activation not in ACTIVATIONS:
            raise ValueError(f"expected an activation among {', '.join(ACTIVATIONS)}, got {self.activation!r}")
        if min((self.n_in, *self.widths)) < 1:
            raise ValueError(f"expected sizes of at least 1, got {self}")


def of_images(image: tuple[int, int, int], n_classes: int = 0) -> DiscriminatorSpec:
    """The paper's discriminator of images."""
    return DiscriminatorSpec(prod(image), n_classes, widths=(32, 64, 128, 128), image=image)


def of_latents_of_images(latent_dim: int) -> DiscriminatorSpec:
    """The paper's discriminator of the latents of images, which sees no class."""
    return DiscriminatorSpec(latent_dim, activation="tanh", has_batch_norm=True)


def parameter_shapes(spec: DiscriminatorSpec) -> Shapes:
    """Name and shape of every parameter, from input to output."""
    shapes: dict[str, tuple[int, ...]] = {}
    if spec.image is None:
        sizes = (spec.n_in + spec.n_classes, *spec.widths)
    else:
        height, width, channels = spec.image
        channels += spec.n_classes
        for k, size in enumerate(_KERNELS, start=1):
            shapes |= conv_shapes(f"conv{k}", channels, spec.widths[k - 1], size)
            height, width, channels = -(-height // 2), -(-width // 2), spec.widths[k - 1]
        sizes = (height * width * channels + spec.n_classes, *spec.widths[len(_KERNELS) :])
    for k in range(1, len(sizes)):
        shapes |= dense_shapes(f"hidden{k}", sizes[k - 1], sizes[k])
        if spec.has_batch_norm:
            shapes |= layer_norm_shapes(f"norm{k}", sizes[k])
    return shapes | dense_shapes("output", sizes[-1], 1)


def initial_parameters(spec: DiscriminatorSpec, seed: int, name: str) -> dict[str, tf.Tensor]:
    """The parameters with which the discriminator of this name starts under this seed."""
    return parameter.initial(parameter_shapes(spec), seed, name)


def apply(spec: DiscriminatorSpec, parameters: Parameters, x: tf.Tensor, y: tf.Tensor | None = None) -> tf.Tensor:
    """The score of each row, without a final squashing. x (…, n_in), one-hot y (…, n_classes) -> (…,)."""
    activation = ACTIVATIONS[spec.activation]
    h, y_rows = as_rows(x, y, spec.n_in, spec.n_classes)
    n_dense = len(spec.widths)
    if spec.image is not None:
        pictures = images(tf.sigmoid(h), spec.image)
        pictures = pictures if y_rows is None else tiled(y_rows, pictures)
        for k in range(1, len(_KERNELS) + 1):
            pictures = activation(conv(parameters, f"conv{k}", pictures, stride=2))
        h, n_dense = laid_flat(pictures), n_dense - len(_KERNELS)
    h = joined(h, y_rows)  # the condition joins the input alone
    for k in range(1, n_dense + 1):
        h = dense(parameters, f"hidden{k}", h)
        h = activation(batch_norm(parameters, f"norm{k}", h, {}) if spec.has_batch_norm else h)  # (n, width)
    return tf.squeeze(like(dense(parameters, "output", h), x), axis=-1)
