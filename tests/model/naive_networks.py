"""The networks written down a second time, in NumPy, row by row: slow and plain. And parameters that hide nothing."""

from collections.abc import Mapping

import numpy as np
import tensorflow as tf

from bayesnde_cli.rng import generator

# TensorFlow keeps the slope of LeakyReLU in float32, whatever the dtype of the network.
SLOPE = float(np.float32(0.2))


def random_parameters(shapes: Mapping[str, tuple[int, ...]]) -> dict[str, tf.Tensor]:
    """Float64 parameters of which none is special: a bias of 0 or a gain of 1 could be forgotten unnoticed."""
    return {
        name: tf.constant(generator(0, name).standard_normal(shape) / np.sqrt(shape[0]))
        for name, shape in shapes.items()
    }


def naive_leaky_relu(row: np.ndarray) -> np.ndarray:
    return np.array([value if value > 0 else SLOPE * value for value in row])


def naive_dense(weights: Mapping[str, np.ndarray], name: str, *parts: np.ndarray) -> np.ndarray:
    """The layer on one row, which is made of parts laid side by side."""
    return np.concatenate(parts) @ weights[f"{name}/kernel"] + weights[f"{name}/bias"]


def naive_layer_norm(weights: Mapping[str, np.ndarray], name: str, row: np.ndarray) -> np.ndarray:
    mean = sum(row) / len(row)
    variance = sum((value - mean) ** 2 for value in row) / len(row)
    return weights[f"{name}/gain"] * (row - mean) / np.sqrt(variance + 1e-5) + weights[f"{name}/bias"]


def naive_mlp(weights: Mapping[str, np.ndarray], depth: int, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """The features of one row; y is empty without a condition."""
    h = x
    for layer in range(depth):
        h = naive_leaky_relu(naive_dense(weights, f"hidden{layer + 1}", h, y))
    return h


def naive_residual(weights: Mapping[str, np.ndarray], depth: int, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """The features of one row; y is empty without a condition."""
    h = naive_dense(weights, "projection", x, y)
    for layer in range(depth):
        block = f"block{layer + 1}"
        first = naive_leaky_relu(naive_dense(weights, f"{block}/dense1", h, y))
        first = naive_layer_norm(weights, f"{block}/norm1", first)
        second = naive_leaky_relu(naive_dense(weights, f"{block}/dense2", first))
        second = naive_layer_norm(weights, f"{block}/norm2", second)
        h = (h + second) / np.sqrt(2)
    return h


def naive_discriminator(weights: Mapping[str, np.ndarray], n_layers: int, x: np.ndarray, y: np.ndarray) -> float:
    """The score of one row; y is empty without a condition."""
    h = np.concatenate([x, y])
    for layer in range(n_layers):
        h = naive_leaky_relu(naive_dense(weights, f"hidden{layer + 1}", h))
    return float(naive_dense(weights, "output", h)[0])
