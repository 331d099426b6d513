"""Processes that race for the same files. Run as `python run_racers.py NUMBER`.

A racer reads lines `JOB FOLDER START` from stdin, does the job in rounds from the common start on, prints what it got
in each round, and lives on until stdin closes, so that its claims stay alive.
"""

import json
import os
import sys
import time
from pathlib import Path

import pyarrow as pa

from bayesnde_cli.errors import SettingsDiffer
from bayesnde_cli.runs import blocks, files
from bayesnde_cli.runs.layout import RunLayout

ROUNDS = 10
ROUND_SECONDS = 0.01
PAYLOAD_COPIES = 20_000

PLAN = blocks.Plan(stage="density", set_name="test", run_id="r" * 16, n_rows=1000, block_rows=8, seed=0)


def payload(number: int) -> bytes:
    """What racer `number` writes: long enough to be seen torn, and different for each."""
    return f"racer {number}\n".encode() * PAYLOAD_COPIES


def create_once(folder: Path, number: int, turn: int) -> bool:
    return files.create_once(folder / f"file-{turn}", payload(number))


def other_plan(folder: Path, number: int, turn: int) -> bool:
    try:
        blocks.create_or_join(RunLayout(folder / f"run-{turn}"), blocks.Plan(**{**PLAN.model_dump(), "seed": number}))
    except SettingsDiffer:
        return False
    return True


def claim(folder: Path, number: int, turn: int) -> bool:
    return files.claim(folder / f".claim-{turn:05d}") is not None


def block(folder: Path, number: int, turn: int) -> bool:
    table = pa.table({"row_id": range(1000), "log_density": [0.5] * 1000})
    return blocks.publish_block(RunLayout(folder), PLAN, turn, table)


def naive(folder: Path, number: int, turn: int) -> bool:
    """The negative control: checks first, writes later."""
    path = folder / f"file-{turn}"
    is_there = path.exists()
    time.sleep(ROUND_SECONDS)
    if not is_there:
        path.write_bytes(payload(number))
    return not is_there


def leave_remains(folder: Path) -> None:
    """Claim everything, write half a file, and die."""
    for turn in range(ROUNDS):
        claim(folder, 0, turn)
    with files.writing(folder / "file") as temporary:
        temporary.write_bytes(payload(0)[:1000])
        os._exit(9)


def main() -> None:
    number = int(sys.argv[1])
    print("ready", flush=True)
    for line in sys.stdin:
        job, folder, start = line.split()
        if job == "leave_remains":
            leave_remains(Path(folder))
        results = []
        for turn in range(ROUNDS):
            while time.time() < float(start) + turn * ROUND_SECONDS:
                pass
            results.append(globals()[job](Path(folder), number, turn))
        print(json.dumps(results), flush=True)


if __name__ == "__main__":
    main()
