"""Columns in which a continuous density is not defined: what `prepare` warned of, found again in the training rows."""

import numpy as np

from bayesnde_cli.data.checks import LINEAR_CHECK_ROWS, linear_relations
from bayesnde_cli.data.kinds import Kind
from bayesnde_cli.data.schema import Schema
from bayesnde_cli.report.report_data import DoubtfulColumns

# A value of a continuous column that more than this share of the rows have: as in `prepare`.
_SPIKE_SHARE = 0.1


def doubtful_columns(schema: Schema, x_scaled: np.ndarray) -> DoubtfulColumns:
    """Continuous columns with a value that recurs, and columns that are linear functions of others. (rows, p)."""
    if schema.image is not None:  # every pixel has its noise, and a neighbour is no fault
        return DoubtfulColumns((), ())
    spikes = []
    for index, feature in enumerate(schema.features):
        if feature.kind is Kind.CONTINUOUS and feature.map.noise is None:
            _, counts = np.unique(x_scaled[:, index], return_counts=True)
            if counts.max() > _SPIKE_SHARE * len(x_scaled):
                spikes.append((feature.name, float(counts.max() / len(x_scaled))))
    some = x_scaled[:LINEAR_CHECK_ROWS].astype(np.float64)
    values = np.stack([feature.map.inverse(some[:, index]) for index, feature in enumerate(schema.features)], axis=1)
    relations = linear_relations(values, [feature.name for feature in schema.features])
    return DoubtfulColumns(tuple(spikes), tuple((relation.column, relation.others) for relation in relations))
