"""`bayesnde fit` as a user meets it: one line, all stages, and the same line again."""

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
