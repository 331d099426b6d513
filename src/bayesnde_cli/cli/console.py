"""What the user sees: results on stdout, everything else on stderr; bars on a terminal, plain lines elsewhere."""

import itertools
import json
import os
import sys
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol, TextIO, cast

from bayesnde_cli.cli.patient_stream import PatientStream
from bayesnde_cli.errors import escaped, one_line
from bayesnde_cli.stages.reporting import Advance, aligned, duration

# Without a terminal, a line of progress at most this often (seconds).
_LINE_EVERY = 10.0
# The time left is told at the pace of so many of the last steps.
_PACE_STEPS = 20
# Steps that say nothing of the pace: the first may be what was there before, the next may wait for a compiler.
_UNTYPICAL_STEPS = 2
_WIDEST_CELL = 60
_YELLOW, _RED, _BOLD, _RESET = "\x1b[33m", "\x1b[31m", "\x1b[1m", "\x1b[0m"


class Outcome(Protocol):
    """What a stage made: a sentence for people, a dictionary for machines."""

    def as_dict(self) -> dict[str, Any]: ...


def printable(text: str) -> str:
    """The text with control characters spelled out, lines kept."""
    return escaped(text, keep="\n\t")


def _say(text: str, stream: PatientStream) -> None:
    """Write a line at once."""
    encoding = getattr(stream, "encoding", None) or "utf-8"
    print(text.encode(encoding, "backslashreplace").decode(encoding), file=stream, flush=True)


def cut(cell: str) -> str:
    """A cell of a table for people, no wider than a column may be."""
    return cell if len(cell) <= _WIDEST_CELL else cell[: _WIDEST_CELL - 1] + "…"


class Console:
    """The Report that the command line hands to a stage."""

    def __init__(self, *, quiet: bool = False, out: TextIO | None = None, err: TextIO | None = None) -> None:
        self.quiet = quiet
        # A closed standard stream is None in Python.
        self.out = PatientStream(out or sys.stdout or open(os.devnull, "w"), is_log=False)  # noqa: SIM115
        self.err = PatientStream(err or sys.stderr or open(os.devnull, "w"), is_log=True)  # noqa: SIM115
        self.is_terminal = self.err.isatty()

    def result(self, text: str) -> None:
        """A result, on stdout."""
        _say(printable(text), self.out)

    def result_json(self, document: Any) -> None:
        """A result for machines, on stdout."""
        _say(json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False), self.out)

    def finish(self, outcome: Outcome, *, is_json: bool) -> None:
        """What a stage made, as its result."""
        if is_json:
            self.result_json(outcome.as_dict())
        else:
            self.result(str(outcome))

    def closing(self, outcome: Outcome, title: str, *, is_json: bool) -> None:
        """What a command made, as its result; on a terminal in a frame."""
        if is_json or not self.out.isatty():
            self.finish(outcome, is_json=is_json)
            return
        from rich.console import Console as RichConsole
        from rich.panel import Panel
        from rich.text import Text

        RichConsole(file=cast(TextIO, self.out)).print(Panel(Text(printable(str(outcome))), title=title, expand=False))

    def note(self, text: str) -> None:
        if not self.quiet:
            _say(one_line(text), self.err)

    def warn(self, text: str) -> None:
        _say(f"{self._coloured('warning:', _YELLOW)} {one_line(text)}", self.err)

    def error(self, text: str) -> None:
        label, sign, rest = printable(text).partition(":")
        _say(f"{self._coloured(label + sign, _RED)}{rest}", self.err)

    def table(self, title: str, header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        if not self.quiet:
            shown = [[cut(cell) for cell in row] for row in rows]
            _say(f"{self._coloured(printable(title), _BOLD)}\n{aligned(header, shown)}", self.err)

    @contextmanager
    def progress(self, label: str, total: int | None, unit: str) -> Iterator[Advance]:
        if self.quiet:
            yield lambda done: None
        elif self.is_terminal:
            with _bar(self.err, label, total, unit) as advance:
                yield advance
        else:
            yield _Lines(self, label, total, unit).advance

    def _coloured(self, text: str, colour: str) -> str:
        if self.is_terminal and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb":
            return f"{colour}{text}{_RESET}"
        return text


@contextmanager
def _bar(terminal: PatientStream, label: str, total: int | None, unit: str) -> Iterator[Advance]:
    from rich.console import Console as RichConsole
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = RichConsole(file=cast(TextIO, terminal))
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn(unit))
    with Progress(*columns, TimeRemainingColumn(), console=console, transient=True) as bar:
        task = bar.add_task(label, total=total)
        steps = itertools.count(1)

        def advance(done: int) -> None:
            bar.advance(task, done)
            if next(steps) <= _UNTYPICAL_STEPS:  # the pace is measured anew
                bar.reset(task, completed=int(bar.tasks[task].completed))

        yield advance


class _Lines:
    """Progress for logs: a line now and then, with the time left."""

    def __init__(self, console: Console, label: str, total: int | None, unit: str) -> None:
        self.console, self.label, self.total, self.unit = console, label, total, unit
        self.done = self.n_steps = 0
        self.spoke = time.monotonic()
        self.marks: deque[tuple[float, int]] = deque(maxlen=_PACE_STEPS)

    def advance(self, done: int) -> None:
        self.done += done
        self.n_steps += 1
        now = time.monotonic()
        if self.n_steps >= _UNTYPICAL_STEPS:
            self.marks.append((now, self.done))
        if now - self.spoke < _LINE_EVERY:
            return
        self.spoke = now
        size = f" of {self.total:,}" if self.total else ""
        self.console.note(f"{self.label}: {self.done:,}{size} {self.unit}{self._time_left(now)}")

    def _time_left(self, now: float) -> str:
        if not self.total or not self.marks or self.marks[0][1] == self.done:
            return ""
        began, had = self.marks[0]
        return f", {duration((now - began) * (self.total - self.done) / (self.done - had))} left"
