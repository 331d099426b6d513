"""SLURM's view of the jobs of some names: which tasks run, which wait. It may have none, and it may be slow."""

import contextlib
import os
import signal
from collections.abc import Iterable
from dataclasses import dataclass

# `status` answers in less than a second, whatever the scheduler does.
PATIENCE_SECONDS = 0.6
# States of a job that is in the queue and has no node.
_WAITING = ("PENDING", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "SPECIAL_EXIT", "RESV_DEL_HOLD")


@dataclass(frozen=True)
class QueuedTask:
    """A task in the queue. `index` is None for a job that is no array."""

    job_name: str
    job_id: str
    index: int | None
    is_waiting: bool


@dataclass(frozen=True)
class Queue:
    """What is in the queue; `problem` says why nothing is known of it."""

    tasks: tuple[QueuedTask, ...] = ()
    problem: str | None = None

    def has(self, job_name: str) -> bool:
        """Whether a job of this name is there."""
        return any(task.job_name == job_name for task in self.tasks)

    def tasks_of(self, job_name: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The numbers of the array tasks of a job that run, and of those that wait."""
        found: dict[bool, set[int]] = {False: set(), True: set()}
        for task in self.tasks:
            if task.job_name == job_name and task.index is not None:
                found[task.is_waiting].add(task.index)
        return tuple(sorted(found[False])), tuple(sorted(found[True]))


def look_at_queue(names: Iterable[str], *, patience: float | None = None) -> Queue:
    """The tasks of the jobs of these names that have not ended."""
    import subprocess  # 10 ms that a `status` without arrays does not need

    command = ["squeue", "--noheader", "--array", f"--name={','.join(names)}", "--format=%j|%F|%K|%T"]
    try:
        # A session of its own: what squeue has started, if it is a wrapper, ends with it.
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            errors="replace", start_new_session=True,
        )  # fmt: skip
    except OSError:
        return Queue(problem="there is no squeue here")
    try:
        out, err = process.communicate(timeout=PATIENCE_SECONDS if patience is None else patience)
    except subprocess.TimeoutExpired:
        _end(process.pid)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.communicate(timeout=0.1)
        return Queue(problem="squeue did not answer in time")
    if process.returncode != 0:
        return Queue(problem=(err.strip().splitlines() or [f"squeue: exit code {process.returncode}"])[-1])
    return Queue(tuple(task for line in out.splitlines() if (task := _task(line)) is not None))


def _end(pid: int) -> None:
    with contextlib.suppress(OSError):
        os.killpg(pid, signal.SIGKILL)


def _task(line: str) -> QueuedTask | None:
    """The task of a line of squeue's; None for a line that is not one of ours, as some wrappers greet their users."""
    parts = line.strip().split("|")
    if len(parts) != 4:
        return None
    name, job_id, index, state = parts
    return QueuedTask(name, job_id, int(index) if index.isdecimal() else None, state in _WAITING)
