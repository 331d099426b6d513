"""Ctrl-C as a user presses it: at any moment, once or twice, whatever a library makes of it."""

import os
import pty
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

STOPPED = (
    "error: stopped by SIGINT\n  nothing half-written was left behind\nhint: run the same command again to go on\n"
)


def _press(times: int = 1) -> None:
    for _ in range(times):
        signal.raise_signal(signal.SIGINT)


def _swallowing() -> None:
    """A library that goes on after any failure of its own."""
    try:
        _press()
    except Exception:
        time.sleep(60)


def _telling_another_story() -> None:
    try:
        _press()
    except BaseException as error:
        raise TypeError("unsupported callable") from error


class _Dropping:
    """Python drops exceptions that leave this."""

    def __del__(self) -> None:
        _press()


def _dropped() -> None:
    thing = _Dropping()
    del thing
    time.sleep(60)


def _twice() -> None:
    """The second press comes while the work is put away."""
    try:
        _press()
    finally:
        _press(times=2)


@pytest.mark.parametrize("work", [_press, _swallowing, _telling_another_story, _dropped, _twice])
def test_a_stop_is_a_stop(work: Callable, bayesnde: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGALRM), sys.unraisablehook
    monkeypatch.setattr("bayesnde_cli.cli.main._run", lambda *arguments: work())
    assert bayesnde("status") == (75, "", STOPPED)
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGALRM), sys.unraisablehook) == before


def _on_a_terminal(work: str) -> tuple[int, str]:
    """The exit code of a command that does `work`, and what a terminal shows; waits are short."""
    code = (
        "import ctypes, os, signal, threading, time\nfrom bayesnde_cli.cli import main, signals\n"
        "def press():\n    signal.raise_signal(signal.SIGINT)\n"
        # A program that hears nothing until it ends, as a compiled one.
        "def deaf(seconds):\n    reader, writer = os.pipe()\n"
        "    threading.Timer(seconds, os.write, (writer, b'x')).start()\n"
        "    ctypes.CDLL(None).read(reader, ctypes.create_string_buffer(1), 1)\n"
        f"def work(*arguments):\n{work}"
        "signals._ONE_PRESS, signals._PATIENCE, main._run = 0.2, 0.1, work\nmain.main()"
    )
    master, slave = pty.openpty()
    done = subprocess.run([sys.executable, "-c", code], stdout=slave, stderr=slave, timeout=60)
    os.close(slave)
    shown = os.read(master, 1000).decode().replace("\r\n", "\n")
    os.close(master)
    return done.returncode, shown


def test_who_has_to_wait_is_told_what_for() -> None:
    code, shown = _on_a_terminal("    threading.Timer(0.05, press).start()\n    deaf(2)\n")
    waiting = "\nstopping after the step in hand; Ctrl-C again ends at once, without it\n"
    assert code == 75
    assert shown.replace("\x1b[31m", "").replace("\x1b[0m", "") == waiting + STOPPED


SAVING = "    try:\n        press()\n    finally:\n        time.sleep(0.4)\n        press()\n        time.sleep(50)\n"
DEAF = (
    "    threading.Timer(0.05, press).start()\n    threading.Timer(0.6, press).start()\n"
    "    deaf(50)\n    print('too far')\n"
)


@pytest.mark.parametrize("work", [SAVING, DEAF], ids=["while saving", "while deaf"])
def test_a_press_that_comes_much_later_ends_the_process_and_shows_the_cursor(work: str) -> None:
    code, shown = _on_a_terminal(work)
    assert code == 128 + signal.SIGINT
    assert shown.endswith("\x1b[?25h")
    assert "too far" not in shown


def test_signals_are_listened_to_before_the_rest_is_loaded() -> None:
    code = "import sys, bayesnde_cli.cli.main; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    ours = {name for name in loaded if name.startswith("bayesnde_cli.")}
    assert ours == {
        f"bayesnde_cli.{name}"
        for name in (
            "artifacts",
            "artifacts.held_signals",
            "cli",
            "cli.main",
            "cli.output_closed",
            "cli.signals",
            "errors",
        )
    }
    assert not {"typer", "rich", "numpy", "dataclasses"} & set(loaded)


def test_nothing_stops_a_process_that_is_about_to_end() -> None:
    code = (
        "import atexit, signal\nfrom bayesnde_cli.cli import main\nmain._run = lambda *arguments: 0\n"
        "atexit.register(signal.raise_signal, signal.SIGINT)\nmain.main()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_table_that_is_cut_on_stdout_is_not_said_to_be_whole(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "bayesnde_cli", "simulate", "gmm", "--rows", "5000000"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "x1,x2,true_log_density\n"
        process.send_signal(signal.SIGINT)
        err = process.communicate()[1]
    assert process.returncode == 75
    assert err.endswith(STOPPED.replace("nothing half-written was left behind", "the table on stdout is not complete"))


def test_a_limit_of_cpu_time_saves_though_the_system_repeats_itself() -> None:
    code = (
        "import hashlib, resource\nfrom bayesnde_cli.cli import main\n"
        "def work(*arguments):\n"
        "    resource.setrlimit(resource.RLIMIT_CPU, (1, resource.RLIM_INFINITY))\n"
        "    while True:\n"
        "        hashlib.pbkdf2_hmac('sha256', b'x', b'y', 12_000_000)\n"  # some seconds in one deaf call
        "main._run = work\nmain.main()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 75
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("method", ["start", "join"])
def test_a_signal_as_the_listening_begins_or_ends_is_no_accident(method: str) -> None:
    code = (
        "import signal, threading\nfrom bayesnde_cli.cli import main\n"
        f"own = threading.Thread.{method}\n"
        "def struck(self, *arguments):\n"
        "    if signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:\n        signal.raise_signal(signal.SIGTERM)\n"
        "    return own(self, *arguments)\n"
        f"threading.Thread.{method} = struck\nmain._run = lambda *arguments: 0\nmain.main()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")


def test_an_ignored_signal_is_ignored_in_steps_that_nothing_may_come_between() -> None:
    from bayesnde_cli.artifacts.held_signals import signals_held

    came: list[int] = []
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN), signal.signal(signal.SIGTERM, lambda *what: came.append(15))
    try:
        with signals_held():
            signal.raise_signal(signal.SIGHUP)
            signal.raise_signal(signal.SIGTERM)
            assert came == []
    finally:
        signal.signal(signal.SIGHUP, before[0])
        signal.signal(signal.SIGTERM, before[1])
    assert came == [15]
