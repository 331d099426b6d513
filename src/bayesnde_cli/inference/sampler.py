"""Chains for a whole block: all rows and all their chains advance in lockstep inside one compiled program.

A transition is a leapfrog trajectory of jittered length (see `hmc`) and, where modes are known, a jump: a proposal from
the mixture of t's at the modes, accepted by the rule of Metropolis and Hastings. The trajectories explore a mode, the
jumps carry chains between modes and make their draws nearly independent where the posterior is nearly normal.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import tensorflow as tf

from bayesnde_cli.inference import hmc, modes
from bayesnde_cli.inference.modes import Modes
from bayesnde_cli.inference.target import Target
from bayesnde_cli.model import random_numbers
from bayesnde_cli.model.likelihood import DecoderLike

# A trajectory that loses so much energy has left the dynamics it was to follow.
DIVERGENCE = 1000.0
# Dual averaging (Hoffman and Gelman 2014, section 3.2.1): their gamma, t0 and kappa.
_GAMMA, _DELAY, _POWER = 0.05, 10.0, 0.75
# Step sizes of a trajectory are jittered by this share, on either side.
_JITTER = 0.2


@dataclass(frozen=True)
class SamplerSettings:
    """How chains are run."""

    n_chains: int = 4
    n_warm_up: int = 100
    n_draws: int = 100  # kept of each chain
    n_leapfrog: int = 6  # at most; jittered
    is_jittered: bool = True
    target_acceptance: float = 0.8
    transitions_per_call: int = 25

    @property
    def n_adapting(self) -> int:
        """Transitions that tune the step sizes; in the rest of the warm-up the chains settle."""
        return math.ceil(0.8 * self.n_warm_up)


class ChainState(NamedTuple):
    """Everything that a call changes. Rows times chains, the chains of a row one after the other."""

    point: hmc.Phase  # momentum: of no meaning between calls
    log_step: tf.Tensor  # (rows,): what is tried now
    mean_log_step: tf.Tensor  # (rows,): what is kept after the warm-up
    misses: tf.Tensor  # (rows,): the running mean of target minus acceptance
    first_log_step: tf.Tensor  # (rows,)
    index: tf.Tensor  # int32 scalar, transitions made


class Segment(NamedTuple):
    """What a call tells."""

    z: tf.Tensor  # (transitions, rows times chains, d)
    acceptance: tf.Tensor  # (transitions, rows): of the trajectories, the mean over the chains
    divergences: tf.Tensor  # (transitions, rows) int32
    n_gradients: tf.Tensor  # (transitions,) int32, of each chain


SegmentRunner = Callable[
    [ChainState, Target, tf.Tensor, "Modes | None", tf.Tensor, tf.Tensor], tuple[ChainState, Segment]
]


def start(decoder: DecoderLike, target: Target, z: tf.Tensor, step_size: tf.Tensor) -> ChainState:
    """The state before the first transition. z (rows, chains, d), step_size (rows,)."""
    n_chains = z.shape[1]
    each = target.repeated(n_chains)
    flat = tf.reshape(z, [-1, z.shape[2]])
    point = hmc.phase(lambda z: each.log_joint(decoder, z), flat, tf.zeros_like(flat))
    log_step = tf.math.log(step_size)
    zeros = tf.zeros_like(log_step)
    return ChainState(point, log_step, log_step, zeros, log_step, tf.constant(0, tf.int32))


def segment_runner(decoder: DecoderLike, settings: SamplerSettings, at_once: int | None = None) -> SegmentRunner:
    """A function (state, target, spread, modes, seed, n_adapting) -> (state, segment), to be compiled: some more
    transitions.

    spread (rows, d, d) is the metric of each row; without modes there are no jumps. The seed (two int32) is the
    address of the chains: what is drawn depends on it and on the number of the transition. The first `n_adapting`
    transitions (int32) tune the step sizes. `at_once` is how many latents the decoder is given together.
    """
    n_steps, n_chains = settings.transitions_per_call, settings.n_chains

    def run(
        state: ChainState, target: Target, spread: tf.Tensor, known: Modes | None, seed: tf.Tensor,
        n_adapting: tf.Tensor,
    ) -> tuple[ChainState, Segment]:  # fmt: skip
        n_rows, d = target.x.shape[0], state.point.z.shape[1]
        each, each_spread = target.repeated(n_chains), tf.repeat(spread, n_chains, axis=0)
        log_density = each.log_density(decoder, at_once)

        def by_row(values: tf.Tensor) -> tf.Tensor:
            return tf.reshape(values, [n_rows, n_chains])

        def transition(step, state, z, acceptances, divergences, n_gradients):  # type: ignore[no-untyped-def]
            address = tf.random.experimental.stateless_fold_in(seed, state.index)
            # One call for all of a transition's noise: each takes XLA a while to compile.
            n_noise = 2 * d + modes.FREEDOM + 5
            noise = random_numbers.normal([n_rows * n_chains, n_noise], address)
            momentum, jump, freedom, rest = tf.split(noise, [d, d, modes.FREEDOM, 5], axis=1)
            uniform = 0.5 * tf.math.erfc(math.sqrt(0.5) * rest)  # (rows times chains, 5)
            is_warm_up = state.index < n_adapting
            n_leapfrog = tf.constant(settings.n_leapfrog)
            eps = tf.exp(tf.where(is_warm_up, state.log_step, state.mean_log_step))
            if settings.is_jittered:
                # Lengths are shared by all chains, sizes by those of a row.
                share = uniform[0, 2]
                n_leapfrog = 1 + tf.cast(share * (settings.n_leapfrog - 1e-3), tf.int32)
                eps *= 1.0 + _JITTER * (2.0 * by_row(uniform[:, 3])[:, 0] - 1.0)
            point, acceptance, log_ratio = hmc.moved(
                log_density, state.point._replace(momentum=momentum), tf.repeat(eps, n_chains), uniform[:, 0],
                n_leapfrog, each_spread,
            )  # fmt: skip
            if known is not None:
                point = _jumped(log_density, known, point, jump, freedom, uniform[:, 1], rest[:, 4], n_chains)
            is_lost = ~(log_ratio > -DIVERGENCE)  # NaN, too
            state = _adapted(state, tf.reduce_mean(by_row(acceptance), axis=1), settings, n_adapting)
            row = [[step]]
            return (
                step + 1,
                state._replace(point=point),
                tf.tensor_scatter_nd_update(z, row, point.z[None]),
                tf.tensor_scatter_nd_update(acceptances, row, tf.reduce_mean(by_row(acceptance), axis=1)[None]),
                tf.tensor_scatter_nd_update(
                    divergences, row, tf.reduce_sum(tf.cast(by_row(is_lost), tf.int32), axis=1)[None]
                ),
                tf.tensor_scatter_nd_update(n_gradients, row, n_leapfrog[None] + (0 if known is None else 1)),
            )

        empty = (
            tf.zeros([n_steps, n_rows * n_chains, d]),
            tf.zeros([n_steps, n_rows]),
            tf.zeros([n_steps, n_rows], tf.int32),
            tf.zeros([n_steps], tf.int32),
        )
        _, state, *told = tf.while_loop(
            lambda step, *_: step < n_steps, transition, (tf.constant(0), state, *empty), maximum_iterations=n_steps
        )
        return state, Segment(*told)

    return run


def _jumped(
    log_density: hmc.LogDensity, known: Modes, point: hmc.Phase, noise: tf.Tensor, freedom: tf.Tensor,
    uniform: tf.Tensor, which: tf.Tensor, n_chains: int,
) -> hmc.Phase:  # fmt: skip
    """The chains after a proposal from the mixture of t's at the modes."""

    def by_row(values: tf.Tensor) -> tf.Tensor:
        return tf.reshape(values, [-1, n_chains, *values.shape[1:]])

    choice = 0.5 * tf.math.erfc(math.sqrt(0.5) * which)
    z = modes.draw_jump(known, by_row(noise), by_row(freedom), by_row(choice))
    proposed = hmc.phase(log_density, tf.reshape(z, point.z.shape), point.momentum)
    log_q = modes.log_jump(known, tf.concat([by_row(point.z), z], axis=1))
    log_q_here, log_q_there = (tf.reshape(part, [-1]) for part in tf.split(log_q, 2, axis=1))
    log_ratio = proposed.log_density - point.log_density + log_q_here - log_q_there
    # A comparison with NaN is False: such a chain stays.
    return hmc.chosen(tf.math.log(tf.cast(uniform, tf.float64)) < log_ratio, proposed, point)


def _adapted(state: ChainState, acceptance: tf.Tensor, settings: SamplerSettings, n_adapting: tf.Tensor) -> ChainState:
    """One more step of dual averaging, as long as the warm-up lasts. acceptance (rows,)."""
    time = tf.cast(state.index + 1, tf.float32)
    share = 1.0 / (time + _DELAY)
    misses = (1.0 - share) * state.misses + share * (settings.target_acceptance - acceptance)
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
