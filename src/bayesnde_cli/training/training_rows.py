"""The training rows of a run, as every epoch sees them.

The dequantisation noise of lattice and categorical columns is drawn anew for every epoch: with the same noise in all
of them the model would memorise the noise of a small table. A table that is too large to keep in memory is read in
windows of every k-th row. An epoch sees a part of a window, with at most `EPOCH_ROWS` rows, and the next epoch the
next part.
"""

import math

import numpy as np
import pyarrow as pa
import tensorflow as tf

from bayesnde_cli.model.likelihood import END, ColumnCells
from bayesnde_cli.rng import derive_seed, generator
from bayesnde_cli.rows import Rows
from bayesnde_cli.runs.layout import RunLayout
from bayesnde_cli.runs.parquet_files import count_rows, iter_batches
from bayesnde_cli.scaling.discrete import noise_inside
from bayesnde_cli.tables.model_rows import ROWS_SCHEMA, read_schema, read_table_rows, split_columns
from bayesnde_cli.tables.schema import Feature
from bayesnde_cli.training.objectives import Data

# Cells of a window, at most: 64 MiB in the model's space, and twice as much in the units of the file.
MOST_CELLS = 2**24
# Rows of an epoch, at most: a short training shall not have to see all rows of a large table.
EPOCH_ROWS = 2**17
# Values of a smaller share of the rows, or with narrower cells in the model's space, are treated as points. It also
# limits the number of cells in a column, which every row is compared with.
_LEAST_SHARE, _LEAST_WIDTH = 0.004, 0.02


def as_tensors(rows: Rows) -> Data:
    """Features and one-hot classes as a round reads them."""
    return tf.constant(rows.x), None if rows.y is None else tf.constant(rows.y)


class TrainingRows:
    """The training rows of a run. `first` are those of the first window: all of them, unless there are too many."""

    def __init__(self, layout: RunLayout, seed: int, *, fresh_noise: bool, is_whole: bool) -> None:
        """With `is_whole`, all rows are kept in memory: some objectives have a latent for each."""
        self._path, self._schema, self.seed = layout.split_file("train"), read_schema(layout), seed
        noisy = self._schema.image is None and any(feature.map.noise is not None for feature in self._schema.features)
        self._has_values, self._has_fresh_noise = noisy, noisy and fresh_noise
        self.n_rows = count_rows(self._path, ROWS_SCHEMA)
        n_cells = self.n_rows * len(self._schema.features)
        self.n_windows = 1 if is_whole else math.ceil(n_cells / MOST_CELLS)
        self._keep(self._read(0), is_whole=is_whole)

    def _keep(self, first: Rows, *, is_whole: bool) -> None:
        self.first = first
        self._n_parts = 1 if is_whole else math.ceil(len(first) / EPOCH_ROWS)
        self.n_epoch_rows = len(first) // self._n_parts
        # Reading a window takes longer than an epoch of few rows.
        self._n_turns = self._n_parts if self.n_windows == 1 else max(self._n_parts, EPOCH_ROWS // max(len(first), 1))
        self._window: tuple[int, Rows] = 0, first  # the last one that was read
        self._epoch: tuple[int | None, Data] = None, as_tensors(self._part(first, 0))

    def part(self, index: np.ndarray) -> "TrainingRows":
        """Some rows of the first window, as if there were no others."""
        part = object.__new__(TrainingRows)
        vars(part).update(vars(self) | {"n_windows": 1})
        part._keep(self.first.take(index), is_whole=self._n_parts == 1)
        return part

    def epoch(self, number: int | None) -> Data:
        """The rows of an epoch; None: those of the first window's first part, with the noise of `prepare`."""
        if self._epoch[0] != number:
            rows = self._part(self.first, 0) if number is None else self._rows_of(number)
            if number is not None and self._has_fresh_noise:
                rows = self._draw_noise(rows, number)
            self._epoch = number, as_tensors(rows)
        return self._epoch[1]

    def cells(self) -> tuple[ColumnCells, ...]:
        """The cells of frequent values in every column with noise; empty if no column has any."""
        if self.first.values is None:
            return ()
        columns = zip(self._schema.features, self.first.values.T, strict=True)
        return tuple(column_cells(feature, values) for feature, values in columns)

    def _rows_of(self, epoch: int) -> Rows:
        """The rows of an epoch, with the noise of `prepare`."""
        number, turn = divmod(epoch, self._n_turns)
        order = generator(self.seed, "windows", number // self.n_windows).permutation(self.n_windows)
        window = int(order[number % self.n_windows])
        if self._window[0] != window:
            self._window = window, self.first if window == 0 else self._read(window)
        return self._part(self._window[1], turn % self._n_parts)

    def _part(self, rows: Rows, number: int) -> Rows:
        """Every n-th row; all parts have as many rows, so a few of the last ones are left out."""
        return (
            rows if self._n_parts == 1 else rows.take(slice(number, self.n_epoch_rows * self._n_parts, self._n_parts))
        )

    def _read(self, window: int) -> Rows:
        """Every k-th row of the file; all windows have as many rows, so a few at the end of the file are left out."""
        columns = split_columns(self._schema, with_values=self._has_values).names
        kept, first = [], 0
        for batch in iter_batches(self._path, ROWS_SCHEMA, columns):
            is_kept = np.arange(first, first + batch.num_rows) % self.n_windows == window
            kept.append(batch if self.n_windows == 1 else batch.filter(pa.array(is_kept)))
            first += batch.num_rows
        table = pa.Table.from_batches(kept).slice(0, self.n_rows // self.n_windows)
        return read_table_rows(table, self._schema, with_values=self._has_values)

    def _draw_noise(self, rows: Rows, epoch: int) -> Rows:
        """The rows in the model's space with the noise of an epoch."""
        assert rows.values is not None
        seed, x = derive_seed(self.seed, "dequantize", epoch), rows.x.copy()
        for position, feature in enumerate(self._schema.features):
            if feature.map.noise is not None:
                x[:, position] = feature.scale(rows.values[:, position], rows.row_ids, seed)[0]
        return Rows(x, y=rows.y)


def column_cells(feature: Feature, values: np.ndarray) -> ColumnCells:
    """The cells of a column's frequent values in the model's space; none without noise."""
    inside = None if feature.map.noise is None else noise_inside(feature.map)
    if inside is None:
        return ColumnCells()
    known, counts = np.unique(values, return_counts=True)
    lower, upper = (edge.astype(np.float32) for edge in feature.cells(known))  # rows are looked up in float32
    upper[:-1] = np.where(np.diff(known) == 1.0, lower[1:], upper[:-1])  # neighbours touch, to the last bit
    is_kept = (counts >= _LEAST_SHARE * len(values)) & (upper - lower >= _LEAST_WIDTH)
    for edge in (lower, upper):  # a cell is kept whole or not at all
        is_kept &= np.isinf(edge) | (np.abs(edge) <= END)
    first, last = (tuple(np.clip(edge[is_kept], -END, END).tolist()) for edge in (lower, upper))
    return ColumnCells(first, last, *inside)
