"""A signal asks us to stop: the work in hand is put away, and the exit code says `run me again`."""

import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from bayesnde_cli.artifacts.held_signals import STOPPING
from bayesnde_cli.errors import Stopped

# Within so many seconds of the first signal, more of them are one impatient key press.
_ONE_PRESS = 1.0
# A request that nobody could be told of is made again after so many seconds.
_ASK_AGAIN = 0.01
_SHOW_CURSOR = b"\x1b[?25h"  # a progress bar hides it


class StopRequest:
    """What signals have asked for, while they are listened to."""

    def __init__(self) -> None:
        self.stopped: Stopped | None = None
        self._since = 0.0

    def on_signal(self, number: int, frame: FrameType | None) -> None:
        """Raise `Stopped` in the running stage; a later signal ends the process the hard way."""
        if self.stopped is None:
            self.stopped, self._since = Stopped(signal.Signals(number).name), time.monotonic()
            raise self.stopped
        # That a terminal is closed may be told twice, by the shell and by the system: the second time says nothing.
        if number != signal.SIGHUP and time.monotonic() - self._since > _ONE_PRESS:
            if os.isatty(2):
                os.write(2, _SHOW_CURSOR)
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)

    def on_alarm(self, number: int, frame: FrameType | None) -> None:
        """Raise `Stopped` once more."""
        assert self.stopped is not None
        raise self.stopped


@contextmanager
def stopping_on_signals() -> Iterator[StopRequest]:
    """Raise `Stopped` on a signal for as long as the block lasts.

    A signal that is ignored when we start stays ignored: that is how `nohup` keeps a process from hearing that its
    terminal is closed.
    """
    request = StopRequest()
    hook = sys.unraisablehook

    def on_unraisable(what: Any) -> None:
        """Ask again in a moment for a stop that came where Python drops exceptions, as in `__del__`."""
        if isinstance(what.exc_value, Stopped):
            signal.setitimer(signal.ITIMER_REAL, _ASK_AGAIN)
        else:
            hook(what)

    heard = [number for number in STOPPING if signal.getsignal(number) is not signal.SIG_IGN]
    before = {signal.SIGALRM: signal.signal(signal.SIGALRM, request.on_alarm)}
    sys.unraisablehook = on_unraisable
    before |= {number: signal.signal(number, request.on_signal) for number in heard}
    try:
        yield request
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        sys.unraisablehook = hook
        for number, handler in before.items():
            signal.signal(number, handler)


def ignore_signals() -> None:
    """All is done and said: a signal that comes while the process ends has nothing left to stop."""
    for number in STOPPING:
        signal.signal(number, signal.SIG_IGN)
