"""`slurm`: from a fitted run and rows to the jobs that have a cluster score them, written and, if wanted, submitted."""

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from bayesnde_cli.artifacts import array_record, shards
from bayesnde_cli.artifacts.layout import RunLayout
from bayesnde_cli.artifacts.plan import Plan, blocks_done
from bayesnde_cli.config import DensityConfig
from bayesnde_cli.errors import BadArtifact, BadUsage, SettingsDiffer, StaleArtifact
from bayesnde_cli.stages.reporting import Report, counted, duration
from bayesnde_cli.stages.scoring import Asked, Planned, planned
from bayesnde_cli.stages.scoring.engine import EngineFactory
from bayesnde_cli.stages.scoring.job import Job, make_job
from bayesnde_cli.stages.slurm.command_lines import array_line, array_of, gather_line
from bayesnde_cli.stages.slurm.outcome import ArrayWritten, NothingToDo
from bayesnde_cli.stages.slurm.pace import Pace, array_seconds, pace_of_done, probe
from bayesnde_cli.stages.slurm.queue import look_at_queue
from bayesnde_cli.stages.slurm.requests import SIGNAL_SECONDS, Request, Setup
from bayesnde_cli.stages.slurm.sbatch import require_sbatch, submit
from bayesnde_cli.stages.slurm.writing import array_job, divided, write_scripts

# How long to wait for a scheduler that has much to do; without its answer nothing is in the queue.
_PATIENCE_SECONDS = 10.0


@dataclass(frozen=True)
class Wanted:
    """What `slurm` is asked for, beside the rows and the settings."""

    request: Request
    setup: Setup | None = None
    is_count_chosen: bool = False  # the number of shards is the user's, and not the default
    is_submitting: bool = False
    is_probing: bool = False


def run_slurm(
    layout: RunLayout, asked: Asked, config: DensityConfig, report: Report, wanted: Wanted, *, factory: EngineFactory
) -> ArrayWritten | NothingToDo:
    """Write the jobs, say how long they will take, and submit them."""
    if wanted.is_submitting:
        require_sbatch()
    _refuse_pipes(asked.data)
    job = make_job(layout, asked, config)
    set_name = job.set_name
    left = _planned(job, report, is_restart=asked.is_restart)
    if left is None:
        return NothingToDo(set_name, f"{layout.density_file(set_name)} is up to date: nothing is left for a cluster")
    done = blocks_done(layout, left.plan)
    n_earlier = _earlier_shards(layout, set_name)
    request = divided(layout, left.plan, wanted.request, report, is_count_chosen=wanted.is_count_chosen)
    array = array_job(layout, left.plan, config, request, wanted.setup, asked.data)
    write_scripts(array)
    missing = shards.missing_shards(done, request.shards, left.plan.n_blocks)
    queue = look_at_queue([array.record.job_name], patience=_PATIENCE_SECONDS)
    running, pending = queue.tasks_of(array.record.job_name)
    tasks = sorted({*missing} - {*running, *pending})
    if missing and not tasks:
        return NothingToDo(set_name, f"{layout.label('density', set_name)}: SLURM has all missing shards in its queue")
    pace = pace_of_done(layout, left.plan, done, n_earlier)
    if pace is None and wanted.is_probing and tasks:
        pace = _probe(job, left, request, done, factory, report)
    written = ArrayWritten(
        set_name=set_name,
        array=str(layout.array_script(set_name)),
        gather=str(layout.gather_script(set_name)),
        shards=request.shards,
        tasks=tuple(tasks),
        n_rows=left.plan.n_rows,
        n_blocks=left.plan.n_blocks,
        blocks_done=len(done),
        commands=_commands(layout, set_name, tasks, request),
        rows_per_second=None if pace is None else pace.rows_per_second,
        seconds=None if pace is None else _foretell(left.plan, done, tasks, request, pace, report),
    )
    return _submitted(layout, written, request) if wanted.is_submitting else written


def _refuse_pipes(data: Sequence[Path]) -> None:
    """What only this process can read is of no use to a job."""
    for path in data:
        if str(path) == "-" or (path.exists() and not path.is_file()):
            raise BadUsage(
                f"a job cannot read {path}",
                found="standard input" if str(path) == "-" else "it is a folder or a pipe",
                hint="write the rows to a file that the nodes of the cluster see, and give its path",
            )


def _planned(job: Job, report: Report, *, is_restart: bool) -> Planned | None:
    """The rows and their plan. Ways out lead to `slurm` and not to `density`, which would begin to compute here."""
    try:
        return planned(job, report, is_restart=is_restart)
    except (SettingsDiffer, StaleArtifact) as error:
        hint = error.hint.replace("`bayesnde density ", "`bayesnde slurm ")
        raise type(error)(error.what, found=error.found, hint=hint) from None


def _earlier_shards(layout: RunLayout, set_name: str) -> int:
    """How the blocks that are there were divided: by an array, or not at all."""
    try:
        record = array_record.read(layout, set_name)
    except BadArtifact:  # it is written anew
        record = None
    return shards.frozen_count(layout, "density", set_name) or (1 if record is None else record.shards)


def _probe(job: Job, left: Planned, request: Request, done: set[int], factory: EngineFactory, report: Report) -> Pace:
    """The pace of this machine with as many threads as a task has, if it has them."""
    threads = job.config.threads or min(request.cpus_per_task, os.cpu_count() or 1)
    as_task = replace(job, config=replace(job.config, threads=threads))
    return probe(as_task, left, [block for block in range(left.plan.n_blocks) if block not in done], factory, report)


def _foretell(plan: Plan, done: set[int], tasks: Sequence[int], request: Request, pace: Pace, report: Report) -> float:
    """The time that the array takes from its start, told with what it is known from."""
    n_left = [sum(block not in done for block in range(task - 1, plan.n_blocks, request.shards)) for task in tasks]
    task_seconds = [pace.start_seconds + n * pace.block_seconds for n in n_left]
    seconds = array_seconds(task_seconds, request.array_limit)
    n_at_once = min(request.array_limit or len(tasks), len(tasks))
    report.note(f"{pace.rows_per_second:.3g} rows a second and task, known from {pace.known_from}")
    report.note(f"the array will take about {duration(seconds)} if {counted(n_at_once, 'task')} run at a time")
    longest, most = max(task_seconds, default=0.0), request.seconds - SIGNAL_SECONDS
    if pace.start_seconds + pace.block_seconds > most:
        report.warn(f"one block takes about {duration(pace.block_seconds)}: --time {request.time} is not enough for it")
    elif longest > most:
        report.note(f"a task takes {duration(longest)} and has --time {request.time}: it is requeued until it is done")
    return seconds


def _commands(layout: RunLayout, set_name: str, tasks: Sequence[int], request: Request) -> tuple[str, ...]:
    if not tasks:
        return (gather_line(layout, set_name, None),)
    array = None if len(tasks) == request.shards else array_of(tasks, request.array_limit)
    return array_line(layout, set_name, array), gather_line(layout, set_name)


def _submitted(layout: RunLayout, written: ArrayWritten, request: Request) -> ArrayWritten:
    """The same, sent."""
    set_name, array_id, dependency, before = written.set_name, None, [], []
    if written.tasks:
        array = array_of(written.tasks, request.array_limit)
        array_id = submit(layout.array_script(set_name), f"--array={array}")
        dependency = [f"--dependency=afterok:{array_id}", "--kill-on-invalid-dep=yes"]
        before = [f"the array was submitted as {array_id}; `scancel {array_id}` takes it back"]
    gather_id = submit(layout.gather_script(set_name), *dependency, before=before)
    return replace(written, commands=(), array_job=array_id, gather_job=gather_id)
