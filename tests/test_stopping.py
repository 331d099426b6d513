"""Signals set a flag; the work stops at its next check, saves, and exits with 75. A second signal ends the process."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from bayesnde_cli import stopping
from bayesnde_cli.errors import Stopped

MESSAGE = "error: stopped by {}\n  nothing half-written was left behind\nhint: run the same command again to resume"


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    """Every test leaves the handlers of this process as they were."""
    given = signal.signal(signal.SIGHUP, signal.SIG_DFL)  # ignored under nohup, and by every child of such a process
    before = {number: signal.getsignal(number) for number in stopping.SIGNALS}
    yield
    assert {number: signal.getsignal(number) for number in before} == before
    signal.signal(signal.SIGHUP, given)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGUSR1])
def test_a_signal_is_noticed_at_the_next_check_and_not_before(number: signal.Signals) -> None:
    with stopping.listening():
        stopping.check()
        signal.raise_signal(number)
        with pytest.raises(Stopped) as caught:
            stopping.check()
    assert str(caught.value) == MESSAGE.format(number.name)
    stopping.check()  # the request ends with the command


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGINT])
def test_a_signal_that_is_ignored_at_the_start_stays_ignored(number: signal.Signals) -> None:
    before = signal.signal(number, signal.SIG_IGN)
    try:
        with stopping.listening():
            signal.raise_signal(number)
            stopping.check()
            assert signal.getsignal(number) is signal.SIG_IGN
    finally:
        signal.signal(number, before)


@pytest.mark.parametrize("is_pending", [False, True])
def test_a_signal_ends_a_blocking_wait(is_pending: bool) -> None:
    reader, writer = os.pipe()
    timer = threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGUSR1))
    with stopping.listening():
        if is_pending:
            signal.raise_signal(signal.SIGUSR1)
        else:
            timer.start()
        with pytest.raises(Stopped), stopping.interruptible():
            os.read(reader, 1)  # nobody ever writes
        with pytest.raises(Stopped):
            stopping.sleep(3600.0)
    os.close(reader)
    os.close(writer)


@pytest.mark.parametrize(
    ("number", "same_request_seconds", "code"),
    [
        (signal.SIGINT, -1.0, 128 + signal.SIGINT),
        (signal.SIGHUP, -1.0, 75),  # the system repeats this one on its own
        (signal.SIGTERM, 60.0, 75),  # a scheduler and a job script that forwards its signal
    ],
)
def test_a_second_signal_ends_the_process(number: int, same_request_seconds: float, code: int) -> None:
    child = os.fork()
    if child == 0:  # pragma: no cover
        stopping._SAME_REQUEST_SECONDS = same_request_seconds
        with stopping.listening():
            try:
                signal.raise_signal(number)
                stopping.check()
            except Stopped as stopped:
                signal.raise_signal(number)  # while the stage saves its work
                os._exit(stopped.exit_code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == code


@pytest.mark.parametrize("is_checked", [True, False])
def test_a_command_exits_with_75_if_it_checks_before_its_end(
    is_checked: bool, bayesnde: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    def work(arguments: list[str]) -> int:
        signal.raise_signal(signal.SIGINT)
        if is_checked:
            stopping.check()
        return 0

    monkeypatch.setattr("bayesnde_cli.cli.main.run_command", work)
    assert bayesnde("status") == ((75, "", MESSAGE.format("SIGINT") + "\n") if is_checked else (0, "", ""))


def test_signals_are_handled_before_the_rest_is_loaded() -> None:
    command = [sys.executable, "-c", "import sys, bayesnde_cli.cli.main; print(*sys.modules)"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    ours = {name.removeprefix("bayesnde_cli.") for name in loaded if name.startswith("bayesnde_cli.")}
    assert ours == {"cli", "cli.main", "errors", "stopping"}
    assert not {"typer", "rich", "numpy", "dataclasses"} & loaded


def test_a_table_that_is_cut_short_on_stdout_is_not_called_complete() -> None:
    command = [sys.executable, "-m", "bayesnde_cli", "simulate", "gmm", "--rows", "5000000"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "x1,x2,true_log_density\n"
        process.send_signal(signal.SIGINT)
        err = process.communicate()[1]
    assert process.returncode == 75
    told = MESSAGE.format("SIGINT").replace(
        "nothing half-written was left behind", "the table on stdout is not complete"
    )
    assert err.endswith(told + "\n")


def test_a_command_that_waits_for_its_input_stops_at_once(tmp_path: Path) -> None:
    code = (
        "import sys\nfrom bayesnde_cli import stopping\nfrom bayesnde_cli.cli import main\n"
        "wait = stopping.interruptible\n"
        "def told():\n    print('waiting', flush=True)\n    return wait()\n"
        "stopping.interruptible = told\nmain.main()"
    )
    command = [sys.executable, "-c", code, "prepare", "-", "--run", str(tmp_path / "run")]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == "waiting\n"
        process.send_signal(signal.SIGTERM)
        err = process.stderr.read()  # ends although the input never does
        assert process.wait(60) == 75
    assert err == MESSAGE.format("SIGTERM") + "\n"
    assert not (tmp_path / "run").exists()
