"""The page: numbers and plots of a report in one HTML file that needs nothing else."""

import functools
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from bayesnde_cli import formatting
from bayesnde_cli.errors import escaped, one_line
from bayesnde_cli.inference import bridge
from bayesnde_cli.report import plots
from bayesnde_cli.report.collect import ModelFigures, ReportData, ScoredRows, collect
from bayesnde_cli.report.plots import HistogramAxis, Plot
from bayesnde_cli.report.trust import advise, judge
from bayesnde_cli.runs.layout import RunLayout
from bayesnde_cli.tables.columns import listed

if TYPE_CHECKING:
    from jinja2 import Environment

_OURS = "bayesnde"
# Points of a scatter plot.
_MAX_POINTS = 1500
_VERDICT_COLOURS = {
    bridge.RELIABLE: "s1",
    bridge.ERROR_ABOVE_TARGET: "s2",
    bridge.MODES_MAY_BE_MISSING: "s3",
    bridge.CHAINS_DISAGREE: "bad",
    bridge.ESTIMATES_DISAGREE: "bad",
    bridge.BRIDGE_DID_NOT_CONVERGE: "bad",
}
_BASELINE_NAMES = {
    "gaussian": "Gaussian",
    "gaussian_mixture": "Gaussian mixture",
    "gaussian_mixture_scaled": "Gaussian mixture, scaled",
    "one_class_svm": "one-class SVM",
    "made": "MADE",
    "maf": "MAF",
    "realnvp": "Real NVP",
    "nsf": "neural spline flow",
    "cfm": "flow matching",
    "resflow": "residual flow",
}


def report_page(layout: RunLayout, set_name: str, metrics: Mapping[str, Any], model: ModelFigures) -> bytes:
    """The page about a scored set, as a file; `metrics` is what `evaluate` wrote."""
    # File names may hold bytes that are not UTF-8; Python passes them on as lone surrogates.
    return render(collect(layout, set_name, metrics, model)).encode("utf-8", "backslashreplace")


def render(data: ReportData) -> str:
    """The whole page as text. It is also well-formed XML."""
    checks, metrics, columns, maps = judge(data), data.metrics, data.model.columns, data.model.pair_maps
    estimators, matrix = _rank_estimators(metrics, "mean_log_density"), metrics.get("confusion_matrix")
    images, ends = list[Plot](), list[Plot]()
    if data.images is not None:
        from bayesnde_cli.report.sheets import draw_sheets

        images, ends = draw_sheets(data.images)
    return render_template(
        "template.html",
        data=data,
        level=max(check.level for check in checks).value,
        checks=sorted(checks, key=lambda check: -check.level),
        advice=advise(checks, data),
        estimators=estimators,
        detectors=_rank_estimators(metrics, "auroc", "outliers"),
        plots={
            "comparison": [plots.plot_means(estimators)] if estimators else [],
            # Two classes are clear from the table.
            "confusion": [plots.plot_confusion(matrix)] if matrix and len(matrix["classes"]) > 2 else [],
            "training": _plot_training(data),
            "densities": _plot_densities(data),
            "map": _plot_maps(data),
            "pairs": [plots.plot_pairs(columns, maps)] if len(columns) > 2 and maps else [],
            "marginals": [_plot_marginal(column) for column in columns],
            "images": images,
            "ends": ends,
            "errors": _plot_errors(data.rows, data.target_se) if data.rows is not None else [],
        },
        limits=bridge,
        max_classes=20,
    )


def render_template(name: str, **values: Any) -> str:
    """A template of this folder with these values."""
    return open_templates().get_template(name).render(values)


@functools.cache
def open_templates() -> "Environment":
    """The templates of this folder with our filters. All text is escaped, so no name can become markup."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("bayesnde_cli", "report"),
        autoescape=True,
        finalize=_spell_out,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "baseline": lambda name: _BASELINE_NAMES.get(name, name.replace("_", " ")),
        "count": "{:,}".format,
        "counted": formatting.counted,
        "duration": formatting.duration,
        "listed": listed,
        "nats": formatting.format_nats,
        "number": formatting.format_number,
        "setting": _format_setting,
        "share": formatting.format_share,
        "shorten": one_line,
        "with_error": formatting.format_with_error,
    }
    return environment


def _spell_out(value: Any) -> Any:
    """Text with its control characters spelled out, which XML cannot hold; markup as it is."""
    is_text = isinstance(value, str) and not hasattr(value, "__html__")
    return escaped(value, keep="\n" + formatting.NO_BREAK) if is_text else value


def _format_setting(value: Any) -> str:
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value)) or "–"
    return f"{value:g}" if isinstance(value, float) else str(value)


# Comparison with other estimators


def _rank_estimators(metrics: Mapping[str, Any], figure: str, part: str | None = None) -> list[dict[str, Any]]:
    """Ours and the baselines that have a figure, also one of a part such as `outliers`, the highest first."""
    ranked = []
    for name, figures in {_OURS: metrics, **(metrics.get("baselines") or {})}.items():
        own = figures if part is None else figures.get(part) or {}
        if own.get(figure) is not None:
            is_ours = name == _OURS
            label = name if is_ours else _BASELINE_NAMES.get(name, name.replace("_", " "))
            choice = "" if is_ours else _describe_choice(figures.get("chosen"))
            ranked.append({**own, "name": label, "is_ours": is_ours, "choice": choice})
    ranked.sort(key=lambda item: -item[figure])
    return ranked if any(item["is_ours"] for item in ranked) and (part or len(ranked) > 1) else []


def _describe_choice(chosen: Mapping[str, Any] | None) -> str:
    """The settings that validation rows selected for a baseline; those of single classes would be too many."""
    if not chosen:
        return ""
    experts = chosen["classes"] if "scaling" in chosen and "classes" in chosen else chosen
    by_class = [value for value in experts.values() if isinstance(value, Mapping)]
    words = ["by class"] if by_class else []
    for name, value in chosen.items():
        if not name.startswith("n_") and not isinstance(value, Mapping):
            words.append(
                f"{name.replace('_', ' ')} {formatting.format_number(value, 3) if isinstance(value, float) else value}"
            )
    n_fit, n_train = (
        sum(part.get(name, 0) for part in by_class or [chosen]) for name in ("n_fit_rows", "n_train_rows")
    )
    return ", ".join([*words, *([f"fitted to {n_fit:,} of {n_train:,} rows"] if n_fit < n_train else [])])


# Plots of rows and columns


def _plot_training(data: ReportData) -> list[Plot]:
    """The validation checks of each training stage, and the losses of its phases with more than two records."""
    found = []
    for stage in data.training:
        found.append(plots.plot_validation(stage, reference=data.metrics.get("mean_log_density")))
        found += [plots.plot_loss(stage, phase) for phase, (step, _) in stage.losses.items() if len(step) > 2]
    return found


def _plot_densities(data: ReportData) -> list[Plot]:
    """Histograms of log-densities, and a scatter plot against the truth."""
    rows = data.rows
    if rows is None or not np.isfinite(rows.log_density).any():
        return []
    axis = HistogramAxis("log-density, nats")
    is_finite, seen = np.isfinite(rows.log_density), data.model.seen_log_density
    samples = [(data.subject.set_name, rows.log_density[is_finite], "s1")]
    splits = (("train", "training", "s2"), ("validation", "validation", "s3"))
    samples += [(name, seen[split], colour) for split, name, colour in splits if split in seen]
    edges = plots.common_edges([values for _, values, _ in samples])
    found = [plots.plot_histograms(samples, edges, axis, title="Distribution")]
    if rows.is_outlier is not None and 0 < rows.is_outlier.sum() < len(rows.is_outlier):
        others, outliers = (rows.log_density[is_finite & chosen] for chosen in (~rows.is_outlier, rows.is_outlier))
        names = f"others ({len(others):,})", f"labelled outliers ({len(outliers):,})"
        samples = [(names[0], others, "s1"), (names[1], outliers, "bad")]
        edges = plots.common_edges([np.concatenate([others, outliers])])
        axis = axis._replace(y_label="% of each")
        found.append(plots.plot_histograms(samples, edges, axis, title="Outliers and other rows"))
    if rows.truth is not None:
        kept = plots.thin(len(rows.truth), _MAX_POINTS)
        found.append(plots.plot_against_truth(rows.truth[kept], rows.log_density[kept]))
    return found


def _plot_maps(data: ReportData) -> list[Plot]:
    """The density of a table with two features, and rows on it."""
    columns, rows = data.model.columns, data.rows
    if len(columns) != 2 or not data.model.pair_maps or rows is None:
        return []
    (cells,) = data.model.pair_maps
    kept = plots.thin(len(columns[0].real), _MAX_POINTS)
    found = [plots.plot_density_map(cells, columns), plots.plot_density_map(cells, columns, rows=kept)]
    if rows.truth is not None:
        span = plots.robust_range(np.concatenate([rows.truth, rows.log_density]))
        for name, values in (("estimated", rows.log_density), ("true", rows.truth)):
            title = f"Rows by {name} log-density"
            found.append(plots.plot_row_map(cells, columns, values, span=span, title=title))
    return found


def _plot_marginal(column: plots.Column) -> Plot:
    """Histograms of one feature: real and generated rows."""
    real, generated = (values[np.isfinite(values)] for values in (column.real, column.generated))
    span = plots.column_range(real, generated)
    if column.categories:
        edges = np.arange(len(column.categories) + 1) - 0.5
    elif column.is_whole:
        edges = plots.integer_edges(*span, max_bins=plots.count_bins(len(real)))
    else:
        edges = plots.common_edges([real, generated], span)
    samples = [("", real, "s1"), ("", generated, "s2")]
    return plots.plot_histograms(
        samples, edges, HistogramAxis(categories=column.categories), title=column.name, height=190
    )


def _plot_errors(rows: ScoredRows, target_se: float) -> list[Plot]:
    """Monte-Carlo errors, R-hat and effective sample sizes of the rows, with the limits of a reliable row."""
    kept, verdict = plots.thin(len(rows.mc_se), 2000), rows.verdict.astype(str)
    names, counts = np.unique(verdict, return_counts=True)
    groups = {}  # frequent verdicts are drawn first, below the others
    for index in np.argsort(-counts, kind="stable"):
        name = str(names[index])
        groups[f"{name} ({counts[index]:,})"] = kept[verdict[kept] == name], _VERDICT_COLOURS.get(name, "soft")
    found = [plots.plot_errors(rows.log_density, rows.mc_se, groups, target=target_se)]
    rhat, limit = rows.rhat[np.isfinite(rows.rhat)], bridge.MOST_RHAT
    if len(rhat):
        high = max(plots.robust_range(rhat)[1], limit + 0.01)
        edges = plots.edges_through(limit, min(1.0, float(rhat.min())), high, plots.count_bins(len(rhat)))
        axis = HistogramAxis("R-hat, largest of all latents", limit)
        found.append(plots.plot_histograms([("", rhat, "s1")], edges, axis, title="R-hat"))
    ess, limit = rows.ess[np.isfinite(rows.ess) & (rows.ess > 0)], bridge.LEAST_ESS
    if len(ess):
        low, high = min(float(ess.min()), 0.8 * limit), max(float(ess.max()), 2 * limit)
        at, first, last = np.log10([limit, low, high]).tolist()
        edges = 10.0 ** plots.edges_through(at, first, last, plots.count_bins(len(ess)))
        axis = HistogramAxis("effective draws, fewest of all latents", limit, is_log=True)
        found.append(plots.plot_histograms([("", ess, "s1")], edges, axis, title="Effective draws"))
    return found
