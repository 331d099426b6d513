"""Four real processes at once: one winner, nothing torn, nothing left behind. And one that dies in mid-write."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import run_racers as racers

from bayesnde_cli.runs.blocks import Plan, blocks_done, read_block
from bayesnde_cli.runs.files import HOST, block_holders, sweep
from bayesnde_cli.runs.layout import RunLayout

N_RACERS = 4


def start_racer(number: int) -> subprocess.Popen[str]:
    command = [sys.executable, racers.__file__, str(number)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def ask(racer: subprocess.Popen[str], job: str, folder: Path, start: float = 0.0) -> None:
    assert racer.stdin is not None
    racer.stdin.write(f"{job} {folder} {start}\n")
    racer.stdin.flush()


def answer(racer: subprocess.Popen[str]) -> str:
    assert racer.stdout is not None
    return racer.stdout.readline().strip()


@pytest.fixture(scope="module")
def race() -> Iterator[Callable[[str, Path], list[list[int]]]]:
    """Runs a job in all racers at once; the winners of each round."""
    started = [start_racer(number) for number in range(N_RACERS)]

    def run(job: str, folder: Path) -> list[list[int]]:
        start = time.time() + 0.02
        for racer in started:
            ask(racer, job, folder, start)
        results = [json.loads(answer(racer)) for racer in started]
        return [[number for number in range(N_RACERS) if results[number][turn]] for turn in range(racers.ROUNDS)]

    assert [answer(racer) for racer in started] == ["ready"] * N_RACERS
    yield run
    for racer in started:
        racer.communicate()


def the_one(winners: list[list[int]]) -> list[int]:
    """The winner of each round, if there is exactly one."""
    assert [len(numbers) for numbers in winners] == [1] * len(winners)
    return [numbers[0] for numbers in winners]


@pytest.fixture(autouse=True)
def no_temporaries(tmp_path: Path) -> Iterator[None]:
    yield
    assert list(tmp_path.rglob(".tmp-*")) == []


def test_of_four_writers_one_creates_the_file_and_it_is_whole(race: Callable, tmp_path: Path) -> None:
    for turn, winner in enumerate(the_one(race("create_once", tmp_path))):
        assert (tmp_path / f"file-{turn}").read_bytes() == racers.payload(winner)


def test_the_check_sees_a_writer_that_checks_before_it_writes(race: Callable, tmp_path: Path) -> None:
    with pytest.raises(AssertionError):
        the_one(race("naive", tmp_path))


def test_of_four_different_plans_one_is_made_and_the_others_are_refused(race: Callable, tmp_path: Path) -> None:
    for turn, winner in enumerate(the_one(race("other_plan", tmp_path))):
        path = RunLayout(tmp_path / f"run-{turn}").plan_file("density", "test")
        assert Plan.read(path).seed == winner


def test_of_four_publishers_one_publishes_the_block(race: Callable, tmp_path: Path) -> None:
    the_one(race("block", tmp_path))
    layout = RunLayout(tmp_path)
    assert blocks_done(layout, racers.PLAN) == set(range(racers.ROUNDS))
    assert {read_block(layout, racers.PLAN, turn).num_rows for turn in range(racers.ROUNDS)} == {1000}


def test_of_four_claimants_one_takes_over_what_a_dead_process_left(race: Callable, tmp_path: Path) -> None:
    dead = start_racer(0)
    ask(dead, "leave_remains", tmp_path)
    dead.communicate()
    (left,) = tmp_path.glob(".tmp-*")
    assert left.name.startswith(f".tmp-{HOST}-{dead.pid}-")
    assert not any(who.is_alive for who in block_holders(tmp_path, os.listdir(tmp_path)).values())
    the_one(race("claim", tmp_path))
    assert dead.pid not in {who.pid for who in block_holders(tmp_path, os.listdir(tmp_path)).values()}
    assert all(not numbers for numbers in race("claim", tmp_path))  # they are alive
    sweep(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == [f".claim-{turn:05d}" for turn in range(racers.ROUNDS)]
