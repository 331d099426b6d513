"""Stopping on a signal: a handler sets a flag, and the work checks it where nothing is half done.

Call `check` after every compiled call, every block and every batch of rows. It raises `Stopped`; the stage saves its
work, and the process exits with 75. Blocking waits belong in `interruptible`, where the signal itself raises `Stopped`.
"""

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType

from bayesnde_cli.errors import Stopped

# Ctrl-C, the usual request, a closed terminal, the warnings of SLURM, Grid Engine and LSF, and a limit of CPU time.
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGXCPU)
# Schedulers signal the whole process group and the job script forwards the signal: within this many seconds of the
# first signal, further ones are the same request.
_SAME_REQUEST_SECONDS = 1.0
# The system repeats these on its own, so a second one is not a user who has lost patience.
_REPEATED_BY_SYSTEM = (signal.SIGHUP, signal.SIGXCPU)
_SHOW_CURSOR = b"\x1b[?25h"  # a progress bar hides it


class _Request:
    """The stop that was requested in this process, if any."""

    def __init__(self) -> None:
        self.signal_name: str | None = None
        self.time = 0.0
        self.is_waiting = False  # in a blocking call that may be interrupted

    def receive(self, number: int, frame: FrameType | None) -> None:
        """Record the first signal; end the process on a second one.

        Python calls it between two bytecodes, so after a compiled call. The system's default action from the first
        signal on would not help: it could not be installed earlier, and would take a repeated request for a second one.
        """
        if self.signal_name is None:
            self.signal_name, self.time = signal.Signals(number).name, time.monotonic()
        elif number not in _REPEATED_BY_SYSTEM and time.monotonic() - self.time > _SAME_REQUEST_SECONDS:
            if os.isatty(2):
                with suppress(OSError):
                    os.write(2, _SHOW_CURSOR)
            os._exit(128 + number)  # the exit code that shells use for this signal
        if self.is_waiting:
            self.is_waiting = False
            raise Stopped(self.signal_name)


_request = _Request()


def check() -> None:
    """Raise `Stopped` if a signal has asked this process to stop."""
    if _request.signal_name is not None:
        raise Stopped(_request.signal_name)


@contextmanager
def interruptible() -> Iterator[None]:
    """Let a signal raise `Stopped` at once, in a blocking call that is safe to abandon: a wait, a read from a pipe."""
    _request.is_waiting = True
    try:
        check()  # after the flag, so that no signal falls between the two
        yield
    finally:
        _request.is_waiting = False


def sleep(seconds: float) -> None:
    """Sleep, unless a signal asks this process to stop."""
    with interruptible():
        time.sleep(seconds)


@contextmanager
def listening() -> Iterator[None]:
    """Handle the stopping signals for the duration of the block.

    Ignored signals stay ignored: that is how `nohup` keeps a process running after its terminal closes.
    """
    global _request
    _request = _Request()
    heard = [number for number in SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]
    before = {number: signal.signal(number, _request.receive) for number in heard}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        _request = _Request()


def ignore() -> None:
    """Ignore further signals: the work is done and the process is about to exit."""
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)
