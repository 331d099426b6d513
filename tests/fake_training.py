"""A replacement for the compiled rounds of training: weights that depend on every earlier round, in a few operations.

What remains is all that a training stage does around its rounds: validation checks, checkpoints, selection, writing.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from bayesnde_cli.model.coders import Networks
from bayesnde_cli.model.layers import Parameters
from bayesnde_cli.rows import Rows
from bayesnde_cli.training import recipes, search, selection
from bayesnde_cli.training.generated_rows import DIAGNOSTICS
from bayesnde_cli.training.loop import Phase
from bayesnde_cli.training.objectives import Objective, Pace, State


def install() -> None:
    """Have the training stages of this process run such rounds."""
    recipes.phases_of = _phases
    search.choose = _choose  # type: ignore[assignment]
    selection.ValidationCheck = _Check  # type: ignore[assignment,misc]


@contextmanager
def installed() -> Iterator[None]:
    """Have them run such rounds for a while."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(recipes, "phases_of", _phases)
        patch.setattr(search, "choose", _choose)
        patch.setattr(selection, "ValidationCheck", _Check)
        yield


def fake_phase(name: str, run: Callable[..., Any], pace: Pace, **fields: Any) -> Phase:
    """A phase whose rounds are calls of `run`."""
    objective = Objective((), _unused, _unused, **fields.pop("functions", {}))
    return type("FakePhase", (Phase,), {"run": staticmethod(run)})(name, objective, pace, **fields)


def _phases(settings: Any, networks: Networks, rows: Rows, n_epoch_rows: int | None = None) -> list[Phase]:
    """Two phases for `warmstart`, the second of which begins with the best weights of the first; one for `refine`."""
    names = ("columns", "elbo") if settings.stage == "warmstart" else ("importance",)
    pace = Pace(len(rows), 1, 1, settings.epochs or 4, 1)
    functions = {"settle": _settle}
    return [fake_phase(name, _round, pace, functions=functions, follows_epochs=settings.fresh_noise) for name in names]


def _choose(candidates: list[search.Candidate], *_: Any) -> list[dict[str, Any]]:
    return [{"part": "warmstart", "recipe": own.name, "is_chosen": not index} for index, own in enumerate(candidates)]


def _unused(*_: Any) -> Any:
    raise AssertionError("a round of an objective was traced")


def _settle(state: State, data: Any, seed: tf.Tensor) -> State:
    return _round(state, data, seed + 1)[0]


def _round(state: State, data: Any, seed: tf.Tensor) -> tuple[State, dict[str, Any]]:
    number = state.round + 1
    parameters = {
        name: 0.5 * values + tf.random.stateless_normal(values.shape, tf.stack([seed + index, number]))
        for index, (name, values) in enumerate(sorted(state.parameters.items()))
    }
    average = {name: 0.9 * state.average[name] + 0.1 * values for name, values in parameters.items()}
    done = state._replace(parameters=parameters, average=average, round=number)
    return done, {"loss": tf.reduce_mean(data[0]) + _size(parameters), "first_bad_step": tf.constant(-1)}


class _Check:
    """Figures that depend on every bit of the weights."""

    def __init__(self, settings: Any, networks: Networks, validation: Rows) -> None:
        self._rows, self._offset = validation, float(validation.x.sum())

    def __call__(self, weights: Parameters) -> dict[str, float | None]:
        figure = float(tf.sin(100.0 * _size(weights))) + self._offset
        figures: dict[str, float | None] = {"marginal": figure, "marginal_se": 0.1, "plug_in": -figure}
        return figures | dict.fromkeys(DIAGNOSTICS, figure)

    def log_density(self, weights: Parameters) -> tuple[Rows, np.ndarray]:
        distance = np.square(self._rows.x - float(tf.sin(100.0 * _size(weights)))).sum(axis=1)
        return self._rows, -0.5 * distance - self._rows.x.shape[1]


def _size(weights: Parameters) -> tf.Tensor:
    return tf.add_n([tf.reduce_mean(weights[name]) for name in sorted(weights)])
