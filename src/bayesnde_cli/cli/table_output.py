"""A table for the user: to a file or to stdout, as CSV, Parquet or JSON lines."""

import json
import math
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from bayesnde_cli import stopping
from bayesnde_cli.errors import BadUsage, CannotWrite, OutputClosed, Stopped, bad_choice

if TYPE_CHECKING:
    import pyarrow as pa

    from bayesnde_cli.formatting import Advance

FORMATS = ("csv", "parquet", "jsonl")
_ROW_GROUP_ROWS = 65_536
_SUFFIXES = {".parquet": "parquet", ".pq": "parquet", ".jsonl": "jsonl", ".ndjson": "jsonl"}
_SUFFIXES |= dict.fromkeys(("", ".csv", ".txt", ".dat"), "csv")


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


def with_progress(batches: "Iterable[pa.RecordBatch]", advance: "Advance") -> "Iterator[pa.RecordBatch]":
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
