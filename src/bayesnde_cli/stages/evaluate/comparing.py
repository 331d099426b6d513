"""Baselines on the rows at hand."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from bayesnde_cli.data.kinds import Kind
from bayesnde_cli.data.schema import Schema
from bayesnde_cli.evaluation.baselines import DENSITIES, DETECTORS, Part, Parts, density_figures, detector_figures
from bayesnde_cli.evaluation.figures import Figures
from bayesnde_cli.stages.evaluate.rows import TableRows
from bayesnde_cli.stages.reporting import Report

# The mixture once more where the columns have gone through their own distributions, as the model sees them.
SCALED_MIXTURE = "gaussian_mixture_scaled"


class Tables(NamedTuple):
    """All rows of the comparison."""

    train: TableRows
    validation: TableRows
    evaluated: TableRows

    def parts(self, cells: Callable[[TableRows], np.ndarray], log_jacobian: np.ndarray, schema: Schema) -> Parts:
        """The rows as baselines take them, in the space that `cells` brings them to."""
        train, validation, evaluated = (Part(cells(table), table.classes) for table in self)
        return Parts(train, validation, evaluated, log_jacobian, schema.classes)


def baseline_figures(schema: Schema, tables: Tables, log_density: np.ndarray, *, seed: int, report: Report) -> Figures:
    """Every baseline by name, beside the log-density of the evaluated rows.

    Detectors of outliers only where outliers are labelled.
    """
    evaluated = tables.evaluated
    is_outlier = evaluated.is_outlier
    in_file = tables.parts(
        lambda table: schema.noisy(table.values, table.row_ids), np.zeros(len(evaluated.values)), schema
    )
    scaled = tables.parts(lambda table: table.x.astype(np.float64), evaluated.log_jacobian, schema)
    densities = {name: (name, in_file) for name in DENSITIES} | {SCALED_MIXTURE: ("gaussian_mixture", scaled)}
    figures = {}
    with report.progress("baselines", len(densities) + (is_outlier is not None) * len(DETECTORS), "fits") as advance:
        for name, (kind, parts) in densities.items():
            figures[name] = density_figures(kind, parts, log_density, is_outlier, seed=seed)
            advance(1)
        if is_outlier is not None:
            for name in DETECTORS:
                figures[name] = detector_figures(name, in_file, is_outlier, seed=seed)
                advance(1)
    return figures


def why_no_baselines(schema: Schema) -> str | None:
    """Why baselines have no density in these columns, if they have none."""
    for feature in schema.features:
        if feature.kind is not Kind.CONTINUOUS and feature.map.noise is None:
            return f"column '{feature.name}' is {feature.kind} and without noise: it has no continuous density"
    return None
