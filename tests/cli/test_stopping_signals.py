"""What a signal does to the program: it stops it once, wherever it comes, and is not taken for something else."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import pytest

from bayesnde_cli.artifacts.held_signals import STOPPING, signals_held
from bayesnde_cli.cli.signals import stopping_on_signals
from bayesnde_cli.errors import BayesndeError, Stopped


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    """The handlers of this process are put back, and stopping_on_signals has put them back itself."""
    given = signal.signal(signal.SIGHUP, signal.SIG_DFL)  # under nohup it is ignored, by children, too
    before = {number: signal.getsignal(number) for number in (*STOPPING, signal.SIGALRM)}
    hook = sys.unraisablehook
    yield
    assert {number: signal.getsignal(number) for number in before} == before
    assert sys.unraisablehook is hook
    signal.signal(signal.SIGHUP, given)


def _send(number: int) -> None:
    os.kill(os.getpid(), number)
    time.sleep(0.01)


@pytest.mark.parametrize("number", STOPPING)
def test_each_of_them_stops_the_work(number: signal.Signals) -> None:
    with pytest.raises(Stopped) as caught, stopping_on_signals():
        _send(number)
    assert str(caught.value) == (
        f"error: stopped by {number.name}\n  nothing half-written was left behind\n"
        "hint: run the same command again to go on"
    )


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGINT])
def test_one_that_is_ignored_when_we_start_stays_ignored(number: signal.Signals) -> None:
    before = signal.signal(number, signal.SIG_IGN)
    try:
        with stopping_on_signals():
            _send(number)
            with signals_held():
                _send(number)
            assert signal.getsignal(number) is signal.SIG_IGN
    finally:
        signal.signal(number, before)


def _library(call: Callable[[], None]) -> str:
    """As many do: every exception is a failure, and is told in words."""
    try:
        call()
    except Exception as error:
        return f"failed: {error}"
    return "done"


def test_a_library_that_takes_every_exception_for_a_failure_does_not_take_this() -> None:
    with pytest.raises(Stopped), stopping_on_signals():
        _library(lambda: _send(signal.SIGTERM))

    def mistake() -> None:
        raise BayesndeError("a mistake", hint="mend it")

    assert _library(mistake) == "failed: error: a mistake\nhint: mend it"  # the control: what else we raise, it takes


class _Dropping:
    """What is raised in its destructor is dropped by Python."""

    def __del__(self) -> None:
        _send(signal.SIGTERM)


def _dropped() -> None:
    thing = _Dropping()
    del thing
    time.sleep(5.0)


def test_a_signal_in_a_destructor_is_not_lost() -> None:
    with pytest.raises(Stopped, match="stopped by SIGTERM"), stopping_on_signals():
        _dropped()


def test_other_things_that_python_drops_are_still_told(monkeypatch: pytest.MonkeyPatch) -> None:
    class Failing:
        def __del__(self) -> None:
            raise ValueError("told")

    told = []
    monkeypatch.setattr(sys, "unraisablehook", told.append)
    with stopping_on_signals():
        thing = Failing()
        del thing
    assert [what.exc_type for what in told] == [ValueError]


@pytest.mark.parametrize(
    ("first", "second", "code"),
    [
        (signal.SIGINT, signal.SIGINT, 128 + signal.SIGINT),
        (signal.SIGUSR1, signal.SIGTERM, 128 + signal.SIGTERM),
        (signal.SIGHUP, signal.SIGHUP, 75),
        (signal.SIGXCPU, signal.SIGXCPU, 75),
    ],
)
def test_a_second_signal_ends_the_process_at_once_but_a_terminal_is_closed_only_once(
    first: int, second: int, code: int
) -> None:
    script = """
import os, sys, time
from bayesnde_cli.cli import main, signals
signals._ONE_PRESS = -1.0  # the second one comes at once, and is not the same press
def work(arguments, console):
    try:
        os.kill(os.getpid(), int(arguments[0]))
        time.sleep(5)
    finally:  # as a stage puts its work away
        os.kill(os.getpid(), int(arguments[1]))
        time.sleep(0.1)
main._run = work
sys.exit(main.run(sys.argv[1:]))
"""
    done = subprocess.run([sys.executable, "-c", script, str(int(first)), str(int(second))], capture_output=True)
    assert done.returncode == code, done.stderr
