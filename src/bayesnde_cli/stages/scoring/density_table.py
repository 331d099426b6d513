"""The density of rows as a table: the columns of `density.parquet`."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from bayesnde_cli.inference.verdicts import NO_CELLS

if TYPE_CHECKING:
    from bayesnde_cli.stages.scoring.rows import BlockRows

# A table of an earlier version is read, and lacks columns; a set that was begun with one is not gone on with.
DENSITY_SCHEMA, DENSITY_VERSION = "density", 2  # 2: mc_se_is
# The figures of the engine, in the order of the table.
_FIGURES = {
    "log_density_scaled": pa.float64(),
    "mc_se": pa.float64(),
    "log_density_is": pa.float64(),
    "mc_se_is": pa.float64(),
    "overlap": pa.float64(),
    "ess_min": pa.float64(),
    "rhat_max": pa.float64(),
    "missed_mass": pa.float64(),
    "acceptance": pa.float64(),
    "divergences": pa.int32(),
    "bridge_iterations": pa.int32(),
    "converged": pa.bool_(),
    "reliable": pa.bool_(),
    "verdict": pa.string(),
}
_SPENT = {"n_gradients": pa.int64(), "n_likelihoods": pa.int64()}

_OF_NO_CELLS = {
    "log_density_scaled": 0.0,
    "mc_se": 0.0,
    "log_density_is": 0.0,
    "mc_se_is": 0.0,
    "converged": True,
    "reliable": True,
    "verdict": NO_CELLS,
}


def density_columns(labels: Sequence[pa.Field]) -> pa.Schema:
    """The columns of a set whose rows came with these labels."""
    return pa.schema(
        [
            ("row_id", pa.int64()),
            ("log_density", pa.float64()),
            *_FIGURES.items(),
            ("n_observed", pa.int32()),
            *_SPENT.items(),
            *labels,
        ]
    )


def density_table(rows: "BlockRows", figures: dict[str, np.ndarray], columns: pa.Schema) -> pa.Table:
    """The rows of a block with their figures; arrays may be longer, by the rows that fill the block up.

    log_density, log_density_is: log p(observed cells) in the units of the file, the log-Jacobian included.
    """
    n_rows = len(rows.row_ids)
    n_observed = rows.observed.sum(axis=1)
    values = {name: np.array(figures[name][:n_rows]) for name in (*_FIGURES, *_SPENT)}
    values["verdict"] = values["verdict"].astype(object)
    for name, value in _OF_NO_CELLS.items():
        values[name][n_observed == 0] = value
    values["log_density_is"] = values["log_density_is"] + rows.log_jacobian
    values |= {
        "row_id": rows.row_ids,
        "log_density": values["log_density_scaled"] + rows.log_jacobian,
        "n_observed": n_observed,
    }
    arrays = [
        rows.labels[field.name].combine_chunks() if field.name in rows.labels.column_names
        else pa.array(values[field.name], field.type)
        for field in columns
    ]  # fmt: skip
    return pa.Table.from_arrays(arrays, schema=columns)
