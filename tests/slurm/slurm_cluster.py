"""Commands of a real SLURM, and runs whose jobs compute with the stand-in for the engine."""

import json
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import fake_engine
from bayesnde_cli.cluster import read_array_record
from bayesnde_cli.runs.layout import RunLayout

SETTINGS = [
    *("--set", "density.block_rows=8", "--set", "density.draws=4", "--set", "density.chains=2"),
    *("--set", "density.method=bridge"),
]
# Long enough for a machine that is busy with other tests.
PATIENCE_SECONDS = 120.0


def asked(*command: object) -> str:
    """What a command of SLURM, or of a shell, answers."""
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True)
    assert done.returncode == 0, (command, done.stderr)
    return done.stdout.strip()


def wait_until(is_so: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not is_so():
        assert time.monotonic() < deadline, f"timed out waiting for {what}\n{asked('squeue', '-r')}"
        time.sleep(0.1)


def wait_for_end(*jobs: str) -> None:
    """Until SLURM has none of the jobs in its queue."""
    known = ",".join(jobs)
    wait_until(lambda: not asked("squeue", "--noheader", f"--jobs={known}"), f"the end of {known}")


def states(job: str) -> set[str]:
    """The states of a job, or of the tasks of an array."""
    return set(re.findall(r"JobState=(\w+)", asked("scontrol", "show", "job", job)))


def fake_if(condition: str, **fake: object) -> str:
    """A line of a setup: under a condition of the shell the stand-in is told something."""
    return f"if {condition}; then fake={shlex.quote(json.dumps(fake))}; fi\n"


class Cluster:
    """`bayesnde slurm` on a run, whose jobs compute with the stand-in for the engine."""

    def __init__(self, run: Path, bayesnde: Callable) -> None:
        self.run, self.bayesnde = run, bayesnde

    def script(self, name: str) -> Path:
        return self.run / "slurm/test" / f"{name}.sbatch"

    def write(self, *options: str, before: str = "", **fake: object) -> str:
        """Writes the jobs; `before` is what their setup does before it chooses the program. The command's output."""
        program = f'bayesnde=({shlex.join([sys.executable, fake_engine.__file__])} "$fake")'
        setup = self.run.parent / "setup.sh"
        setup.write_text(fake_if("true", **fake) + f"{before}\n{program}\n")
        resources = ["--cpus-per-task", "1", "--setup", setup]
        outcome = self.bayesnde("slurm", "--run", self.run, *SETTINGS, *resources, *options)
        assert outcome.code == 0, outcome.err
        return str(outcome.out)

    def submit(self, name: str = "array", *options: str) -> str:
        """The number of the job that a script becomes."""
        return asked("sbatch", "--parsable", *options, self.script(name))

    def gather(self, *arrays: str) -> None:
        """Puts the shards together after some arrays, and waits for it."""
        dependency = [f"--dependency=afterok:{':'.join(arrays)}"] if arrays else []
        wait_for_end(self.submit("gather", *dependency))

    def logs(self) -> str:
        return "".join(path.read_text() for path in sorted((self.run / "slurm/test/log").iterdir()))

    def blocks(self) -> set[str]:
        return {path.name for path in (self.run / "density/test").glob("block-*")}

    def status(self) -> dict:
        """What `status` says of the array."""
        (array,) = json.loads(self.bayesnde("status", "--run", self.run, "--json").out)["arrays"]
        return dict(array)

    def cancel(self) -> None:
        """Ends what a test that failed has left in the queue."""
        record = read_array_record(RunLayout(self.run), "test")
        for name in (record.job_name, record.gather_name) if record else ():
            asked("scancel", f"--name={name}")

    def is_equal_to(self, reference: bytes) -> bool:
        """Whether the table is that of a single process, and nothing half-finished is left beside it."""
        folder = self.run / "density/test"
        assert not list(folder.glob(".claim-*")) + list(folder.glob(".tmp-*"))
        return (folder / "density.parquet").read_bytes() == reference
