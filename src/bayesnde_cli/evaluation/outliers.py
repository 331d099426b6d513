"""How well scores find the outliers, in PyOD's orientation: the larger the score, the more outlying the row.

Equal scores are no order: where outliers and others tie, a figure is what it is on average over the orders of the tied
rows (precision at k, AUROC), or takes them together (average precision, as scikit-learn does).
"""

import numpy as np
from scipy.stats import rankdata

from bayesnde_cli.evaluation.figures import Figures


def outlier_score(log_density: np.ndarray) -> np.ndarray:
    """Minus the log-density; a row without a number is as outlying as can be."""
    return np.where(np.isnan(log_density), np.inf, -log_density)


def outlier_figures(score: np.ndarray, is_outlier: np.ndarray) -> Figures:
    """Precision at k, k the number of outliers, AUROC and average precision. (rows,) each.

    None if all rows are outliers, or none is.
    """
    n_outliers = int(is_outlier.sum())
    figures: Figures = {"n": len(is_outlier), "n_outliers": n_outliers}
    figures |= {"precision_at_k": None, "auroc": None, "average_precision": None}
    if 0 < n_outliers < len(is_outlier):
        figures["precision_at_k"] = precision_at_k(score, is_outlier, n_outliers)
        figures["auroc"] = auroc(score, is_outlier)
        figures["average_precision"] = average_precision(score, is_outlier)
    return figures


def precision_at_k(score: np.ndarray, is_outlier: np.ndarray, k: int) -> float:
    """The share of outliers among the k rows of the largest scores."""
    last = np.sort(score)[-k]
    above, tied = score > last, score == last
    share = is_outlier[tied].mean()  # of the tied rows, who fill the places that are left
    return float((is_outlier[above].sum() + share * (k - above.sum())) / k)


def auroc(score: np.ndarray, is_outlier: np.ndarray) -> float:
    """The probability that an outlier scores above another row, a tie counting half: Mann and Whitney's U / (n m)."""
    n, m = int(is_outlier.sum()), int((~is_outlier).sum())
    ranks = rankdata(score)  # tied rows share their mean rank
    return float((ranks[is_outlier].sum() - n * (n + 1) / 2) / (n * m))


def average_precision(score: np.ndarray, is_outlier: np.ndarray) -> float:
    """The sum over thresholds of (recall gained) x (precision there)."""
    order = np.argsort(-score, kind="stable")
    is_last = np.append(np.diff(rankdata(-score, method="dense")[order]) > 0, True)  # of each group of tied rows
    hits = np.cumsum(is_outlier[order])[is_last]
    precision = hits / (np.flatnonzero(is_last) + 1)
    return float(np.sum(np.diff(hits, prepend=0) * precision) / hits[-1])
