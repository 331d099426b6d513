"""Training rows as values with dequantisation noise: noise for every epoch, and the cells that values have."""

from dataclasses import replace

import numpy as np
import pyarrow as pa
import tensorflow as tf

from bayesnde_cli.artifacts.layout import RunLayout
from bayesnde_cli.artifacts.tables import read_table
from bayesnde_cli.data.scaling.value_cells import noise_width
from bayesnde_cli.data.schema import Feature, Schema
from bayesnde_cli.model.cells import END, ColumnCells
from bayesnde_cli.rng import derive_seed
from bayesnde_cli.stages.prepare.writing import ROWS_SCHEMA, ROWS_SCHEMA_VERSION, raw_fields, rows_schema, stored_values
from bayesnde_cli.stages.reading import odd_rows_refused, read_schema

# Values of fewer rows than this, or of narrower cells in the model's space, are as good as points. It bounds the cells
# of a column, too: every row looks its own up.
_LEAST_SHARE, _LEAST_WIDTH = 0.004, 0.02


class NoisyValues:
    """The values of the training rows, and where noise puts them."""

    def __init__(self, schema: Schema, values: np.ndarray, row_ids: np.ndarray, seed: int) -> None:
        self._schema, self._values, self._row_ids, self._seed = schema, values, row_ids, seed
        self._last: tuple[int, tf.Tensor] | None = None

    def x(self, epoch: int) -> tf.Tensor:
        """The rows in the model's space, with noise of this epoch's own. (rows, p) float32.

        A model that meets the same rows with the same noise again and again learns the noise by heart, too.
        """
        if self._last is None or self._last[0] != epoch:
            anew = replace(self._schema, seed=derive_seed(self._seed, "dequantize", epoch))
            self._last = epoch, tf.constant(anew.scale(self._values, self._row_ids)[0])
        return self._last[1]

    def cells(self) -> tuple[ColumnCells, ...]:
        """The cells of every column, those of frequent values with room for noise."""
        columns = zip(self._schema.features, self._values.T, strict=True)
        return tuple(_column_cells(feature, values) for feature, values in columns)


def read_noisy_values(layout: RunLayout, seed: int) -> NoisyValues | None:
    """The training rows; None where no column has noise, and for images."""
    schema = read_schema(layout)
    if schema.image is not None or all(feature.map.noise is None for feature in schema.features):
        return None
    path = layout.split_file("train")
    columns = pa.schema([rows_schema(schema).field("row_id"), *raw_fields(schema)])
    table = read_table(path, ROWS_SCHEMA, columns, schema_version=ROWS_SCHEMA_VERSION)
    with odd_rows_refused(path):
        return NoisyValues(schema, stored_values(table, schema), table["row_id"].to_numpy(), seed)


def _column_cells(feature: Feature, values: np.ndarray) -> ColumnCells:
    width = None if feature.map.noise is None else noise_width(feature.map)
    if width is None:
        return ColumnCells()
    known, counts = np.unique(values, return_counts=True)
    # As float32, which is how rows are looked up.
    lower, upper = (np.clip(edge.astype(np.float32), -END, END) for edge in feature.cells(known))
    is_kept = (counts >= _LEAST_SHARE * len(values)) & (upper - lower >= _LEAST_WIDTH)
    upper[:-1] = np.where(np.diff(known) == 1.0, lower[1:], upper[:-1])  # neighbours touch, to the last bit
    return ColumnCells(tuple(lower[is_kept].tolist()), tuple(upper[is_kept].tolist()), width)
