"""`density` with a stand-in for the engine: the same bits however the blocks are shared out, killed and resumed."""

import json
import random
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from fake_engine import pretend_warmed
from scoring_runs import SMALL, other_set, start, table_bytes


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
    assert table_bytes(run) == reference


def test_a_run_that_died_ten_times_gives_the_same_bytes(run: Path, reference: bytes) -> None:
    rng = random.Random(4)
    deaths = [rng.choice((1, 1, 2)) for _ in range(9)]
    assert sum(deaths) - len(deaths) < 7  # blocks that were finished before: it always dies on the way
    for dies_at in deaths:
        process = start(run, dies_at=dies_at)
        process.communicate()
        assert process.returncode == 9
    assert (run / "density/test").is_dir()
    assert list((run / "density/test").glob(".claim-*"))
    process = start(run, seconds=0.1)
    time.sleep(1.0)
    process.kill()  # and now anywhere
    process.communicate()
    process = start(run)
    _, err = process.communicate()
    assert process.returncode == 0, err
    assert table_bytes(run) == reference
    left = {path.name.partition("-")[0] for path in (run / "density/test").iterdir()}
    assert left == {"plan.json", "manifest.json", "density.parquet", "block"}


def test_another_order_of_blocks_gives_the_same_bytes(run: Path, reference: bytes) -> None:
    process = start(run, order=7)
    _, err = process.communicate()
    assert process.returncode == 0, err
    assert table_bytes(run) == reference


def test_three_processes_at_once_share_the_blocks_and_all_end_well(run: Path, reference: bytes) -> None:
    crowd = [start(run, seconds=0.1) for _ in range(3)]
    ends = [(process.communicate(), process.returncode) for process in crowd]
    assert [code for _, code in ends] == [0, 0, 0], ends
    assert table_bytes(run) == reference
    assert len({out.removesuffix(" (up to date)\n").strip() for (out, _), _ in ends}) == 1


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_a_signal_ends_it_with_75_and_no_claim_is_left(number: int, run: Path, reference: bytes) -> None:
    process = start(run, seconds=0.2)
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
    start(run).communicate()
    assert table_bytes(run) == reference


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


def test_shards_of_a_file_agree_on_its_rows(run: Path, tmp_path: Path, bayesnde: Callable, engines: list) -> None:
    rng = np.random.default_rng(1)
    lines = [f"{a:.5f},{b:.5f},{n},{'uv'[n % 2]}" for a, b, n in
             zip(rng.normal(size=40), rng.gamma(2.0, size=40), rng.poisson(4, 40), strict=True)]  # fmt: skip
    (tmp_path / "new.csv").write_text("a,b,n,k\n" + "\n".join(lines) + "\n")
    calm = Path(shutil.copytree(run, tmp_path / "calm"))
    assert bayesnde("density", tmp_path / "new.csv", "--run", calm, *SMALL).code == 0
    crowd = [start(run, str(tmp_path / "new.csv"), "--shard", f"{index}/3") for index in (1, 2, 3)]
    assert [process.wait() for process in crowd if process.communicate()] == [0, 0, 0]
    assert bayesnde("density", tmp_path / "new.csv", "--run", run, *SMALL).code == 0
    assert table_bytes(run, other_set(run)) == table_bytes(calm, other_set(calm))


def test_status_shows_the_blocks_and_what_is_next(bayesnde: Callable, engines: list, run: Path) -> None:
    pretend_warmed(run)

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
    assert following == f"bayesnde evaluate --run {run}"


def test_a_block_that_is_being_computed_shows_in_status_and_is_not_thrown_away(
    bayesnde: Callable, engines: list, run: Path
) -> None:
    process = start(run, seconds=1.5)
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
