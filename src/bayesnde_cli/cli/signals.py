"""A signal asks us to stop: the work in hand is put away, and the exit code says `run me again`."""

import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from bayesnde_cli.errors import Stopped

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)
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
        if time.monotonic() - self._since > _ONE_PRESS:
            if os.isatty(2):
                os.write(2, _SHOW_CURSOR)
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)

    def on_alarm(self, number: int, frame: FrameType | None) -> None:
        """Raise `Stopped` once more."""
        assert self.stopped is not None
        raise self.stopped

    def on_unraisable(self, what: Any) -> None:
        """Ask again in a moment for a stop that came where Python drops exceptions, as in `__del__`."""
        if isinstance(what.exc_value, Stopped):
            signal.setitimer(signal.ITIMER_REAL, _ASK_AGAIN)
        else:
            sys.__unraisablehook__(what)


@contextmanager
def stopping_on_signals() -> Iterator[StopRequest]:
    """Raise `Stopped` on a signal for as long as the block lasts."""
    request = StopRequest()
    hook = sys.unraisablehook
    before = {number: signal.signal(number, request.on_signal) for number in _SIGNALS}
    before[signal.SIGALRM] = signal.signal(signal.SIGALRM, request.on_alarm)
    sys.unraisablehook = request.on_unraisable
    try:
        yield request
    finally:
        sys.unraisablehook = hook
        for number, handler in before.items():
            signal.signal(number, handler)


def ignore_signals() -> None:
    """All is done and said: a signal that comes while the process ends has nothing left to stop."""
    for number in _SIGNALS:
        signal.signal(number, signal.SIG_IGN)
