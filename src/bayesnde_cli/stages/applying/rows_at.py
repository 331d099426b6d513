"""Rows of a table at some positions, in the order that is asked for; the table is read batch by batch."""

from collections.abc import Collection, Iterable

import numpy as np
import pyarrow as pa


def rows_at(batches: Iterable[pa.RecordBatch], positions: np.ndarray) -> pa.Table:
    """The rows at the positions (n,), one at least, in their order."""
    order = np.argsort(positions, kind="stable")
    wanted = positions[order]
    pieces, first = [], 0
    for batch in batches:
        here = wanted[np.searchsorted(wanted, first) : np.searchsorted(wanted, first + batch.num_rows)]
        if len(here):
            pieces.append(batch.take(pa.array(here - first)))
        first += batch.num_rows
    found = pa.Table.from_batches(pieces)
    back = np.empty_like(order)
    back[order] = np.arange(len(order))
    return found.take(pa.array(back))


def beside(own: pa.Table, other: pa.Table, taken: Collection[str] = ()) -> pa.Table:
    """Two tables side by side; a column of the second whose name is taken gets an underscore."""
    for name, column in zip(other.column_names, other.columns, strict=True):
        while name in own.column_names or name in taken:
            name += "_"
        own = own.append_column(name, column)
    return own
