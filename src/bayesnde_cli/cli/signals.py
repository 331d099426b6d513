"""A signal asks us to stop: the work in hand is put away, and the exit code says `run me again`."""

import os
import select
import signal
import sys
import threading
import time
from collections.abc import Callable, Container, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any

from bayesnde_cli.artifacts.held_signals import STOPPING
from bayesnde_cli.errors import Stopped

# Within so many seconds of the first signal, more of them are one impatient key press.
_ONE_PRESS = 1.0
# Told more than once by itself, which says nothing: that a terminal is closed, by the shell and by the system, and that
# a limit of CPU time is over, every second.
_REPEATED = (signal.SIGHUP, signal.SIGXCPU)
# After so many seconds without an answer, the user is told what is waited for.
_PATIENCE = 2.0
# A request that nobody could be told of is made again after so many seconds.
_ASK_AGAIN = 0.01
_SHOW_CURSOR = b"\x1b[?25h"  # a progress bar hides it
_WAITING = b"\nstopping after the step in hand; Ctrl-C again ends at once, without it\n"


class StopRequest:
    """What signals have asked for, while they are listened to."""

    def __init__(self) -> None:
        self.stopped: Stopped | None = None
        self.is_over = False  # all is done, and nothing left to stop

    def on_signal(self, number: int, frame: FrameType | None) -> None:
        """Raise `Stopped` in the running stage; what later signals do is up to `_watch`."""
        if self.stopped is None and not self.is_over:
            self.stopped = Stopped(signal.Signals(number).name)
            raise self.stopped

    def on_alarm(self, number: int, frame: FrameType | None) -> None:
        """Raise `Stopped` once more."""
        if self.stopped is not None and not self.is_over:
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
    before = {}
    stop_watching = _start_watching(request, heard)  # before there is anything to hear, and until there is not
    try:
        sys.unraisablehook = on_unraisable
        before[signal.SIGALRM] = signal.signal(signal.SIGALRM, request.on_alarm)
        for number in heard:
            before[number] = signal.signal(number, request.on_signal)
        yield request
    finally:
        request.is_over = True
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        stop_watching()
        sys.unraisablehook = hook
        for number, handler in before.items():
            signal.signal(number, handler)


def ignore_signals() -> None:
    """All is done and said: a signal that comes while the process ends has nothing left to stop."""
    for number in STOPPING:
        signal.signal(number, signal.SIG_IGN)


def _start_watching(request: StopRequest, heard: Container[int]) -> Callable[[], None]:
    """Start a thread that sees every signal at once; what ends it.

    Python answers signals in the main thread, and there not before a compiled program ends, which may take a minute.
    """
    ours, theirs = os.pipe()
    os.set_blocking(theirs, False)
    before = signal.set_wakeup_fd(theirs, warn_on_full_buffer=False)
    watcher = threading.Thread(target=_watch, args=(ours, request, heard), daemon=True)
    watcher.start()

    def stop() -> None:
        signal.set_wakeup_fd(before)
        os.close(theirs)
        watcher.join()
        os.close(ours)

    return stop


def _watch(pipe: int, request: StopRequest, heard: Container[int]) -> None:
    """Tell a user who has to wait, and let one go who will not."""
    first: float | None = None
    is_over = False  # the time after which the user is told
    while True:
        patience = None if first is None or is_over else max(0.0, first + _PATIENCE - time.monotonic())
        if not select.select([pipe], [], [], patience)[0]:
            is_over = True
            if request.stopped is None:
                _tell(_WAITING)
            continue
        number = os.read(pipe, 1)
        if not number:
            return
        if number[0] not in heard or request.is_over:
            continue
        if first is None:
            first = time.monotonic()
        elif number[0] not in _REPEATED and time.monotonic() - first > _ONE_PRESS:
            if os.isatty(2):
                _tell(_SHOW_CURSOR)
            os._exit(128 + number[0])  # as a shell calls the end by a signal


def _tell(text: bytes) -> None:
    with suppress(OSError):  # nobody may be there any more
        os.write(2, text)
