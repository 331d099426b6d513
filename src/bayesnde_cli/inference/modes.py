"""Where chains start: the modes of a row's latent posterior, found from several places.

An encoder knows one place for a row. A bank of latents, decoded once for all rows, knows others: those whose rows look
like this one. From each candidate the posterior is climbed; what is found is weighted by Laplace's approximation of
its mass. The same approximation, with heavier tails, lets chains jump between modes; after the warm-up, so does a
mixture fitted to what they have seen.
"""

import math
from typing import NamedTuple

import tensorflow as tf

from bayesnde_cli.inference.proposal import MixtureOfT
from bayesnde_cli.inference.target import Target
from bayesnde_cli.model.latent_mode import find_mode
from bayesnde_cli.model.likelihood import DecoderLike, log_likelihood

# Latents of the bank that are in the running for a row; the temperature makes so many of them likely.
_N_LIKELY = 128
# Places are one mode if their squared distance, in standard deviations, is below this for each latent.
_SAME_MODE = 0.5
# Degrees of freedom of the jumps, and so the normal numbers that the chi-square of one takes.
FREEDOM = 4
# A jump goes to a mode by its weight, but for this share, in which all are alike.
_EVEN_SHARE = 0.1


class Bank(NamedTuple):
    """Latents z (n, d) and what the decoder makes of them, in each class: (classes or 1, n, p) each."""

    z: tf.Tensor
    mean: tf.Tensor
    variance: tf.Tensor


class Modes(NamedTuple):
    """The modes of each row. Precision P = L L'."""

    z: tf.Tensor  # (rows, modes, d)
    factor: tf.Tensor  # L (rows, modes, d, d)
    inverse: tf.Tensor  # of L
    log_weight: tf.Tensor  # (rows, modes) float64, their sum of exponentials 1


def bank_of(decoder: DecoderLike, z: tf.Tensor, n_classes: int) -> Bank:
    """The bank of these latents (n, d)."""
    if not n_classes:
        mean, variance = decoder(z)
        return Bank(z, mean[None], variance[None])
    made = [decoder(z, tf.repeat(tf.one_hot([k], n_classes), z.shape[0], axis=0)) for k in range(n_classes)]
    return Bank(z, *(tf.stack(parts) for parts in zip(*made, strict=True)))


def candidates(bank: Bank, target: Target, near: tf.Tensor, n: int, uniform: tf.Tensor) -> tf.Tensor:
    """So many latents of the bank for each row, likely ones, far from `near` (rows, d) and from each other.

    uniform (rows, bank) in (0, 1) -> (rows, n, d). The likely ones are drawn without replacement, by the likelihood to
    a power that leaves some choice: in many dimensions no latent of the bank is anywhere near, and the nearest alone
    would always be taken. Of them, the next is always the one farthest from those before, so that two modes of equal
    height are both tried.
    """
    height, _ = _heights(bank, target)
    n_likely = min(_N_LIKELY, height.shape[1])
    best = tf.math.top_k(height, n_likely).values
    temperature = tf.maximum(1.0, 0.5 * (best[:, :1] - best[:, -1:]))
    gumbel = -tf.math.log(-tf.math.log(uniform))
    likely = tf.gather(bank.z, tf.math.top_k((height - best[:, :1]) / temperature + gumbel, n_likely).indices)
    distance = tf.reduce_sum(tf.square(likely - near[:, None, :]), axis=2)  # (rows, likely)
    chosen = []
    for _ in range(n):
        chosen.append(tf.gather(likely, tf.argmax(distance, axis=1), batch_dims=1))
        distance = tf.minimum(distance, tf.reduce_sum(tf.square(likely - chosen[-1][:, None, :]), axis=2))
    return tf.stack(chosen, axis=1)


def filled(bank: Bank, target: Target) -> tf.Tensor:
    """The rows, with the mean of the bank's rows, by their likelihood, in cells that are missing. (rows, p)."""
    height, mean = _heights(bank, target)
    weighted = tf.einsum("rb,rbp->rp", tf.nn.softmax(height, axis=1), mean)
    return target.x if target.observed is None else tf.where(target.observed, target.x, weighted)


def _heights(bank: Bank, target: Target) -> tuple[tf.Tensor, tf.Tensor]:
    """log p(x | z) of each row and each latent of the bank (rows, bank), and the means there (rows, bank, p)."""
    if target.y is None:
        mean, variance = bank.mean, bank.variance  # (1, bank, p)
    else:
        own = tf.argmax(target.y, axis=1)
        mean, variance = tf.gather(bank.mean, own), tf.gather(bank.variance, own)  # (rows, bank, p)
    shape = [target.x.shape[0], bank.z.shape[0], target.x.shape[1]]
    x, mean, variance = (tf.broadcast_to(part, shape) for part in (target.x[:, None, :], mean, variance))
    observed = None if target.observed is None else target.observed[:, None, :]
    height = log_likelihood(x, mean, variance, mask=observed)
    return tf.where(tf.math.is_finite(height), height, tf.constant(-1e30, height.dtype)), mean


def find_modes(decoder: DecoderLike, target: Target, start: tf.Tensor) -> Modes:
    """The modes that lie uphill of the starts. (rows, modes, d)."""
    n_rows, n_modes, d = start.shape
    each = target.repeated(n_modes)
    flat = find_mode(decoder, each.x, each.y, tf.reshape(start, [-1, d]), mask=each.observed)
    height = each.log_joint(decoder, flat.z)
    log_det = tf.reduce_sum(tf.math.log(tf.cast(tf.linalg.diag_part(flat.factor), tf.float64)), axis=1)
    log_mass = height - log_det  # and d/2 log 2 pi, for all alike
    # A mode that was found k times counts once.
    place = tf.reshape(flat.z, [n_rows, n_modes, d])
    apart = tf.einsum(
        "rmni,rmij->rmnj", place[:, None] - place[:, :, None], tf.reshape(flat.factor, [n_rows, -1, d, d])
    )
    is_same = tf.reduce_sum(tf.square(apart), axis=3) < _SAME_MODE * d
    n_same = tf.reduce_sum(tf.cast(is_same, tf.float64), axis=2)
    log_mass -= tf.reshape(tf.math.log(tf.maximum(n_same, 1.0)), [-1])
    log_mass = tf.reshape(
        tf.where(tf.math.is_finite(log_mass), log_mass, tf.constant(-1e300, tf.float64)), [n_rows, -1]
    )
    return Modes(
        tf.reshape(flat.z, [n_rows, n_modes, d]),
        tf.reshape(flat.factor, [n_rows, n_modes, d, d]),
        tf.reshape(flat.inverse, [n_rows, n_modes, d, d]),
        tf.nn.log_softmax(log_mass, axis=1),
    )


def best_spread(modes: Modes) -> tf.Tensor:
    """A square root of the covariance at the heaviest mode of each row, (rows, d, d)."""
    best = tf.argmax(modes.log_weight, axis=1)
    return tf.linalg.matrix_transpose(tf.gather(modes.inverse, best, batch_dims=1))


def spread_starts(modes: Modes, noise: tf.Tensor) -> tf.Tensor:
    """A start for each chain of each row: modes get chains by their weight, as evenly as it goes. noise ~ N(0, I).

    (rows, chains, d) -> the same.
    """
    n_chains = noise.shape[1]
    place = (tf.range(n_chains, dtype=tf.float64) + 0.5) / n_chains
    edges = tf.cumsum(tf.exp(modes.log_weight), axis=1)  # (rows, modes)
    index = tf.reduce_sum(tf.cast(place[None, :, None] > edges[:, None, :], tf.int32), axis=2)
    index = tf.minimum(index, modes.z.shape[1] - 1)
    inverse = tf.gather(modes.inverse, index, batch_dims=1)  # (rows, chains, d, d)
    return tf.gather(modes.z, index, batch_dims=1) + tf.linalg.matvec(inverse, noise, transpose_a=True)


def with_room(modes: Modes, n: int) -> Modes:
    """The modes and n more of no weight, to be replaced by `with_mixture`."""
    more = Modes(*(tf.repeat(part[:, :1], n, axis=1) for part in modes))
    return Modes(
        *(
            tf.concat(parts, axis=1)
            for parts in zip(modes, more._replace(log_weight=more.log_weight - 1e3), strict=True)
        )
    )


def with_mixture(modes: Modes, mixture: MixtureOfT) -> Modes:
    """The modes, and in the room beside them the parts of a mixture that was fitted to draws: half the weight each."""
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


def draw_jump(modes: Modes, noise: tf.Tensor, freedom_noise: tf.Tensor, uniform: tf.Tensor) -> tf.Tensor:
    """Draws from the mixture of multivariate t's at the modes: one chi-square for each draw.

    noise (rows, n, d) and freedom_noise (rows, n, 4) ~ N(0, 1), uniform (rows, n) -> (rows, n, d).
    """
    edges = tf.cumsum(tf.exp(_jump_log_weights(modes)), axis=1)
    index = tf.reduce_sum(tf.cast(tf.cast(uniform, tf.float64)[:, :, None] > edges[:, None, :], tf.int32), axis=2)
    index = tf.minimum(index, modes.z.shape[1] - 1)
    scale = tf.sqrt(FREEDOM / tf.reduce_sum(tf.square(freedom_noise), axis=2, keepdims=True))
    inverse = tf.gather(modes.inverse, index, batch_dims=1)  # (rows, n, d, d)
    return tf.gather(modes.z, index, batch_dims=1) + scale * tf.linalg.matvec(inverse, noise, transpose_a=True)


def log_jump(modes: Modes, z: tf.Tensor) -> tf.Tensor:
    """The log-density of that mixture. (rows, n, d) -> (rows, n) float64."""
    d = z.shape[2]
    difference = z[:, :, None, :] - modes.z[:, None, :, :]  # (rows, n, modes, d)
    standard = tf.einsum("rnmi,rmij->rnmj", difference, modes.factor)  # rows of (z - z0)' L
    square = tf.cast(tf.reduce_sum(tf.square(standard), axis=3), tf.float64)
    log_det = tf.reduce_sum(tf.math.log(tf.cast(tf.linalg.diag_part(modes.factor), tf.float64)), axis=2)
    constant = math.lgamma(0.5 * (FREEDOM + d)) - math.lgamma(0.5 * FREEDOM) - 0.5 * d * math.log(FREEDOM * math.pi)
    log_t = constant + log_det[:, None, :] - 0.5 * (FREEDOM + d) * tf.math.log1p(square / FREEDOM)
    return tf.reduce_logsumexp(_jump_log_weights(modes)[:, None, :] + log_t, axis=2)


def _jump_log_weights(modes: Modes) -> tf.Tensor:
    even = _EVEN_SHARE / modes.z.shape[1]
    return tf.math.log((1.0 - _EVEN_SHARE) * tf.exp(modes.log_weight) + even)
