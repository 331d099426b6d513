"""The networks written down a second time, in NumPy, row by row: slow and plain. And parameters that hide nothing."""

from collections.abc import Mapping

import numpy as np
import tensorflow as tf

from bayesnde_cli.model.networks import DiscriminatorSpec, NetworkSpec
from bayesnde_cli.rng import generator

# TensorFlow keeps the slope of LeakyReLU in float32, whatever the dtype of the network.
SLOPE = float(np.float32(0.2))

Weights = Mapping[str, np.ndarray]


def random_parameters(shapes: Mapping[str, tuple[int, ...]]) -> dict[str, tf.Tensor]:
    """Float64 parameters of which none is special: a bias of 0 or a gain of 1 could be forgotten unnoticed."""
    return {
        name: tf.constant(generator(0, name).standard_normal(shape) / np.sqrt(shape[0]))
        for name, shape in shapes.items()
    }


def naive_apply(spec: NetworkSpec | DiscriminatorSpec, weights: Weights, x: np.ndarray, y: np.ndarray) -> list:
    """The output of each head for one row; y is empty without a condition."""
    if isinstance(spec, DiscriminatorSpec):
        h = np.concatenate([x, y])
        for layer in range(len(spec.widths)):
            h = _leaky_relu(_dense(weights, f"hidden{layer + 1}", h))
        return [_dense(weights, "output", h)]
    if spec.kind == "mlp":
        h = x
        for layer in range(spec.depth):
            h = _leaky_relu(_dense(weights, f"hidden{layer + 1}", h, y))
    else:
        h = _dense(weights, "projection", x, y)
        for layer in range(spec.depth):
            block = f"block{layer + 1}"
            first = _layer_norm(weights, f"{block}/norm1", _leaky_relu(_dense(weights, f"{block}/dense1", h, y)))
            second = _layer_norm(weights, f"{block}/norm2", _leaky_relu(_dense(weights, f"{block}/dense2", first)))
            h = (h + second) / np.sqrt(2)
    return [_dense(weights, head, h, y) for head in spec.heads]


def _layer_norm(weights: Weights, name: str, row: np.ndarray) -> np.ndarray:
    mean = sum(row) / len(row)
    variance = sum((value - mean) ** 2 for value in row) / len(row)
    return weights[f"{name}/gain"] * (row - mean) / np.sqrt(variance + 1e-5) + weights[f"{name}/bias"]


def _leaky_relu(row: np.ndarray) -> np.ndarray:
    return np.array([value if value > 0 else SLOPE * value for value in row])


def _dense(weights: Weights, name: str, *parts: np.ndarray) -> np.ndarray:
    """The layer on one row, which is made of parts laid side by side."""
    return np.concatenate(parts) @ weights[f"{name}/kernel"] + weights[f"{name}/bias"]
