"""How long training is expected to take: the operations of its phases over the speed of this machine, and compiling."""

import time
from collections.abc import Sequence
from typing import NamedTuple

import tensorflow as tf

from bayesnde_cli.formatting import duration
from bayesnde_cli.training.loop import Phase

# Compiling a phase takes 3 to 11 seconds of one core, most with many columns and layers.
_COMPILE_SECONDS = 6.0
# A training step reaches about this share of the speed of a product of matrices that stay in the cache.
_SPEED_SHARE = 0.9
_SIDE, _MEASURED_SECONDS = 256, 0.03
# Cycles of the refinement that most tables need.
_USUAL_CYCLES = 3


class Forecast(NamedTuple):
    """Seconds that some phases usually take, and at most."""

    usual: float
    longest: float

    def __add__(self, other: object) -> "Forecast":
        assert isinstance(other, Forecast)
        return Forecast(self.usual + other.usual, self.longest + other.longest)

    def __str__(self) -> str:
        if self.longest <= 1.2 * self.usual:
            return f"about {duration(_rounded(self.usual))}"
        return (
            f"about {duration(_rounded(self.usual))}, and up to {duration(_rounded(self.longest))} "
            "if longer training keeps gaining"
        )


def forecast(phases: Sequence[Phase], operations_per_second: float) -> Forecast:
    """The time of some phases, of which later cycles are trained only if they gain enough."""
    compiling, usual, longest = 0.0, 0.0, 0.0
    for index, phase in enumerate(phases):
        seconds = phase.pace.operations / operations_per_second
        longest += seconds
        if phase.least_gain is None or index < _USUAL_CYCLES:
            usual += seconds
        if phase.like is None:
            compiling += _COMPILE_SECONDS
    return Forecast(compiling + usual, compiling + longest)


def measure_speed() -> float:
    """Operations per second of training steps, from products of matrices with the threads of this process."""
    multiply = tf.function(lambda a, b: tf.matmul(a, b), jit_compile=True, autograph=False)
    matrix = tf.ones([_SIDE, _SIDE]) / _SIDE
    multiply(matrix, matrix)
    best = 0.0
    for _ in range(5):  # the best of a few: other processes may take the cores for a moment
        started, n = time.perf_counter(), 0
        while time.perf_counter() - started < _MEASURED_SECONDS:
            multiply(matrix, matrix)
            n += 1
        best = max(best, n / (time.perf_counter() - started))
    return _SPEED_SHARE * 2.0 * _SIDE**3 * best


def _rounded(seconds: float) -> float:
    """Whole tens of seconds, and whole minutes from five on: more would pretend to know."""
    step = 10.0 if seconds < 300.0 else 60.0
    return max(step, step * round(seconds / step))
