"""Adam, AdamW, schedules, clipping and weight averaging as pure functions of mappings of tensors.

Parameters, gradients and states are tensors in dictionaries with the same keys and nothing else, so that they can be
the loop variables of a compiled loop, and be saved and restored as they are.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import tensorflow as tf

from bayesnde_cli.model.parameters import Parameters, global_norm


class AdamState(NamedTuple):
    """How many steps were made, and the running means of the gradients and of their squares.

    `step` is an int32 scalar; or a tensor that broadcasts against every parameter, when rows are visited unequally
    often: (rows, 1) for latents of shape (rows, d).
    """

    step: tf.Tensor
    first: dict[str, tf.Tensor]
    second: dict[str, tf.Tensor]


def adam_start(parameters: Parameters) -> AdamState:
    """The state before the first step."""
    zeros = {name: tf.zeros_like(value) for name, value in parameters.items()}
    return AdamState(step=tf.constant(0, tf.int32), first=zeros, second=dict(zeros))


def adam_step(
    gradients: Parameters,
    state: AdamState,
    parameters: Parameters,
    *,
    learning_rate: tf.Tensor | float,
    beta_1: float,
    beta_2: float,
    epsilon: float,
    weight_decay: float = 0.0,
) -> tuple[dict[str, tf.Tensor], AdamState]:
    """The parameters and the state after one step of Adam (Kingma and Ba 2015, algorithm 1).

    With `weight_decay` it is AdamW (Loshchilov and Hutter 2019): every parameter also shrinks by learning_rate *
    weight_decay of itself, apart from the gradient.
    """
    step = state.step + 1
    first, second, moved = {}, {}, {}
    for name, value in parameters.items():
        gradient = gradients[name]
        first[name] = beta_1 * state.first[name] + (1.0 - beta_1) * gradient
        second[name] = beta_2 * state.second[name] + (1.0 - beta_2) * tf.square(gradient)
        mean = first[name] / _bias_correction(beta_1, step, value.dtype)
        root = tf.sqrt(second[name] / _bias_correction(beta_2, step, value.dtype))
        moved[name] = value - learning_rate * (mean / (root + epsilon) + weight_decay * value)
    return moved, AdamState(step=step, first=first, second=second)


def _bias_correction(beta: float, step: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
    """1 - beta^step, without the cancellation that costs float32 half its digits in the first steps."""
    if beta == 0.0:
        return tf.ones_like(step, dtype)
    return -tf.math.expm1(tf.cast(step, dtype) * math.log(beta))


# The factor on the learning rate at time t of n_total, t from 0; what t counts, steps or epochs, is the caller's.
Schedule = Callable[[tf.Tensor, float], tf.Tensor]


def constant_schedule(t: tf.Tensor, n_total: float) -> tf.Tensor:
    """1."""
    return tf.ones_like(_as_float(t))


def decay_schedule(t: tf.Tensor, n_total: float) -> tf.Tensor:
    """(1 + t/10)^-0.6, the paper's for p <= 10 with t in epochs (S3). It knows no end."""
    return tf.pow(1.0 + _as_float(t) / 10.0, -0.6)


def cosine_schedule(t: tf.Tensor, n_total: float) -> tf.Tensor:
    """(1 + cos(pi t / n_total)) / 2: from 1 to 0 at the end, and 0 after it."""
    return 0.5 * (1.0 + tf.cos(math.pi * tf.clip_by_value(_as_float(t) / n_total, 0.0, 1.0)))


SCHEDULES: dict[str, Schedule] = {
    "constant": constant_schedule,
    "decay": decay_schedule,
    "cosine": cosine_schedule,
}


def _as_float(t: tf.Tensor) -> tf.Tensor:
    return tf.cast(t, tf.float32)


def clipped(gradients: Parameters, *, max_norm: float) -> tuple[dict[str, tf.Tensor], tf.Tensor]:
    """The gradients shrunk together to a global norm of at most `max_norm`, and the norm that they had."""
    norm = global_norm(gradients)
    factor = max_norm / tf.maximum(norm, max_norm)
    return {name: factor * gradient for name, gradient in gradients.items()}, norm


def averaged(average: Parameters, parameters: Parameters, *, decay: float) -> dict[str, tf.Tensor]:
    """The exponential moving average after one more step: decay * average + (1 - decay) * parameters.

    Start it at the parameters themselves.
    """
    return {name: value + decay * (average[name] - value) for name, value in parameters.items()}
