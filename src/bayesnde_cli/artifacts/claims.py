"""Claims: two processes on one block, one wins, the other skips it.

A claim is a file created once. It saves time, it does not guard the result: blocks are published once and are equal
whoever computes them, so that a block computed twice (after a lease ran out by mistake) does no harm.
No `flock`: that is not reliable on NFS.
"""

import contextlib
import json
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Self

from bayesnde_cli.artifacts.atomic import cannot_write, create_once, filesystem_now
from bayesnde_cli.artifacts.canonical import json_bytes
from bayesnde_cli.artifacts.held_signals import signals_held
from bayesnde_cli.artifacts.layout import RunLayout, claim_indexes, claim_name, claim_names
from bayesnde_cli.artifacts.processes import Process, is_alive, place, this_process
from bayesnde_cli.errors import StageBusy, Stopped

# Owners refresh their claims every few seconds to minutes; a host that has been silent this long is taken for dead.
LEASE_SECONDS = 600.0
_REFRESH_SECONDS = 60.0


@dataclass(frozen=True)
class Holder:
    """Who holds a claim: for messages and `status`. An unreadable claim has `pid` 0 and is judged by its age."""

    token: str
    host: str
    pid: int
    started: str
    is_alive: bool

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}, since {self.started}"


@dataclass(frozen=True)
class Claim:
    """A claim that we hold. As a context manager it is released at the end."""

    path: Path
    token: str

    def refresh(self) -> bool:
        """Tells other hosts that we live. False if the claim is no longer ours: a lease ran out in our sleep."""
        with contextlib.suppress(FileNotFoundError):
            if self._is_ours():
                os.utime(self.path)  # without times: on NFS the server's clock, the same for everybody
                return True
        return False

    def release(self) -> None:
        """Gives the claim up; one that has passed to somebody else stays.

        So does one on a disk that has turned read-only: it is dead when we are, and nobody is to learn of that first.
        """
        with contextlib.suppress(OSError):
            if self._is_ours():
                self.path.unlink(missing_ok=True)

    def _is_ours(self) -> bool:
        found = _read(self.path)
        return found is not None and found.token == self.token

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


def claim(path: Path) -> Claim | None:
    """The claim at `path`, new or taken over from the dead; None if somebody alive holds it."""
    ours = _create(path)
    if ours is not None:
        return ours
    found = _read(path, clock=lambda: filesystem_now(path))
    if found is None:  # released this very moment
        return _create(path)
    return None if found.is_alive else _take_over(path, found)


def holder(path: Path) -> Holder | None:
    """Who holds the claim at `path`, alive or dead; None if nobody does."""
    return _read(path)


def block_holders(folder: Path) -> dict[int, Holder]:
    """Who holds which block of a stage's folder, by block."""
    return holders_among(folder, os.listdir(folder) if folder.is_dir() else [])


def holders_among(folder: Path, names: Iterable[str]) -> dict[int, Holder]:
    """Who holds which block, by block, where `names` are those of the folder's files."""
    found = {index: _read(folder / claim_name(index)) for index in claim_indexes(names)}
    return {index: who for index, who in sorted(found.items()) if who is not None}


@contextlib.contextmanager
def running(layout: RunLayout, stage: str, set_name: str | None = None) -> Iterator[Claim]:
    """The claim on a stage as a whole, for as long as the block lasts; `StageBusy` if another process has it."""
    path = layout.claim_file(stage, set_name)
    with holding(path) as ours:
        if ours is None:
            raise StageBusy(
                f"{layout.label(stage, set_name)} is being made by another process",
                found=str(holder(path) or "it has just ended"),
                hint=f"wait for it; if it is dead, delete {path}",
            )
        yield ours


@contextlib.contextmanager
def holding(path: Path) -> Iterator[Claim | None]:
    """The claim at `path` for as long as the block lasts; None if somebody alive has it.

    A thread tells other hosts that we live, however long a single step takes. No signal comes between making a claim
    and knowing of it, and one that comes as it is given up waits until it is, so that a process that is stopped leaves
    none behind.
    """
    ours: Claim | None = None
    is_over = threading.Event()
    try:
        with signals_held():
            ours = claim(path)
        if ours is not None:
            threading.Thread(target=_keep_alive, args=(ours, is_over), daemon=True).start()
        yield ours
    finally:
        try:
            _give_up(ours, is_over)
        except Stopped:  # before the signals were held: it comes but once
            _give_up(ours, is_over)
            raise


def _give_up(ours: Claim | None, is_over: threading.Event) -> None:
    with signals_held():
        is_over.set()
        if ours is not None:
            ours.release()


def _keep_alive(ours: Claim, is_over: threading.Event) -> None:
    while not is_over.wait(_REFRESH_SECONDS):
        with contextlib.suppress(OSError):
            ours.refresh()


def sweep_claims(folder: Path) -> None:
    """Remove the claims of dead processes on a stage and its blocks: each is taken over, and given up.

    Whoever comes next would take over the claim that he wants, and only that. One that nobody wants any more stays: on
    a block that is there, on a stage that is complete, on a claim that was to be taken over.
    """
    for name in claim_names(os.listdir(folder)):
        who = _read(folder / name)
        if who is not None and not who.is_alive and (taken := claim(folder / name)) is not None:
            taken.release()


def _create(path: Path) -> Claim | None:
    token = os.urandom(8).hex()
    us = this_process()
    record = {
        "token": token,
        "place": us.place,
        "pid": us.pid,
        "start_ticks": us.start_ticks,
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    return Claim(path, token) if create_once(path, json_bytes(record)) else None


def _take_over(path: Path, dead: Holder) -> Claim | None:
    """Replaces a dead claim by ours, unless somebody else does.

    Whoever takes over must first hold a second claim, and then look again. Otherwise two could see the same dead
    claim, and the slower one would remove what the faster one has just put in its place. A process that dies in here
    leaves the second claim dead, which is taken over in the same way.
    """
    taking = claim(path.with_name(f"{path.name}.taking"))
    if taking is None:
        return None
    with taking, cannot_write(path):
        found = _read(path)
        if found is not None:
            if found.token != dead.token:
                return None
            path.unlink(missing_ok=True)
        return _create(path)


def _read(path: Path, *, clock: Callable[[], float] = time.time) -> Holder | None:
    try:
        text = path.read_bytes()
        touched = path.stat().st_mtime
    except (FileNotFoundError, NotADirectoryError):
        return None
    try:
        record = json.loads(text)
        process = Process(str(record["place"]), int(record["pid"]), record["start_ticks"])
        token, started = str(record["token"]), str(record["started"])
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError):
        return Holder("", "an unknown host", 0, "an unknown time", _is_within_lease(touched, clock()))
    is_here = process.place == place()
    alive = is_alive(process) if is_here else _is_within_lease(touched, clock())
    return Holder(token, process.place.rpartition(".")[0], process.pid, started, alive)


def _is_within_lease(touched: float, now: float) -> bool:
    """Whether a claim that was last touched then is alive; one of the future is not: the clock was set back since."""
    return abs(now - touched) <= LEASE_SECONDS
