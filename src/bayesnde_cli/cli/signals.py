"""A signal asks us to stop: the work in hand is put away, and the exit code says `run me again`."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from bayesnde_cli.errors import Stopped

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)


@contextmanager
def stopping_on_signals() -> Iterator[None]:
    """Raise `Stopped` in the running stage on the first signal; a second one ends the process the hard way."""

    def stop(number: int, frame: FrameType | None) -> None:
        for other in _SIGNALS:
            signal.signal(other, signal.SIG_DFL)
        raise Stopped(
            f"stopped by {signal.Signals(number).name}",
            found="nothing half-written was left behind",
            hint="run the same command again to go on",
        )

    before = {number: signal.signal(number, stop) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
