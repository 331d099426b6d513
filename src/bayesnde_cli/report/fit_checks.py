"""Does the model fit the rows? Against the truth, plain estimators, its own rows, and rows that it has seen."""

import math
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
}


def baseline_name(name: str) -> str:
    """A baseline as the page calls it."""
    return _BASELINE_NAMES.get(name, name.replace("_", " "))


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
    """Against the best of the plain estimators, by the differences of the same rows."""
    found: dict[str, Any] = {
        name: figures
        for name, figures in (data.metrics.get("baselines") or {}).items()
        if figures and figures.get("gain") is not None
    }
    if not found:
        return None
    name = min(found, key=lambda key: found[key]["gain"])
    gain, se = found[name]["gain"], found[name].get("gain_se") or 0.0
    best = f"the best of {len(found)} plain estimators ({baseline_name(name)})"
    amount = f"{with_error(abs(gain), se)} nats a row"
    if gain < -_CLEAR * se:
        gaussian = found.get("gaussian", {"gain": math.inf, "gain_se": 0.0})
        is_below_gaussian = gaussian["gain"] < -_CLEAR * (gaussian.get("gain_se") or 0.0)
        level = Level.POOR if is_below_gaussian or gain < -_MUCH else Level.FAIR
        return Check("Comparison", level, f"Below {best}, by {amount}: it describes these rows better.", Cause.FIT)
    if gain <= _CLEAR * se:
        words = f"As good as {best}: {amount} {'above' if gain > 0 else 'below'} it, within the error."
        return Check("Comparison", Level.GOOD, words)
    return Check("Comparison", Level.GOOD, f"Better than {best}, by {amount}.")


def typicality(data: ReportData) -> Check | None:
    """Against rows that the model makes itself."""
    found = data.metrics.get("typicality") or {}
    p_value, ks, words = found.get("ks_p_value"), found.get("ks"), found.get("verdict")
    if p_value is None or ks is None:
        return None
    test = f"Kolmogorov-Smirnov distance {numeral(ks, 2)}, p{NO_BREAK}={NO_BREAK}{numeral(p_value, 2)}"
    if p_value >= _LEAST_P_VALUE:
        return Check("Typical rows", Level.GOOD, f"Rows are as likely as those that the model makes itself ({test}).")
    level = Level.FAIR if ks < _MOST_KS else Level.POOR
    reason = str(words or "log-densities of rows differ from those of the model's own rows")
    return Check("Typical rows", level, f"{reason[:1].upper()}{reason[1:]} ({test}).", Cause.FIT)


def held_out(data: ReportData) -> Check | None:
    """The set against the validation rows that chose the weights."""
    mean, se = data.metrics.get("mean_log_density"), data.metrics.get("mean_log_density_se")
    if mean is None or se is None or not data.training:
        return None
    chosen = data.training[-1]
    gap, error = chosen.chosen_log_density - mean, math.hypot(chosen.chosen_se, se)
    if not math.isfinite(gap):
        return None
    words = f"{nats(abs(gap))} nats {'below' if gap > 0 else 'above'} the validation rows"
    if gap <= _VERY_CLEAR * error:
        return Check(
            "Against validation rows",
            Level.GOOD,
            f"These rows are {words}, within the error (±{NO_BREAK}{nats(2 * error)}).",
        )
    level = Level.POOR if gap > _MUCH else Level.FAIR
    cause = Cause.FIT if data.subject.set_name == "test" else Cause.OTHER_ROWS
    return Check(
        "Against validation rows",
        level,
        f"These rows are {words}, more than chance (±{NO_BREAK}{nats(2 * error)}).",
        cause,
    )


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
        text = f"Training rows are no likelier than validation rows: a difference of {with_error(gap, error)} nats."
        return Check("Learnt, not memorised", Level.GOOD, text)
    text = f"Training rows are likelier than validation rows, by {with_error(gap, error)} nats: the model knows them "
    text += "in part by heart. Figures of held-out rows stay honest; do not trust densities of training rows."
    return Check("Learnt, not memorised", Level.FAIR, text, Cause.OVERFIT)
