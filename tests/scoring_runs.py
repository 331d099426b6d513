"""Runs of the scoring stages with the stand-in for the engine: how tests start them, and look at what they left."""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import fake_engine
from bayesnde_cli.runs.layout import RunLayout
from fake_engine import SMALL

# Of `evaluate`: little of what it can do.
FEW = ["--generated-rows", "200", "--typicality-rows", "100", "--no-baselines"]


def start(run: Path, *options: str, stage: str = "density", **fake: object) -> subprocess.Popen[str]:
    """A process of its own; `fake` is what the stand-in is told."""
    command = [sys.executable, fake_engine.__file__, json.dumps(fake), stage, "--run", str(run), *SMALL, *options]
    return subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def table_bytes(run: Path, set_name: str = "test") -> bytes:
    return (run / f"density/{set_name}/density.parquet").read_bytes()


def other_set(run: Path, stage: str = "density") -> str:
    """The one set of the run that is not `test`."""
    (name,) = [name for name in RunLayout(run).sets(stage) if name != "test"]
    return name


class Notes:
    """A report that keeps what it is told; `after_block` is called after each block of this process."""

    def __init__(self, after_block: Callable[[], None] = lambda: None) -> None:
        self.told: list[str] = []
        self._after_block = after_block

    def note(self, text: str) -> None:
        self.told.append(text)

    def warn(self, text: str) -> None:
        self.told.append(f"warning: {text}")

    def table(self, title: str, header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        pass

    @contextmanager
    def progress(self, label: str, total: int | None, unit: str) -> Iterator[Callable[[int], None]]:
        yield lambda done: self._after_block() if done else None
