"""Other estimators on the same rows: training rows fit them, validation rows choose, evaluated rows are scored.

The evaluated rows have no say in anything that is fitted or chosen.
"""

import numpy as np

from bayesnde_cli.evaluation.baselines.competitors import (
    COMPETITORS,
    DENSITIES,
    DETECTORS,
    Competitor,
    Method,
    competitor,
    with_class_names,
)
from bayesnde_cli.evaluation.baselines.fitted import Fit, by_class
from bayesnde_cli.evaluation.baselines.parts import Part, Parts
from bayesnde_cli.evaluation.figures import Figures, mean_figures
from bayesnde_cli.evaluation.outliers import outlier_figures, outlier_score
from bayesnde_cli.evaluation.scores import gain_figures
from bayesnde_cli.rng import derive_seed

__all__ = [
    "COMPETITORS", "DENSITIES", "DETECTORS", "Competitor", "Method", "Part", "Parts", "compared", "competitor",
    "density_figures", "detector_figures",
]  # fmt: skip


def density_figures(
    name: str, parts: Parts, log_density: np.ndarray, is_outlier: np.ndarray | None, *, seed: int
) -> Figures:
    """A plain density on the evaluated rows of one space, beside the `log_density` of these rows."""
    standard = parts.standardised()
    score, chosen = _scores(DENSITIES[name], standard, derive_seed(seed, name))
    return compared(standard.evaluated.in_file(score), chosen, log_density, is_outlier)


def compared(found: np.ndarray, chosen: Figures, log_density: np.ndarray, is_outlier: np.ndarray | None) -> Figures:
    """The log-densities that a baseline `found`, in the units of the file, beside the `log_density` of the same rows.

    Means are over the `n` rows where both are finite.
    """
    both = np.isfinite(found) & np.isfinite(log_density)
    mean, se = mean_figures(found[both])
    return {
        "n": int(both.sum()),
        "mean_log_density": mean,
        "mean_log_density_se": se,
        "n_not_finite": int((~np.isfinite(found)).sum()),
        **gain_figures(log_density[both], found[both]),
        "chosen": chosen,
        "outliers": None if is_outlier is None else outlier_figures(outlier_score(found), is_outlier),
    }


def detector_figures(name: str, parts: Parts, is_outlier: np.ndarray, *, seed: int) -> Figures:
    """An outlier detector on the evaluated rows."""
    score, chosen = _scores(DETECTORS[name], parts.standardised(), derive_seed(seed, name))
    return {"chosen": chosen, "outliers": outlier_figures(outlier_score(score), is_outlier)}


def _scores(fit: Fit, parts: Parts, seed: int) -> tuple[np.ndarray, Figures]:
    """The score of every evaluated row, under a fit of its own class if there are classes, and what was chosen."""
    fitted = by_class(fit)(parts.train, parts.validation, seed)
    chosen = with_class_names(fitted.chosen, parts.class_names)
    return fitted.score(parts.evaluated), chosen.get("classes", chosen)
