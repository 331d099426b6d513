"""SLURM: the jobs that score the rows of a fitted run, their submission, and what the queue says about them.

The scripts are made from `array.sbatch` and `gather.sbatch` in this folder; people can read and change them.
`status` reads this module, so it imports nothing heavy.
"""

import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import PositiveInt

from bayesnde_cli.errors import BadUsage, BayesndeError, SettingsDiffer, StaleArtifact, escaped
from bayesnde_cli.formatting import Report, counted, shell_options
from bayesnde_cli.runs.blocks import Plan, Shard, blocks_done, freeze, frozen_count, missing_shards
from bayesnde_cli.runs.files import Document, cannot_write, sha256_json, write_bytes, write_json
from bayesnde_cli.runs.layout import RunLayout
from bayesnde_cli.settings.stage_settings import DEFAULT_SHARDS, SIGNAL_SECONDS, DensitySettings, SlurmRequest

# `status` answers in less than a second, whatever the scheduler does.
PATIENCE_SECONDS = 0.6
# States of a job that is in the queue and has no node.
_WAITING = ("PENDING", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "SPECIAL_EXIT", "RESV_DEL_HOLD")
# `slurm` waits longer for a busy scheduler; without its answer the queue counts as empty.
_SUBMIT_PATIENCE_SECONDS = 10.0
_SETUP = """
# --- setup: %(path)s
cd %(folder)s || exit
%(commands)s
# --- end of the setup
set +eu  # whatever the setup has set
"""


# The queue


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


# Jobs


@dataclass(frozen=True)
class NothingToDo:
    """The data set is scored, or everything that is missing is in the queue."""

    set_name: str
    text: str

    def as_dict(self) -> dict[str, Any]:
        return {"set_name": self.set_name, "tasks": [], "array_job": None, "gather_job": None}

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True)
class ArrayWritten:
    """The jobs of a data set. `tasks` are the shards that are missing and not in the queue."""

    set_name: str
    array: str
    gather: str
    shards: int
    tasks: tuple[int, ...]
    array_limit: int | None
    n_rows: int
    n_blocks: int
    blocks_done: int
    commands: tuple[str, ...]  # that submit the jobs; none if they are submitted
    array_job: str | None = None
    gather_job: str | None = None

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    def __str__(self) -> str:
        size = f"{counted(self.n_rows, 'row')}, {counted(self.n_blocks, 'block')} in {counted(self.shards, 'shard')}"
        if self.blocks_done:
            size += f", {self.blocks_done:,} blocks done, missing {array_text(self.tasks) or 'none'}"
        lines = [f"{self.array}: {size}", f"{self.gather}: combines them"]
        if self.array_job:
            lines.append(f"submitted: array {self.array_job}")
        if self.gather_job:
            after = f", after array {self.array_job}" if self.array_job else ""
            lines.append(f"submitted: gather {self.gather_job}{after}")
        if self.commands:
            lines += ["to submit them, type", *(f"  {command}" for command in self.commands)]
        return "\n".join(lines)


def require_files(data: Sequence[Path]) -> None:
    """Raise `BadUsage` for rows that only this process can read."""
    for path in data:
        if str(path) == "-" or (path.exists() and not path.is_file()):
            raise BadUsage(
                f"a job cannot read {path}",
                found="standard input" if str(path) == "-" else "a folder or a pipe",
                hint="write the rows to a file that the nodes of the cluster can read, and give its path",
            )


@contextmanager
def hints_of_slurm() -> Iterator[None]:
    """Have errors of `density` say what to type here: `density` itself would compute on this machine."""
    try:
        yield
    except (SettingsDiffer, StaleArtifact) as error:
        hint = error.hint.replace("`bayesnde density ", "`bayesnde slurm ")
        raise type(error)(error.what, found=error.found, hint=hint) from None


def write_jobs(
    layout: RunLayout,
    plan: Plan,
    config: DensitySettings,
    request: SlurmRequest,
    data: Sequence[Path],
    report: Report,
) -> ArrayWritten | NothingToDo:
    """Write the scripts of the array and of its gather job."""
    set_name = plan.set_name
    record = write_scripts(layout, plan, config, request, data, divide(layout, plan, request.shards, report))
    done = blocks_done(layout, plan)
    missing = missing_shards(done, record.shards, plan.n_blocks)
    jobs = read_queue([record.job_name], patience=_SUBMIT_PATIENCE_SECONDS)
    queued = {task for is_waiting in (False, True) for task in jobs.tasks(record.job_name, is_waiting=is_waiting)}
    tasks = [task for task in missing if task not in queued]
    if missing and not tasks:
        return NothingToDo(set_name, f"{layout.label('density', set_name)}: all missing shards are in SLURM's queue")
    part = "" if len(tasks) == record.shards else array_text(tasks, record.array_limit)
    return ArrayWritten(
        set_name=set_name,
        array=str(layout.array_script(set_name)),
        gather=str(layout.gather_script(set_name)),
        shards=record.shards,
        tasks=tuple(tasks),
        array_limit=record.array_limit,
        n_rows=plan.n_rows,
        n_blocks=plan.n_blocks,
        blocks_done=len(done),
        commands=submit_commands(layout, set_name, part if tasks else None),
    )


def require_sbatch() -> None:
    """Raise `BadUsage` on a machine that cannot submit."""
    if shutil.which("sbatch") is None:
        raise BadUsage(
            "--submit needs SLURM, which is not installed here",
            found="no sbatch in $PATH",
            hint="run the command on a login node of the cluster, or leave out --submit and submit the scripts there",
        )


def submit_jobs(written: ArrayWritten) -> ArrayWritten:
    """Submit the missing tasks, and the gather job after them."""
    array_id, dependency, before = None, [], []
    if written.tasks:
        array_id = _submit(written.array, f"--array={array_text(written.tasks, written.array_limit)}")
        dependency = [f"--dependency=afterok:{array_id}", "--kill-on-invalid-dep=yes"]
        before = [f"the array was submitted as {array_id}; `scancel {array_id}` cancels it"]
    gather_id = _submit(written.gather, *dependency, before=before)
    return replace(written, commands=(), array_job=array_id, gather_job=gather_id)


def _submit(script: str, *options: str, before: Sequence[str] = ()) -> str:
    """The number of the submitted job; `before` is what a failure leaves behind."""
    done = subprocess.run(
        ["sbatch", "--parsable", *options, script],
        capture_output=True,
        text=True,
        errors="replace",
        stdin=subprocess.DEVNULL,
    )
    job_id = done.stdout.strip().rpartition("\n")[2].partition(";")[0]  # `123;cluster` where there are several
    if done.returncode != 0 or not job_id.isdecimal():
        reason = (done.stderr.strip() or done.stdout.strip()).splitlines() or [f"exit code {done.returncode}"]
        raise BadUsage(
            f"SLURM refused {script}",
            found=[*reason, *before],
            hint="change the options of `bayesnde slurm`, or the #SBATCH lines of its --setup, and submit again",
        )
    return job_id


# Scripts


def divide(layout: RunLayout, plan: Plan, asked: int | None, report: Report) -> int:
    """The number of shards; `BadUsage` if the data set is already divided into another number than that asked for."""
    frozen = frozen_count(layout, plan.stage, plan.set_name)
    count = asked or frozen or DEFAULT_SHARDS
    if count > plan.n_blocks and frozen is None:
        if asked is not None:
            report.note(f"{counted(plan.n_blocks, 'block')} of {plan.block_rows} rows cannot make more shards")
        count = plan.n_blocks
    freeze(layout, plan.stage, plan.set_name, Shard(1, count))
    return count


def write_scripts(
    layout: RunLayout, plan: Plan, config: DensitySettings, request: SlurmRequest, data: Sequence[Path], shards: int
) -> ArrayRecord:
    """Write both scripts, with absolute paths since jobs start anywhere, and the record for `status`."""
    set_name, layout = plan.set_name, RunLayout(Path(os.path.abspath(layout.root)))
    # Jobs are found in the queue by name: those of another division, or of other settings, must not be.
    digest = sha256_json([str(layout.root), shards, plan.plan_hash])[:8]
    record = ArrayRecord(
        job_name=f"bayesnde-{set_name}-{digest}", shards=shards, run=str(layout.root), array_limit=request.array_limit
    )
    directives, setup = _read_setup(request.setup)
    limits = {"time": request.time, "partition": request.partition, "account": request.account}
    stages = ("density", "posterior") if config.keep_draws else ("density",)
    texts = {
        "label": layout.label("density", set_name),
        "job": record.job_name,
        "shards": shards,
        "tasks": array_text(range(1, shards + 1), request.array_limit),
        "cpus": request.cpus_per_task,
        "signal_seconds": SIGNAL_SECONDS,
        # sbatch reads no directives after the first command
        "directives": "\n".join(directives),
        # -P: do not import from the folder in which a job starts
        "program": shlex.join([sys.executable, "-P", "-m", "bayesnde_cli"]),
        "setup": setup,
        "folders": " ".join(shlex.quote(str(layout.stage_dir(stage, set_name))) for stage in stages),
        "command": _command(layout, config, request, data),
    }
    logs = layout.job_log(set_name, "").parent
    with cannot_write(logs):
        logs.mkdir(parents=True, exist_ok=True)  # SLURM does not make it, and a job without a log fails
    for path, log, extra in (
        (layout.array_script(set_name), "array-%A_%a", {"gpus-per-task": request.gpus_per_task or None}),
        (layout.gather_script(set_name), "gather-%j", {}),
    ):
        resources = {**extra, **limits, "output": _log_pattern(layout.job_log(set_name, log))}
        lines = [f"#SBATCH --{name}={value}" for name, value in resources.items() if value is not None]
        template = Path(__file__).with_name(path.name).read_text("utf-8")
        text = template % (texts | {"resources": "\n".join(lines), "script": shlex.quote(str(path))})
        write_bytes(path, text.encode("utf-8", "surrogateescape"))
    write_json(layout.array_record_file(set_name), record.model_dump())
    return record


def _log_pattern(log: Path) -> str:
    """The path of a log as sbatch reads it: quotes as in a shell, and % begins a pattern."""
    return shlex.quote(f"{str(log.parent).replace('%', '%%')}/{log.name}")


def _read_setup(path: str | None) -> tuple[list[str], str]:
    """The #SBATCH lines of the user's setup file, and its commands; its first line may name a shell."""
    if path is None:
        return [], ""
    try:
        lines = Path(path).read_text("utf-8", "surrogateescape").splitlines()
    except OSError as error:
        raise BadUsage(
            f"the setup file {path} cannot be read",
            found=os.strerror(error.errno or 0),
            hint="give a file of shell commands, for instance `module load …`, with --setup",
        ) from None
    if lines and lines[0].startswith("#!"):
        lines.pop(0)
    directives = [line.rstrip() for line in lines if line.startswith("#SBATCH")]
    if directives:
        directives.insert(0, "# From the setup file; the last value of an option counts.")
    commands = "\n".join(line for line in lines if not line.startswith("#SBATCH")).strip("\n")
    return directives, _SETUP % {
        "path": escaped(os.path.abspath(path)),
        "folder": shlex.quote(os.getcwd()),
        "commands": commands,
    }


def _command(layout: RunLayout, config: DensitySettings, request: SlurmRequest, data: Sequence[Path]) -> str:
    defaults = DensitySettings().as_dict()
    chosen = {name: value for name, value in config.as_dict().items() if value != defaults[name] and name != "threads"}
    if request.gpus_per_task and config.device == defaults["device"]:
        chosen["device"] = "gpu"  # fail early if it cannot be used
    threads = '"$SLURM_CPUS_PER_TASK"' if config.threads is None else str(config.threads)
    files = "".join(f" {shlex.quote(os.path.abspath(path))}" for path in data)
    options = " ".join([f"--threads {threads}", *shell_options(chosen)])
    return f'"${{bayesnde[@]}}" density{files} --run {shlex.quote(str(layout.root))} \\\n  {options}'
