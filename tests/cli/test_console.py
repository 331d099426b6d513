"""A closed terminal or a log that cannot be written does not lose the work."""

import os
import pty
import subprocess
import sys

import pytest

_WATCHED = """
import sys
from bayesnde_cli.cli.console import Console
console = Console()
assert console.is_terminal
console.note("before")
print("now", flush=True)
sys.stdin.readline()
try:
    with console.progress("working", 3, "rows") as advance:
        advance(1)
        console.note("after")
        raise KeyError("the error in progress")
except KeyError:
    console.error("error: also this")
    print("done", flush=True)
"""


def _close_terminal(script: str) -> tuple[int, str]:
    """Exit code and stdout of a script whose stderr is a terminal that closes when the script prints `now`."""
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


def test_a_closed_terminal_does_not_stop_the_work_or_replace_an_error() -> None:
    assert _close_terminal(_WATCHED) == (0, "done\n")


def test_plain_prints_would_stop_it() -> None:
    naive = 'import sys; print("now", flush=True); sys.stdin.readline(); print("x", file=sys.stderr, flush=True)'
    code, _ = _close_terminal(naive)
    assert code != 0


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full here")
def test_a_full_disk_under_the_log_does_not_stop_the_work() -> None:
    script = "from bayesnde_cli.cli.console import Console; Console().note('x'); Console().note('y'); print('done')"
    with open("/dev/full", "w") as full:
        done = subprocess.run([sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=full, text=True)
    assert (done.returncode, done.stdout) == (0, "done\n")
