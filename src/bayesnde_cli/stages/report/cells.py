"""Between the model's space and the units of the file, column by column."""

import numpy as np

from bayesnde_cli.data.scaling import ColumnMap
from bayesnde_cli.data.schema import Feature, Schema

# The noise of a cell's very edge, as a share of the cell: the maps take shares between 0 and 1.
_EDGE = 1e-9


def file_cells(schema: Schema, x_scaled: np.ndarray) -> np.ndarray:
    """Rows in the units of the file, categories by their position, without noise. (rows, p) float64, NaN kept."""
    cells = np.full(x_scaled.shape, np.nan)
    for index, feature in enumerate(schema.features):
        is_there = ~np.isnan(x_scaled[:, index])
        y = feature.map.inverse(x_scaled[is_there, index].astype(np.float64))
        cells[is_there, index] = feature.map.to_value(y)
    return cells


def scaled_places(column: ColumnMap, y: np.ndarray) -> np.ndarray:
    """Places of a column, noise included, in the model's space. (n,) -> (n,)."""
    noise = column.noise
    if noise is None:
        return column.forward(y)[0]
    value = column.to_value(y)  # an edge between two cells belongs to one that is there
    fraction = np.clip((y - value - noise.low) / noise.width, _EDGE, 1 - _EDGE)
    return column.forward(value, fraction)[0]


def edges_with_noise(feature: Feature, edges: np.ndarray) -> np.ndarray:
    """Edges halfway between values as edges between the cells of value plus noise, in the units of the file."""
    noise = feature.map.noise
    return edges if noise is None else edges + 0.5 * (noise.low + noise.high)
