"""Does the model fit the rows? Against the truth, other estimators, its own rows, and rows that it has seen."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from bayesnde_cli.report.check import Cause, Check, Level
from bayesnde_cli.report.markup import NO_BREAK
from bayesnde_cli.report.numerals import nats, numeral, with_error
from bayesnde_cli.report.report_data import ReportData

# A difference of this many standard errors is no chance.
_CLEAR = 2.0
_VERY_CLEAR = 3.0
# Densities that are wrong by a factor of e in the mean are wrong.
_MUCH = 1.0
# Least p-value, and the most that two distribution functions may differ where a check on many rows finds something.
_LEAST_P_VALUE, _MOST_KS = 0.01, 0.2
# Agreement with true log-densities.
_GOOD_SPEARMAN, _FAIR_SPEARMAN = 0.95, 0.9
_GOOD_DIFFERENCE = 0.1

_BASELINE_NAMES = {
    "gaussian": "Gaussian",
    "gaussian_mixture": "Gaussian mixture",
    "gaussian_mixture_scaled": "Gaussian mixture, scaled",
    "kernel_density": "kernel density",
    "one_class_svm": "one-class SVM",
    "isolation_forest": "isolation forest",
    "made": "MADE",
    "maf": "MAF",
    "realnvp": "Real NVP",
    "nsf": "neural spline flow",
    "cfm": "flow matching",
    "resflow": "residual flow",
}


def baseline_name(name: str) -> str:
    """A baseline as the page calls it."""
    return _BASELINE_NAMES.get(name, name.replace("_", " "))


def blur(data: ReportData) -> Check | None:
    """Whether these are densities of the rows at all."""
    if not data.metrics.get("blur"):
        return None
    text = f"The model was blurred, in every column by {data.metrics['blur']:g} of the typical distance of two rows. "
    text += "Low densities show what lies far from most rows; they are no densities of the rows."
    return Check("Blur", Level.FAIR, text)


def truth(data: ReportData) -> Check | None:
    """Against true log-densities."""
    found = data.metrics.get("truth") or {}
    spearman, difference = found.get("spearman"), found.get("mean_difference")
    if spearman is None or difference is None:
        return None
    is_good = spearman >= _GOOD_SPEARMAN and abs(difference) <= _GOOD_DIFFERENCE
    is_fair = spearman >= _FAIR_SPEARMAN and abs(difference) <= _MUCH
    text = f"Rank correlation {numeral(spearman, 3)} with the true log-densities; in the mean ours are "
    text += f"{nats(abs(difference))} nats {'above' if difference > 0 else 'below'} them."
    return Check("Truth", Level.GOOD if is_good else Level.FAIR if is_fair else Level.POOR, text, Cause.FIT)


def baselines(data: ReportData) -> Check | None:
    """Against the best of the other estimators, by the differences of the same rows."""
    found: dict[str, Any] = {
        name: figures
        for name, figures in (data.metrics.get("baselines") or {}).items()
        if figures and figures.get("gain") is not None and figures.get("gain_se") is not None
    }
    if not found:
        return None
    name = min(found, key=lambda key: found[key]["gain"])
    gain, se = found[name]["gain"], found[name]["gain_se"]
    best = f"the best of {len(found)} other estimators ({baseline_name(name)})"
    amount = f"{with_error(abs(gain), se)} nats a row"
    left_out = _left_out(data.metrics.get("rows") or {})
    if gain < -_CLEAR * se:
        gaussian = found.get("gaussian", {"gain": math.inf, "gain_se": 0.0})
        is_below_gaussian = gaussian["gain"] < -_CLEAR * gaussian["gain_se"]
        level = Level.POOR if is_below_gaussian or gain < -_MUCH else Level.FAIR
        text = f"Below {best}, by {amount}: it describes these rows better.{left_out}"
        return Check("Comparison", level, text, Cause.FIT)
    if gain <= _CLEAR * se:
        words = f"As good as {best}: {amount} {'above' if gain > 0 else 'below'} it, within the error.{left_out}"
        return Check("Comparison", Level.GOOD, words)
    return Check("Comparison", Level.GOOD, f"Better than {best}, by {amount}.{left_out}")


def _left_out(rows: Mapping[str, Any]) -> str:
    """The whole rows that have no density of ours to compare with."""
    n = rows.get("n", 0) - rows.get("n_incomplete", 0) - rows.get("n_in_mean", rows.get("n", 0))
    return f" {n:,} {'row' if n == 1 else 'rows'} without a density of ours left out." if n > 0 else ""


def typicality(data: ReportData) -> Check | None:
    """Against rows that the model makes itself."""
    found = data.metrics.get("typicality") or {}
    p_value, ks, words = found.get("ks_p_value"), found.get("ks"), found.get("verdict")
    if p_value is None or ks is None:
        return None
    test = f"Kolmogorov-Smirnov distance {numeral(ks, 2)}, p{NO_BREAK}={NO_BREAK}{numeral(p_value, 2)}"
    n, below = found["rows"]["n"], _less_likely(found)
    if p_value < _LEAST_P_VALUE:
        level = Level.FAIR if ks < _MOST_KS else Level.POOR
        reason = str(words or "log-densities of rows differ from those of the model's own rows")
        return Check("Typical rows", level, f"{reason[:1].upper()}{reason[1:]} ({test}).{below}", Cause.FIT)
    if below:
        text = f"No difference found in most log-densities ({test}), but in the lowest ones.{below}"
        return Check("Typical rows", Level.FAIR, text, Cause.FIT)
    text = f"No difference found ({n:,} rows) to the log-densities of rows that the model makes itself ({test})."
    return Check("Typical rows", Level.GOOD, text)


def _less_likely(found: Mapping[str, Any]) -> str:
    """The rows below all that the model makes, if they are too many for chance."""
    p_value = found.get("n_below_all_p_value")
    if p_value is None or p_value >= _LEAST_P_VALUE:
        return ""
    text = f" {found['n_below_all']:,} of {found['rows']['n']:,} rows are less likely than any of "
    return f"{text}{found['simulated']['n']:,} rows of the model (p{NO_BREAK}={NO_BREAK}{numeral(p_value, 2)})."


def held_out(data: ReportData) -> Check | None:
    """The set against the validation rows that chose the weights."""
    mean, se = data.metrics.get("mean_log_density"), data.metrics.get("mean_log_density_se")
    if mean is None or se is None or not data.training or data.metrics.get("blur"):
        return None
    chosen = data.training[-1]
    gap, error = chosen.chosen_log_density - mean, math.hypot(chosen.chosen_se, se)
    if not math.isfinite(gap):
        return None
    text = f"These rows are {with_error(abs(gap), error)} nats {'below' if gap > 0 else 'above'} the validation rows"
    text += ", within the error." if abs(gap) <= _CLEAR * error else "."
    if gap <= _VERY_CLEAR * error:
        return Check("Against validation rows", Level.GOOD, text)
    level = Level.POOR if gap > _MUCH else Level.FAIR
    cause = Cause.FIT if data.subject.set_name == "test" else Cause.OTHER_ROWS
    return Check("Against validation rows", level, text, cause)


def by_heart(data: ReportData) -> Check | None:
    """Training rows against validation rows, by one estimator."""
    seen = [data.seen_log_density.get(name) for name in ("train", "validation")]
    samples = [values[np.isfinite(values)] for values in seen if values is not None]
    if len(samples) < 2 or min(map(len, samples)) < 2:
        return None
    train, validation = samples
    gap = float(train.mean() - validation.mean())
    error = math.sqrt(train.var(ddof=1) / len(train) + validation.var(ddof=1) / len(validation))
    if gap <= _VERY_CLEAR * error:
        words = "no" if gap <= _CLEAR * error else "not clearly"
        text = f"Training rows are {words} likelier than validation rows: a difference of "
        return Check("Learnt, not memorised", Level.GOOD, f"{text}{with_error(gap, error)} nats.")
    text = f"Training rows are likelier than validation rows, by {with_error(gap, error)} nats: the model knows them "
    text += "in part by heart. Figures of held-out rows stay honest; do not trust densities of training rows."
    return Check("Learnt, not memorised", Level.FAIR, text, Cause.OVERFIT)
