"""What a training stage goes on from: whole and its own, or refused; a restart begins anew."""

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from bayesnde_cli.artifacts.arrays import read_arrays, write_arrays
from bayesnde_cli.artifacts.layout import RunLayout
from bayesnde_cli.config import WarmstartConfig
from bayesnde_cli.errors import BadArtifact, MissingArtifact, SettingsDiffer
from bayesnde_cli.stages.training.checkpoints import Checkpoints
from bayesnde_cli.stages.training.fitting import Progress
from damages import emptied, flipped, newer, truncated

LAYOUT = RunLayout(Path("run"))
STATE, LOOK = Path("run/warmstart/checkpoint/state.npz"), Path("run/warmstart/checkpoint/look-00001.npz")
IDENTITY = {"settings": {"seed": 1}}
LOOKS = [{"phase": "elbo", "round": n, "marginal": value} for n, value in enumerate([-3.0, -1.0])]


def _checkpoints(identity: dict = IDENTITY, *, is_restart: bool = False) -> Checkpoints:
    return Checkpoints(LAYOUT, WarmstartConfig(), identity, is_restart=is_restart)


def _template(phase: int, *, n: int = 3) -> dict:
    return [{"average": tf.zeros(n), "step": tf.constant(0)}][phase]


@pytest.fixture
def written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A checkpoint after two looks, of which the second one is the best."""
    monkeypatch.chdir(tmp_path)
    checkpoints = _checkpoints()
    checkpoints.write_weights(1, {"w": np.arange(3.0)})
    checkpoints.write(Progress(0, 1, {"average": tf.range(3.0), "step": tf.constant(7)}, (), tuple(LOOKS)))


@pytest.mark.usefixtures("written")
def test_a_whole_checkpoint_is_taken_up() -> None:
    found = _checkpoints().read(_template)
    assert found is not None
    assert (found.phase, found.n_rounds, found.looks) == (0, 1, tuple(LOOKS))
    assert found.state["average"].numpy().tolist() == [0.0, 1.0, 2.0]
    assert int(found.state["step"]) == 7


@pytest.mark.usefixtures("written")
@pytest.mark.parametrize("path", [STATE, LOOK], ids=lambda path: path.stem)
@pytest.mark.parametrize("damage", [truncated, emptied, flipped, newer], ids=lambda damage: damage.__name__)
def test_a_damaged_one_is_refused_and_a_restart_begins_anew(path: Path, damage: Callable) -> None:
    damage(path, random.Random(0))
    with pytest.raises(BadArtifact) as caught:
        _checkpoints().read(_template)
    is_newer = damage is newer
    assert caught.value.what == f"{path} {'was written by a newer bayesnde' if is_newer else 'is damaged'}"
    assert caught.value.hint == ("upgrade bayesnde, or " if is_newer else "") + "run `bayesnde warmstart --restart`"
    assert _checkpoints(is_restart=True).read(_template) is None


@pytest.mark.usefixtures("written")
def test_one_of_other_settings_is_refused() -> None:
    with pytest.raises(SettingsDiffer) as caught:
        _checkpoints({"settings": {"seed": 2}}).read(_template)
    assert caught.value.found == ("settings.seed: 1 -> 2",)


@pytest.mark.usefixtures("written")
def test_weights_of_other_settings_or_of_another_look_are_refused() -> None:
    """They fit, to the last shape."""
    own = LOOK.read_bytes()
    _checkpoints({"settings": {"seed": 2}}).write_weights(1, {"w": np.zeros(3)})
    with pytest.raises(BadArtifact) as caught:
        _checkpoints().read(_template)
    assert str(caught.value) == (
        f"error: {LOOK} is damaged\n"
        "  it belongs to other settings or data, or to another look\n"
        "hint: run `bayesnde warmstart --restart`"
    )
    LOOK.with_name("look-00000.npz").write_bytes(own)
    with pytest.raises(BadArtifact):
        _checkpoints().weights(0)


@pytest.mark.usefixtures("written")
def test_weights_that_are_gone_are_missed_at_once() -> None:
    LOOK.unlink()
    with pytest.raises(MissingArtifact):
        _checkpoints().read(_template)
    assert _checkpoints(is_restart=True).read(_template) is None


@pytest.mark.usefixtures("written")
@pytest.mark.parametrize(
    ("change", "found"),
    [
        ({"phase": 5}, "IndexError('list index out of range')"),
        ({"phase": "0"}, "TypeError('list indices must be integers or slices, not str')"),
        ({"looks": [{}]}, "KeyError('marginal')"),
        ({"history": 3}, "TypeError(\"'int' object is not iterable\")"),
        ({"identity": 3}, "identity is 3"),
    ],
)
def test_facts_that_no_stage_of_ours_writes_are_damage(change: dict[str, Any], found: str) -> None:
    arrays, facts = read_arrays(STATE)
    write_arrays(STATE, arrays, facts | change)
    with pytest.raises(BadArtifact) as caught:
        _checkpoints().read(_template)
    assert caught.value.found == (found,)


@pytest.mark.usefixtures("written")
def test_arrays_of_another_state_are_damage() -> None:
    with pytest.raises(BadArtifact) as caught:
        _checkpoints().read(lambda phase: _template(phase, n=4))
    assert caught.value.found == ("2 arrays that do not fit the 2 of the state",)


@pytest.mark.usefixtures("written")
def test_status_names_a_damaged_checkpoint_when_it_verifies(bayesnde: Callable) -> None:
    assert json.loads(bayesnde("status", "--verify", "--json").out)["stages"][1]["state"] == "interrupted"
    flipped(LOOK, random.Random(0))
    found = json.loads(bayesnde("status", "--verify", "--json").out)["stages"][1]
    assert (found["state"], found["detail"]) == ("damaged", f"{LOOK} is damaged: it is not what its own SHA-256 says")
