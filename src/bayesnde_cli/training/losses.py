"""Terms of the paper's losses, as functions of batches: discrepancies between samples, and the rest of L_EGM.

The discrepancies compare a batch of data with a batch of generated rows (paper, S2); their gradients are for the
generated rows alone. Expectations are means over the rows of a batch, and shapes must be static."""

import math
from collections.abc import Callable

import numpy as np
import tensorflow as tf

from bayesnde_cli.rng import generator

# Added to the pooled variance (paper, S2).
VARIANCE_SHIFT = 1e-6


def pooled_standardised(real: tf.Tensor, generated: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Both batches minus the pooled mean, over sqrt(pooled variance + 1e-6), per column. (n, p), (m, p) -> the same.

    Mean and variance are those of the pooled rows and count as constants (paper, S2): no gradient flows through them.
    """
    mean, variance = tf.nn.moments(tf.stop_gradient(tf.concat([real, generated], axis=0)), axes=[0])  # (p,)
    scale = tf.math.rsqrt(variance + VARIANCE_SHIFT)
    return (real - mean) * scale, (generated - mean) * scale


# Maximum mean discrepancies with Gaussian kernels, by column and of whole rows. For n real rows x and m generated rows
# y both are
#
#     mean_ab k(x_a, x_b) + mean_ab k(y_a, y_b) - 2 mean_ab k(x_a, y_b)
#
# averaged over several bandwidths (paper, S2). All bandwidths of a kernel are integer powers of the widest, so one
# exponential per pair serves them all. Value and gradient come from the same pass.

# XLA rewrites exp(a) * exp(a) as exp(a + a), which would make every power an exponential again. It does not
# look behind a maximum, and this floor is far below the rounding error of a sum of kernels.
KERNEL_FLOOR = 1e-30


@tf.custom_gradient
def marginal_mmd(real: tf.Tensor, generated: tf.Tensor) -> tuple[tf.Tensor, Callable]:
    """The one-dimensional discrepancy averaged over columns and bandwidths, the paper's L_MMD,marg. (n, p), (m, p).

    With `generated` from fresh draws of the prior it is the paper's prior-predictive L_MMD,PP.
    """
    n, m, p = real.shape[0], generated.shape[0], real.shape[1]
    value_weight, gradient_weight = _pair_weights(n, m, real.dtype)

    def one_column(column: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        x, y = column[:n], column[n:]
        difference = y[:, None] - column[None, :]  # (m, n + m)
        kernel, slope = _marginal_kernel(tf.square(difference))
        real_kernel, _ = _marginal_kernel(tf.square(x[:, None] - x[None, :]))  # (n, n)
        value = _total(kernel, value_weight) + _total(real_kernel, tf.ones_like(x)) / n**2
        return value, tf.linalg.matvec(2.0 * slope * difference, gradient_weight)

    # One column at a time: its kernel matrix fits into the cache, all p would not. The loop carries the column: a slice
    # inside the loop would be fused into every kernel, and none would be vectorised.
    columns = tf.transpose(tf.concat([real, generated], axis=0))  # (p, n + m)

    def next_column(j, column, total, pulls):  # type: ignore[no-untyped-def]
        value, pull = one_column(column)
        return j + 1, tf.gather(columns, tf.minimum(j + 1, p - 1)), total + value, pulls.write(j, pull)

    start = (0, columns[0], tf.zeros([], real.dtype), tf.TensorArray(real.dtype, p, element_shape=[m]))
    _, _, total, pulls = tf.while_loop(lambda j, *_: j < p, next_column, start)
    gradient = tf.transpose(pulls.stack())  # (m, p)

    def gradients(upstream: tf.Tensor) -> tuple[None, tf.Tensor]:
        return None, upstream * gradient / p

    return total / p, gradients


def joint_mmd(real: tf.Tensor, generated: tf.Tensor) -> tf.Tensor:
    """The discrepancy of whole rows averaged over the scales 0.5, 1, 2, and never below 0. (n, p), (m, p).

    The paper's L_MMD,joint: rows standardised by the pooled moments, kernel exp(-|u - v|^2 / (2 s p)).
    """
    # A discrepancy is a squared norm: only rounding can take it below 0.
    return tf.maximum(_joint_mmd(*pooled_standardised(real, generated)), 0.0)


@tf.custom_gradient
def _joint_mmd(x: tf.Tensor, y: tf.Tensor) -> tuple[tf.Tensor, Callable]:
    n, m, p = x.shape[0], y.shape[0], x.shape[1]
    value_weight, gradient_weight = _pair_weights(n, m, x.dtype)
    rows = tf.concat([x, y], axis=0)  # (n + m, p)
    kernel, slope = _joint_kernel(_squared_distances(y, rows), p)  # (m, n + m)
    real_kernel, _ = _joint_kernel(_squared_distances(x, x), p)  # (n, n)

    def gradients(upstream: tf.Tensor) -> tuple[None, tf.Tensor]:
        pull = 2.0 * slope * gradient_weight  # (m, n + m)
        # The sum over rows r of pull_r (y - r), as two products.
        return None, upstream * (y * tf.reduce_sum(pull, axis=1, keepdims=True) - tf.matmul(pull, rows))

    return _total(kernel, value_weight) + _total(real_kernel, tf.ones([n], x.dtype)) / n**2, gradients


def _marginal_kernel(squared: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """The mean of exp(-squared / (2 h^2)) over h, and its derivative with respect to the squared distance.

    h = 1, 0.5, 0.2, 0.1 and 0.05 are the powers 1, 4, 25, 100 and 400 of h = 1.
    """
    k1 = tf.maximum(tf.exp(-0.5 * squared), KERNEL_FLOOR)
    k4 = tf.square(tf.square(k1))
    k8 = tf.square(k4)
    k25 = tf.square(k8) * k8 * k1
    k100 = tf.square(tf.square(k25))
    k400 = tf.square(tf.square(k100))
    kernel = 0.2 * (k1 + k4 + k25 + k100 + k400)
    return kernel, -0.1 * (k1 + 4.0 * k4 + 25.0 * k25 + 100.0 * k100 + 400.0 * k400)


def _joint_kernel(squared: tf.Tensor, n_columns: int) -> tuple[tf.Tensor, tf.Tensor]:
    """The mean of exp(-squared / (2 s p)) over s, and its derivative with respect to the squared distance.

    s = 2, 1 and 0.5 are the powers 1, 2 and 4 of s = 2.
    """
    rate = 1.0 / (2.0 * 2.0 * n_columns)
    k1 = tf.maximum(tf.exp(-rate * squared), KERNEL_FLOOR)
    k2 = tf.square(k1)
    k4 = tf.square(k2)
    return (k1 + k2 + k4) / 3.0, -rate / 3.0 * (k1 + 2.0 * k2 + 4.0 * k4)


def _squared_distances(u: tf.Tensor, v: tf.Tensor) -> tf.Tensor:
    """|u_a - v_b|^2 by one matrix product. (a, p), (b, p) -> (a, b)."""
    u_square = tf.reduce_sum(tf.square(u), axis=1)[:, None]
    v_square = tf.reduce_sum(tf.square(v), axis=1)[None, :]
    return tf.maximum(u_square + v_square - 2.0 * tf.matmul(u, v, transpose_b=True), 0.0)


def _pair_weights(n: int, m: int, dtype: tf.DType) -> tuple[tf.Tensor, tf.Tensor]:
    """Weights of a pair (generated row, any row) in the value, and in the gradient for the first. (n + m,) each.

    A pair of generated rows occurs twice, as (a, b) and (b, a): its gradient counts double.
    """
    cross = tf.fill([n], tf.constant(-2.0 / (n * m), dtype))
    inner = tf.fill([m], tf.constant(1.0 / m**2, dtype))
    return tf.concat([cross, inner], axis=0), tf.concat([cross, 2.0 * inner], axis=0)


def _total(kernel: tf.Tensor, weight: tf.Tensor) -> tf.Tensor:
    """The weighted sum of a kernel matrix. A product with a vector is vectorised, a plain sum is not."""
    return tf.reduce_sum(tf.linalg.matvec(kernel, weight))


# Directions of the sliced Wasserstein distance, L of the paper (S2).
N_DIRECTIONS = 64


def slicing_directions(n_columns: int, *, seed: int) -> np.ndarray:
    """Directions of the projections, unit vectors in columns. (p, 64), float32.

    The paper's: the p coordinate axes, then random unit vectors that stay fixed during training. With p > 64 all are
    random: the term still responds to dependence, and single columns have terms of their own.
    """
    axes = np.eye(n_columns) if n_columns <= N_DIRECTIONS else np.empty((n_columns, 0))
    shape = n_columns, N_DIRECTIONS - axes.shape[1]
    random = generator(seed, "training", "slicing directions").standard_normal(shape)
    random /= np.linalg.norm(random, axis=0)
    return np.concatenate([axes, random], axis=1).astype(np.float32)


def sliced_wasserstein(real: tf.Tensor, generated: tf.Tensor, directions: tf.Tensor) -> tf.Tensor:
    """The mean over directions and ranks of (u_(i) - v_(i))^2, u and v the sorted projections. (n, p) twice, (p, L).

    The paper's L_SW: rows standardised by the pooled moments. The gradient is for the generated rows alone.
    """
    x, y = pooled_standardised(real, generated)
    return _squared_wasserstein(tf.matmul(x, directions), tf.matmul(y, directions))


@tf.custom_gradient
def _squared_wasserstein(u: tf.Tensor, v: tf.Tensor) -> tuple[tf.Tensor, Callable]:
    """The mean squared distance between the sorted columns. (n, L) twice."""
    n, n_directions = v.shape
    u_sorted, _ = sorted_columns(u)
    v_sorted, row_index = sorted_columns(v)
    gap = v_sorted - u_sorted  # (n, L)

    def gradients(upstream: tf.Tensor) -> tuple[None, tf.Tensor]:
        # Return each gap to the row that it came from.
        position = tf.reshape(row_index * n_directions + tf.range(n_directions), [-1, 1])
        returned = tf.scatter_nd(position, tf.reshape(gap, [-1]), [n * n_directions])
        return None, upstream * (2.0 / (n * n_directions)) * tf.reshape(returned, [n, n_directions])

    return tf.reduce_mean(tf.square(gap)), gradients


def sorted_columns(values: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Each column in ascending order, and the row that each value came from. (n, L) -> (n, L), (n, L) int32.

    Batcher's bitonic network (1968): rounds of comparisons between fixed rows, vectorised over columns. Six times
    faster at (256, 64) than XLA's own sort on a CPU.
    """
    n, n_columns = values.shape
    partner, takes_smaller = _bitonic_rounds(n)
    n_rounds, n_padded = partner.shape
    filling = tf.fill([n_padded - n, n_columns], tf.constant(np.inf, values.dtype))  # sorts behind every finite value
    row_index = tf.broadcast_to(tf.range(n_padded)[:, None], [n_padded, n_columns])

    def compare_exchange(step, held, index):  # type: ignore[no-untyped-def]
        other = tf.gather(held, tf.gather(partner, step))
        other_index = tf.gather(index, tf.gather(partner, step))
        # Equal values are not exchanged, so no index is lost.
        swaps = tf.where(tf.gather(takes_smaller, step)[:, None], other < held, other > held)
        return step + 1, tf.where(swaps, other, held), tf.where(swaps, other_index, index)

    _, in_order, index = tf.while_loop(
        lambda step, *_: step < n_rounds, compare_exchange, (0, tf.concat([values, filling], axis=0), row_index)
    )
    return in_order[:n], index[:n]


def _bitonic_rounds(n: int) -> tuple[np.ndarray, np.ndarray]:
    """For each round and row: the row to compare with, and whether to take the smaller value. (rounds, 2^k) each."""
    n_doublings = int(n - 1).bit_length()
    row = np.arange(2**n_doublings)
    partner, takes_smaller = [row], [np.ones(len(row), bool)]  # a first round with oneself, for n = 1
    for block in 2 ** np.arange(1, n_doublings + 1):
        for distance in 2 ** np.arange(int(block).bit_length() - 2, -1, -1):
            partner.append(row ^ distance)
            takes_smaller.append(((row & distance) == 0) == ((row & block) == 0))
    return np.stack(partner).astype(np.int32), np.stack(takes_smaller)


# Other terms of L_EGM (paper, S2).

# Targets of the least-squares adversarial game: the labels 1 and 0, smoothed.
REAL_TARGET, FAKE_TARGET = 0.9, 0.1
# The log-variance term pulls the decoder's variance towards this value; the shift is the paper's.
VARIANCE_TARGET, LOG_VARIANCE_SHIFT = 0.01, 1e-8
# A float32 column whose standard deviation is below this share of its size holds rounding errors only.
CONSTANT_COLUMN = 1e-6


def discriminator_loss(real_score: tf.Tensor, fake_score: tf.Tensor) -> tf.Tensor:
    """1/2 { E[(0.9 - D(real))^2] + E[(0.1 - D(fake))^2] }; the paper's L_D is this for D_x plus this for D_z."""
    return 0.5 * (_mean_square(real_score - REAL_TARGET) + _mean_square(fake_score - FAKE_TARGET))


def adversarial_loss(fake_score: tf.Tensor) -> tf.Tensor:
    """The loss of generator or encoder against a discriminator: E[(0.9 - D(fake))^2]."""
    return _mean_square(fake_score - REAL_TARGET)


def reconstruction_loss(original: tf.Tensor, rebuilt: tf.Tensor, *, n_columns: int) -> tf.Tensor:
    """The mean over rows of |original - rebuilt|^2 / p, with p the columns of x also for latents, as in the paper."""
    return tf.reduce_mean(tf.reduce_sum(tf.square(original - rebuilt), axis=1)) / n_columns


def correlation_loss(real: tf.Tensor, rebuilt: tf.Tensor) -> tf.Tensor:
    """The mean over all p^2 pairs of columns of (Corr(rebuilt) - Corr(real))^2. (rows, p) twice.

    The paper rebuilds x as G(E(x)); its public code compares with samples G(z) instead.
    """
    return _mean_square(correlation_matrix(rebuilt) - correlation_matrix(real))


def correlation_matrix(x: tf.Tensor) -> tf.Tensor:
    """The correlations of the columns. (rows, p) -> (p, p).

    The correlation of a constant column is taken as 0, also with itself, so that values and gradients stay finite.
    """
    centred = x - tf.reduce_mean(x, axis=0)
    variance = tf.reduce_mean(tf.square(centred), axis=0)  # (p,)
    is_constant = variance <= CONSTANT_COLUMN**2 * tf.reduce_mean(tf.square(x), axis=0)
    # The inner `where` keeps 1/sqrt(0) out of the gradient, too; one around the quotient would not.
    standardised = centred / tf.sqrt(tf.where(is_constant, tf.ones_like(variance), variance))
    standardised = tf.where(is_constant, tf.zeros_like(x), standardised)
    return tf.matmul(standardised, standardised, transpose_a=True) / x.shape[0]


def log_variance_loss(variance: tf.Tensor) -> tf.Tensor:
    """The mean of (log(sigma^2 + 1e-8) - log 0.01)^2 over prior draws and columns. (rows, p)."""
    return _mean_square(tf.math.log(variance + LOG_VARIANCE_SHIFT) - math.log(VARIANCE_TARGET))


def squared_variance_loss(variance: tf.Tensor) -> tf.Tensor:
    """The mean of (sigma^2)^2: `alpha` in the paper's table of weights, defined by its public code. (rows, p)."""
    return _mean_square(variance)


def _mean_square(values: tf.Tensor) -> tf.Tensor:
    return tf.reduce_mean(tf.square(values))
