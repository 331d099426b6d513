"""Parameters are plain data: a flat, ordered mapping from a name to a float32 tensor.

No variable hides inside a network. A step takes parameters and returns parameters, so a whole epoch can be one
compiled loop, and a checkpoint is these arrays. The last word of a name says what the parameter is and how it starts:

    block2/dense1/kernel    (inputs, outputs)    Glorot-uniform
    block2/dense1/bias      (outputs,)           zeros
    block2/norm1/gain       (outputs,)           ones
    conv1/kernel            (k, k, inputs, outputs)    Glorot-uniform
    norm1/moving_mean       (outputs,)           zeros; a statistic of batches, which no gradient moves
    norm1/moving_variance   (outputs,)           ones; likewise
"""

from collections.abc import Callable, Mapping
from math import prod

import numpy as np
import tensorflow as tf

from bayesnde_cli.errors import BadArtifact
from bayesnde_cli.rng import generator

Parameters = Mapping[str, tf.Tensor]
Shapes = Mapping[str, tuple[int, ...]]

_CONSTANT: dict[str, Callable[..., np.ndarray]] = {
    "bias": np.zeros, "gain": np.ones, "moving_mean": np.zeros, "moving_variance": np.ones
}  # fmt: skip


def initial(shapes: Shapes, seed: int, network: str) -> dict[str, tf.Tensor]:
    """First values for parameters of these shapes; each draws at its own address `("model", network, name)`.

    So two networks of one run start apart, and a parameter starts equal on every machine, whatever else is there.
    """
    return {name: tf.constant(_first_value(name, shape, seed, network)) for name, shape in shapes.items()}


def glorot_limit(n_in: int, n_out: int) -> float:
    """sqrt(6 / (n_in + n_out)): kernels are uniform between minus and plus this (Glorot and Bengio 2010, eq. 16)."""
    return float(np.sqrt(6.0 / (n_in + n_out)))


def is_statistic(name: str) -> bool:
    """Whether a parameter is a statistic of batches."""
    return name.rpartition("/")[2].startswith("moving_")


def count(parameters: Parameters) -> int:
    """How many numbers the parameters hold."""
    return sum(prod(value.shape) for value in parameters.values())


def global_norm(parameters: Parameters) -> tf.Tensor:
    """The Euclidean length of all parameters (or gradients) laid end to end. Scalar."""
    # By name: a mapping that was stored and read back may have another order, and sums another last bit.
    return tf.sqrt(tf.add_n([tf.reduce_sum(tf.square(parameters[name])) for name in sorted(parameters)]))


def to_numpy(parameters: Parameters) -> dict[str, np.ndarray]:
    """The same mapping as NumPy arrays, to be stored."""
    return {name: np.asarray(value) for name, value in parameters.items()}


def from_numpy(arrays: Mapping[str, np.ndarray], shapes: Shapes) -> dict[str, tf.Tensor]:
    """The stored arrays as tensors, in the order of `shapes`; refused if they are not of this network."""
    wrong = [f"missing: {name}" for name in shapes if name not in arrays]
    wrong += [f"unknown: {name}" for name in arrays if name not in shapes]
    for name in shapes.keys() & arrays.keys():
        found, expected = _kind(arrays[name].dtype, arrays[name].shape), _kind(np.dtype(np.float32), shapes[name])
        if found != expected:
            wrong.append(f"{name}: {found}, expected {expected}")
    if wrong:
        raise BadArtifact(
            "the stored weights do not fit the network",
            found=sorted(wrong),
            hint="use the settings with which they were trained, or train again",
        )
    return {name: tf.constant(arrays[name]) for name in shapes}


def _first_value(name: str, shape: tuple[int, ...], seed: int, network: str) -> np.ndarray:
    what = name.rpartition("/")[2]
    if what == "kernel":
        # One rounding per operation: `Generator.uniform` may be compiled to a fused multiply-add on some machines.
        unit = 2.0 * generator(seed, "model", network, name).random(shape) - 1.0
        field = prod(shape[:-2])  # the pixels of a convolution's kernel
        return (glorot_limit(field * shape[-2], field * shape[-1]) * unit).astype(np.float32)
    return _CONSTANT[what](shape, np.float32)


def _kind(dtype: np.dtype, shape: tuple[int, ...]) -> str:
    return f"{dtype} ({', '.join(map(str, shape))})"
