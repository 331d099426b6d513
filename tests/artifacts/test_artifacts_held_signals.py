"""A signal during the steps that belong together is answered after them, in whichever thread it arrives."""

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from bayesnde_cli.artifacts import claims
from bayesnde_cli.artifacts.claims import claim, holding
from bayesnde_cli.artifacts.held_signals import signals_held
from bayesnde_cli.errors import Stopped


class _Asked(Exception):
    pass


@pytest.fixture
def handler():
    """A handler that raises, as the command line has one."""

    def stop(number, frame):
        raise _Asked(number)

    before = signal.signal(signal.SIGUSR1, stop)
    yield stop
    signal.signal(signal.SIGUSR1, before)


def _signalled(steps):
    os.kill(os.getpid(), signal.SIGUSR1)
    time.sleep(0.01)
    steps.append("done")


@pytest.mark.parametrize("is_threaded", [False, True])
def test_a_signal_waits_until_the_end(handler, is_threaded):
    over = threading.Event()
    thread = threading.Thread(target=over.wait)  # takes signals that the main thread would not
    if is_threaded:
        thread.start()
    steps = []
    with pytest.raises(_Asked), signals_held():
        _signalled(steps)
    over.set()
    assert steps == ["done"]
    assert signal.getsignal(signal.SIGUSR1) is handler


def test_without_the_hold_it_does_not_wait(handler):
    steps = []
    with pytest.raises(_Asked):
        _signalled(steps)
    assert steps == []


def test_a_signal_without_a_handler_ends_the_process_afterwards():
    code = (
        "import os, signal\nfrom bayesnde_cli.artifacts.held_signals import signals_held\n"
        "with signals_held():\n    os.kill(os.getpid(), signal.SIGTERM)\n    print('done', flush=True)\n"
        "print('too far')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (-signal.SIGTERM, "done\n")


def test_a_signal_while_a_claim_is_made_leaves_none(handler, tmp_path, monkeypatch):
    def interrupted(path):
        made = claim(path)
        os.kill(os.getpid(), signal.SIGUSR1)
        time.sleep(0.01)
        return made

    monkeypatch.setattr("bayesnde_cli.artifacts.claims.claim", interrupted)
    with pytest.raises(_Asked), holding(tmp_path / ".claim-00001"):
        pass
    assert list(tmp_path.iterdir()) == []


def test_a_signal_just_before_a_claim_is_given_up_does_not_leave_it_behind(tmp_path, monkeypatch):
    n_calls = 0

    @contextlib.contextmanager
    def held():
        nonlocal n_calls
        n_calls += 1
        if n_calls == 2:  # the first is for making the claim
            raise Stopped("SIGHUP")
        with signals_held():
            yield

    monkeypatch.setattr(claims, "signals_held", held)
    with pytest.raises(Stopped), holding(tmp_path / ".claim"):
        assert (tmp_path / ".claim").exists()
    assert not (tmp_path / ".claim").exists()
