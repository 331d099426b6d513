"""Baselines on the rows at hand."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from bayesnde_cli.data.kinds import Kind
from bayesnde_cli.data.schema import Schema
from bayesnde_cli.evaluation.baselines import (
    DENSITIES,
    DETECTORS,
    Method,
    Part,
    Parts,
    compared,
    competitor,
    density_figures,
    detector_figures,
)
from bayesnde_cli.evaluation.baselines.competitors import competitors
from bayesnde_cli.evaluation.baselines.fitted import FitParts, FittedParts
from bayesnde_cli.evaluation.baselines.kept import Keeper
from bayesnde_cli.evaluation.figures import Figures, figure
from bayesnde_cli.stages.evaluate.rows import TableRows
from bayesnde_cli.stages.reporting import Report

# The mixture once more where the columns have gone through their own distributions, as the model sees them.
_MIXTURE, SCALED_MIXTURE = "gaussian_mixture", "gaussian_mixture_scaled"
# Of roundtrip: steps of the trial that chooses a scaling, draws where validation rows are compared, and for a density.
# The paper has 40,000 of a proposal that is not chosen; ours is, and 10,000 are quicker.
_TRIAL_STEPS, _FEW_DRAWS, _DRAWS = 1000, 1000, 10_000


def _roundtrip(n_steps: int | None = None, *, keeper: Keeper | None = None) -> FitParts:
    """Roundtrip, which needs our networks; they are loaded when it is fitted."""

    def fit(train: Part, validation: Part, seed: int) -> FittedParts:
        from bayesnde_cli.model.backend import load_tensorflow

        load_tensorflow()
        from bayesnde_cli.stages.evaluate.roundtrip import CONFIG, roundtrip

        config = CONFIG if n_steps is None else replace(CONFIG, egm_steps=n_steps, checks=1)
        fitted = roundtrip(train, validation, seed, config=config, n_draws=_DRAWS, keeper=keeper)

        chosen = dict(fitted.chosen)

        def score(part: Part) -> np.ndarray:
            if part is validation:
                return fitted.estimate(part, _FEW_DRAWS).log_density
            found = fitted.estimate(part, _DRAWS)
            # Where the proposal misses, the density is too low and the error too small; a large share tells.
            chosen["mean_mc_se"] = figure(float(np.nanmean(found.mc_se)))
            chosen["share_above_0.3"] = figure(float(np.mean(found.mc_se > 0.3)))
            return found.log_density

        return FittedParts(score, chosen)

    return fit


def methods(keeper: Keeper | None = None) -> Mapping[str, Method]:
    """All that the model can be compared with; with a keeper, long fits go on where they were stopped."""
    roundtrip = Method(_roundtrip(keeper=keeper), _roundtrip(_TRIAL_STEPS, keeper=keeper))
    return {**competitors(keeper), "roundtrip": roundtrip}


METHODS = methods()


class Tables(NamedTuple):
    """All rows of the comparison."""

    train: TableRows
    validation: TableRows
    evaluated: TableRows

    def spaces(self, schema: Schema) -> dict[str, Parts]:
        """The rows as baselines take them: as in the file, with their noise; and as the model sees them."""

        def parts(part: Callable[[TableRows], Part]) -> Parts:
            return Parts(part(self.train), part(self.validation), part(self.evaluated), schema.classes)

        return {
            "file": parts(lambda table: Part(schema.noisy(table.values, table.row_ids), table.classes)),
            "model": parts(lambda table: Part(table.x.astype(np.float64), table.classes, table.log_jacobian)),
        }


def plain_figures(schema: Schema, tables: Tables, log_density: np.ndarray, *, seed: int, report: Report) -> Figures:
    """Every plain estimator by name, beside the log-density of the evaluated rows.

    Detectors of outliers only where outliers are labelled.
    """
    is_outlier = tables.evaluated.is_outlier
    spaces = tables.spaces(schema)
    densities = {name: (name, spaces["file"]) for name in DENSITIES} | {SCALED_MIXTURE: (_MIXTURE, spaces["model"])}
    if why_no_mixtures(schema):
        densities = {name: item for name, item in densities.items() if item[0] != _MIXTURE}
    figures = {}
    with report.progress("baselines", len(densities) + (is_outlier is not None) * len(DETECTORS), "fits") as advance:
        for name, (kind, parts) in densities.items():
            figures[name] = density_figures(kind, parts, log_density, is_outlier, seed=seed)
            advance(1)
        if is_outlier is not None:
            for name in DETECTORS:
                figures[name] = detector_figures(name, spaces["file"], is_outlier, seed=seed)
                advance(1)
    return figures


def competitor_figures(
    schema: Schema, tables: Tables, log_density: np.ndarray, names: Sequence[str],
    *, seed: int, report: Report, methods: Mapping[str, Method] = METHODS,
) -> Figures:  # fmt: skip
    """The competitors of these names, each in the better of the two spaces; `methods` may hold others than ours."""
    spaces = tables.spaces(schema)
    figures = {}
    with report.progress("competitors", len(names), "fits") as advance:
        for name in names:
            found = competitor(name, spaces, seed=seed, methods=methods)
            figures[name] = compared(found.log_density, found.chosen, log_density, tables.evaluated.is_outlier)
            advance(1)
    return figures


def why_no_baselines(schema: Schema) -> str | None:
    """Why baselines have no density in these columns, if they have none."""
    for feature in schema.features:
        if feature.kind is not Kind.CONTINUOUS and feature.map.noise is None:
            return f"column '{feature.name}' is {feature.kind} and without noise: it has no continuous density"
    return None


def why_no_mixtures(schema: Schema) -> str | None:
    """Why no Gaussian mixture is fitted, if none is: each step of EM has a covariance of all pixels a component."""
    return None if schema.image is None else f"of {schema.image.n_pixels:,} pixels they would take too long"
