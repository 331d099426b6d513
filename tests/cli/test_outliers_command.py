"""`bayesnde outliers` as a user meets it."""

import csv
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq
import pytest

import fake_engine

SET = ["--set", "density.block_rows=16", "--set", "density.draws=4", "--set", "density.chains=2"]
pytestmark = pytest.mark.usefixtures("engines")


def test_ten_rows_are_shown_without_any_option(bayesnde: Callable, run: Path) -> None:
    outcome = bayesnde("outliers", "--run", run, *SET)
    assert outcome.code == 0, outcome.err
    lines = outcome.out.splitlines()
    assert lines[0].split() == ["rank", "row_id", "log_density", "mc_se", "verdict", "a", "b", "n", "name", "k",
                                "true_log_density"]  # fmt: skip
    assert [line.split()[0] for line in lines[1:11]] == [str(rank) for rank in range(1, 11)]
    assert lines[11].startswith("test: the 10 of lowest density among 62 rows")
    assert bayesnde("outliers", "--run", run).out == outcome.out  # what is there is used as it is


def test_rows_are_written_for_other_programs(bayesnde: Callable, run: Path, tmp_path: Path) -> None:
    for ending in ("csv", "parquet", "jsonl"):
        outcome = bayesnde("outliers", "--run", run, *SET, "--top", "5", "--out", tmp_path / f"o.{ending}")
        assert outcome.code == 0, outcome.err
        assert outcome.out.startswith("test: the 5 of lowest density among 62 rows")
    table = pq.read_table(tmp_path / "o.parquet").to_pylist()
    assert [json.loads(line) for line in (tmp_path / "o.jsonl").read_text().splitlines()] == table
    with (tmp_path / "o.csv").open() as file:
        assert [row["name"] for row in csv.DictReader(file)] == [row["name"] for row in table]
    found = json.loads(bayesnde("outliers", "--run", run, *SET, "--top", "5", "--json").out)
    assert found == {"set_name": "test", "n_rows": 62, "n_ranked": 62, "outliers": table}


def test_stdin_is_scored_and_joined(run: Path) -> None:
    data = "a,b,n,k,name,true_log_density,note\n" + "".join(f"{i / 9},{i + 1.5},{i},u,x{i},-1,m{i}\n" for i in range(9))
    command = [sys.executable, fake_engine.__file__, "{}", "outliers", "-", "--run", str(run), *SET, "--out", "-"]
    done = subprocess.run(command, input=data, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    rows = list(csv.DictReader(done.stdout.splitlines()))
    assert len(rows) == 9
    assert all(row["note"] == f"m{row['row_id']}" for row in rows)


def test_a_reader_that_has_seen_enough_is_no_error(run: Path) -> None:
    words = (
        f"{sys.executable} {fake_engine.__file__} '{{}}' outliers --run {run} -q {' '.join(SET)} --quantile 1 --out -"
    )
    done = subprocess.run(["bash", "-c", f"set -o pipefail; {words} | head -2"], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("rank,row_id,log_density,mc_se,verdict,a,b,n,")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--top", "3", "--quantile", "0.1"], "error: --top and --quantile both say how many rows\n  both\n"),
        (["--top", "0"], "error: --top must be 1 at least\n  --top 0\n"),
        (["--quantile", "1.5"], "error: --quantile is a share\n  --quantile 1.5\n"),
        (["--observed", "0"], "error: --observed must be 1 at least\n"),
        (["--format", "csv"], "error: --format says how to write a table\n  no --out\n"),
        (["--json", "--out", "-"], "error: --json and --out - both write to stdout\n"),
        (
            ["--observed", "9"],
            "error: there is no row with 9 observed cells to rank\n  rows by observed cells: 3: 62\n",
        ),
        (["none.csv"], "error: none.csv does not exist\n"),
    ],
)
def test_what_cannot_be_is_refused(options: list[str], message: str, bayesnde: Callable, run: Path) -> None:
    outcome = bayesnde("outliers", *options, "--run", run, *SET, "-q")
    assert (outcome.code, outcome.out) == (2, "")
    assert message in outcome.err
    assert outcome.err.splitlines()[-1].startswith("hint: ")


def test_stale_densities_are_not_used(bayesnde: Callable, run: Path) -> None:
    assert bayesnde("outliers", "--run", run, *SET).code == 0
    fake_engine.pretend_refined(run, b"other weights")
    outcome = bayesnde("outliers", "--run", run)
    assert outcome.code == 3
    assert outcome.err.startswith("error: density/test was made from files that have changed since\n")
