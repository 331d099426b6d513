"""`bayesnde fit` as a user meets it: one line, all stages, and the same line again."""

import io
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import fake_model
import fake_training
from bayesnde_cli.errors import Stopped
from bayesnde_cli.stages import fit

# Few rows and stand-ins for training, engine and model: the stages themselves are tested elsewhere.
SETTINGS: dict[str, object] = {
    "warmstart.epochs": 1,
    "refine.epochs": 1,
    "refine.draws": 2,
    "density.draws": 4,
    "density.block_rows": 8,
}
SETTINGS |= {"evaluate.generated_rows": 100, "evaluate.typicality_rows": 50, "evaluate.baselines": False}
SETTINGS["prepare.scale"] = "standard"
SMALL = [text for key, value in SETTINGS.items() for text in ("--set", f"{key}={value}")]


@pytest.fixture
def table(tmp_path: Path, engines: list, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    fake_model.install(monkeypatch, fake_model.NormalModel(n_columns=2))
    path = tmp_path / "moons.csv"
    path.write_text("x1,x2\n" + "".join(f"{i / 7},{i * i % 11 / 3}\n" for i in range(120)))
    with fake_training.installed():
        yield path


def test_a_wrong_assignment_is_refused_before_any_work(bayesnde: Callable, table: Path, tmp_path: Path) -> None:
    outcome = bayesnde("fit", table, "--run", tmp_path / "first", "--set", "refine.epoch=3")
    assert outcome.code == 2
    assert "--set has an unknown setting 'refine.epoch'" in outcome.err
    assert not (tmp_path / "first").exists()


def _files(run: Path, *stages: str) -> dict[Path, bytes]:
    return {path: path.read_bytes() for stage in stages for path in (run / stage).rglob("*") if path.is_file()}


def test_one_line_runs_all_stages_the_same_line_none_and_a_restart_those_that_differ(
    bayesnde: Callable, table: Path, tmp_path: Path
) -> None:
    run = tmp_path / "first"
    outcome = bayesnde("fit", table, "--run", run, *SMALL)
    assert outcome.code == 0, outcome.err
    for stage in ("prepare", "warmstart", "refine", "density/test", "evaluate/test"):
        assert (run / stage / "manifest.json").exists()
    config = json.loads((run / "refine/manifest.json").read_text())["config"]
    assert (config["epochs"], config["draws"]) == (1, 2)
    for text in (f"run directory: {run}", f"report: {run / 'evaluate/test/report.html'}", "mean log-density: "):
        assert text in outcome.out
    assert f"bayesnde sample 1000 --run {run}" in outcome.out
    before = _files(run, ".")
    again = bayesnde("fit", table, "--run", run, *SMALL)
    assert (again.code, again.err.count("(up to date)")) == (0, 4)
    machine = json.loads(bayesnde("fit", table, "--run", run, *SMALL, "--json", "-q").out)
    assert machine["evaluate"] == json.loads((run / "evaluate/test/metrics.json").read_text())
    assert _files(run, ".") == before

    kept = _files(run, "prepare", "warmstart")
    other = ["fit", table, "--run", run, *SMALL, "--set", "refine.epochs=3"]
    refused = bayesnde(*other)
    assert refused.code == 2
    assert refused.err.endswith(
        "error: refine was made with other settings or data\n  settings.epochs: 1 -> 3\n"
        "hint: add --restart to this command to replace this stage and those after it; or use another run directory "
        "with `--run OTHER`\n"
    )
    outcome = bayesnde(*other, "--restart")
    assert (outcome.code, outcome.err.count("(up to date)")) == (0, 2), outcome.err
    assert _files(run, "prepare", "warmstart") == kept
    assert json.loads((run / "refine/manifest.json").read_text())["config"]["epochs"] == 3
    assert json.loads(bayesnde("status", "--run", run, "--json").out)["next"] is None
    before = _files(run, ".")
    again = bayesnde(*other, "--restart")
    assert (again.code, again.err.count("(up to date)")) == (0, 4)
    assert _files(run, ".") == before


def test_a_restart_reads_a_pipe_once(
    bayesnde: Callable, table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*_: Any, **__: Any) -> None:
        raise Stopped("SIGTERM")

    run = tmp_path / "first"
    assert bayesnde("prepare", table, "--run", run, "--seed", "1").code == 0
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(table.read_bytes())))
    monkeypatch.setattr(fit, "run_warmstart", stop)
    assert bayesnde("fit", "-", "--run", run, *SMALL, "--restart").code == 75
    assert json.loads((run / "prepare/manifest.json").read_text())["seed"] == 0
