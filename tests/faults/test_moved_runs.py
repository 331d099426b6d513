"""A run that is moved or copied while nobody works on it, and clocks that jump: it goes on as before."""

import os
import shutil
import signal
import threading
import time
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from scenes import SCENES, Theatre, differing, files_of
from victims import STAND_INS

from bayesnde_cli.artifacts import claims
from bayesnde_cli.artifacts.layout import RunLayout

DAY = 24 * 3600.0


def _killed(theatre: Theatre, name: str, folder: Path, share: float) -> None:
    """Kill a scene after a share of its steps."""
    at = round(share * len(theatre.calm_end(SCENES[name]).steps))
    mishap = {"at": at, "signal": signal.SIGKILL}
    ended = theatre.parent.run(folder, theatre.command(SCENES[name]), mishap=mishap)
    assert ended.code == -signal.SIGKILL, ended.err


@pytest.mark.parametrize(("name", "share"), [("warmstart", 0.6), ("density", 0.5), ("fit", 0.7)])
def test_a_run_that_is_moved_or_copied_goes_on_in_its_new_place(
    name: str, share: float, theatre: Theatre, folder: Path
) -> None:
    scene = SCENES[name]
    theatre.set_stage(scene, folder)
    _killed(theatre, name, folder, share)
    copied, moved = folder.with_name("copied"), folder.with_name("moved")
    shutil.copytree(folder / "run", copied / "run", copy_function=shutil.copy)  # new times
    moved.mkdir()
    shutil.move(folder / "run", moved / "run")
    for place in (moved, copied):
        ended = theatre.parent.run(place, theatre.command(scene))
        assert ended.code == 0, ended.err
        assert differing(files_of(place / "run"), theatre.calm_files(scene)) == []


def _shift_times(run: Path, seconds: float) -> None:
    """As though every file had been written by a clock that was so far ahead."""
    for path in run.rglob("*"):
        there = path.stat()
        os.utime(path, (there.st_atime + seconds, there.st_mtime + seconds))


def test_a_clock_that_jumps_by_a_day_and_files_of_the_future_change_nothing(theatre: Theatre, folder: Path) -> None:
    scene = SCENES["fit"]
    theatre.set_stage(scene, folder)
    for share, shift in ((0.3, DAY), (0.2, -2 * DAY), (0.2, 3 * DAY)):
        _killed(theatre, "fit", folder, share)
        _shift_times(folder / "run", shift)
        status = theatre.parent.run(folder, ["status"])
        assert status.code in (0, 3)  # 3: nothing is complete yet
        assert status.err == ""
    for seconds in (-DAY, DAY):
        ended = theatre.parent.run(
            folder, theatre.command(scene), stand_ins=STAND_INS | {"clock": {"seconds": seconds}}
        )
        assert ended.code == 0, ended.err
    assert differing(files_of(folder / "run"), theatre.calm_files(scene)) == []


def test_a_stage_that_ends_before_it_started_has_no_time_in_the_report(theatre: Theatre, folder: Path) -> None:
    """Which needs a clock that is set back while the stage is at work."""
    scene = SCENES["fit"]
    theatre.set_stage(scene, folder)
    back = STAND_INS | {"clock": {"seconds": 0.0, "per_second": -1e5}}
    ended = theatre.parent.run(folder, theatre.command(scene), stand_ins=back)
    assert ended.code == 0, ended.err
    assert "<th>Time</th><td></td>" in (folder / "run/evaluate/test/report.html").read_text()
    assert differing(files_of(folder / "run"), theatre.calm_files(scene)) == []


def test_a_block_claimed_by_another_host_before_the_clock_was_set_back_is_not_waited_for(
    theatre: Theatre, folder: Path
) -> None:
    scene = SCENES["density"]
    theatre.set_stage(scene, folder)
    steps = theatre.calm_end(scene).steps
    claimed = next(at for at, step in enumerate(steps) if ".claim-" in step)
    writing = next(at for at, step in enumerate(steps) if at > claimed and step.startswith("parquet"))
    theatre.parent.run(folder, theatre.command(scene), mishap={"at": writing + 1, "signal": signal.SIGKILL})
    layout = RunLayout(folder / "run")
    (set_name,) = layout.sets("density")
    (path,) = layout.stage_dir("density", set_name).glob(".claim-*")
    path.write_text(path.read_text().replace(claims.place(), "node07.abcdef"))
    os.utime(path, (time.time() + DAY, time.time() + DAY))
    victim = theatre.parent.start(folder, theatre.command(scene))
    patience = threading.Timer(claims.LEASE_SECONDS / 5, victim.send, [signal.SIGKILL])
    patience.start()
    assert victim.wait().code == 0
    patience.cancel()
    assert differing(files_of(folder / "run"), theatre.calm_files(scene)) == []
    table = pq.read_table(layout.density_file(set_name))
    assert table["row_id"].to_pylist() == list(range(30))
