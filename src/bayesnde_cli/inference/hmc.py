"""Hamiltonian Monte Carlo (Neal 2011) as pure functions: every row is a chain of its own.

With the energy H(z, m) = -log p(z) + |m|^2 / 2, a transition draws a momentum m ~ N(0, I), follows the leapfrog

    m <- m + (eps/2) A' grad log p(z),    z <- z + eps A m,    m <- m + (eps/2) A' grad log p(z)

and goes to where it ends with probability min(1, exp(H(start) - H(end))), else stays. The spread A of a row, (d, d),
is about a square root of its covariance; without one it is the identity. (It is the same as a mass matrix
(A A')^-1, with the momentum in units in which it is standard normal.) All of it works inside XLA.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import tensorflow as tf

from bayesnde_cli.model import random_numbers

# (rows, d) -> (rows,): each value depends on its own row alone. float64 values make float64 energies.
LogDensity = Callable[[tf.Tensor], tf.Tensor]


class Phase(NamedTuple):
    """A position and a momentum of every row, and what the log-density is there."""

    z: tf.Tensor  # (rows, d)
    momentum: tf.Tensor  # (rows, d)
    log_density: tf.Tensor  # (rows,)
    gradient: tf.Tensor  # (rows, d)

    def energy(self) -> tf.Tensor:
        """H = -log p(z) + |m|^2 / 2. (rows,)."""
        return 0.5 * tf.reduce_sum(tf.square(tf.cast(self.momentum, self.log_density.dtype)), axis=1) - self.log_density


def phase(log_density: LogDensity, z: tf.Tensor, momentum: tf.Tensor) -> Phase:
    """The point (z, momentum) of phase space. (rows, d) twice."""
    with tf.GradientTape() as tape:
        tape.watch(z)
        value = log_density(z)
    return Phase(z, momentum, value, tape.gradient(value, z))


def leapfrog(
    log_density: LogDensity,
    start: Phase,
    step_size: tf.Tensor,
    n_leapfrog: int | tf.Tensor,
    spread: tf.Tensor | None = None,
) -> Phase:
    """Where `n_leapfrog` steps of size `step_size` (rows,) lead: reversible, and true to the volume of phase space.

    spread: A of each row, (rows, d, d).
    """
    eps = step_size[:, None]  # (rows, 1)

    def pushed(point: Phase) -> tf.Tensor:
        force = point.gradient if spread is None else tf.linalg.matvec(spread, point.gradient, transpose_a=True)
        return point.momentum + 0.5 * eps * force

    def step(index: tf.Tensor, point: Phase) -> tuple[tf.Tensor, Phase]:
        momentum = pushed(point)
        velocity = momentum if spread is None else tf.linalg.matvec(spread, momentum)
        point = phase(log_density, point.z + eps * velocity, momentum)
        return index + 1, point._replace(momentum=pushed(point))

    _, end = tf.while_loop(lambda index, _: index < n_leapfrog, step, (tf.constant(0), start))
    return end


def transition(
    log_density: LogDensity, z: tf.Tensor, step_size: tf.Tensor, seed: tf.Tensor, *, n_leapfrog: int
) -> tuple[tf.Tensor, tf.Tensor]:
    """The chains after one transition, and the probability with which each was to move. z (rows, d), step_size (rows,).

    -> (rows, d), (rows,). The probability min(1, exp(H(start) - H(end))) is 0 where the leapfrog ran off to values that
    are not finite. The seed (two int32) is an address: the same one gives the same transition.
    """
    momentum, uniform = _noise(z, seed)
    start = phase(log_density, z, momentum)
    end, acceptance, _ = moved(log_density, start, step_size, uniform, n_leapfrog)
    return end.z, acceptance


def moved(
    log_density: LogDensity,
    start: Phase,
    step_size: tf.Tensor,
    uniform: tf.Tensor,
    n_leapfrog: int | tf.Tensor,
    spread: tf.Tensor | None = None,
) -> tuple[Phase, tf.Tensor, tf.Tensor]:
    """A transition from a point whose log-density and gradient are known: the point after it, so that neither is
    computed twice, the probability of the move, and the loss of energy H(start) - H(end). uniform (rows,) in (0, 1).
    """
    end = leapfrog(log_density, start, step_size, n_leapfrog, spread)
    log_ratio = start.energy() - end.energy()
    is_lawful = tf.reduce_all(tf.math.is_finite(end.z), axis=1) & tf.math.is_finite(end.energy())
    # A start of log-density NaN has no ratio to anything: such a chain stays, too.
    is_lawful &= ~tf.math.is_nan(log_ratio)
    acceptance = tf.where(is_lawful, tf.exp(tf.minimum(log_ratio, 0.0)), tf.zeros_like(log_ratio))
    acceptance = tf.cast(acceptance, start.z.dtype)
    return chosen(uniform < acceptance, end, start), acceptance, log_ratio


def chosen(is_first: tf.Tensor, first: Phase, second: Phase) -> Phase:
    """The first point where `is_first` (rows,), the second elsewhere."""
    return Phase(
        *(
            tf.where(is_first if len(one.shape) == 1 else is_first[:, None], one, other)
            for one, other in zip(first, second, strict=True)
        )
    )


def adapted(log_step: tf.Tensor, acceptance: tf.Tensor, target: float, rate: tf.Tensor | float) -> tf.Tensor:
    """log eps + rate * (acceptance - target), a step of Robbins and Monro (1951). (rows,) twice -> (rows,).

    Acceptance falls as the step size grows, so this climbs to the size at which the mean acceptance is the target.
    """
    return log_step + rate * (acceptance - target)


def _noise(z: tf.Tensor, seed: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """A standard normal number for each coordinate and a uniform one for each row. (rows, d), (rows,)."""
    # One call for both, as every call for random numbers takes XLA a third of a second to compile.
    noise = random_numbers.normal([z.shape[0], z.shape[1] + 1], seed, dtype=z.dtype)
    return noise[:, :-1], 0.5 * tf.math.erfc(math.sqrt(0.5) * noise[:, -1])
