"""Rows that the model has made, as the user's columns: the way back of `new_rows`.

A cell of a lattice or categorical column is made with its noise; the value is what is left without it.
"""

from typing import NamedTuple

import numpy as np
import pyarrow as pa

from bayesnde_cli.data.kinds import LARGEST_EXACT_INTEGER, Kind
from bayesnde_cli.data.schema import Feature, Schema

# A share of the noise stays off its ends, as it does in `prepare`.
_LEAST_FRACTION = 2.0**-53


class MadeColumn(NamedTuple):
    """A column in the units of the file."""

    value: np.ndarray  # (rows,) float64: numbers, or positions among the categories
    fraction: np.ndarray | None  # (rows,) of the noise that the value was made with; None without noise

    def rows(self, start: int, stop: int) -> "MadeColumn":
        """Some of the rows."""
        return MadeColumn(self.value[start:stop], None if self.fraction is None else self.fraction[start:stop])


def made_column(feature: Feature, u: np.ndarray) -> MadeColumn:
    """The column behind its values u (rows,) in the model's space."""
    y = feature.map.inverse(u.astype(np.float64))
    value = feature.map.to_value(y)
    if feature.kind is not Kind.CONTINUOUS:
        lowest, highest = _limits(feature)
        value = np.clip(np.rint(value), lowest, highest)
    noise = feature.map.noise
    if noise is None:
        return MadeColumn(value, None)
    fraction = (y - value - noise.low) / noise.width
    return MadeColumn(value, np.clip(fraction, _LEAST_FRACTION, 1.0 - _LEAST_FRACTION))


def cells(feature: Feature, column: MadeColumn) -> pa.Array:
    """The cells of the file: words of categories, whole numbers of a lattice."""
    if feature.kind is Kind.CATEGORICAL:
        return pa.array(feature.categories, pa.string()).take(pa.array(column.value.astype(np.int64)))
    if feature.kind is Kind.LATTICE:
        return pa.array(column.value.astype(np.int64))
    return pa.array(column.value)


def scaled_again(schema: Schema, columns: list[MadeColumn]) -> tuple[np.ndarray, np.ndarray]:
    """The rows in the model's space (rows, p) float32, and their log-Jacobian (rows,), as the file tells them.

    With the noise that they were made with; a rounding off the lattice, where there is no noise, is in it.
    """
    made = [
        feature.map.forward(column.value, column.fraction)
        for feature, column in zip(schema.features, columns, strict=True)
    ]
    x = np.stack([u for u, _ in made], axis=1).astype(np.float32)
    return x, np.sum([log_slope for _, log_slope in made], axis=0)


def cell_type(feature: Feature) -> pa.DataType:
    """The type of the cells."""
    return {Kind.CATEGORICAL: pa.string(), Kind.LATTICE: pa.int64(), Kind.CONTINUOUS: pa.float64()}[feature.kind]


def _limits(feature: Feature) -> tuple[float, float]:
    if feature.kind is Kind.CATEGORICAL:
        return 0.0, len(feature.categories) - 1.0
    return -LARGEST_EXACT_INTEGER, LARGEST_EXACT_INTEGER
