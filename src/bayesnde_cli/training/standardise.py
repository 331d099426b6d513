"""The common scale on which a batch of data and a batch of generated rows are compared."""

import tensorflow as tf

# Added to the pooled variance (paper, S2).
VARIANCE_SHIFT = 1e-6


def pooled_standardised(real: tf.Tensor, generated: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Both batches minus the pooled mean, over sqrt(pooled variance + 1e-6), per column. (n, p), (m, p) -> the same.

    Mean and variance are those of the pooled rows and count as constants (paper, S2): no gradient flows through them.
    """
    mean, variance = tf.nn.moments(tf.stop_gradient(tf.concat([real, generated], axis=0)), axes=[0])  # (p,)
    scale = tf.math.rsqrt(variance + VARIANCE_SHIFT)
    return (real - mean) * scale, (generated - mean) * scale
