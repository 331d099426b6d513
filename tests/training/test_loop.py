"""Compiled rounds, and checkpoints: a stage's own are resumed, others refused, and a restart begins anew."""

import json
import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

import fake_training
from bayesnde_cli.errors import BadArtifact, MissingArtifact, SettingsDiffer
from bayesnde_cli.runs.layout import RunLayout
from bayesnde_cli.settings.stage_settings import WarmstartSettings
from bayesnde_cli.training.loop import Checkpoints, Progress, compile_round
from bayesnde_cli.training.objectives import Objective, Pace, State, start_state
from damages import emptied, newer, truncated


def _step(state: State, rows: tf.Tensor, index: tf.Tensor) -> tuple[State, dict[str, tf.Tensor]]:
    """Add the next row to the weights; the loss is the row."""
    return state._replace(parameters={"w": state.parameters["w"] + rows[index]}), {"loss": rows[index]}


THREE_STEPS = compile_round(Objective(["loss"], lambda state, data, _: (state, data), _step), 3)


@pytest.mark.parametrize(
    ("rows", "loss", "first_bad_step"),
    [
        ([1.0, 2.0, 6.0], 3.0, -1),
        ([1.0, np.nan, 6.0], np.nan, 1),  # the round ends with the step
        ([1.0, 3e38, 3e38], np.inf, 2),  # only the weights after the last step overflow, and the sum of losses
    ],
)
def test_a_round_has_mean_losses_and_tells_its_first_bad_step(
    rows: list[float], loss: float, first_bad_step: int
) -> None:
    state, losses = THREE_STEPS(start_state({"w": tf.zeros([])}), tf.constant(rows), tf.constant(0))
    assert int(state.round) == 1
    np.testing.assert_array_equal(losses["loss"], np.float32(loss))
    assert (int(losses["first_bad_step"]), losses["first_bad_step"].dtype) == (first_bad_step, tf.int32)


@pytest.mark.parametrize(
    ("n_rounds", "n_checks", "expected"), [(6, 3, [2, 4, 6]), (7, 3, [3, 5, 7]), (2, 5, [1, 2]), (4, 1, [4])]
)
def test_checks_are_evenly_spaced_with_the_last_at_the_end(n_rounds: int, n_checks: int, expected: list[int]) -> None:
    phase = fake_training.fake_phase("elbo", lambda: None, Pace(1, 1, 1, n_rounds))
    assert [n for n in range(1, n_rounds + 1) if phase.is_check_due(n, n_checks)] == expected


LAYOUT = RunLayout(Path("run"))
STATE, WEIGHTS = Path("run/warmstart/checkpoint/state.npz"), Path("run/warmstart/checkpoint/check-00001.npz")
IDENTITY = {"settings": {"seed": 1}}
CHECKS = [{"phase": "elbo", "round": n, "marginal": value} for n, value in enumerate([-3.0, -1.0])]


def _checkpoints(identity: dict = IDENTITY, *, is_restart: bool = False) -> Checkpoints:
    return Checkpoints(LAYOUT, WarmstartSettings(), identity, is_restart=is_restart)


def _template(phase: int) -> dict:
    return [{"average": tf.zeros(3), "step": tf.constant(0)}][phase]


@pytest.fixture
def written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A checkpoint after two validation checks, of which the second is the best."""
    monkeypatch.chdir(tmp_path)
    checkpoints = _checkpoints()
    checkpoints.write_weights(1, {"w": tf.range(3.0)})
    checkpoints.write(Progress(0, 1, {"average": tf.range(3.0), "step": tf.constant(7)}, [], CHECKS))


@pytest.mark.usefixtures("written")
def test_an_undamaged_checkpoint_is_resumed_also_by_a_restart() -> None:
    for is_restart in (False, True):
        found = _checkpoints(is_restart=is_restart).read(_template)
        assert found is not None
        assert (found.phase, found.n_rounds, found.checks) == (0, 1, CHECKS)
        assert found.state["average"].numpy().tolist() == [0.0, 1.0, 2.0]
        assert int(found.state["step"]) == 7
    assert _checkpoints().weights(1)["w"].tolist() == [0.0, 1.0, 2.0]


@pytest.mark.usefixtures("written")
@pytest.mark.parametrize("path", [STATE, WEIGHTS], ids=lambda path: path.stem)
@pytest.mark.parametrize("damage", [truncated, emptied, newer], ids=lambda damage: damage.__name__)
def test_a_damaged_one_is_refused_and_a_restart_begins_anew(path: Path, damage: Callable) -> None:
    damage(path, random.Random(0))
    with pytest.raises(BadArtifact) as caught:
        _checkpoints().read(_template)
    is_newer = damage is newer
    assert caught.value.what == f"{path} {'has another format version' if is_newer else 'is damaged'}"
    assert caught.value.hint == "run `bayesnde warmstart --restart`"
    assert _checkpoints(is_restart=True).read(_template) is None
    assert not list(STATE.parent.iterdir())  # no weights that a later checkpoint could take for its own


@pytest.mark.usefixtures("written")
def test_one_of_other_settings_or_without_its_weights_is_refused() -> None:
    with pytest.raises(SettingsDiffer) as caught:
        _checkpoints({"settings": {"seed": 2}}).read(_template)
    assert caught.value.found == ("settings.seed: 1 -> 2",)
    WEIGHTS.unlink()
    with pytest.raises(MissingArtifact):
        _checkpoints().read(_template)
    assert _checkpoints(is_restart=True).read(_template) is None


def _refuse_trials(_once: object) -> list:
    raise AssertionError("recipes were tried")


@pytest.mark.usefixtures("written")
def test_a_checkpoint_of_other_settings_is_refused_before_recipes_are_tried() -> None:
    with pytest.raises(SettingsDiffer):
        _checkpoints({"settings": {"seed": 2}}).choose_once(_refuse_trials)
    assert STATE.exists()
    records, _ = _checkpoints({"settings": {"seed": 2}}, is_restart=True).choose_once(lambda _: [{"recipe": "small"}])
    assert records == [{"recipe": "small"}]
    assert not STATE.exists()


def test_recipes_are_tried_once_and_their_time_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    first = _checkpoints().choose_once(lambda _: [{"recipe": "small"}])
    assert first[1] > 0.0
    assert _checkpoints().choose_once(_refuse_trials) == first
    nothing = _checkpoints({"settings": {"seed": 3}})
    assert nothing.choose_once(lambda _: [])[0] == []  # no time to try any
    assert nothing.choose_once(_refuse_trials)[0] == []
    other = _checkpoints({"settings": {"seed": 2}})
    assert other.choose_once(lambda _: [{"recipe": "large"}])[0] == [{"recipe": "large"}]


def test_a_trial_is_computed_once_for_the_same_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    n_computed = []

    def compute() -> dict[str, np.ndarray]:
        n_computed.append(1)
        return {"scores": np.arange(3.0)}

    for _ in range(2):  # the second time as another process would
        found = _checkpoints()._compute_once("warmstart-small", compute)
        np.testing.assert_array_equal(found["scores"], np.arange(3.0))
    assert len(n_computed) == 1
    _checkpoints({"settings": {"seed": 2}})._compute_once("warmstart-small", compute)
    assert len(n_computed) == 2


@pytest.mark.usefixtures("written")
def test_status_names_a_damaged_checkpoint_when_it_verifies(bayesnde: Callable) -> None:
    assert json.loads(bayesnde("status", "--verify", "--json").out)["stages"][1]["state"] == "interrupted"
    emptied(WEIGHTS, random.Random(0))
    found = json.loads(bayesnde("status", "--verify", "--json").out)["stages"][1]
    assert (found["state"], found["detail"]) == ("damaged", f"{WEIGHTS} is damaged: No data left in file")
