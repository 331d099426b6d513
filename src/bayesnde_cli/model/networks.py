"""Decoder and encoder bodies as pure functions `apply(spec, parameters, x, y)`.

Two regimes (paper, appendix S1). With f the activation (LeakyReLU), LN layer normalisation and [a, y] the columns of
a and y side by side (without a condition, a alone):

    mlp:       h_0 = x,             h_k = f(D_k [h_{k-1}, y])
    residual:  h_0 = D_0 [x, y],    h_k = (h_{k-1} + LN f(D_k2 LN f(D_k1 [h_{k-1}, y]))) / sqrt 2
    heads:     D_head [h_depth, y], linear, one for each head
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import sqrt
from typing import Literal

import tensorflow as tf

from bayesnde_cli.model import parameters as parameter
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

Kind = Literal["mlp", "residual"]

# The paper's border between its two regimes.
MLP_MAX_COLUMNS = 10


def regime(n_columns: int) -> Kind:
    """The kind of network that data of this many columns get, in decoder and encoder alike."""
    return "mlp" if n_columns <= MLP_MAX_COLUMNS else "residual"


@dataclass(frozen=True)
class NetworkSpec:
    """What a network looks like; with a seed it determines the first parameters. Change it with `dataclasses.replace`.

    `depth` counts hidden layers (mlp) or blocks of two layers (residual). Each head gives `n_out` columns.
    """

    n_in: int
    n_out: int
    heads: tuple[str, ...] = ("output",)
    n_classes: int = 0
    kind: Kind = "mlp"
    width: int = 256
    depth: int = 5
    activation: str = "leaky_relu"

    def __post_init__(self) -> None:
        if self.kind not in _TRUNKS:
            raise ValueError(f"expected a kind among {', '.join(_TRUNKS)}, got {self.kind!r}")
        if self.activation not in ACTIVATIONS:
            raise ValueError(f"expected an activation among {', '.join(ACTIVATIONS)}, got {self.activation!r}")
        if min(self.n_in, self.n_out, self.width, self.depth) < 1:
            raise ValueError(f"expected sizes of at least 1, got {self}")


def parameter_shapes(spec: NetworkSpec) -> Shapes:
    """Name and shape of every parameter, from input to output."""
    shapes = dict(_TRUNK_SHAPES[spec.kind](spec))
    for head in spec.heads:
        shapes |= dense_shapes(head, spec.width + spec.n_classes, spec.n_out)
    return shapes


def initial_parameters(spec: NetworkSpec, seed: int, name: str) -> dict[str, tf.Tensor]:
    """The parameters with which the network of this name starts under this seed."""
    return parameter.initial(parameter_shapes(spec), seed, name)


def apply(spec: NetworkSpec, parameters: Parameters, x: tf.Tensor, y: tf.Tensor | None = None) -> tuple[tf.Tensor, ...]:
    """The output of each head. x (…, n_in), one-hot y (…, n_classes) -> a tuple of (…, n_out).

    There may be any number of leading axes; y has as many as x, where 1 stands for any length.
    """
    x_rows, y_rows = as_rows(x, y, spec.n_in, spec.n_classes)
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


_TRUNK_SHAPES: dict[Kind, Callable[[NetworkSpec], Shapes]] = {"mlp": _mlp_shapes, "residual": _residual_shapes}
_TRUNKS: dict[Kind, Callable[[NetworkSpec, Parameters, tf.Tensor, tf.Tensor | None], tf.Tensor]] = {
    "mlp": _mlp,
    "residual": _residual,
}
