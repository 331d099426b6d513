"""What `evaluate` made: the document for machines, the main figures in words for people."""

import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from bayesnde_cli.stages.reporting import aligned, counted

Found = Mapping[str, Any]
# From here on a number is written with a power of ten.
_LARGE = 1e6
# Classes that are shown one by one.
_MOST_CLASSES = 20


@dataclass(frozen=True)
class Evaluated:
    """What `evaluate` made. `metrics` is the document of `metrics.json`."""

    file: str
    report: str
    is_up_to_date: bool
    metrics: dict[str, Any]

    def as_dict(self) -> dict[str, Any]:
        return self.metrics

    def __str__(self) -> str:
        rows = self.metrics["rows"]
        first = f"{self.file}: {counted(rows['n'], 'row')}, {rows['n_reliable']:,} reliable"
        lines = [f"{first} (up to date)" if self.is_up_to_date else first, *_sentences(self.metrics)]
        tables = [_table(self.metrics), *([_by_class(self.metrics)] if self.metrics["classes"] else [])]
        return "\n".join([*lines, f"report: {self.report}", *(f"\n{table}" for table in tables)])


def _sentences(metrics: Found) -> Iterator[str]:
    rows, mean = metrics["rows"], metrics["mean_log_density"]
    if mean is not None:
        part = f"of which Monte-Carlo: {_shown(metrics['mean_log_density_mc_se'], 2.0)}"
        n_doubtful = rows["n"] - rows["n_reliable"]
        part += f", which may be too low for {counted(n_doubtful, 'row')} not reliable" if n_doubtful else ""
        yield f"mean log-density: {_with_error(metrics)} (units of the file, ± 2 standard errors, {part})"
        yield f"in the model's space: {_with_error(metrics, 'mean_log_density_scaled')}"
        if metrics.get("bits_per_dimension") is not None:  # the first documents have none
            yield f"bits per dimension: {_with_error(metrics, 'bits_per_dimension')} (less is better)"
        if n_incomplete := rows.get("n_incomplete"):  # the first documents did not count them
            yield f"left out of the mean: {counted(n_incomplete, 'row')} with missing cells"
    elif reason := metrics["reasons"].get("mean_log_density"):
        yield f"no mean log-density: {reason}"
    if rows["n_not_finite"]:
        yield f"left out: {counted(rows['n_not_finite'], 'row')} without a finite log-density"
    if truth := metrics["truth"]:
        yield (
            f"against the truth: Spearman {_shown(truth['spearman'])}, Pearson {_shown(truth['pearson'])}, "
            f"RMSE {_shown(truth['rmse'])}, mean difference {_shown(truth['mean_difference'])}"
        )
    if metrics["accuracy"] is not None:
        n = counted(metrics["confusion_matrix"]["n"], "row")
        yield f"accuracy of the likeliest class: {_with_error(metrics, 'accuracy')} ({n})"
    if typicality := metrics["typicality"]:
        yield f"typicality: {typicality['verdict']}{_tests(typicality)}"
    if reason := metrics["reasons"].get("baselines"):
        yield f"no baselines: {reason}"
    if reason := metrics["reasons"].get("gaussian_mixture"):
        yield f"no Gaussian mixtures beside it: {reason}"


def _table(metrics: Found) -> str:
    """This model and the baselines, the best one first, a line each."""
    ours = {name: metrics[name] for name in ("mean_log_density", "mean_log_density_se", "outliers")}
    baselines = sorted((metrics["baselines"] or {}).items(), key=lambda item: _descending(item[1]))
    methods = {"this model": ours} | {name.replace("_", " "): found for name, found in baselines}
    header = ["", "mean log-density", "± 2 s.e."]
    lines = [[name, _shown(found.get("mean_log_density")), _shown(found.get("mean_log_density_se"), 2.0)]
             for name, found in methods.items()]  # fmt: skip
    if metrics["baselines"]:
        header.append("this model is better by")
        for line, found in zip(lines, methods.values(), strict=True):
            line.append(_gain(found))
    if metrics["outliers"]:
        names = {"precision_at_k": f"precision@{metrics['outliers']['n_outliers']}", "auroc": "AUROC",
                 "average_precision": "average precision"}  # fmt: skip
        header += names.values()
        for line, found in zip(lines, methods.values(), strict=True):
            line += [_shown(found["outliers"][name]) for name in names]
    return aligned(header, lines)


def _by_class(metrics: Found) -> str:
    """The mean log-density of each class, a line each."""
    classes = metrics["classes"]
    lines = [
        [name, f"{found['n']:,}", _shown(found["mean_log_density"]), _shown(found["mean_log_density_se"], 2.0)]
        for name, found in itertools.islice(classes.items(), _MOST_CLASSES)
    ]
    table = aligned(["class", "rows", "mean log-density", "± 2 s.e."], lines)
    n_more = len(classes) - len(lines)
    return f"{table}\n… and {counted(n_more, 'more class', 'more classes')} in metrics.json" if n_more else table


def _tests(found: Found) -> str:
    """Both tests of typicality; the first documents have no second one."""
    if found["ks"] is None:
        return ""
    text = f"{counted(found['rows']['n'], 'row')}, KS {found['ks']:.4f}, p = {found['ks_p_value']:.2g}"
    if "n_below_all" in found:
        text += (
            f"; {found['n_below_all']:,} less likely than all of the model's, p = {found['n_below_all_p_value']:.2g}"
        )
    return f" ({text})"


def _descending(found: Found) -> float:
    mean = found.get("mean_log_density")
    return math.inf if mean is None else -mean


def _gain(found: Found) -> str:
    return "" if found.get("gain") is None else _with_error(found, "gain")


def _with_error(found: Found, name: str = "mean_log_density") -> str:
    """A figure with two standard errors, if there are any."""
    se = found.get(f"{name}_se")
    return _shown(found[name]) + ("" if se is None else f" ± {_shown(se, 2.0)}")


def _shown(value: float | None, times: float = 1.0) -> str:
    if value is None:
        return "–"
    return f"{times * value:.4f}" if abs(times * value) < _LARGE else f"{times * value:.3e}"
