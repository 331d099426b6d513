"""A stand-in for the compiled rounds of training: weights that depend on every round before, in a few operations.

What is left is all that a training stage does around its rounds: looks, checkpoints, choosing, publishing.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import tensorflow as tf

from bayesnde_cli.model.parameters import Parameters
from bayesnde_cli.stages.training import fitting
from bayesnde_cli.stages.training.phases import Networks, Phase
from bayesnde_cli.stages.training.rows import Rows
from bayesnde_cli.training import autoencoder_state
from bayesnde_cli.training.autoencoder_state import AutoencoderState
from bayesnde_cli.training.diagnostics import DIAGNOSTICS


def install() -> None:
    """Have the training stages of this process run such rounds."""
    fitting.phases_of = _phases  # type: ignore[assignment]
    fitting.Judge = _Judge  # type: ignore[assignment,misc]


@contextmanager
def installed() -> Iterator[None]:
    """Have them run such rounds for a while."""
    before = fitting.phases_of, fitting.Judge
    install()
    try:
        yield
    finally:
        fitting.phases_of, fitting.Judge = before  # type: ignore[misc]


def _phases(config: Any, networks: Networks, rows: Rows) -> list[Phase]:
    """Two phases for `warmstart`, the second of which begins with the best weights of the first; one for `refine`."""
    names = ("columns", "elbo") if config.stage == "warmstart" else ("importance",)
    return [
        Phase(name, n_rounds=config.epochs or 4, rounds_per_epoch=1, steps_per_round=1, n_looks=None,
              start=autoencoder_state.start, run=_round, settle=_settle, has_fresh_noise=config.fresh_noise)
        for name in names
    ]  # fmt: skip


def _settle(state: AutoencoderState, x: tf.Tensor, y: Any, seed: tf.Tensor) -> AutoencoderState:
    return _round(state, x, y, seed + 1)[0]


def _round(state: AutoencoderState, x: tf.Tensor, y: Any, seed: tf.Tensor) -> tuple[AutoencoderState, dict[str, Any]]:
    number = state.round + 1
    parameters = {
        name: 0.5 * values + tf.random.stateless_normal(values.shape, tf.stack([seed + index, number]))
        for index, (name, values) in enumerate(sorted(state.parameters.items()))
    }
    average = {name: 0.9 * state.average[name] + 0.1 * values for name, values in parameters.items()}
    done = state._replace(parameters=parameters, average=average, round=number)
    return done, {"loss": tf.reduce_mean(x) + _size(parameters), "first_bad_step": tf.constant(-1)}


class _Judge:
    """Figures that any bit of the weights decides."""

    def __init__(self, config: Any, networks: Networks, validation: Rows) -> None:
        self._offset = float(validation.x.sum())

    def __call__(self, weights: Parameters) -> dict[str, float | None]:
        figure = float(tf.sin(100.0 * _size(weights))) + self._offset
        return {"marginal": figure, "marginal_se": 0.1, "plug_in": -figure} | dict.fromkeys(DIAGNOSTICS, figure)


def _size(weights: Parameters) -> tf.Tensor:
    return tf.add_n([tf.reduce_mean(weights[name]) for name in sorted(weights)])
