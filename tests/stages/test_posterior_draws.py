"""Draws of `posterior` and `density --keep-draws` with a stand-in for the engine: kept, used, never mixed."""

import json
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq

import fake_engine
from bayesnde_cli.inference.block import Draws
from scoring_runs import SMALL, table_bytes


def test_posterior_leaves_draws_and_diagnostics(bayesnde: Callable, engines: list, run: Path) -> None:
    outcome = bayesnde("posterior", "--run", run, *SMALL)
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
    assert bayesnde("posterior", "--run", run, *SMALL).out.endswith("(up to date)\n")


def test_draws_that_are_there_are_used_and_give_the_same_bytes(
    bayesnde: Callable, engines: list, run: Path, reference: bytes
) -> None:
    assert bayesnde("posterior", "--run", run, *SMALL, "--shard", "1/2").code == 0
    sampled = engines[-1].n_sampled
    outcome = bayesnde("density", "--run", run, *SMALL)
    assert outcome.code == 0, outcome.err
    assert engines[-1].n_sampled == engines[-1].n_scored - sampled
    assert table_bytes(run) == reference
    assert len(list((run / "posterior/test").glob("block-*"))) == sampled


def test_draws_of_other_settings_are_left_alone(bayesnde: Callable, engines: list, run: Path, reference: bytes) -> None:
    assert bayesnde("posterior", "--run", run, *SMALL, "--leapfrogs", "3").code == 0
    outcome = bayesnde("density", "--run", run, *SMALL)
    assert outcome.code == 0
    assert outcome.err.startswith("posterior/test was made with other settings and is not used\n")
    assert table_bytes(run) == reference
    kept = bayesnde("density", "--run", run, *SMALL, "--keep-draws", "--target-se", "1", "--restart")
    assert kept.code == 2
    assert "error: posterior/test was made with other settings or data\n  settings.leapfrogs: 3 -> 6\n" in kept.err


def test_draws_are_kept_if_asked_for(bayesnde: Callable, engines: list, run: Path, reference: bytes) -> None:
    assert bayesnde("density", "--run", run, *SMALL, "--keep-draws").code == 0
    assert table_bytes(run) == reference
    assert bayesnde("posterior", "--run", run, *SMALL).out.endswith("(up to date)\n")
    assert len(engines) == 2  # the reference's and this one


def test_draws_are_kept_after_the_density_is_done_too(bayesnde: Callable, engines: list, run: Path) -> None:
    first = bayesnde("density", "--run", run, *SMALL)
    kept = bayesnde("density", "--run", run, *SMALL, "--keep-draws")
    assert (kept.code, kept.out) == (0, first.out.replace("\n", " (up to date)\n"))
    assert (engines[1].n_sampled, engines[1].n_scored) == (8, 0)
    assert bayesnde("posterior", "--run", run, *SMALL).out.endswith("(up to date)\n")
    assert bayesnde("density", "--run", run, *SMALL, "--keep-draws").code == 0
    assert len(engines) == 2


def test_shards_keep_their_draws_and_the_last_job_combines_them(
    bayesnde: Callable, engines: list, run: Path, reference: bytes
) -> None:
    for shard in ("2/2", "1/2"):
        assert bayesnde("density", "--run", run, *SMALL, "--keep-draws", "--shard", shard).code == 0
    assert "posterior/test  interrupted  8 of 8          run it again to go on, only to combine the blocks" in (
        bayesnde("status", "--run", run).out
    )
    assert bayesnde("density", "--run", run, *SMALL, "--keep-draws").code == 0
    assert table_bytes(run) == reference
    stages = json.loads(bayesnde("status", "--run", run, "--json").out)["stages"]
    assert [item["state"] for item in stages if item["stage"] in ("posterior", "density")] == ["done", "done"]


def test_a_damaged_plan_of_the_draws_is_named_and_they_are_made_here(
    bayesnde: Callable, engines: list, run: Path, reference: bytes
) -> None:
    assert bayesnde("posterior", "--run", run, *SMALL, "--shard", "1/2").code == 0
    (run / "posterior/test/plan.json").write_text("{")
    outcome = bayesnde("density", "--run", run, *SMALL)
    assert outcome.code == 0
    assert outcome.err.startswith(
        f"warning: {run}/posterior/test/plan.json is damaged, and posterior/test is not used; "
        f"to repair it, run `bayesnde posterior --run {run} --restart`\n"
    )
    assert table_bytes(run) == reference
    assert bayesnde("density", "--run", run, *SMALL, "--keep-draws").code == 3
    assert bayesnde("posterior", "--run", run, *SMALL, "--restart").code == 0


def test_a_damaged_block_of_draws_is_named_and_made_here(
    bayesnde: Callable, engines: list, run: Path, reference: bytes
) -> None:
    assert bayesnde("posterior", "--run", run, *SMALL).code == 0
    block = run / "posterior/test/block-00002.parquet"
    block.write_bytes(block.read_bytes()[:-20])
    outcome = bayesnde("density", "--run", run, *SMALL)
    assert outcome.code == 0
    assert outcome.err.startswith(
        f"warning: {block} cannot be read as a Parquet file: its draws are made again here; to repair it, "
        f"run `bayesnde posterior --run {run} --restart`\n"  # it is complete, and makes no block again by itself
    )
    assert engines[-1].n_sampled == 1
    assert table_bytes(run) == reference
