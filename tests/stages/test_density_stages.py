"""`posterior` and `density` with a stand-in for the engine: the same bits however the blocks are shared out."""

import json
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

import fake_engine
from bayesnde_cli.artifacts.layout import RunLayout

# Small blocks, few draws: about eight blocks of the test rows, the last one not full.
SMALL = ["--block-rows", "8", "--draws", "4", "--chains", "2"]
FAKE = Path(fake_engine.__file__)


@pytest.fixture
def run(fitted: Path, tmp_path: Path) -> Path:
    """A copy of the fitted run, to work on."""
    return Path(shutil.copytree(fitted, tmp_path / "run"))


@pytest.fixture
def reference(fitted: Path, tmp_path: Path, bayesnde: Callable, engines: list) -> bytes:
    """density.parquet of the test rows, from one process."""
    calm = shutil.copytree(fitted, tmp_path / "calm")
    assert bayesnde("density", "--run", calm, *SMALL).code == 0
    return (calm / "density/test/density.parquet").read_bytes()


def _start(run: Path, *options: str, stage: str = "density", **fake: object) -> subprocess.Popen[str]:
    command = [sys.executable, str(FAKE), json.dumps(fake), stage, "--run", str(run), *SMALL, *options]
    return subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def _table(run: Path, set_name: str = "test") -> bytes:
    return (run / f"density/{set_name}/density.parquet").read_bytes()


def _set(run: Path, stage: str = "density") -> str:
    """The one set of the run that is not `test`."""
    (name,) = [name for name in RunLayout(run).sets(stage) if name != "test"]
    return name


def test_density_of_the_test_rows(bayesnde: Callable, engines: list, run: Path) -> None:
    outcome = bayesnde("density", "--run", run, *SMALL)
    assert outcome.code == 0, outcome.err
    table = pq.read_table(run / "density/test/density.parquet")
    assert table.column_names == [
        "row_id", "log_density", "log_density_scaled", "mc_se", "log_density_is", "overlap", "ess_min", "rhat_max",
        "acceptance", "divergences", "bridge_iterations", "converged", "reliable", "verdict", "n_observed",
        "n_gradients", "n_likelihoods", "name", "k", "true_log_density",
    ]  # fmt: skip
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
    assert set(manifest["inputs"]) == {"prepare/schema.json", "prepare/test.parquet", "refine/weights/model.npz",
                                       "refine/latents.parquet"}  # fmt: skip
    assert not (run / "posterior").exists()
    assert engines[0].n_scored == -(-n_rows // 8)


def test_again_is_up_to_date_and_other_settings_are_listed(bayesnde: Callable, engines: list, run: Path) -> None:
    first = bayesnde("density", "--run", run, *SMALL)
    again = bayesnde("density", "--run", run, *SMALL, "--threads", "1", "--keep-draws")
    assert (again.code, again.out) == (0, first.out.replace("\n", " (up to date)\n"))
    assert len(engines) == 1
    before = _table(run)
    other = bayesnde("density", "--run", run, *SMALL, "--target-se", "0.5")
    assert other.code == 2
    assert other.err == (
        "error: density/test was made with other settings or data\n  settings.target_se: 0.05 -> 0.5\n"
        f"hint: run `bayesnde density --run {run} --restart` to make it again, "
        "or keep it and use another run directory with `--run OTHER`\n"
    )
    assert _table(run) == before
    assert bayesnde("density", "--run", run, *SMALL, "--seed", "5", "--restart").code == 0
    assert _table(run) != before


def test_eight_shards_in_random_order_and_a_gather_give_the_same_bytes(
    bayesnde: Callable, engines: list, run: Path, reference: bytes
) -> None:
    order = list(range(1, 9))
    random.Random(3).shuffle(order)
    for index in order:
        outcome = bayesnde("density", "--run", run, *SMALL, "--shard", f"{index}/8")
        assert outcome.code == 0, outcome.err
        assert f"shard {index}/8 done, " in outcome.out
    assert not (run / "density/test/density.parquet").exists()
    assert outcome.out.endswith(f"combine with `bayesnde density --run {run}`\n")
    n_engines = len(engines)
    assert bayesnde("density", "--run", run, *SMALL).code == 0
    assert len(engines) == n_engines  # a gather opens no engine
    assert json.loads((run / "density/test/manifest.json").read_text())["device"] == "none: all blocks were there"
    assert _table(run) == reference


def test_a_run_that_died_ten_times_gives_the_same_bytes(run: Path, reference: bytes) -> None:
    rng = random.Random(4)
    deaths = [rng.choice((1, 1, 2)) for _ in range(9)]
    assert sum(deaths) - len(deaths) < 7  # blocks that were finished before: it always dies on the way
    for dies_at in deaths:
        process = _start(run, dies_at=dies_at)
        process.communicate()
        assert process.returncode == 9
    assert (run / "density/test").is_dir()
    assert list((run / "density/test").glob(".claim-*"))
    process = _start(run, seconds=0.1)
    time.sleep(1.0)
    process.kill()  # and now anywhere
    process.communicate()
    process = _start(run)
    _, err = process.communicate()
    assert process.returncode == 0, err
    assert _table(run) == reference
    left = {path.name.partition("-")[0] for path in (run / "density/test").iterdir()}
    assert left == {"plan.json", "manifest.json", "density.parquet", "block"}


def test_another_order_of_blocks_gives_the_same_bytes(run: Path, reference: bytes) -> None:
    process = _start(run, order=7)
    _, err = process.communicate()
    assert process.returncode == 0, err
    assert _table(run) == reference


def test_three_processes_at_once_share_the_blocks_and_all_end_well(run: Path, reference: bytes) -> None:
    crowd = [_start(run, seconds=0.1) for _ in range(3)]
    ends = [(process.communicate(), process.returncode) for process in crowd]
    assert [code for _, code in ends] == [0, 0, 0], ends
    assert _table(run) == reference
    assert len({out.removesuffix(" (up to date)\n").strip() for (out, _), _ in ends}) == 1


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_a_signal_ends_it_with_75_and_no_claim_is_left(number: int, run: Path, reference: bytes) -> None:
    process = _start(run, seconds=0.2)
    deadline = time.monotonic() + 30.0
    while not list((run / "density/test").glob("block-*")) and time.monotonic() < deadline:
        time.sleep(0.02)
    started = time.monotonic()
    process.send_signal(number)
    _, err = process.communicate()
    assert process.returncode == 75, err
    assert time.monotonic() - started < 5.0
    assert not list((run / "density/test").glob(".claim-*"))
    assert not list((run / "density/test").glob(".tmp-*"))
    _start(run).communicate()
    assert _table(run) == reference


def test_draws_that_are_there_are_used_and_give_the_same_bytes(
    bayesnde: Callable, engines: list, run: Path, reference: bytes
) -> None:
    assert bayesnde("posterior", "--run", run, *SMALL, "--shard", "1/2").code == 0
    sampled = engines[-1].n_sampled
    outcome = bayesnde("density", "--run", run, *SMALL)
    assert outcome.code == 0, outcome.err
    assert engines[-1].n_sampled == engines[-1].n_scored - sampled
    assert _table(run) == reference
    assert len(list((run / "posterior/test").glob("block-*"))) == sampled


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
    assert diagnostics.column_names == [
        "row_id", "acceptance", "divergences", "step_size", "n_gradients", "ess_min", "rhat_max",
    ]  # fmt: skip
    assert bayesnde("posterior", "--run", run, *SMALL).out.endswith("(up to date)\n")


def test_draws_of_other_settings_are_left_alone(bayesnde: Callable, engines: list, run: Path, reference: bytes) -> None:
    assert bayesnde("posterior", "--run", run, *SMALL, "--leapfrogs", "3").code == 0
    outcome = bayesnde("density", "--run", run, *SMALL)
    assert outcome.code == 0
    assert outcome.err.startswith("posterior/test was made with other settings and is not used\n")
    assert _table(run) == reference
    kept = bayesnde("density", "--run", run, *SMALL, "--keep-draws", "--target-se", "1", "--restart")
    assert kept.code == 2
    assert "error: posterior/test was made with other settings or data\n  settings.leapfrogs: 3 -> 6\n" in kept.err


def test_draws_are_kept_if_asked_for(bayesnde: Callable, engines: list, run: Path, reference: bytes) -> None:
    assert bayesnde("density", "--run", run, *SMALL, "--keep-draws").code == 0
    assert _table(run) == reference
    assert bayesnde("posterior", "--run", run, *SMALL).out.endswith("(up to date)\n")
    assert len(engines) == 2  # the reference's and this one


def test_a_redone_refinement_makes_it_stale(bayesnde: Callable, engines: list, run: Path) -> None:
    assert bayesnde("density", "--run", run, *SMALL).code == 0
    assert bayesnde("posterior", "--run", run, *SMALL, "--shard", "1/3").code == 0  # begun
    fake_engine.pretend_refined(run, b"others!")
    for stage in ("density", "posterior"):
        outcome = bayesnde(stage, "--run", run, *SMALL)
        assert outcome.code == 3
        assert outcome.err == (
            f"error: {stage}/test was made from files that have changed since\n"
            f"  refine/latents.parquet is not the one that {stage}/test read\n"
            f"  refine/weights/model.npz is not the one that {stage}/test read\n"
            f"hint: run `bayesnde {stage} --run {run} --restart`\n"
        )
        assert bayesnde(stage, "--run", run, *SMALL, "--restart", "--shard", "1/2").code == 0
        assert bayesnde(stage, "--run", run, *SMALL, "--restart", "--shard", "2/2").code == 0  # joins the first
        assert bayesnde(stage, "--run", run, *SMALL).code == 0
    shutil.rmtree(run / "refine")
    outcome = bayesnde("density", "--run", run, *SMALL)
    assert outcome.code == 3
    assert outcome.err.startswith("error: refine is not there, or not complete\n")


def test_status_shows_the_blocks_and_what_is_next(bayesnde: Callable, engines: list, run: Path) -> None:
    shutil.copytree(run / "refine", run / "warmstart")
    document = json.loads((run / "refine/manifest.json").read_text()) | {"stage": "warmstart"}
    (run / "warmstart/manifest.json").write_text(json.dumps(document))

    def status() -> tuple[dict, str]:
        found = json.loads(bayesnde("status", "--run", run, "--json").out)
        return {f"{item['stage']}/{item['set_name']}": item for item in found["stages"]}, found["next"]

    assert status()[1] == f"bayesnde density --run {run}"
    assert bayesnde("density", "--run", run, *SMALL, "--shard", "2/4").code == 0
    item = status()[0]["density/test"]
    assert (item["state"], item["blocks_done"], item["blocks"]) == ("interrupted", 2, 8)
    assert bayesnde("density", "--run", run, *SMALL).code == 0
    stages, following = status()
    assert stages["density/test"]["state"] == "done"
    assert stages["posterior/test"]["state"] == "missing"
    assert following is None


def test_an_array_is_frozen_and_an_impossible_shard_refused(
    bayesnde: Callable, engines: list, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outcome = bayesnde("density", "--run", run, *SMALL, "--shard", "9/8")
    assert outcome.code == 2
    assert outcome.err.startswith("error: --shard 9/8 is out of range\n")
    assert not (run / "density").exists()
    for name, value in {"ID": "2", "COUNT": "3", "MIN": "1", "MAX": "3"}.items():
        monkeypatch.setenv(f"SLURM_ARRAY_TASK_{name}", value)
    outcome = bayesnde("density", "--run", run, *SMALL, "--shard", "auto")
    assert "shard 2/3 done, 3 blocks; 3 of 8 blocks there" in outcome.out
    refused = bayesnde("density", "--run", run, *SMALL, "--shard", "1/4")
    assert refused.code == 2
    assert refused.err.startswith("error: density/test is divided into 3 shards, not 4\n")


def test_rows_of_a_file_are_those_of_the_test_set(bayesnde: Callable, engines: list, run: Path, tmp_path: Path) -> None:
    """The same rows at the same place of a file have the same noise and Jacobian; labels are what the file has."""
    text = (Path(json.loads((run / "prepare/manifest.json").read_text())["inputs"]["data-0"]["path"])).read_text()
    (tmp_path / "new file.csv").write_text(text)
    outcome = bayesnde("density", tmp_path / "new file.csv", "--run", run, *SMALL)
    assert outcome.code == 0, outcome.err
    name = _set(run)
    assert name.startswith("new-file-")
    rows = pq.read_table(run / f"density/{name}/rows.parquet")
    test = pq.read_table(run / "prepare/test.parquet")
    ids = test["row_id"].to_pylist()
    for column in ("x_scaled", "log_jacobian", "name", "k", "true_log_density"):
        assert rows[column].take(ids).to_pylist() == test[column].to_pylist(), column
    assert pq.read_table(run / f"density/{name}/density.parquet")["name"].to_pylist() == rows["name"].to_pylist()


CELLS = "k,n,b,a,other\nu,3,1.5,0.25,?\nv,,2.5,,?\nu,,,,?\nu,4,,-1.0,?\n"


def test_missing_cells_leave_the_density_of_the_others(
    bayesnde: Callable, engines: list, run: Path, tmp_path: Path
) -> None:
    (tmp_path / "gaps.csv").write_text(CELLS)
    outcome = bayesnde("density", tmp_path / "gaps.csv", "--run", run, *SMALL)
    assert outcome.code == 0, outcome.err
    assert "not used: other\n" in outcome.err
    name = _set(run)
    table = pq.read_table(run / f"density/{name}/density.parquet").to_pylist()
    assert [row["n_observed"] for row in table] == [3, 1, 0, 2]
    assert [row["k"] for row in table] == ["u", "v", "u", "u"]
    assert "name" not in table[0]
    nothing = table[2]
    assert (nothing["log_density"], nothing["log_density_scaled"], nothing["mc_se"]) == (0.0, 0.0, 0.0)
    assert (nothing["reliable"], nothing["converged"], nothing["verdict"]) == (True, True, "no cells")
    (tmp_path / "whole.csv").write_text("a,b,n,k\n9,2.5,9,v\n9,2.5,9,v\n")
    assert bayesnde("density", tmp_path / "whole.csv", "--run", run, *SMALL).code == 0
    whole = next((run / "density").glob("whole-*"))
    scaled = pq.read_table(whole / "rows.parquet")["x_scaled"].to_pylist()[1]
    gaps = pq.read_table(run / f"density/{name}/rows.parquet")
    assert np.isnan(gaps["x_scaled"].to_pylist()[1]).tolist() == [True, False, True]
    assert gaps["x_scaled"].to_pylist()[1][1] == scaled[1]


def test_several_files_and_stdin_are_one_set_each(bayesnde: Callable, engines: list, run: Path, tmp_path: Path) -> None:
    (tmp_path / "one.csv").write_text("a,b,n,k\n0.1,1.0,3,u\n0.2,2.0,4,v\n")
    (tmp_path / "two.csv").write_text("k,n,b,a\nu,5,3.0,0.3\n")
    assert bayesnde("density", tmp_path / "one.csv", tmp_path / "two.csv", "--run", run, *SMALL).code == 0
    name = _set(run)
    assert name.startswith("one-")
    assert pq.read_table(run / f"density/{name}/density.parquet")["k"].to_pylist() == ["u", "v", "u"]
    together = (tmp_path / "one.csv").read_text() + "0.3,3.0,5,u\n"
    command = [sys.executable, str(FAKE), "{}", "density", "-", "--run", str(run), *SMALL]
    command += ["--out", "-", "--format", "csv", "--columns", "log_density,k,row_id", "-q"]
    done = subprocess.run(command, input=together, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    lines = done.stdout.splitlines()
    assert lines[0] == "log_density,k,row_id"
    assert [line.split(",")[1:] for line in lines[1:]] == [["u", "0"], ["v", "1"], ["u", "2"]]
    piped = next(path for path in (run / "density").iterdir() if path.name.startswith("stdin-"))
    staged = [pq.read_table(folder / "rows.parquet") for folder in (piped, run / "density" / name)]
    assert staged[0].equals(staged[1])


def test_shards_of_a_file_agree_on_its_rows(run: Path, tmp_path: Path, bayesnde: Callable, engines: list) -> None:
    rng = np.random.default_rng(1)
    lines = [f"{a:.5f},{b:.5f},{n},{'uv'[n % 2]}" for a, b, n in
             zip(rng.normal(size=40), rng.gamma(2.0, size=40), rng.poisson(4, 40), strict=True)]  # fmt: skip
    (tmp_path / "new.csv").write_text("a,b,n,k\n" + "\n".join(lines) + "\n")
    calm = Path(shutil.copytree(run, tmp_path / "calm"))
    assert bayesnde("density", tmp_path / "new.csv", "--run", calm, *SMALL).code == 0
    crowd = [_start(run, str(tmp_path / "new.csv"), "--shard", f"{index}/3") for index in (1, 2, 3)]
    assert [process.wait() for process in crowd if process.communicate()] == [0, 0, 0]
    assert bayesnde("density", tmp_path / "new.csv", "--run", run, *SMALL).code == 0
    assert _table(run, _set(run)) == _table(calm, _set(calm))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("a,b,k\n1,2,u\n", "error: the file lacks 1 of the model's 4 columns\n  missing: n\n"),
        ("a,b,n,k\n1,inf,3,u\n", "error: column 'b' has an infinity in row 1\n"),
        ("a,b,n,k\n1,word,3,u\n", "error: column 'b' holds text, but the model knows it as numbers\n"),
        ("a,b,n,k\n1,2,3,\n", "error: condition 'k' has an unseen class in row 1\n"),
        ("a,b,n,k\n", "bad.csv holds a header and no rows\n"),
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


def test_staged_rows_that_are_damaged_are_read_again(
    bayesnde: Callable, engines: list, run: Path, tmp_path: Path
) -> None:
    (tmp_path / "gaps.csv").write_text(CELLS)
    assert bayesnde("density", tmp_path / "gaps.csv", "--run", run, *SMALL, "--shard", "2/2").code == 0
    rows = run / "density" / _set(run) / "rows.parquet"
    whole = rows.read_bytes()
    rows.write_bytes(whole[:-20])
    assert bayesnde("density", tmp_path / "gaps.csv", "--run", run, *SMALL).code == 0
    assert rows.read_bytes() == whole


def test_a_block_that_is_being_computed_shows_in_status_and_is_not_thrown_away(
    bayesnde: Callable, engines: list, run: Path
) -> None:
    process = _start(run, seconds=1.5)
    deadline = time.monotonic() + 30.0
    while not list((run / "density/test").glob(".claim-*")) and time.monotonic() < deadline:
        time.sleep(0.02)
    stages = json.loads(bayesnde("status", "--run", run, "--json").out)["stages"]
    (item,) = [item for item in stages if item["stage"] == "density"]
    assert (item["state"], item["detail"], item["blocks"]) == ("running", "1 process", 8)
    refused = bayesnde("density", "--run", run, *SMALL, "--draws", "5", "--restart")
    assert refused.code == 3
    assert refused.err.startswith("error: density/test cannot be removed: it is being made\n  process ")
    process.kill()
    process.communicate()
    assert bayesnde("density", "--run", run, *SMALL, "--draws", "5", "--restart").code == 0
