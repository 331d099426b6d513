"""The cells of pixels: in the network's description, in what a warm start was made with, and in runs of before."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import fake_training
from bayesnde_cli.artifacts.arrays import read_arrays, write_arrays
from bayesnde_cli.artifacts.layout import RunLayout
from bayesnde_cli.artifacts.sealed import SEAL, sealed_bytes
from bayesnde_cli.data.kinds import Kind
from bayesnde_cli.data.scaling import Logit
from bayesnde_cli.data.schema import Feature
from bayesnde_cli.errors import BadArtifact, Stopped
from bayesnde_cli.model.cells import ColumnCells
from bayesnde_cli.stages.training.checkpoints import Checkpoints
from bayesnde_cli.stages.training.noisy_values import _column_cells, read_noisy_values
from bayesnde_cli.stages.training.rows import read_rows
from bayesnde_cli.stages.weights import read_networks

SMALL = ["--width", "2", "--epochs", "2", "--checks", "2", "--validation-draws", "4", "--generated-rows", "50", "-q"]


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A prepared run of images. Not to be written to."""
    from bayesnde_cli.cli.main import run

    folder = tmp_path_factory.mktemp("images")
    np.save(folder / "a.npy", np.random.default_rng(1).integers(0, 256, (60, 4, 4), np.uint8))
    assert run(["prepare", str(folder / "a.npy"), "--run", str(folder / "run"), "-q"]) == 0
    return folder / "run"


@pytest.fixture(scope="module")
def trained(prepared: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same with a warm start. Not to be written to."""
    from bayesnde_cli.cli.main import run

    own = Path(shutil.copytree(prepared, tmp_path_factory.mktemp("trained") / "run"))
    with fake_training.installed():
        assert run(["warmstart", "--run", str(own), *SMALL]) == 0
    return own


def _without_levels(path: Path) -> None:
    """A manifest as it was before pixels had cells, with its seal."""
    found = json.loads(path.read_text())
    found.pop(SEAL)
    found["identity"]["settings"].pop("levels", None)
    path.write_bytes(sealed_bytes(found))


def _rewritten(path: Path, change: Callable[[dict], object]) -> None:
    arrays, facts = read_arrays(path)
    change(facts)
    write_arrays(path, arrays, facts)


@pytest.fixture
def own(trained: Path, tmp_path: Path) -> Path:
    """A copy of the trained run, to work on."""
    return Path(shutil.copytree(trained, tmp_path / "run"))


def _refusal(run: Path) -> str:
    return (
        "error: warmstart was made with other settings or data\n  settings.levels: (none) -> 256\n"
        f"hint: run `bayesnde warmstart --run {run} --restart` with the same options to make it again, "
        "or keep it and use another run directory with `--run OTHER`\n"
    )


def test_a_warm_start_of_points_does_not_count_as_one_with_cells(bayesnde: Callable, own: Path) -> None:
    assert bayesnde("warmstart", "--run", own, *SMALL).out.endswith("(up to date)\n")
    _without_levels(own / "warmstart/manifest.json")
    outcome = bayesnde("warmstart", "--run", own, *SMALL)
    assert (outcome.code, outcome.err) == (2, _refusal(own))
    with fake_training.installed():
        assert bayesnde("warmstart", "--run", own, *SMALL, "--restart").code == 0
    assert bayesnde("warmstart", "--run", own, *SMALL).out.endswith("(up to date)\n")


def test_a_warm_start_of_points_is_not_gone_on_with(
    bayesnde: Callable, prepared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Path(shutil.copytree(prepared, tmp_path / "run"))

    def struck(*_: object) -> None:
        raise Stopped("SIGTERM")

    with fake_training.installed():
        with monkeypatch.context() as patch:
            patch.setattr(Checkpoints, "forget", struck)
            assert bayesnde("warmstart", "--run", run, *SMALL).code == 75
        state = run / "warmstart/checkpoint/state.npz"
        _rewritten(state, lambda facts: facts["identity"]["settings"].pop("levels", None))
        outcome = bayesnde("warmstart", "--run", run, *SMALL)
        assert (outcome.code, outcome.err) == (2, _refusal(run))
        assert bayesnde("warmstart", "--run", run, *SMALL, "--restart").code == 0


def test_one_without_cells_is_what_it_always_was(bayesnde: Callable, prepared: Path, tmp_path: Path) -> None:
    run = Path(shutil.copytree(prepared, tmp_path / "run"))
    with fake_training.installed():
        assert bayesnde("warmstart", "--run", run, *SMALL, "--no-cells").code == 0
    assert read_networks(RunLayout(run), "warmstart").decoder.levels == 0
    settings = json.loads((run / "warmstart/manifest.json").read_text())["identity"]["settings"]
    assert (settings["cells"], "levels" in settings) == (False, False)


def test_levels_are_stored_with_the_decoder(trained: Path) -> None:
    stored = read_networks(RunLayout(trained), "warmstart")
    assert (stored.decoder.levels, stored.encoder.levels) == (256, 0)


def test_images_keep_the_noise_of_prepare_and_bytes_of_a_table_have_no_cells(prepared: Path) -> None:
    layout = RunLayout(prepared)
    assert read_noisy_values(layout, read_rows(layout, "train"), 1) is None
    values = np.repeat(np.arange(4.0), 20)
    assert _column_cells(Feature("px_1_1", Kind.LATTICE, (), Logit()), values) == ColumnCells()


def test_networks_of_before_have_points(own: Path) -> None:
    path = own / "warmstart/weights/model.npz"
    _rewritten(path, lambda facts: [facts[name].pop("levels") for name in ("decoder", "encoder")])
    assert read_networks(RunLayout(own), "warmstart").decoder.levels == 0


@pytest.mark.parametrize("levels", [1, 255, 256.0, True, -256, "256", None])
def test_damaged_levels_are_refused(levels: object, own: Path) -> None:
    _rewritten(own / "warmstart/weights/model.npz", lambda facts: facts["decoder"].update(levels=levels))
    with pytest.raises(BadArtifact, match="is damaged"):
        read_networks(RunLayout(own), "warmstart")
