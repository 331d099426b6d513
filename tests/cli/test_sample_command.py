"""`bayesnde sample` as a user meets it."""

import csv
import io
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq
import pytest

import linear_model

pytestmark = pytest.mark.usefixtures("linear")


def _rows(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


def test_the_same_rows_in_every_format(bayesnde: Callable, run: Path, tmp_path: Path) -> None:
    for ending in ("csv", "parquet", "jsonl"):
        outcome = bayesnde("sample", "30", "--run", run, "--out", tmp_path / f"s.{ending}")
        assert (outcome.code, outcome.out) == (0, "")
        assert outcome.err.endswith(f"{tmp_path}/s.{ending}: 30 rows, 4 columns\n")
    table = pq.read_table(tmp_path / "s.parquet").to_pylist()
    assert [json.loads(line) for line in (tmp_path / "s.jsonl").read_text().splitlines()] == table
    rows = _rows((tmp_path / "s.csv").read_text())
    assert [float(row["a"]) for row in rows] == [row["a"] for row in table]
    assert all(row["n"].lstrip("-").isdecimal() and row["k"] in ("u", "v") for row in rows)


def test_a_seed_names_the_rows_and_a_shorter_sample_is_their_beginning(bayesnde: Callable, run: Path) -> None:
    long = bayesnde("sample", "1000", "--run", run, "--seed", "3").out
    assert bayesnde("sample", "1000", "--run", run, "--seed", "3").out == long
    assert long.startswith(bayesnde("sample", "100", "--run", run, "--seed", "3").out)
    assert bayesnde("sample", "1000", "--run", run).out != long


def test_one_class_alone(bayesnde: Callable, run: Path) -> None:
    rows = _rows(bayesnde("sample", "40", "--run", run, "--condition", "v").out)
    assert {row["k"] for row in rows} == {"v"}
    assert {row["k"] for row in _rows(bayesnde("sample", "40", "--run", run).out)} == {"u", "v"}


def test_rows_with_their_density_and_in_its_order(bayesnde: Callable, run: Path) -> None:
    scored = _rows(bayesnde("sample", "20", "--run", run, "--with-density").out)
    plain = _rows(bayesnde("sample", "20", "--run", run).out)
    assert [{name: row[name] for name in "abnk"} for row in scored] == plain
    assert list(scored[0]) == ["a", "b", "n", "k", "log_density", "mc_se", "reliable"]
    ordered = _rows(bayesnde("sample", "20", "--run", run, "--order", "density").out)
    assert ordered == sorted(scored, key=lambda row: -float(row["log_density"]))
    assert ordered != scored


def test_a_reader_that_has_seen_enough_is_no_error(run: Path) -> None:
    command = f"{sys.executable} {linear_model.__file__} sample 100000 --run {run} -q"
    done = subprocess.run(["bash", "-c", f"set -o pipefail; {command} | head -3"], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert len(_rows(done.stdout)) == 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["0"], "error: a sample has one row at least\n  N: 0\nhint: give a positive number of rows\n"),
        (["ten"], "error: invalid value for 'N'"),
        (["5", "--order", "rank"], "error: --order cannot be 'rank'\n  orders: density\nhint: use --order density\n"),
        (["5", "--condition", "w"], "error: --condition: there is no class 'w'\n  classes: u, v\n"),
        (["5", "--out", "s.xlsx"], "error: --out s.xlsx: no format belongs to the ending '.xlsx'\n"),
    ],
)
def test_what_cannot_be_is_refused(
    options: list[str], message: str, bayesnde: Callable, run: Path, linear: list
) -> None:
    outcome = bayesnde("sample", *options, "--run", run)
    assert (outcome.code, outcome.out) == (2, "")
    assert outcome.err.startswith(message)
    assert linear == []  # refused before the model was opened


def test_a_condition_needs_a_conditional_run(bayesnde: Callable, examples: Path, tmp_path: Path) -> None:
    import fake_engine

    run = tmp_path / "r"
    assert bayesnde("prepare", examples / "faithful.csv", "--run", run).code == 0
    fake_engine.pretend_refined(run)
    outcome = bayesnde("sample", "5", "--condition", "u", "--run", run)
    assert outcome.code == 2
    assert outcome.err == (
        "error: --condition needs a model of p(x | y)\n  the run was prepared without a condition\n"
        "hint: leave --condition out, or begin a run with `bayesnde prepare DATA --condition COL`\n"
    )


def test_a_failed_write_leaves_no_file(bayesnde: Callable, run: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    outcome = bayesnde("sample", "5", "--run", run, "--out", tmp_path / "file" / "s.csv")
    assert outcome.code == 2
    assert outcome.err.startswith(f"error: cannot write {tmp_path}/file/s.csv\n")


def test_parquet_has_large_row_groups_however_rows_are_made(bayesnde: Callable, run: Path, tmp_path: Path) -> None:
    assert bayesnde("sample", "70000", "--run", run, "--out", tmp_path / "s.parquet", "-q").code == 0
    file = pq.ParquetFile(tmp_path / "s.parquet")
    assert [file.metadata.row_group(index).num_rows for index in range(file.num_row_groups)] == [65_536, 4_464]
