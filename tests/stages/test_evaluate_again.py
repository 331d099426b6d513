"""`evaluate` run again: up to date, stale, damaged, and what `status` says of it."""

import json
from collections.abc import Callable
from pathlib import Path

import fake_engine
from scoring_runs import FEW, SMALL


def test_again_it_is_up_to_date_and_does_nothing(bayesnde: Callable, models: list, scored: Path) -> None:
    first = bayesnde("evaluate", "--run", scored, *FEW)
    before = (scored / "evaluate/test/metrics.json").stat()
    again = bayesnde("evaluate", "--run", scored, *FEW, "--threads", "1")
    assert again.code == 0
    assert again.out == first.out.replace("reliable\n", "reliable (up to date)\n", 1)
    assert (scored / "evaluate/test/metrics.json").stat().st_mtime_ns == before.st_mtime_ns
    assert len(models) == 1
    other = bayesnde("evaluate", "--run", scored, *FEW, "--generated-rows", "300")
    assert other.code == 2
    assert "  settings.generated_rows: 200 -> 300\n" in other.err
    whole = (scored / "evaluate/test/metrics.json").read_bytes()
    assert bayesnde("evaluate", "--run", scored, *FEW, "--restart").code == 0
    assert (scored / "evaluate/test/metrics.json").read_bytes() == whole  # the same random numbers
    assert bayesnde("evaluate", "--run", scored, *FEW, "--restart", "--seed", "5").code == 0
    assert (scored / "evaluate/test/metrics.json").read_bytes() != whole


def test_densities_that_are_missing_stale_or_damaged_are_not_evaluated(
    bayesnde: Callable, engines: list, models: list, run: Path
) -> None:
    outcome = bayesnde("evaluate", "--run", run, *FEW)
    assert outcome.code == 3
    assert outcome.err == (
        "error: density/test is not there, or not complete\n"
        f"  no {run}/density/test/manifest.json\nhint: run `bayesnde density --run {run}`\n"
    )
    assert not (run / "evaluate").exists()
    assert bayesnde("density", "--run", run, *SMALL, "--shard", "1/2").code == 0
    assert bayesnde("evaluate", "--run", run, *FEW).err == outcome.err
    assert bayesnde("density", "--run", run, *SMALL).code == 0
    assert bayesnde("evaluate", "--run", run, *FEW).code == 0
    assert bayesnde("density", "--run", run, *SMALL, "--seed", "5", "--restart").code == 0
    stale = bayesnde("evaluate", "--run", run, *FEW)
    assert stale.code == 3
    assert stale.err == (
        "error: evaluate/test was made from files that have changed since\n"
        "  density/test/density.parquet is not the one that evaluate/test read\n"
        f"hint: run `bayesnde evaluate --run {run} --restart`\n"
    )
    assert bayesnde("evaluate", "--run", run, *FEW, "--restart").code == 0
    fake_engine.pretend_refined(run, b"others!")
    assert bayesnde("evaluate", "--run", run, *FEW, "--restart").code == 3
    assert len(models) == 2


def test_status_knows_the_stage(bayesnde: Callable, scored: Path) -> None:
    def state() -> str:
        return json.loads(bayesnde("status", "--run", scored, "--json").out)["stages"][-1]["state"]

    assert state() == "missing"
    assert bayesnde("evaluate", "--run", scored, *FEW).code == 0
    assert state() == "done"
    document = scored / "evaluate/test/metrics.json"
    whole = document.read_bytes()
    document.write_bytes(whole[:-10])
    assert state() == "damaged"
    damaged = bayesnde("evaluate", "--run", scored, *FEW)
    assert damaged.code == 3
    assert "is not what evaluate wrote\n" in damaged.err
    document.write_bytes(whole)
    assert bayesnde("density", "--run", scored, *SMALL, "--seed", "5", "--restart").code == 0
    assert state() == "stale"
