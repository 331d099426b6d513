"""The signals that ask us to stop, and a few steps that none of them may come between."""

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from types import FrameType

# Ctrl-C; the usual request; a terminal that is closed; the warnings of SLURM, Grid Engine and LSF; a limit of CPU time.
STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGXCPU)


@contextlib.contextmanager
def signals_held() -> Iterator[None]:
    """Signals that come meanwhile are answered at the end; those that are ignored are ignored.

    By handlers and not by a mask: a mask belongs to a thread, and the system hands a signal to whichever thread takes
    it, of which TensorFlow has many. Python answers in the main thread in any case; in another there is nothing to do.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[tuple[int, FrameType | None]] = []
    heard = [number for number in STOPPING if signal.getsignal(number) is not signal.SIG_IGN]
    before = {int(number): signal.signal(number, lambda *what: came.append(what)) for number in heard}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        for number, frame in came[:1]:
            handler = before[number]
            if callable(handler):
                handler(number, frame)
            else:
                os.kill(os.getpid(), number)
