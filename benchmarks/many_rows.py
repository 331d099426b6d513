"""Ten million rows to score: planned, sharded, killed, resumed and gathered, in how much memory and time.

    python benchmarks/many_rows.py
    python benchmarks/many_rows.py --rows 1000000 --blocks 4

A tiny model is fitted. Then the first of eight shards of a made-up table is killed by SIGKILL after some blocks, begun
again, and stopped by SIGTERM after some more: a sample of the blocks. `status` is asked then, and once more when all
blocks are there, for which the first block stands in for those that were not computed; a last process gathers them.
Memory is the peak of a process, as the system tells it; that of a hundredth of the rows stands beside it.
"""

import argparse
import contextlib
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

_TINY = {"warmstart.width": 8, "warmstart.depth": 1, "warmstart.epochs": 1, "warmstart.column_steps": 0,
         "refine.epochs": 1, "evaluate.baselines": "false", "density.chains": 1, "density.draws": 8,
         "density.warm_up": 0, "density.proposal_draws": 100, "density.pilot_draws": 0,
         "density.escalations": 0}  # fmt: skip
_SCORED = ["--chains", "1", "--draws", "8", "--warm-up", "0", "--proposal-draws", "100", "--pilot-draws", "0",
           "--escalations", "0"]  # fmt: skip
_PIECE = 1_000_000
_N_SHARDS = 8


class Taken(NamedTuple):
    """What a process took."""

    code: int
    seconds: float
    megabytes: float


def _rows(path: Path, n_rows: int) -> Path:
    """A table of three columns, written in pieces."""
    schema = pa.schema([(name, pa.float64()) for name in "abc"])
    with pq.ParquetWriter(path, schema) as writer:
        for start in range(0, n_rows, _PIECE):
            rng, n = np.random.default_rng(start), min(_PIECE, n_rows - start)
            writer.write_table(pa.table({name: rng.normal(size=n) for name in "abc"}, schema=schema))
    return path


def _start(*arguments: object) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "bayesnde_cli", *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)


def _taken(process: subprocess.Popen[bytes], until: Callable[[], bool] = lambda: False, number: int = 0) -> Taken:
    """What a process took until its end, or until something is so, upon which it gets a signal."""
    started, peak = time.monotonic(), 0.0
    while process.poll() is None:
        with contextlib.suppress(OSError):
            found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{process.pid}/status").read_text())
            peak = int(found[1]) / 1024 if found else peak  # a process at its end has none
        if until():
            process.send_signal(number)
            until = lambda: False  # noqa: E731
        time.sleep(0.05)
    _, err = process.communicate()
    if process.returncode not in (0, 75, -signal.SIGKILL):
        sys.exit(f"exit code {process.returncode}:\n{err.decode()}")
    return Taken(process.returncode, time.monotonic() - started, peak)


def _say(what: str, taken: Taken) -> None:
    print(f"{what:<44} {taken.seconds:8.1f} s {taken.megabytes:8.0f} MB", flush=True)


def _score_a_sample(run: Path, data: Path, n_blocks: int) -> Path:
    """Kill, resume and stop the first shard; where its blocks are."""
    command = ["density", data, "--run", run, *_SCORED, "--shard", f"1/{_N_SHARDS}"]

    def blocks() -> list[Path]:
        return list(run.glob(f"density/{data.stem}-*/block-*.parquet"))

    _say("planned, and killed after some blocks", _taken(_start(*command), lambda: len(blocks()) >= n_blocks, 9))
    resumed = _taken(_start(*command), lambda: len(blocks()) >= 2 * n_blocks, signal.SIGTERM)
    _say("resumed, and stopped after some more", resumed)
    assert resumed.code == 75
    print(f"{'':<44} {len(blocks()):8,} blocks there")
    return blocks()[0].parent


def _renumber(table: pa.Table, block: int, path: Path) -> None:
    """Write the table of one block as if it were another block of the same plan."""
    metadata = {**table.schema.metadata, b"bayesnde.block": str(block)}
    pq.write_table(table.replace_schema_metadata(metadata), path)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--blocks", type=int, default=10, help="blocks scored before the kill, and after it")
    asked = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="bayesnde-many-") as name:
        folder = Path(name)
        # Enough for the first shard not to be done too soon.
        run, few = folder / "run", _rows(folder / "few.parquet", max(asked.rows // 100, 4096 * asked.blocks))
        settings = [word for key, value in _TINY.items() for word in ("--set", f"{key}={value}")]
        table = _rows(folder / "train.parquet", 2000)
        _taken(_start("fit", table, "--run", run, "--scale", "standard", *settings))
        many = _rows(folder / "many.parquet", asked.rows)
        for data in (few, many):
            print(f"{pq.read_metadata(data).num_rows:,} rows")
            blocks = _score_a_sample(run, data, asked.blocks)
        _say("status", _taken(_start("status", "--run", run)))
        n_blocks = -(-asked.rows // 128)
        first = pq.read_table(blocks / "block-00000.parquet")
        for index in range(n_blocks):
            path = blocks / f"block-{index:05d}.parquet"
            if not path.exists():
                _renumber(first, index, path)
        _say(f"status of all {n_blocks:,} blocks", _taken(_start("status", "--run", run)))
        _say("gathered", _taken(_start("density", many, "--run", run, *_SCORED)))
        n_rows = pq.read_metadata(blocks / "density.parquet").num_rows
        print(f"{'':<44} {n_rows:8,} rows in density.parquet")
        _say("status of the whole", _taken(_start("status", "--run", run)))


if __name__ == "__main__":
    main()
