"""Where the values of a column with noise lie in the model's space: cells that noise does not leave."""

from typing import NamedTuple

import numpy as np

from bayesnde_cli.data.scaling.affine import Affine
from bayesnde_cli.data.scaling.categorical import CategoricalMarginal
from bayesnde_cli.data.scaling.column_map import Array, ColumnMap
from bayesnde_cli.data.scaling.lattice import LatticeMarginal


class ValueCells(NamedTuple):
    """The cell of each value, (n,) each. Cells of neighbouring values touch."""

    lower: Array
    upper: Array
    width: float  # of uniform noise inside; 0: inside, it is a standard normal cut to the cell


def value_cells(column: ColumnMap, values: Array) -> ValueCells | None:
    """The cells of values that the column's map knows; None if it has no noise, or if cells would overlap."""
    if isinstance(column, LatticeMarginal | CategoricalMarginal):
        cells = column.cells_at(values)
        ends = cells.normal_at(np.zeros(len(values))), cells.normal_at(np.ones(len(values)))
        return ValueCells(*ends, 0.0)
    if isinstance(column, Affine) and column.noise is not None and column.noise.width <= 1.0:
        low, high = column.noise
        middle = values + 0.5 * (low + high)
        lower, upper = (((middle + side) - column.shift) / column.scale for side in (-0.5, 0.5))
        return ValueCells(lower, upper, column.noise.width / column.scale)
    return None
