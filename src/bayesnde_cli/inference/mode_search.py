"""The search for the modes of the latent posterior of every row.

The encoder proposes one start point for a row. A bank of latents, decoded once for all rows, proposes others: those
whose rows look like this one. Newton steps lead uphill from each start point, a few at a time: a start point that has
come within reach of a higher one of its row waits there, and the others go on. Every mode is weighted by Laplace's
approximation of its mass."""

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from bayesnde_cli import stopping
from bayesnde_cli.inference.bridge import MOST_MISSED_MASS
from bayesnde_cli.inference.fitted_model import LOWEST, Bank, FittedModel, Program, look_up, make_bank
from bayesnde_cli.inference.modes import Mode, Modes
from bayesnde_cli.inference.proposal import factorise
from bayesnde_cli.model.coders import Proposal
from bayesnde_cli.model.likelihood import DecoderLike, Target, information_share, log_joint, standard_edges
from bayesnde_cli.rng import generator
from bayesnde_cli.rows import Rows

# Newton steps that share a precision, and how many times as many are made from the encoder's point in training.
_STEPS_PER_PRECISION, _N_LEGS = 2, 4
# The precision is taken from differences of the decoder over this distance along every latent: it guides steps and
# draws, and need not be exact.
_DIFFERENCE = 2.0**-8
# A row has converged when its last steps, each with four times the weight of the one before, gained less than this
# (nats). The gradient is no criterion: where a network has a kink, so has the posterior, and its gradient is nowhere 0.
_LEAST_GAIN = 0.02
# Candidates of each kind from the bank: the likeliest latents, and peaks, which are higher than all of their nearest
# neighbours.
_N_CANDIDATES = 128
# Factor on the squared distance of a latent that is not a peak, where the farthest candidate is taken.
_ANY_PREFERENCE = 1e-4
# Two places are one mode if their squared distance, in standard deviations, is below this per latent.
_SAME_MODE = 0.5
# They are within reach of each other if they are this many standard deviations apart, in the metric of either. In any
# number of dimensions two normals three standard deviations apart share a seventh of their mass.
_REACH = 3.0
# A start point stops this many nats below the highest place of its row, and as many times what it gained of late: the
# mode that it leads to has hardly any mass.
_FAR_BELOW, _MOST_MORE, _FEWEST_STEPS = 15.0, 20.0, 12
# The log-weight of a duplicate.
_NOTHING = -1e300
# Rows that are looked up in the bank together: the smallest of these sizes that holds them, or of this many cells.
_GROUPS, _GROUP_CELLS = (2, 64), 6_000
# Start points that take steps together; more, if the decoder takes them in one pass.
_STARTS = 16, 128


class Walk(NamedTuple):
    """Start points on their way uphill; the precision is that of up to two steps ago."""

    z: tf.Tensor  # (n, d)
    height: tf.Tensor  # log p(x, z), (n,); -inf before the first step, which stays where it is
    slope: tf.Tensor  # (n, d)
    gained: tf.Tensor  # by the last steps, (n,)
    damping: tf.Tensor  # (n,)
    precision: tf.Tensor  # (n, d, d)

    @staticmethod
    def begin(z: np.ndarray) -> "Walk":
        """Start points (..., d) before the first step."""
        ones, identity = np.ones(z.shape[:-1], np.float32), np.eye(z.shape[-1], dtype=np.float32)
        precision = np.broadcast_to(identity, (*z.shape, z.shape[-1])).copy()
        return Walk(z, -np.inf * ones, 0.0 * z, ones, 0.0 * ones, precision)


class SearchSize(NamedTuple):
    """How thoroughly modes are searched for."""

    n_starts: tuple[int, ...]  # in addition to the encoder's point; after the first, only where a mode may be missing
    n_steps: int  # Newton steps from each start point, at most
    n_kept: int  # modes, at most


class Found(NamedTuple):
    """What a search found for each row, as arrays, with a cautious estimate of the posterior mass that it missed.

    The estimate is the largest of three: the weight of modes that a single start point led to, as about as much was
    probably not found at all (Good 1953); the expected share m (1 - 1 / m)^S that S start points miss of m equal modes,
    with m one more than the effective number of modes found; and the weight of modes that were found but not kept. For
    the first two, modes within reach of each other are one: draws around one of them would find the other. Start points
    that are still moving at the end are none of the S.
    """

    modes: Modes
    proposal: Proposal  # of the encoder
    missed_mass: np.ndarray  # (rows,)
    n_gradients: np.ndarray  # (rows,) int64

    def take(self, index: np.ndarray | slice) -> "Found":
        """What was found for some rows."""
        return tf.nest.map_structure(lambda part: part[index], self)


class ModeFinder:
    """Finds the modes of the rows of a model; equal arguments give equal bits."""

    def __init__(self, model: FittedModel) -> None:
        self._model, self.bank = model, make_bank(model)
        self._look_up = Program(lambda target: look_up(model, self.bank, target), model.few_rows)
        few_starts = _STARTS[0] if model.few_rows else 0
        self._climb = Program(lambda target, walk, n: climb(model.decoder, target, walk, n), few_starts)

    def look_up(self, rows: Rows) -> tuple[Proposal, np.ndarray]:
        """The encoder's proposal for each row, and log p(x | z) of the bank (rows, n)."""
        sizes, parts = [self._model.limit(size, _GROUP_CELLS) for size in _GROUPS], []
        for index, padded in split(np.arange(len(rows)), sizes):
            part = self._look_up(Target.from_rows(rows.take(padded)))
            parts.append([tensor.numpy()[: len(index)] for tensor in tf.nest.flatten(part)])
        mean, sd, height = (np.concatenate(some) for some in zip(*parts, strict=True))
        return Proposal(mean, sd), height

    def find(self, rows: Rows, size: SearchSize, seed: int, carried: np.ndarray | None = None) -> Found:
        """The modes uphill of start points, and of places `carried` (rows, some, d) from an earlier attempt.

        A carried place does not count as a start point that found its mode, so it does not lower the missed mass.
        """
        proposal, height = self.look_up(rows)
        target = Target.from_rows(rows).change(lambda part: part.numpy())
        known = np.zeros((len(rows), 0, self._model.latent_dim), np.float32) if carried is None else carried
        walk, n_carried = Walk.begin(np.concatenate([known, proposal.mean[:, None]], axis=1)), known.shape[1]
        n_gradients, index = np.zeros(len(rows), np.int64), np.arange(len(rows))
        found: Found | None = None
        for level, n_more in enumerate(size.n_starts):
            rng = generator(seed, "candidates", level)
            more = choose_candidates(self.bank, height[index], walk.z[:, n_carried:], n_more, rng)
            walk = _join(walk, Walk.begin(more))
            walk, is_settled, spent = self._climb_all(target.take(index), walk, size.n_steps)
            n_gradients[index] += spent
            modes, missed_mass = weigh_modes(walk, is_settled, n_carried, size.n_kept)
            if found is None:
                found = Found(modes, proposal, missed_mass, n_gradients)
            for whole, part in zip((*found.modes, found.missed_mass), (*modes, missed_mass), strict=True):
                whole[index] = part
            is_open = ~(missed_mass <= MOST_MISSED_MASS)
            index, walk = index[is_open], Walk(*(part[is_open] for part in walk))
            if not len(index):
                break
        assert found is not None
        return found

    def _climb_all(self, target: Target, walk: Walk, n_steps: int) -> tuple[Walk, np.ndarray, np.ndarray]:
        """Newton steps of all start points (rows, starts, ...) that still move; which have settled, gradients spent."""
        n_rows, n_starts, d = walk.z.shape
        flat = Walk(*(part.reshape(-1, *part.shape[2:]) for part in walk))
        most = self._model.slice_latents // (d + 1)
        sizes = [_STARTS[0], *(size for size in (*_STARTS[1:], most) if size <= most)]
        is_open, spent = flat.gained > _LEAST_GAIN, np.zeros(n_rows, np.int64)
        for first in range(0, n_steps, _STEPS_PER_PRECISION):
            n_now = _STEPS_PER_PRECISION + (first == 0)  # the very first one evaluates the start point
            for group, padded in split(np.flatnonzero(is_open), sizes):
                moved = self._climb(
                    target.take(padded // n_starts), Walk(*(part[padded] for part in flat)), tf.constant(n_now)
                )
                for whole, part in zip(flat, moved, strict=True):
                    whole[group] = part.numpy()[: len(group)]
                np.add.at(spent, group // n_starts, n_now + d)
                stopping.check()
            is_moving = (flat.gained > _LEAST_GAIN).reshape(n_rows, n_starts)
            walk = Walk(*(part.reshape(n_rows, n_starts, *part.shape[1:]) for part in flat))
            is_open = is_moving & ~_is_below(walk)
            if first + _STEPS_PER_PRECISION >= _FEWEST_STEPS:
                is_open &= ~_is_hopeless(walk)
            is_open = is_open.reshape(-1)
            if not is_open.any():
                break
        return walk, ~is_open.reshape(n_rows, n_starts), spent


def _join(walk: Walk, more: Walk) -> Walk:
    return Walk(*(np.concatenate(parts, axis=1) for parts in zip(walk, more, strict=True)))


def split(index: np.ndarray, sizes: Sequence[int]) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Positions (n,) in groups of the sizes that compiled programs take, each as it is, and repeated up to its size.

    The largest size of which at least half is needed comes first.
    """
    while len(index):
        size = max((size for size in sizes if size <= 2 * len(index)), default=min(sizes))
        yield index[:size], np.resize(index[:size], size)
        index = index[size:]


# Steps


def find_mode(decoder: DecoderLike, target: Target, start: tf.Tensor, n_legs: int = _N_LEGS) -> Mode:
    """A mode of each row's latent posterior, from one start point (rows, d). For use inside a compiled program."""

    def is_moving(index: tf.Tensor, walk: Walk) -> tf.Tensor:
        return (index < n_legs) & tf.reduce_any(walk.gained > _LEAST_GAIN)

    def leg(index: tf.Tensor, walk: Walk) -> tuple[tf.Tensor, Walk]:
        return index + 1, climb(decoder, target, walk, tf.where(index > 0, 0, 1) + _STEPS_PER_PRECISION)

    none, identity = tf.zeros_like(start[:, 0]), tf.eye(start.shape[1], batch_shape=[start.shape[0]], dtype=start.dtype)
    walk = Walk(start, none - np.inf, tf.zeros_like(start), none + 1.0, none, identity)
    n_made, walk = tf.while_loop(is_moving, leg, (tf.constant(0), walk))
    factor, inverse = factorise(walk.precision)
    # Where a network overflows, the identity keeps the place finite: other parts of a proposal then take over.
    is_sound = tf.reduce_all(tf.math.is_finite(factor) & tf.math.is_finite(inverse), axis=[1, 2], keepdims=True)
    factor, inverse = (tf.where(is_sound, part, identity) for part in (factor, inverse))
    return Mode(walk.z, factor, inverse, n_made * _STEPS_PER_PRECISION)


def climb(decoder: DecoderLike, target: Target, walk: Walk, n_steps: tf.Tensor) -> Walk:
    """Damped Gauss-Newton steps that share a precision, for each of some start points.

    With m = mean(z), v = variance(z) and their derivatives along z, the Hessian is replaced by its expectation over x,

        P = I + sum over columns of (dm dm') / v + (d log v)(d log v)' / 2,

    which is positive definite everywhere; a column with cells counts for its share of the information. A step that
    leads downhill is rejected, and its row tries a shorter one. Missing cells are ignored.
    """
    precision = expected_precision(decoder, target, walk.z)
    diagonal = tf.linalg.diag(tf.linalg.diag_part(precision))

    def newton_step(index, z, here, slope, gained, damping):  # type: ignore[no-untyped-def]
        _, inverse = factorise(precision + damping[:, None, None] * diagonal)
        step = tf.linalg.matvec(inverse, tf.linalg.matvec(inverse, slope), transpose_a=True)
        with tf.GradientTape() as tape:
            tape.watch(trial := z + step)
            there = log_joint(trial, target.x, decoder, y=target.y, mask=target.observed)
        is_higher = there > here  # False for NaN
        z, slope = (
            tf.where(is_higher[:, None], *parts) for parts in ((trial, z), (tape.gradient(there, trial), slope))
        )
        more = tf.where(is_higher & tf.math.is_finite(here), there - here, 0.0)
        gained = tf.where(is_higher, 0.25, 0.5) * gained + more
        damping = tf.where(is_higher, damping / 4.0, 4.0 * damping + 0.1)
        return index + 1, z, tf.where(is_higher, there, here), slope, gained, damping

    state = tf.constant(0), walk.z, walk.height, walk.slope, walk.gained, walk.damping
    *_, z, here, slope, gained, damping = tf.while_loop(lambda index, *_: index < n_steps, newton_step, state)
    return Walk(z, here, slope, gained, damping, precision)


def expected_precision(decoder: DecoderLike, target: Target, z: tf.Tensor) -> tf.Tensor:
    """The expected Hessian of the negative log joint at z, about. (rows, d) -> (rows, d, d)."""
    n_rows, d = z.shape
    moves = tf.concat([tf.zeros([1, d], z.dtype), _DIFFERENCE * tf.eye(d, dtype=z.dtype)], axis=0)
    each = target.repeat(1 + d)
    places = tf.reshape(z[:, None] + moves, [-1, d])
    mean, variance, *cells = decoder(places) if each.y is None else decoder(places, each.y)
    variance = tf.broadcast_to(variance, mean.shape)
    mean, variance = (tf.reshape(part, [n_rows, 1 + d, mean.shape[1]]) for part in (mean, variance))
    log_variance = tf.math.log(variance)
    slopes = [(part[:, 1:] - part[:, :1]) / _DIFFERENCE for part in (mean, log_variance)]  # (rows, d, p)
    mean, variance = mean[:, :1], variance[:, :1]
    if target.observed is not None:
        slopes = [tf.where(target.observed[:, None], part, 0.0) for part in slopes]
    mean_slope, log_variance_slope = slopes[0] / tf.sqrt(variance), slopes[1]
    if cells:
        found = cells[0].find(target.x[:, None, :])
        share = information_share(*standard_edges(mean, variance, found))  # (rows, 1, p)
        share = tf.where(found.is_inside, share, tf.ones_like(share))
        mean_slope, log_variance_slope = tf.sqrt(share) * mean_slope, share * log_variance_slope
    scaled = tf.concat([mean_slope, math.sqrt(0.5) * log_variance_slope], axis=2)
    return tf.eye(d, dtype=z.dtype)[None] + tf.matmul(scaled, scaled, transpose_b=True)


# Start points


def choose_candidates(bank: Bank, height: np.ndarray, near: np.ndarray, n: int, rng: np.random.Generator) -> np.ndarray:
    """Choose n latents of the bank for each row, far from `near` (rows, some, d) and from each other.

    height (rows, bank): log p(x | z) -> (rows, n, d). The first half are likely latents, drawn without replacement by a
    likelihood that is tempered, as in many dimensions the nearest latent alone would always be taken. The second half
    are peaks: next to a narrow mode the likelihood is low, but higher than around; after the peaks, any latent. Within
    each half the next candidate is the one farthest from those before, so that modes of equal height are all tried.
    """
    n_rows, n_each = len(height), min(_N_CANDIDATES, height.shape[1])
    best = -np.partition(-height, n_each - 1, axis=1)[:, :n_each]
    highest = best.max(axis=1, keepdims=True)
    temperature = np.maximum(1.0, 0.5 * (highest - best.min(axis=1, keepdims=True)))
    likely = _highest((height - highest) / temperature + rng.gumbel(size=height.shape), n_each)
    joint = height - 0.5 * np.square(bank.z).sum(axis=1)
    is_peak = joint > joint[:, bank.neighbours].max(axis=2)
    peaks = _highest(np.where(is_peak, joint, LOWEST * (1.0 + rng.uniform(size=height.shape))), n_each)
    index = np.concatenate([likely, peaks], axis=1)
    pool = bank.z[index]  # (rows, pool, d)
    is_likely = np.arange(2 * n_each) < n_each
    preference = np.where(is_likely | np.take_along_axis(is_peak, index, axis=1), 1.0, _ANY_PREFERENCE)
    distance = np.full(index.shape, np.inf)
    for place in near.swapaxes(0, 1):
        distance = np.minimum(distance, np.square(pool - place[:, None]).sum(axis=2))
    chosen = np.empty((n_rows, n, pool.shape[2]), np.float32)
    for k in range(n):
        is_open = is_likely == (k < n - n // 2)
        farthest = np.where(is_open, preference * distance, -1.0).argmax(axis=1)
        chosen[:, k] = pool[np.arange(n_rows), farthest]
        distance = np.minimum(distance, np.square(pool - chosen[:, k, None]).sum(axis=2))
    return chosen


def _highest(values: np.ndarray, n: int) -> np.ndarray:
    """The positions of the n highest values of each row, in no order."""
    return np.argpartition(-values, n - 1, axis=1)[:, :n]


# From places to modes


def _distances(walk: Walk) -> np.ndarray:
    """Squared distances between the places of each row: [r, s, t] from s to t in the metric of s. (rows, n, n)."""
    difference = walk.z[:, None] - walk.z[:, :, None]
    with np.errstate(invalid="ignore", over="ignore"):
        return np.maximum((np.matmul(difference, walk.precision) * difference).sum(axis=3), 0.0)


def _cholesky(precision: np.ndarray) -> np.ndarray:
    """Lower triangular L of precisions L L', which are at least I. Where a network overflows, the identity."""
    is_sound = np.isfinite(precision).all(axis=(-2, -1), keepdims=True)
    precision = np.where(is_sound, precision, np.eye(precision.shape[-1]))
    try:
        return np.linalg.cholesky(precision)
    except np.linalg.LinAlgError:  # rounding may have left an eigenvalue below 1
        values, vectors = np.linalg.eigh(precision)
        scaled = vectors * np.maximum(values, 1.0)[..., None, :]
        return np.linalg.cholesky(scaled @ vectors.swapaxes(-2, -1))


def _are_in_reach(distance: np.ndarray, d: int) -> np.ndarray:
    """Which places of a row are within reach of each other, in the metric of both. (rows, n, n)."""
    is_near = distance < max(_REACH**2, _SAME_MODE * d)
    return is_near & is_near.swapaxes(1, 2)


def _is_below(walk: Walk) -> np.ndarray:
    """Which places are within reach of a higher one of their row. (rows, n)."""
    is_higher = walk.height[:, None] > walk.height[:, :, None]
    return (_are_in_reach(_distances(walk), walk.z.shape[2]) & is_higher).any(axis=2)


def _is_hopeless(walk: Walk) -> np.ndarray:
    """Which places are so far below the highest one of their row that they will not come near. (rows, n)."""
    highest = walk.height.max(axis=1, keepdims=True)
    return walk.height < highest - _FAR_BELOW - _MOST_MORE * walk.gained  # False for NaN


def weigh_modes(walk: Walk, is_settled: np.ndarray, n_carried: int, n_kept: int) -> tuple[Modes, np.ndarray]:
    """The heaviest modes among the places of each row, and the mass that was missed: see `Found`.

    walk and is_settled (rows, n); the first `n_carried` of a row are places known from an earlier attempt.
    """
    (_, n, d), rows = walk.z.shape, np.arange(len(walk.z))[:, None]
    # Highest first: of several places that are one mode, the highest represents it.
    order = np.argsort(-np.where(np.isfinite(walk.height), walk.height, LOWEST), axis=1, kind="stable")
    walk, is_settled = Walk(*(part[rows, order] for part in walk)), is_settled[rows, order]
    factor = _cholesky(walk.precision.astype(np.float64))
    height = np.where(np.isfinite(walk.height), walk.height, LOWEST).astype(np.float64)
    # Without d/2 log 2 pi, which is the same for all.
    log_mass = height - np.log(np.diagonal(factor, axis1=2, axis2=3)).sum(axis=2)
    distance = _distances(walk)
    distance[:, np.arange(n), np.arange(n)] = 0.0
    is_in_reach = _are_in_reach(distance, d)
    is_after = np.arange(n)[:, None] < np.arange(n)[None, :]
    # A place that has not arrived is no mode of its own beside a higher one within its reach.
    is_on_its_way = walk.gained > _LEAST_GAIN
    is_same = (distance < _SAME_MODE * d) | (is_in_reach & is_on_its_way[:, None, :])
    has_higher = (is_same & is_after).any(axis=1)
    log_weight = np.where(has_higher, _NOTHING, log_mass)
    log_weight -= log_weight.max(axis=1, keepdims=True)
    log_weight -= np.log(np.exp(log_weight).sum(axis=1, keepdims=True))
    weight = np.exp(log_weight)
    is_fresh = order >= n_carried
    n_finds = (is_in_reach & is_fresh[:, None]).sum(axis=2)
    found_once = np.where(n_finds <= 1, weight, 0.0).sum(axis=1)
    weight_in_reach = np.where(is_in_reach, weight[:, None], 0.0).sum(axis=2)
    m = 1.0 / (weight * weight_in_reach).sum(axis=1) + 1.0
    not_found = np.maximum(found_once, np.minimum(m * (1.0 - 1.0 / m) ** (is_fresh & is_settled).sum(axis=1), 1.0))
    kept = np.argsort(-log_weight, axis=1, kind="stable")[:, :n_kept]
    missed_mass = np.maximum(not_found, 1.0 - weight[rows, kept].sum(axis=1))
    log_kept = log_weight[rows, kept]
    log_kept -= np.log(np.exp(log_kept).sum(axis=1, keepdims=True))
    factor = factor[rows, kept]
    inverse = np.linalg.inv(factor).astype(np.float32)
    modes = Modes(walk.z[rows, kept], factor.astype(np.float32), inverse, log_kept)
    return modes, missed_mass.astype(np.float32)
