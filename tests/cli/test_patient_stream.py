"""Whoever watches may go away: a closed terminal and a full log do not stop the work."""

import errno
import io
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from bayesnde_cli.cli.patient_stream import PatientStream

# The work: lines and a bar on a terminal that is closed meanwhile; the last word is the exit code.
_WATCHED = """
import sys
from bayesnde_cli.cli.console import Console
console = Console()
assert console.is_terminal
console.note("before")
print("now", flush=True)
sys.stdin.readline()
with console.progress("working", 3, "rows") as advance:
    for _ in range(3):
        advance(1)
        console.note("after")
console.error("error: also this")
print("done", flush=True)
"""


def _closing_terminal(script: str) -> tuple[int, str]:
    """Exit code and stdout of a script on whose stderr is a terminal, which is closed when the script says `now`."""
    master, slave = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=slave, text=True
    )
    os.close(slave)
    assert process.stdout is not None
    assert process.stdout.readline() == "now\n"
    os.close(master)
    out, _ = process.communicate("\n")
    return process.returncode, out


def test_a_terminal_that_is_closed_does_not_stop_the_work() -> None:
    assert _closing_terminal(_WATCHED) == (0, "done\n")


def test_a_plain_stream_would_stop_it() -> None:
    naive = 'import sys; print("now", flush=True); sys.stdin.readline(); print("x", file=sys.stderr, flush=True)'
    code, _ = _closing_terminal(naive)
    assert code != 0


class _Refusing(io.TextIOWrapper):
    """A file that the system refuses to write to, until it leads elsewhere."""

    def __init__(self, path: Path, number: int) -> None:
        super().__init__(path.open("wb"))
        self.number = number

    def flush(self) -> None:
        if not os.path.samestat(os.fstat(self.fileno()), os.stat(os.devnull)):
            raise OSError(self.number, os.strerror(self.number))
        super().flush()


@pytest.mark.parametrize(
    ("number", "is_log", "is_forgiven"),
    [
        (errno.EPIPE, False, True),
        (errno.EPIPE, True, True),
        (errno.ENOSPC, True, True),
        (errno.EDQUOT, True, True),
        (errno.ENOSPC, False, False),  # a result that is not written is an error
        (errno.EIO, False, False),
        (errno.EBADF, True, False),
    ],
)
def test_which_refusals_lead_nowhere(number: int, is_log: bool, is_forgiven: bool, tmp_path: Path) -> None:
    with _Refusing(tmp_path / "log", number) as stream:
        patient = PatientStream(stream, is_log=is_log)
        if is_forgiven:
            for _ in range(2):
                print("line", file=patient, flush=True)
        else:
            with pytest.raises(OSError, match=os.strerror(number)):
                print("line", file=patient, flush=True)
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())  # so that it can be closed
    assert (tmp_path / "log").read_bytes() == b""
