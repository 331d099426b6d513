"""Measures of a density from arrays of log-densities, and limits for them.

Measures are dictionaries as JSON holds them: numbers, or None where there is no number.
"""

import contextlib
import math
import operator
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy.stats import ks_2samp, rankdata

from bayesnde_cli.errors import BadUsage, RequirementNotMet, escaped, nearest_hint

Figures = dict[str, Any]


def figure(value: float) -> float | None:
    """A finite number as it is; None for any other."""
    return float(value) if math.isfinite(value) else None


def mean_figures(values: np.ndarray) -> tuple[float | None, float | None]:
    """The mean of finite values and its standard error s / sqrt(n); None where there are too few values."""
    n = len(values)
    if n == 0:
        return None, None
    return figure(math.fsum(values) / n), figure(np.std(values, ddof=1) / math.sqrt(n)) if n > 1 else None


def named_mean(name: str, values: np.ndarray) -> Figures:
    """The mean of finite values under this name, and its standard error."""
    return dict(zip((name, f"{name}_se"), mean_figures(values), strict=True))


# Log-densities


def log_density_figures(log_density: np.ndarray, log_density_scaled: np.ndarray, mc_se: np.ndarray) -> Figures:
    """The mean over the rows where it is finite, all (rows,).

    `mean_log_density_se`, s / sqrt(n), includes the Monte-Carlo error of the rows; `mean_log_density_mc_se` is that
    part alone, sqrt(sum of mc_se^2) / n.
    """
    finite = np.isfinite(log_density)
    n = int(finite.sum())
    return {
        **named_mean("mean_log_density", log_density[finite]),
        "mean_log_density_mc_se": figure(math.sqrt(np.sum(mc_se[finite] ** 2)) / n) if n else None,
        **named_mean("mean_log_density_scaled", log_density_scaled[finite]),
    }


def bits_figures(mean: Figures, n_dimensions: int) -> Figures:
    """Bits per dimension, -mean / (n log 2), and their standard error over rows.

    For bytes with noise U(0, 1) they are, in expectation, an upper bound of the bits per dimension of the bytes under
    the same model: log P(x) = log E[p(x + noise)] >= E[log p(x + noise)] (Theis, van den Oord and Bethge 2016).
    """
    nats_per_bit = n_dimensions * math.log(2.0)
    value, se = mean["mean_log_density"], mean["mean_log_density_se"]
    return {
        "bits_per_dimension": None if value is None else -value / nats_per_bit,
        "bits_per_dimension_se": None if se is None else se / nats_per_bit,
    }


def gain_figures(log_density: np.ndarray, other: np.ndarray) -> Figures:
    """The mean difference of two log-densities of the same rows, where both are finite.

    The error is that of the paired differences: what is hard for both does not count.
    """
    both = np.isfinite(log_density) & np.isfinite(other)
    return named_mean("gain", log_density[both] - other[both])


def baseline_figures(other: np.ndarray, log_density: np.ndarray) -> Figures:
    """The log-density of a baseline, and how much better ours is; means are over rows where both are finite."""
    both = np.isfinite(other) & np.isfinite(log_density)
    figures = {"n": int(both.sum()), "n_not_finite": int((~np.isfinite(other)).sum())}
    return figures | named_mean("mean_log_density", other[both]) | gain_figures(log_density, other)


def truth_figures(log_density: np.ndarray, truth: np.ndarray) -> Figures:
    """Agreement over the rows where both are finite. (rows,) each; `mean_difference` is estimated minus true."""
    both = np.isfinite(log_density) & np.isfinite(truth)
    x, y = log_density[both], truth[both]
    n = len(x)
    return {
        "n": n,
        "spearman": _correlation(rankdata(x), rankdata(y)),
        "pearson": _correlation(x, y),
        "rmse": figure(np.sqrt(np.mean((x - y) ** 2))) if n else None,
        "mean_difference": figure(np.mean(x - y)) if n else None,
    }


def _correlation(x: np.ndarray, y: np.ndarray) -> float | None:
    """Pearson's correlation; None if one of the two is constant."""
    if len(x) < 2 or np.ptp(x) == 0 or np.ptp(y) == 0:
        return None
    return figure(np.corrcoef(x, y)[0, 1])


# Outliers, in PyOD's orientation: the larger the score, the more outlying the row.


def outlier_score(log_density: np.ndarray) -> np.ndarray:
    """Minus the log-density; infinite for a row without a number."""
    return np.where(np.isnan(log_density), np.inf, -log_density)


def outlier_figures(score: np.ndarray, is_outlier: np.ndarray) -> Figures:
    """Precision at k, k the number of outliers, AUROC and average precision; None if all rows are outliers, or none.

    Scores may be infinite. Tied rows count as they would on average over their orders.
    """
    n_outliers = int(is_outlier.sum())
    figures: Figures = {"n": len(is_outlier), "n_outliers": n_outliers}
    figures |= {"precision_at_k": None, "auroc": None, "average_precision": None}
    if 0 < n_outliers < len(is_outlier):
        from sklearn.metrics import average_precision_score, roc_auc_score

        ranks = rankdata(score)
        figures["precision_at_k"] = precision_at_k(score, is_outlier, n_outliers)
        figures["auroc"] = float(roc_auc_score(is_outlier, ranks))
        figures["average_precision"] = float(average_precision_score(is_outlier, ranks))
    return figures


def precision_at_k(score: np.ndarray, is_outlier: np.ndarray, k: int) -> float:
    """The share of outliers among the k rows with the largest scores."""
    last = np.sort(score)[-k]
    above, tied = score > last, score == last
    share = is_outlier[tied].mean()  # of the tied rows, which fill the remaining places
    return float((is_outlier[above].sum() + share * (k - above.sum())) / k)


# Classes


def accuracy_figures(
    log_density: np.ndarray, mc_se: np.ndarray, true_class: np.ndarray, names: Sequence[str]
) -> Figures:
    """Accuracy of arg max_y p(x | y). log_density and mc_se (rows, classes), true_class (rows,) positions in `names`.

    A row is wrong if it has no number under some class, or two likeliest classes; it is in no column of the confusion
    matrix, whose rows are true classes. `n_close` counts the rows whose two likeliest classes differ by less than two
    Monte-Carlo errors of the difference.
    """
    highest = log_density.max(axis=1, keepdims=True)  # NaN if one of them is
    has_class = np.isfinite(highest[:, 0]) & ((log_density == highest).sum(axis=1) == 1)
    n = len(true_class)
    counts = np.zeros((len(names), len(names)), np.int64)
    np.add.at(counts, (true_class[has_class], log_density[has_class].argmax(axis=1)), 1)
    accuracy = float(np.trace(counts) / n)
    best = np.argsort(-log_density[has_class], axis=1)[:, :2]
    value, se = (np.take_along_axis(part[has_class], best, axis=1) for part in (log_density, mc_se))
    is_clear = value[:, 0] - value[:, 1] >= 2.0 * np.hypot(se[:, 0], se[:, 1])
    return {
        "accuracy": accuracy,
        # A quarter of Wilson's interval of two standard errors: not 0 where the share is 0 or 1.
        "accuracy_se": float(np.sqrt(accuracy * (1.0 - accuracy) / n + 1.0 / n**2) / (1.0 + 4.0 / n)),
        "confusion_matrix": {
            "classes": list(names),
            "counts": counts.tolist(),
            "n": n,
            "n_without_class": int((~has_class).sum()),
            "n_close": int(np.sum(~is_clear)),
        },
    }


# Typicality: are data rows as likely under the model as the model's own rows?
#
# If a model is right, log p(x) of held-out rows and of generated rows have one distribution. Held-out rows of lower
# density mean that the model puts its mass too narrowly, or elsewhere; of higher density, too widely.
#
# The Kolmogorov-Smirnov test compares the middle of the two distributions. The lower tail, where outliers are, has
# its own test: how many of n rows are less likely than all m generated ones. If the distributions are the same, all
# orders of the n + m log-densities are equally likely, and
#
#     P(k or more) = P(the k lowest are all rows) = prod_{i < k} (n - i) / (n + m - i),    n / (m + 1) on average.

LEAST_P_VALUE = 0.01
_PERCENTILES = (5, 25, 50, 75, 95)
TYPICAL = "no difference found"
_LOWER = "rows have lower density than the model's own rows: it is too narrow, or they come from another source"
_HIGHER = "rows have higher density than the model's own rows: it spreads its mass too widely"
_TAIL = "too many rows are less likely than any of the model's own rows: it has too little mass in the tails"
_OTHER = "densities of rows are spread differently from those of the model's own rows"


def typicality_figures(log_density: np.ndarray, simulated: np.ndarray) -> Figures:
    """Summaries of two samples of log-densities, and both tests; numbers that are not finite are only counted."""
    samples = [values[np.isfinite(values)] for values in (log_density, simulated)]
    figures: Figures = {
        "rows": _summary(samples[0], len(log_density)),
        "simulated": _summary(samples[1], len(simulated)),
    }
    own, other = samples
    n, m = len(own), len(other)
    if min(n, m) < 2:
        names = ("mean_difference", "ks", "ks_p_value", "n_below_all", "n_below_all_p_value")
        return figures | dict.fromkeys(names) | {"verdict": "too few rows to tell"}
    test = ks_2samp(own, other, method="asymp")
    n_below = int((own < other.min()).sum())
    p_below = math.prod((n - i) / (n + m - i) for i in range(n_below))
    verdict = _TAIL if p_below < LEAST_P_VALUE else TYPICAL
    if test.pvalue < LEAST_P_VALUE:
        lower, higher = (ks_2samp(own, other, side, method="asymp").statistic for side in ("greater", "less"))
        is_one_sided = max(lower, higher) >= 2.0 * min(lower, higher)
        verdict = (_LOWER if lower > higher else _HIGHER) if is_one_sided else _OTHER
    return figures | {
        "mean_difference": figure(own.mean() - other.mean()),
        "ks": float(test.statistic),
        "ks_p_value": float(test.pvalue),
        "n_below_all": n_below,
        "n_below_all_p_value": p_below,
        "verdict": verdict,
    }


def _summary(finite: np.ndarray, n_values: int) -> Figures:
    n = len(finite)
    return {
        "n": n,
        "n_not_finite": n_values - n,
        "mean": figure(finite.mean()) if n else None,
        "sd": figure(finite.std(ddof=1)) if n > 1 else None,
        "quantiles": {str(q): figure(np.percentile(finite, q)) if n else None for q in _PERCENTILES},
    }


# Requirements: limits for values in metrics.json, as in `truth.spearman>=0.97`.

_SIGNS = {">=": operator.ge, "<=": operator.le, "==": operator.eq, ">": operator.gt, "<": operator.lt}
# The last sign counts: a class may be called a>b. A name that ends in another sign, as in a=>3, is a mistake.
_FORM = re.compile(r"\s*(?P<name>.*?[^=!<>~\s])\s*(?P<sign>>=|<=|==|>|<)\s*(?P<value>[^<>=]+?)\s*", re.DOTALL)
# The names in sections that a set of rows may lack; other names depend on the run.
_SECTIONS = {
    "truth": ("n", "spearman", "pearson", "rmse", "mean_difference"),
    "outliers": ("n", "n_outliers", "precision_at_k", "auroc", "average_precision"),
}


class Requirement(NamedTuple):
    """A limit for the value of this name."""

    name: str
    sign: str
    value: float

    def miss(self, found: float | None) -> str | None:
        """What is wrong with a value, in one line; None if nothing is."""
        if found is None:
            return f"{self.name} has no value here, wanted {self.sign} {self.value:g}"
        if _SIGNS[self.sign](found, self.value):
            return None
        gap = abs(found - self.value)
        return f"{self.name} is {found:.6g}, wanted {self.sign} {self.value:g}: missed by {gap:.3g}"


def parse_requirement(text: str) -> Requirement:
    """The requirement in the user's text."""
    match = _FORM.fullmatch(text)
    with contextlib.suppress(ValueError):
        if match and not math.isnan(value := float(match["value"])):
            return Requirement(match["name"], match["sign"], value)
    raise BadUsage(
        f"--require {escaped(text)} is not of the form NAME OP VALUE",
        found=f"OP is one of {' '.join(_SIGNS)}, VALUE a number",
        hint="for instance --require 'mean_log_density>=-4.1'",
    )


def check_requirements(requirements: Sequence[Requirement], metrics: Mapping[str, Any]) -> None:
    """Nothing, if all are met; `BadUsage` for an unknown name, else `RequirementNotMet`."""
    figures = dict(_flatten(metrics))
    for section in _SECTIONS.keys() & figures.keys():  # None, and not a mapping
        del figures[section]
        figures |= {f"{section}.{name}": None for name in _SECTIONS[section]}
    for name, *_ in requirements:
        parts = name.split(".")
        is_section_missing = any(figures.get(".".join(parts[:n]), 0.0) is None for n in range(1, len(parts)))
        if name not in figures and not is_section_missing:
            raise BadUsage(
                f"--require: there is no figure '{escaped(name)}'",
                found=f"figures: {', '.join(figures)}",
                hint=nearest_hint(name, list(figures), "use one of the figures above"),
            )
    missed = [line for item in requirements if (line := item.miss(figures.get(item.name)))]
    if missed:
        what = f"{len(missed)} of {len(requirements)} requirements {'is' if len(missed) == 1 else 'are'} not met"
        raise RequirementNotMet(
            what if len(requirements) > 1 else "the requirement is not met",
            found=missed,
            hint="see all figures with --json",
        )


def _flatten(metrics: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, float | None]]:
    """The dotted name of every number, and of every missing one (None)."""
    for key, value in metrics.items():
        if isinstance(value, Mapping):
            yield from _flatten(value, f"{prefix}{key}.")
        elif value is None or (isinstance(value, int | float) and not isinstance(value, bool)):
            yield f"{prefix}{key}", value
