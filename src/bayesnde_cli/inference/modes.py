"""Where chains start: the modes of a row's latent posterior, found from several places.

An encoder knows one place for a row. A bank of latents, decoded once for all rows, knows others: those whose rows look
like this one. From each candidate the posterior is climbed; what is found is weighted by Laplace's approximation of
its mass. The same approximation, with heavier tails, lets chains jump between modes; after the warm-up, so does a
mixture fitted to what they have seen.
"""

import math
from typing import NamedTuple

import tensorflow as tf
from sklearn.neighbors import NearestNeighbors

from bayesnde_cli.inference.proposal import MixtureOfT
from bayesnde_cli.inference.target import Target
from bayesnde_cli.model.cells import Cells
from bayesnde_cli.model.latent_mode import find_mode
from bayesnde_cli.model.likelihood import DecoderLike, log_likelihood
from bayesnde_cli.model.student_t import log_t

# Latents of the bank that are in the running for a row: likely ones, as the temperature makes so many of them, and
# peaks, those that are higher than so many of their neighbours.
_N_LIKELY, _N_PEAKS = 128, 128
_N_NEIGHBOURS = 6
# A latent that is no peak is as good as one that is so much nearer, in squared distance.
_ANY_PREFERENCE = 1e-4
# Places are one mode if their squared distance, in standard deviations, is below this for each latent.
_SAME_MODE = 0.5
# Starts that may be left on their way when a climb ends.
_SHARE_LEFT = 0.05
# Degrees of freedom of the jumps, and so the normal numbers that the chi-square of one takes.
FREEDOM = 4
# The height of a place where it is not a number, and the log-weight of a mode that is none.
_LOWEST, _NOTHING = -1e30, -1e300
# A mode of less than this log-weight adds nothing that is seen in a log-density.
_NEGLIGIBLE = math.log(1e-5)
# A jump goes to a mode by its weight, but for this share, in which all are alike.
_EVEN_SHARE = 0.1


class Bank(NamedTuple):
    """Latents z (n, d), which of them are next to each, and what the decoder makes of them in each class."""

    z: tf.Tensor
    neighbours: tf.Tensor  # (n, some) int32
    mean: tf.Tensor  # (classes or 1, n, p)
    variance: tf.Tensor
    cells: Cells | None = None  # of the columns, for all alike


class Modes(NamedTuple):
    """The modes of each row. Precision P = L L'."""

    z: tf.Tensor  # (rows, modes, d)
    factor: tf.Tensor  # L (rows, modes, d, d)
    inverse: tf.Tensor  # of L
    log_weight: tf.Tensor  # (rows, modes) float64, their sum of exponentials 1


class Found(NamedTuple):
    """The modes of each row, and a cautious guess (rows,) at the share of the posterior in modes that are not known.

    It is the largest of three. If much of what was found was found by one start alone, there is likely as much that
    was not found at all (Good 1953): the weight of such modes. If there were m modes of equal size, S starts would
    miss m (1 - 1 / m)^S of them; m is the effective number of those found, and one more. And the weight of the modes
    that were found but, as there are too many, not kept.
    """

    modes: Modes
    missed_mass: tf.Tensor
    n_climbs: tf.Tensor  # int32 scalar


def bank_of(decoder: DecoderLike, z: tf.Tensor, n_classes: int) -> Bank:
    """The bank of these latents (n, d)."""
    found = NearestNeighbors(n_neighbors=min(_N_NEIGHBOURS, z.shape[0] - 1)).fit(z.numpy())
    neighbours = tf.constant(found.kneighbors(return_distance=False), tf.int32)
    if not n_classes:
        mean, variance, *cells = decoder(z)
        return Bank(z, neighbours, mean[None], variance[None], *cells)
    made = [decoder(z, tf.repeat(tf.one_hot([k], n_classes), z.shape[0], axis=0)) for k in range(n_classes)]
    means, variances, *cells = zip(*made, strict=True)
    return Bank(z, neighbours, tf.stack(means), tf.stack(variances), *(each[0] for each in cells))


def candidates(bank: Bank, target: Target, near: tf.Tensor, n: int, uniform: tf.Tensor) -> tf.Tensor:
    """So many latents of the bank for each row, far from `near` (rows, d) and from each other; half of them likely.

    uniform (rows, bank) in (0, 1) -> (rows, n, d). The likely ones are drawn without replacement, by the likelihood to
    a power that leaves some choice: in many dimensions no latent of the bank is anywhere near, and the nearest alone
    would always be taken. The others are peaks: beside a narrow mode the likelihood is low, though it is higher than
    all around; after the peaks, any. Of either kind, the next is always the one farthest from those before, so that two
    modes of equal height are both tried.
    """
    height, _ = _heights(bank, target)
    n_likely, n_peaks = (min(n_most, height.shape[1]) for n_most in (_N_LIKELY, _N_PEAKS))
    best = tf.math.top_k(height, n_likely).values
    temperature = tf.maximum(1.0, 0.5 * (best[:, :1] - best[:, -1:]))
    gumbel = -tf.math.log(-tf.math.log(uniform))
    likely = tf.math.top_k((height - best[:, :1]) / temperature + gumbel, n_likely).indices
    log_joint = height - 0.5 * tf.reduce_sum(tf.square(bank.z), axis=1)
    is_peak = log_joint > tf.reduce_max(tf.gather(log_joint, bank.neighbours, axis=1), axis=2)
    peaks = tf.math.top_k(tf.where(is_peak, log_joint, _LOWEST * (1.0 + uniform)), n_peaks).indices
    index = tf.concat([likely, peaks], axis=1)
    pool = tf.gather(bank.z, index)  # (rows, pool, d)
    is_likely = tf.range(n_likely + n_peaks) < n_likely
    preference = tf.where(is_likely | tf.gather(is_peak, index, batch_dims=1), 1.0, _ANY_PREFERENCE)

    def choose(k: tf.Tensor, distance: tf.Tensor, chosen: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        is_open = tf.equal(is_likely, k < n - n // 2)
        farthest = tf.argmax(tf.where(is_open, preference * distance, -1.0), axis=1)
        place = tf.gather(pool, farthest, batch_dims=1)  # (rows, d)
        distance = tf.minimum(distance, tf.reduce_sum(tf.square(pool - place[:, None, :]), axis=2))
        return k + 1, distance, tf.where((tf.range(n) == k)[None, :, None], place[:, None, :], chosen)

    distance = tf.reduce_sum(tf.square(pool - near[:, None, :]), axis=2)  # (rows, pool)
    start = tf.constant(0), distance, tf.zeros([near.shape[0], n, near.shape[1]])
    return tf.while_loop(lambda k, *_: k < n, choose, start)[2]


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
    mean, variance = (tf.broadcast_to(part, shape) for part in (mean, variance))
    observed = None if target.observed is None else target.observed[:, None, :]
    height = log_likelihood(target.x[:, None, :], mean, variance, bank.cells, mask=observed)
    return _finite(height), mean


def _finite(heights: tf.Tensor) -> tf.Tensor:
    return tf.where(tf.math.is_finite(heights), heights, tf.constant(_LOWEST, heights.dtype))


def find_modes(
    decoder: DecoderLike, target: Target, start: tf.Tensor, known: tf.Tensor | None, *, n_climbs: int, n_kept: int
) -> Found:
    """The modes that lie uphill of the starts, and of places that are known to be good. (rows, starts, d) and such.

    What lies uphill of a known place is no news of what the starts find, and so does not count as found by one.
    """
    n_fresh = start.shape[1]
    if known is not None:
        start = tf.concat([start, known], axis=1)
    n_rows, n_starts, d = start.shape
    each = target.repeated(n_starts)
    flat = find_mode(
        decoder, each.x, each.y, tf.reshape(start, [-1, d]), mask=each.observed, n_climbs=n_climbs,
        share_left=_SHARE_LEFT,
    )  # fmt: skip
    log_det = tf.reduce_sum(tf.math.log(tf.cast(tf.linalg.diag_part(flat.factor), tf.float64)), axis=1)
    height = _finite(each.log_joint(decoder, flat.z))
    # Highest first: a mode that was found several times is its highest place.
    order = tf.argsort(tf.reshape(height, [n_rows, n_starts]), axis=1, direction="DESCENDING")

    def ordered(values: tf.Tensor) -> tf.Tensor:
        return tf.gather(tf.reshape(values, [n_rows, n_starts, *values.shape[1:]]), order, batch_dims=1)

    place, factor, inverse = (ordered(part) for part in (flat.z, flat.factor, flat.inverse))
    is_fresh = order < n_fresh
    log_mass = ordered(height - log_det)  # and d/2 log 2 pi, for all alike
    apart = tf.einsum("rmni,rmij->rmnj", place[:, None] - place[:, :, None], factor)
    is_same = tf.reduce_sum(tf.square(apart), axis=3) < _SAME_MODE * d  # (rows, starts, starts)
    is_same = tf.linalg.set_diag(is_same, tf.ones_like(is_fresh))
    is_after = tf.range(n_starts)[:, None] < tf.range(n_starts)[None, :]
    has_higher = tf.reduce_any(is_same & is_after, axis=1)
    log_weight = tf.nn.log_softmax(tf.where(has_higher, tf.constant(_NOTHING, tf.float64), log_mass), axis=1)
    n_finds = tf.reduce_sum(tf.cast(is_same & is_fresh[:, None, :], tf.int32), axis=2)
    kept, index = tf.math.top_k(log_weight, min(n_starts, n_kept))
    dropped = 1.0 - tf.reduce_sum(tf.exp(kept), axis=1)
    missed_mass = tf.maximum(_missed_mass(tf.exp(log_weight), n_finds, n_fresh), dropped)
    place, factor, inverse = (tf.gather(part, index, batch_dims=1) for part in (place, factor, inverse))
    modes = Modes(place, factor, inverse, tf.nn.log_softmax(kept, axis=1))
    return Found(modes, tf.cast(missed_mass, tf.float32), flat.n_climbs)


def _missed_mass(weight: tf.Tensor, n_finds: tf.Tensor, n_starts: int) -> tf.Tensor:
    """The first two of `Found`. Weights of modes, 0 for what is none, and the starts that led to each, (rows, places)
    both -> (rows,) float64.
    """
    lone = tf.reduce_sum(tf.where(n_finds <= 1, weight, 0.0), axis=1)
    m = 1.0 / tf.reduce_sum(tf.square(weight), axis=1) + 1.0
    return tf.maximum(lone, tf.minimum(m * (1.0 - 1.0 / m) ** n_starts, 1.0))


def places(modes: Modes) -> tf.Tensor:
    """Where the modes of each row are, NaN for those of no weight to speak of. (rows, modes, d)."""
    return tf.where(modes.log_weight[:, :, None] > _NEGLIGIBLE, modes.z, math.nan)


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
    difference = z[:, :, None, :] - modes.z[:, None, :, :]  # (rows, n, modes, d)
    standard = tf.einsum("rnmi,rmij->rnmj", difference, modes.factor)  # rows of (z - z0)' L
    square = tf.cast(tf.reduce_sum(tf.square(standard), axis=3), tf.float64)
    log_det = tf.reduce_sum(tf.math.log(tf.cast(tf.linalg.diag_part(modes.factor), tf.float64)), axis=2)
    log_parts = log_t(square, -log_det[:, None, :], freedom=FREEDOM, d=z.shape[2])
    return tf.reduce_logsumexp(_jump_log_weights(modes)[:, None, :] + log_parts, axis=2)


def _jump_log_weights(modes: Modes) -> tf.Tensor:
    even = _EVEN_SHARE / modes.z.shape[1]
    return tf.math.log((1.0 - _EVEN_SHARE) * tf.exp(modes.log_weight) + even)
