"""`outliers`: the order is that of the densities, rows keep their own columns, and only what can be is compared."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import fake_engine
from bayesnde_cli.answers import join_columns
from bayesnde_cli.answers.outliers import Outliers, Wanted, run_outliers, take_rows
from bayesnde_cli.errors import BadInput, SettingsDiffer
from bayesnde_cli.runs.layout import RunLayout
from bayesnde_cli.settings.stage_settings import DensitySettings
from bayesnde_cli.stages import loading
from bayesnde_cli.stages.scoring_job import Asked
from scoring_runs import Notes

SMALL = DensitySettings(block_rows=16, draws=4, chains=2)
TEN = Wanted()
HEADER = "a,b,n,k,name,rank,colour"


@pytest.fixture
def find(run: Path, engines: list) -> Callable[..., Outliers]:
    def call(
        wanted: Wanted = TEN, *, data: Path | None = None, config: DensitySettings = SMALL, report: Notes | None = None
    ) -> Outliers:
        asked = Asked(data=[data] if data else [])
        return run_outliers(RunLayout(run), asked, config, report or Notes(), wanted, factory=loading.open_engine)

    return call


def _file(path: Path, lines: list[str], header: str = HEADER) -> Path:
    path.write_text("\n".join([header, *lines]) + "\n")
    return path


def test_the_lowest_rows_come_in_order_with_their_own_columns(find: Callable, run: Path) -> None:
    found = find(Wanted(top=7))
    density = pq.read_table(run / "density/test/density.parquet").to_pylist()
    test = {row["row_id"]: row for row in pq.read_table(run / "prepare/test.parquet").to_pylist()}
    lowest = sorted(density, key=lambda row: row["log_density"])[:7]
    rows = found.table.to_pylist()
    assert [row["rank"] for row in rows] == [1, 2, 3, 4, 5, 6, 7]
    for row, expected in zip(rows, lowest, strict=True):
        assert {name: row[name] for name in ("row_id", "log_density", "mc_se", "verdict")} == {
            name: expected[name] for name in ("row_id", "log_density", "mc_se", "verdict")
        }
        own = test[expected["row_id"]]
        assert [row[name] for name in "abnk"] == [own[name] for name in "abnk"]
        assert row["name"] == f"r{row['row_id']}"
    assert isinstance(rows[0]["n"], int)
    assert (found.n_rows, found.n_ranked) == (len(density), len(density))
    highest = max(density, key=lambda row: row["log_density"])["row_id"]
    assert highest not in [row["row_id"] for row in rows]


@pytest.mark.parametrize(
    ("quantile", "n_ranked", "n_rows"), [(0.07, 100, 7), (0.29, 100, 29), (0.01, 150, 2), (1e-12, 5, 1)]
)
def test_a_share_is_rounded_up_but_not_for_the_sake_of_the_last_bit(
    quantile: float, n_ranked: int, n_rows: int
) -> None:
    assert Wanted(quantile=quantile).n_rows(n_ranked) == n_rows


def test_densities_that_are_there_are_used_and_those_that_are_not_are_made(find: Callable, engines: list) -> None:
    first = find(Wanted(top=3))
    n_scored = sum(engine.n_scored for engine in engines)
    assert n_scored > 0
    # Default settings accept densities of any settings.
    assert find(Wanted(top=3), config=DensitySettings()).table.equals(first.table)
    whole = find(Wanted(quantile=1.0)).table
    assert whole.equals(find(Wanted(top=10**6)).table)
    assert whole.num_rows == first.n_rows
    assert np.all(np.diff(whole["log_density"].to_numpy()) >= 0)
    assert sum(engine.n_scored for engine in engines) == n_scored
    with pytest.raises(SettingsDiffer, match="draws: 4 -> 8"):
        find(config=DensitySettings(block_rows=16, draws=8, chains=2))


def test_a_file_is_scored_and_joined_to_all_of_its_columns(find: Callable, run: Path, tmp_path: Path) -> None:
    lines = [f"{0.1 * i:.2f},{0.5 + i / 9:.3f},{i},u,x{i},-1,{'red' if i % 2 else 'blue'}" for i in range(20)]
    found = find(Wanted(top=20), data=_file(tmp_path / "new.csv", lines))
    rows = found.table.to_pylist()
    assert sorted(row["row_id"] for row in rows) == list(range(20))
    for row in rows:
        index = row["row_id"]
        assert (row["n"], row["name"], row["colour"]) == (index, f"x{index}", "red" if index % 2 else "blue")
        assert row["a"] == pytest.approx(0.1 * index, abs=0.01)
        assert row["rank_"] == -1  # a column whose name exists already gets an underscore
    assert found.set_name.startswith("new-")
    assert (run / "density" / found.set_name / "density.parquet").exists()


def test_rows_with_missing_cells_are_ranked_apart(find: Callable, tmp_path: Path) -> None:
    lines = [f"{0.1 * i:.2f},{'' if i % 4 == 0 else 1.5},{i},u,x{i},-1,red" for i in range(16)]
    path, notes = _file(tmp_path / "new.csv", lines), Notes()
    complete = find(Wanted(top=16), data=path, report=notes)
    assert sorted(complete.table["row_id"].to_pylist()) == [i for i in range(16) if i % 4]
    assert (complete.n_rows, complete.n_ranked) == (16, 12)
    assert any("4 rows with another number of observed cells than 3 not ranked" in text for text in notes.told)
    others = find(Wanted(top=16, n_observed=2), data=path)
    assert sorted(others.table["row_id"].to_pylist()) == [0, 4, 8, 12]
    with pytest.raises(BadInput) as refused:
        find(Wanted(n_observed=1), data=path)
    assert str(refused.value) == (
        "error: there is no row with 1 observed cell to rank\n"
        "  rows by observed cells: 2: 4, 3: 12\n"
        "hint: rank those with --observed 3"
    )


def test_rows_without_a_finite_density_are_left_out_and_counted(find: Callable, engines: list) -> None:
    fake_engine.install(loses_first=True)  # of each block
    notes = Notes()
    found = find(Wanted(quantile=1.0), report=notes)
    n_blocks = -(-found.n_rows // 16)
    assert found.n_ranked == found.n_rows - n_blocks
    assert np.isfinite(found.table["log_density"].to_numpy()).all()
    assert f"warning: {n_blocks} rows not ranked: the log-density is not finite" in notes.told


def test_rows_are_taken_from_batches_in_the_order_asked_for() -> None:
    batches = [pa.record_batch({"x": list(range(start, start + 3))}) for start in (0, 3, 6)]
    assert take_rows(batches, np.array([7, 0, 5, 4]))["x"].to_pylist() == [7, 0, 5, 4]
    assert join_columns(pa.table({"x": [1]}), pa.table({"x": [2], "x_": [3]})).to_pylist() == [
        {"x": 1, "x_": 2, "x__": 3}
    ]
