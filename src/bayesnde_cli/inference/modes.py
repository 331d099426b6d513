"""Modes of the latent posterior of every row, as a mixture: where chains start, and where they jump to.

Laplace's approximation at each mode, with heavier tails, lets chains jump between modes; after the warm-up, so does a
mixture fitted to the places that the chains have visited. See `mode_search` for how modes are found."""

import math
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from bayesnde_cli.inference.proposal import MixtureOfT, log_det, log_t
from bayesnde_cli.model.likelihood import LOG_TWO_PI

# Degrees of freedom of the jumps; the chi-square of a jump takes as many normal numbers.
FREEDOM = 4
# A mode of lower log-weight does not change a log-density visibly.
_NEGLIGIBLE = math.log(1e-5)
# Share of the jumps that choose among all modes evenly; the others choose by weight.
_EVEN_SHARE = 0.1


class Mode(NamedTuple):
    """One mode for each row, with the precision P = L L' there."""

    z: tf.Tensor  # (rows, d)
    factor: tf.Tensor  # L, lower triangular (rows, d, d)
    inverse: tf.Tensor  # of L
    n_steps: tf.Tensor  # int32 scalar: Newton steps made


class Modes(NamedTuple):
    """Several modes for each row, with the precision P = L L' at each."""

    z: tf.Tensor  # (rows, modes, d)
    factor: tf.Tensor  # L (rows, modes, d, d)
    inverse: tf.Tensor  # of L
    log_weight: tf.Tensor  # (rows, modes) float64, normalised


def mode_places(modes: Modes) -> np.ndarray:
    """The places of the modes of each row, NaN for modes of negligible weight. (rows, modes, d)."""
    return np.where(np.asarray(modes.log_weight)[:, :, None] > _NEGLIGIBLE, modes.z, np.float32(np.nan))


def metric_at_best(modes: Modes) -> tf.Tensor:
    """A square root of the covariance at the heaviest mode of each row. (rows, d, d)."""
    best = tf.argmax(modes.log_weight, axis=1)
    return tf.linalg.matrix_transpose(tf.gather(modes.inverse, best, batch_dims=1))


def spread_chains(modes: Modes, noise: tf.Tensor) -> tf.Tensor:
    """A start point for each chain, at modes in proportion to their weight. noise (rows, chains, d) -> the same."""
    n_chains = noise.shape[1]
    share = (tf.range(n_chains, dtype=tf.float64) + 0.5) / n_chains
    place, step = _draw_around(modes, modes.log_weight, share[None, :], noise)
    return place + step


def _draw_around(
    modes: Modes, log_weight: tf.Tensor, uniform: tf.Tensor, noise: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor]:
    """Modes chosen by weight, with `uniform` (rows, n) in (0, 1), and normal steps from there. (rows, n, d) twice."""
    edges = tf.cumsum(tf.exp(log_weight), axis=1)  # (rows, modes)
    index = tf.reduce_sum(tf.cast(uniform[:, :, None] > edges[:, None, :], tf.int32), axis=2)
    index = tf.minimum(index, modes.z.shape[1] - 1)
    inverse = tf.gather(modes.inverse, index, batch_dims=1)  # (rows, n, d, d)
    return tf.gather(modes.z, index, batch_dims=1), tf.linalg.matvec(inverse, noise, transpose_a=True)


def reserve(modes: Modes, n: int) -> Modes:
    """The modes and n placeholders of no weight, which `add_mixture` replaces: shapes stay the same."""
    room = Modes(*(tf.repeat(part[:, :1], n, axis=1) for part in modes))
    room = room._replace(log_weight=room.log_weight - 1e3)
    return Modes(*(tf.concat(parts, axis=1) for parts in zip(modes, room, strict=True)))


def add_mixture(modes: Modes, mixture: MixtureOfT) -> Modes:
    """Replace the placeholders by the components of a mixture fitted to draws; modes and mixture share the weight."""
    n = mixture.means.shape[1]
    half = math.log(0.5)
    own = Modes(*(part[:, :-n] for part in modes))
    parts = (
        mixture.means,
        tf.linalg.matrix_transpose(mixture.inverses),  # with covariance C C', P = (C^-1)' C^-1
        tf.linalg.matrix_transpose(mixture.factors),
        mixture.log_weights + half,
    )
    own = own._replace(log_weight=tf.nn.log_softmax(own.log_weight, axis=1) + half)
    return Modes(*(tf.concat([mine, tf.cast(part, mine.dtype)], axis=1) for mine, part in zip(own, parts, strict=True)))


def draw_jump(modes: Modes, noise: tf.Tensor, freedom_noise: tf.Tensor | None, uniform: tf.Tensor) -> tf.Tensor:
    """Draws (rows, n, d) from the mixture of multivariate t's at the modes, with one chi-square per draw.

    noise (rows, n, d) and freedom_noise (rows, n, FREEDOM) ~ N(0, 1), uniform (rows, n). Without freedom_noise, from
    the mixture of normals.
    """
    place, step = _draw_around(modes, _jump_log_weights(modes), tf.cast(uniform, tf.float64), noise)
    if freedom_noise is not None:
        step = tf.sqrt(FREEDOM / tf.reduce_sum(tf.square(freedom_noise), axis=2, keepdims=True)) * step
    return place + step


def log_jump(modes: Modes, z: tf.Tensor, normal_share: float = 0.0) -> tf.Tensor:
    """The log-density of that mixture, of which the normals have a share. (rows, n, d) -> (rows, n) float64."""
    difference = z[:, :, None, :] - modes.z[:, None, :, :]  # (rows, n, modes, d)
    standard = tf.einsum("rnmi,rmij->rnmj", difference, modes.factor)  # rows of (z - z0)' L
    square = tf.cast(tf.reduce_sum(tf.square(standard), axis=3), tf.float64)
    log_det_factor = -log_det(tf.cast(modes.factor, tf.float64))[:, None, :]
    log_parts = log_t(square, log_det_factor, freedom=FREEDOM, d=z.shape[2])
    if normal_share:
        log_normal = -0.5 * (square + z.shape[2] * LOG_TWO_PI) - log_det_factor
        shares = math.log(1.0 - normal_share), math.log(normal_share)
        log_parts = tf.reduce_logsumexp([shares[0] + log_parts, shares[1] + log_normal], axis=0)
    return tf.reduce_logsumexp(_jump_log_weights(modes)[:, None, :] + log_parts, axis=2)


def _jump_log_weights(modes: Modes) -> tf.Tensor:
    even = _EVEN_SHARE / modes.z.shape[1]
    return tf.math.log((1.0 - _EVEN_SHARE) * tf.exp(modes.log_weight) + even)
