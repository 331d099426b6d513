"""`bayesnde fit` as a user meets it: one line, all stages, and the same line again."""

import io
import json
from collections.abc import Callable
from pathlib import Path

import pytest

import fake_model

# Small networks, one epoch, few rows: the stages themselves are tested elsewhere.
SETTINGS = {
    "warmstart.epochs": 1, "warmstart.width": 8, "warmstart.depth": 1, "warmstart.column_steps": 0,
    "warmstart.checks": 1, "refine.epochs": 1, "refine.checks": 1, "refine.draws": 2, "density.draws": 4,
    "density.block_rows": 8, "evaluate.generated_rows": 100, "evaluate.typicality_rows": 50,
}  # fmt: skip
SMALL = [text for key, value in SETTINGS.items() for text in ("--set", f"{key}={value}")]


@pytest.fixture
def table(tmp_path: Path, bayesnde: Callable, engines: list, monkeypatch: pytest.MonkeyPatch) -> Path:
    fake_model.install(monkeypatch, fake_model.NormalModel())
    path = tmp_path / "moons.csv"
    assert bayesnde("simulate", "moons", "--rows", 300, "--out", path).code == 0
    return path


def test_one_line_runs_all_stages_and_the_same_line_again_runs_none(
    bayesnde: Callable, table: Path, tmp_path: Path
) -> None:
    run = tmp_path / "first"
    outcome = bayesnde("fit", table, "--run", run, *SMALL)
    assert outcome.code == 0, outcome.err
    for stage in ("prepare", "warmstart", "refine", "density/test", "evaluate/test"):
        assert (run / stage / "manifest.json").exists()
    config = json.loads((run / "refine/manifest.json").read_text())["config"]
    assert (config["epochs"], config["draws"]) == (1, 2)
    assert f"run directory: {run}" in outcome.out
    assert f"report: {run / 'evaluate/test/report.html'}" in outcome.out
    assert "mean log-density: " in outcome.out
    assert f"bayesnde sample 1000 --run {run}" in outcome.out
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    again = bayesnde("fit", table, "--run", run, *SMALL)
    assert again.code == 0
    assert again.err.count("(up to date)") == 4
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before
    machine = json.loads(bayesnde("fit", table, "--run", run, *SMALL, "--json", "-q").out)
    assert machine["evaluate"] == json.loads((run / "evaluate/test/metrics.json").read_text())


@pytest.mark.parametrize(
    ("assignment", "message"),
    [
        ("refine.epochs", "--set takes stage.key=value"),
        ("refine.epoch=3", "--set has an unknown setting 'refine.epoch'"),
        ("refined.epochs=3", "--set has an unknown table or key 'refined'"),
        ("refine.epochs=three", "refine.epochs"),
    ],
)
def test_an_assignment_that_cannot_be_is_refused_before_any_work(
    bayesnde: Callable, table: Path, tmp_path: Path, assignment: str, message: str
) -> None:
    outcome = bayesnde("fit", table, "--run", tmp_path / "first", "--set", assignment)
    assert outcome.code == 2
    assert message in outcome.err
    assert not (tmp_path / "first").exists()


def _files(run: Path, *stages: str) -> dict[Path, bytes]:
    return {path: path.read_bytes() for stage in stages for path in (run / stage).rglob("*") if path.is_file()}


def test_a_restart_replaces_what_differs_and_typed_again_it_does_nothing(
    bayesnde: Callable, table: Path, tmp_path: Path
) -> None:
    run = tmp_path / "first"
    assert bayesnde("fit", table, "--run", run, *SMALL).code == 0
    kept = _files(run, "prepare", "warmstart")
    other = ["fit", table, "--run", run, *SMALL, "--set", "refine.draws=3"]
    refused = bayesnde(*other)
    assert refused.code == 2
    assert refused.err.endswith(
        "error: refine was made with other settings or data\n  settings.draws: 2 -> 3\n"
        "hint: add --restart to this command: this stage and those after it are made again, what is up to date is "
        "kept; or keep it and use another run directory with `--run OTHER`\n"
    )
    outcome = bayesnde(*other, "--restart")
    assert outcome.code == 0, outcome.err
    assert outcome.err.count("(up to date)") == 2
    assert _files(run, "prepare", "warmstart") == kept
    assert json.loads((run / "refine/manifest.json").read_text())["config"]["draws"] == 3
    assert json.loads(bayesnde("status", "--run", run, "--json").out)["next"] is None
    before = _files(run, ".")
    again = bayesnde(*other, "--restart")
    assert (again.code, again.err.count("(up to date)")) == (0, 4)
    assert _files(run, ".") == before


def test_a_restart_reads_a_pipe_once(
    bayesnde: Callable, table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "first"
    assert bayesnde("prepare", table, "--run", run, "--seed", "1").code == 0
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(table.read_bytes())))
    outcome = bayesnde("fit", "-", "--run", run, *SMALL, "--restart")
    assert outcome.code == 0, outcome.err
    assert json.loads((run / "prepare/manifest.json").read_text())["seed"] == 0
