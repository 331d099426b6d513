"""Who is at work: names a process so that another one, perhaps on another machine, can tell whether it lives."""

import functools
import hashlib
import os
import re
from pathlib import Path
from typing import NamedTuple


class Process(NamedTuple):
    """A process as others can look it up; `start_ticks` tells a reused process id from the old one."""

    place: str
    pid: int
    start_ticks: int | None


def this_process() -> Process:
    """The process that asks."""
    return Process(place(), os.getpid(), start_ticks(os.getpid()))


@functools.cache
def place() -> str:
    """The host's name plus six digits for its boot and process namespace: where a process id means something.

    Containers may share a host's name and not its process ids; a restarted host knows none of the old ones.
    The name is reduced to letters, digits, dots and underscores, so that `-` can separate it from what follows.
    """
    host = re.sub(r"[^A-Za-z0-9.]", "_", os.uname().nodename)[:60] or "host"
    return f"{host}.{hashlib.sha256(f'{_boot_id()} {_pid_namespace()}'.encode()).hexdigest()[:6]}"


def is_alive(process: Process) -> bool:
    """Whether a process of this place still runs. Only meaningful if `process.place == place()`."""
    try:
        os.kill(process.pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        pass  # it is there, and belongs to someone else
    if _state(process.pid) in ("Z", "X"):  # killed, and not yet collected by its parent
        return False
    ticks = start_ticks(process.pid)
    return process.start_ticks is None or ticks is None or ticks == process.start_ticks


def start_ticks(pid: int) -> int | None:
    """When a process started, in clock ticks since boot; None where the system does not tell (no /proc)."""
    fields = _stat_fields(pid)
    return int(fields[19]) if len(fields) > 19 else None


def _state(pid: int) -> str | None:
    fields = _stat_fields(pid)
    return fields[0] if fields else None


def _stat_fields(pid: int) -> list[str]:
    """The fields of /proc/PID/stat from the third one on; the second, the name, may hold blanks and brackets."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return []
    return text.rpartition(")")[2].split()


def _boot_id() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def _pid_namespace() -> str:
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return ""
