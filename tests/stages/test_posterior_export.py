"""`posterior --export netcdf`: one file that ArviZ reads, with the draws of the blocks in it."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from bayesnde_cli.stages.scoring import export
from scoring_runs import SMALL


def test_arviz_reads_the_draws_and_what_is_known_of_them(bayesnde: Callable, engines: list, run: Path) -> None:
    arviz_base = pytest.importorskip("arviz_base", reason="needs the extra bayesnde[arviz]")
    outcome = bayesnde("posterior", "--run", run, *SMALL, "--export", "netcdf")
    assert outcome.code == 0, outcome.err
    file = run / "posterior/test/draws.nc"
    assert outcome.out.endswith(f"; draws in {file}\n")
    with arviz_base.convert_to_datatree(str(file)) as tree:
        z, stats = tree.posterior["z"].load(), tree.sample_stats.to_dataset().load()
        assert tree.posterior.attrs["inference_library"] == "bayesnde"
    assert z.dims == ("chain", "draw", "row", "latent")
    test = pq.read_table(run / "prepare/test.parquet")["row_id"].to_pylist()
    assert z["row"].values.tolist() == stats["row"].values.tolist() == test
    for block, rows in ((0, test[:8]), (7, test[56:])):
        draws = pq.read_table(run / f"posterior/test/block-{block:05d}.parquet").to_pylist()
        assert sorted({draw["row_id"] for draw in draws}) == sorted(rows)
        for draw in draws:
            found = z.sel(row=draw["row_id"], chain=draw["chain"], draw=draw["draw"]).values
            np.testing.assert_array_equal(found, np.float32(draw["z"]))
    diagnostics = pq.read_table(run / "posterior/test/diagnostics.parquet")
    assert set(stats.data_vars) == set(diagnostics.column_names) - {"row_id", "modes"}
    for name in stats.data_vars:
        np.testing.assert_array_equal(stats[name].values, diagnostics[name].to_numpy())


def test_finished_draws_are_exported_without_the_engine(bayesnde: Callable, engines: list, run: Path) -> None:
    pytest.importorskip("h5netcdf", reason="needs the extra bayesnde[arviz]")
    assert bayesnde("density", "--run", run, *SMALL, "--keep-draws").code == 0
    for _ in range(2):  # the second one replaces the first
        outcome = bayesnde("posterior", "--run", run, *SMALL, "--export", "netcdf")
        assert outcome.out.endswith("draws.nc (up to date)\n")
    assert len(engines) == 1
    assert not list((run / "posterior/test").glob(".*"))
    assert bayesnde("status", "--run", run, "--verify").code == 0


def test_without_the_package_the_install_line_is_named_before_the_work(
    bayesnde: Callable, engines: list, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(export, "find_spec", lambda name: None)
    outcome = bayesnde("posterior", "--run", run, *SMALL, "--export", "netcdf")
    assert outcome.code == 2
    assert outcome.err == (
        "error: --export netcdf needs a package that is not installed\n  no h5netcdf\n"
        "hint: run `pip install 'bayesnde[arviz]'`, then the same command again\n"
    )
    assert not (run / "posterior").exists()
    assert bayesnde("posterior", "--run", run, *SMALL).code == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            ["--export", "netcfd"],
            "error: --export cannot be 'netcfd'\n  formats: netcdf\nhint: did you mean 'netcdf'?\n",
        ),
        (
            ["--export", "netcdf", "--shard", "1/2"],
            "error: --export writes all draws, and --shard makes a part of them\n  --export netcdf --shard 1/2\n"
            "hint: run all shards first, then once without --shard\n",
        ),
    ],
)
def test_an_export_that_cannot_be_is_refused(options: list[str], message: str, bayesnde: Callable, run: Path) -> None:
    outcome = bayesnde("posterior", "--run", run, *SMALL, *options)
    assert (outcome.code, outcome.err) == (2, message)
    assert not (run / "posterior").exists()
