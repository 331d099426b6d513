"""`density` with a stand-in for the engine: its table, the rows of any file, and the same bits however it is run."""

import io
import json
import random
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

import fake_engine
from bayesnde_cli.stages import loading, score
from fake_engine import DRAWS
from scoring_runs import SMALL, other_set, start, table_bytes

COLUMNS = (
    "row_id log_density log_density_scaled mc_se method pareto_k log_density_is mc_se_is overlap ess_min rhat_max "
    "missed_mass acceptance divergences bridge_iterations converged reliable verdict n_observed n_gradients "
    "n_likelihoods audit_log_density audit_mc_se "
    "name k true_log_density"
)
CELLS = "k,n,b,a,other\nu,3,1.5,0.25,?\nv,,2.5,,?\nu,,,,?\nu,4,,-1.0,?\n"


def test_density_of_the_test_rows(bayesnde: Callable, engines: list, run: Path) -> None:
    outcome = bayesnde("density", "--run", run, *SMALL)
    assert outcome.code == 0, outcome.err
    table = pq.read_table(run / "density/test/density.parquet")
    assert " ".join(table.column_names) == COLUMNS
    test = pq.read_table(run / "prepare/test.parquet")
    for name in ("row_id", "name", "k", "true_log_density"):
        assert table[name].to_pylist() == test[name].to_pylist()
    jacobian = test["log_jacobian"].to_numpy()
    for name, more in (("log_density", 0.0), ("log_density_is", 0.25)):
        assert np.allclose(table[name].to_numpy(), table["log_density_scaled"].to_numpy() + jacobian + more)
    assert set(table["n_observed"].to_pylist()) == {3}
    mean, n_reliable = table["log_density"].to_numpy().mean(), sum(table["reliable"].to_pylist())
    n_rows = table.num_rows
    assert outcome.out == (
        f"{run}/density/test/density.parquet: {n_rows} rows, mean log-density {mean:.4f} (units of the file), "
        f"{n_reliable} reliable\n"
    )
    assert outcome.err == (
        "verdicts\nverdict     rows  share\n"
        f"reliable      {n_reliable}  {100 * n_reliable / n_rows:.1f}%\n"
        f"wide error    {n_rows - n_reliable}  {100 - 100 * n_reliable / n_rows:.1f}%\n"
    )
    manifest = json.loads((run / "density/test/manifest.json").read_text())
    assert manifest["device"] == "fake"
    assert manifest["result"]["verdicts"] == {"reliable": n_reliable, "wide error": n_rows - n_reliable}
    upstream = {"prepare/schema.json", "prepare/test.parquet", "refine/weights/model.npz", "refine/latents.parquet"}
    assert set(manifest["inputs"]) == upstream
    assert not (run / "posterior").exists()
    assert engines[0].n_real == [8] * (n_rows // 8) + [n_rows % 8]  # the engine knows which rows fill the last one up


def test_rows_that_need_no_chains_have_none_of_their_figures_and_some_are_audited(
    bayesnde: Callable, engines: list, run: Path
) -> None:
    command = ["density", "--run", run, *fake_engine.DRAWS]
    outcome = bayesnde(*command)
    assert outcome.code == 0, outcome.err
    table = pq.read_table(run / "density/test/density.parquet")
    is_quick = np.array([name == "importance" for name in table["method"].to_pylist()])
    assert is_quick.tolist() == [index % 8 % 2 == 0 for index in range(table.num_rows)]  # as the stand-in has it
    for name in ("rhat_max", "divergences", "converged", "log_density_is"):
        assert (table[name].is_null().to_numpy() == is_quick).all(), name
    for name in ("mc_se", "pareto_k", "verdict", "n_likelihoods"):
        assert table[name].null_count == 0, name
    n_audited = table.num_rows - table["audit_mc_se"].null_count
    # One row in ten is chosen, and of these the ones that needed no chains are audited.
    assert 0 < n_audited <= table.num_rows // 10
    assert f"; audit of {n_audited} rows: largest difference 0.000 nats, 100 % within the interval" in outcome.out
    result = json.loads((run / "density/test/manifest.json").read_text())["result"]
    assert result["methods"] == {"importance": int(is_quick.sum()), "bridge": int((~is_quick).sum())}
    assert result["audit"] == {
        **{"n_rows": n_audited, "n_unchecked": 0, "largest_difference": 0.0, "n_covered": n_audited, "coverage": 1.0},
        "is_as_promised": True,
    }
    # Shards give the same bytes, and so does a run without an audit, but for its columns.
    whole = table_bytes(run)
    shutil.rmtree(run / "density")
    for shard in ("2/2", "1/2"):
        assert bayesnde(*command, "--shard", shard).code == 0
    assert bayesnde(*command).code == 0
    assert table_bytes(run) == whole
    assert bayesnde(*command, "--audit", "0", "--restart").code == 0
    other = pq.read_table(run / "density/test/density.parquet")
    assert other["audit_mc_se"].null_count == other.num_rows
    assert other["log_density"].to_pylist() == table["log_density"].to_pylist()


def test_draws_on_disk_serve_all_blocks_or_none(bayesnde: Callable, engines: list, run: Path, tmp_path: Path) -> None:
    command, draw = ["density", *fake_engine.DRAWS, "--run"], ["posterior", *fake_engine.DRAWS, "--run"]
    whole, late = (shutil.copytree(run, tmp_path / name) for name in ("whole", "late"))
    assert bayesnde(*command, whole).code == 0
    # Draws that are made between two shards come too late for the second one.
    assert bayesnde(*command, late, "--shard", "1/2").code == 0
    assert bayesnde(*draw, late).code == 0
    assert bayesnde(*command, late).code == 0
    assert table_bytes(late) == table_bytes(whole)
    # Where some draws are there at the start, every row is bridged, with draws made here for the other blocks.
    assert bayesnde(*draw, run, "--shard", "1/2").code == 0
    assert bayesnde(*command, run).code == 0
    assert set(pq.read_table(run / "density/test/density.parquet")["method"].to_pylist()) == {"bridge"}


def test_an_audit_that_fails_is_told(bayesnde: Callable, run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loading, "open_engine", loading.open_engine)  # put back afterwards
    fake_engine.install(audit_gap=2.0)
    outcome = bayesnde("density", "--run", run, *fake_engine.DRAWS)
    assert outcome.code == 0
    assert "warning: the audit failed: " in outcome.err
    assert "the largest difference is 2.00 nats; score with --method bridge" in outcome.err
    audit = json.loads((run / "density/test/manifest.json").read_text())["result"]["audit"]
    assert (audit["n_covered"], audit["is_as_promised"]) == (0, False)


def test_an_audit_fails_for_one_row_far_off_and_for_too_few_intervals_that_cover() -> None:
    rng = np.random.default_rng(0)
    se = np.full(200, 0.03)
    good = np.stack([se * rng.standard_normal(200), se], axis=1)
    figures = score.audit_figures(good)
    assert figures is not None
    assert figures["is_as_promised"]
    assert 0.9 < figures["coverage"] < 1.0
    for bad in (np.concatenate([good, [[0.6, 0.03]]]), good * [2.0, 1.0]):
        figures = score.audit_figures(bad)
        assert figures is not None
        assert not figures["is_as_promised"]
    assert score.audit_figures(np.empty((0, 2))) is None


def test_rows_without_an_estimate_are_counted_and_left_out_of_the_mean(
    bayesnde: Callable, engines: list, run: Path
) -> None:
    fake_engine.install(loses_first=True)
    outcome = bayesnde("density", "--run", run, *SMALL)
    log_density = pq.read_table(run / "density/test/density.parquet")["log_density"].to_numpy()
    mean = log_density[np.isfinite(log_density)].mean()
    assert f"mean log-density {mean:.4f} (units of the file; without 8 rows where it is not finite), " in outcome.out
    drawn = bayesnde("posterior", "--run", run, *DRAWS)
    rhat = pq.read_table(run / "posterior/test/diagnostics.parquet")["rhat_max"].to_numpy()
    assert f"R-hat up to {rhat[np.isfinite(rhat)].max():.3f} (not finite for 8 rows), " in drawn.out
    lost = bayesnde("density", "--run", run, *SMALL[2:], "--block-rows", "1", "--restart")
    assert f"{len(log_density)} rows, mean log-density not finite (units of the file; without " in lost.out


def test_rows_of_a_file_are_those_of_the_test_set(bayesnde: Callable, engines: list, run: Path, tmp_path: Path) -> None:
    """The same rows at the same place of a file have the same noise and Jacobian; labels are what the file has."""
    text = (Path(json.loads((run / "prepare/manifest.json").read_text())["inputs"]["data-0"]["path"])).read_text()
    (tmp_path / "new file.csv").write_text(text)
    assert bayesnde("density", tmp_path / "new file.csv", "--run", run, *SMALL).code == 0
    name = other_set(run)
    assert name.startswith("new-file-")
    rows, test = pq.read_table(run / f"density/{name}/rows.parquet"), pq.read_table(run / "prepare/test.parquet")
    for column in ("x_scaled", "log_jacobian", "name", "k", "true_log_density"):
        assert rows[column].take(test["row_id"].to_pylist()).to_pylist() == test[column].to_pylist(), column
    assert pq.read_table(run / f"density/{name}/density.parquet")["name"].to_pylist() == rows["name"].to_pylist()


def test_files_and_pipes_with_equal_rows_give_equal_bits(
    bayesnde: Callable, engines: list, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "a,b,n,k\n0.1,1.0,3,u\n0.2,2.0,4,v\n"
    (tmp_path / "one.csv").write_text(text)
    (tmp_path / "two.csv").write_text("k,n,b,a\nu,5,3.0,0.3\n")
    (tmp_path / "both.tsv").write_text((text + "0.3,3.0,5,u\n").replace(",", "\t"))
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(f"{text}0.3,3.0,5,u\n".encode())))
    options = ["--run", run, *SMALL, "--out", "-", "--format", "csv", "-q"]
    found = [
        bayesnde("density", *data, *options)
        for data in ([tmp_path / "one.csv", tmp_path / "two.csv"], [tmp_path / "both.tsv"], ["-"])
    ]
    assert [(outcome.code, outcome.err) for outcome in found] == [(0, "")] * 3
    assert len({outcome.out for outcome in found}) == 1
    sets = sorted(path.name.partition("-")[0] for path in (run / "density").iterdir())
    assert sets == ["both", "one", "stdin"]  # none is a copy of the other
    some = bayesnde("density", tmp_path / "both.tsv", *options, "--columns", "k,row_id").out
    assert some.splitlines() == ["k,row_id", "u,0", "v,1", "u,2"]


def test_missing_cells_leave_the_density_of_the_others_and_no_mean(
    bayesnde: Callable, engines: list, run: Path, tmp_path: Path
) -> None:
    (tmp_path / "gaps.csv").write_text(CELLS + "v,2,0.5,1.5,?\n")
    command = ["density", tmp_path / "gaps.csv", "--run", run, *SMALL]
    outcome = bayesnde(*command)
    assert outcome.code == 0, outcome.err
    assert "not used: other\n" in outcome.err
    name = other_set(run)
    table = pq.read_table(run / f"density/{name}/density.parquet").to_pylist()
    assert [(row["n_observed"], row["k"]) for row in table] == [(3, "u"), (1, "v"), (0, "u"), (2, "u"), (3, "v")]
    assert "name" not in table[0]
    empty = table[2]
    assert [empty[name] for name in ("log_density", "log_density_scaled", "mc_se")] == [0.0, 0.0, 0.0]
    assert [empty[name] for name in ("reliable", "converged", "verdict")] == [True, True, "no cells"]
    gaps = pq.read_table(run / f"density/{name}/rows.parquet")["x_scaled"].to_pylist()
    assert np.isnan(gaps[1]).tolist() == [True, False, True]
    (tmp_path / "whole.csv").write_text("a,b,n,k\n9,2.5,9,v\n9,2.5,9,v\n")
    assert bayesnde("density", tmp_path / "whole.csv", "--run", run, *SMALL).code == 0
    whole = pq.read_table(next((run / "density").glob("whole-*")) / "rows.parquet")["x_scaled"].to_pylist()
    assert gaps[1][1] == whole[1][1]
    mean = np.mean([row["log_density"] for row in table if row["n_observed"] == 3])
    left_out = "without 3 rows with missing cells"
    assert f": 5 rows, mean log-density {mean:.4f} (units of the file; {left_out}), " in outcome.out
    machine = json.loads(bayesnde(*command, "--json").out)
    assert (machine["mean_log_density"], machine["n_incomplete"]) == (pytest.approx(mean), 3)
    fake_engine.install(loses_first=True)
    some = bayesnde(*command, "--restart").out
    assert f"(units of the file; {left_out} and 1 row where it is not finite), " in some


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("a,b,k\n1,2,u\n", "error: the file lacks 1 of the model's 4 columns\n  missing: n\n"),
        ("a,b,n,k\n1,inf,3,u\n", "error: column 'b' has an infinity in row 1\n"),
        ("a,b,n,k\n1,2,3,\n", "error: condition 'k' has an unseen class in row 1\n"),
        ("a,b,n,k\n", "bad.csv holds no rows\n"),
    ],
)
def test_a_file_that_does_not_fit_is_refused_and_leaves_nothing(
    content: str, message: str, bayesnde: Callable, engines: list, run: Path, tmp_path: Path
) -> None:
    (tmp_path / "bad.csv").write_text(content)
    outcome = bayesnde("density", tmp_path / "bad.csv", "--run", run, *SMALL)
    assert outcome.code == 2
    assert message in outcome.err
    assert not (run / "density").exists()


# The same bytes from shards, in any order, after kills and signals


@pytest.mark.parametrize("data", [None, "new.csv"])
def test_shards_in_random_order_and_a_gather_give_the_same_bytes(
    data: str | None, bayesnde: Callable, engines: list, run: Path, reference: bytes, tmp_path: Path
) -> None:
    rng, files = np.random.default_rng(1), []
    if data:
        lines = [f"{rng.normal():.5f},{rng.gamma(2.0):.5f},{n},{'uv'[n % 2]}" for n in rng.poisson(4, 40)]
        (tmp_path / data).write_text("a,b,n,k\n" + "\n".join(lines) + "\n")
        files = [tmp_path / data]
        calm = Path(shutil.copytree(run, tmp_path / "calm"))
        assert bayesnde("density", *files, "--run", calm, *SMALL).code == 0
        reference = table_bytes(calm, other_set(calm))
    for index in random.Random(3).sample(range(1, 6), 5):
        outcome = bayesnde("density", *files, "--run", run, *SMALL, "--shard", f"{index}/5")
        assert outcome.code == 0, outcome.err
        assert f"shard {index}/5 done, " in outcome.out
    set_name = other_set(run) if data else "test"
    folder = run / "density" / set_name
    assert not (folder / "density.parquet").exists()
    if data is None:
        assert outcome.out.endswith(f"combine with `bayesnde density --run {run}`\n")
    n_engines = len(engines)
    assert bayesnde("density", *files, "--run", run, *SMALL).code == 0
    assert len(engines) == n_engines  # a gather opens no engine
    assert json.loads((folder / "manifest.json").read_text())["device"] == "none: all blocks were there"
    assert table_bytes(run, set_name) == reference


def test_a_run_that_died_and_another_order_of_blocks_give_the_same_bytes(
    bayesnde: Callable, engines: list, run: Path, reference: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    process = start(run, dies_at=3)
    process.communicate()
    assert process.returncode == 9
    assert len(list((run / "density/test").glob("block-*"))) == 2
    assert list((run / "density/test").glob(".claim-*"))
    share = score.share

    def shuffled(layout: object, plan: object, blocks: range, *rest: object) -> None:
        share(layout, plan, random.Random(7).sample(blocks, len(blocks)), *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(score, "share", shuffled)
    assert bayesnde("density", "--run", run, *SMALL).code == 0
    assert table_bytes(run) == reference
    left = {path.name.partition("-")[0] for path in (run / "density/test").iterdir()}
    assert left == {"plan.json", "manifest.json", "density.parquet", "block"}


def test_two_processes_at_once_share_the_blocks_and_both_end_well(run: Path, reference: bytes) -> None:
    crowd = [start(run, seconds=0.1) for _ in range(2)]
    ends = [(process.communicate(), process.returncode) for process in crowd]
    assert [code for _, code in ends] == [0, 0], ends
    assert table_bytes(run) == reference
    assert len({out.removesuffix(" (up to date)\n").strip() for (out, _), _ in ends}) == 1


def test_a_stage_at_work_is_not_thrown_away_and_a_signal_ends_it_with_75(
    bayesnde: Callable, engines: list, run: Path, reference: bytes
) -> None:
    process = start(run, seconds=60.0, n_quick=1)
    deadline = time.monotonic() + 60.0
    while not list((run / "density/test").glob(".claim-00001*")) and time.monotonic() < deadline:
        time.sleep(0.02)
    stages = json.loads(bayesnde("status", "--run", run, "--json").out)["stages"]
    (item,) = [item for item in stages if item["stage"] == "density"]
    assert (item["state"], item["detail"], item["blocks"]) == ("running", "1 process", 8)
    refused = bayesnde("density", "--run", run, *SMALL, "--draws", "5", "--restart")
    assert refused.code == 3
    assert refused.err.startswith("error: density/test cannot be removed: it is being made\n  process ")
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=30)
    assert process.returncode == 75, err
    assert {path.name[:5] for path in (run / "density/test").iterdir()} == {"plan.", "block"}  # no claim, no draft
    assert bayesnde("density", "--run", run, *SMALL).code == 0
    assert table_bytes(run) == reference


def test_an_array_is_frozen_and_an_impossible_shard_refused(
    bayesnde: Callable, engines: list, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outcome = bayesnde("density", "--run", run, *SMALL, "--shard", "9/8")
    assert outcome.code == 2
    assert outcome.err.startswith("error: --shard 9/8 is not of the form I/N\n")
    assert not (run / "density").exists()
    for name, value in {"ID": "2", "COUNT": "3", "MIN": "1", "MAX": "3"}.items():
        monkeypatch.setenv(f"SLURM_ARRAY_TASK_{name}", value)
    outcome = bayesnde("density", "--run", run, *SMALL, "--shard", "auto")
    assert "shard 2/3 done, 3 blocks; 3 of 8 blocks there" in outcome.out
    refused = bayesnde("density", "--run", run, *SMALL, "--shard", "1/4")
    assert refused.code == 2
    assert refused.err.startswith("error: density/test is divided into 3 shards, not 4\n")
