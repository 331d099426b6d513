"""The few operations that every network is made of, as functions of explicit parameters.

They compute in the dtype of the parameters: float32 in production, float64 where a test compares derivatives.
"""

from collections.abc import Callable

import tensorflow as tf

from bayesnde_cli.model.parameters import Parameters

# Slope of LeakyReLU below zero, as in the paper's networks.
LEAKY_SLOPE = 0.2
# Added to the variance in LayerNorm, so that a constant row does not divide by zero.
LAYER_NORM_EPSILON = 1e-5


def leaky_relu(x: tf.Tensor) -> tf.Tensor:
    """max(x, 0.2 x)."""
    return tf.nn.leaky_relu(x, LEAKY_SLOPE)


ACTIVATIONS: dict[str, Callable[[tf.Tensor], tf.Tensor]] = {
    "leaky_relu": leaky_relu,
    "elu": tf.nn.elu,
    "silu": tf.nn.silu,
    "tanh": tf.tanh,
}


def dense_shapes(name: str, n_in: int, n_out: int) -> dict[str, tuple[int, ...]]:
    """The parameters of `dense`."""
    return {f"{name}/kernel": (n_in, n_out), f"{name}/bias": (n_out,)}


def dense(parameters: Parameters, name: str, x: tf.Tensor) -> tf.Tensor:
    """x W + b. (n, n_in) -> (n, n_out)."""
    return tf.matmul(x, parameters[f"{name}/kernel"]) + parameters[f"{name}/bias"]


def layer_norm_shapes(name: str, width: int) -> dict[str, tuple[int, ...]]:
    """The parameters of `layer_norm`."""
    return {f"{name}/gain": (width,), f"{name}/bias": (width,)}


def layer_norm(parameters: Parameters, name: str, x: tf.Tensor) -> tf.Tensor:
    """gain (x - m) / sqrt(v + 1e-5) + bias, with mean m and variance v of each row (Ba et al. 2016). (n, width)."""
    centred = x - tf.reduce_mean(x, axis=-1, keepdims=True)  # (n, width)
    variance = tf.reduce_mean(tf.square(centred), axis=-1, keepdims=True)  # (n, 1)
    return (
        parameters[f"{name}/gain"] * centred * tf.math.rsqrt(variance + LAYER_NORM_EPSILON) + parameters[f"{name}/bias"]
    )


def joined(x: tf.Tensor, y: tf.Tensor | None) -> tf.Tensor:
    """The columns of x, then those of y, if there is a y. (n, width + n_classes)."""
    return x if y is None else tf.concat([x, y], axis=-1)


def as_rows(x: tf.Tensor, y: tf.Tensor | None, n_in: int, n_classes: int) -> tuple[tf.Tensor, tf.Tensor | None]:
    """x and y with all leading axes flattened to one, y repeated to match. (n, n_in) and (n, n_classes) or None.

    One tall matrix product is several times faster than a batch of small ones. y has as many axes as x, each of the
    same length or 1: (rows, 1, n_classes) goes with (rows, chains, n_in). Aligning axes from the right, as NumPy
    would, could take rows for chains.
    """
    if x.shape[-1] != n_in:
        raise ValueError(f"expected an input of {n_in} columns, got shape {x.shape}")
    if (y is None) != (n_classes == 0):
        raise ValueError(f"expected {n_classes} classes, got {'no y' if y is None else f'y of shape {y.shape}'}")
    if y is None:
        return tf.reshape(x, [-1, n_in]), None
    if y.shape[-1] != n_classes or len(y.shape) != len(x.shape):
        raise ValueError(f"expected y of {n_classes} classes with the axes of x {x.shape}, got shape {y.shape}")
    y = tf.broadcast_to(y, tf.concat([tf.shape(x)[:-1], [n_classes]], axis=0))
    return tf.reshape(x, [-1, n_in]), tf.reshape(y, [-1, n_classes])


def like(rows: tf.Tensor, x: tf.Tensor) -> tf.Tensor:
    """The rows under the leading axes of x. (n, n_out) -> (…, n_out)."""
    return tf.reshape(rows, tf.concat([tf.shape(x)[:-1], [rows.shape[-1]]], axis=0))
