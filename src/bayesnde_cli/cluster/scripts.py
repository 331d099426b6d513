"""`bayesnde slurm`: write the jobs that score the rows of a fitted run on a cluster, and submit them.

The scripts are made from `array.sbatch` and `gather.sbatch` in this folder; people can read and change them.
"""

import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from bayesnde_cli.cluster import queue
from bayesnde_cli.errors import BadUsage, SettingsDiffer, StaleArtifact, escaped
from bayesnde_cli.formatting import Report, counted, shell_options
from bayesnde_cli.runs.blocks import Plan, Shard, blocks_done, freeze, frozen_count, missing_shards
from bayesnde_cli.runs.files import cannot_write, sha256_json, write_bytes, write_json
from bayesnde_cli.runs.layout import RunLayout
from bayesnde_cli.settings.stage_settings import DEFAULT_SHARDS, SIGNAL_SECONDS, DensitySettings, SlurmRequest

# How long to wait for a busy scheduler; without its answer the queue counts as empty.
_PATIENCE_SECONDS = 10.0
_SETUP = """
# --- setup: %(path)s
cd %(folder)s || exit
%(commands)s
# --- end of the setup
set +eu  # whatever the setup has set
"""


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
            size += f", {self.blocks_done:,} blocks done, missing {queue.array_text(self.tasks) or 'none'}"
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
    jobs = queue.read_queue([record.job_name], patience=_PATIENCE_SECONDS)
    queued = {task for is_waiting in (False, True) for task in jobs.tasks(record.job_name, is_waiting=is_waiting)}
    tasks = [task for task in missing if task not in queued]
    if missing and not tasks:
        return NothingToDo(set_name, f"{layout.label('density', set_name)}: all missing shards are in SLURM's queue")
    part = "" if len(tasks) == record.shards else queue.array_text(tasks, record.array_limit)
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
        commands=queue.submit_commands(layout, set_name, part if tasks else None),
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
        array_id = _submit(written.array, f"--array={queue.array_text(written.tasks, written.array_limit)}")
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
) -> queue.ArrayRecord:
    """Write both scripts, with absolute paths since jobs start anywhere, and the record for `status`."""
    set_name, layout = plan.set_name, RunLayout(Path(os.path.abspath(layout.root)))
    # Jobs are found in the queue by name: those of another division, or of other settings, must not be.
    digest = sha256_json([str(layout.root), shards, plan.plan_hash])[:8]
    record = queue.ArrayRecord(
        job_name=f"bayesnde-{set_name}-{digest}", shards=shards, run=str(layout.root), array_limit=request.array_limit
    )
    directives, setup = _read_setup(request.setup)
    limits = {"time": request.time, "partition": request.partition, "account": request.account}
    stages = ("density", "posterior") if config.keep_draws else ("density",)
    texts = {
        "label": layout.label("density", set_name),
        "job": record.job_name,
        "shards": shards,
        "tasks": queue.array_text(range(1, shards + 1), request.array_limit),
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
