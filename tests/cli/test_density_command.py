"""`bayesnde density` as a user meets it: tables for other programs, and options that do not go together."""

import csv
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq
import pytest

import fake_engine

DRAWS = ["--block-rows", "16", "--draws", "4", "--chains", "2"]
SMALL = [*DRAWS, "--method", "bridge"]
pytestmark = pytest.mark.usefixtures("engines")


def test_the_table_is_written_as_csv_parquet_and_jsonl(bayesnde: Callable, run: Path, tmp_path: Path) -> None:
    for ending in ("csv", "parquet", "jsonl"):
        outcome = bayesnde("density", "--run", run, *SMALL, "--out", tmp_path / f"t.{ending}")
        assert outcome.code == 0, outcome.err
        assert outcome.out.startswith(f"{run}/density/test/density.parquet: ")
    table = pq.read_table(run / "density/test/density.parquet")
    assert pq.read_table(tmp_path / "t.parquet").to_pylist() == table.to_pylist()
    with (tmp_path / "t.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [float(row["log_density"]) for row in rows] == table["log_density"].to_pylist()
    assert [row["name"] for row in rows] == table["name"].to_pylist()
    lines = [json.loads(line) for line in (tmp_path / "t.jsonl").read_text().splitlines()]
    assert lines == table.to_pylist()


def test_a_figure_without_bound_is_null_in_jsonl_and_inf_elsewhere(
    bayesnde: Callable, run: Path, tmp_path: Path
) -> None:
    fake_engine.install(loses_first=True)  # whose R-hat is infinite then
    for ending in ("csv", "jsonl"):
        options = ["--out", tmp_path / f"t.{ending}", "--columns", "rhat_max"]
        assert bayesnde("density", "--run", run, *SMALL, *options).code == 0
    assert (tmp_path / "t.csv").read_text().splitlines()[:2] == ["rhat_max", "inf"]
    assert json.loads((tmp_path / "t.jsonl").read_text().splitlines()[0]) == {"rhat_max": None}


def test_on_stdout_there_is_the_table_alone_and_a_reader_may_leave(bayesnde: Callable, run: Path) -> None:
    outcome = bayesnde("density", "--run", run, *SMALL, "--out", "-", "--columns", "row_id, log_*")
    lines = outcome.out.splitlines()
    assert lines[0] == "row_id,log_density,log_density_scaled,log_density_is"
    assert len(lines) == 1 + pq.read_metadata(run / "prepare/test.parquet").num_rows
    assert outcome.err.splitlines()[-1].startswith(f"{run}/density/test/density.parquet: ")
    command = f"{sys.executable} {fake_engine.__file__} '{{}}' density --run {run} {' '.join(SMALL)} --out - -q"
    done = subprocess.run(["bash", "-c", f"set -o pipefail; {command} | head -2"], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[0].startswith("row_id,log_density,")


def test_an_unknown_column_is_refused_before_the_work(bayesnde: Callable, run: Path, engines: list) -> None:
    options = ["density", "--run", run, *SMALL, "--out", "-", "--columns", "row_id,log_densty"]
    outcome = bayesnde(*options)
    assert outcome.code == 2
    assert outcome.err.startswith("error: --columns: there is no column 'log_densty'\n  columns: row_id, log_density, ")
    assert outcome.err.endswith("hint: did you mean 'log_density'?\n")
    assert engines == []
    assert bayesnde("density", "--run", run, *SMALL).code == 0
    assert bayesnde(*options).err == outcome.err  # nor when all is there


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--format", "csv"], "error: --format says how to write a table\n  no --out\nhint: add --out FILE"),
        (["--columns", "k"], "error: --columns says how to write a table\n  no --out\nhint: add --out FILE"),
        (
            ["--out", "t.csv", "--shard", "1/2"],
            "error: --out writes the whole result, and --shard computes a part of it\n  --out t.csv --shard 1/2\n"
            "hint: run all shards first, then once without --shard\n",
        ),
        (
            ["--out", "-", "--json"],
            "error: --json and --out - both write to stdout\n  both\nhint: give --out FILE, or leave out --json\n",
        ),
        (["--shard", "three"], "error: --shard three is not of the form I/N\n"),
        (["--out", "t.xlsx"], "error: --out t.xlsx: no format belongs to the ending '.xlsx'\n"),
        (["--metric", "dense"], "error: --metric cannot be 'dense'\n"),
    ],
)
def test_options_that_do_not_go_together(options: list, message: str, bayesnde: Callable, run: Path) -> None:
    outcome = bayesnde("density", "--run", run, *SMALL, *options)
    assert outcome.code == 2
    assert outcome.err.startswith(message)
    assert not (run / "density").exists()


def test_json_is_for_machines(bayesnde: Callable, run: Path) -> None:
    part = json.loads(bayesnde("density", "--run", run, *SMALL, "--shard", "1/2", "--json").out)
    assert (part["shard"], part["set_name"], part["n_blocks"]) == ("1/2", "test", 4)
    whole = json.loads(bayesnde("density", "--run", run, *SMALL, "--json").out)
    counts = {"n_rows", "n_reliable", "n_not_finite", "n_incomplete", "verdicts", "methods", "audit"}
    assert set(whole) == counts | {"file", "set_name", "is_up_to_date", "mean_log_density", "made_with"}
    assert sum(whole["verdicts"].values()) == whole["n_rows"]
    draws = json.loads(bayesnde("posterior", "--run", run, *DRAWS, "--json").out)
    assert (draws["n_chains"], draws["n_draws"], draws["n_rows"]) == (2, 4, whole["n_rows"])
