"""What `evaluate` made: the document for machines, the main figures in words for people."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from bayesnde_cli.stages.reporting import aligned, counted

Found = Mapping[str, Any]


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
        return "\n".join([*lines, f"report: {self.report}", "", _table(self.metrics)])


def _sentences(metrics: Found) -> Iterator[str]:
    rows, mean = metrics["rows"], metrics["mean_log_density"]
    if mean is not None:
        error = f" ± {_shown(metrics['mean_log_density_se'], 2.0)}"
        part = f"of which Monte-Carlo: {_shown(metrics['mean_log_density_mc_se'], 2.0)}"
        yield f"mean log-density: {mean:.4f}{error} (units of the file, ± 2 standard errors, {part})"
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
        yield f"accuracy of the likeliest class: {metrics['accuracy']:.4f} ± {_shown(metrics['accuracy_se'], 2.0)}"
    if typicality := metrics["typicality"]:
        ks, p_value = typicality["ks"], typicality["ks_p_value"]
        yield f"typicality: {typicality['verdict']}" + ("" if ks is None else f" (KS {ks:.4f}, p = {p_value:.2g})")
    if reason := metrics["reasons"].get("baselines"):
        yield f"no baselines: {reason}"


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


def _descending(found: Found) -> float:
    mean = found.get("mean_log_density")
    return math.inf if mean is None else -mean


def _gain(found: Found) -> str:
    if found.get("gain") is None:
        return ""
    return f"{found['gain']:.4f} ± {_shown(found['gain_se'], 2.0)}"


def _shown(value: float | None, times: float = 1.0) -> str:
    return "" if value is None else f"{times * value:.4f}"
