"""Modes of the latent posterior of every row: where chains start, and where they jump to.

The encoder proposes one start point for a row. A bank of latents, decoded once for all rows, proposes others: those
whose rows look like this one. Newton steps lead from each start point to a mode, which is weighted by Laplace's
approximation of its mass. The same approximation, with heavier tails, lets chains jump between modes; after the
warm-up, so does a mixture fitted to the places that the chains have visited."""

import math
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from bayesnde_cli.inference.proposal import MixtureOfT, factorise, log_det, log_t
from bayesnde_cli.model.likelihood import (
    Cells,
    DecoderLike,
    Target,
    information_share,
    log_joint,
    log_likelihood,
    standard_edges,
)

# Newton steps from the encoder's point; most rows need five.
_N_NEWTON_STEPS = 8
# Steps that share a precision.
_STEPS_PER_PRECISION = 2
# A row has converged when its last steps, each with four times the weight of the one before, gained less than this
# (nats). The gradient is no criterion: where a network has a kink, so has the posterior, and its gradient is nowhere 0.
_LEAST_GAIN = 0.02
# Candidates of each kind from the bank: the likeliest latents, and peaks, which are higher than all of their nearest
# neighbours.
_N_CANDIDATES, _N_NEIGHBOURS = 128, 6
# Factor on the squared distance of a latent that is not a peak, where the farthest candidate is taken.
_ANY_PREFERENCE = 1e-4
# Two places are one mode if their squared distance, in standard deviations, is below this per latent.
_SAME_MODE = 0.5
# They are within reach of each other if they are this many standard deviations apart, in the metric of either. In any
# number of dimensions two normals three standard deviations apart share a seventh of their mass.
_REACH = 3.0
# Share of the start points that may still be moving when the search ends.
_SHARE_LEFT = 0.05
# Degrees of freedom of the jumps; the chi-square of a jump takes as many normal numbers.
FREEDOM = 4
# Height where the log-density is not finite, and the log-weight of a duplicate.
_LOWEST, _NOTHING = -1e30, -1e300
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


class SearchSize(NamedTuple):
    """How thoroughly modes are searched for."""

    n_starts: int  # in addition to the encoder's point
    n_steps: int  # Newton steps from each start point, at most
    n_kept: int  # modes, at most


class ModeSearch(NamedTuple):
    """The modes of each row, and a cautious estimate (rows,) of the posterior mass in modes that were not found.

    The estimate is the largest of three: the weight of modes that a single start point led to, as about as much was
    probably not found at all (Good 1953); the expected share m (1 - 1 / m)^S that S start points miss of m equal modes,
    with m one more than the effective number of modes found; and the weight of modes that were found but not kept. For
    the first two, modes within reach of each other are one: draws around one of them would find the other.
    """

    modes: Modes
    missed_mass: tf.Tensor
    n_steps: tf.Tensor  # int32 scalar: Newton steps made


class Bank(NamedTuple):
    """Latents, the neighbours of each, and what the decoder makes of them in each class."""

    z: tf.Tensor  # (n, d)
    neighbours: tf.Tensor  # (n, some) int32
    mean: tf.Tensor  # (classes or 1, n, p)
    variance: tf.Tensor
    cells: Cells | None = None  # of the columns


def find_mode(
    decoder: DecoderLike, target: Target, start: tf.Tensor, *, n_steps: int = _N_NEWTON_STEPS, share_left: float = 0.0
) -> Mode:
    """A mode of each row's latent posterior, by damped Gauss-Newton steps from start (rows, d).

    With m = mean(z), v = variance(z) and their derivatives along z, the Hessian is replaced by its expectation over x,

        P = I + sum over columns of (dm dm') / v + (d log v)(d log v)' / 2,

    which is positive definite everywhere; a column with cells counts for its share of the information. A step that
    leads downhill is rejected, and its row tries a shorter one. Missing cells are ignored. The search ends before
    `n_steps` when no more than `share_left` of the rows are still moving.
    """

    def height(z: tf.Tensor) -> tf.Tensor:
        return log_joint(z, target.x, decoder, y=target.y, mask=target.observed)

    def newton_step(index, here, gained, damping, state):  # type: ignore[no-untyped-def]
        z, step, slope, precision = state
        with tf.GradientTape() as tape:
            tape.watch(trial := z + step)
            there = height(trial)
        is_higher = there > here  # False for NaN
        z, slope = (
            tf.where(is_higher[:, None], *parts) for parts in ((trial, z), (tape.gradient(there, trial), slope))
        )
        gained = tf.where(is_higher, 0.25, 0.5) * gained + tf.where(is_higher & (index > 0), there - here, 0.0)
        damping = tf.where(is_higher, damping / 4.0, 4.0 * damping + 0.1)
        is_due = tf.equal(index % _STEPS_PER_PRECISION, 0)
        precision = tf.cond(is_due, lambda: expected_precision(decoder, target, z), lambda: precision)
        _, inverse = factorise(precision + damping[:, None, None] * tf.linalg.diag(tf.linalg.diag_part(precision)))
        step = tf.linalg.matvec(inverse, tf.linalg.matvec(inverse, slope), transpose_a=True)
        return index + 1, tf.where(is_higher, there, here), gained, damping, (z, step, slope, precision)

    def is_moving(index: tf.Tensor, here: tf.Tensor, gained: tf.Tensor, *rest: tf.Tensor) -> tf.Tensor:
        left = tf.reduce_mean(tf.cast(gained > _LEAST_GAIN, tf.float32))
        return (index <= n_steps) & (left > share_left)

    none, nowhere = tf.zeros_like(start[:, 0]), tf.zeros_like(start)
    identity = tf.broadcast_to(tf.eye(start.shape[1], dtype=start.dtype), [*start.shape, start.shape[1]])
    # The first step leads to the start itself. The last precision is at most two steps old, when hardly any is left.
    first = tf.constant(0), none - np.inf, none + 1.0, none, (start, nowhere, nowhere, identity)
    n_made, *_, (z, _, _, precision) = tf.while_loop(is_moving, newton_step, first)
    factor, inverse = factorise(precision)
    # Where a network overflows, the identity keeps the place finite: other components of a mixture then take over.
    is_sound = tf.reduce_all(tf.math.is_finite(factor) & tf.math.is_finite(inverse), axis=[1, 2])
    factor, inverse = (tf.where(is_sound[:, None, None], part, identity) for part in (factor, inverse))
    return Mode(z, factor, inverse, n_made - 1)


def expected_precision(decoder: DecoderLike, target: Target, z: tf.Tensor) -> tf.Tensor:
    """The expected Hessian of the negative log joint at z. (rows, d) -> (rows, d, d)."""
    d, y, mask = z.shape[1], target.y, target.observed

    def decode() -> tuple[tf.Tensor, ...]:
        return decoder(z) if y is None else decoder(z, y)

    def derivative(direction: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        with tf.autodiff.ForwardAccumulator(z, tf.broadcast_to(direction, z.shape)) as forward:
            mean, variance, *_ = decode()
            log_variance = tf.math.log(variance)
        zero = tf.UnconnectedGradients.ZERO  # for a variance that is the same everywhere
        return forward.jvp(mean, zero), forward.jvp(log_variance, zero)

    # All directions at once: the values of the network, which they share, are computed once.
    slopes = tf.vectorized_map(derivative, tf.eye(d, dtype=z.dtype))
    mean_slope, log_variance_slope = (tf.transpose(part, [1, 0, 2]) for part in slopes)  # (rows, d, p)
    mean, variance, *cells = decode()
    mean, variance = mean[:, None, :], variance[:, None, :]
    if mask is not None:
        mean_slope, log_variance_slope = (
            tf.where(mask[:, None], part, 0.0) for part in (mean_slope, log_variance_slope)
        )
    mean_slope = mean_slope / tf.sqrt(variance)
    if cells:
        found = cells[0].find(target.x[:, None, :])
        share = information_share(*standard_edges(mean, variance, found))  # (rows, 1, p)
        share = tf.where(found.is_inside, share, tf.ones_like(share))
        mean_slope, log_variance_slope = tf.sqrt(share) * mean_slope, share * log_variance_slope
    scaled = tf.concat([mean_slope, math.sqrt(0.5) * log_variance_slope], axis=2)
    return tf.eye(d, dtype=z.dtype)[None] + tf.matmul(scaled, scaled, transpose_b=True)


def decode_bank(decoder: DecoderLike, z: tf.Tensor, n_classes: int) -> Bank:
    """The bank of latents (n, d), decoded in every class."""
    places = z.numpy()
    square = np.square(places).sum(axis=1)
    distance = square[:, None] + square[None, :] - 2.0 * places @ places.T
    np.fill_diagonal(distance, np.inf)
    n_neighbours = min(_N_NEIGHBOURS, len(places) - 1)
    neighbours = tf.constant(np.argpartition(distance, n_neighbours - 1, axis=1)[:, :n_neighbours], tf.int32)
    if not n_classes:
        mean, variance, *cells = decoder(z)
        return Bank(z, neighbours, mean[None], variance[None], *cells)
    decoded = [decoder(z, tf.repeat(tf.one_hot([k], n_classes), z.shape[0], axis=0)) for k in range(n_classes)]
    means, variances, *cells = zip(*decoded, strict=True)
    return Bank(z, neighbours, tf.stack(means), tf.stack(variances), *(each[0] for each in cells))


def choose_candidates(bank: Bank, target: Target, near: tf.Tensor, n: int, uniform: tf.Tensor) -> tf.Tensor:
    """Choose n latents of the bank for each row, far from `near` (rows, d) and from each other.

    uniform (rows, bank) in (0, 1) -> (rows, n, d). The first half are likely latents, drawn without replacement by a
    likelihood that is tempered, as in many dimensions the nearest latent alone would always be taken. The second half
    are peaks: next to a narrow mode the likelihood is low, but higher than around; after the peaks, any latent. Within
    each half the next candidate is the one farthest from those before, so that modes of equal height are all tried.
    """
    height, _ = _bank_heights(bank, target)
    n_each = min(_N_CANDIDATES, height.shape[1])
    best = tf.math.top_k(height, n_each).values
    temperature = tf.maximum(1.0, 0.5 * (best[:, :1] - best[:, -1:]))
    gumbel = -tf.math.log(-tf.math.log(uniform))
    likely = tf.math.top_k((height - best[:, :1]) / temperature + gumbel, n_each).indices
    joint = height - 0.5 * tf.reduce_sum(tf.square(bank.z), axis=1)
    is_peak = joint > tf.reduce_max(tf.gather(joint, bank.neighbours, axis=1), axis=2)
    peaks = tf.math.top_k(tf.where(is_peak, joint, _LOWEST * (1.0 + uniform)), n_each).indices
    index = tf.concat([likely, peaks], axis=1)
    pool = tf.gather(bank.z, index)  # (rows, pool, d)
    is_likely = tf.range(2 * n_each) < n_each
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


def fill_missing(bank: Bank, target: Target) -> tf.Tensor:
    """The rows with missing cells replaced by the mean of the bank, weighted by likelihood. (rows, p)."""
    height, mean = _bank_heights(bank, target)
    weighted = tf.einsum("rb,rbp->rp", tf.nn.softmax(height, axis=1), mean)
    return target.x if target.observed is None else tf.where(target.observed, target.x, weighted)


def _bank_heights(bank: Bank, target: Target) -> tuple[tf.Tensor, tf.Tensor]:
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
    decoder: DecoderLike, target: Target, start: tf.Tensor, carried: tf.Tensor | None, size: SearchSize
) -> ModeSearch:
    """Find the modes uphill of the start points, and of places carried over from an earlier attempt.

    start (rows, starts, d), carried (rows, some, d). A carried place does not count as a start point that found its
    mode, so it does not lower the estimate of the missed mass.
    """
    n_fresh = start.shape[1]
    if carried is not None:
        start = tf.concat([start, carried], axis=1)
    n_rows, n_starts, d = start.shape
    each = target.repeat(n_starts)
    flat = find_mode(decoder, each, tf.reshape(start, [-1, d]), n_steps=size.n_steps, share_left=_SHARE_LEFT)
    height = _finite(each.log_joint(decoder, flat.z))
    # Highest first: of several places that are one mode, the highest represents it.
    order = tf.argsort(tf.reshape(height, [n_rows, n_starts]), axis=1, direction="DESCENDING")

    def ordered(values: tf.Tensor) -> tf.Tensor:
        return tf.gather(tf.reshape(values, [n_rows, n_starts, *values.shape[1:]]), order, batch_dims=1)

    place, factor, inverse = (ordered(part) for part in (flat.z, flat.factor, flat.inverse))
    is_fresh = order < n_fresh
    # Without d/2 log 2 pi, which is the same for all.
    log_mass = ordered(height - log_det(tf.cast(flat.factor, tf.float64)))
    apart = tf.einsum("rmni,rmij->rmnj", place[:, None] - place[:, :, None], factor)
    distance = tf.linalg.set_diag(tf.reduce_sum(tf.square(apart), axis=3), tf.zeros_like(place[:, :, 0]))
    is_same = distance < _SAME_MODE * d  # (rows, starts, starts)
    is_near = distance < max(_REACH**2, _SAME_MODE * d)
    is_in_reach = is_near & tf.transpose(is_near, [0, 2, 1])
    is_after = tf.range(n_starts)[:, None] < tf.range(n_starts)[None, :]
    has_higher = tf.reduce_any(is_same & is_after, axis=1)
    log_weight = tf.nn.log_softmax(tf.where(has_higher, tf.constant(_NOTHING, tf.float64), log_mass), axis=1)
    n_finds = tf.reduce_sum(tf.cast(is_in_reach & is_fresh[:, None, :], tf.int32), axis=2)
    kept, index = tf.math.top_k(log_weight, min(n_starts, size.n_kept))
    weight = tf.exp(log_weight)
    found_once = tf.reduce_sum(tf.where(n_finds <= 1, weight, 0.0), axis=1)
    weight_in_reach = tf.reduce_sum(tf.where(is_in_reach, weight[:, None, :], 0.0), axis=2)
    m = 1.0 / tf.reduce_sum(weight * weight_in_reach, axis=1) + 1.0
    not_found = tf.maximum(found_once, tf.minimum(m * (1.0 - 1.0 / m) ** n_fresh, 1.0))
    missed_mass = tf.maximum(not_found, 1.0 - tf.reduce_sum(tf.exp(kept), axis=1))
    place, factor, inverse = (tf.gather(part, index, batch_dims=1) for part in (place, factor, inverse))
    modes = Modes(place, factor, inverse, tf.nn.log_softmax(kept, axis=1))
    return ModeSearch(modes, tf.cast(missed_mass, tf.float32), flat.n_steps)


def mode_places(modes: Modes) -> tf.Tensor:
    """The places of the modes of each row, NaN for modes of negligible weight. (rows, modes, d)."""
    return tf.where(modes.log_weight[:, :, None] > _NEGLIGIBLE, modes.z, math.nan)


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


def draw_jump(modes: Modes, noise: tf.Tensor, freedom_noise: tf.Tensor, uniform: tf.Tensor) -> tf.Tensor:
    """Draws (rows, n, d) from the mixture of multivariate t's at the modes, with one chi-square per draw.

    noise (rows, n, d) and freedom_noise (rows, n, FREEDOM) ~ N(0, 1), uniform (rows, n).
    """
    place, step = _draw_around(modes, _jump_log_weights(modes), tf.cast(uniform, tf.float64), noise)
    return place + tf.sqrt(FREEDOM / tf.reduce_sum(tf.square(freedom_noise), axis=2, keepdims=True)) * step


def log_jump(modes: Modes, z: tf.Tensor) -> tf.Tensor:
    """The log-density of that mixture. (rows, n, d) -> (rows, n) float64."""
    difference = z[:, :, None, :] - modes.z[:, None, :, :]  # (rows, n, modes, d)
    standard = tf.einsum("rnmi,rmij->rnmj", difference, modes.factor)  # rows of (z - z0)' L
    square = tf.cast(tf.reduce_sum(tf.square(standard), axis=3), tf.float64)
    log_det_covariance = -log_det(tf.cast(modes.factor, tf.float64))[:, None, :]
    log_parts = log_t(square, log_det_covariance, freedom=FREEDOM, d=z.shape[2])
    return tf.reduce_logsumexp(_jump_log_weights(modes)[:, None, :] + log_parts, axis=2)


def _jump_log_weights(modes: Modes) -> tf.Tensor:
    even = _EVEN_SHARE / modes.z.shape[1]
    return tf.math.log((1.0 - _EVEN_SHARE) * tf.exp(modes.log_weight) + even)
