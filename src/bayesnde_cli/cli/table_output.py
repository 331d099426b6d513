"""A table for the user: to a file or to stdout, as CSV, Parquet or JSON lines."""

import io
import json
import math
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, BinaryIO, Protocol

import typer

from bayesnde_cli.cli.output_closed import OutputClosed
from bayesnde_cli.config import nearest_hint
from bayesnde_cli.errors import BadUsage, CannotWrite, Stopped

if TYPE_CHECKING:
    import pyarrow as pa

FORMATS = ("csv", "parquet", "jsonl")
_ROW_GROUP_ROWS = 65_536
_SUFFIXES = {".parquet": "parquet", ".pq": "parquet", ".jsonl": "jsonl", ".ndjson": "jsonl"}
_SUFFIXES |= dict.fromkeys(("", ".csv", ".txt", ".dat"), "csv")

OutOption = Annotated[Path, typer.Option("--out", "-o", metavar="FILE|-", help="Where to write the rows; - is stdout.")]
FormatOption = Annotated[
    str | None,
    typer.Option("--format", metavar="FORMAT", help="csv, parquet or jsonl. [default: by the file's ending, else csv]"),
]


class TableWriter(Protocol):
    """Takes batches of rows of one schema."""

    def write(self, batch: "pa.RecordBatch") -> None: ...

    def close(self) -> None: ...


def output_format(out: Path, asked: str | None, *, pictures: Sequence[str] = ()) -> str:
    """The format that the user asked for, or that the file's ending says; `pictures` are endings that others take."""
    if out.is_dir():
        raise BadUsage(f"--out {out} is a directory", found="a directory, not a file", hint="name a file inside it")
    is_plain = out.is_file() or not out.exists()
    chosen = asked or _SUFFIXES.get(out.suffix.lower() if is_plain else "")
    if chosen is None:
        raise BadUsage(
            f"--out {out}: no format belongs to the ending '{out.suffix}'",
            found=f"endings: {', '.join(filter(None, (*_SUFFIXES, *pictures)))}",
            hint="name the file otherwise, or say --format csv",
        )
    if chosen not in FORMATS:
        raise BadUsage(
            f"--format cannot be '{chosen}'",
            found=f"formats: {', '.join(FORMATS)}",
            hint=nearest_hint(chosen, FORMATS, "use one of the formats"),
        )
    if chosen == "parquet" and str(out) == "-" and sys.stdout is not None and sys.stdout.isatty():
        raise BadUsage(
            "Parquet is not for a terminal", found="--out: -", hint="name a file with --out, or use --format csv"
        )
    return chosen


@contextmanager
def table_output(out: Path, format: str, schema: "pa.Schema") -> Iterator[TableWriter]:
    """A writer to `out`; a file appears only when it is complete, and a link stays a link."""
    make = _WRITERS[format]
    if str(out) == "-":
        try:
            with _stdout() as stream:
                writer = make(stream, schema)
                yield writer
                writer.close()
        except BrokenPipeError:  # the option parser would make an error of it
            raise OutputClosed from None
        except Stopped as stopped:
            stopped.found = "the table on stdout is not complete"
            raise
        return
    if out.exists() and not out.is_file():  # a device or a pipe cannot be put in place: it is written to
        with _opened(out) as file:
            writer = make(file, schema)
            yield writer
            writer.close()
        return
    from bayesnde_cli.artifacts.atomic import writing

    with writing(out.resolve()) as temporary, temporary.open("wb") as file:
        writer = make(file, schema)
        yield writer
        writer.close()


def _stdout() -> AbstractContextManager[BinaryIO]:
    """Where stdout goes; a closed one, None in Python, goes nowhere."""
    return open(os.devnull, "wb") if sys.stdout is None else nullcontext(sys.stdout.buffer)


def _opened(out: Path) -> BinaryIO:
    try:
        return out.open("wb")
    except OSError as error:
        found = error.strerror or str(error)
        raise CannotWrite(f"cannot write {out}", found=found, hint="choose a place that you may write to") from error


class _Csv:
    """Floats in their shortest form that reads back exactly; missing cells empty."""

    def __init__(self, file: BinaryIO, schema: "pa.Schema") -> None:
        import csv

        self._file = file
        self._text = io.StringIO(newline="")  # no wrapper of the file: given up after an error, it would close stdout
        self._rows = csv.writer(self._text, lineterminator="\n")
        self._rows.writerow(schema.names)

    def write(self, batch: "pa.RecordBatch") -> None:
        self._rows.writerows(zip(*(column.to_pylist() for column in batch.columns), strict=True))
        self._flush()

    def close(self) -> None:
        self._flush()
        self._file.flush()

    def _flush(self) -> None:
        self._file.write(self._text.getvalue().encode())
        self._text.seek(0)
        self._text.truncate()


class _JsonLines:
    """An object a row; numbers that JSON does not have (NaN, infinities) become null."""

    def __init__(self, file: BinaryIO, schema: "pa.Schema") -> None:
        self._file = file

    def write(self, batch: "pa.RecordBatch") -> None:
        for row in batch.to_pylist():
            clean = {
                name: None if isinstance(value, float) and not math.isfinite(value) else value
                for name, value in row.items()
            }
            self._file.write(json.dumps(clean, ensure_ascii=False).encode() + b"\n")

    def close(self) -> None:
        self._file.flush()


class _Parquet:
    """As pyarrow writes it, in row groups of one size however small the batches are."""

    def __init__(self, file: BinaryIO, schema: "pa.Schema") -> None:
        import pyarrow.parquet as pq

        self._writer = pq.ParquetWriter(file, schema)
        self._waiting: list[pa.RecordBatch] = []

    def write(self, batch: "pa.RecordBatch") -> None:
        self._waiting.append(batch)
        if sum(waiting.num_rows for waiting in self._waiting) >= _ROW_GROUP_ROWS:
            self._flush()

    def close(self) -> None:
        self._flush()
        self._writer.close()

    def _flush(self) -> None:
        import pyarrow as pa

        if self._waiting:
            self._writer.write_table(pa.Table.from_batches(self._waiting), row_group_size=_ROW_GROUP_ROWS)
            self._waiting = []


_WRITERS: "dict[str, Callable[[BinaryIO, pa.Schema], TableWriter]]" = {
    "csv": _Csv,
    "parquet": _Parquet,
    "jsonl": _JsonLines,
}
