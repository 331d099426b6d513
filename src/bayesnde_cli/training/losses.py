"""The terms of the encoding generative objective that need no kernel: each a scalar from tensors, no network inside.

The paper's appendix S2. `marginal_mmd` and `joint_mmd` stand in `mmd.py`, `sliced_wasserstein` in its own file.
Expectations are means over the rows of a batch.
"""

import math

import tensorflow as tf

# Targets of the least-squares adversarial game: the labels 1 and 0, smoothed (paper, S2).
REAL_TARGET = 0.9
FAKE_TARGET = 0.1

# The log-variance term pulls the decoder's variance towards this value; the small number is the paper's (S2).
VARIANCE_TARGET = 0.01
LOG_VARIANCE_SHIFT = 1e-8

# A float32 column whose standard deviation is below this share of its size holds rounding errors only.
CONSTANT_COLUMN = 1e-6


def discriminator_loss(real_score: tf.Tensor, fake_score: tf.Tensor) -> tf.Tensor:
    """What one discriminator minimises.

    1/2 { E[(0.9 - D(real))^2] + E[(0.1 - D(fake))^2] }; the paper's L_D is this for D_x plus this for D_z.
    In data space real is x and fake is G(z); in latent space real is z and fake is E(x). Scores of any shape.
    """
    return 0.5 * (_mean_square(real_score - REAL_TARGET) + _mean_square(fake_score - FAKE_TARGET))


def adversarial_loss(fake_score: tf.Tensor) -> tf.Tensor:
    """What generator or encoder minimise against a discriminator: E[(0.9 - D(fake))^2]."""
    return _mean_square(fake_score - REAL_TARGET)


def reconstruction_loss(original: tf.Tensor, rebuilt: tf.Tensor, *, n_columns: int) -> tf.Tensor:
    """The mean over rows of |original - rebuilt|^2 / p. (rows, p) or (rows, d), twice.

    The paper divides by p, the number of columns of x, in *both* spaces, and so do we: with d < p the latent term is
    d/p times the mean over coordinates. `n_columns` is therefore p for z too.
    """
    squared_norm = tf.reduce_sum(tf.square(original - rebuilt), axis=1)  # (rows,)
    return tf.reduce_mean(squared_norm) / n_columns


def correlation_loss(real: tf.Tensor, rebuilt: tf.Tensor) -> tf.Tensor:
    """The mean over all p^2 pairs of columns of (Corr(rebuilt) - Corr(real))^2. (rows, p) twice.

    The paper rebuilds x as G(E(x)). Its public code compares with samples G(z) instead; hand those in for that.
    """
    return _mean_square(correlation_matrix(rebuilt) - correlation_matrix(real))


def correlation_matrix(x: tf.Tensor) -> tf.Tensor:
    """The correlations of the columns. (rows, p) -> (p, p).

    The correlation of a constant column is 0/0; we take 0, also with itself, so that values and gradients stay finite.
    """
    centred = x - tf.reduce_mean(x, axis=0)
    variance = tf.reduce_mean(tf.square(centred), axis=0)  # (p,)
    is_constant = variance <= CONSTANT_COLUMN**2 * tf.reduce_mean(tf.square(x), axis=0)
    # The inner choice keeps 1/sqrt(0) out of the gradient too; a `where` around the quotient would not.
    standardised = centred / tf.sqrt(tf.where(is_constant, tf.ones_like(variance), variance))
    standardised = tf.where(is_constant, tf.zeros_like(x), standardised)
    return tf.matmul(standardised, standardised, transpose_a=True) / x.shape[0]


def log_variance_loss(variance: tf.Tensor) -> tf.Tensor:
    """The mean of (log(sigma^2 + 1e-8) - log 0.01)^2 over prior draws and columns. (rows, p)."""
    return _mean_square(tf.math.log(variance + LOG_VARIANCE_SHIFT) - math.log(VARIANCE_TARGET))


def squared_variance_loss(variance: tf.Tensor) -> tf.Tensor:
    """The mean of (sigma^2)^2 over prior draws and columns. (rows, p).

    The term behind `alpha` in the paper's table of real-data weights, which its text never defines; its public code
    does, like this.
    """
    return _mean_square(variance)


def _mean_square(values: tf.Tensor) -> tf.Tensor:
    return tf.reduce_mean(tf.square(values))
