"""Processes that race for the same files. Run as `python artifact_racers.py JOB FOLDER NUMBER`.

Each says `ready`, waits for a common start on stdin, does its job in rounds, prints what it got, and lives on until
stdin closes, so that its claims stay alive. Imports are light: eight of these start in a fraction of a second.
"""

import json
import os
import sys
import time
from dataclasses import replace
from pathlib import Path

from bayesnde_cli.artifacts import atomic, claims, plan
from bayesnde_cli.artifacts.layout import RunLayout
from bayesnde_cli.errors import SettingsDiffer

ROUNDS = 25
ROUND_SECONDS = 0.008
PAYLOAD_COPIES = 20_000

PLAN = plan.Plan("density", "test", "r" * 16, n_rows=1000, block_rows=8, seed=0)


def payload(number: int) -> bytes:
    """What racer `number` writes: long enough to be seen torn, and different for each."""
    return f"racer {number}\n".encode() * PAYLOAD_COPIES


def create_once(folder: Path, number: int, turn: int) -> bool:
    return atomic.create_once(folder / f"file-{turn}", payload(number))


def same_plan(folder: Path, number: int, turn: int) -> bool:
    return plan.create_or_join(RunLayout(folder / f"run-{turn}"), PLAN) == PLAN


def other_plan(folder: Path, number: int, turn: int) -> bool:
    try:
        plan.create_or_join(RunLayout(folder / f"run-{turn}"), replace(PLAN, seed=number))
    except SettingsDiffer:
        return False
    return True


def claim(folder: Path, number: int, turn: int) -> bool:
    return claims.claim(folder / f".claim-{turn:05d}") is not None


def block(folder: Path, number: int, turn: int) -> bool:
    import pyarrow as pa

    from bayesnde_cli.artifacts.blocks import publish_block

    table = pa.table({"row_id": range(1000), "log_density": [0.5] * 1000})
    return publish_block(RunLayout(folder), PLAN, turn, table)


def naive(folder: Path, number: int, turn: int) -> bool:
    """The negative control: looks first, writes then. All have looked before the first one writes."""
    path = folder / f"file-{turn}"
    is_there = path.exists()
    say("looked")
    sys.stdin.readline()
    if not is_there:
        path.write_bytes(payload(number))
    return not is_there


def half_atomic(folder: Path) -> None:
    with atomic.writing(folder / "file") as temporary:
        half(temporary)


def half_naive(folder: Path) -> None:
    half(folder / "file")


def half(path: Path) -> None:
    """Writes half a file and waits to be killed."""
    with path.open("wb") as file:
        file.write(payload(0)[: len(payload(0)) // 2])
        file.flush()
        say("half")
        sys.stdin.readline()


def say(text: str) -> None:
    print(text, flush=True)


def race(job: str, folder: Path, number: int) -> None:
    turn_job = globals()[job]
    rounds = 1 if job == "naive" else ROUNDS
    if job == "block":
        import pyarrow.parquet  # noqa: F401  (before the start, not in the first round)
    say("ready")
    start = float(sys.stdin.readline())
    results = []
    for turn in range(rounds):
        while time.time() < start + turn * ROUND_SECONDS:
            pass
        results.append(turn_job(folder, number, turn))
    say(json.dumps(results))
    sys.stdin.read()


if __name__ == "__main__":
    job, folder, number = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
    if job.startswith("half"):
        globals()[job](folder)
    elif job == "claim_and_die":
        for turn in range(ROUNDS):
            claims.claim(folder / f".claim-{turn:05d}")
        os._exit(0)
    else:
        race(job, folder, number)
