"""`bayesnde slurm` and arrays in `status`, with short scripts in place of sbatch and squeue."""

import json
import os
import shutil
import stat
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from bayesnde_cli import cluster
from bayesnde_cli.runs.layout import RunLayout
from fake_engine import SMALL, pretend_refined, pretend_warmed

SETTINGS = [
    *("--set", "density.block_rows=8", "--set", "density.draws=4", "--set", "density.chains=2"),
    *("--set", "density.method=bridge"),
]
pytestmark = pytest.mark.usefixtures("engines")


@pytest.fixture
def run(fitted: Path, tmp_path: Path) -> Path:
    """A run that looks fitted to `status`, too."""
    run = Path(shutil.copytree(fitted, tmp_path / "run"))
    pretend_warmed(run)
    return run


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], None]:
    """Puts a shell script of some name in front of all other programs; what is called is written to NAME.txt."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")

    def put(name: str, text: str) -> None:
        path = folder / name
        path.write_text(
            f'#!/bin/bash\nprintf "%s " "$@" >> {tmp_path}/{name}.txt; echo >> {tmp_path}/{name}.txt\n{text}\n'
        )
        path.chmod(path.stat().st_mode | stat.S_IXUSR)

    put("squeue", "exit 0")
    monkeypatch.setattr(cluster, "PATIENCE_SECONDS", 20.0)  # this machine may be busy
    return put


def _name(run: Path) -> str:
    record = cluster.read_array_record(RunLayout(run), "test")
    assert record is not None
    return record.job_name


def test_the_commands_that_submit_the_scripts_are_printed(bayesnde: Callable, program: Callable, run: Path) -> None:
    outcome = bayesnde("slurm", "--run", run, *SETTINGS, "--shards", "3")
    assert outcome == (
        0,
        f"{run}/slurm/test/array.sbatch: 62 rows, 8 blocks in 3 shards\n"
        f"{run}/slurm/test/gather.sbatch: combines them\n"
        "to submit them, type\n"
        f"  sbatch {run}/slurm/test/array.sbatch\n"
        f"  sbatch --dependency=afterok:JOBID {run}/slurm/test/gather.sbatch\n",
        "",
    )
    assert bayesnde("density", "--run", run, *SMALL, "--shard", "2/3").code == 0
    again = bayesnde("slurm", "--run", run, *SETTINGS, "--shards", "3", "--array-limit", "1", "--json")
    found = json.loads(again.out)
    assert found["tasks"] == [1, 3]
    assert found["commands"][0] == f"sbatch --array=1,3%1 {run}/slurm/test/array.sbatch"
    assert bayesnde("density", "--run", run, *SMALL).code == 0
    done = bayesnde("slurm", "--run", run, *SETTINGS)
    assert done == (0, f"{run}/density/test/density.parquet is up to date\n", "")


def test_submit_submits_both_jobs(bayesnde: Callable, program: Callable, run: Path, tmp_path: Path) -> None:
    program("sbatch", 'case "$*" in *array.sbatch) echo "Welcome"; echo "11;north";; *) echo "12;north";; esac')
    outcome = bayesnde("slurm", "--run", run, *SETTINGS, "--shards", "3", "--array-limit", "2", "--submit")
    assert (outcome.code, outcome.err) == (0, "")
    assert outcome.out.endswith("submitted: array 11\nsubmitted: gather 12, after array 11\n")
    script = f"{run}/slurm/test"
    assert (tmp_path / "sbatch.txt").read_text().splitlines() == [
        f"--parsable --array=1-3%2 {script}/array.sbatch ",
        f"--parsable --dependency=afterok:11 --kill-on-invalid-dep=yes {script}/gather.sbatch ",
    ]


def test_shards_that_are_done_or_queued_are_not_submitted_again(
    bayesnde: Callable, program: Callable, run: Path, tmp_path: Path
) -> None:
    program("sbatch", "echo 11")
    command = ["slurm", "--run", run, *SETTINGS, "--shards", "4", "--submit"]
    assert bayesnde("slurm", "--run", run, *SETTINGS, "--shards", "4").code == 0
    program("squeue", f"echo 'Welcome'; echo '{_name(run)}|3|PENDING'; echo '{_name(run)}|4|RUNNING'")
    assert bayesnde("density", "--run", run, *SMALL, "--shard", "1/4").code == 0
    assert json.loads(bayesnde(*command, "--json").out)["tasks"] == [2]
    assert "--array=2 " in (tmp_path / "sbatch.txt").read_text()
    program("squeue", "".join(f"echo '{_name(run)}|{task}|PENDING';" for task in (2, 3, 4)))
    before = (tmp_path / "sbatch.txt").read_text()
    outcome = bayesnde(*command)
    assert (outcome.code, outcome.out) == (0, "density/test: all missing shards are in SLURM's queue\n")
    assert (tmp_path / "sbatch.txt").read_text() == before
    for task in (2, 3, 4):
        assert bayesnde("density", "--run", run, *SMALL, "--shard", f"{task}/4").code == 0
    assert bayesnde(*command).out.endswith("submitted: gather 11\n")
    assert (tmp_path / "sbatch.txt").read_text() == before + f"--parsable {run}/slurm/test/gather.sbatch \n"


def test_without_sbatch_nothing_is_written(
    bayesnde: Callable, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert bayesnde("slurm", "--run", run, *SETTINGS, "--submit") == (
        2,
        "",
        "error: --submit needs SLURM, which is not installed here\n  no sbatch in $PATH\nhint: run the command on a "
        "login node of the cluster, or leave out --submit and submit the scripts there\n",
    )
    assert not (run / "slurm").exists()
    assert not (run / "density").exists()


def test_a_refusal_of_sbatch_is_quoted(bayesnde: Callable, program: Callable, run: Path) -> None:
    program("sbatch", 'echo "sbatch: error: invalid partition specified: gpu" >&2; exit 1')
    command = ["slurm", "--run", run, *SETTINGS, "--submit"]
    hint = "hint: change the options of `bayesnde slurm`, or the #SBATCH lines of its --setup, and submit again\n"
    assert bayesnde(*command) == (
        2,
        "",
        f"error: SLURM refused {run}/slurm/test/array.sbatch\n  sbatch: error: invalid partition specified: gpu\n"
        + hint,
    )
    program("sbatch", 'case "$*" in *array.sbatch) echo 11;; *) exit 1;; esac')
    assert bayesnde(*command).err == (
        f"error: SLURM refused {run}/slurm/test/gather.sbatch\n  exit code 1\n"
        "  the array was submitted as 11; `scancel 11` cancels it\n" + hint
    )


def test_rows_that_only_this_process_can_read_are_refused(bayesnde: Callable, run: Path, tmp_path: Path) -> None:
    hint = "hint: write the rows to a file that the nodes of the cluster can read, and give its path\n"
    assert bayesnde("slurm", "-", "--run", run).err == f"error: a job cannot read -\n  standard input\n{hint}"
    os.mkfifo(tmp_path / "pipe")
    refused = bayesnde("slurm", tmp_path / "pipe", "--run", run)
    assert refused == (2, "", f"error: a job cannot read {tmp_path}/pipe\n  a folder or a pipe\n{hint}")


def test_another_division_and_other_settings_are_refused_before_anything_is_submitted(
    bayesnde: Callable, program: Callable, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"ID": "1", "COUNT": "4", "MIN": "1", "MAX": "4"}.items():
        monkeypatch.setenv(f"SLURM_ARRAY_TASK_{name}", value)
    assert bayesnde("density", "--run", run, *SMALL, "--shard", "auto").code == 0
    refused = bayesnde("slurm", "--run", run, *SETTINGS, "--shards", "3")
    assert refused.code == 2
    assert refused.err.startswith("error: density/test is divided into 4 shards, not 3\n")
    assert not (run / "slurm").exists()
    assert ", 8 blocks in 4 shards, 2 blocks done, missing 2-4\n" in bayesnde("slurm", "--run", run, *SETTINGS).out
    refused = bayesnde("slurm", "--run", run, *SETTINGS, "--set", "density.draws=5")
    assert (refused.code, refused.err) == (
        2,
        "error: density/test was made with other settings or data\n  settings.draws: 4 -> 5\n"
        f"hint: run `bayesnde slurm --run {run} --restart` with the same options to make it again, or keep it "
        "and use another run directory with `--run OTHER`\n",
    )
    name = _name(run)
    again = bayesnde("slurm", "--run", run, *SETTINGS, "--set", "density.draws=5", "--restart", "--shards", "20")
    assert ", 8 blocks in 8 shards\n" in again.out  # the division went with the blocks
    assert again.err == "8 blocks of 8 rows cannot make more shards\n"
    assert _name(run) != name  # what is in the queue with the old settings does not count
    assert "--restart" not in (run / "slurm/test/array.sbatch").read_text()  # once is enough


def test_status_shows_the_queue_and_the_command_that_submits_the_rest(
    bayesnde: Callable, program: Callable, run: Path, tmp_path: Path
) -> None:
    def status() -> tuple[dict, dict, str]:
        found = json.loads(bayesnde("status", "--run", run, "--json").out)
        (stage,) = [item for item in found["stages"] if item["stage"] == "density"]
        return stage, found["arrays"][0], found["next"]

    assert bayesnde("slurm", "--run", run, *SETTINGS, "--array-limit", "5").code == 0
    name = _name(run)
    for task in (1, 2, 4, 8):
        assert bayesnde("density", "--run", run, *SMALL, "--shard", f"{task}/8").code == 0
    script = f"{run}/slurm/test"
    program("squeue", f"echo '{name}|5|RUNNING'; echo '{name}|6|PENDING'; echo 'other|7|RUNNING'")
    text = bayesnde("status", "--run", run).out
    assert (
        "array of density/test: missing 3,5-7; running 5; pending 6\n"
        "  to resume:\n"
        f"    sbatch --array=3,7%5 {script}/array.sbatch\n"
        f"    sbatch --dependency=afterok:JOBID {script}/gather.sbatch\n"
        f"next: sbatch --array=3,7%5 {script}/array.sbatch\n"
    ) in text
    asked = f"--noheader --array --name={name},{name}-gather --format=%j|%K|%T "
    assert (tmp_path / "squeue.txt").read_text().splitlines()[-1] == asked
    stage, array, _ = status()
    assert (stage["state"], stage["shards_done"], stage["shards_missing"]) == ("interrupted", 4, [3, 5, 6, 7])
    assert (array["missing"], array["running"], array["pending"], array["problem"]) == ([3, 5, 6, 7], [5], [6], None)
    program(
        "squeue",
        "".join(f"echo '{name}|{task}|REQUEUED';" for task in (3, 5, 6, 7)) + f"echo '{name}-gather|N/A|PENDING'",
    )
    stage, array, following = status()
    assert (stage["state"], stage["detail"], following) == ("queued", "in SLURM's queue", "wait for density/test")
    assert (array["is_gathering"], array["commands"]) == (True, [])
    for task in (3, 5, 6, 7):
        assert bayesnde("density", "--run", run, *SMALL, "--shard", f"{task}/8").code == 0
    program("squeue", "exit 0")
    stage, array, following = status()
    assert (array["missing"], following) == ([], f"bayesnde density --run {run}")
    assert "array of density/test: all shards done\nnext: " in bayesnde("status", "--run", run).out
    assert bayesnde("density", "--run", run, *SMALL).code == 0
    assert json.loads(bayesnde("status", "--run", run, "--json").out)["arrays"] == []


@pytest.mark.parametrize(
    ("squeue", "problem"),
    [
        ("sleep 5 & wait", "squeue did not answer in time"),  # a wrapper, whose child holds its output open
        ('echo "slurm_load_jobs error: Unable to contact" >&2; exit 1', "slurm_load_jobs error: Unable to contact"),
        ("exit 3", "squeue: exit code 3"),
        (None, "there is no squeue here"),
    ],
)
def test_status_does_not_wait_for_a_scheduler_that_does_not_answer(
    squeue: str | None, problem: str, program: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if squeue is None:
        monkeypatch.setenv("PATH", str(tmp_path))
    else:
        program("squeue", squeue)
    patience = 0.1 if "in time" in problem else 20.0
    started = time.monotonic()
    assert cluster.read_queue(["name"], patience=patience) == ({}, problem)
    assert squeue != "sleep 5 & wait" or time.monotonic() - started < 4.0
    assert cluster.ArrayStatus("test", (1, 2), problem=problem).is_queued is False
    assert str(cluster.ArrayStatus("test", (1, 2), problem=problem)) == f"array of density/test: missing 1-2; {problem}"


def test_scripts_of_a_run_that_was_moved_are_not_offered(bayesnde: Callable, program: Callable, run: Path) -> None:
    assert bayesnde("slurm", "--run", run, *SETTINGS).code == 0
    copy = Path(shutil.copytree(run, run.with_name("copy")))
    for place in (copy, run.rename(run.with_name("moved"))):
        text = bayesnde("status", "--run", place).out
        assert (
            f"array of density/test: missing 1-8; its scripts are for {run}\n  to resume:\n"
            f"    bayesnde slurm --run {place}\n"
        ) in text
        assert "sbatch" not in text


@pytest.mark.parametrize("text", ["", '{"schema_version": 9}'])
def test_a_damaged_record_of_an_array_is_named(text: str, bayesnde: Callable, program: Callable, run: Path) -> None:
    assert bayesnde("slurm", "--run", run, *SETTINGS).code == 0
    record = run / "slurm/test/array.json"
    record.write_text(text)
    what = f"{record} has another format version" if "9" in text else f"{record} is damaged"
    outcome = bayesnde("status", "--run", run)
    assert f"array of density/test: {what}\n  to resume:\n    bayesnde slurm --run {run}\n" in outcome.out
    assert bayesnde("slurm", "--run", run, *SETTINGS).code == 0
    assert f"next: sbatch --array=1-8 {run}/slurm/test/array.sbatch\n" in bayesnde("status", "--run", run).out


def test_a_model_that_has_changed_is_named_with_the_way_out(bayesnde: Callable, program: Callable, run: Path) -> None:
    assert bayesnde("slurm", "--run", run, *SETTINGS).code == 0
    pretend_refined(run, b"others!")
    refused = bayesnde("slurm", "--run", run, *SETTINGS)
    assert refused.code == 3
    assert refused.err.endswith(f"hint: run `bayesnde slurm --run {run} --restart`\n")
