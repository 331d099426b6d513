"""Tables as Parquet files: atomic, stamped with what they are, and byte-equal for equal rows.

However the rows arrive, they leave in row groups of 65,536 (fewer where rows are very wide, such as images), so that
a table gathered from eight shards is the same file as one written at once. Pages carry checksums, verified on reading.
"""

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from bayesnde_cli.errors import BadArtifact
from bayesnde_cli.runs.files import FORMAT_VERSION, check_version, missing, write_once, writing
from bayesnde_cli.runs.layout import repair_hint

ROW_GROUP_ROWS = 65_536
ROW_GROUP_CELLS = 1 << 26  # of a row group: at most 256 MiB of float32 are written or read at once
# Everything that shapes the bytes is set here and nothing is left to defaults. Dictionaries are off: zstd does as well
# on labels, and they do not help float columns.
_WRITER_OPTIONS: dict[str, Any] = {
    "version": "2.6",
    "data_page_version": "1.0",
    "compression": "zstd",
    "compression_level": 3,
    "use_dictionary": False,
    "write_statistics": True,
    "write_page_checksum": True,
}


@dataclass(frozen=True)
class Stamp:
    """What a table says about itself in the metadata of its file. A reader leaves empty what it does not check."""

    schema_name: str
    run_id: str = ""
    plan_hash: str | None = None  # of the plan that decides its rows
    made_with: str | None = None  # package versions
    block: int | None = None  # its number in the plan

    def metadata(self) -> dict[str, str]:
        entries = {
            "bayesnde.schema": self.schema_name,
            "bayesnde.schema_version": str(FORMAT_VERSION),
            "bayesnde.run_id": self.run_id,
            "bayesnde.plan_hash": self.plan_hash,
            "bayesnde.made_with": self.made_with,
            "bayesnde.block": None if self.block is None else str(self.block),
        }
        return {name: value for name, value in entries.items() if value is not None}


def made_with(table: pa.Table) -> str:
    """The package versions that a table was made with, according to its stamp."""
    return (table.schema.metadata or {}).get(b"bayesnde.made_with", b"unknown versions").decode()


# Writing


class TableWriter:
    """Takes rows in pieces of any size and writes row groups of one size. Holds one row group in memory."""

    def __init__(self, writer: pq.ParquetWriter, schema: pa.Schema) -> None:
        self._writer, self._group_rows, self._waiting = writer, _group_rows(schema), schema.empty_table()

    def write(self, rows: pa.Table | pa.RecordBatch) -> None:
        """Append rows, whose columns must be those of the table, in order."""
        table = pa.Table.from_batches([rows]) if isinstance(rows, pa.RecordBatch) else rows
        self._waiting = pa.concat_tables([self._waiting, table.cast(self._waiting.schema)])
        while self._waiting.num_rows >= self._group_rows:
            self.flush()

    def flush(self) -> None:
        """Write waiting rows as a row group; called by `write` when one is full, and at the end."""
        # One chunk per column: page borders would otherwise follow the chunks.
        group = self._waiting.slice(0, self._group_rows).combine_chunks()
        self._waiting = self._waiting.slice(self._group_rows)
        if group.num_rows:
            self._writer.write_table(group, row_group_size=self._group_rows)


def write_table(path: Path, rows: pa.Table | Iterable[pa.RecordBatch], stamp: Stamp) -> None:
    """Write a table, or batches of one (at least one, for its columns), replacing an older file."""
    pieces = iter([rows] if isinstance(rows, pa.Table) else rows)
    first = next(pieces)
    with writing_table(path, first.schema, stamp) as writer:
        writer.write(first)
        for piece in pieces:
            writer.write(piece)


def write_table_once(path: Path, table: pa.Table, stamp: Stamp) -> bool:
    """Whether this call published the table; a file that is already there stays."""

    def write(temporary: Path) -> None:
        with _table_writer(temporary, table.schema, stamp) as writer:
            writer.write(table)

    return write_once(path, write)


@contextlib.contextmanager
def writing_table(path: Path, schema: pa.Schema, stamp: Stamp) -> Iterator[TableWriter]:
    """A writer for rows in pieces; the file is put in place if the block succeeds."""
    with writing(path) as temporary, _table_writer(temporary, schema, stamp) as writer:
        yield writer


@contextlib.contextmanager
def _table_writer(path: Path, schema: pa.Schema, stamp: Stamp) -> Iterator[TableWriter]:
    stamped = pa.schema(
        [pa.field(field.name, field.type, field.nullable) for field in schema], metadata=stamp.metadata()
    )
    file = pq.ParquetWriter(path, stamped, **_WRITER_OPTIONS)
    try:
        writer = TableWriter(file, stamped)
        yield writer
        writer.flush()
        file.close()
    except BaseException:
        # The file will not be complete: do not write its footer, neither now nor when it is garbage-collected.
        file.is_open = False
        with contextlib.suppress(OSError):
            file.close()
        raise


def _group_rows(schema: pa.Schema) -> int:
    """Rows of a row group: 65,536, or a smaller power of two if that many rows had too many cells."""
    lists = [field.type for field in schema if pa.types.is_fixed_size_list(field.type)]
    n_cells = len(schema) - len(lists) + sum(kind.list_size for kind in lists)
    n_fitting = max(1, ROW_GROUP_CELLS // max(n_cells, 1))
    return min(ROW_GROUP_ROWS, 1 << (n_fitting.bit_length() - 1))


# Reading


def read_table(path: Path, expected: Stamp | str, columns: Sequence[str] | None = None) -> pa.Table:
    """The table in a file, whole or some columns; `BadArtifact` if it is damaged or not the expected one.

    `expected` is the stamp, or only the schema name if any run's table will do.
    """
    with _open_table(path, expected) as file:
        return file.read(columns=columns)


def iter_batches(path: Path, expected: Stamp | str, columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
    """The rows of a table in batches; memory is bounded by a row group."""
    with _open_table(path, expected) as file:
        yield from file.iter_batches(batch_size=ROW_GROUP_ROWS, columns=columns)


def check_table(path: Path, expected: Stamp | str) -> None:
    """Raise `BadArtifact` if a table is damaged or has another stamp: every page is read, with its checksum."""
    for _ in iter_batches(path, expected):
        pass


def count_rows(path: Path, expected: Stamp | str) -> int:
    """The number of rows of a table, from its footer alone."""
    with _open_table(path, expected) as file:
        return int(file.metadata.num_rows)


def column_names(path: Path, expected: Stamp | str) -> list[str]:
    """The columns of a table."""
    with _open_table(path, expected) as file:
        return list(file.schema_arrow.names)


class RowRanges:
    """Reads ranges of a table's rows; one row group is kept in memory, so that blocks in order decode each one once."""

    def __init__(self, path: Path, stamp: Stamp, columns: Sequence[str]) -> None:
        self._path, self._stamp, self._columns = path, stamp, columns
        with _open_table(path, stamp) as file:
            sizes = [file.metadata.row_group(index).num_rows for index in range(file.num_row_groups)]
        self._starts = list(accumulate(sizes, initial=0))
        self._held: tuple[int, pa.Table] | None = None

    @property
    def n_rows(self) -> int:
        return self._starts[-1]

    def read(self, start: int, stop: int) -> pa.Table:
        """The rows from `start` up to `stop`."""
        pieces = []
        for group, first in enumerate(self._starts[:-1]):
            low, high = max(start, first), min(stop, self._starts[group + 1])
            if low < high:
                pieces.append(self._group(group).slice(low - first, high - low))
        return pa.concat_tables(pieces).combine_chunks()

    def _group(self, group: int) -> pa.Table:
        if self._held is None or self._held[0] != group:
            with _open_table(self._path, self._stamp) as file:
                self._held = group, file.read_row_group(group, columns=self._columns, use_threads=False)
        return self._held[1]


@contextlib.contextmanager
def _open_table(path: Path, expected: Stamp | str) -> Iterator[pq.ParquetFile]:
    """The file, checked; damage that shows only while reading becomes `BadArtifact` as well."""
    try:
        # Not buffered ahead: that would hold the whole file while it is read in batches.
        with pq.ParquetFile(path, page_checksum_verification=True, pre_buffer=False) as file:
            _check_stamp(path, file, Stamp(expected) if isinstance(expected, str) else expected)
            yield file
    except FileNotFoundError:
        raise missing(path) from None
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        first_line = (str(error).splitlines() or [type(error).__name__])[0]
        what = f"{path} cannot be read as a Parquet file"
        raise BadArtifact(what, found=first_line, hint=repair_hint(path)) from error


def _check_stamp(path: Path, file: pq.ParquetFile, expected: Stamp) -> None:
    entries = {key.decode(): value.decode() for key, value in (file.metadata.metadata or {}).items()}
    for key, wanted in expected.metadata().items():
        found = entries.get(key, "(none)")
        if key == "bayesnde.schema_version":
            check_version(path, int(found) if found.isdecimal() else found)
        elif wanted and found != wanted:
            raise BadArtifact(
                f"{path} is not the expected table",
                found=f"{key} is {found}, expected {wanted}",
                hint=repair_hint(path),
            )
