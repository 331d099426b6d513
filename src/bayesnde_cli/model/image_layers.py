"""What networks of images are made of, beside dense layers: convolutions and batch normalisation.

A batch of images is (height, n, width, channels): the rows of all images lie together, so that a shift by a row is no
copy. Convolutions are written as matrix products, as XLA has no fast convolution for a CPU inside a loop: there, a step
of the paper's decoder of MNIST took 30 times as long with `tf.nn.conv2d` as outside, and 20 times as long as this.
"""

from collections.abc import Sequence

import tensorflow as tf

from bayesnde_cli.model.parameters import Parameters

# Added to the variance in batch normalisation.
BATCH_NORM_EPSILON = 1e-3
# Statistics of batches by the name of their parameter, as a network leaves them that is trained on its batches' own.
Statistics = dict[str, tf.Tensor]


def conv_shapes(name: str, n_in: int, n_out: int, size: int) -> dict[str, tuple[int, ...]]:
    """The parameters of `conv` and of `transposed_conv`."""
    return {f"{name}/kernel": (size, size, n_in, n_out), f"{name}/bias": (n_out,)}


def conv(parameters: Parameters, name: str, x: tf.Tensor, *, stride: int) -> tf.Tensor:
    """A convolution with zeros around the image: (h, n, w, n_in) -> (ceil(h / stride), n, ceil(w / stride), n_out)."""
    kernel, bias = parameters[f"{name}/kernel"], parameters[f"{name}/bias"]
    return (_conv_by_rows(kernel, x) if stride == 1 else _conv_by_patches(kernel, x, stride)) + bias


def transposed_conv(parameters: Parameters, name: str, x: tf.Tensor, *, height: int, width: int) -> tf.Tensor:
    """The transpose of a convolution of stride 2 and size 3. (h, n, w, n_in) -> (height, n, width, n_out).

    Pixel i of a side goes to 2 i, 2 i + 1 and 2 i + 2 of one of twice the size, of which the first `height` or `width`
    are kept.
    """
    kernel = parameters[f"{name}/kernel"]
    n_in, n_out = kernel.shape[2:]
    matrix = tf.reshape(tf.transpose(kernel, [2, 0, 1, 3]), [n_in, 9 * n_out])
    taps = _product(x, matrix, [3, 3, n_out])  # (h, n, w, 3, 3, n_out): what each pixel gives to the nine around it
    rows = tf.stack([taps[..., 0, :, :] + _later(taps[..., 2, :, :], 0), taps[..., 1, :, :]], axis=1)
    rows = tf.reshape(rows, [2 * x.shape[0], -1, x.shape[2], 3, n_out])[:height]
    columns = tf.stack([rows[..., 0, :] + _later(rows[..., 2, :], 2), rows[..., 1, :]], axis=3)
    columns = tf.reshape(columns, [height, -1, 2 * x.shape[2], n_out])[:, :, :width]
    return columns + parameters[f"{name}/bias"]


def _conv_by_rows(kernel: tf.Tensor, x: tf.Tensor) -> tf.Tensor:
    """A convolution of stride 1: one product for the taps of all rows of the kernel, which are then added up."""
    size, _, n_in, n_out = kernel.shape
    around = _around(x, size, 1, axis=2)  # (h, n, w, size n_in)
    matrix = tf.reshape(tf.transpose(kernel, [1, 2, 0, 3]), [size * n_in, size * n_out])
    taps = _product(around, matrix, [size, n_out])
    before = (size - 1) // 2
    padded = tf.pad(taps, [[before, size - 1 - before], *[[0, 0]] * 4])
    # Row a of the kernel looks a - before rows further down.
    return tf.add_n([padded[row : row + x.shape[0], :, :, row] for row in range(size)])


def _conv_by_patches(kernel: tf.Tensor, x: tf.Tensor, stride: int) -> tf.Tensor:
    """A convolution as a product with the patches that it looks at."""
    size, _, n_in, n_out = kernel.shape
    patches = _around(_around(x, size, stride, axis=2), size, stride, axis=0)  # (…, rows, columns and n_in)
    return _product(patches, tf.reshape(kernel, [size * size * n_in, n_out]), [n_out])


def _around(x: tf.Tensor, size: int, stride: int, *, axis: int) -> tf.Tensor:
    """Every stride-th pixel along an axis with its `size` neighbours, as further channels, zeros beyond the border."""
    length = x.shape[axis]
    n_out = -(-length // stride)
    n_beyond = max((n_out - 1) * stride + size - length, 0)
    pads = [[0, 0]] * 4
    pads[axis] = [n_beyond // 2, n_beyond - n_beyond // 2]
    padded = tf.pad(x, pads)
    last = (n_out - 1) * stride + 1
    if axis == 0:
        return tf.concat([padded[tap : tap + last : stride] for tap in range(size)], axis=-1)
    return tf.concat([padded[:, :, tap : tap + last : stride] for tap in range(size)], axis=-1)


def _product(x: tf.Tensor, matrix: tf.Tensor, shape: Sequence[int]) -> tf.Tensor:
    """The channels of every pixel times a matrix, its columns in a shape. (h, n, w, n_in) -> (h, n, w, *shape)."""
    return tf.reshape(tf.matmul(tf.reshape(x, [-1, matrix.shape[0]]), matrix), [x.shape[0], -1, x.shape[2], *shape])


def _later(x: tf.Tensor, axis: int) -> tf.Tensor:
    """Everything moved on by one along an axis, zeros first."""
    pads = [[0, 0]] * len(x.shape)
    pads[axis] = [1, 0]
    return tf.pad(x[:-1] if axis == 0 else x[:, :, :-1], pads)


def batch_norm_shapes(name: str, width: int) -> dict[str, tuple[int, ...]]:
    """The parameters of `batch_norm`; the last two are statistics, and no gradient moves them."""
    return {f"{name}/{what}": (width,) for what in ("gain", "bias", "moving_mean", "moving_variance")}


def batch_norm(parameters: Parameters, name: str, x: tf.Tensor, statistics: Statistics | None) -> tf.Tensor:
    """gain (x - m) / sqrt(v + 1e-3) + bias, with mean m and variance v of each channel (Ioffe and Szegedy 2015).

    They are those of the batch, and left in `statistics`, where a network learns (used twice, the mean of both);
    without `statistics` they are the frozen ones of the parameters, so that what comes out of a row does not depend on
    the rows beside it.
    """
    if statistics is None:
        mean, variance = (tf.stop_gradient(parameters[f"{name}/moving_{what}"]) for what in ("mean", "variance"))
    else:
        mean, variance = tf.nn.moments(x, axes=list(range(len(x.shape) - 1)))
        for what, value in (("mean", mean), ("variance", variance)):
            key, value = f"{name}/moving_{what}", tf.stop_gradient(value)
            statistics[key] = 0.5 * (statistics[key] + value) if key in statistics else value
    scale = parameters[f"{name}/gain"] * tf.math.rsqrt(variance + BATCH_NORM_EPSILON)  # (width,)
    return x * scale + (parameters[f"{name}/bias"] - mean * scale)


def tiled(y: tf.Tensor, x: tf.Tensor) -> tf.Tensor:
    """Images with every class as a further channel. (h, n, w, c) and (n, classes) -> (h, n, w, c + classes)."""
    everywhere = tf.broadcast_to(y[None, :, None, :], tf.concat([tf.shape(x)[:3], [y.shape[1]]], axis=0))
    return tf.concat([x, everywhere], axis=-1)


def images(flat: tf.Tensor, shape: Sequence[int]) -> tf.Tensor:
    """Rows as images of this height, width and number of channels. (n, h w c) -> (h, n, w, c)."""
    return tf.transpose(tf.reshape(flat, [-1, *shape]), [1, 0, 2, 3])


def laid_flat(x: tf.Tensor) -> tf.Tensor:
    """Images as rows. (h, n, w, c) -> (n, h w c)."""
    return tf.reshape(tf.transpose(x, [1, 0, 2, 3]), [-1, x.shape[0] * x.shape[2] * x.shape[3]])
