"""Parquet files: typed columns, read row group by row group."""

from collections.abc import Iterator, Mapping, Sequence

import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.types as pt

from bayesnde_cli.data.readers.array_table import not_numbers
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
from bayesnde_cli.errors import BadInput, escaped


class ParquetTable(Table):
    """A Parquet file."""

    def __init__(self, source: Source) -> None:
        self.source = source
        try:
            with pq.ParquetFile(source.path) as file:
                self._schema = file.schema_arrow
                n_rows = file.metadata.num_rows
        except (pa.ArrowInvalid, OSError) as error:
            raise source.damaged("Parquet file", error) from error
        self.names = tuple(self._schema.names)
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
        try:
            # Not buffered ahead: that would hold the whole file.
            with pq.ParquetFile(self.source.path, pre_buffer=False) as file:
                for batch in file.iter_batches(MAX_BATCH_ROWS, columns=list(kinds)):
                    columns = [self._cast(name, batch.column(name), kind) for name, kind in kinds.items()]
                    yield pa.RecordBatch.from_arrays(columns, schema=schema)
        except (pa.ArrowInvalid, OSError) as error:
            raise self.source.damaged("Parquet file", error) from error

    def _cast(self, name: str, column: pa.Array, kind: Kind) -> pa.Array:
        try:
            return _cast(column, kind)
        except pa.ArrowNotImplementedError as error:
            raise self._refused(name, f"use `--drop {escaped(name)}`") from error

    def _kind(self, name: str) -> Kind | None:
        self._refuse_nested(name)
        kind = self._schema.field(name).type
        stored = kind.value_type if pt.is_dictionary(kind) else kind
        if pt.is_null(stored):
            return None
        if pt.is_integer(stored) or pt.is_floating(stored) or pt.is_decimal(stored) or pt.is_boolean(stored):
            return "number"
        if pt.is_string(stored) or pt.is_large_string(stored) or pt.is_string_view(stored):
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


def _cast(column: pa.Array, kind: Kind) -> pa.Array:
    if pt.is_dictionary(column.type):
        column = column.dictionary_decode()
    if kind == "text":
        if pt.is_floating(column.type):
            column = nan_as_null(column)
        return words(column.cast(pa.string()))
    # unsafe: integers past 2^53 are rounded to the nearest double rather than refused
    return nan_as_null(column.cast(pa.float64(), safe=False))
