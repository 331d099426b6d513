"""`bayesnde classify` as a user meets it."""

import csv
import io
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import linear_model

SET = ["--set", "density.block_rows=16"]
pytestmark = pytest.mark.usefixtures("linear")


def _rows(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


def test_probabilities_on_stdout_and_the_summary_beside(bayesnde: Callable, run: Path) -> None:
    outcome = bayesnde("classify", "--run", run, *SET)
    assert outcome.code == 0, outcome.err
    rows = _rows(outcome.out)
    assert len(rows) == 62
    assert all(float(row["p_u"]) + float(row["p_v"]) == pytest.approx(1.0) for row in rows)
    right = sum(row["predicted"] == row["k"] for row in rows)
    assert f"{100 * right / 62:.1f} % right, 62 reliable, 18 gradients a row\n" in outcome.err
    assert bayesnde("classify", "--run", run, *SET).out == outcome.out
    uniform = _rows(bayesnde("classify", "--run", run, *SET, "--prior", "uniform").out)
    assert [row["p_u"] for row in uniform] != [row["p_u"] for row in rows]


def test_a_file_and_the_summary_for_machines(bayesnde: Callable, run: Path, tmp_path: Path) -> None:
    (tmp_path / "new.csv").write_text("b,a,n\n1.5,0.2,3\n0.5,1.2,\n")
    out = tmp_path / "c.jsonl"
    outcome = bayesnde("classify", tmp_path / "new.csv", "--run", run, *SET, "--out", out, "--json")
    assert outcome.code == 0, outcome.err
    found = json.loads(outcome.out)
    assert (found["n_rows"], found["n_reliable"], found["accuracy"]) == (2, 2, None)
    assert found["set_name"].startswith("new-")
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    assert sum(found["classes"].values()) == 2
    assert [line["row_id"] for line in lines] == [0, 1]
    assert not list(run.glob("density/*"))  # nothing is left in the run


def test_a_reader_that_has_seen_enough_is_no_error(run: Path) -> None:
    words = f"{sys.executable} {linear_model.__file__} classify --run {run} -q {' '.join(SET)}"
    done = subprocess.run(["bash", "-c", f"set -o pipefail; {words} | head -2"], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("row_id,predicted,p_u,p_v,log_density,mc_se,reliable,")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--prior", "u=1"], "error: --prior names 1 of 2 classes\n  missing: v\n"),
        (["--json"], "error: --json and --out - both write to stdout\n  both\nhint: give --out FILE, or no --json\n"),
        (["--format", "xml"], "error: --format cannot be 'xml'\n"),
        (["none.csv"], "error: none.csv does not exist\n"),
    ],
)
def test_what_cannot_be_is_refused(
    options: list[str], message: str, bayesnde: Callable, run: Path, linear: list
) -> None:
    outcome = bayesnde("classify", *options, "--run", run)
    assert (outcome.code, outcome.out) == (2, "")
    assert outcome.err.startswith(message)
    assert linear == []


def test_a_run_without_a_condition_cannot_classify(bayesnde: Callable, examples: Path, tmp_path: Path) -> None:
    import fake_engine

    run = tmp_path / "r"
    assert bayesnde("prepare", examples / "faithful.csv", "--run", run).code == 0
    fake_engine.pretend_refined(run)
    outcome = bayesnde("classify", "--run", run)
    assert outcome.code == 2
    assert outcome.err == (
        "error: classify needs a model of p(x | y)\n  the run was prepared without a condition\n"
        "hint: begin a run with `bayesnde prepare DATA --condition COL`\n"
    )
