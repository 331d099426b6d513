"""Tables as Parquet files: atomic, stamped with what they are, and byte-equal for equal rows.

However the rows come in, they leave in row groups of 65,536 (fewer where rows are very wide, such as images), so that
a table gathered from eight shards is the same file as one written at once. Pages carry checksums, and the file its own
SHA-256; both are verified on reading.
"""

import contextlib
import functools
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import pyarrow as pa
import pyarrow.parquet as pq

from bayesnde_cli.artifacts.atomic import Draft, writing, writing_once
from bayesnde_cli.artifacts.layout import missing_hint, repair_hint
from bayesnde_cli.artifacts.table_digest import BLANK, KEY, is_unchanged, write_digest
from bayesnde_cli.errors import BadArtifact, MissingArtifact
from bayesnde_cli.headers.bad_header import BadHeader
from bayesnde_cli.headers.memory import memory_bytes
from bayesnde_cli.headers.parquet import declared_by_pages
from bayesnde_cli.headers.unpacked import MAX_CELL_RATIO, is_too_far

ROW_GROUP_ROWS = 65_536
# Of a row group: what is written or read at once has 256 MiB of float32 at most.
ROW_GROUP_CELLS = 1 << 26
# The columns that a caller wants: all, some by their names, or some of the types that they must have.
Columns: TypeAlias = Sequence[str] | pa.Schema | None
# Everything that shapes the bytes is fixed here and left to no default. Dictionaries are off: zstd does as well on
# labels, and float columns have nothing to gain from them.
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
    """What a table says about itself, in the key-value metadata of its file."""

    schema_name: str
    schema_version: int
    run_id: str
    plan_hash: str | None = None  # of what decides its rows
    made_with: str | None = None  # versions; a reader who expects none takes any
    block: int | None = None  # which one of the plan

    def metadata(self) -> dict[str, str]:
        entries = {
            "bayesnde.schema": self.schema_name,
            "bayesnde.schema_version": str(self.schema_version),
            "bayesnde.run_id": self.run_id,
            "bayesnde.plan_hash": self.plan_hash,
            "bayesnde.made_with": self.made_with,
            "bayesnde.block": None if self.block is None else str(self.block),
        }
        return {name: value for name, value in entries.items() if value is not None}


class TableWriter:
    """Takes rows in pieces of any size and writes them in row groups of one size. Holds one row group in memory."""

    def __init__(self, writer: pq.ParquetWriter, schema: pa.Schema) -> None:
        self._writer = writer
        self._schema = schema
        self._group_rows = _group_rows(schema)
        self._waiting: list[pa.Table] = []
        self._n_waiting = 0

    def write(self, rows: pa.Table | pa.RecordBatch) -> None:
        """Appends rows, whose columns must be those of the table, in order."""
        table = pa.Table.from_batches([rows]) if isinstance(rows, pa.RecordBatch) else rows
        table = table.cast(self._schema)
        while self._n_waiting + table.num_rows >= self._group_rows:
            n_taken = self._group_rows - self._n_waiting
            self._keep(table.slice(0, n_taken))
            self.flush()
            table = table.slice(n_taken)
        if table.num_rows:
            self._keep(table)

    def flush(self) -> None:
        """Writes what is waiting as a row group of its own; called by `write` when one is full, and at the end."""
        if self._n_waiting:
            # One chunk per column: page borders would otherwise follow the chunks.
            group = pa.concat_tables(self._waiting).combine_chunks()
            self._writer.write_table(group, row_group_size=self._group_rows)
            self._waiting, self._n_waiting = [], 0

    def _keep(self, table: pa.Table) -> None:
        self._waiting.append(table)
        self._n_waiting += table.num_rows


def _group_rows(schema: pa.Schema) -> int:
    """Rows of a row group: 65,536, or the power of two of wide rows that are not too many cells."""
    lists = [field.type for field in schema if pa.types.is_fixed_size_list(field.type)]
    n_cells = len(schema) - len(lists) + sum(kind.list_size for kind in lists)
    n_fitting = max(1, ROW_GROUP_CELLS // max(n_cells, 1))
    return min(ROW_GROUP_ROWS, 1 << (n_fitting.bit_length() - 1))


def write_table(
    path: Path,
    rows: pa.Table | Iterable[pa.RecordBatch],
    *,
    schema_name: str,
    schema_version: int,
    run_id: str,
    plan_hash: str | None = None,
) -> None:
    """Writes a table, or batches of one (at least one, for its columns), over an older file if there is one."""
    pieces = iter([rows] if isinstance(rows, pa.Table) else rows)
    first = next(pieces)
    stamp = Stamp(schema_name, schema_version, run_id, plan_hash)
    with writing_table(path, first.schema, stamp) as writer:
        writer.write(first)
        for piece in pieces:
            writer.write(piece)


@contextlib.contextmanager
def writing_table(path: Path, schema: pa.Schema, stamp: Stamp) -> Iterator[TableWriter]:
    """A writer for rows in pieces; the file is put in place when the block ends well."""
    with writing(path) as temporary, _table_writer(temporary, schema, stamp) as writer:
        yield writer


@contextlib.contextmanager
def writing_table_once(path: Path, schema: pa.Schema, stamp: Stamp) -> Iterator[tuple[TableWriter, Draft]]:
    """Like `writing_table`, but a file that is already there stays; `is_published` of the draft tells."""
    with writing_once(path) as draft, _table_writer(draft.path, schema, stamp) as writer:
        yield writer, draft


def read_stamped(path: Path, stamp: Stamp) -> pa.Table:
    """The whole table in a file that must have this stamp, in a version up to this one."""
    with opened(path, stamp, None) as file:
        return file.read()


def check_table(path: Path, stamp: Stamp) -> None:
    """Raise `BadArtifact` if a table is damaged or has another stamp; nothing of it is unpacked."""
    with opened(path, stamp, None):
        pass


def read_table(
    path: Path,
    schema_name: str,
    columns: Columns = None,
    *,
    schema_version: int = 1,
    run_id: str | None = None,
    plan_hash: str | None = None,
) -> pa.Table:
    """The table in a file, whole or some columns; `schema_version` is the newest one that the caller understands.

    `BadArtifact` if the file is damaged, holds something else, or belongs to another run or plan than those given.
    """
    with opened(path, Stamp(schema_name, schema_version, run_id or "", plan_hash), columns) as file:
        return file.read(columns=_names(columns))


def iter_batches(
    path: Path,
    schema_name: str,
    columns: Columns = None,
    *,
    batch_rows: int = ROW_GROUP_ROWS,
    schema_version: int = 1,
    run_id: str | None = None,
) -> Iterator[pa.RecordBatch]:
    """The rows of a table in batches of at most `batch_rows`; memory is bounded by a row group."""
    with opened(path, Stamp(schema_name, schema_version, run_id or ""), columns) as file:
        yield from file.iter_batches(batch_size=batch_rows, columns=_names(columns))


def made_with(table: pa.Table) -> str:
    """The versions that a table was made with, as its file says."""
    return (table.schema.metadata or {}).get(b"bayesnde.made_with", b"unknown versions").decode()


def count_rows(path: Path, schema_name: str, *, schema_version: int = 1) -> int:
    """The number of rows of a table, from its footer alone."""
    with opened(path, Stamp(schema_name, schema_version, ""), None) as file:
        return int(file.metadata.num_rows)


@contextlib.contextmanager
def _table_writer(path: Path, schema: pa.Schema, stamp: Stamp) -> Iterator[TableWriter]:
    plain = _plain_schema(schema)
    stamped = plain.with_metadata(stamp.metadata())
    file = pq.ParquetWriter(path, stamped, **_WRITER_OPTIONS)
    try:
        writer = TableWriter(file, stamped)
        yield writer
        writer.flush()
        file.add_key_value_metadata({KEY: BLANK})
        file.close()
    except BaseException:
        _abandon(file)
        raise
    write_digest(path)


def _abandon(file: pq.ParquetWriter) -> None:
    """Let go of a file that will not be complete. Its end is not written, nor tried again when it is collected."""
    file.is_open = False
    with contextlib.suppress(OSError):
        file.close()


def _plain_schema(schema: pa.Schema) -> pa.Schema:
    """The schema without what other libraries left in it: metadata, dictionaries, names of list items."""
    return pa.schema([pa.field(field.name, _plain_type(field.type), field.nullable) for field in schema])


def _plain_type(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_dictionary(kind):
        return _plain_type(kind.value_type)
    if pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        return pa.string()
    if pa.types.is_fixed_size_list(kind):
        return pa.list_(_plain_type(kind.value_type), kind.list_size)
    return kind


@contextlib.contextmanager
def opened(path: Path, expected: Stamp, columns: Columns) -> Iterator[pq.ParquetFile]:
    """The file, checked; damage that shows only while reading becomes `BadArtifact` as well.

    A table that is asked for its plan is one of which no manifest tells: it must have a digest of its own.
    """
    try:
        has_digest = _has_digest(path)
        # Not buffered ahead: that would hold the whole file while it is read in batches.
        with pq.ParquetFile(path, page_checksum_verification=True, pre_buffer=False) as file:
            if expected.plan_hash is not None and not has_digest:
                raise _damaged(path, "it does not say what its SHA-256 is")
            _check_stamp(path, file, expected)
            _check_columns(path, file, columns)
            yield file
    except FileNotFoundError:
        raise MissingArtifact(f"{path} is not there", found="no such file", hint=missing_hint(path)) from None
    except (pa.ArrowException, BadHeader, OSError, UnicodeDecodeError) as error:
        first_line = (str(error).splitlines() or [type(error).__name__])[0]
        raise BadArtifact(
            f"{path} cannot be read as a Parquet file", found=first_line, hint=repair_hint(path)
        ) from error


def _has_digest(path: Path) -> bool:
    """Whether a table carries its SHA-256; `BadArtifact` if it is another, or if it unpacks to far more than ours."""
    status = os.stat(path)
    looked_at = _look(path, (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns))
    if looked_at.damage:
        raise _damaged(path, looked_at.damage)
    return looked_at.has_digest


class _LookedAt(NamedTuple):
    has_digest: bool
    damage: str | None = None


@functools.lru_cache(maxsize=64)
def _look(path: Path, version: tuple[int, ...]) -> _LookedAt:
    """What can be said of a version of a file as a whole: it is read once, however often it is opened."""
    is_same = is_unchanged(path)
    if is_same is False:
        return _LookedAt(True, "it is not what its own SHA-256 says")
    with path.open("rb") as stream:
        declared = declared_by_pages(stream)
    n_packed = path.stat().st_size
    # A table of ours that is nearly all zeros packs to next to nothing: it is a trap only if it does not fit, either.
    is_trap = is_too_far(n_packed, declared.n_bytes) or is_too_far(n_packed, 8 * declared.n_values, MAX_CELL_RATIO)
    n_unpacked = max(declared.n_bytes, 8 * declared.n_values)
    if is_trap and n_unpacked > memory_bytes():
        return _LookedAt(is_same is True, f"{n_packed:,} bytes become {n_unpacked:,}")
    return _LookedAt(is_same is True)


def _damaged(path: Path, found: str) -> BadArtifact:
    return BadArtifact(f"{path} is damaged", found=found, hint=repair_hint(path))


def _check_stamp(path: Path, file: pq.ParquetFile, expected: Stamp) -> None:
    entries = {key.decode(): value.decode() for key, value in (file.metadata.metadata or {}).items()}
    for key, wanted in expected.metadata().items():
        found = entries.get(key, "(none)")
        if key == "bayesnde.schema_version":
            _check_version(path, found, expected.schema_version)
        elif wanted and found != wanted:
            raise BadArtifact(
                f"{path} is not the table that was expected",
                found=f"{key} is {found}, expected {wanted}",
                hint=repair_hint(path),
            )


def _check_version(path: Path, found: str, newest: int) -> None:
    if not found.isdecimal():
        raise _damaged(path, f"bayesnde.schema_version is {found}")
    if int(found) > newest:
        raise BadArtifact(
            f"{path} was written by a newer bayesnde",
            found=f"schema version {found}, this bayesnde reads up to {newest}",
            hint=f"upgrade bayesnde, or {repair_hint(path)}",
        )


def _names(columns: Columns) -> list[str] | None:
    return list(columns.names) if isinstance(columns, pa.Schema) else None if columns is None else list(columns)


def _check_columns(path: Path, file: pq.ParquetFile, columns: Columns) -> None:
    there = file.schema_arrow
    missing = [name for name in _names(columns) or () if there.names.count(name) != 1]
    if missing:
        raise BadArtifact(
            f"{path} lacks a column",
            found=[f"missing: {', '.join(missing)}", f"there: {', '.join(there.names)}"],
            hint=repair_hint(path),
        )
    for field in columns if isinstance(columns, pa.Schema) else ():
        found = there.field(field.name).type
        if found != field.type:
            raise _damaged(path, f"column {field.name} is {found}, expected {field.type}")
