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
from scoring_runs import SMALL, other_set, table_bytes

SETTINGS = ["--set", "density.block_rows=8", "--set", "density.draws=4", "--set", "density.chains=2"]
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
    """What SLURM gives a task, with a scontrol that writes down what it is told."""
    bin_folder = tmp_path / "bin"
    bin_folder.mkdir(exist_ok=True)
    scontrol = bin_folder / "scontrol"
    scontrol.write_text(f'#!/bin/sh\necho "$@" >> {shlex.quote(str(tmp_path))}/scontrol.txt\n')
    scontrol.chmod(0o755)
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
    outcome = bayesnde("slurm", "n'ew $1.csv", "--run", "run", *SETTINGS, "--shards", "2", "--setup", setup)
    assert outcome.code == 0, outcome.err
    folder = run / "slurm" / other_set(run)
    monkeypatch.setenv("BAYESNDE_DENSITY_DRAWS", "5")  # of the shell that submits: it must not count
    for task, script in ((1, "array"), (2, "array"), (0, "gather")):
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
        (("makes-a-block", "75"), None, 75, True),
        (("makes-a-block", "4"), None, 4, False),
        (("makes-a-block", "0"), None, 0, False),
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
    stuck = "no block was finished in the time that this task had: submit it again with more --time\n"
    assert (stuck in err) is (sent == "USR1" and not is_requeued)


def test_the_script_is_for_sbatch_alone(script: Callable) -> None:
    done = subprocess.run(["bash", str(script("makes-no-block", "0"))], capture_output=True, text=True)
    assert done.returncode != 0
    assert done.stderr.endswith("SLURM_ARRAY_TASK_ID: submit this script with sbatch\n")


def test_the_scripts_ask_for_what_was_asked(bayesnde: Callable, engines: list, run: Path, tmp_path: Path) -> None:
    (tmp_path / "setup.sh").write_text("#SBATCH --mem=8G\nmodule load cuda\n")
    options = ["--shards", "6", "--array-limit", "2", "--gpus-per-task", "1", "--cpus-per-task", "3", "--time", "30",
               "--partition", "gpu", "--account", "lab", "--setup", tmp_path / "setup.sh"]  # fmt: skip
    assert bayesnde("slurm", "--run", run, *SETTINGS, *options).code == 0
    array, gather = ((run / f"slurm/test/{name}.sbatch").read_text() for name in ("array", "gather"))
    folder = run / "slurm/test"
    name = re.search(r"--job-name=(bayesnde-test-[0-9a-f]{8})\n", array)
    assert name is not None
    assert [line for line in array.splitlines() if line.startswith("#SBATCH")] == [
        f"#SBATCH --job-name={name[1]}",
        "#SBATCH --array=1-6%2",
        "#SBATCH --ntasks=1",
        "#SBATCH --cpus-per-task=3",
        "#SBATCH --gpus-per-task=1",
        "#SBATCH --time=30",
        "#SBATCH --partition=gpu",
        "#SBATCH --account=lab",
        f"#SBATCH --output={folder}/log/array-%A_%a.log",
        "#SBATCH --signal=B:USR1@180",
        "#SBATCH --requeue",
        "#SBATCH --open-mode=append",
        "#SBATCH --mem=8G",
    ]
    assert [line for line in gather.splitlines() if line.startswith("#SBATCH")] == [
        f"#SBATCH --job-name={name[1]}-gather",
        "#SBATCH --ntasks=1",
        "#SBATCH --cpus-per-task=1",
        "#SBATCH --time=30",
        "#SBATCH --partition=gpu",
        "#SBATCH --account=lab",
        f"#SBATCH --output={folder}/log/gather-%j.log",
        "#SBATCH --kill-on-invalid-dep=yes",
        "#SBATCH --requeue",
        "#SBATCH --open-mode=append",
        "#SBATCH --mem=8G",
    ]
    command = f'"${{bayesnde[@]}}" density --run {run} \\\n  --threads "$SLURM_CPUS_PER_TASK" --chains 2 --draws 4 '
    command += "--block-rows 8 --device gpu"
    assert f'{command} \\\n  --shard "$SLURM_ARRAY_TASK_ID/6" &\n' in array
    assert gather.endswith(f"\nexec {command}\n")
    assert (folder / "log").is_dir()  # SLURM does not make it


def test_a_run_directory_that_slurm_cannot_log_to_is_refused(bayesnde: Callable, engines: list, run: Path) -> None:
    odd = run.rename(run.with_name("a\\b"))
    outcome = bayesnde("slurm", "--run", odd, *SETTINGS)
    assert outcome.code == 2
    assert outcome.err == (
        "error: SLURM cannot write a log below this run directory\n"
        f"  its path has a backslash or a control character: {str(odd / 'slurm/test/log')!r}\n"
        "hint: rename the folder\n"
    )
    assert not (odd / "slurm").exists()
