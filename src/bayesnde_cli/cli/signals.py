"""A signal asks us to stop: the work in hand is put away, and the exit code says `run me again`."""

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from bayesnde_cli.artifacts.held_signals import STOPPING
from bayesnde_cli.errors import Stopped

# Seconds until the next try, where Python could not raise `Stopped`.
_AGAIN = 0.05


@contextmanager
def stopping_on_signals() -> Iterator[None]:
    """Raise `Stopped` in the running stage on the first signal; a second one ends the process the hard way.

    A signal that is ignored when we start stays ignored: that is how `nohup` keeps a process from hearing that its
    terminal is closed. Such news may come twice, from the shell and from the system, and the second time says nothing.
    """
    heard: list[int] = []

    def stop(number: int, frame: FrameType | None) -> None:
        heard.append(number)
        for other in before:
            signal.signal(other, signal.SIG_IGN if other == signal.SIGHUP else signal.SIG_DFL)
        raise Stopped(
            f"stopped by {signal.Signals(heard[0]).name}",
            found="nothing half-written was left behind",
            hint="run the same command again to go on",
        )

    def not_raised(what: "sys.UnraisableHookArgs") -> None:
        """In a destructor or a callback Python drops what is raised; then we try again in a moment."""
        if what.exc_type is Stopped:
            signal.setitimer(signal.ITIMER_REAL, _AGAIN)
        else:
            hook(what)

    before = {number: signal.getsignal(number) for number in STOPPING}
    before = {number: handler for number, handler in before.items() if handler is not signal.SIG_IGN}
    hook, alarm = sys.unraisablehook, signal.signal(signal.SIGALRM, stop)
    sys.unraisablehook = not_raised
    for number in before:
        signal.signal(number, stop)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        sys.unraisablehook = hook
        for number, handler in {**before, signal.SIGALRM: alarm}.items():
            signal.signal(number, handler)
