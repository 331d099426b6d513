"""Processes that come between the look and the deed of another one. Here one process plays both."""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

import fake_engine
from bayesnde_cli.artifacts import claims, environment
from bayesnde_cli.artifacts import plan as plans
from bayesnde_cli.artifacts.atomic import temporary_beside
from bayesnde_cli.artifacts.blocks import read_block
from bayesnde_cli.artifacts.discard import discard
from bayesnde_cli.artifacts.layout import RunLayout
from bayesnde_cli.artifacts.shards import Shard
from bayesnde_cli.config import DensityConfig, PosteriorConfig
from bayesnde_cli.errors import MissingArtifact, SettingsDiffer
from bayesnde_cli.stages import scoring
from bayesnde_cli.stages.scoring import combining, job, rows, sharing
from bayesnde_cli.stages.scoring.engine import Opened
from scoring_runs import SMALL, Notes, other_set, start, table_bytes

SAME = {"chains": 2, "draws": 4, "block_rows": 8, "seed": 0}  # as SMALL


def _before(monkeypatch: pytest.MonkeyPatch, module: ModuleType, name: str, deed: Callable[[], None]) -> None:
    """Have another process do its deed just before this one enters `module.name`, the first time."""
    entered = getattr(module, name)

    @contextmanager
    def late(*args: Any, **options: Any) -> Iterator[Any]:
        monkeypatch.setattr(module, name, entered)
        deed()
        with entered(*args, **options) as given:
            yield given

    monkeypatch.setattr(module, name, late)


def _restart_once(layout: RunLayout) -> Callable[[], None]:
    """Another process's `posterior --draws 5 --restart --shard 1/2`."""
    deeds = [PosteriorConfig(**{**SAME, "draws": 5})]

    def restart() -> None:
        if deeds:
            asked = scoring.Asked(is_restart=True, shard=Shard(1, 2))
            scoring.run_posterior(layout, asked, deeds.pop(), Notes(), factory=scoring.open_engine)

    return restart


def test_what_another_process_has_just_combined_is_not_combined_again(
    bayesnde: Callable, engines: list, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = [run / "density/test" / name for name in ("manifest.json", "density.parquet")]
    seen: list[list[tuple[int, int]]] = []

    def facts() -> list[tuple[int, int]]:
        """Which files they are and when they were written; reading them changes neither."""
        return [(stat.st_ino, stat.st_mtime_ns) for stat in (file.stat() for file in files)]

    def combine() -> None:
        assert bayesnde("density", "--run", run, *SMALL).code == 0
        seen.append(facts())

    _before(monkeypatch, combining, "workplace", combine)
    assert bayesnde("density", "--run", run, *SMALL).code == 0
    assert facts() == seen[0]


def test_rows_that_another_process_has_just_put_down_stay(
    bayesnde: Callable, engines: list, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "new.csv").write_text("a,b,n,k\n0.1,1.0,3,u\n0.2,2.0,4,v\n")
    command = ["density", tmp_path / "new.csv", "--run", run, *SMALL]
    seen: list[int] = []

    def read() -> None:
        assert bayesnde(*command, "--shard", "1/2").code == 0
        seen.append((run / "density" / other_set(run) / "rows.parquet").stat().st_ino)

    _before(monkeypatch, rows, "alone", read)
    assert bayesnde(*command).code == 0
    assert (run / "density" / other_set(run) / "rows.parquet").stat().st_ino == seen[0]


def test_one_process_reads_the_file_and_the_other_waits(run: Path, tmp_path: Path) -> None:
    (tmp_path / "new.csv").write_text("a,b,n,k\n" + "0.1,1.0,3,u\n0.2,2.0,4,v\n" * 8)
    first = start(run, str(tmp_path / "new.csv"), "--shard", "1/2", reading_seconds=4.0)
    deadline = time.monotonic() + 60.0
    while not list((run).glob("density/*/.running")) and time.monotonic() < deadline:
        time.sleep(0.02)
    second = start(run, str(tmp_path / "new.csv"), "--shard", "2/2")
    errors = [process.communicate()[1] for process in (first, second)]
    assert [first.returncode, second.returncode] == [0, 0], errors
    assert ["read as:" in text for text in errors] == [True, False]
    assert f"waiting for density/{other_set(run)}: process {first.pid} on " in errors[1]


def test_no_block_is_begun_while_another_process_has_the_stage_to_itself(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    layout = RunLayout(run)
    plan = plans.create_or_join(layout, plans.Plan("density", "test", "id", n_rows=20, block_rows=10, seed=0))
    computed: list[int] = []
    with ExitStack() as other:
        other.enter_context(claims.running(layout, "density", "test"))

        def sleep(seconds: float) -> None:
            assert computed == []
            other.close()

        monkeypatch.setattr(sharing, "time", SimpleNamespace(sleep=sleep))
        notes = Notes()
        sharing.share(layout, plan, range(2), computed.append, notes)
    assert computed == [0, 1]
    assert notes.told == ["waiting for 2 blocks of other processes"]


@pytest.mark.parametrize("stage", ["density", "posterior"])
def test_a_model_that_is_replaced_before_it_is_read_makes_no_block(
    stage: str, bayesnde: Callable, engines: list, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_engine = scoring.open_engine

    def late(*args: Any, **options: Any) -> Opened:
        fake_engine.pretend_refined(run, b"others!")
        return open_engine(*args, **options)

    monkeypatch.setattr(scoring, "open_engine", late)
    outcome = bayesnde(stage, "--run", run, *SMALL)
    assert outcome.code == 3
    assert outcome.err == (
        f"error: {stage}/test was made from files that have changed since\n"
        f"  refine/latents.parquet is not the one that {stage}/test read\n"
        f"  refine/weights/model.npz is not the one that {stage}/test read\n"
        f"hint: run `bayesnde {stage} --run {run} --restart`\n"
    )
    assert os.listdir(run / stage / "test") == ["plan.json"]
    monkeypatch.setattr(scoring, "open_engine", open_engine)
    assert bayesnde(stage, "--run", run, *SMALL).err == outcome.err
    assert bayesnde(stage, "--run", run, *SMALL, "--restart").code == 0


def test_a_shard_whose_plan_is_gone_does_not_make_it_again(bayesnde: Callable, engines: list, run: Path) -> None:
    """Another process has removed the stage, for `--restart`, and has not yet put its own plan there."""
    layout = RunLayout(run)
    notes = Notes(after_block=lambda: discard(layout, "density", "test"))
    with pytest.raises(MissingArtifact) as caught:
        scoring.run_density(layout, scoring.Asked(), DensityConfig(**SAME), notes, factory=scoring.open_engine)
    assert str(caught.value) == (
        "error: density/test was removed while this process was at work on it\n"
        f"  {run}/density/test/plan.json is not there\n"
        f"hint: look with `bayesnde status --run {run}` whether it has been begun anew; if not, run the same command "
        "again"
    )
    assert not (run / "density/test").exists()
    assert bayesnde("density", "--run", run, *SMALL, "--draws", "5", "--restart").code == 0


# A restart that is killed when the stage is aside and not yet gone.
_KILLED_RESTART = """
import os, sys
from pathlib import Path
from bayesnde_cli.artifacts import discard
from bayesnde_cli.artifacts.layout import RunLayout
discard.shutil.rmtree = lambda *args, **options: os._exit(9)
discard.discard(RunLayout(Path(sys.argv[1])), "density", "test")
"""


def test_what_a_killed_restart_left_is_swept_and_what_a_living_one_has_aside_is_not(
    bayesnde: Callable, engines: list, run: Path, reference: bytes
) -> None:
    assert bayesnde("density", "--run", run, *SMALL).code == 0
    assert subprocess.run([sys.executable, "-c", _KILLED_RESTART, str(run)]).returncode == 9
    (left,) = (run / "density").iterdir()
    assert left.name.startswith(".tmp-")
    aside = temporary_beside(run / "density/other")
    aside.mkdir()
    assert bayesnde("density", "--run", run, *SMALL).code == 0
    assert set((run / "density").iterdir()) == {run / "density/test", aside}
    assert table_bytes(run) == reference


def test_whoever_waits_for_another_process_that_combines_says_so_once(
    engines: list, run: Path, reference: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    layout, notes = RunLayout(run), Notes()
    with ExitStack() as other:
        _before(monkeypatch, combining, "workplace", lambda: _hold(other, layout))
        naps: list[float] = []

        def sleep(seconds: float) -> None:
            naps.append(seconds)
            if len(naps) == 2:
                other.close()

        monkeypatch.setattr(combining, "time", SimpleNamespace(sleep=sleep))
        scoring.run_density(layout, scoring.Asked(), DensityConfig(**SAME), notes, factory=scoring.open_engine)
    assert len(naps) == 2
    (told,) = notes.told
    assert told.startswith(f"waiting for density/test: process {os.getpid()} on ")
    assert told.endswith(" is at it")
    assert table_bytes(run) == reference


def _hold(other: ExitStack, layout: RunLayout) -> None:
    """Have another process take `density/test` to itself."""
    other.enter_context(claims.running(layout, "density", "test"))


def test_draws_of_two_plans_never_come_together(bayesnde: Callable, engines: list, run: Path) -> None:
    layout = RunLayout(run)
    notes = Notes(after_block=_restart_once(layout))
    config = DensityConfig(**SAME, keep_draws=True)
    with pytest.raises(SettingsDiffer) as caught:
        scoring.run_density(layout, scoring.Asked(), config, notes, factory=scoring.open_engine)
    assert caught.value.found == ("settings.draws: 5 -> 4",)
    plan = plans.read(layout.plan_file("posterior", "test"))
    assert plan.settings["draws"] == 5
    for block in plans.blocks_done(layout, plan):
        read_block(layout, plan, block)
    assert bayesnde("posterior", "--run", run, *SMALL, "--draws", "5").code == 0


def test_draws_that_are_replaced_meanwhile_are_made_here(engines: list, run: Path, reference: bytes) -> None:
    layout = RunLayout(run)
    scoring.run_posterior(layout, scoring.Asked(), PosteriorConfig(**SAME), Notes(), factory=scoring.open_engine)
    notes = Notes(after_block=_restart_once(layout))
    scoring.run_density(layout, scoring.Asked(), DensityConfig(**SAME), notes, factory=scoring.open_engine)
    assert notes.told == ["posterior/test was made with other settings and is not used"]
    assert table_bytes(run) == reference


def test_a_restart_does_not_remove_what_another_restart_has_begun(
    bayesnde: Callable, engines: list, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert bayesnde("density", "--run", run, *SMALL).code == 0
    restart = ["density", "--run", run, *SMALL, "--seed", "5", "--restart", "--shard"]
    discard = job.discard

    def late(*args: Any, **options: Any) -> bool:
        monkeypatch.setattr(job, "discard", discard)
        assert bayesnde(*restart, "1/2").code == 0
        return discard(*args, **options)

    monkeypatch.setattr(job, "discard", late)
    outcome = bayesnde(*restart, "2/2")
    assert outcome.code == 0, outcome.err
    assert "shard 2/2 done, 4 blocks; 8 of 8 blocks there" in outcome.out


def test_other_versions_are_named_and_recorded(
    bayesnde: Callable, engines: list, run: Path, reference: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    def has(numpy: str) -> None:
        versions = {"bayesnde": "0.1.0", "numpy": numpy, "pyarrow": "9", "tensorflow": "2.20.0"}
        monkeypatch.setattr(environment, "package_versions", lambda: versions)

    has("2.0.0")
    assert "warning" not in bayesnde("density", "--run", run, *SMALL, "--shard", "1/2").err
    assert plans.read(run / "density/test/plan.json").packages["numpy"] == "2.0.0"
    has("2.1.0")
    outcome = bayesnde("density", "--run", run, *SMALL, "--json")
    begun, mixed = [line for line in outcome.err.splitlines() if line.startswith("warning: ")]
    assert begun == (
        "warning: density/test was begun with numpy 2.0.0, and this process has numpy 2.1.0: "
        "its blocks may differ in their last digits"
    )
    old, new = (f"bayesnde 0.1.0, numpy {version}, tensorflow 2.20.0" for version in ("2.0.0", "2.1.0"))
    assert mixed == f"warning: density/test was made with different versions: 4 blocks with {old}; 4 blocks with {new}"
    assert scoring.manifests.read(run / "density/test/manifest.json").result["made_with"] == {old: 4, new: 4}
    assert table_bytes(run) == reference
