"""The critics of the warm start: how real a row (or a latent) looks, as one unbounded number."""

from dataclasses import dataclass

import tensorflow as tf

from bayesnde_cli.model import parameters as parameter
from bayesnde_cli.model.layers import ACTIVATIONS, as_rows, dense, dense_shapes, joined, like
from bayesnde_cli.model.parameters import Parameters, Shapes


@dataclass(frozen=True)
class DiscriminatorSpec:
    """Hidden layers of these widths with LeakyReLU, as the paper says; its authors' code has BatchNorm and tanh."""

    n_in: int
    n_classes: int = 0
    widths: tuple[int, ...] = (256, 256, 128, 64)
    activation: str = "leaky_relu"

    def __post_init__(self) -> None:
        if self.activation not in ACTIVATIONS:
            raise ValueError(f"expected an activation among {', '.join(ACTIVATIONS)}, got {self.activation!r}")
        if min((self.n_in, *self.widths)) < 1:
            raise ValueError(f"expected sizes of at least 1, got {self}")


def parameter_shapes(spec: DiscriminatorSpec) -> Shapes:
    """Name and shape of every parameter, from input to output."""
    sizes = (spec.n_in + spec.n_classes, *spec.widths)
    shapes: dict[str, tuple[int, ...]] = {}
    for k in range(1, len(sizes)):
        shapes |= dense_shapes(f"hidden{k}", sizes[k - 1], sizes[k])
    return shapes | dense_shapes("output", sizes[-1], 1)


def initial_parameters(spec: DiscriminatorSpec, seed: int, name: str) -> dict[str, tf.Tensor]:
    """The parameters with which the discriminator of this name starts under this seed."""
    return parameter.initial(parameter_shapes(spec), seed, name)


def apply(spec: DiscriminatorSpec, parameters: Parameters, x: tf.Tensor, y: tf.Tensor | None = None) -> tf.Tensor:
    """The score of each row, without a final squashing. x (…, n_in), one-hot y (…, n_classes) -> (…,)."""
    h = joined(*as_rows(x, y, spec.n_in, spec.n_classes))  # the condition joins the input alone
    for k in range(1, len(spec.widths) + 1):
        h = ACTIVATIONS[spec.activation](dense(parameters, f"hidden{k}", h))  # (n, widths[k - 1])
    return tf.squeeze(like(dense(parameters, "output", h), x), axis=-1)
