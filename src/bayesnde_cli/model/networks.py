"""Decoder and encoder bodies as pure functions `apply(spec, parameters, x, y)`.

Two regimes (paper, appendix S1). With f the activation (LeakyReLU), LN layer normalisation and [a, y] the columns of
a and y side by side (without a condition, a alone):

    mlp:       h_0 = x,             h_k = f(D_k [h_{k-1}, y])
    residual:  h_0 = D_0 [x, y],    h_k = (h_{k-1} + LN f(D_k2 LN f(D_k1 [h_{k-1}, y]))) / sqrt 2
    heads:     D_head [h_depth, y], linear, one for each head

Images have networks of their own: `image_networks`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import prod, sqrt
from typing import Literal, NamedTuple

import tensorflow as tf

from bayesnde_cli.model import image_networks
from bayesnde_cli.model import parameters as parameter
from bayesnde_cli.model.cells import ColumnCells
from bayesnde_cli.model.image_layers import Statistics
from bayesnde_cli.model.layers import (
    ACTIVATIONS,
    as_rows,
    dense,
    dense_shapes,
    joined,
    layer_norm,
    layer_norm_shapes,
    like,
)
from bayesnde_cli.model.parameters import Parameters, Shapes

Kind = Literal["mlp", "residual", "to_image", "from_image"]

# The paper's border between its two regimes.
MLP_MAX_COLUMNS = 10
# Channels of the last layers of a decoder of images, and of the first of an encoder, in the paper.
IMAGE_CHANNELS = 32
# Of pixels: points, or bytes.
_LEVELS = (0, 256)


def regime(n_columns: int) -> Kind:
    """The kind of network that data of this many columns get, in decoder and encoder alike."""
    return "mlp" if n_columns <= MLP_MAX_COLUMNS else "residual"


@dataclass(frozen=True)
class NetworkSpec:
    """What a network looks like; with a seed it determines the first parameters. Change it with `dataclasses.replace`.

    `depth` counts hidden layers (mlp) or blocks of two layers (residual); networks of images have theirs, and `width`
    is their number of channels. Each head gives `n_out` columns.
    """

    n_in: int
    n_out: int
    heads: tuple[str, ...] = ("output",)
    n_classes: int = 0
    kind: Kind = "mlp"
    width: int = 256
    depth: int = 5
    activation: str = "leaky_relu"
    image: tuple[int, int, int] | None = None  # height, width and channels of what a network of images makes or sees
    cells: tuple[ColumnCells, ...] = ()  # of each column that a decoder makes; none for any, unless given
    levels: int = 0  # of the pixels that a decoder makes, which then have their cells; 0: they are points
    class_maps: bool = False  # whether a decoder of images has a map of the latents for each class

    def __post_init__(self) -> None:
        if self.kind not in (*_TRUNKS, *_OF_IMAGES):
            raise ValueError(f"expected a kind among {', '.join((*_TRUNKS, *_OF_IMAGES))}, got {self.kind!r}")
        if (self.image is None) == (self.kind in _OF_IMAGES):
            raise ValueError(f"expected an image for networks of images alone, got {self}")
        if self.image is not None and prod(self.image) != (self.n_out if self.kind == "to_image" else self.n_in):
            raise ValueError(f"expected as many columns as the image has pixels, got {self}")
        if self.activation not in ACTIVATIONS:
            raise ValueError(f"expected an activation among {', '.join(ACTIVATIONS)}, got {self.activation!r}")
        if self.cells and len(self.cells) != self.n_out:
            raise ValueError(f"expected cells for each of {self.n_out} columns, got {len(self.cells)}")
        if self.levels and self.kind != "to_image":
            raise ValueError(f"expected levels of the pixels of a decoder alone, got {self}")
        if self.levels not in _LEVELS:
            raise ValueError(f"expected levels of {' or '.join(map(str, _LEVELS))}, got {self.levels!r}")
        if self.class_maps and (self.kind != "to_image" or not self.n_classes):
            raise ValueError(f"expected maps for each class of a decoder of images with classes alone, got {self}")
        if min(self.n_in, self.n_out, self.width, self.depth) < 1:
            raise ValueError(f"expected sizes of at least 1, got {self}")

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """Height, width and channels."""
        assert self.image is not None
        return self.image


def parameter_shapes(spec: NetworkSpec) -> Shapes:
    """Name and shape of every parameter, from input to output."""
    if spec.kind in _OF_IMAGES:
        return _OF_IMAGES[spec.kind].shapes(spec)
    shapes = dict(_TRUNK_SHAPES[spec.kind](spec))
    for head in spec.heads:
        shapes |= dense_shapes(head, spec.width + spec.n_classes, spec.n_out)
    return shapes


def n_products(spec: NetworkSpec) -> int:
    """Products of a number and a weight that one row takes, about: each weight once, those of a convolution for every
    pixel."""
    pixels = image_networks.pixels_by_layer(spec) if spec.kind in _OF_IMAGES else {}
    shapes = parameter_shapes(spec)
    return sum(prod(shape) * pixels.get(name.partition("/")[0], 1) for name, shape in shapes.items())


def initial_parameters(spec: NetworkSpec, seed: int, name: str) -> dict[str, tf.Tensor]:
    """The parameters with which the network of this name starts under this seed."""
    return parameter.initial(parameter_shapes(spec), seed, name)


def apply(
    spec: NetworkSpec, parameters: Parameters, x: tf.Tensor, y: tf.Tensor | None = None,
    statistics: Statistics | None = None,
) -> tuple[tf.Tensor, ...]:  # fmt: skip
    """The output of each head. x (…, n_in), one-hot y (…, n_classes) -> a tuple of (…, n_out).

    There may be any number of leading axes; y has as many as x, where 1 stands for any length. `statistics` is for
    networks of images that learn, see `batch_norm`.
    """
    x_rows, y_rows = as_rows(x, y, spec.n_in, spec.n_classes)
    if spec.kind in _OF_IMAGES:
        return tuple(like(rows, x) for rows in _OF_IMAGES[spec.kind].body(spec, parameters, x_rows, y_rows, statistics))
    features = joined(_TRUNKS[spec.kind](spec, parameters, x_rows, y_rows), y_rows)  # (n, width + n_classes)
    return tuple(like(dense(parameters, head, features), x) for head in spec.heads)


def _mlp_shapes(spec: NetworkSpec) -> Shapes:
    shapes: dict[str, tuple[int, ...]] = {}
    n_in = spec.n_in
    for k in range(1, spec.depth + 1):
        shapes |= dense_shapes(f"hidden{k}", n_in + spec.n_classes, spec.width)
        n_in = spec.width
    return shapes


def _mlp(spec: NetworkSpec, parameters: Parameters, x: tf.Tensor, y: tf.Tensor | None) -> tf.Tensor:
    activation = ACTIVATIONS[spec.activation]
    h = x
    for k in range(1, spec.depth + 1):
        h = activation(dense(parameters, f"hidden{k}", joined(h, y)))  # (n, width)
    return h


def _residual_shapes(spec: NetworkSpec) -> Shapes:
    shapes = dense_shapes("projection", spec.n_in + spec.n_classes, spec.width)
    for k in range(1, spec.depth + 1):
        shapes |= dense_shapes(f"block{k}/dense1", spec.width + spec.n_classes, spec.width)
        shapes |= layer_norm_shapes(f"block{k}/norm1", spec.width)
        shapes |= dense_shapes(f"block{k}/dense2", spec.width, spec.width)
        shapes |= layer_norm_shapes(f"block{k}/norm2", spec.width)
    return shapes


def _residual(spec: NetworkSpec, parameters: Parameters, x: tf.Tensor, y: tf.Tensor | None) -> tf.Tensor:
    activation = ACTIVATIONS[spec.activation]
    h = dense(parameters, "projection", joined(x, y))  # (n, width)
    for k in range(1, spec.depth + 1):
        branch = activation(dense(parameters, f"block{k}/dense1", joined(h, y)))
        branch = layer_norm(parameters, f"block{k}/norm1", branch)
        branch = activation(dense(parameters, f"block{k}/dense2", branch))
        branch = layer_norm(parameters, f"block{k}/norm2", branch)
        h = (h + branch) / sqrt(2.0)  # (n, width); the root keeps the size of h level from block to block
    return h


class _OfImages(NamedTuple):
    shapes: Callable[[NetworkSpec], Shapes]
    body: Callable[..., tuple[tf.Tensor, ...]]


_OF_IMAGES: dict[Kind, _OfImages] = {
    "to_image": _OfImages(image_networks.to_image_shapes, image_networks.to_image),
    "from_image": _OfImages(image_networks.from_image_shapes, image_networks.from_image),
}
_TRUNK_SHAPES: dict[Kind, Callable[[NetworkSpec], Shapes]] = {"mlp": _mlp_shapes, "residual": _residual_shapes}
_TRUNKS: dict[Kind, Callable[[NetworkSpec, Parameters, tf.Tensor, tf.Tensor | None], tf.Tensor]] = {
    "mlp": _mlp,
    "residual": _residual,
}
