"""The mode of each row's latent posterior, and the curvature there: a start for chains and a first proposal."""

import math
from typing import NamedTuple

import tensorflow as tf

from bayesnde_cli.model.cells import information_share, standard_edges
from bayesnde_cli.model.likelihood import DecoderLike, log_joint

# Steps uphill; from an encoder's mean most rows are there after five.
N_CLIMBS = 8
# A climb is over where the last steps, each counting half as much as the one after it, gained less than this (nats).
# Not by the slope: where a network has a kink, so has the posterior, and its slope is nowhere 0.
_LEAST_GAIN = 0.02


class Mode(NamedTuple):
    """A place z of the latent posterior, and its precision P = L L' there as L and its inverse."""

    z: tf.Tensor  # (rows, d)
    factor: tf.Tensor  # L, lower triangular (rows, d, d)
    inverse: tf.Tensor  # of L
    n_climbs: tf.Tensor  # int32 scalar: steps that were made


def find_mode(
    decoder: DecoderLike,
    x: tf.Tensor,
    y: tf.Tensor | None,
    start: tf.Tensor,
    *,
    mask: tf.Tensor | None = None,
    n_climbs: int = N_CLIMBS,
    share_left: float = 0.0,
) -> Mode:
    """Climb the latent posterior of each row by damped Gauss-Newton steps. x (rows, p), start (rows, d).

    With m = mean(z), v = variance(z) and their slopes along z, the curvature is replaced by its expectation over x,

        P = I + sum over columns of (dm dm') / v + (d log v)(d log v)' / 2,

    which is positive definite everywhere; a column in a cell of its own (`cells`) counts for its share of the
    information. A step that leads down is not made; its row tries a shorter one. Columns where the mask is False count
    for nothing. The climb ends before `n_climbs` if no more than `share_left` of the rows are still on their way.
    """

    def height(z: tf.Tensor) -> tf.Tensor:
        return log_joint(z, x, decoder, y=y, mask=mask)

    def climb(index, z, here, damping, gained):  # type: ignore[no-untyped-def]
        with tf.GradientTape() as tape:
            tape.watch(z)
            value = height(z)
        slope = tape.gradient(value, z)
        precision = expected_precision(decoder, z, y, x=x, mask=mask)
        damped = precision + damping[:, None, None] * tf.linalg.diag(tf.linalg.diag_part(precision))
        _, inverse = triangular_factor(damped)
        step = tf.linalg.matvec(inverse, tf.linalg.matvec(inverse, slope), transpose_a=True)
        there = height(z + step)
        is_higher = there > here  # False for NaN
        z = tf.where(is_higher[:, None], z + step, z)
        gained = 0.5 * gained + tf.where(is_higher, there - here, 0.0)
        damping = tf.where(is_higher, damping / 4.0, 4.0 * damping + 0.1)
        return index + 1, z, tf.where(is_higher, there, here), damping, gained

    def is_on(index: tf.Tensor, *rest: tf.Tensor) -> tf.Tensor:
        left = tf.reduce_mean(tf.cast(rest[-1] > _LEAST_GAIN, tf.float32))
        return (index < n_climbs) & (left > share_left)

    none = tf.zeros_like(start[:, 0])
    n_made, z, *_ = tf.while_loop(is_on, climb, (tf.constant(0), start, height(start), none, none + 1.0))
    factor, inverse = triangular_factor(expected_precision(decoder, z, y, x=x, mask=mask))
    # Where a network overflows, a place that is of no use but finite: the other parts of the mixture go on.
    is_sound = tf.reduce_all(tf.math.is_finite(factor) & tf.math.is_finite(inverse), axis=[1, 2])
    identity = tf.eye(z.shape[1], dtype=z.dtype)[None]
    factor, inverse = (tf.where(is_sound[:, None, None], part, identity) for part in (factor, inverse))
    return Mode(z, factor, inverse, n_made)


def expected_precision(
    decoder: DecoderLike,
    z: tf.Tensor,
    y: tf.Tensor | None,
    *,
    x: tf.Tensor | None = None,
    mask: tf.Tensor | None = None,
) -> tf.Tensor:
    """The expected curvature of the negative log joint at z. (rows, d) -> (rows, d, d). Cells need to know x."""
    n_rows, d = z.shape
    places = tf.repeat(z[:, None, :], d, axis=1)  # (rows, d, d): one place for each direction
    directions = tf.broadcast_to(tf.eye(d, dtype=z.dtype)[None], [n_rows, d, d])
    with tf.autodiff.ForwardAccumulator(places, directions) as forward:
        mean, variance, *cells = decoder(places) if y is None else decoder(places, y[:, None, :])
        log_variance = tf.math.log(variance)
    zero = tf.UnconnectedGradients.ZERO  # for a variance that is the same everywhere
    mean_slope, log_variance_slope = forward.jvp(mean, zero), forward.jvp(log_variance, zero)  # (rows, d, p)
    if mask is not None:
        mean_slope, log_variance_slope = (
            tf.where(mask[:, None, :], slope, 0.0) for slope in (mean_slope, log_variance_slope)
        )
    mean_slope = mean_slope / tf.sqrt(variance)
    if cells and x is not None:
        found = cells[0].find(x[:, None, :])
        share = information_share(*standard_edges(mean[:, :1], variance[:, :1], found))  # (rows, 1, p)
        share = tf.where(found.is_inside, share, tf.ones_like(share))
        mean_slope, log_variance_slope = tf.sqrt(share) * mean_slope, share * log_variance_slope
    scaled = tf.concat([mean_slope, math.sqrt(0.5) * log_variance_slope], axis=2)
    return tf.eye(d, dtype=z.dtype)[None] + tf.matmul(scaled, scaled, transpose_b=True)


def triangular_factor(matrix: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """L and its inverse, with matrix = L L' positive definite. (rows, d, d) -> twice (rows, d, d).

    Elimination on [matrix, I], all rows at once: it ends as [L', inverse of L]. A pivot that rounding has brought near
    0 or below is raised to a millionth of its diagonal, as if the diagonal had been that much larger. XLA's own
    factorisation takes several seconds to compile on a CPU, twice as long with a solve.
    """
    n_rows, d, _ = matrix.shape
    index = tf.range(d)
    least = 1e-6 * tf.linalg.diag_part(matrix)  # (rows, d)

    def eliminate(k: tf.Tensor, both: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        row = tf.gather(both, k, axis=1)  # (rows, 2 d)
        pivot = tf.maximum(tf.gather(row, k, axis=1), tf.gather(least, k, axis=1))[:, None]
        row = tf.where(tf.range(2 * d) == k, pivot, row)
        root = tf.sqrt(pivot)
        row = row / root
        below = tf.where(index > k, tf.gather(both, k, axis=2) / root, 0.0)  # (rows, d)
        both = both - below[:, :, None] * row[:, None, :]
        return k + 1, tf.where((index == k)[None, :, None], row[:, None, :], both)

    identity = tf.broadcast_to(tf.eye(d, dtype=matrix.dtype), [n_rows, d, d])
    _, both = tf.while_loop(lambda k, _: k < d, eliminate, (tf.constant(0), tf.concat([matrix, identity], axis=2)))
    return tf.linalg.matrix_transpose(both[:, :, :d]), both[:, :, d:]
