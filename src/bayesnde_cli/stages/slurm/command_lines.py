"""What people type to send jobs to SLURM."""

import os
import shlex
from collections.abc import Sequence

from bayesnde_cli.artifacts.layout import RunLayout


def array_of(tasks: Sequence[int], limit: int | None = None) -> str:
    """Task numbers, in order, as `--array` takes them: `1-3,7%2`."""
    runs: list[list[int]] = []
    for task in tasks:
        if runs and task == runs[-1][1] + 1:
            runs[-1][1] = task
        else:
            runs.append([task, task])
    text = ",".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)
    return text if limit is None else f"{text}%{limit}"


def array_line(layout: RunLayout, set_name: str, array: str | None) -> str:
    """The line that submits some tasks of an array, or all that its script names."""
    tasks = "" if array is None else f" --array={array}"
    return f"sbatch{tasks} {quoted(layout.array_script(set_name))}"


def gather_line(layout: RunLayout, set_name: str, array_id: str | None = "JOBID") -> str:
    """The line that submits the job that puts the shards together, after an array or, without one, at once."""
    dependency = "" if array_id is None else f" --dependency=afterok:{array_id}"
    return f"sbatch{dependency} {quoted(layout.gather_script(set_name))}"


def quoted(path: os.PathLike[str]) -> str:
    """A path as it is typed in a shell."""
    return shlex.quote(os.fspath(path))
