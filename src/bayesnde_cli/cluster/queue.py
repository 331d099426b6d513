"""The SLURM queue: which tasks of an array run or wait, and which commands submit the others.

`status` reads this module, so it imports nothing heavy.
"""

import os
import shlex
import subprocess
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from pydantic import PositiveInt

from bayesnde_cli.errors import BayesndeError
from bayesnde_cli.runs.files import Document
from bayesnde_cli.runs.layout import RunLayout

# `status` answers in less than a second, whatever the scheduler does.
PATIENCE_SECONDS = 0.6
# States of a job that is in the queue and has no node.
_WAITING = ("PENDING", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "SPECIAL_EXIT", "RESV_DEL_HOLD")


class ArrayRecord(Document):
    """The last array job of a data set: its name in the queue, its shards, and the run that its script works in."""

    job_name: str
    shards: PositiveInt
    run: str  # absolute
    array_limit: int | None = None

    @property
    def gather_name(self) -> str:
        """The name of the job that combines the shards."""
        return f"{self.job_name}-gather"


def read_array_record(layout: RunLayout, set_name: str) -> ArrayRecord | None:
    """The record of a data set's array; None if no array was written."""
    path = layout.array_record_file(set_name)
    return ArrayRecord.read(path) if path.exists() else None


class Queue(NamedTuple):
    """Jobs in the queue as (job name, array task or None): is waiting; `problem` says why nothing is known."""

    jobs: dict[tuple[str, int | None], bool]
    problem: str | None = None

    def tasks(self, job_name: str, *, is_waiting: bool) -> tuple[int, ...]:
        """The array tasks of a job that wait, or that run."""
        found = self.jobs.items()
        return tuple(sorted(task for (name, task), waits in found if name == job_name and task and waits == is_waiting))


def read_queue(names: Iterable[str], *, patience: float | None = None) -> Queue:
    """The unfinished jobs of these names."""
    command = ["squeue", "--noheader", "--array", f"--name={','.join(names)}", "--format=%j|%K|%T"]
    # A file, not a pipe: if squeue is a wrapper that has to be killed, the programs that it started keep a pipe open.
    with tempfile.TemporaryFile("w+", errors="replace") as out:
        try:
            done = subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                timeout=PATIENCE_SECONDS if patience is None else patience,
            )
        except OSError:
            return Queue({}, "there is no squeue here")
        except subprocess.TimeoutExpired:
            return Queue({}, "squeue did not answer in time")
        out.seek(0)
        lines = out.read().split("\n")
    if done.returncode != 0:
        return Queue({}, ([line for line in lines if line.strip()] or [f"squeue: exit code {done.returncode}"])[-1])
    jobs = {}
    for parts in (line.strip().split("|") for line in lines):
        if len(parts) == 3:  # some wrappers greet their users
            name, task, state = parts
            jobs[name, int(task) if task.isdecimal() else None] = state in _WAITING
    return Queue(jobs)


def array_text(tasks: Sequence[int], limit: int | None = None) -> str:
    """Sorted task numbers in the form of `--array`: `1-3,7%2`."""
    runs: list[list[int]] = []
    for task in tasks:
        if runs and task == runs[-1][1] + 1:
            runs[-1][1] = task
        else:
            runs.append([task, task])
    text = ",".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)
    return text if limit is None else f"{text}%{limit}"


def submit_commands(
    layout: RunLayout, set_name: str, tasks: str | None = "", *, is_gathered: bool = False
) -> tuple[str, ...]:
    """The commands that submit array tasks (all if empty, none if None) and, unless it is queued, the gather job."""
    array, gather = (shlex.quote(str(path)) for path in (layout.array_script(set_name), layout.gather_script(set_name)))
    if tasks is None:
        return (f"sbatch {gather}",)
    first = f"sbatch --array={tasks} {array}" if tasks else f"sbatch {array}"
    return (first,) if is_gathered else (first, f"sbatch --dependency=afterok:JOBID {gather}")


@dataclass(frozen=True)
class ArrayStatus:
    """The shards, by number, of a data set that is not complete."""

    set_name: str
    missing: tuple[int, ...]
    running: tuple[int, ...] = ()
    pending: tuple[int, ...] = ()
    is_gathering: bool = False  # the gather job is in the queue
    commands: tuple[str, ...] = ()  # that submit shards that are missing and not queued
    problem: str | None = None  # why nothing is known about the queue or the array

    @property
    def is_queued(self) -> bool:
        """Whether everything that is missing is queued."""
        return bool(self.running or self.pending or self.is_gathering) and not self.commands

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    def __str__(self) -> str:
        tasks = {"missing": self.missing, "running": self.running, "pending": self.pending}
        parts = [f"{state} {array_text(numbers)}" for state, numbers in tasks.items() if numbers]
        parts += ["gather job in the queue"] if self.is_gathering else []
        parts += [self.problem] if self.problem else []
        lines = [f"array of density/{self.set_name}: {'; '.join(parts) or 'all shards done'}"]
        if self.commands:
            lines += ["  to resume:", *(f"    {command}" for command in self.commands)]
        return "\n".join(lines)


def array_statuses(layout: RunLayout, missing: Mapping[str, Sequence[int]]) -> list[ArrayStatus]:
    """The arrays of data sets, given the missing shards of each; squeue is called once."""
    found: list[ArrayStatus] = []
    records: dict[str, ArrayRecord] = {}
    for set_name in missing:
        again = (layout.command("slurm", set_name),)
        try:
            record = read_array_record(layout, set_name)
        except BayesndeError as error:
            found.append(ArrayStatus(set_name, (), commands=again, problem=error.what))
            continue
        if record is not None and os.path.realpath(record.run) != os.path.realpath(layout.root):  # moved
            problem = f"its scripts are for {record.run}"
            found.append(ArrayStatus(set_name, tuple(missing[set_name]), commands=again, problem=problem))
        elif record is not None:
            records[set_name] = record
    if records:
        queue = read_queue(name for record in records.values() for name in (record.job_name, record.gather_name))
        found += [_array_status(layout, name, record, missing[name], queue) for name, record in records.items()]
    return found


def _array_status(
    layout: RunLayout, set_name: str, record: ArrayRecord, missing: Sequence[int], queue: Queue
) -> ArrayStatus:
    running, pending = (queue.tasks(record.job_name, is_waiting=is_waiting) for is_waiting in (False, True))
    is_gathering = (record.gather_name, None) in queue.jobs
    left = sorted({*missing} - {*running, *pending})
    tasks = array_text(left, record.array_limit)
    commands = submit_commands(layout, set_name, tasks, is_gathered=is_gathering) if left else ()
    return ArrayStatus(set_name, tuple(missing), running, pending, is_gathering, commands, queue.problem)
