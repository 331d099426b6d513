"""Delimited text as a table: streamed by pyarrow as strings, turned into numbers batch by batch."""

import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import BinaryIO

import pyarrow as pa
import pyarrow.csv

from bayesnde_cli.data.readers.cells import NotANumber, cleaned, kind_of, numbers, words
from bayesnde_cli.data.readers.source import Source
from bayesnde_cli.data.readers.table import Kind, Table, schema_of, shown, slices
from bayesnde_cli.data.readers.text_format import TextLayout
from bayesnde_cli.data.readers.text_stream import (
    EndlessRecord,
    RecordLayout,
    decoded,
    endless,
    record_blocks,
    whole_lines,
)
from bayesnde_cli.errors import BadInput, escaped


class TextTable(Table):
    """A delimited text file."""

    def __init__(self, source: Source, layout: TextLayout) -> None:
        self.source = source
        self.layout = layout
        self.names = layout.names
        self.description = layout.description
        self.has_own_names = layout.has_header
        self._missing = pa.array(layout.missing)
        self._kinds: dict[str, Kind | None] = {}

    def kinds(self, columns: Sequence[str]) -> dict[str, Kind | None]:
        """What the columns hold, from the first batch in which they hold anything."""
        unknown = [name for name in columns if name not in self._kinds]
        if unknown:
            self._kinds |= self._found_kinds(unknown)
        return {name: self._kinds[name] for name in columns}

    def batches_as(self, kinds: Mapping[str, Kind]) -> Iterator[pa.RecordBatch]:
        """Record batches, each cell checked against its column's kind."""
        schema = schema_of(kinds)
        for first_row, batch in self._strings(list(kinds)):
            columns = [
                self.column(name, cleaned(cells, self._missing), kinds[name], first_row)
                for name, cells in zip(kinds, batch.columns, strict=True)
            ]
            yield pa.RecordBatch.from_arrays(columns, schema=schema)

    def column(self, name: str, cells: pa.Array, kind: Kind, first_row: int) -> pa.Array:
        """Cleaned cells as what the column is delivered as."""
        if kind == "text":
            return words(cells)
        try:
            return numbers(cells, self.layout.decimal)
        except NotANumber as error:
            name_shown, cell = escaped(name), cells[error.index].as_py()
            raise BadInput(
                f"column {shown(name)} holds text in {self.source.row(first_row + error.index)}",
                found=f"cell: {shown(cell)}",
                hint=f"correct the cell; or use `--missing-token {shlex.quote(escaped(cell[:20]))}`, "
                f"`--drop {shlex.quote(name_shown)}`, or `--type {shlex.quote(f'{name_shown}=categorical')}`",
            ) from error

    def _found_kinds(self, columns: Sequence[str]) -> dict[str, Kind | None]:
        kinds: dict[str, Kind | None] = dict.fromkeys(columns)
        for _, batch in self._strings(columns):
            for name, cells in zip(columns, batch.columns, strict=True):
                if kinds[name] is None:
                    kinds[name] = kind_of(cleaned(cells, self._missing), self.layout.decimal)
            if None not in kinds.values():
                break
        return kinds

    def _strings(self, columns: Sequence[str]) -> Iterator[tuple[int, pa.RecordBatch]]:
        """The raw cells, each batch with the number of its first row."""
        first_row = 1
        is_header_next = self.layout.has_header
        for whole in self._parsed(columns):
            for batch in slices(whole.slice(1) if is_header_next else whole):
                yield first_row, batch
                first_row += batch.num_rows
            is_header_next = False
        if first_row == 1:
            raise BadInput(
                f"{self.source.name} holds no rows",
                found=f"{len(self.names)} columns and no row",
                hint="give a file with rows",
            )

    def _parsed(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """The records of each block, all cells strings; the header is the first record.

        Blocks are parsed one by one from memory: pyarrow's own streaming reader fetches Python streams from a
        thread of its own, which can lock up or abort when an error ends the reading early.
        """
        next_row = 1 - int(self.layout.has_header)
        with self.source.open() as raw:
            try:
                for block in self._blocks(raw):
                    if not block.strip(b" \r\n"):
                        continue
                    for batch in self._parsed_block(block, columns, next_row):
                        next_row += batch.num_rows
                        yield batch
            except EndlessRecord as error:
                place = self.source.row(next_row) if next_row else f"the header of {self.source.name}"
                raise endless(place, error) from error

    def _blocks(self, raw: BinaryIO) -> Iterator[bytes]:
        layout = self.layout
        raw.read(layout.n_skipped_bytes)
        chunks = decoded(self.source, raw, layout.encoding)
        if layout.rewrite is not None:
            chunks = whole_lines(chunks, layout.rewrite)
        return record_blocks(chunks, RecordLayout(layout.delimiter, layout.quote, layout.is_padded))

    def _parsed_block(self, block: bytes, columns: Sequence[str], first_row: int) -> list[pa.RecordBatch]:
        layout = self.layout
        # names of our own, so that the user's cannot mean anything to the parser
        fields = {name: f"f{index}" for index, name in enumerate(self.names)}
        wrong = _WrongRow(self.source, first_row)
        try:
            table = pyarrow.csv.read_csv(
                pa.BufferReader(block),
                # one thread: only then does the parser number the rows that it refuses
                read_options=pyarrow.csv.ReadOptions(
                    use_threads=False, block_size=len(block), column_names=list(fields.values())
                ),
                parse_options=pyarrow.csv.ParseOptions(
                    delimiter=layout.delimiter,
                    quote_char=layout.quote or False,
                    newlines_in_values=bool(layout.quote),
                    invalid_row_handler=wrong,
                ),
                convert_options=pyarrow.csv.ConvertOptions(
                    column_types=dict.fromkeys(fields.values(), pa.string()),
                    include_columns=[fields[name] for name in columns],
                ),
            )
        except pa.ArrowInvalid as error:
            raise wrong.error or self.source.damaged("text file", error) from error
        return [batch for batch in table.to_batches() if batch.num_rows]


class _WrongRow:
    """What the parser calls at a row with another number of cells: it keeps the error of the first."""

    def __init__(self, source: Source, first_row: int) -> None:
        self.source = source
        self.first_row = first_row
        self.error: BadInput | None = None

    def __call__(self, row: pyarrow.csv.InvalidRow) -> str:
        if not row.text.strip():  # a line of blanks is no row
            self.first_row -= 1
            return "skip"
        number = self.first_row + row.number - 1
        cells = "cell" if row.actual_columns == 1 else "cells"
        self.error = BadInput(
            f"{self.source.row(number)} has {row.actual_columns} {cells} instead of {row.expected_columns}",
            found=f"row: {shown(row.text)}",
            hint="correct the row, or set `--delimiter` and `--quote`",
        )
        return "error"
