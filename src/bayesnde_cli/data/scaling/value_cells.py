"""Where the values of a column with noise lie in the model's space: each has a cell, which its noise does not leave."""

import numpy as np

from bayesnde_cli.data.scaling.affine import Affine
from bayesnde_cli.data.scaling.categorical import CategoricalMarginal
from bayesnde_cli.data.scaling.column_map import Array, ColumnMap
from bayesnde_cli.data.scaling.lattice import LatticeMarginal


def value_cells(column: ColumnMap, values: Array) -> tuple[Array, Array]:
    """The ends of each value's cell: between them lies what `to_value` takes back to the value. (n,) each.

    Maps of a lattice have nothing between their cells; the others are cut halfway between the values.
    """
    assert column.noise is not None
    half = 0.5 if _is_marginal(column) else 0.5 / column.noise.width
    with np.errstate(divide="ignore"):  # the outer ends of bytes under a logit are infinite, as they should be
        low, high = (column.forward(values, np.full(len(values), 0.5 + side * half))[0] for side in (-1, 1))
    return low, high


def noise_inside(column: ColumnMap) -> tuple[float, float] | None:
    """How wide uniform noise is inside a cell, and the step from value to value; None if noise leaves the cells.

    Both are 0 where the noise has become a standard normal distribution, cut to the cell.
    """
    if _is_marginal(column):
        return 0.0, 0.0
    if isinstance(column, Affine) and column.noise is not None and column.noise.width <= 1.0:
        return column.noise.width / column.scale, 1.0 / column.scale
    return None


def _is_marginal(column: ColumnMap) -> bool:
    return isinstance(column, CategoricalMarginal | LatticeMarginal)
