"""Claims of the living stay, claims of the dead are taken over."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from bayesnde_cli.artifacts import claims
from bayesnde_cli.artifacts.layout import RunLayout
from bayesnde_cli.artifacts.processes import place, start_ticks, this_process
from bayesnde_cli.errors import StageBusy

needs_proc = pytest.mark.skipif(start_ticks(os.getpid()) is None, reason="no /proc on this system")


def write_claim(path: Path, **changes: object) -> None:
    us = this_process()
    record = {"token": "ab", "place": us.place, "pid": us.pid, "start_ticks": us.start_ticks}
    path.write_text(json.dumps({**record, "started": "2025-01-31T12:00:00+00:00", **changes}))


def dead_pid() -> int:
    process = subprocess.Popen([sys.executable, "-S", "-c", ""])
    process.wait()
    return process.pid


def age(path: Path, seconds: float) -> None:
    then = time.time() - seconds
    os.utime(path, (then, then))


def test_a_claim_is_held_until_it_is_released(tmp_path):
    path = tmp_path / ".claim-00000"
    first = claims.claim(path)
    assert first is not None
    assert claims.claim(path) is None
    first.release()
    assert not path.exists()
    assert claims.claim(path) is not None


def test_a_claim_is_released_at_the_end_of_its_block_whatever_happens(tmp_path):
    path = tmp_path / ".claim-00000"
    with pytest.raises(KeyboardInterrupt), claims.claim(path):
        raise KeyboardInterrupt
    assert os.listdir(tmp_path) == []


def test_a_process_that_is_gone_loses_its_claim(tmp_path):
    path = tmp_path / ".claim-00000"
    write_claim(path, pid=dead_pid(), start_ticks=None)
    assert claims.holder(path).is_alive is False
    ours = claims.claim(path)
    assert claims.holder(path).token == ours.token
    assert os.listdir(tmp_path) == [path.name]


@needs_proc
def test_a_reused_process_id_does_not_keep_a_claim(tmp_path):
    path = tmp_path / ".claim-00000"
    write_claim(path)
    assert claims.claim(path) is None
    write_claim(path, start_ticks=this_process().start_ticks - 1)
    assert claims.claim(path) is not None


def test_a_process_of_this_host_keeps_its_claim_however_old_it_is(tmp_path):
    path = tmp_path / ".claim-00000"
    assert claims.claim(path) is not None
    age(path, 10 * claims.LEASE_SECONDS)
    assert claims.claim(path) is None


def test_another_host_keeps_its_claim_as_long_as_the_lease(tmp_path):
    path = tmp_path / ".claim-00000"
    write_claim(path, place="node07.abcdef")
    age(path, claims.LEASE_SECONDS - 60)
    assert claims.claim(path) is None
    age(path, claims.LEASE_SECONDS + 60)
    assert claims.claim(path) is not None


def test_the_lease_is_measured_by_the_clock_of_the_filesystem(tmp_path, monkeypatch):
    path = tmp_path / ".claim-00000"
    write_claim(path, place="node07.abcdef")
    monkeypatch.setattr(time, "time", lambda: 4e9)  # our own clock is decades ahead
    assert claims.claim(path) is None


def test_a_claim_of_the_future_is_dead_for_the_clock_was_set_back(tmp_path):
    path = tmp_path / ".claim-00000"
    write_claim(path, place="node07.abcdef")
    age(path, -60)  # clocks that are a minute apart are none of our business
    assert claims.claim(path) is None
    age(path, -24 * 3600)
    assert claims.claim(path) is not None


def test_refreshing_renews_the_lease(tmp_path):
    path = tmp_path / ".claim-00000"
    ours = claims.claim(path)
    age(path, 1000)
    assert ours.refresh() is True
    assert time.time() - path.stat().st_mtime < 100


def test_an_owner_that_overslept_learns_it_and_removes_nothing(tmp_path):
    path = tmp_path / ".claim-00000"
    ours = claims.claim(path)
    write_claim(path, place="node07.abcdef", token="theirs")
    assert ours.refresh() is False
    ours.release()
    assert claims.holder(path).token == "theirs"
    path.unlink()
    assert ours.refresh() is False
    ours.release()


def test_a_claim_that_cannot_be_read_is_judged_by_its_age(tmp_path):
    path = tmp_path / ".claim-00000"
    path.write_text("{")
    assert claims.claim(path) is None
    assert str(claims.holder(path)) == "process 0 on an unknown host, since an unknown time"
    age(path, claims.LEASE_SECONDS + 60)
    assert claims.claim(path) is not None


def test_a_takeover_cut_short_is_finished_by_the_next(tmp_path):
    path = tmp_path / ".claim-00000"
    write_claim(path, pid=dead_pid(), start_ticks=None)
    write_claim(tmp_path / ".claim-00000.taking", pid=dead_pid(), start_ticks=None)
    assert claims.claim(path) is not None
    assert os.listdir(tmp_path) == [path.name]


def test_a_takeover_under_way_is_left_to_its_owner(tmp_path):
    path = tmp_path / ".claim-00000"
    write_claim(path, pid=dead_pid(), start_ticks=None)
    assert claims.claim(tmp_path / ".claim-00000.taking") is not None
    assert claims.claim(path) is None


def test_a_dead_claim_that_was_replaced_meanwhile_is_left_alone(tmp_path):
    path = tmp_path / ".claim-00000"
    write_claim(path, pid=dead_pid(), start_ticks=None, token="old")
    seen = claims.holder(path)
    write_claim(path, token="new")  # a faster process
    assert claims._take_over(path, seen) is None
    assert claims.holder(path).token == "new"


def test_claims_of_the_dead_are_swept_and_those_of_the_living_stay(tmp_path):
    dead, living = dead_pid(), (".running", ".claim-00001", ".claim-00002.taking")
    for name in (".claim-00000", ".claim-00003.taking", ".running.taking", ".running.taking.taking"):
        write_claim(tmp_path / name, pid=dead, start_ticks=None)
    for name in living:
        write_claim(tmp_path / name)
    (tmp_path / "plan.json").write_text("{}")
    claims.sweep_claims(tmp_path)
    assert set(os.listdir(tmp_path)) == {*living, "plan.json"}


def test_holders_are_listed_by_block(tmp_path):
    assert claims.block_holders(tmp_path / "nowhere") == {}
    write_claim(tmp_path / ".claim-00012")
    write_claim(tmp_path / ".claim-00003", pid=dead_pid(), start_ticks=None)
    write_claim(tmp_path / ".running")
    found = claims.block_holders(tmp_path)
    assert {index: who.is_alive for index, who in found.items()} == {3: False, 12: True}


def test_a_busy_stage_is_reported_with_its_owner(tmp_path):
    layout = RunLayout(tmp_path)
    path = layout.claim_file("warmstart")
    with claims.running(layout, "warmstart"):
        write_claim(path, place="node07.abcdef", pid=42)
        with pytest.raises(StageBusy) as caught, claims.running(layout, "warmstart"):
            pass
    assert str(caught.value) == (
        "error: warmstart is being made by another process\n"
        "  process 42 on node07, since 2025-01-31T12:00:00+00:00\n"
        f"hint: wait for it; if it is dead, delete {path}"
    )


def test_the_place_of_a_process_can_stand_in_a_file_name():
    assert "-" not in place()
    assert "/" not in place()
