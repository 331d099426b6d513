"""What the user sees: results on stdout, everything else on stderr; bars on a terminal, plain lines elsewhere."""

import itertools
import os
import sys
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TextIO

from bayesnde_cli.errors import OutputClosed, escaped, one_line
from bayesnde_cli.formatting import Advance, aligned, duration, is_number

# Without a terminal, a line of progress at most this often (seconds).
_LINE_EVERY = 10.0
# The time left is estimated from this many of the last steps.
_PACE_STEPS = 20
# Steps that say nothing about the pace: the first may be finished work, the next may wait for a compiler.
_UNTYPICAL_STEPS = 2
_WIDEST_CELL = 60
_YELLOW, _RED, _BOLD, _RESET = "\x1b[33m", "\x1b[31m", "\x1b[1m", "\x1b[0m"


def printable(text: str) -> str:
    """The text with control characters spelled out, lines kept."""
    return escaped(text, keep="\n\t")


class Console:
    """The Report that the command line hands to a stage."""

    def __init__(self, *, quiet: bool = False) -> None:
        self.quiet = quiet
        # A closed standard stream is None in Python.
        self.out: TextIO = sys.stdout or open(os.devnull, "w")  # noqa: SIM115
        self.err: TextIO = sys.stderr or open(os.devnull, "w")  # noqa: SIM115
        self.is_terminal = self.err.isatty()

    def result(self, text: str) -> None:
        """Print a result on stdout."""
        try:
            _print(printable(text), self.out)
        except BrokenPipeError:  # the option parser would exit with 1
            raise OutputClosed from None

    def result_table(self, header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        """Print a table on stdout."""
        if self.out.isatty():
            _print_table(self.out, header, rows)
        else:
            self.result(aligned(header, rows))

    def note(self, text: str) -> None:
        if not self.quiet:
            self._log(one_line(text))

    def warn(self, text: str) -> None:
        self._log(f"{self._coloured('warning:', _YELLOW)} {one_line(text)}")

    def error(self, text: str) -> None:
        label, sign, rest = printable(text).partition(":")
        self._log(f"{self._coloured(label + sign, _RED)}{rest}")

    def table(self, title: str, header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        if self.quiet:
            return
        self._log(self._coloured(printable(title), _BOLD))
        rows = [[cut(cell) for cell in row] for row in rows]
        if self.is_terminal:
            with suppress(OSError):  # a closed terminal
                _print_table(self.err, header, rows)
        else:
            self._log(aligned(header, rows))

    @contextmanager
    def progress(self, label: str, total: int | None, unit: str) -> Iterator[Advance]:
        if self.quiet:
            yield lambda done: None
        elif self.is_terminal:
            with _bar(self.err, label, total, unit) as advance:
                yield advance
        else:
            yield _Lines(self, label, total, unit).advance

    def _log(self, text: str) -> None:
        """Print on stderr. A closed terminal or a full disk under the log must not lose the work."""
        try:
            _print(text, self.err)
        except OSError:
            # Redirect the descriptor: the line stays in Python's buffer, which is written again at exit.
            os.dup2(os.open(os.devnull, os.O_WRONLY), self.err.fileno())

    def _coloured(self, text: str, colour: str) -> str:
        if self.is_terminal and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb":
            return f"{colour}{text}{_RESET}"
        return text


def _print(text: str, stream: TextIO) -> None:
    """Print a line at once; characters that the stream cannot encode are escaped."""
    encoding = getattr(stream, "encoding", None) or "utf-8"
    print(text.encode(encoding, "backslashreplace").decode(encoding), file=stream, flush=True)


def cut(cell: str) -> str:
    """A cell of a table, escaped and no wider than a column may be."""
    cell = escaped(cell)
    return cell if len(cell) <= _WIDEST_CELL else cell[: _WIDEST_CELL - 1] + "…"


def _print_table(terminal: TextIO, header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    from rich import box
    from rich.console import Console as RichConsole
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name, *cells in zip(header, *rows, strict=True):
        table.add_column(escaped(name), justify="right" if all(map(is_number, cells)) else "left")
    for row in rows:
        table.add_row(*map(escaped, row))
    RichConsole(file=terminal, markup=False, highlight=False).print(table)


@contextmanager
def _bar(terminal: TextIO, label: str, total: int | None, unit: str) -> Iterator[Advance]:
    from rich.console import Console as RichConsole
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn(unit))
    bar = Progress(*columns, TimeRemainingColumn(), console=RichConsole(file=terminal), transient=True)
    task = bar.add_task(label, total=total)
    steps = itertools.count(1)

    def advance(done: int) -> None:
        bar.advance(task, done)
        if next(steps) <= _UNTYPICAL_STEPS:  # measure the pace from here
            bar.reset(task, completed=int(bar.tasks[task].completed))

    # A terminal that closes must not stop the work, nor replace the error in progress.
    with suppress(OSError):
        bar.start()
    try:
        yield advance
    finally:
        with suppress(OSError):
            bar.stop()


class _Lines:
    """Progress for logs: a line now and then, with the time left."""

    def __init__(self, console: Console, label: str, total: int | None, unit: str) -> None:
        self.console, self.label, self.total, self.unit = console, label, total, unit
        self.done = self.n_steps = 0
        self.last_line = time.monotonic()
        self.marks: deque[tuple[float, int]] = deque(maxlen=_PACE_STEPS)

    def advance(self, done: int) -> None:
        self.done += done
        self.n_steps += 1
        now = time.monotonic()
        if self.n_steps >= _UNTYPICAL_STEPS:
            self.marks.append((now, self.done))
        if now - self.last_line < _LINE_EVERY:
            return
        self.last_line = now
        size = f" of {self.total:,}" if self.total else ""
        self.console.note(f"{self.label}: {self.done:,}{size} {self.unit}{self._time_left(now)}")

    def _time_left(self, now: float) -> str:
        if not self.total or not self.marks or self.marks[0][1] == self.done:
            return ""
        start, done_before = self.marks[0]
        return f", {duration((now - start) * (self.total - self.done) / (self.done - done_before))} left"
