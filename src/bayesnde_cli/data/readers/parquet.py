"""Parquet files: typed columns, read row group by row group."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import BinaryIO

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pyarrow.types as pt

from bayesnde_cli.data.readers.array_table import not_numbers
from bayesnde_cli.data.readers.bounds import refuse_bomb, refuse_columns, refuse_memory
from bayesnde_cli.data.readers.cells import nan_as_null, words
from bayesnde_cli.data.readers.source import Source
from bayesnde_cli.data.readers.table import (
    MAX_BATCH_ROWS,
    Kind,
    Table,
    duplicates,
    listed,
    schema_of,
    shown,
)
from bayesnde_cli.errors import BadInput, escaped, one_line
from bayesnde_cli.headers.bad_header import BadHeader
from bayesnde_cli.headers.parquet import declared_by_pages
from bayesnde_cli.headers.unpacked import MAX_CELL_RATIO

# Arrow's own errors, which are of many sorts; ValueError: names that are no UTF-8.
DAMAGE = (pa.ArrowException, BadHeader, OSError, ValueError, OverflowError)
MAX_TEXT_BYTES = 256 << 20  # of a column in a batch: 4,096 bytes a row
_NOT_IMPLEMENTED = "Not yet implemented"  # of what pyarrow does not know, an OSError among them
_AS_CSV = "if it is what it seems to be, write the table as CSV"


class ParquetTable(Table):
    """A Parquet file."""

    def __init__(self, source: Source) -> None:
        self.source = source
        try:
            with pq.ParquetFile(source.path) as file:
                self._schema = file.schema_arrow
                n_rows = file.metadata.num_rows
                self.names = tuple(self._schema.names)
        except DAMAGE as error:
            raise _damaged(source, error) from error
        refuse_columns(source.name, len(self.names))
        self.description = f"Parquet, {n_rows} x {len(self.names)}"
        again = duplicates(self.names)
        if again:
            raise BadInput(
                f"{source.name} has several columns of one name",
                found=f"more than once: {listed(again)}",
                hint="rename them",
            )
        if not n_rows or not self.names:
            raise BadInput(f"{source.name} holds no rows", found=self.description, hint="give a file with rows")

    def kinds(self, columns: Sequence[str]) -> dict[str, Kind | None]:
        """Numbers or text, from the types of the file; other types are refused by name."""
        return {name: self._kind(name) for name in columns}

    def batches_as(self, kinds: Mapping[str, Kind]) -> Iterator[pa.RecordBatch]:
        """Record batches, cast from the types of the file."""
        for name, kind in kinds.items():
            if kind == "text":
                self._refuse_nested(name)
            elif self._kind(name) == "text":
                raise not_numbers(self.source, name)
        schema = schema_of(kinds)
        texts = [name for name in kinds if _is_text(self._schema.field(name).type)]
        try:
            # Not buffered ahead: that would hold the whole file. Words come as a dictionary and their positions in it:
            # one long word that stands in every row is there once.
            with (
                self.source.open() as stream,
                pq.ParquetFile(self.source.path, pre_buffer=False, read_dictionary=texts) as file,
            ):
                self._refuse_bomb(stream, kinds)
                for batch in file.iter_batches(MAX_BATCH_ROWS, columns=list(kinds)):
                    columns = [self._cast(name, batch.column(name), kind) for name, kind in kinds.items()]
                    yield pa.RecordBatch.from_arrays(columns, schema=schema)
        except DAMAGE as error:
            if _NOT_IMPLEMENTED in str(error):
                raise BadInput(
                    f"{self.source.name} holds text in an encoding that cannot be read",
                    found=one_line(str(error)),
                    hint="write the file with format version 1, or as CSV",
                ) from error
            raise _damaged(self.source, error) from error

    def _refuse_bomb(self, stream: BinaryIO, columns: Collection[str]) -> None:
        """Refuse what unpacks to far more than the file has, by what its pages declare."""
        declared = declared_by_pages(stream, set(self._leaves(columns)))
        n_packed = self.source.size()
        refuse_bomb(self.source.name, n_packed, declared.n_bytes, hint=_AS_CSV)
        refuse_bomb(self.source.name, n_packed, 8 * declared.n_values, hint=_AS_CSV, ratio=MAX_CELL_RATIO)
        refuse_memory(self.source.name, declared.n_bytes_at_once, hint="write the file with smaller pages")

    def _leaves(self, columns: Collection[str]) -> list[int]:
        """The positions of columns among those of the file, where a nested one is several."""
        positions: list[int] = []
        n_before = 0
        for field in self._schema:
            n_leaves = _n_leaves(field.type)
            if field.name in columns:
                positions += range(n_before, n_before + n_leaves)
            n_before += n_leaves
        return positions

    def _cast(self, name: str, column: pa.Array, kind: Kind) -> pa.Array:
        try:
            if pt.is_dictionary(column.type):
                column = self._spelled_out(name, column)
            return _cast(column, kind)
        except pa.ArrowNotImplementedError as error:
            raise self._refused(name, f"use `--drop {escaped(name)}`") from error

    def _spelled_out(self, name: str, column: pa.DictionaryArray) -> pa.Array:
        """The values of a dictionary column, row by row."""
        column.validate(full=True)  # positions beyond the dictionary, words that are no UTF-8
        if _is_text(column.type):
            n_bytes = pc.sum(pc.binary_length(column.dictionary).take(column.indices)).as_py() or 0
            if n_bytes > MAX_TEXT_BYTES:
                raise BadInput(
                    f"column {shown(name)} of {self.source.name} holds very long texts",
                    found=f"{n_bytes:,} bytes in {len(column):,} rows",
                    hint=f"use `--drop {escaped(name)}`",
                )
        return column.dictionary_decode()

    def _kind(self, name: str) -> Kind | None:
        self._refuse_nested(name)
        kind = self._schema.field(name).type
        stored = kind.value_type if pt.is_dictionary(kind) else kind
        if pt.is_null(stored):
            return None
        if pt.is_integer(stored) or pt.is_floating(stored) or pt.is_decimal(stored) or pt.is_boolean(stored):
            return "number"
        if _is_text(stored):
            return "text"
        raise self._refused(name, f"use `--type {escaped(name)}=categorical`, or `--drop {escaped(name)}`")

    def _refuse_nested(self, name: str) -> None:
        kind = self._schema.field(name).type
        if pt.is_nested(kind) or pt.is_binary(kind) or pt.is_large_binary(kind):
            raise self._refused(name, f"flatten it into columns of numbers, or use `--drop {escaped(name)}`")

    def _refused(self, name: str, hint: str) -> BadInput:
        return BadInput(
            f"column {shown(name)} of {self.source.name} holds neither numbers nor text",
            found=f"type: {self._schema.field(name).type}",
            hint=hint,
        )


def open_parquet(source: Source) -> ParquetTable:
    """The table of a Parquet file."""
    return ParquetTable(source)


def _damaged(source: Source, error: Exception) -> BadInput:
    return source.damaged("Parquet file", str(error).partition("\n")[0])


def _is_text(kind: pa.DataType) -> bool:
    stored = kind.value_type if pt.is_dictionary(kind) else kind
    return bool(pt.is_string(stored) or pt.is_large_string(stored) or pt.is_string_view(stored))


def _n_leaves(kind: pa.DataType) -> int:
    return sum(_n_leaves(kind.field(index).type) for index in range(kind.num_fields)) if kind.num_fields else 1


def _cast(column: pa.Array, kind: Kind) -> pa.Array:
    if kind == "text":
        if pt.is_floating(column.type):
            column = nan_as_null(column)
        return words(column.cast(pa.string()))
    # unsafe: integers past 2^53 are rounded to the nearest double rather than refused
    return nan_as_null(column.cast(pa.float64(), safe=False))
