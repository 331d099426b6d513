"""Hamiltonian Monte Carlo (Neal 2011) as pure functions, and the chains of a whole block in one compiled program.

With the energy H(z, m) = -log p(z) + |m|^2 / 2, a transition draws a momentum m ~ N(0, I), follows the leapfrog

    m <- m + (eps/2) A' grad log p(z),    z <- z + eps A m,    m <- m + (eps/2) A' grad log p(z)

and accepts its end with probability min(1, exp(H(start) - H(end))). The metric A of a row, (d, d), is about a square
root of the posterior covariance; without one it is the identity. This equals a mass matrix (A A')^-1, with the momentum
in units in which it is standard normal.

Where modes are known, a jump follows: a proposal from the mixture of t's at the modes, accepted by the rule of
Metropolis and Hastings. Trajectories explore a mode. Jumps carry chains between modes and make their draws nearly
independent where the posterior is nearly normal."""

import math
from collections.abc import Callable
from typing import NamedTuple

import tensorflow as tf

from bayesnde_cli.inference import modes
from bayesnde_cli.inference.modes import Modes
from bayesnde_cli.model import backend
from bayesnde_cli.model.likelihood import DecoderLike, LogDensity, Target
from bayesnde_cli.settings.stage_settings import PosteriorSettings

# A trajectory that loses this much energy has diverged.
_DIVERGENCE = 1000.0
# Dual averaging (Hoffman and Gelman 2014, section 3.2.1): their gamma, t0 and kappa.
_GAMMA, _DELAY, _POWER = 0.05, 10.0, 0.75
# Step sizes are jittered by this share, up or down.
_JITTER = 0.2
# Transitions in one call of the compiled program.
TRANSITIONS_PER_CALL = 25


class PhasePoint(NamedTuple):
    """Position and momentum of every row, with the log-density there."""

    z: tf.Tensor  # (rows, d)
    momentum: tf.Tensor  # (rows, d)
    log_density: tf.Tensor  # (rows,)
    gradient: tf.Tensor  # (rows, d)

    def energy(self) -> tf.Tensor:
        """H = -log p(z) + |m|^2 / 2. (rows,)."""
        return 0.5 * tf.reduce_sum(tf.square(tf.cast(self.momentum, self.log_density.dtype)), axis=1) - self.log_density


class TransitionInfo(NamedTuple):
    """What a transition reports about each row, (rows,) each."""

    acceptance: tf.Tensor  # probability of the move; 0 where the leapfrog ran off to values that are not finite
    energy_gain: tf.Tensor  # H(start) - H(end); strongly negative or NaN for a divergent trajectory


def phase_point(log_density: LogDensity, z: tf.Tensor, momentum: tf.Tensor) -> PhasePoint:
    """The point (z, momentum) with its log-density and gradient. (rows, d) twice."""
    with tf.GradientTape() as tape:
        tape.watch(z)
        value = log_density(z)
    return PhasePoint(z, momentum, value, tape.gradient(value, z))


def leapfrog(
    log_density: LogDensity,
    start: PhasePoint,
    step_size: tf.Tensor,
    n_leapfrog: int | tf.Tensor,
    metric: tf.Tensor | None = None,
) -> PhasePoint:
    """The end of `n_leapfrog` steps of size `step_size` (rows,), with the metric A of each row, (rows, d, d)."""
    eps = step_size[:, None]  # (rows, 1)

    def push(point: PhasePoint) -> tf.Tensor:
        force = point.gradient if metric is None else tf.linalg.matvec(metric, point.gradient, transpose_a=True)
        return point.momentum + 0.5 * eps * force

    def step(index: tf.Tensor, point: PhasePoint) -> tuple[tf.Tensor, PhasePoint]:
        momentum = push(point)
        velocity = momentum if metric is None else tf.linalg.matvec(metric, momentum)
        point = phase_point(log_density, point.z + eps * velocity, momentum)
        return index + 1, point._replace(momentum=push(point))

    _, end = tf.while_loop(lambda index, _: index < n_leapfrog, step, (tf.constant(0), start))
    return end


def hmc_step(
    log_density: LogDensity,
    start: PhasePoint,
    step_size: tf.Tensor,
    uniform: tf.Tensor,
    n_leapfrog: int | tf.Tensor,
    metric: tf.Tensor | None = None,
) -> tuple[PhasePoint, TransitionInfo]:
    """One transition from an evaluated point, with `uniform` (rows,) in (0, 1) to decide about the move.

    The returned point is evaluated as well, so that no log-density or gradient is computed twice.
    """
    end = leapfrog(log_density, start, step_size, n_leapfrog, metric)
    energy_gain = start.energy() - end.energy()
    is_valid = tf.reduce_all(tf.math.is_finite(end.z), axis=1) & tf.math.is_finite(end.energy())
    # A start of log-density NaN compares with nothing: such a chain stays, too.
    is_valid &= ~tf.math.is_nan(energy_gain)
    acceptance = tf.where(is_valid, tf.exp(tf.minimum(energy_gain, 0.0)), tf.zeros_like(energy_gain))
    acceptance = tf.cast(acceptance, start.z.dtype)
    return _select(uniform < acceptance, end, start), TransitionInfo(acceptance, energy_gain)


def transition(
    log_density: LogDensity, z: tf.Tensor, step_size: tf.Tensor, seed: tf.Tensor, *, n_leapfrog: int
) -> tuple[tf.Tensor, tf.Tensor]:
    """The chains (rows, d) after one transition, and their acceptance probabilities (rows,). step_size (rows,)."""
    # One call for both, as XLA takes a third of a second to compile each call for random numbers.
    noise = backend.normal([z.shape[0], z.shape[1] + 1], seed, dtype=z.dtype)
    start = phase_point(log_density, z, noise[:, :-1])
    end, info = hmc_step(log_density, start, step_size, _normal_cdf(noise[:, -1]), n_leapfrog)
    return end.z, info.acceptance


def _select(is_first: tf.Tensor, first: PhasePoint, second: PhasePoint) -> PhasePoint:
    """The first point where `is_first` (rows,), the second elsewhere."""
    pairs = zip(first, second, strict=True)
    return PhasePoint(*(tf.where(is_first if len(a.shape) == 1 else is_first[:, None], a, b) for a, b in pairs))


def _normal_cdf(noise: tf.Tensor) -> tf.Tensor:
    """Uniform numbers from normal ones (of opposite sign)."""
    return 0.5 * tf.math.erfc(math.sqrt(0.5) * noise)


# All chains of a block advance in lockstep; the chains of a row lie next to each other.


class ChainState(NamedTuple):
    """The state of the chains of a block."""

    point: PhasePoint  # (rows times chains, ...); the momentum is drawn anew in every transition
    log_step: tf.Tensor  # (rows,): in the warm-up
    mean_log_step: tf.Tensor  # (rows,): after the warm-up
    misses: tf.Tensor  # (rows,): running mean of target minus acceptance
    first_log_step: tf.Tensor  # (rows,)
    index: tf.Tensor  # int32 scalar: number of transitions made


class Segment(NamedTuple):
    """The draws of one call, and what it reports."""

    z: tf.Tensor  # (transitions, rows times chains, d)
    acceptance: tf.Tensor  # (transitions, rows): of the trajectories, averaged over chains
    divergences: tf.Tensor  # (transitions, rows) int32
    n_gradients: tf.Tensor  # (transitions,) int32, per chain


# (state, target, metric, modes, seed, n_adapting) -> (state, segment)
SegmentRunner = Callable[..., tuple[ChainState, Segment]]


def init(decoder: DecoderLike, target: Target, z: tf.Tensor, step_size: tf.Tensor) -> ChainState:
    """The state before the first transition. z (rows, chains, d), step_size (rows,)."""
    each = target.repeat(z.shape[1])
    flat = tf.reshape(z, [-1, z.shape[2]])
    point = phase_point(lambda z: each.log_joint(decoder, z), flat, tf.zeros_like(flat))
    log_step = tf.math.log(step_size)
    return ChainState(point, log_step, log_step, tf.zeros_like(log_step), log_step, tf.constant(0, tf.int32))


def segment_runner(decoder: DecoderLike, settings: PosteriorSettings, at_once: int | None = None) -> SegmentRunner:
    """A function that makes the next transitions of all chains, ready to be compiled.

    Its metric (rows, d, d) is A of each row; without modes there are no jumps. Its seed (two int32) is the address of
    the chains: random numbers depend on it and on the index of the transition. The first `n_adapting` transitions
    (int32) tune the step sizes. Number and size of the leapfrog steps vary, except from the paper's start at the
    encoder. `at_once` is the number of latents to decode together.
    """
    n_steps, n_chains = TRANSITIONS_PER_CALL, settings.chains
    is_jittered = settings.start != "encoder"

    def run(  # type: ignore[no-untyped-def]
        state: ChainState, target: Target, metric, known: Modes | None, seed, n_adapting
    ) -> tuple[ChainState, Segment]:
        n_rows, d = target.x.shape[0], state.point.z.shape[1]
        each_metric = tf.repeat(metric, n_chains, axis=0)
        log_density = target.repeat(n_chains).log_density(decoder, at_once)

        def by_row(values: tf.Tensor) -> tf.Tensor:
            return tf.reshape(values, [n_rows, n_chains])

        def move(step: tf.Tensor, state: ChainState, segment: Segment) -> tuple[tf.Tensor, ChainState, Segment]:
            address = tf.random.experimental.stateless_fold_in(seed, state.index)
            # One call for all noise of a transition: XLA takes long to compile each.
            noise = backend.normal([n_rows * n_chains, 2 * d + modes.FREEDOM + 5], address)
            momentum, jump_noise, freedom_noise, rest = tf.split(noise, [d, d, modes.FREEDOM, 5], axis=1)
            uniform = _normal_cdf(rest)  # (rows times chains, 5)
            n_leapfrog = tf.constant(settings.leapfrogs)
            eps = tf.exp(tf.where(state.index < n_adapting, state.log_step, state.mean_log_step))
            if is_jittered:
                # All chains share the number of steps; the chains of a row share their size.
                n_leapfrog = 1 + tf.cast(uniform[0, 2] * (settings.leapfrogs - 1e-3), tf.int32)
                eps *= 1.0 + _JITTER * (2.0 * by_row(uniform[:, 3])[:, 0] - 1.0)
            start, steps = state.point._replace(momentum=momentum), tf.repeat(eps, n_chains)
            point, info = hmc_step(log_density, start, steps, uniform[:, 0], n_leapfrog, each_metric)
            if known is not None:
                numbers = jump_noise, freedom_noise, uniform[:, 4]
                point = _jump(log_density, known, point, numbers, uniform[:, 1])
            is_divergent = ~(info.energy_gain > -_DIVERGENCE)  # NaN, too
            acceptance = tf.reduce_mean(by_row(info.acceptance), axis=1)
            n_divergent = tf.reduce_sum(tf.cast(by_row(is_divergent), tf.int32), axis=1)
            state = adapt_step(state, acceptance, settings.target_acceptance, n_adapting)
            made = Segment(point.z, acceptance, n_divergent, n_leapfrog + (0 if known is None else 1))
            records = zip(segment, made, strict=True)
            segment = Segment(*(tf.tensor_scatter_nd_update(all_, [[step]], new[None]) for all_, new in records))
            return step + 1, state._replace(point=point), segment

        empty = Segment(
            tf.zeros([n_steps, n_rows * n_chains, d]),
            tf.zeros([n_steps, n_rows]),
            tf.zeros([n_steps, n_rows], tf.int32),
            tf.zeros([n_steps], tf.int32),
        )
        start = tf.constant(0), state, empty
        return tf.while_loop(lambda step, *_: step < n_steps, move, start, maximum_iterations=n_steps)[1:]

    return run


def _jump(
    log_density: LogDensity, known: Modes, point: PhasePoint, numbers: tuple[tf.Tensor, ...], uniform: tf.Tensor
) -> PhasePoint:
    """The chains after a proposal from the mixture of t's at the modes, drawn with the random `numbers`."""
    n_rows = known.z.shape[0]

    def by_row(values: tf.Tensor) -> tf.Tensor:
        return tf.reshape(values, [n_rows, -1, *values.shape[1:]])

    z = modes.draw_jump(known, *map(by_row, numbers))
    proposed = phase_point(log_density, tf.reshape(z, point.z.shape), point.momentum)
    log_q = modes.log_jump(known, tf.concat([by_row(point.z), z], axis=1))
    log_q_here, log_q_there = (tf.reshape(part, [-1]) for part in tf.split(log_q, 2, axis=1))
    log_ratio = proposed.log_density - point.log_density + log_q_here - log_q_there
    # A comparison with NaN is False: such a chain stays.
    return _select(tf.math.log(tf.cast(uniform, tf.float64)) < log_ratio, proposed, point)


def adapt_step(state: ChainState, acceptance: tf.Tensor, target_acceptance: float, n_adapting: tf.Tensor) -> ChainState:
    """The state after one step of dual averaging, as long as the warm-up lasts. acceptance (rows,)."""
    time = tf.cast(state.index + 1, tf.float32)
    share = 1.0 / (time + _DELAY)
    misses = (1.0 - share) * state.misses + share * (target_acceptance - acceptance)
    log_step = state.first_log_step - tf.sqrt(time) / _GAMMA * misses
    weight = time**-_POWER
    mean_log_step = weight * log_step + (1.0 - weight) * state.mean_log_step
    is_adapting = state.index < n_adapting
    return state._replace(
        log_step=tf.where(is_adapting, log_step, state.log_step),
        mean_log_step=tf.where(is_adapting, mean_log_step, state.mean_log_step),
        misses=tf.where(is_adapting, misses, state.misses),
        index=state.index + 1,
    )
