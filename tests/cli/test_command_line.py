"""Rules that hold for every command: where results go, exit codes, help, colour, completion."""

import json
import os
import pty
import re
import resource
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from bayesnde_cli.cli.main import COMMANDS, command


def _shell(
    *arguments: str, cwd: Path | None = None, more: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """A command line in a process of its own, with more variables in its environment."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("BAYESNDE", "NO_COLOR"))}
    command = [sys.executable, "-m", "bayesnde_cli", *arguments]
    return subprocess.run(command, env=environ | dict(more or {}), capture_output=True, text=True, cwd=cwd)


def test_help_lists_the_commands_and_each_has_an_example(bayesnde: Callable) -> None:
    top = bayesnde("--help")
    assert top.code == 0
    assert "Example:\n    bayesnde fit data.csv\n" in top.out
    for name in COMMANDS:
        assert f"  {name} " in top.out
        page = bayesnde(name, "--help")
        assert page.code == 0
        assert f"Example:\n    bayesnde {name}" in page.out
        assert not re.search("<[a-z]", page.out)  # no types of Python


@pytest.mark.parametrize("name", COMMANDS)
def test_the_list_of_commands_has_their_own_first_lines(name: str) -> None:
    assert (command(name).__doc__ or "").split("\n")[0] == COMMANDS[name]


def test_help_shows_the_defaults_of_the_config(bayesnde: Callable) -> None:
    page = " ".join(bayesnde("prepare", "--help").out.split())
    assert "(auto | marginal | standard | minmax | logit | none) [default: auto]" in page
    assert "[default: 0.81,0.09,0.1]" in page
    for option in ("--condition", "--outlier-label", "--split-column", "--preset", "--config", "--restart", "--json"):
        assert option in page


@pytest.mark.parametrize(
    ("arguments", "most_seconds"),
    [(["--help"], 0.4), (["status", "--run", "r"], 0.8)],  # typer loads pydantic for a command that takes options
    ids=["help", "status"],
)
def test_help_and_status_answer_quickly(
    arguments: list[str], most_seconds: float, bayesnde: Callable, examples: Path, tmp_path: Path
) -> None:
    # Processor time, not wall time: other processes on the machine must not fail this test.
    assert bayesnde("prepare", examples / "faithful.csv", "--scale", "none", "--run", tmp_path / "r").code == 0
    seconds = []
    for _ in range(3):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        assert _shell(*arguments, cwd=tmp_path).returncode == 0
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        seconds.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    assert min(seconds) < most_seconds


def test_the_version_is_a_result(bayesnde: Callable) -> None:
    from bayesnde_cli import __version__

    assert bayesnde("--version") == (0, f"bayesnde {__version__}\n", "")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["simulate", "involut"],
            "error: there is no simulator 'involut'\n"
            "  simulators: involute, gmm, linear-gaussian, moons, checkerboard, rings\n"
            "hint: did you mean 'involute'?\n",
        ),
        (
            ["simulate", "moons", "--dim", "3"],
            "error: the simulator 'moons' has no option --dim\n  --dim belongs to: gmm, linear-gaussian\n"
            "hint: leave --dim out\n",
        ),
        (
            ["simulate", "gmm", "--rows", "0"],
            "error: --rows is out of range\n  found 0\nhint: choose 1 or more\n",
        ),
        (
            ["simulate", "gmm", "--format", "xlsx"],
            "error: --format cannot be 'xlsx'\n  choices: csv, parquet, jsonl\nhint: use one of the choices\n",
        ),
    ],
)
def test_wrong_usage_is_two_with_a_way_out(arguments: list[str], message: str, bayesnde: Callable) -> None:
    assert bayesnde(*arguments) == (2, "", message)


@pytest.mark.parametrize("name", ["a file", "a link to a file"])
def test_a_run_directory_that_is_a_file_is_refused_by_every_command(
    name: str, bayesnde: Callable, examples: Path, tmp_path: Path
) -> None:
    path = tmp_path / "taken"
    path.symlink_to(examples / "faithful.csv") if name == "a link to a file" else path.write_text("mine\n")
    before = path.read_bytes()
    arguments = {"fit": ["x.csv"], "prepare": ["x.csv"], "sample": ["5"], "grid": ["a", "b"]}
    for command_name in COMMANDS:
        if command_name != "simulate":
            assert bayesnde(command_name, *arguments.get(command_name, []), "--run", path) == (
                2,
                "",
                f"error: the run directory {path} is a file\n  a file, not a directory\n"
                "hint: name another directory with --run DIR; it is created if it does not exist\n",
            )
    assert path.read_bytes() == before


def test_no_arguments_show_the_help_and_are_wrong_usage() -> None:
    done = _shell()
    assert done.returncode == 2
    assert "Usage: bayesnde" in done.stdout + done.stderr


def test_a_bug_of_ours_keeps_its_traceback_and_is_one(
    bayesnde: Callable, monkeypatch: pytest.MonkeyPatch, examples: Path, tmp_path: Path
) -> None:
    def broken(*arguments: object, **options: object) -> None:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr("bayesnde_cli.stages.prepare.run_prepare", broken)
    outcome = bayesnde("prepare", examples / "faithful.csv", "--run", tmp_path / "r")
    assert outcome.code == 1
    assert outcome.err.startswith("error: this is a bug in bayesnde")
    assert "ZeroDivisionError: a bug" in outcome.err


def test_the_run_directory_is_the_flag_else_the_environment_else_run(
    bayesnde: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert bayesnde("status").out.startswith("run directory: run\n")
    monkeypatch.setenv("BAYESNDE_RUN", "from-env")
    assert bayesnde("status").out.startswith("run directory: from-env\n")
    assert bayesnde("status", "--run", "flag").out.startswith("run directory: flag\n")


def test_json_is_the_only_thing_on_stdout(bayesnde: Callable, examples: Path, tmp_path: Path) -> None:
    options = ["--condition", "class", "--scale", "none", "--run", tmp_path / "r", "--json"]
    outcome = bayesnde("prepare", examples / "vehicle.csv", *options)
    result = json.loads(outcome.out)
    assert result["n_features"] == 18
    assert result["n_train"] + result["n_validation"] + result["n_test"] == 846
    assert result["is_up_to_date"] is False
    quiet = bayesnde("prepare", examples / "faithful.csv", "--scale", "none", "--run", tmp_path / "q", "--quiet")
    assert quiet.err.count("\n") == quiet.err.count("warning: ")


def test_without_a_terminal_there_is_no_colour_and_no_bar(bayesnde: Callable, tmp_path: Path) -> None:
    outcome = bayesnde("simulate", "gmm", "--rows", "700", "--out", tmp_path / "g.csv")
    assert "\x1b" not in outcome.err
    assert outcome.err == f"{tmp_path}/g.csv: 700 rows, 2 columns and true_log_density\n"


def _on_a_terminal(*arguments: str, cwd: Path, **environ: str) -> tuple[int, str]:
    """Exit code of a command line whose stderr is a terminal, and what the terminal shows."""
    master, slave = pty.openpty()
    command = [sys.executable, "-m", "bayesnde_cli", *arguments]
    process = subprocess.Popen(command, env={**os.environ, **environ}, stdout=slave, stderr=slave, cwd=cwd)
    os.close(slave)
    shown = b""
    with suppress(OSError):  # Linux ends a terminal without writers by an error
        while piece := os.read(master, 4096):
            shown += piece
    os.close(master)
    return process.wait(), shown.decode(errors="replace")


@pytest.mark.parametrize(("no_color", "has_colour"), [("", True), ("1", False)])
def test_on_a_terminal_colour_respects_no_color(no_color: str, has_colour: bool, tmp_path: Path) -> None:
    code, shown = _on_a_terminal("prepare", "none.csv", cwd=tmp_path, NO_COLOR=no_color)
    assert code == 2
    assert ("\x1b[31merror:" in shown) is has_colour
    assert "none.csv does not exist" in shown


def test_a_terminal_sees_progress_bars(tmp_path: Path) -> None:
    code, shown = _on_a_terminal("simulate", "gmm", "--rows", "70000", "--out", "g.parquet", cwd=tmp_path)
    assert code == 0
    assert "simulating" in shown


def _lines(times: list[float], steps: list[int], capsys: pytest.CaptureFixture[str], monkeypatch: Any) -> str:
    """What is told of steps that end at these times; the work begins at 0."""
    from bayesnde_cli.cli import console

    clock = iter([0.0, *times])
    monkeypatch.setattr(console.time, "monotonic", lambda: next(clock))
    with console.Console().progress("writing", 100, "rows") as advance:
        for done in steps:
            advance(done)
    return capsys.readouterr().err


def test_logs_see_lines_with_the_time_left(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    lines = _lines([5.0, 7.0, 12.0, 13.0], [10, 10, 10, 10], capsys, monkeypatch)
    assert lines == "writing: 30 of 100 rows, 35 s left\n"


def test_neither_earlier_work_nor_a_compiler_counts_in_the_time_left(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # 50 rows were there, the next one waited 40 s for a compiler, then a row takes 4 s.
    lines = _lines([0.0, 40.0, 44.0, 48.0, 52.0], [50, 1, 1, 1, 1], capsys, monkeypatch)
    assert lines == "writing: 51 of 100 rows\nwriting: 54 of 100 rows, 3 min 4 s left\n"


def test_the_bar_tells_the_same_time_left(monkeypatch: pytest.MonkeyPatch) -> None:
    import rich.progress

    from bayesnde_cli.cli import console

    now, bars = [0.0], []

    class Timed(rich.progress.Progress):
        def __init__(self, *columns: Any, **options: Any) -> None:
            super().__init__(*columns, get_time=lambda: now[0], disable=True, **options)
            bars.append(self)

    monkeypatch.setattr(rich.progress, "Progress", Timed)
    with console._bar(console.Console().err, "writing", 100, "rows") as advance:
        left = []
        for time, done in ((0.0, 50), (40.0, 1), (44.0, 1), (48.0, 1), (52.0, 1)):
            now[0] = time
            advance(done)
            left.append(bars[0].tasks[0].time_remaining)
    assert bars[0].tasks[0].completed == 54
    assert left == [None, None, None, 188, 184]


def test_a_pipe_that_closes_is_no_error() -> None:
    command = f"{sys.executable} -m bayesnde_cli simulate gmm --rows 70000 | head -n 2; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True)
    lines = done.stdout.splitlines()
    assert lines[0] == "x1,x2,true_log_density"
    assert lines[2] == "0"
    assert done.stderr == ""


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_shell_completes_commands(shell: str) -> None:
    environ = {
        "_BAYESNDE_COMPLETE": f"complete_{shell}",
        "COMP_WORDS": "bayesnde st",
        "COMP_CWORD": "1",
        "_TYPER_COMPLETE_ARGS": "bayesnde st",
        "_TYPER_COMPLETE_FISH_ACTION": "get-args",
    }
    assert "status" in _shell(more=environ).stdout


def test_control_characters_are_spelled_out() -> None:
    from bayesnde_cli.cli.console import printable

    assert printable("a\x1b[31m\x07\r\x9b·é\n\tz") == "a\\x1b[31m\\x07\\r\\x9b·é\n\tz"


@pytest.mark.parametrize("redirection", ["2>&1 | true", ">&- 2>&- <&-"])
def test_a_stage_is_finished_whoever_reads_its_output(redirection: str, examples: Path, tmp_path: Path) -> None:
    command = f"{sys.executable} -m bayesnde_cli prepare {examples}/faithful.csv --scale none --run {tmp_path}/r"
    script = f"{command} {redirection}; echo ${{PIPESTATUS[0]}} > {tmp_path}/code"
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True)
    assert (tmp_path / "code").read_text() == "0\n", done.stderr
    assert (tmp_path / "r/prepare/manifest.json").exists()


@pytest.mark.parametrize("format", ["csv", "parquet"])
def test_a_table_for_a_closed_stdout_goes_nowhere(format: str) -> None:
    command = f"{sys.executable} -m bayesnde_cli simulate gmm -q --format {format} >&-"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("arguments", [("status",), ("simulate", "gmm")])
def test_a_full_disk_behind_stdout_is_no_bug_of_ours(arguments: tuple[str, ...], tmp_path: Path) -> None:
    if not Path("/dev/full").is_char_device():
        pytest.skip("no /dev/full here")
    with open("/dev/full", "w") as full:
        command = [sys.executable, "-m", "bayesnde_cli", *arguments]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, cwd=tmp_path)
    assert done.returncode == 2
    assert (
        done.stderr
        == "error: cannot write the output\n  No space left on device\nhint: free some space and run again\n"
    )


def test_a_name_that_the_terminal_cannot_show_is_spelled_out(tmp_path: Path) -> None:
    done = _shell("prepare", "é.csv", cwd=tmp_path, more={"PYTHONIOENCODING": "ascii"})
    assert done.returncode == 2
    assert done.stderr.startswith("error: \\xe9.csv does not exist\n")
