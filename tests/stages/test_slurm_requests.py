"""What is asked of SLURM: times as sbatch spells them, what cannot be, and the user's setup."""

from pathlib import Path

import pytest

from bayesnde_cli.errors import BadUsage
from bayesnde_cli.stages.slurm.requests import Request, read_setup


@pytest.mark.parametrize(
    ("time", "seconds"),
    [
        ("90", 5400),
        ("12:30", 750),
        ("02:00:00", 7200),
        ("2-12", 216_000),
        ("1-00:30", 88_200),
        ("1-00:00:01", 86_401),
    ],
)
def test_a_time_is_read_as_sbatch_reads_it(time: str, seconds: int) -> None:
    assert Request(time=time).seconds == seconds


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"time": "two hours"},
            "error: --time two hours is not a time\n  SLURM has no such spelling\nhint: write HH:MM:SS, or minutes",
        ),
        (
            {"time": "9:59"},
            "error: --time 9:59 is too short\n"
            "  a task is told to stop 180 s before its time is over, and maybe a minute earlier\n"
            "hint: give 10 minutes at least; a task that runs out of time goes back into the queue, and goes on",
        ),
        ({"shards": 0}, "error: --shards must be 1 at least\n  --shards 0\nhint: give a number"),
        ({"gpus_per_task": -1}, "error: --gpus-per-task must be 0 at least\n  --gpus-per-task -1\nhint: give a number"),
        ({"array_limit": 0}, "error: --array-limit must be 1 at least\n  --array-limit 0\nhint: give a number"),
        (
            {"partition": "gpu\n#SBATCH --x"},
            "error: --partition is one word\n  --partition 'gpu\\n#SBATCH --x'\n"
            "hint: see the names with `sinfo` or `sacctmgr`",
        ),
    ],
)
def test_what_cannot_be_is_refused(options: dict, message: str) -> None:
    with pytest.raises(BadUsage) as caught:
        Request(**options)
    assert str(caught.value) == message


def test_a_setup_gives_its_commands_and_its_lines_for_sbatch(tmp_path: Path) -> None:
    path = tmp_path / "setup.sh"
    path.write_bytes(b"#!/bin/bash\r\n#SBATCH --mem=8G\r\n\r\nmodule load cuda\r\n#SBATCH --qos=long\r\n# a remark\r\n")
    setup = read_setup(path)
    assert setup.directives == ("#SBATCH --mem=8G", "#SBATCH --qos=long")
    assert setup.text == "module load cuda\n# a remark"


def test_a_setup_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadUsage) as caught:
        read_setup(tmp_path / "none.sh")
    assert str(caught.value) == (
        f"error: the setup file {tmp_path}/none.sh cannot be read\n  No such file or directory\n"
        "hint: give a file of shell commands, for instance `module load …`, with --setup"
    )
