"""The script of an array as bash runs it: paths of any kind, signals, exit codes, and when a task is requeued."""

import contextlib
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import fake_engine
from bayesnde_cli.settings.stage_settings import SlurmRequest
from scoring_runs import SMALL, other_set, table_bytes

SETTINGS = [
    *("--set", "density.block_rows=8", "--set", "density.draws=4", "--set", "density.chains=2"),
    *("--set", "density.method=bridge"),
]
# What every character of the shell and of sbatch is in: blanks, quotes, dollars, percents, hashes, backticks.
ODD = 'o d\'d "$HOME" `id` $(id) 50%a #x; & é *'
# In the place of bayesnde: tells that it is there, makes a block if told so, and waits for a signal.
STUB = """#!/bin/bash
trap 'exit 75' USR1 TERM
[ "$1" = makes-a-block ] && touch "$2/block-00000.parquet"
touch "$2/ready"
[ "$3" = listens ] || exit "$3"
while :; do sleep 0.02; done
"""


def _environ(tmp_path: Path, task: int = 1) -> dict[str, str]:
    """The environment of a task, with a scontrol that writes down its arguments, and short sleeps."""
    bin_folder = tmp_path / "bin"
    bin_folder.mkdir(exist_ok=True)
    scontrol = f'echo "$@" >> {shlex.quote(str(tmp_path))}/scontrol.txt'
    for name, text in (("scontrol", scontrol), ("sleep", f"exec {shutil.which('sleep')} 0.02")):
        (bin_folder / name).write_text(f"#!/bin/sh\n{text}\n")
        (bin_folder / name).chmod(0o755)
    return {
        **os.environ,
        "PATH": f"{bin_folder}:{os.environ['PATH']}",
        "SLURM_ARRAY_JOB_ID": "77",
        "SLURM_ARRAY_TASK_ID": str(task),
        "SLURM_CPUS_PER_TASK": "1",
    }


def _setup(tmp_path: Path, *program: str) -> Path:
    path = tmp_path / "setup.sh"
    path.write_text(f"set -eu\nbayesnde=({shlex.join(program)})\n")
    return path


def test_paths_and_settings_of_any_kind_reach_bayesnde(
    bayesnde: Callable, engines: list, fitted: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / ODD
    place.mkdir()
    run, data = Path(shutil.copytree(fitted, place / "run")), place / "n'ew $1.csv"
    calm = Path(shutil.copytree(fitted, tmp_path / "calm"))
    data.write_text("a,b,n,k\n" + "".join(f"0.{index},1.5,{index % 5},{'uv'[index % 2]}\n" for index in range(20)))
    assert bayesnde("density", data, "--run", calm, *SMALL).code == 0
    setup = _setup(tmp_path, sys.executable, fake_engine.__file__, "{}")
    monkeypatch.chdir(place)
    outcome = bayesnde("slurm", "n'ew $1.csv", "--run", "run", *SETTINGS, "--shards", "1", "--setup", setup)
    assert outcome.code == 0, outcome.err
    folder = run / "slurm" / other_set(run)
    monkeypatch.setenv("BAYESNDE_DENSITY_DRAWS", "5")  # of the shell that submits: it must not count
    for task, script in ((1, "array"), (0, "gather")):
        command = ["bash", str(folder / f"{script}.sbatch")]
        done = subprocess.run(command, env=_environ(tmp_path, task), cwd="/", capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
    assert table_bytes(run, other_set(run)) == table_bytes(calm, other_set(calm))
    assert not (tmp_path / "scontrol.txt").exists()


@pytest.fixture
def script(bayesnde: Callable, engines: list, run: Path, tmp_path: Path) -> Callable[..., Path]:
    """Writes the script of an array whose bayesnde is the stub."""

    def write(*words: str) -> Path:
        (tmp_path / "stub").write_text(STUB)
        makes_block, ending = words
        setup = _setup(tmp_path, "bash", str(tmp_path / "stub"), makes_block, str(run / "density/test"), ending)
        assert bayesnde("slurm", "--run", run, *SETTINGS, "--setup", setup).code == 0
        return run / "slurm/test/array.sbatch"

    return write


def _has_traps(pid: int) -> bool:
    (caught,) = re.findall(r"SigCgt:\s+([0-9a-f]+)", Path(f"/proc/{pid}/status").read_text())
    return all(int(caught, 16) >> (number - 1) & 1 for number in (signal.SIGUSR1, signal.SIGTERM))


@pytest.mark.parametrize(
    ("words", "sent", "code", "is_requeued"),
    [
        (("makes-a-block", "listens"), "USR1", 75, True),
        (("makes-no-block", "listens"), "USR1", 75, False),  # it would come back for ever
        (("makes-a-block", "listens"), "TERM", 75, False),  # cancelled, or SLURM puts it back
        (("makes-a-block", "4"), None, 4, False),
    ],
)
def test_a_task_is_requeued_if_it_ran_out_of_time_and_got_on(
    words: tuple, sent: str | None, code: int, is_requeued: bool, script: Callable, run: Path, tmp_path: Path
) -> None:
    path = script(*words)
    process = subprocess.Popen(
        ["bash", str(path)], env=_environ(tmp_path, 3), stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        if sent is not None:
            deadline = time.monotonic() + 20.0
            while not ((run / "density/test/ready").exists() and _has_traps(process.pid)):
                assert time.monotonic() < deadline
                time.sleep(0.01)
            if sent == "USR1":  # to the shell alone, as B: says
                process.send_signal(signal.SIGUSR1)
            else:  # to every process, as SLURM does
                os.killpg(process.pid, signal.SIGTERM)
        _, err = process.communicate(timeout=20.0)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode == code, err
    told = tmp_path / "scontrol.txt"
    assert (told.read_text() if told.exists() else None) == ("requeue 77_3\n" if is_requeued else None)
    stuck = "no block was finished within the time limit: submit it again with more --time\n"
    assert (stuck in err) is (sent == "USR1" and not is_requeued)


def test_the_scripts_ask_for_what_was_asked(bayesnde: Callable, engines: list, run: Path, tmp_path: Path) -> None:
    (tmp_path / "setup.sh").write_bytes(
        b"#!/bin/bash\r\n#SBATCH --mem=8G\r\n\r\nmodule load cuda\r\n#SBATCH --qos=q\r\n"
    )
    options = ["--shards", "6", "--array-limit", "2", "--gpus-per-task", "1", "--cpus-per-task", "3", "--time", "30"]
    options += ["--partition", "gpu", "--account", "lab", "--setup", str(tmp_path / "setup.sh")]
    assert bayesnde("slurm", "--run", run, *SETTINGS, *options).code == 0
    array, gather = ((run / f"slurm/test/{name}.sbatch").read_text() for name in ("array", "gather"))
    folder = run / "slurm/test"
    name = re.search(r"--job-name=(bayesnde-test-[0-9a-f]{8})\n", array)
    assert name is not None
    both = ["--time=30", "--partition=gpu", "--account=lab"]
    last = ["--requeue", "--open-mode=append", "--mem=8G", "--qos=q"]
    array_lines = [f"--job-name={name[1]}", "--array=1-6%2", "--ntasks=1", "--cpus-per-task=3", "--gpus-per-task=1"]
    array_lines += [*both, f"--output={folder}/log/array-%A_%a.log", "--signal=B:USR1@180", *last]
    gather_lines = [f"--job-name={name[1]}-gather", "--ntasks=1", "--cpus-per-task=1", *both]
    gather_lines += [f"--output={folder}/log/gather-%j.log", "--kill-on-invalid-dep=yes", *last]
    for script, expected in ((array, array_lines), (gather, gather_lines)):
        lines = [line.removeprefix("#SBATCH ") for line in script.splitlines() if line.startswith("#SBATCH")]
        assert lines == expected
    command = f'"${{bayesnde[@]}}" density --run {run} \\\n  --threads "$SLURM_CPUS_PER_TASK" --chains 2 --draws 4 '
    command += "--block-rows 8 --method bridge --device gpu"
    assert f'{command} \\\n  --shard "$SLURM_ARRAY_TASK_ID/6" &\n' in array
    assert gather.endswith(f"\nexec {command}\n")
    assert "\nmodule load cuda\n" in gather
    assert (folder / "log").is_dir()  # SLURM does not make it


@pytest.mark.parametrize(
    ("time", "seconds"),
    [("90", 5400), ("12:30", 750), ("02:00:00", 7200), ("2-12", 216_000), ("1-00:30", 88_200), ("1-00:00:01", 86_401)],
)
def test_a_time_is_read_as_sbatch_reads_it(time: str, seconds: int) -> None:
    assert SlurmRequest(time=time).seconds == seconds


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            ["--time", "two hours"],
            "--time two hours is not a time\n  SLURM has no such spelling\nhint: write HH:MM:SS, or minutes",
        ),
        (
            ["--time", "9:59"],
            "--time 9:59 is too short\n"
            "  a task is told to stop 180 s before its time limit, and maybe a minute earlier\n"
            "hint: give at least 10 minutes; a task that runs out of time is requeued and resumes",
        ),
        (["--shards", "0"], "--shards is too small\n  found: 0, smallest: 1\nhint: Tasks in the array."),
        (
            ["--partition", "gpu\n#SBATCH --x"],
            "--partition must be one word\n  --partition 'gpu\\n#SBATCH --x'\n"
            "hint: see the names with `sinfo` or `sacctmgr`",
        ),
        (
            ["--setup", "none.sh"],
            "the setup file none.sh cannot be read\n  No such file or directory\n"
            "hint: give a file of shell commands, for instance `module load …`, with --setup",
        ),
    ],
)
def test_a_request_that_slurm_cannot_meet_is_refused(
    options: list[str], message: str, bayesnde: Callable, engines: list, run: Path
) -> None:
    assert bayesnde("slurm", "--run", run, *SETTINGS, *options) == (2, "", f"error: {message}\n")
    assert not (run / "slurm").exists()
