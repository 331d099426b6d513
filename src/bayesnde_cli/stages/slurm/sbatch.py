"""Sending a script to SLURM."""

import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from bayesnde_cli.errors import BadUsage


def require_sbatch() -> None:
    """Raise `BadUsage` on a machine that cannot submit."""
    if shutil.which("sbatch") is None:
        raise BadUsage(
            "--submit needs SLURM, and it is not here",
            found="no sbatch in $PATH",
            hint="type the same on a login node of the cluster, or leave --submit out and send the scripts from there",
        )


def submit(script: Path, *options: str, before: Sequence[str] = ()) -> str:
    """The number of the job that a script was submitted as; `before` tells, if that fails, what was done before."""
    done = subprocess.run(
        ["sbatch", "--parsable", *options, str(script)], capture_output=True, text=True, errors="replace",
        stdin=subprocess.DEVNULL,
    )  # fmt: skip
    job_id = done.stdout.strip().rpartition("\n")[2].partition(";")[0]  # `123;cluster` where there are several
    if done.returncode != 0 or not job_id.isdecimal():
        said = (done.stderr.strip() or done.stdout.strip()).splitlines() or [f"exit code {done.returncode}"]
        raise BadUsage(
            f"SLURM did not take {script}",
            found=[*said, *before],
            hint="change the options of `bayesnde slurm`, or the #SBATCH lines of its --setup, and submit again",
        )
    return job_id
