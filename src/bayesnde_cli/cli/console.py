"""What the user sees: results on stdout, everything else on stderr; bars on a terminal, plain lines elsewhere.

Tables go to a file or to stdout, as CSV, Parquet or JSON lines.
"""

import itertools
import json
import math
import os
import sys
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, TextIO

from bayesnde_cli import stopping
from bayesnde_cli.errors import BadUsage, CannotWrite, OutputClosed, Stopped, bad_choice, escaped, one_line
from bayesnde_cli.formatting import Advance, aligned, duration, is_number

if TYPE_CHECKING:
    import pyarrow as pa

# Without a terminal, a line of progress at most this often (seconds).
_LINE_EVERY = 10.0
# The time left is estimated from this many of the last steps.
_PACE_STEPS = 20
# Steps that say nothing about the pace: the first may be finished work, the next may wait for a compiler.
_UNTYPICAL_STEPS = 2
WIDEST_CELL = 60
_YELLOW, _RED, _BOLD, _RESET = "\x1b[33m", "\x1b[31m", "\x1b[1m", "\x1b[0m"
FORMATS = ("csv", "parquet", "jsonl")
_ROW_GROUP_ROWS = 65_536
_SUFFIXES = {".parquet": "parquet", ".pq": "parquet", ".jsonl": "jsonl", ".ndjson": "jsonl"}
_SUFFIXES |= dict.fromkeys(("", ".csv", ".txt", ".dat"), "csv")


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
        rows = [[one_line(cell, WIDEST_CELL) for cell in row] for row in rows]
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


# Tables as files


def output_format(out: Path | None, format: str | None, *, is_json: bool = False, pictures: Sequence[str] = ()) -> str:
    """The format that the user asked for, or that the file's ending says, checked before the long work begins.

    `pictures` are endings that the command also takes. Without a table the format is empty.
    """
    if out is None:
        if format:
            raise BadUsage("--format says how to write a table", found="no --out", hint="add --out FILE, or --out -")
        return ""
    if is_json and str(out) == "-":
        hint = "give --out FILE, or leave out --json"
        raise BadUsage("--json and --out - both write to stdout", found="both", hint=hint)
    if out.is_dir():
        raise BadUsage(f"--out {out} is a directory", found="a directory, not a file", hint="name a file inside it")
    is_plain = out.is_file() or not out.exists()
    chosen = format or _SUFFIXES.get(out.suffix.lower() if is_plain else "")
    if chosen is None:
        raise BadUsage(
            f"--out {out}: no format belongs to the ending '{out.suffix}'",
            found=f"endings: {', '.join(filter(None, (*_SUFFIXES, *pictures)))}",
            hint="use another ending, or add --format csv",
        )
    if chosen not in FORMATS:
        raise bad_choice("--format", chosen, FORMATS)
    if chosen == "parquet" and str(out) == "-" and sys.stdout is not None and sys.stdout.isatty():
        hint = "name a file with --out, or use --format csv"
        raise BadUsage("Parquet cannot be shown on a terminal", found="--out: -", hint=hint)
    return chosen


def write_rows(out: Path, format: str, schema: "pa.Schema", batches: "Iterable[pa.RecordBatch]") -> None:
    """Write batches of rows; a file appears only when it is complete, and a link stays a link."""
    write = {"csv": _write_csv, "parquet": _write_parquet, "jsonl": _write_json_lines}[format]
    with _open_output(out) as file:
        write(file, schema, batches)
        file.flush()


def with_progress(batches: "Iterable[pa.RecordBatch]", advance: Advance) -> "Iterator[pa.RecordBatch]":
    """The batches; each is counted when it has been written, and a signal stops between two of them."""
    for batch in batches:
        stopping.check()
        yield batch
        advance(batch.num_rows)


@contextmanager
def _open_output(out: Path) -> Iterator[BinaryIO]:
    if str(out) == "-" and sys.stdout is None:  # closed
        out = Path(os.devnull)
    if str(out) == "-":
        try:
            yield sys.stdout.buffer
        except BrokenPipeError:  # the option parser would exit with 1
            raise OutputClosed from None
        except Stopped as stopped:
            stopped.found = "the table on stdout is not complete"
            raise
    elif out.exists() and not out.is_file():  # a device or a pipe is written to, not replaced
        try:
            file = out.open("wb")
        except OSError as error:
            found = error.strerror or str(error)
            raise CannotWrite(
                f"cannot write {out}", found=found, hint="choose a place that you may write to"
            ) from error
        with file:
            yield file
    else:
        from bayesnde_cli.runs.files import writing

        with writing(out.resolve()) as temporary, temporary.open("wb") as file:
            yield file


def _write_csv(file: BinaryIO, schema: "pa.Schema", batches: "Iterable[pa.RecordBatch]") -> None:
    """Floats in their shortest form that reads back exactly; missing cells empty.

    Python's writer, as pyarrow's quotes every word and writes 2.0 as 2.
    """
    import csv
    import io

    def encode(rows: Iterable[Iterable[object]]) -> bytes:
        text = io.StringIO(newline="")
        csv.writer(text, lineterminator="\n").writerows(rows)
        return text.getvalue().encode()

    file.write(encode([schema.names]))
    for batch in batches:
        file.write(encode(zip(*(column.to_pylist() for column in batch.columns), strict=True)))


def _write_json_lines(file: BinaryIO, schema: "pa.Schema", batches: "Iterable[pa.RecordBatch]") -> None:
    """One object per row; numbers that JSON does not have (NaN, infinities) become null."""
    for batch in batches:
        for row in batch.to_pylist():
            for name, value in row.items():
                if isinstance(value, float) and not math.isfinite(value):
                    row[name] = None
            file.write(json.dumps(row, ensure_ascii=False).encode() + b"\n")


def _write_parquet(file: BinaryIO, schema: "pa.Schema", batches: "Iterable[pa.RecordBatch]") -> None:
    """Row groups of one size, however small the batches are."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    writer = pq.ParquetWriter(file, schema)
    waiting: list[pa.RecordBatch] = []
    for batch in batches:
        waiting.append(batch)
        if sum(part.num_rows for part in waiting) >= _ROW_GROUP_ROWS:
            writer.write_table(pa.Table.from_batches(waiting), row_group_size=_ROW_GROUP_ROWS)
            waiting = []
    if waiting:
        writer.write_table(pa.Table.from_batches(waiting), row_group_size=_ROW_GROUP_ROWS)
    writer.close()  # not after an error: the file would look complete
