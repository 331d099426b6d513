"""Maximum mean discrepancies with Gaussian kernels: column by column, and of whole rows.

With x the n real and y the m generated rows, both are

    mean_ab k(x_a, x_b) + mean_ab k(y_a, y_b) - 2 mean_ab k(x_a, y_b)

averaged over several bandwidths (paper, S2). All bandwidths of a kernel are integer powers of the widest, so one
exponential per pair serves them all. Value and gradient come out of the same pass; the gradient is for the generated
rows alone, as the real ones are data. Shapes must be static.
"""

from collections.abc import Callable

import tensorflow as tf

from bayesnde_cli.training.standardise import pooled_standardised

# XLA rewrites exp(a) * exp(a) as exp(a + a), which would make every power an exponential again. It does not look
# behind a maximum, and this floor is far below what a sum of kernels can see.
KERNEL_FLOOR = 1e-30


@tf.custom_gradient
def marginal_mmd(real: tf.Tensor, generated: tf.Tensor) -> tuple[tf.Tensor, Callable]:
    """The one-dimensional discrepancy averaged over columns and the bandwidths 0.05, 0.1, 0.2, 0.5, 1. (n, p), (m, p).

    The paper's L_MMD,marg; and its prior-predictive L_MMD,PP, when `generated` comes from fresh draws of the prior.
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

    # One column at a time: its kernel matrix stays in the cache, where all p of them would not. The column is carried
    # by the loop: cut out inside of it, the cut would be fused into every kernel and none of them be vectorised.
    columns = tf.transpose(tf.concat([real, generated], axis=0))  # (p, n + m)

    def next_column(
        j: tf.Tensor, column: tf.Tensor, total: tf.Tensor, pulls: tf.TensorArray
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor, tf.TensorArray]:
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
    # A discrepancy is a squared norm: the maximum removes only what rounding leaves below 0.
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
    """What a pair (generated row, any row) counts in the value, and in the gradient for the first. (n + m,) each.

    A pair of generated rows comes twice, (a, b) and (b, a): its gradient counts double.
    """
    cross = tf.fill([n], tf.constant(-2.0 / (n * m), dtype))
    inner = tf.fill([m], tf.constant(1.0 / m**2, dtype))
    return tf.concat([cross, inner], axis=0), tf.concat([cross, 2.0 * inner], axis=0)


def _total(kernel: tf.Tensor, weight: tf.Tensor) -> tf.Tensor:
    """The weighted sum of a kernel matrix. As a product with a vector it is vectorised; as a plain sum it is not."""
    return tf.reduce_sum(tf.linalg.matvec(kernel, weight))
