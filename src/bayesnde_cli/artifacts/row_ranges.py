"""Any range of a table's rows, for work that goes through a large table block by block."""

from itertools import accumulate
from pathlib import Path

import pyarrow as pa

from bayesnde_cli.artifacts.tables import Stamp, opened


class RowRanges:
    """Reads ranges of rows; one row group is in memory, so that blocks in order decode each one once."""

    def __init__(self, path: Path, stamp: Stamp, columns: pa.Schema) -> None:
        self._path, self._stamp, self._columns = path, stamp, columns
        with opened(path, stamp, columns) as file:
            sizes = [file.metadata.row_group(index).num_rows for index in range(file.num_row_groups)]
        self._starts = list(accumulate(sizes, initial=0))
        self._held: tuple[int, pa.Table] | None = None

    @property
    def n_rows(self) -> int:
        return self._starts[-1]

    def read(self, start: int, stop: int) -> pa.Table:
        """The rows from `start` up to `stop`."""
        if not 0 <= start < stop <= self.n_rows:
            raise IndexError(f"rows {start} to {stop} of {self.n_rows}")
        pieces = []
        for group, first in enumerate(self._starts[:-1]):
            low, high = max(start, first), min(stop, self._starts[group + 1])
            if low < high:
                pieces.append(self._group(group).slice(low - first, high - low))
        return pa.concat_tables(pieces).combine_chunks()

    def _group(self, group: int) -> pa.Table:
        if self._held is None or self._held[0] != group:
            with opened(self._path, self._stamp, self._columns) as file:
                self._held = group, file.read_row_group(group, columns=self._columns.names, use_threads=False)
        return self._held[1]


def column_names(path: Path, stamp: Stamp) -> list[str]:
    """The columns that a table has."""
    with opened(path, stamp, None) as file:
        return list(file.schema_arrow.names)
