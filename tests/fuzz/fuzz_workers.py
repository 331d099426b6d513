"""Workers of the fuzz campaign: a process that reads damaged files, and one that watches it.

A worker that dies is a crash, one that says nothing for a while a hang; another one then goes on.
"""

import faulthandler
import hashlib
import json
import multiprocessing
import os
import resource
import shutil
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import NamedTuple

from fuzz_cases import CRASH, HANG, Case, outcome_of
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import seed as seeded

# A worker may take long to load what it reads with.
_START_SECONDS = 120
# Address space that a worker may take beyond what it has when it starts: an absurd request fails at once.
MORE_BYTES = 4 << 30
_BATCH = 500


class Work(NamedTuple):
    """Cases of one target: how to make it in a folder, their number, their seed, and how long one may take."""

    name: str
    make: Callable[[Path], Case]
    n_cases: int
    seed: int
    hang_seconds: float


class Found(NamedTuple):
    """What came of a case."""

    content: bytes
    outcome: str
    told: str


def found_by_workers(work: Work, folder: Path) -> Iterator[Found]:
    """What comes of every case; workers have copies of the run in `folder`, if there is one."""
    n_done, n_workers = 0, 0
    while n_done < work.n_cases:
        ours, theirs = multiprocessing.Pipe(duplex=False)
        size = min(_BATCH, work.n_cases - n_done)
        worker = multiprocessing.Process(target=_work, args=(work, size, n_workers, folder, theirs))
        worker.start()
        theirs.close()
        n_workers += 1
        for found in _watched(ours, worker, work.hang_seconds):
            n_done += 1
            yield found


def _watched(ours: Connection, worker: multiprocessing.Process, hang_seconds: float) -> Iterator[Found]:
    """What a worker says of its cases, each in two messages: the content, then what came of it."""
    patience, content = _START_SECONDS, b""
    try:
        while True:
            content = b""
            if ours.poll(patience):
                content = ours.recv_bytes()
            patience = hang_seconds
            if not content or not ours.poll(hang_seconds):
                yield Found(content, HANG, f"no word for {hang_seconds:g} s")
                return
            yield Found(content, *json.loads(ours.recv_bytes()))
    except EOFError:
        worker.join()
        if worker.exitcode != 0:
            yield Found(content, CRASH, f"the process ended with {worker.exitcode}")
    finally:
        worker.kill()
        worker.join()
        ours.close()


def _work(work: Work, n_cases: int, number: int, made: Path, theirs: Connection) -> None:
    """Run so many cases of a target."""
    errors = os.fdopen(os.dup(2), "w")
    faulthandler.enable(file=errors)
    quiet = os.open(os.devnull, os.O_WRONLY)
    os.dup2(quiet, 1)
    os.dup2(quiet, 2)  # what TensorFlow has to say when it is loaded
    folder = Path(tempfile.mkdtemp(prefix="work-", dir=made))
    if (made / "run").exists():
        shutil.copytree(made / "run", folder / "run")
    os.chdir(folder)
    case = work.make(folder)
    size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (size + MORE_BYTES, size + MORE_BYTES))
    address = hashlib.sha256(f"{work.seed} {number} {work.name}".encode()).digest()

    def run(content: bytes) -> None:
        theirs.send_bytes(content or b"\0")
        theirs.send_bytes(json.dumps(outcome_of(case, content)).encode())

    try:
        each_case(case, run, n_cases=n_cases, seed=int.from_bytes(address[:8], "big"))
    except BaseException:  # a mistake of the campaign's own
        traceback.print_exc(file=errors)
        raise
    shutil.rmtree(folder)


def each_case(case: Case, run: Callable[[bytes], None], *, n_cases: int, seed: int) -> None:
    """Hand so many contents of a case to `run`, drawn from the seed."""
    kept = settings(
        max_examples=n_cases, database=None, deadline=None, phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip

    @seeded(seed)
    @kept
    @given(case.contents)
    def each(content: bytes) -> None:
        run(content)

    each()


def use_fork() -> None:
    """Have workers begin with what this process has loaded."""
    sys.stdout.flush()
    multiprocessing.set_start_method("fork")
