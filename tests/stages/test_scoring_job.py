"""Whether a scoring stage is done, and processes that act between the check and the deed of another one.

One process plays both.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import fake_engine
from bayesnde_cli import stopping
from bayesnde_cli.errors import MissingArtifact, SettingsDiffer
from bayesnde_cli.runs import manifest
from bayesnde_cli.runs.blocks import Plan, Shard, blocks_done, create_or_join, read_block
from bayesnde_cli.runs.files import running, temporary_beside
from bayesnde_cli.runs.layout import RunLayout
from bayesnde_cli.runs.manifest import discard
from bayesnde_cli.settings.stage_settings import DensitySettings, PosteriorSettings
from bayesnde_cli.stages import loading, posterior_draws, score, scoring_job
from bayesnde_cli.stages.scoring_job import Asked
from fake_engine import DRAWS
from scoring_runs import SMALL, Notes, other_set, table_bytes

SAME: dict[str, Any] = {"chains": 2, "draws": 4, "block_rows": 8, "seed": 0}  # as SMALL
BRIDGE = DensitySettings(method="bridge", **SAME)


def test_again_is_up_to_date_and_other_settings_are_listed(bayesnde: Callable, engines: list, run: Path) -> None:
    first = bayesnde("density", "--run", run, *SMALL)
    again = bayesnde("density", "--run", run, *SMALL, "--threads", "1")
    assert (again.code, again.out) == (0, first.out.replace("\n", " (up to date)\n"))
    assert len(engines) == 1
    before = table_bytes(run)
    other = bayesnde("density", "--run", run, *SMALL, "--target-se", "0.5")
    assert other.code == 2
    assert other.err == (
        "error: density/test was made with other settings or data\n  settings.target_se: 0.05 -> 0.5\n"
        f"hint: run `bayesnde density --run {run} --restart` with the same options to make it again, "
        "or keep it and use another run directory with `--run OTHER`\n"
    )
    assert table_bytes(run) == before
    assert bayesnde("density", "--run", run, *SMALL, "--seed", "5", "--restart").code == 0
    assert table_bytes(run) != before


def test_a_redone_refinement_makes_it_stale(bayesnde: Callable, engines: list, run: Path) -> None:
    assert bayesnde("density", "--run", run, *SMALL).code == 0
    assert bayesnde("posterior", "--run", run, *DRAWS, "--shard", "1/3").code == 0  # started
    fake_engine.pretend_refined(run, b"others!")
    for stage, options in (("density", SMALL), ("posterior", DRAWS)):
        outcome = bayesnde(stage, "--run", run, *options)
        assert outcome.code == 3
        assert outcome.err == (
            f"error: {stage}/test was made from files that have changed since\n"
            f"  refine/latents.parquet is not the one that {stage}/test read\n"
            f"  refine/weights/model.npz is not the one that {stage}/test read\n"
            f"hint: run `bayesnde {stage} --run {run} --restart`\n"
        )
        assert bayesnde(stage, "--run", run, *options, "--restart", "--shard", "1/2").code == 0
        assert bayesnde(stage, "--run", run, *options, "--restart", "--shard", "2/2").code == 0  # joins the first
        assert bayesnde(stage, "--run", run, *options).code == 0
    shutil.rmtree(run / "refine")
    outcome = bayesnde("density", "--run", run, *SMALL)
    assert outcome.code == 3
    assert outcome.err.startswith("error: refine is missing or incomplete\n")


def test_other_versions_are_named_and_recorded(
    bayesnde: Callable, engines: list, run: Path, reference: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    def install(numpy: str) -> None:
        versions = {"bayesnde": "0.1.0", "numpy": numpy, "pyarrow": "9", "tensorflow": "2.20.0"}
        monkeypatch.setattr(manifest, "package_versions", lambda: versions)

    install("2.0.0")
    assert "warning" not in bayesnde("density", "--run", run, *SMALL, "--shard", "1/2").err
    install("2.1.0")
    outcome = bayesnde("density", "--run", run, *SMALL, "--json")
    (mixed,) = [line for line in outcome.err.splitlines() if line.startswith("warning: ")]
    old, new = (f"bayesnde 0.1.0, numpy {version}, tensorflow 2.20.0" for version in ("2.0.0", "2.1.0"))
    assert mixed == f"warning: density/test was made with different versions: 4 blocks with {old}; 4 blocks with {new}"
    assert manifest.Manifest.read(run / "density/test/manifest.json").result["made_with"] == {old: 4, new: 4}
    assert table_bytes(run) == reference


# Races


def _before(monkeypatch: pytest.MonkeyPatch, module: ModuleType, name: str, deed: Callable[[], Any]) -> None:
    """Have another process act just before this one enters `module.name`, the first time."""
    entered = getattr(module, name)

    @contextmanager
    def late(*args: Any, **options: Any) -> Iterator[Any]:
        monkeypatch.setattr(module, name, entered)
        deed()
        with entered(*args, **options) as given:
            yield given

    monkeypatch.setattr(module, name, late)


def _hold(monkeypatch: pytest.MonkeyPatch, layout: RunLayout, then: Callable[[], Any] = lambda: None) -> list[float]:
    """Have another process hold `density/test` until this one has slept twice; the naps, in a list that grows."""
    other, naps = ExitStack(), []
    other.enter_context(running(layout, "density", "test"))

    def sleep(seconds: float) -> None:
        naps.append(seconds)
        if len(naps) == 2:
            other.close()
            then()

    monkeypatch.setattr(stopping, "sleep", sleep)
    return naps


def _restart_once(layout: RunLayout) -> Callable[[], None]:
    """Another process's `posterior --draws 5 --restart --shard 1/2`."""
    deeds = [PosteriorSettings(**(SAME | {"draws": 5}))]

    def restart() -> None:
        if deeds:
            posterior_draws.run_posterior(layout, Asked(is_restart=True, shard=Shard(1, 2)), deeds.pop(), Notes())

    return restart


def test_a_table_that_another_process_has_just_combined_is_not_combined_again(
    bayesnde: Callable, engines: list, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files, seen = [run / "density/test" / name for name in ("manifest.json", "density.parquet")], []

    def facts() -> list[tuple[int, int]]:
        """Which files they are and when they were written; reading them changes neither."""
        return [(stat.st_ino, stat.st_mtime_ns) for stat in (file.stat() for file in files)]

    def combine() -> None:
        assert bayesnde("density", "--run", run, *SMALL).code == 0
        seen.append(facts())

    _before(monkeypatch, score, "workplace", combine)
    assert bayesnde("density", "--run", run, *SMALL).code == 0
    assert [facts()] == seen


def test_one_process_reads_a_file_and_the_other_waits_for_its_rows(
    bayesnde: Callable, engines: list, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "new.csv").write_text("a,b,n,k\n0.1,1.0,3,u\n0.2,2.0,4,v\n")
    command, seen = ["density", tmp_path / "new.csv", "--run", run, *SMALL], []
    job = scoring_job.make_job(RunLayout(run), Asked(data=[tmp_path / "new.csv"]), BRIDGE)
    other = ExitStack()

    def read(_: float) -> None:
        other.close()
        monkeypatch.setattr(stopping, "sleep", None)
        assert bayesnde(*command, "--shard", "1/2").err.startswith("read as: ")
        seen.append((run / "density" / other_set(run) / "rows.parquet").stat().st_ino)

    other.enter_context(running(job.layout, "density", job.set_name))
    monkeypatch.setattr(stopping, "sleep", read)
    notes = Notes()
    score.score(job, Asked(), notes)
    (told,) = notes.told
    assert told.startswith(f"waiting for density/{job.set_name}: process {os.getpid()} on ")
    assert [(run / "density" / other_set(run) / "rows.parquet").stat().st_ino] == seen


def test_no_block_is_started_while_another_process_has_the_stage_to_itself(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    layout, notes = RunLayout(run), Notes()
    computed: list[int | str] = []
    plan = create_or_join(layout, Plan(stage="density", set_name="test", run_id="id", n_rows=20, block_rows=10, seed=0))
    _hold(monkeypatch, layout, then=lambda: computed.append("released"))
    score.share(layout, plan, range(2), lambda block, _: computed.append(block), notes)
    assert computed == ["released", 0, 1]
    assert notes.told == ["waiting for 2 blocks of other processes"]


def test_a_process_that_waits_for_another_to_combine_says_so_once(
    engines: list, run: Path, reference: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    layout, notes, naps = RunLayout(run), Notes(), []
    _before(monkeypatch, score, "workplace", lambda: naps.append(_hold(monkeypatch, layout)))
    score.run_density(layout, Asked(), BRIDGE, notes)
    assert len(naps[0]) == 2
    (told,) = notes.told
    assert told.startswith(f"waiting for density/test: process {os.getpid()} on ")
    assert table_bytes(run) == reference


def test_a_shard_whose_plan_is_gone_does_not_make_it_again(bayesnde: Callable, engines: list, run: Path) -> None:
    """Another process has removed the stage, for `--restart`, and has not yet put its own plan there."""
    layout = RunLayout(run)
    notes = Notes(after_block=lambda: discard(layout, "density", "test"))
    with pytest.raises(MissingArtifact) as caught:
        score.run_density(layout, Asked(), BRIDGE, notes)
    assert caught.value.what == f"{run}/density/test/plan.json is missing"
    assert not (run / "density/test").exists()
    assert bayesnde("density", "--run", run, *SMALL, "--draws", "5", "--restart").code == 0


# A restart that is killed when the stage is renamed and not yet removed.
_KILLED_RESTART = """
import os, sys
from pathlib import Path
from bayesnde_cli.runs import manifest
from bayesnde_cli.runs.layout import RunLayout
manifest.shutil.rmtree = lambda *args, **options: os._exit(9)
manifest.discard(RunLayout(Path(sys.argv[1])), "density", "test")
"""


def test_the_remains_of_a_killed_restart_are_swept_and_those_of_a_living_one_are_not(
    bayesnde: Callable, engines: list, run: Path, reference: bytes
) -> None:
    assert bayesnde("density", "--run", run, *SMALL, "--shard", "1/8").code == 0
    assert subprocess.run([sys.executable, "-c", _KILLED_RESTART, str(run)]).returncode == 9
    (left,) = (run / "density").iterdir()
    assert left.name.startswith(".tmp-")
    aside = temporary_beside(run / "density/other")
    aside.mkdir()
    assert bayesnde("density", "--run", run, *SMALL).code == 0
    assert set((run / "density").iterdir()) == {run / "density/test", aside}
    assert table_bytes(run) == reference


def test_draws_of_two_plans_never_come_together(bayesnde: Callable, engines: list, run: Path) -> None:
    layout = RunLayout(run)
    notes, config = Notes(after_block=_restart_once(layout)), DensitySettings(method="bridge", **SAME, keep_draws=True)
    with pytest.raises(SettingsDiffer) as caught:
        score.run_density(layout, Asked(), config, notes, factory=loading.open_engine)
    assert caught.value.found == ("settings.draws: 5 -> 4",)
    plan = Plan.read(layout.plan_file("posterior", "test"))
    assert plan.settings["draws"] == 5
    for block in blocks_done(layout, plan):
        read_block(layout, plan, block)
    assert bayesnde("posterior", "--run", run, *DRAWS, "--draws", "5").code == 0


def test_draws_that_are_replaced_meanwhile_are_made_here(engines: list, run: Path, reference: bytes) -> None:
    layout = RunLayout(run)
    posterior_draws.run_posterior(layout, Asked(), PosteriorSettings(**SAME), Notes())
    notes = Notes(after_block=_restart_once(layout))
    score.run_density(layout, Asked(), BRIDGE, notes)
    (told,) = notes.told
    assert told.startswith(f"warning: {run}/posterior/test/")
    assert ": draws are made again here; to repair posterior/test, " in told
    assert table_bytes(run) == reference


def test_a_restart_does_not_remove_a_stage_that_another_restart_has_started(
    bayesnde: Callable, engines: list, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert bayesnde("density", "--run", run, *SMALL).code == 0
    restart = ["density", "--run", run, *SMALL, "--seed", "5", "--restart", "--shard"]

    def late(*args: Any, **options: Any) -> None:
        monkeypatch.setattr(scoring_job, "discard", discard)
        assert bayesnde(*restart, "1/2").code == 0
        discard(*args, **options)

    monkeypatch.setattr(scoring_job, "discard", late)
    outcome = bayesnde(*restart, "2/2")
    assert outcome.code == 0, outcome.err
    assert "shard 2/2 done, 4 blocks; 8 of 8 blocks there" in outcome.out
