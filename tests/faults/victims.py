"""Processes that run a command line and to which something is done: started, killed, waited for."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

# In the place of what costs seconds of compiling: engine, fitted model, rounds of training.
STAND_INS: dict[str, dict[str, Any]] = {"engine": {}, "model": {}, "training": {}}


class Ended(NamedTuple):
    """How a victim ended: a negative code is the signal that killed it."""

    code: int
    out: str
    err: str
    steps: list[str]  # what it did to files, if it came to its end
    seconds: float  # since its start


@dataclass
class Victim:
    """A process at work in `folder`, whose run directory is `folder/run`."""

    parent: "WarmParent"
    pid: int
    folder: Path
    started: float = field(default_factory=time.monotonic)

    def send(self, number: int) -> None:
        os.kill(self.pid, number)

    def wait(self) -> Ended:
        answer = self.parent.ask({"do": "wait", "pid": self.pid})
        out, err, steps = (self._left(name) for name in ("out", "err", "steps"))
        return Ended(answer["code"], out, err, steps.splitlines(), time.monotonic() - self.started)

    def _left(self, name: str) -> str:
        path = self.folder / f"{name}-{self.pid}"
        text = path.read_text() if path.exists() else ""
        path.unlink(missing_ok=True)
        return text


class WarmParent:
    """Starts victims, and is gone at the end of the block."""

    def __init__(self) -> None:
        script = Path(__file__).with_name("warm_parent.py")
        self._process = subprocess.Popen(
            [sys.executable, str(script)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == "ready\n"

    def start(
        self,
        folder: Path,
        arguments: Sequence[object],
        *,
        mishap: Mapping[str, Any] | None = None,
        stand_ins: Mapping[str, dict[str, Any]] = STAND_INS,
    ) -> Victim:
        """A process of its own for a command line, in a folder; `mishap` is what befalls its file operations."""
        folder.mkdir(parents=True, exist_ok=True)
        request = {"do": "start", "folder": str(folder), "arguments": [str(word) for word in arguments]}
        pid = self.ask({**request, "mishap": dict(mishap or {}), "stand_ins": dict(stand_ins)})["pid"]
        return Victim(self, pid, folder)

    def run(self, folder: Path, arguments: Sequence[object], **options: Any) -> Ended:
        """A command line from its start to its end."""
        return self.start(folder, arguments, **options).wait()

    def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        answer: dict[str, Any] = json.loads(self._process.stdout.readline())
        return answer

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.communicate()  # its input ends, and so does it
