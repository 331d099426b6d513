"""Eight real processes at once: one winner, nothing torn, nothing left behind. And one killed in mid-write."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import artifact_racers as racers
import pytest

from bayesnde_cli.artifacts import atomic, claims, plan
from bayesnde_cli.artifacts.blocks import read_block
from bayesnde_cli.artifacts.layout import RunLayout

N_RACERS = 8


def start_racer(job: str, folder: Path, number: int) -> subprocess.Popen[str]:
    command = [sys.executable, racers.__file__, job, str(folder), str(number)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def hear(racer: subprocess.Popen[str]) -> str:
    assert racer.stdout is not None
    return racer.stdout.readline().strip()


def tell(racer: subprocess.Popen[str], line: str) -> None:
    assert racer.stdin is not None
    racer.stdin.write(line + "\n")
    racer.stdin.flush()


def race(job: str, folder: Path) -> list[list[bool]]:
    """What each racer got in each round: results[racer][round]."""
    started = [start_racer(job, folder, number) for number in range(N_RACERS)]
    try:
        assert [hear(racer) for racer in started] == ["ready"] * N_RACERS
        start = str(time.time() + 0.02)
        for racer in started:
            tell(racer, start)
        if job == "naive":
            assert [hear(racer) for racer in started] == ["looked"] * N_RACERS
            for racer in started:
                tell(racer, "write")
        return [json.loads(hear(racer)) for racer in started]
    finally:
        for racer in started:
            racer.communicate()


def assert_one_winner_each(results: list[list[bool]]) -> list[int]:
    """The winner of each round."""
    winners = [[number for number in range(N_RACERS) if results[number][turn]] for turn in range(len(results[0]))]
    assert [len(numbers) for numbers in winners] == [1] * len(winners)
    return [numbers[0] for numbers in winners]


def assert_no_temporaries(folder: Path) -> None:
    assert list(folder.rglob(".tmp-*")) == []


def test_of_eight_writers_one_creates_the_file_and_it_is_whole(tmp_path):
    winners = assert_one_winner_each(race("create_once", tmp_path))
    for turn, winner in enumerate(winners):
        assert (tmp_path / f"file-{turn}").read_bytes() == racers.payload(winner)
    assert_no_temporaries(tmp_path)


def test_the_check_sees_a_writer_that_looks_before_it_writes(tmp_path):
    with pytest.raises(AssertionError):
        assert_one_winner_each(race("naive", tmp_path))


def test_eight_equal_plans_at_once_are_one_plan(tmp_path):
    assert race("same_plan", tmp_path) == [[True] * racers.ROUNDS] * N_RACERS
    for turn in range(racers.ROUNDS):
        layout = RunLayout(tmp_path / f"run-{turn}")
        assert plan.read(layout.plan_file("density", "test")) == racers.PLAN
    assert_no_temporaries(tmp_path)


def test_of_eight_different_plans_one_is_made_and_seven_are_refused(tmp_path):
    winners = assert_one_winner_each(race("other_plan", tmp_path))
    for turn, winner in enumerate(winners):
        layout = RunLayout(tmp_path / f"run-{turn}")
        assert plan.read(layout.plan_file("density", "test")).seed == winner
    assert_no_temporaries(tmp_path)


def test_of_eight_publishers_one_publishes_the_block(tmp_path):
    assert_one_winner_each(race("block", tmp_path))
    layout = RunLayout(tmp_path)
    assert plan.blocks_done(layout, racers.PLAN) == set(range(racers.ROUNDS))
    for turn in range(racers.ROUNDS):
        assert read_block(layout, racers.PLAN, turn).num_rows == 1000
    assert_no_temporaries(tmp_path)


def test_of_eight_claimants_one_gets_the_block(tmp_path):
    assert_one_winner_each(race("claim", tmp_path))
    assert_no_temporaries(tmp_path)


def test_of_eight_claimants_one_takes_a_dead_claim_over(tmp_path):
    dead = start_racer("claim_and_die", tmp_path, 0)
    dead.communicate()
    assert not any(who.is_alive for who in claims.block_holders(tmp_path).values())
    assert_one_winner_each(race("claim", tmp_path))
    assert {who.pid for who in claims.block_holders(tmp_path).values()}.isdisjoint({dead.pid})
    assert list(tmp_path.glob("*.taking")) == []
    assert_no_temporaries(tmp_path)


def kill_half_way(job: str, folder: Path) -> subprocess.Popen[str]:
    """A racer killed in mid-write and not yet collected: a zombie, as under a busy shell."""
    racer = start_racer(job, folder, 0)
    assert hear(racer) == "half"
    assert atomic.sweep(folder) == []  # it lives, so that its file stays
    os.kill(racer.pid, signal.SIGKILL)
    os.waitid(os.P_PID, racer.pid, os.WEXITED | os.WNOWAIT)
    return racer


def test_a_killed_writer_leaves_a_temporary_that_is_swept(tmp_path):
    racer = kill_half_way("half_atomic", tmp_path)
    left = list(tmp_path.iterdir())
    assert len(left) == 1
    assert left[0].name.startswith(f".tmp-{atomic.place()}-{racer.pid}-")
    assert left[0].name.endswith("-file")
    assert atomic.sweep(tmp_path) == left
    assert list(tmp_path.iterdir()) == []
    racer.communicate()


def test_a_killed_naive_writer_leaves_a_torn_file(tmp_path):
    kill_half_way("half_naive", tmp_path).communicate()
    assert 0 < len((tmp_path / "file").read_bytes()) < len(racers.payload(0))
