"""The operations that networks are made of, as functions of explicit parameters, and the initial parameters.

Parameters are a flat mapping from names to float32 tensors, so that an epoch can be one compiled loop and a checkpoint
is these arrays. The last part of a name says what the parameter is and how it is initialised:

    block2/dense1/kernel    (inputs, outputs)    Glorot-uniform
    block2/dense1/bias      (outputs,)           zeros
    block2/norm1/gain       (outputs,)           ones
    conv1/kernel            (k, k, inputs, outputs)    Glorot-uniform
    norm1/moving_mean       (outputs,)           zeros; a statistic of batches, without a gradient
    norm1/moving_variance   (outputs,)           ones; likewise

A batch of images is (height, n, width, channels): the same row of all images lies together, so that a shift by a row is
not a copy. Convolutions are matrix products, as XLA has no fast convolution for a CPU inside a loop: there, a step of
the paper's MNIST decoder took 30 times as long with `tf.nn.conv2d` as outside, and 20 times as long as this."""

from collections.abc import Callable, Mapping, Sequence
from math import prod, sqrt
from typing import Any

import numpy as np
import tensorflow as tf

from bayesnde_cli.rng import generator

Parameters = Mapping[str, tf.Tensor]
Shape = tuple[int, ...]
# Statistics of a batch by the name of their parameter, recorded by a network in training.
Statistics = dict[str, tf.Tensor]

# Added to the variance in layer and in batch normalisation.
LAYER_NORM_EPSILON, BATCH_NORM_EPSILON = 1e-5, 1e-3

ACTIVATIONS: dict[str, Callable[[tf.Tensor], tf.Tensor]] = {
    "leaky_relu": lambda x: tf.nn.leaky_relu(x, 0.2),  # the slope of the paper's networks
    "elu": tf.nn.elu,
    "silu": tf.nn.silu,
    "tanh": tf.tanh,
}


class Blueprint(dict[str, Any]):
    """The shapes of a network's parameters, by name: an operation called with a blueprint adds those that it needs."""

    n_products = 0  # multiplications: each parameter as often as it is used for one row

    def add(self, name: str, shape: Shape, n_uses: int) -> tf.Tensor:
        """Record a parameter and return zeros in its place."""
        self[name] = shape
        self.n_products += n_uses * prod(shape)
        return tf.zeros(shape)


def _get(parameters: Parameters, name: str, shape: Shape, n_uses: int = 1) -> tf.Tensor:
    return parameters.add(name, shape, n_uses) if isinstance(parameters, Blueprint) else parameters[name]


def initialise(shapes: Mapping[str, Shape], seed: int, network: str) -> dict[str, tf.Tensor]:
    """Initial values of parameters of these shapes, each drawn at its own address `("model", network, name)`.

    Kernels are uniform within sqrt(6 / (n_in + n_out)) (Glorot and Bengio 2010, eq. 16).
    """

    def value(name: str, shape: Shape) -> np.ndarray:
        if not name.endswith("/kernel"):
            return np.full(shape, name.endswith(("/gain", "/moving_variance")), np.float32)
        unit = 2.0 * generator(seed, "model", network, name).random(shape) - 1.0
        n_pixels = prod(shape[:-2])  # of a convolution's kernel
        return (sqrt(6.0 / (n_pixels * shape[-2] + n_pixels * shape[-1])) * unit).astype(np.float32)

    return {name: tf.constant(value(name, shape)) for name, shape in shapes.items()}


def is_statistic(name: str) -> bool:
    """Whether a parameter is a statistic of batches."""
    return name.rpartition("/")[2].startswith("moving_")


def global_norm(parameters: Parameters) -> tf.Tensor:
    """The Euclidean norm of all parameters (or gradients) together. Scalar."""
    # Sorted: a mapping that was stored and read back may be in another order, which changes the last bit of a sum.
    return tf.sqrt(tf.add_n([tf.reduce_sum(tf.square(parameters[name])) for name in sorted(parameters)]))


def dense(parameters: Parameters, name: str, x: tf.Tensor, n_out: int) -> tf.Tensor:
    """x W + b. (n, n_in) -> (n, n_out)."""
    kernel = _get(parameters, f"{name}/kernel", (x.shape[1], n_out), x.shape[0])
    return tf.matmul(x, kernel) + _get(parameters, f"{name}/bias", (n_out,), x.shape[0])


def layer_norm(parameters: Parameters, name: str, x: tf.Tensor) -> tf.Tensor:
    """gain (x - m) / sqrt(v + 1e-5) + bias, with mean m and variance v of each row (Ba et al. 2016). (n, width)."""
    centred = x - tf.reduce_mean(x, axis=-1, keepdims=True)  # (n, width)
    variance = tf.reduce_mean(tf.square(centred), axis=-1, keepdims=True)  # (n, 1)
    gain, bias = (_get(parameters, f"{name}/{what}", (x.shape[1],)) for what in ("gain", "bias"))
    return gain * centred * tf.math.rsqrt(variance + LAYER_NORM_EPSILON) + bias


def batch_norm(parameters: Parameters, name: str, x: tf.Tensor, statistics: Statistics | None) -> tf.Tensor:
    """gain (x - m) / sqrt(v + 1e-3) + bias, with mean m and variance v of each channel (Ioffe and Szegedy 2015).

    In training they are those of the batch, recorded in `statistics` (the mean of both if the network is used twice).
    Without `statistics` they are the frozen ones of the parameters, and rows do not depend on each other.
    """
    gain, bias = (_get(parameters, f"{name}/{what}", (x.shape[-1],)) for what in ("gain", "bias"))
    moving = [f"{name}/moving_mean", f"{name}/moving_variance"]
    if statistics is None:
        mean, variance = (tf.stop_gradient(_get(parameters, key, (x.shape[-1],))) for key in moving)
    else:
        mean, variance = tf.nn.moments(x, axes=list(range(len(x.shape) - 1)))
        for key, value in zip(moving, map(tf.stop_gradient, (mean, variance)), strict=True):
            statistics[key] = 0.5 * (statistics[key] + value) if key in statistics else value
    scale = gain * tf.math.rsqrt(variance + BATCH_NORM_EPSILON)  # (width,)
    return x * scale + (bias - mean * scale)


def join(x: tf.Tensor, y: tf.Tensor | None) -> tf.Tensor:
    """The columns of x and those of y, if there is a y. (n, width + n_classes)."""
    return x if y is None else tf.concat([x, y], axis=-1)


def as_rows(x: tf.Tensor, y: tf.Tensor | None, n_in: int) -> tuple[tf.Tensor, tf.Tensor | None]:
    """x and y with all leading axes flattened to one, y repeated to match. (n, n_in) and (n, n_classes) or None.

    One tall matrix product is several times faster than a batch of small ones. y has as many axes as x, each of the
    same length or 1. Aligning axes from the right, as NumPy does, could confuse rows and chains.
    """
    if x.shape[-1] != n_in or (y is not None and len(y.shape) != len(x.shape)):
        raise ValueError(f"expected x of {n_in} columns and y with as many axes, got {x.shape} and {y}")
    if y is not None:
        y = tf.broadcast_to(y, tf.concat([tf.shape(x)[:-1], [y.shape[-1]]], axis=0))
        y = tf.reshape(y, [-1, y.shape[-1]])
    return tf.reshape(x, [-1, n_in]), y


def like(rows: tf.Tensor, x: tf.Tensor) -> tf.Tensor:
    """Rows reshaped to the leading axes of x. (n, n_out) -> (…, n_out)."""
    return tf.reshape(rows, tf.concat([tf.shape(x)[:-1], [rows.shape[-1]]], axis=0))


# Images.


def as_images(flat: tf.Tensor, shape: Sequence[int], y: tf.Tensor | None = None) -> tf.Tensor:
    """Flat rows as images of this shape, each class as another channel. (n, h w c) -> (h, n, w, c + classes)."""
    x = tf.transpose(tf.reshape(flat, [-1, *shape]), [1, 0, 2, 3])
    if y is None:
        return x
    everywhere = tf.broadcast_to(y[None, :, None, :], tf.concat([tf.shape(x)[:3], [y.shape[1]]], axis=0))
    return tf.concat([x, everywhere], axis=-1)


def flatten(x: tf.Tensor) -> tf.Tensor:
    """Images as flat rows. (h, n, w, c) -> (n, h w c)."""
    return tf.reshape(tf.transpose(x, [1, 0, 2, 3]), [-1, x.shape[0] * x.shape[2] * x.shape[3]])


def halve(size: int) -> int:
    """The side of an image after a convolution of stride 2."""
    return -(-size // 2)


def conv(parameters: Parameters, name: str, x: tf.Tensor, *, kernel: tuple[int, int], stride: int) -> tf.Tensor:
    """A zero-padded convolution of kernel (size, n_out). (h, n, w, n_in) -> (h / stride, n, w / stride, n_out)."""
    (size, n_out), n_in = kernel, x.shape[3]
    n_pixels = -(-x.shape[0] // stride) * -(-x.shape[2] // stride)
    weights = _get(parameters, f"{name}/kernel", (size, size, n_in, n_out), n_pixels)
    bias = _get(parameters, f"{name}/bias", (n_out,), n_pixels)
    around = _around(x, size, stride, axis=2)  # (h, n, w, size n_in)
    if stride > 1:
        # A product with the patches of the image.
        patches = _around(around, size, stride, axis=0)
        return _product(patches, tf.reshape(weights, [size * size * n_in, n_out]), [n_out]) + bias
    # One product for all rows of the kernel, whose results are added up.
    matrix = tf.reshape(tf.transpose(weights, [1, 2, 0, 3]), [size * n_in, size * n_out])
    taps = _product(around, matrix, [size, n_out])
    before = (size - 1) // 2
    padded = tf.pad(taps, [[before, size - 1 - before], *[[0, 0]] * 4])
    # Row a of the kernel sees the image a - before rows further down.
    return tf.add_n([padded[row : row + x.shape[0], :, :, row] for row in range(size)]) + bias


def transposed_conv(parameters: Parameters, name: str, x: tf.Tensor, n_out: int, sides: tuple[int, int]) -> tf.Tensor:
    """The transpose of a convolution of stride 2 and size 3. (h, n, w, n_in) -> (height, n, width, n_out).

    Pixel i of a side adds to pixels 2 i, 2 i + 1 and 2 i + 2 of the larger image, of which the first `height` or
    `width`, given as `sides`, are kept.
    """
    (height, width), n_in, n_pixels = sides, x.shape[3], x.shape[0] * x.shape[2]
    kernel = _get(parameters, f"{name}/kernel", (3, 3, n_in, n_out), n_pixels)
    matrix = tf.reshape(tf.transpose(kernel, [2, 0, 1, 3]), [n_in, 9 * n_out])
    taps = _product(x, matrix, [3, 3, n_out])  # (h, n, w, 3, 3, n_out): what each pixel adds to nine others
    rows = tf.stack([taps[..., 0, :, :] + _shift(taps[..., 2, :, :], 0), taps[..., 1, :, :]], axis=1)
    rows = tf.reshape(rows, [2 * x.shape[0], -1, x.shape[2], 3, n_out])[:height]
    columns = tf.stack([rows[..., 0, :] + _shift(rows[..., 2, :], 2), rows[..., 1, :]], axis=3)
    columns = tf.reshape(columns, [height, -1, 2 * x.shape[2], n_out])[:, :, :width]
    return columns + _get(parameters, f"{name}/bias", (n_out,), n_pixels)


def _around(x: tf.Tensor, size: int, stride: int, *, axis: int) -> tf.Tensor:
    """Every stride-th pixel along an axis with its `size` neighbours as channels, zeros beyond the border."""
    length = x.shape[axis]
    last = (-(-length // stride) - 1) * stride
    n_beyond = max(last + size - length, 0)
    pads = [[0, 0]] * 4
    pads[axis] = [n_beyond // 2, n_beyond - n_beyond // 2]
    padded, before = tf.pad(x, pads), (slice(None),) * axis
    return tf.concat([padded[(*before, slice(tap, tap + last + 1, stride))] for tap in range(size)], axis=-1)


def _product(x: tf.Tensor, matrix: tf.Tensor, shape: Sequence[int]) -> tf.Tensor:
    """The channels of every pixel times a matrix. (h, n, w, n_in) -> (h, n, w, *shape)."""
    return tf.reshape(tf.matmul(tf.reshape(x, [-1, matrix.shape[0]]), matrix), [x.shape[0], -1, x.shape[2], *shape])


def _shift(x: tf.Tensor, axis: int) -> tf.Tensor:
    """Shift by one along an axis, with zeros first."""
    pads = [[0, 0]] * len(x.shape)
    pads[axis] = [1, 0]
    return tf.pad(x[(*(slice(None),) * axis, slice(-1))], pads)
