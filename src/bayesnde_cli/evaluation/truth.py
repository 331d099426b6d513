"""Estimated against true log-densities."""

import numpy as np
from scipy.stats import rankdata

from bayesnde_cli.evaluation.figures import Figures, figure


def truth_figures(log_density: np.ndarray, truth: np.ndarray) -> Figures:
    """Agreement over the rows where both are finite. (rows,) each; `mean_difference` is estimated less true."""
    both = np.isfinite(log_density) & np.isfinite(truth)
    found, true = log_density[both], truth[both]
    n = len(found)
    difference = found - true
    return {
        "n": n,
        "spearman": _correlation(rankdata(found), rankdata(true)),
        "pearson": _correlation(found, true),
        "rmse": figure(np.sqrt(np.mean(difference**2))) if n else None,
        "mean_difference": figure(np.mean(difference)) if n else None,
    }


def _correlation(x: np.ndarray, y: np.ndarray) -> float | None:
    """Pearson's correlation; None if one of the two is constant."""
    if len(x) < 2:
        return None
    x, y = x - x.mean(), y - y.mean()
    norm = np.sqrt(np.sum(x**2) * np.sum(y**2))
    return figure(np.sum(x * y) / norm) if norm > 0 else None
