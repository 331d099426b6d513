"""Training rows as values with dequantisation noise: noise for every epoch, and the cells that values have."""

import numpy as np
import pyarrow as pa
import tensorflow as tf

from bayesnde_cli.artifacts.layout import RunLayout
from bayesnde_cli.artifacts.tables import read_table
from bayesnde_cli.data.scaling.value_cells import noise_inside
from bayesnde_cli.data.schema import Feature, Schema
from bayesnde_cli.model.cells import END, ColumnCells
from bayesnde_cli.rng import derive_seed
from bayesnde_cli.stages.prepare.writing import ROWS_SCHEMA, ROWS_SCHEMA_VERSION, raw_fields, rows_schema, stored_values
from bayesnde_cli.stages.reading import odd_rows_refused, read_schema
from bayesnde_cli.stages.training.rows import Rows

# Values of fewer rows than this, or of narrower cells in the model's space, are as good as points. It bounds the cells
# of a column, too: every row looks its own up.
_LEAST_SHARE, _LEAST_WIDTH = 0.004, 0.02


class NoisyValues:
    """The values of the training rows, and where noise puts them."""

    def __init__(self, schema: Schema, values: np.ndarray, rows: Rows, seed: int) -> None:
        self._schema, self._values, self._rows, self._seed = schema, values, rows, seed
        self._last: tuple[int, tf.Tensor] | None = None

    def x(self, epoch: int) -> tf.Tensor:
        """The rows in the model's space, with noise of this epoch's own. (rows, p) float32.

        A model that meets the same rows with the same noise again and again learns the noise by heart, too.
        """
        if self._last is None or self._last[0] != epoch:
            seed, x = derive_seed(self._seed, "dequantize", epoch), self._rows.x.copy()
            for position, feature in enumerate(self._schema.features):
                if feature.map.noise is not None:
                    x[:, position] = feature.scale(self._values[:, position], self._rows.row_ids, seed)[0]
            self._last = epoch, tf.constant(x)
        return self._last[1]

    def cells(self) -> tuple[ColumnCells, ...]:
        """The cells of every column, those of frequent values with room for noise."""
        columns = zip(self._schema.features, self._values.T, strict=True)
        return tuple(_column_cells(feature, values) for feature, values in columns)


def read_noisy_values(layout: RunLayout, rows: Rows, seed: int) -> NoisyValues | None:
    """The values of the training rows; None where no column has noise, and for images."""
    schema = read_schema(layout)
    if schema.image is not None or all(feature.map.noise is None for feature in schema.features):
        return None
    path = layout.split_file("train")
    columns = pa.schema([rows_schema(schema).field("row_id"), *raw_fields(schema)])
    table = read_table(path, ROWS_SCHEMA, columns, schema_version=ROWS_SCHEMA_VERSION)
    with odd_rows_refused(path):
        return NoisyValues(schema, stored_values(table, schema), rows, seed)


def _column_cells(feature: Feature, values: np.ndarray) -> ColumnCells:
    inside = None if feature.map.noise is None else noise_inside(feature.map)
    if inside is None:
        return ColumnCells()
    known, counts = np.unique(values, return_counts=True)
    lower, upper = (edge.astype(np.float32) for edge in feature.cells(known))  # which is how rows are looked up
    upper[:-1] = np.where(np.diff(known) == 1.0, lower[1:], upper[:-1])  # neighbours touch, to the last bit
    is_kept = (counts >= _LEAST_SHARE * len(values)) & (upper - lower >= _LEAST_WIDTH)
    for edge in (lower, upper):  # a cell is all there or not at all
        is_kept &= np.isinf(edge) | (np.abs(edge) <= END)
    first, last = (tuple(np.clip(edge[is_kept], -END, END).tolist()) for edge in (lower, upper))
    return ColumnCells(first, last, *inside)
