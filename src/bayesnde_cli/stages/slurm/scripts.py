"""The two scripts of an array: the text that SLURM is given, for people to read first."""

import os
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from bayesnde_cli.artifacts.array_record import ArrayRecord
from bayesnde_cli.artifacts.layout import RunLayout
from bayesnde_cli.errors import BadUsage, escaped
from bayesnde_cli.stages.slurm.command_lines import array_of, quoted
from bayesnde_cli.stages.slurm.requests import SIGNAL_SECONDS, Request, Setup

_ARRAY_BODY = """
: "${SLURM_ARRAY_TASK_ID:?submit this script with sbatch}"
%(beginning)s
# Blocks that are there, of whatever shard.
n_blocks() { find %(folders)s -name '[!.]*.parquet' 2> /dev/null | wc -l; }
n_before=$(n_blocks)

# The number of shards is written out: SLURM's own count is another one when --array=3,7 is submitted again.
%(command)s \\
  --shard "$SLURM_ARRAY_TASK_ID/%(shards)d" &
child=$!

# bayesnde is no `exec`: this shell stays, to look at the exit code.
# USR1: the time is nearly over. SLURM tells this shell alone, which hands it on; bayesnde saves and ends with 75.
# TERM: scancel, or preemption. SLURM tells every process, bayesnde too. A task that was cancelled must not come back,
# and one that was preempted is put back into the queue by SLURM.
stopped_by=
trap 'stopped_by=USR1; kill -USR1 "$child"' USR1
trap 'stopped_by=TERM' TERM
# Not by `wait` alone: a signal that comes just as bayesnde ends would make bash lose its exit code.
while kill -0 "$child" 2> /dev/null; do sleep 1; done
wait "$child"
code=$?

# 75: run it again to go on (138: USR1 came before bayesnde could listen). This task alone goes back into the queue,
# if a block was finished meanwhile: otherwise it would come back for ever.
if [ "$stopped_by" != TERM ] && { [ "$code" = 75 ] || [ "$code" = 138 ]; }; then
  if [ "$(n_blocks)" -gt "$n_before" ]; then
    scontrol requeue "${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID"
  else
    echo "no block was finished in the time that this task had: submit it again with more --time" >&2
  fi
fi
exit "$code"
"""
_GATHER_BODY = """%(beginning)s
# All blocks are there, and are put together. `exec`: this shell has nothing left to do.
exec %(command)s
"""
_BEGINNING = """
# The program that wrote this script. The setup may choose another one, for instance
# bayesnde=(apptainer exec --nv image.sif bayesnde)
bayesnde=(%(program)s)
%(setup)s
# Settings stand in the command below: none may come from the shell that submits.
unset "${!BAYESNDE_DENSITY_@}"
export OMP_NUM_THREADS="$SLURM_CPUS_PER_TASK"
"""


@dataclass(frozen=True)
class ArrayJob:
    """An array and its gather job. Paths are absolute: jobs start anywhere."""

    layout: RunLayout
    set_name: str
    record: ArrayRecord
    request: Request
    setup: Setup | None
    program: Sequence[str]
    data: Sequence[str]
    options: Sequence[str]  # of `density`, as they are typed in a shell, but for the threads
    threads: int | None  # None: as many as a task has CPUs
    is_keeping_draws: bool
    folder: str  # where `bayesnde slurm` was typed

    @property
    def array_text(self) -> str:
        """The script of the array."""
        label, script = self.layout.label("density", self.set_name), quoted(self.layout.array_script(self.set_name))
        stages = ("density", "posterior") if self.is_keeping_draws else ("density",)
        head = [
            "#!/bin/bash",
            f"# The log-densities of {label} in {self.request.shards} shards. Written by `bayesnde slurm`.",
            "#",
            f"#   sbatch {script}",
            f"#   sbatch --array=3,7 {script}",
            "#",
            "# The second line submits some shards again; blocks that are there are kept. `bayesnde status` says which",
            "# are missing.",
            "#",
            f"#SBATCH --job-name={self.record.job_name}",
            f"#SBATCH --array={array_of(range(1, self.request.shards + 1), self.request.array_limit)}",
            *self._resources(cpus=self.request.cpus_per_task, gpus=self.request.gpus_per_task),
            f"#SBATCH --output={self._log('array-%A_%a')}",
            f"# {SIGNAL_SECONDS} s before the time is over SLURM sends USR1 to this shell (B:); see below.",
            f"#SBATCH --signal=B:USR1@{SIGNAL_SECONDS}",
            "# A task that loses its node or is preempted goes back into the queue, and its log goes on.",
            "#SBATCH --requeue",
            "#SBATCH --open-mode=append",
            *self._directives(),
        ]
        return "\n".join(head) + "\n" + _ARRAY_BODY % {
            "beginning": self._beginning(),
            "folders": " ".join(quoted(self.layout.stage_dir(stage, self.set_name)) for stage in stages),
            "command": self._command(),
            "shards": self.request.shards,
        }  # fmt: skip

    @property
    def gather_text(self) -> str:
        """The script of the job that puts the shards together."""
        label = self.layout.label("density", self.set_name)
        head = [
            "#!/bin/bash",
            f"# Puts the shards of {label} together. Written by `bayesnde slurm`; JOBID is the number of the array:",
            "#",
            f"#   sbatch --dependency=afterok:JOBID {quoted(self.layout.gather_script(self.set_name))}",
            "#",
            f"#SBATCH --job-name={self.record.gather_name}",
            *self._resources(cpus=1, gpus=0),
            f"#SBATCH --output={self._log('gather-%j')}",
            "# If a task of the array fails, this job can never start: without the next line it would wait for ever.",
            "#SBATCH --kill-on-invalid-dep=yes",
            "#SBATCH --requeue",
            "#SBATCH --open-mode=append",
            *self._directives(),
        ]
        body = _GATHER_BODY % {"beginning": self._beginning(), "command": self._command()}
        return "\n".join(head) + "\n" + body

    def _resources(self, *, cpus: int, gpus: int) -> list[str]:
        request = self.request
        values = {
            "ntasks": 1, "cpus-per-task": cpus, "gpus-per-task": gpus or None, "time": request.time,
            "partition": request.partition, "account": request.account,
        }  # fmt: skip
        return [f"#SBATCH --{name}={value}" for name, value in values.items() if value is not None]

    def _log(self, job: str) -> str:
        """The log of a job as sbatch reads it: quotes as in a shell, and % begins a pattern."""
        folder, name = os.path.split(self.layout.job_log(self.set_name, job))
        if re.search(r"[\x00-\x1f\x7f\\]", folder):  # a backslash turns SLURM's patterns off
            raise BadUsage(
                "SLURM cannot write a log below this run directory",
                found=f"its path has a backslash or a control character: {folder!r}",
                hint="rename the folder",
            )
        return shlex.quote(f"{folder.replace('%', '%%')}/{name}")

    def _directives(self) -> list[str]:
        if self.setup is None or not self.setup.directives:
            return []
        return ["# From the setup file; the last word on an option counts.", *self.setup.directives]

    def _beginning(self) -> str:
        setup = ""
        if self.setup is not None:
            lines = [
                f"\n# --- setup: {escaped(self.setup.path)}",
                f"cd {shlex.quote(self.folder)} || exit",
                self.setup.text,
                "# --- end of the setup",
                "set +eu  # whatever the setup has set\n",
            ]
            setup = "\n".join(lines)
        return _BEGINNING % {"program": shlex.join(self.program), "setup": setup}

    def _command(self) -> str:
        threads = '"$SLURM_CPUS_PER_TASK"' if self.threads is None else str(self.threads)
        data = "".join(f" {shlex.quote(path)}" for path in self.data)
        run = quoted(self.layout.root)
        return f'"${{bayesnde[@]}}" density{data} --run {run} \\\n  ' + " ".join(
            [f"--threads {threads}", *self.options]
        )
