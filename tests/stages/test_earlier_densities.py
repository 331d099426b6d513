"""Densities of an earlier bayesnde, whose tables had fewer columns: read as they are, and never gone on with."""

import json
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from scoring_runs import FEW, SMALL, as_of_before, table_bytes


@pytest.fixture
def earlier(scored: Path) -> Path:
    """A run whose test rows an earlier bayesnde has scored."""
    as_of_before(scored)
    return scored


def _refusal(run: Path, done: str) -> str:
    return (
        f"error: density/test was {done} by an earlier bayesnde\n"
        "  its tables: version 1, those of this bayesnde: version 2\n"
        f"hint: run `bayesnde density --run {run} --restart` with the same options to make it again\n"
    )


@pytest.mark.parametrize("options", [[], ["--shard", "2/2"], ["--keep-draws"]])
def test_a_set_that_was_begun_is_not_gone_on_with(
    options: list[str], bayesnde: Callable, engines: list, run: Path
) -> None:
    assert bayesnde("density", "--run", run, *SMALL, "--shard", "1/2").code == 0
    as_of_before(run)
    outcome = bayesnde("density", "--run", run, *SMALL, *options)
    assert (outcome.code, outcome.err) == (2, _refusal(run, "begun"))
    assert not (run / "posterior").exists()
    assert bayesnde("density", "--run", run, *SMALL, "--restart").code == 0
    assert "mc_se_is" in pq.read_table(run / "density/test/density.parquet").column_names


def test_a_complete_one_is_up_to_date_and_written_with_what_it_has(
    bayesnde: Callable, earlier: Path, tmp_path: Path
) -> None:
    before = table_bytes(earlier)
    outcome = bayesnde("density", "--run", earlier, *SMALL, "--out", tmp_path / "d.parquet")
    assert outcome.code == 0, outcome.err
    assert outcome.out.endswith("(up to date)\n")
    assert table_bytes(earlier) == before
    assert pq.read_table(tmp_path / "d.parquet").equals(pq.read_table(earlier / "density/test/density.parquet"))
    outcome = bayesnde("density", "--run", earlier, *SMALL, "--out", tmp_path / "d.csv", "--columns", "mc_*,row_id")
    assert (outcome.code, (tmp_path / "d.csv").read_text().splitlines()[0]) == (0, "mc_se,row_id")


def test_a_column_that_it_lacks_is_named(bayesnde: Callable, earlier: Path, tmp_path: Path) -> None:
    options = ["--out", tmp_path / "d.csv", "--columns", "row_id, mc_se_is"]
    outcome = bayesnde("density", "--run", earlier, *SMALL, *options)
    assert (outcome.code, outcome.err) == (
        2,
        "error: --columns: density/test has no column 'mc_se_is'\n"
        "  density/test was made by an earlier bayesnde, whose tables had none\n"
        f"hint: run `bayesnde density --run {earlier} --restart` with the same options to make it again, "
        "or leave the column out\n",
    )
    assert not (tmp_path / "d.csv").exists()
    # A column that no bayesnde knows is another matter.
    outcome = bayesnde("density", "--run", earlier, *SMALL, "--out", tmp_path / "d.csv", "--columns", "mc_see")
    assert outcome.err.startswith("error: --columns: there is no column 'mc_see'\n")
    assert bayesnde("density", "--run", earlier, *SMALL, *options, "--restart").code == 0


def test_no_draws_are_made_to_it(bayesnde: Callable, earlier: Path) -> None:
    outcome = bayesnde("density", "--run", earlier, *SMALL, "--keep-draws")
    assert (outcome.code, outcome.err) == (2, _refusal(earlier, "made"))
    assert not (earlier / "posterior").exists()
    assert bayesnde("density", "--run", earlier, *SMALL, "--keep-draws", "--restart").code == 0
    assert (earlier / "posterior/test/manifest.json").exists()


def test_it_is_evaluated_reported_and_ranked(bayesnde: Callable, earlier: Path, tmp_path: Path) -> None:
    outcome = bayesnde("evaluate", "--run", earlier, *FEW)
    assert outcome.code == 0, outcome.err
    mean = pq.read_table(earlier / "density/test/density.parquet")["log_density"].to_numpy().mean()
    assert json.loads((earlier / "evaluate/test/metrics.json").read_text())["mean_log_density"] == pytest.approx(mean)
    assert "lowest density" in (earlier / "evaluate/test/report.html").read_text("utf-8")
    outcome = bayesnde("outliers", "--run", earlier, "--out", tmp_path / "o.parquet")
    assert outcome.code == 0, outcome.err
    ranked = pq.read_table(tmp_path / "o.parquet")["log_density"].to_pylist()
    assert ranked == sorted(ranked)
