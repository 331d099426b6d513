"""Draws of `posterior` and `density --keep-draws` with a stand-in for the engine: kept, used, exported for ArviZ."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

import fake_engine
from bayesnde_cli.inference.diagnostics import Draws
from bayesnde_cli.runs.blocks import Plan
from bayesnde_cli.runs.layout import RunLayout
from bayesnde_cli.stages import posterior_draws
from bayesnde_cli.stages.posterior_draws import DrawStore
from fake_engine import DRAWS
from scoring_runs import SMALL, table_bytes

N_ROWS, N_CHAINS, N_DRAWS, N_LATENT = 3, 2, 4, 5


def _draws(n_modes: int) -> Draws:
    rng = np.random.Generator(np.random.Philox(key=1))
    modes = rng.normal(size=(N_ROWS, n_modes, N_LATENT)).astype(np.float32)
    modes[0, 1:] = np.nan
    return Draws(
        z=rng.normal(size=(N_ROWS, N_CHAINS, N_DRAWS, N_LATENT)).astype(np.float32),
        acceptance=rng.uniform(size=N_ROWS).astype(np.float32),
        divergences=np.arange(N_ROWS, dtype=np.int32),
        step_size=rng.uniform(size=N_ROWS).astype(np.float32),
        n_gradients=np.arange(N_ROWS, dtype=np.int64),
        missed_mass=rng.uniform(size=N_ROWS).astype(np.float32),
        modes=modes,
    )


@pytest.mark.parametrize("n_modes", [0, 1, 3])
def test_draws_come_back_as_they_were(tmp_path: Path, n_modes: int) -> None:
    plan = Plan(stage="posterior", set_name="test", run_id="abc", n_rows=N_ROWS, block_rows=N_ROWS, seed=1)
    store, draws = DrawStore(RunLayout(tmp_path), plan), _draws(n_modes)
    store.write(0, np.arange(N_ROWS), draws, {})
    for name, array in store.read(0)._asdict().items():
        np.testing.assert_array_equal(array, getattr(draws, name), err_msg=name)
        assert array.dtype == getattr(draws, name).dtype


def test_posterior_leaves_draws_and_diagnostics(bayesnde: Callable, engines: list, run: Path) -> None:
    outcome = bayesnde("posterior", "--run", run, *DRAWS)
    assert outcome.code == 0, outcome.err
    n_rows = pq.read_metadata(run / "prepare/test.parquet").num_rows
    assert outcome.out.startswith(f"{run}/posterior/test: {n_rows} rows, 2 chains of 4 draws each, R-hat up to 1.0")
    draws = pq.read_table(run / "posterior/test/block-00000.parquet")
    assert draws.column_names == ["row_id", "chain", "draw", "z"]
    assert draws["z"].type.list_size == fake_engine.N_LATENT
    assert draws["chain"].to_pylist()[:9] == [0, 0, 0, 0, 1, 1, 1, 1, 0]
    assert draws["draw"].to_pylist()[:9] == [0, 1, 2, 3, 0, 1, 2, 3, 0]
    diagnostics = pq.read_table(run / "posterior/test/diagnostics.parquet")
    assert diagnostics["row_id"].to_pylist() == pq.read_table(run / "prepare/test.parquet")["row_id"].to_pylist()
    assert diagnostics.column_names == ["row_id", *Draws._fields[1:], "ess_min", "rhat_max"]
    assert bayesnde("posterior", "--run", run, *DRAWS).out.endswith("(up to date)\n")


def test_draws_that_are_there_are_used_and_give_the_same_bytes(
    bayesnde: Callable, engines: list, run: Path, reference: bytes
) -> None:
    assert bayesnde("posterior", "--run", run, *DRAWS, "--shard", "1/2").code == 0
    sampled = engines[-1].n_sampled
    outcome = bayesnde("density", "--run", run, *SMALL)
    assert outcome.code == 0, outcome.err
    assert engines[-1].n_sampled == engines[-1].n_scored - sampled
    assert table_bytes(run) == reference
    assert len(list((run / "posterior/test").glob("block-*"))) == sampled


def test_draws_of_other_settings_are_left_alone(bayesnde: Callable, engines: list, run: Path, reference: bytes) -> None:
    assert bayesnde("posterior", "--run", run, *DRAWS, "--leapfrogs", "3").code == 0
    outcome = bayesnde("density", "--run", run, *SMALL)
    assert outcome.code == 0
    assert outcome.err.startswith("posterior/test was made with other settings and is not used\n")
    assert table_bytes(run) == reference
    kept = bayesnde("density", "--run", run, *SMALL, "--keep-draws", "--target-se", "1", "--restart")
    assert kept.code == 2
    assert "error: posterior/test was made with other settings or data\n  settings.leapfrogs: 3 -> 6\n" in kept.err


def test_draws_are_kept_after_the_density_is_done_too(bayesnde: Callable, engines: list, run: Path) -> None:
    first = bayesnde("density", "--run", run, *SMALL)
    kept = bayesnde("density", "--run", run, *SMALL, "--keep-draws")
    assert (kept.code, kept.out) == (0, first.out.replace("\n", " (up to date)\n"))
    assert (engines[1].n_sampled, engines[1].n_scored) == (8, 0)
    assert bayesnde("posterior", "--run", run, *DRAWS).out.endswith("(up to date)\n")
    assert bayesnde("density", "--run", run, *SMALL, "--keep-draws").code == 0
    assert len(engines) == 2


def test_shards_keep_their_draws_and_the_last_job_combines_them(
    bayesnde: Callable, engines: list, run: Path, reference: bytes
) -> None:
    for shard in ("2/2", "1/2"):
        assert bayesnde("density", "--run", run, *SMALL, "--keep-draws", "--shard", shard).code == 0
    assert "posterior/test  interrupted  8 of 8          run it again to resume, the blocks are not combined yet" in (
        bayesnde("status", "--run", run).out
    )
    assert bayesnde("density", "--run", run, *SMALL, "--keep-draws").code == 0
    assert table_bytes(run) == reference
    stages = json.loads(bayesnde("status", "--run", run, "--json").out)["stages"]
    assert [item["state"] for item in stages if item["stage"] in ("posterior", "density")] == ["done", "done"]


def test_a_damaged_block_of_draws_is_named_and_made_here(
    bayesnde: Callable, engines: list, run: Path, reference: bytes
) -> None:
    assert bayesnde("posterior", "--run", run, *DRAWS).code == 0
    block = run / "posterior/test/block-00002.parquet"
    block.write_bytes(block.read_bytes()[:-20])
    outcome = bayesnde("density", "--run", run, *SMALL)
    assert outcome.code == 0
    assert outcome.err.startswith(
        f"warning: {block} cannot be read as a Parquet file: draws are made again here; to repair posterior/test, "
        f"run `bayesnde posterior --run {run} --restart`\n"  # it is complete, and makes no block again by itself
    )
    assert engines[-1].n_sampled == 6
    assert table_bytes(run) == reference


def test_arviz_reads_the_draws_and_their_diagnostics(bayesnde: Callable, engines: list, run: Path) -> None:
    arviz_base = pytest.importorskip("arviz_base", reason="needs the extra bayesnde[arviz]")
    assert bayesnde("density", "--run", run, *SMALL, "--keep-draws").code == 0
    for _ in range(2):  # finished draws are exported without the engine; the second file replaces the first
        outcome = bayesnde("posterior", "--run", run, *DRAWS, "--export", "netcdf")
        assert outcome.code == 0, outcome.err
        file = run / "posterior/test/draws.nc"
        assert outcome.out.endswith(f"; draws in {file} (up to date)\n")
    assert len(engines) == 1
    assert not list((run / "posterior/test").glob(".*"))
    assert bayesnde("status", "--run", run, "--verify").code == 0
    with arviz_base.convert_to_datatree(str(file)) as tree:
        z, stats = tree.posterior["z"].load(), tree.sample_stats.to_dataset().load()
        assert tree.posterior.attrs["inference_library"] == "bayesnde"
    assert z.dims == ("chain", "draw", "row", "latent")
    test = pq.read_table(run / "prepare/test.parquet")["row_id"].to_pylist()
    assert z["row"].values.tolist() == stats["row"].values.tolist() == test
    for block, rows in ((0, test[:8]), (7, test[56:])):
        draws = pq.read_table(run / f"posterior/test/block-{block:05d}.parquet")
        assert sorted(set(draws["row_id"].to_pylist())) == sorted(rows)
        found = z.sel(row=rows).values.transpose(2, 0, 1, 3).reshape(-1, fake_engine.N_LATENT)
        np.testing.assert_array_equal(found, np.array(draws["z"].to_pylist(), np.float32))
    diagnostics = pq.read_table(run / "posterior/test/diagnostics.parquet")
    assert set(stats.data_vars) == set(diagnostics.column_names) - {"row_id", "modes"}
    for name in stats.data_vars:
        np.testing.assert_array_equal(stats[name].values, diagnostics[name].to_numpy())


def test_without_the_package_the_install_line_is_named_before_the_work(
    bayesnde: Callable, engines: list, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(posterior_draws, "find_spec", lambda name: None)
    outcome = bayesnde("posterior", "--run", run, *DRAWS, "--export", "netcdf")
    assert outcome.code == 2
    assert outcome.err == (
        "error: --export netcdf needs a package that is not installed\n  no h5netcdf or no xarray\n"
        "hint: run `pip install 'bayesnde[arviz]'`, then the same command again\n"
    )
    assert not (run / "posterior").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            ["--export", "netcfd"],
            "error: --export cannot be 'netcfd'\n  choices: netcdf\nhint: did you mean 'netcdf'?\n",
        ),
        (
            ["--export", "netcdf", "--shard", "1/2"],
            "error: --export writes the whole result, and --shard computes a part of it\n"
            "  --export netcdf --shard 1/2\nhint: run all shards first, then once without --shard\n",
        ),
    ],
)
def test_an_export_that_cannot_be_is_refused(options: list[str], message: str, bayesnde: Callable, run: Path) -> None:
    outcome = bayesnde("posterior", "--run", run, *DRAWS, *options)
    assert (outcome.code, outcome.err) == (2, message)
    assert not (run / "posterior").exists()
