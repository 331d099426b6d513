"""The user's table, read once and put down column-wise, so that any size is handled a column or a batch at a time."""

from collections.abc import Collection, Iterable, Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from bayesnde_cli.data.kinds import MAX_CATEGORIES, refuse_too_many
from bayesnde_cli.data.readers import Table
from bayesnde_cli.data.readers.bounds import refuse_memory
from bayesnde_cli.data.roles import quoted
from bayesnde_cli.errors import BadInput
from bayesnde_cli.stages.reporting import Report

BATCH_ROWS = 65_536
BATCH_CELLS = 64 * BATCH_ROWS  # wider tables come in smaller batches
# The square of a larger number is not finite.
LARGEST = 1e150
# What a row takes in memory, at least, before columns are counted: tables of ten million rows took 200.
LEAST_ROW_BYTES = 64
# Longer words are texts, and would stand in every message, schema and report.
LONGEST_WORD = 10_000
_FEWER_ROWS = "prepare some of its rows: a few million are plenty to fit a model, and `density` scores any number"


class StagedTable:
    """The columns in use of an input, typed: float64 or text, missing cells null."""

    def __init__(self, file: Path, schema: pa.Schema, n_rows: int, n_missing: dict[str, int]) -> None:
        self._file = file
        self._schema = schema
        self.n_rows = n_rows
        self.n_missing = n_missing

    def is_text(self, name: str) -> bool:
        return bool(pa.types.is_string(self._schema.field(name).type))

    def column(self, name: str) -> pa.ChunkedArray:
        """One whole column."""
        return pq.read_table(self._file, columns=[name], use_threads=False, memory_map=True).column(name)

    def numbers(self, name: str) -> np.ndarray:
        """One whole numeric column, (rows,) float64, missing cells NaN."""
        return self.column(name).to_numpy()

    def complete_rows(self) -> np.ndarray:
        """Which rows have no missing cell, (rows,) bool."""
        complete = np.ones(self.n_rows, bool)
        for name, count in self.n_missing.items():
            if count:
                complete &= pc.is_valid(self.column(name)).to_numpy()
        return complete

    def empty_rows(self) -> np.ndarray:
        """Which rows have no cell at all, as the `,,,` lines at the end of a spreadsheet, (rows,) bool."""
        if len(self.n_missing) == 1 or min(self.n_missing.values()) == 0:
            return np.zeros(self.n_rows, bool)
        empty = np.ones(self.n_rows, bool)
        for name in self.n_missing:
            empty &= pc.is_null(self.column(name)).to_numpy()
        return empty

    def batches(self) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Batches of rows, each with the position of its first row."""
        first_row = 0
        n_cells = sum(_n_cells(field.type) for field in self._schema)
        batch_rows = min(BATCH_ROWS, max(1, BATCH_CELLS // n_cells))
        with pq.ParquetFile(self._file, pre_buffer=False) as file:  # buffered ahead, it would be held whole
            for batch in file.iter_batches(batch_size=batch_rows):
                yield first_row, batch
                first_row += batch.num_rows


def stage_table(
    table: Table, file: Path, columns: Collection[str], *, as_text: Collection[str], features: Collection[str],
    report: Report,
) -> StagedTable:  # fmt: skip
    """Read the columns of a table into a file. Infinities and columns of free text are refused on the way."""
    batches = table.batches(list(columns), as_text=as_text)
    return stage_batches(batches, file, columns, features=features, report=report)


def stage_batches(
    batches: Iterable[pa.RecordBatch], file: Path, columns: Collection[str], *, features: Collection[str],
    report: Report,
) -> StagedTable:  # fmt: skip
    """Write batches of these columns to a file; those among `features` are looked at as `stage_table` says."""
    n_rows = 0
    n_missing = dict.fromkeys(columns, 0)
    words: dict[str, set[str]] = {}
    writer: pq.ParquetWriter | None = None
    try:
        with report.progress("reading", None, "rows") as advance:
            for batch in batches:
                if writer is None:
                    writer = pq.ParquetWriter(file, batch.schema, compression="lz4", write_statistics=False)
                for name in columns:
                    column = batch.column(name)
                    n_missing[name] += column.null_count
                    if pa.types.is_string(column.type):
                        _refuse_long_word(column, name, n_rows)
                    if name not in features:
                        continue
                    if pa.types.is_floating(column.type):
                        _refuse_infinity(column, name, n_rows)
                    else:
                        seen = words.setdefault(name, set())
                        seen.update(word for word in pc.unique(column).to_pylist() if word is not None)
                        if len(seen) > MAX_CATEGORIES:
                            refuse_too_many(name, seen)
                writer.write_batch(batch)
                n_rows += batch.num_rows
                refuse_memory("the table", n_rows * LEAST_ROW_BYTES, hint=_FEWER_ROWS)
                advance(batch.num_rows)
    finally:
        if writer is not None:
            writer.close()
    if writer is None:
        raise BadInput("the input has no rows", found="no row after the header", hint="give a table with rows")
    return StagedTable(file, writer.schema, n_rows, n_missing)


def _n_cells(kind: pa.DataType) -> int:
    return kind.list_size if pa.types.is_fixed_size_list(kind) else 1


def _refuse_long_word(column: pa.Array, name: str, first_row: int) -> None:
    index = pc.index(pc.greater(pc.binary_length(column), LONGEST_WORD), True).as_py()
    if index >= 0:
        raise BadInput(
            f"column '{name}' holds a very long text in row {first_row + index + 1:,}",
            found=f"{pc.binary_length(column)[index].as_py():,} bytes, {LONGEST_WORD:,} are the most",
            hint=f"leave the column out with --drop {quoted(name)}",
        )


def _refuse_infinity(column: pa.Array, name: str, first_row: int) -> None:
    index = pc.index(pc.greater(pc.abs(column), LARGEST), True).as_py()
    if index >= 0:
        what = "an infinity" if pc.is_inf(column[index]).as_py() else f"a number beyond {LARGEST:g}"
        raise BadInput(
            f"column '{name}' holds {what} in row {first_row + index + 1:,}",
            found=f"cell: {column[index].as_py()}",
            hint=f"correct or remove the row, or leave the column out with --drop {quoted(name)}",
        )
