"""Can the densities be trusted? Checks with their levels, and advice with the commands to type.

Two things must hold: each log-density is computed correctly, up to its Monte-Carlo error, and the model fits the rows.
The sentences are in `trust.html`, by the names of checks and advice.
"""

import functools
import math
import operator
from collections.abc import Mapping, Sequence
from enum import Flag, IntEnum, auto
from typing import Any, NamedTuple

import numpy as np

from bayesnde_cli.formatting import shell_assignments, shell_options
from bayesnde_cli.inference.bridge import ERROR_ABOVE_TARGET, NO_CELLS, RELIABLE
from bayesnde_cli.report.collect import ReportData

# Shares of rows that may be doubtful before care is due, and before the whole set is doubtful.
_FEW_ROWS, _MANY_ROWS = 0.02, 0.10
# Differences of this many standard errors are clear, or very clear.
_CLEAR, _VERY_CLEAR = 2.0, 3.0
# A mean log-density that is off by this many nats is wrong: densities are off by a factor of e.
_MUCH = 1.0
# A difference of distributions needs a p-value below the first; below the second distance it is small.
_LEAST_P_VALUE, _SMALL_KS = 0.01, 0.2
# Agreement with true log-densities.
_GOOD_SPEARMAN, _FAIR_SPEARMAN, _GOOD_DIFFERENCE = 0.95, 0.9, 0.1
# Fewer training rows leave much of the shape to the model; fewer scored rows leave the means rough.
_LEAST_TRAIN, _TRAIN_PER_FEATURE, _LEAST_SCORED = 200, 20, 50
_RANDOM_AUROC = 0.5

_MORE_CHAINS = {"chains": 8, "warm_up": 400, "draws": 400}
_MORE_DRAWS = {"draws": 400, "proposal_draws": 20_000}
# The settings that limit the length of training.
_LENGTH = ("epochs", "steps")


class Level(IntEnum):
    """The result of a check."""

    GOOD = 0
    FAIR = 1
    POOR = 2


class Cause(Flag):
    """The problem behind a check that is not good; it selects the advice."""

    NONE = 0
    ESTIMATES = auto()  # chains that did not explore a row's posterior
    PRECISION = auto()  # Monte-Carlo errors above the target
    FIT = auto()  # a model that misses the shape of the data
    OVERFIT = auto()  # a model that knows its training rows too well
    OTHER_ROWS = auto()  # rows unlike those of training
    FEW = auto()  # too few rows
    UNKNOWN = auto()  # nothing to judge the fit by
    SPIKES = auto()  # values that recur in continuous columns
    LINEAR = auto()  # columns that others determine
    OUTLIERS = auto()  # labelled outliers whose density is not low


class Check(NamedTuple):
    """One check of a scored set, with the facts for its sentence."""

    name: str
    level: Level
    facts: Mapping[str, Any]
    cause: Cause = Cause.NONE


def judge(data: ReportData) -> list[Check]:
    """All checks of a scored set that can be made. The worst level is the answer."""
    fit = [check(data) for check in (check_truth, check_baselines, check_typicality)]
    if not any(fit):
        fit = [Check("fit", Level.FAIR, {}, Cause.UNKNOWN)]
    others = (check_blur, check_held_out, check_memory, check_outliers, check_size)
    found = [check_rows(data), check_audit(data), *fit, *(check(data) for check in others), *check_columns(data)]
    return [check for check in found if check]


# Checks


def check_rows(data: ReportData) -> Check | None:
    """Whether the log-densities are computed correctly, by the verdicts on rows."""
    rows = data.metrics.get("rows")
    if not rows or not rows["n"]:
        return None
    n, n_very_wide, verdicts = rows["n"], rows["n_above_1_nat"], dict(rows["verdicts"])
    n_reliable = verdicts.pop(RELIABLE, 0) + verdicts.pop(NO_CELLS, 0)
    n_wide = verdicts.get(ERROR_ABOVE_TARGET, 0) - n_very_wide
    n_doubtful = n - n_reliable - n_wide
    level = Level.POOR if n_doubtful > _MANY_ROWS * n else Level.FAIR
    if n - n_reliable <= _FEW_ROWS * n:
        level = Level.GOOD
    cause = Cause.ESTIMATES if n_doubtful > min(n_wide, _FEW_ROWS * n) else Cause.PRECISION
    if n_wide > _MANY_ROWS * n:
        cause |= Cause.PRECISION
    others = {name: count for name, count in verdicts.items() if count}
    counts = {"n": n, "n_reliable": n_reliable, "n_very_wide": n_very_wide, "others": others}
    return Check("rows", level, counts | {"target_se": data.target_se}, cause)


def check_audit(data: ReportData) -> Check | None:
    """Whether rows scored without a bridge have the log-densities that the bridge gives them."""
    audit = (data.metrics.get("rows") or {}).get("audit")
    if not audit:
        return None
    level = Level.GOOD if audit["is_as_promised"] else Level.POOR
    return Check("audit", level, audit, Cause.NONE if level is Level.GOOD else Cause.ESTIMATES)


def check_truth(data: ReportData) -> Check | None:
    """Against true log-densities."""
    found = data.metrics.get("truth") or {}
    spearman, difference = found.get("spearman"), found.get("mean_difference")
    if spearman is None or difference is None:
        return None
    level = Level.POOR
    if spearman >= _FAIR_SPEARMAN and abs(difference) <= _MUCH:
        level = Level.FAIR
    if spearman >= _GOOD_SPEARMAN and abs(difference) <= _GOOD_DIFFERENCE:
        level = Level.GOOD
    return Check("truth", level, {"spearman": spearman, "difference": difference}, Cause.FIT)


def check_baselines(data: ReportData) -> Check | None:
    """Against the best other estimator, by the differences on the same rows."""
    baselines = data.metrics.get("baselines") or {}
    found = {name: own for name, own in baselines.items() if None not in (own.get("gain"), own.get("gain_se"))}
    if not found:
        return None
    name = min(found, key=lambda key: found[key]["gain"])
    gain, se = found[name]["gain"], found[name]["gain_se"]
    rows = data.metrics.get("rows") or {"n": 0, "n_incomplete": 0, "n_in_mean": 0}
    facts = {"name": name, "n": len(found), "gain": gain, "se": se, "is_equal": abs(gain) <= _CLEAR * se}
    facts["n_left_out"] = rows["n"] - rows["n_incomplete"] - rows["n_in_mean"]
    if gain >= -_CLEAR * se:
        return Check("baselines", Level.GOOD, facts)
    gaussian = found.get("gaussian", {"gain": math.inf, "gain_se": 0.0})
    is_below_gaussian = gaussian["gain"] < -_CLEAR * gaussian["gain_se"]
    return Check("baselines", Level.POOR if is_below_gaussian or gain < -_MUCH else Level.FAIR, facts, Cause.FIT)


def check_typicality(data: ReportData) -> Check | None:
    """Against rows that the model generates."""
    found = data.metrics.get("typicality") or {}
    if found.get("ks_p_value") is None or found.get("ks") is None:
        return None
    p_below = found.get("n_below_all_p_value")
    has_low_rows = p_below is not None and p_below < _LEAST_P_VALUE
    differs = found["ks_p_value"] < _LEAST_P_VALUE
    facts = {**found, "has_low_rows": has_low_rows, "differs": differs}
    if not differs:
        level = Level.FAIR if has_low_rows else Level.GOOD
    else:
        level = Level.FAIR if found["ks"] < _SMALL_KS else Level.POOR
    return Check("typicality", level, facts, Cause.FIT)


def check_blur(data: ReportData) -> Check | None:
    """Whether the model was blurred on purpose."""
    blur = data.metrics.get("blur")
    return Check("blur", Level.FAIR, {"blur": blur}) if blur else None


def check_held_out(data: ReportData) -> Check | None:
    """The set against the validation rows that selected the weights."""
    mean, se = data.metrics.get("mean_log_density"), data.metrics.get("mean_log_density_se")
    if mean is None or se is None or not data.training or data.metrics.get("blur"):
        return None
    last = data.training[-1]
    gap, error = float(last.log_density[last.selected]) - mean, math.hypot(last.se[last.selected], se)
    if not math.isfinite(gap):
        return None
    facts = {"gap": gap, "se": error, "is_equal": abs(gap) <= _CLEAR * error}
    if gap <= _VERY_CLEAR * error:
        return Check("held_out", Level.GOOD, facts)
    level = Level.POOR if gap > _MUCH else Level.FAIR
    return Check("held_out", level, facts, Cause.FIT if data.subject.set_name == "test" else Cause.OTHER_ROWS)


def check_memory(data: ReportData) -> Check | None:
    """Training rows against validation rows, by the same estimator."""
    samples = [values[np.isfinite(values)] for values in data.model.seen_log_density.values()]
    if len(samples) < 2 or min(map(len, samples)) < 2:
        return None
    train, validation = samples
    gap = float(train.mean() - validation.mean())
    error = math.sqrt(train.var(ddof=1) / len(train) + validation.var(ddof=1) / len(validation))
    facts = {"gap": gap, "se": error, "is_clear": gap > _CLEAR * error, "is_very_clear": gap > _VERY_CLEAR * error}
    return Check("memory", Level.FAIR if facts["is_very_clear"] else Level.GOOD, facts, Cause.OVERFIT)


def check_outliers(data: ReportData) -> Check | None:
    """Whether low densities find labelled outliers, against chance and the best other estimator, by AUROC."""
    own = data.metrics.get("outliers") or {}
    auroc = own.get("auroc")
    if auroc is None:
        return None
    n_outliers, n_others = own["n_outliers"], own["n"] - own["n_outliers"]
    error = auroc_error(auroc, n_outliers, n_others)
    facts = {"auroc": auroc, "n_outliers": n_outliers, "is_chance": auroc - _RANDOM_AUROC <= _CLEAR * error}
    baselines = data.metrics.get("baselines") or {}
    found = {name: (own.get("outliers") or {}).get("auroc") for name, own in baselines.items()}
    if rivals := {name: other for name, other in found.items() if other is not None}:
        best = max(rivals, key=lambda name: rivals[name])
        both = math.hypot(error, auroc_error(rivals[best], n_outliers, n_others))
        if rivals[best] - auroc > _CLEAR * both:
            facts |= {"best": best, "best_auroc": rivals[best], "n_rivals": len(rivals)}
    level = Level.FAIR if facts["is_chance"] or "best" in facts else Level.GOOD
    return Check("outliers", level, facts, Cause.OUTLIERS)


def auroc_error(auroc: float, n_outliers: int, n_others: int) -> float:
    """The standard error of an area under the ROC curve A, by Hanley and McNeil (1982):

    var = [A (1 - A) + (n₁ - 1) (A / (2 - A) - A²) + (n₀ - 1) (2 A² / (1 + A) - A²)] / (n₁ n₀).
    """
    of_two_outliers, of_two_others = auroc / (2.0 - auroc), 2.0 * auroc**2 / (1.0 + auroc)
    spread = auroc * (1.0 - auroc)
    spread += (n_outliers - 1) * (of_two_outliers - auroc**2) + (n_others - 1) * (of_two_others - auroc**2)
    return math.sqrt(max(spread, 0.0) / (n_outliers * n_others))


def check_size(data: ReportData) -> Check | None:
    """Whether there are enough rows to learn from and to judge by."""
    subject = data.subject
    if not subject.n_train or not subject.n_features:
        return None
    # Networks of images share their weights between all places: more pixels do not need more images.
    wanted = _LEAST_TRAIN if data.images else max(_LEAST_TRAIN, _TRAIN_PER_FEATURE * subject.n_features)
    n_least, smallest = min(((n, name) for name, n in subject.classes.items()), default=(subject.n_train, ""))
    n_complete = (data.metrics.get("rows") or {}).get("n_in_mean", subject.n_rows)
    facts = {"subject": subject, "wanted": wanted, "smallest": smallest, "n_least": n_least, "n_complete": n_complete}
    facts |= {"is_small": n_least < wanted, "is_rough": n_complete < _LEAST_SCORED}
    return Check("size", Level.FAIR if facts["is_small"] or facts["is_rough"] else Level.GOOD, facts, Cause.FEW)


def check_columns(data: ReportData) -> list[Check]:
    """Continuous columns in which one value recurs, and columns that are linear functions of others."""
    spikes, linear = sorted(data.spikes.items(), key=lambda item: -item[1]), list(data.linear.items())
    found = (("spikes", spikes, Cause.SPIKES), ("linear", linear, Cause.LINEAR))
    return [Check(name, Level.FAIR, {"columns": columns}, cause) for name, columns, cause in found if columns]


# Advice


def advise(checks: Sequence[Check], data: ReportData) -> dict[str, tuple[str, ...]]:
    """What to do, and the commands to type, one per line. Changes to the table come first: the rest follows from it."""
    advice: dict[str, tuple[str, ...]] = {}
    causes = functools.reduce(operator.or_, (check.cause for check in checks if check.level), Cause.NONE)
    if Cause.UNKNOWN in causes:
        advice["compare"] = (_command("evaluate", data, "--restart" if data.metrics else ""),)
    if Cause.LINEAR in causes:
        advice["drop_linear"] = (_refit_without_linear(data),)
    if Cause.SPIKES in causes:
        advice["spikes"] = ()
    if Cause.FIT in causes:
        advice |= _better_fit(data, is_overfit=Cause.OVERFIT in causes)
    elif Cause.OVERFIT in causes:
        advice |= _smaller_model(data)
    if Cause.ESTIMATES in causes:
        advice["more_chains"] = _rescore(data, _MORE_CHAINS)
    if Cause.PRECISION in causes:
        advice["more_draws"] = _rescore(data, _MORE_DRAWS)
    for cause, name in ((Cause.OUTLIERS, "outliers"), (Cause.OTHER_ROWS, "other_rows"), (Cause.FEW, "more_rows")):
        if cause in causes:
            advice[name] = ()
    if Level.POOR not in {check.level for check in checks}:
        advice["uses"] = _list_uses(data)
    return advice


def _better_fit(data: ReportData, *, is_overfit: bool) -> dict[str, tuple[str, ...]]:
    """Another training, depending on what went wrong."""
    if data.fast:
        defaults = {stage: dict.fromkeys(names) for stage, names in data.fast.items()}
        return {"train_fully": _retrain(data, **defaults)}
    if any(name in data.changed.get(stage, {}) for stage in ("warmstart", "refine") for name in _LENGTH):
        return {"default_length": _retrain(data, dict.fromkeys(_LENGTH), dict.fromkeys(_LENGTH))}
    if is_overfit:
        return _smaller_model(data)
    last = data.training[-1] if data.training else None
    if last is not None and last.n_epochs and last.selected == len(last.log_density) - 1:
        return {"train_longer": _retrain(data, refine={"epochs": 2 * last.n_epochs})}
    return {"larger_model": _retrain(data, {"width": 2 * _width(data)})}


def _smaller_model(data: ReportData) -> dict[str, tuple[str, ...]]:
    weight_decay = {"weight_decay": 0.3}
    width = max(4 if data.images else 16, _width(data) // 2)
    return {"smaller_model": _retrain(data, {"width": width, **weight_decay}, weight_decay)}


def _width(data: ReportData) -> int:
    return int((data.settings.get("warmstart") or {}).get("width") or 256)


def _retrain(
    data: ReportData, warmstart: Mapping[str, Any] | None = None, refine: Mapping[str, Any] | None = None
) -> tuple[str, ...]:
    """Commands for both training stages with these changes, and for everything that follows."""
    return (_repeat("warmstart", data, warmstart or {}), _repeat("refine", data, refine or {}), *_rescore(data))


def _rescore(data: ReportData, at_least: Mapping[str, int] | None = None) -> tuple[str, ...]:
    """Commands that score and evaluate the rows again, with settings of at least these values."""
    before = data.changed.get("density", {})
    settings = {name: max(value, before.get(name, 0)) for name, value in (at_least or {}).items()}
    return _repeat("density", data, settings), _command("evaluate", data, "--restart")


def _repeat(stage: str, data: ReportData, changes: Mapping[str, Any]) -> str:
    """The command of a stage with the user's settings and these changes."""
    return _command(stage, data, "--restart", *shell_options({**data.changed.get(stage, {}), **changes}))


def _command(stage: str, data: ReportData, *options: str) -> str:
    """A command of a stage for this set."""
    argument = data.subject.data_argument if stage in ("density", "evaluate") else ""
    return " ".join(filter(None, ["bayesnde", stage, argument, data.subject.run_option, *options]))


def _refit_without_linear(data: ReportData) -> str:
    """The command that fits the table again without its linear columns, with all of the user's settings."""
    changed = {stage: dict(settings) for stage, settings in data.changed.items()}
    prepare = changed.pop("prepare", {})
    features = []
    for item in prepare.get("features", ()):  # `a,b`, or a pattern
        names = [name.strip() for name in item.split(",")]
        features += names if data.linear.keys() & names else [item]
    prepare["features"] = [name for name in features if name not in data.linear]
    prepare["drop"] = [*prepare.get("drop", ()), *(name for name in data.linear if name not in features)]
    for rules in {"type", "dequantize"} & prepare.keys():  # COLUMN=…
        prepare[rules] = [rule for rule in prepare[rules] if rule.rpartition("=")[0] not in data.linear]
    words = shell_options(prepare)
    for stage, settings in changed.items():
        words += shell_assignments(stage, settings)
    parts = ["bayesnde fit", data.subject.table_argument, *words, data.subject.run_option, "--restart"]
    return " ".join(filter(None, parts))


def _list_uses(data: ReportData) -> tuple[str, ...]:
    """Commands that score new rows, find unusual ones and generate more."""
    uses = {"density": "new.csv", "outliers": "--top 20", "sample": "1000"}
    if data.images:
        n_images = "10 --condition all" if data.subject.classes else "100"
        uses |= {"density": "new.npz", "sample": f"{n_images} --out sheet.png"}
    run = data.subject.run_option
    return tuple(" ".join(filter(None, ["bayesnde", name, rest, run])) for name, rest in uses.items())
