"""Delimited text as a table: streamed by pyarrow as strings, turned into numbers batch by batch."""

import shlex
from collections.abc import Iterator, Mapping, Sequence

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

from bayesnde_cli.data.readers.cells import NotANumber, cleaned, kind_of, numbers
from bayesnde_cli.data.readers.source import Source, escaped
from bayesnde_cli.data.readers.table import Kind, Table, schema_of, shown, slices
from bayesnde_cli.data.readers.text_format import TextLayout
from bayesnde_cli.data.readers.text_stream import BLOCK_BYTES, END_CELL, TextStream, decoded
from bayesnde_cli.errors import BadInput

# How pyarrow speaks of a record that does not end within a block, in the middle and at the start of a file.
CELL_LONGER_THAN_BLOCK = ("straddling object", "Empty CSV file or block")


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
            return cells
        try:
            return numbers(cells, self.layout.decimal)
        except NotANumber as error:
            name_shown = escaped(name)
            raise BadInput(
                f"column {shown(name)} holds text in {self.source.row(first_row + error.index)}",
                found=f"cell: {shown(cells[error.index].as_py())}",
                hint=f"use `--type {shlex.quote(f'{name_shown}=categorical')}`, `--missing-token TOKEN`, "
                f"or `--drop {shlex.quote(name_shown)}`",
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
        for whole in self._without_end_row(columns):
            for batch in slices(whole):
                yield first_row, batch
                first_row += batch.num_rows
        if first_row == 1:
            raise BadInput(
                f"{self.source.name} holds no rows",
                found=f"{len(self.names)} columns and no row",
                hint="give a file with rows",
            )

    def _without_end_row(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """The parsed batches less header and end row; an end row that is not there lies in an open quote."""
        held: pa.RecordBatch | None = None
        n_rows = 0
        for batch in self._parsed(columns):
            if not batch.num_rows:
                continue
            if held is not None:
                yield held
            elif self.layout.has_header:
                batch = batch.slice(1)
            n_rows += batch.num_rows
            held = batch
        if held is None:
            return
        if not all(pc.equal(cells[-1:], END_CELL)[0].as_py() for cells in held.columns):
            raise self._open_quote(n_rows, held.columns[-1][-1].as_py())
        yield held.slice(0, held.num_rows - 1)

    def _parsed(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """The batches of the parser: all cells strings, the header a row, the end row at the end."""
        layout = self.layout
        width = len(self.names)
        wrong = _WrongRow(self, n_before=1 if layout.has_header else 0)
        n_rows = 0
        with self.source.open() as raw:
            raw.read(layout.n_skipped_bytes)
            chunks = decoded(self.source, raw, layout.encoding)
            stream = TextStream(chunks, layout.delimiter.join([END_CELL] * width), layout.rewrite)
            try:
                reader = pyarrow.csv.open_csv(
                    stream,
                    # one thread: only then does the parser number the rows that it refuses
                    read_options=pyarrow.csv.ReadOptions(
                        use_threads=False, block_size=BLOCK_BYTES, autogenerate_column_names=True
                    ),
                    parse_options=pyarrow.csv.ParseOptions(
                        delimiter=layout.delimiter,
                        quote_char=layout.quote or False,
                        newlines_in_values=bool(layout.quote),
                        invalid_row_handler=wrong,
                    ),
                    convert_options=pyarrow.csv.ConvertOptions(
                        column_types={f"f{index}": pa.string() for index in range(width)},
                        include_columns=[f"f{self.names.index(name)}" for name in columns],
                    ),
                )
                for batch in reader:
                    n_rows += batch.num_rows
                    yield batch
            except pa.ArrowInvalid as error:
                if wrong.error is not None:
                    raise wrong.error from None
                if any(word in str(error) for word in CELL_LONGER_THAN_BLOCK):
                    raise self._open_quote(n_rows + 1 - int(layout.has_header), None) from error
                raise self.source.damaged("text file", error) from error

    def _open_quote(self, row: int, start: str | None) -> BadInput:
        found = "" if start is None else f", from {shown(start.split(END_CELL)[0].strip())}"
        return BadInput(
            f"{self.source.row(row) if row else f'the header of {self.source.name}'} opens a quote that is not closed",
            found=f"quote: {self.layout.quote}{found}",
            hint='close it; if the character does not quote cells here, use `--quote ""`',
        )


class _WrongRow:
    """What the parser calls at a row with another number of cells: it keeps the error of the first."""

    def __init__(self, table: TextTable, *, n_before: int) -> None:
        self.table = table
        self.n_before = n_before  # rows of the parser that are no rows of the table: header, blank lines
        self.error: BadInput | None = None

    def __call__(self, row: pyarrow.csv.InvalidRow) -> str:
        if not row.text.strip():
            self.n_before += 1
            return "skip"
        number = row.number - self.n_before
        if END_CELL in row.text:
            self.error = self.table._open_quote(number, row.text)
        else:
            self.error = BadInput(
                f"{self.table.source.row(number)} has {row.actual_columns} cells instead of {row.expected_columns}",
                found=f"row: {shown(row.text)}",
                hint="correct the row, or set `--delimiter` and `--quote`",
            )
        return "error"
