"""The figures of `evaluate`, ours beside those of other estimators."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from bayesnde_cli.report.binning import widened
from bayesnde_cli.report.blocks import folded, grid, note, plot_box, section
from bayesnde_cli.report.colours import FIRST, SECOND
from bayesnde_cli.report.fit_checks import baseline_name
from bayesnde_cli.report.frame import WIDTH, Frame, axis, named_axis
from bayesnde_cli.report.marks import level_whiskers, points
from bayesnde_cli.report.markup import NO_BREAK, Markup, tag
from bayesnde_cli.report.numerals import nats, numeral, share, with_error
from bayesnde_cli.report.report_data import ReportData
from bayesnde_cli.report.sections.confusion import MOST_CLASSES, class_title, confusion
from bayesnde_cli.report.tables import table

_OURS = "bayesnde"
_OUTLIER_FIGURES = ("auroc", "average_precision", "precision_at_k")


def metrics(data: ReportData) -> Markup | None:
    """All figures, the main ones large."""
    found = data.metrics
    if found.get("mean_log_density") is None and not found.get("rows"):
        return None
    parts = [
        _tiles(found),
        *_comparison(found),
        *_outliers(found),
        *_classes(found),
        *confusion(found),
        *_own_rows(found),
    ]
    return section("metrics", "Figures", *parts)


def _tiles(found: Mapping[str, Any]) -> Markup:
    """The main figures, large."""
    rows, truth, outliers = (found.get(name) or {} for name in ("rows", "truth", "outliers"))
    tiles = _mean_tiles(found)
    if rows.get("n"):
        tiles.append(
            ("reliable rows", share(rows["n_reliable"], rows["n"]), f"{rows['n_reliable']:,} of {rows['n']:,}")
        )
    if truth.get("spearman") is not None:
        tiles.append(("rank correlation", numeral(truth["spearman"], 4), "with the true log-density (Spearman)"))
        tiles.append(("error", numeral(truth.get("rmse"), 3), "nats, root mean square against the truth"))
    if outliers.get("auroc") is not None:
        n = f"{outliers['n_outliers']:,} outliers among {outliers['n']:,} rows"
        tiles.append(("AUROC", numeral(outliers["auroc"], 4), n))
    if found.get("accuracy") is not None:
        error = f"±{NO_BREAK}{numeral(200 * found['accuracy_se'], 2)}{NO_BREAK}% (2 standard errors)"
        text = f"{error}, class of highest density, {found['confusion_matrix']['n']:,} rows"
        tiles.append(("accuracy", share(found["accuracy"], 1.0), text))
    boxes = [
        tag(
            "div",
            tag("span", name, class_="name"),
            tag("span", value, class_="value"),
            tag("span", text, class_="unit"),
        )
        for name, value, text in tiles
    ]
    return tag("div", *boxes, class_="tiles")


def _mean_tiles(found: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """The mean log-density, of the rows that have all cells."""
    mean = found.get("mean_log_density")
    if mean is None:
        reason = (found.get("reasons") or {}).get("mean_log_density", "not finite")
        return [("mean log-density", numeral(None), reason)]
    rows = found.get("rows") or {}
    n_incomplete, n_doubtful = rows.get("n_incomplete"), rows.get("n", 0) - rows.get("n_reliable", 0)
    text = "nats a row, units of the file, ± 2 standard errors"
    text += f"; rows left out for missing cells: {n_incomplete:,}" if n_incomplete else ""
    mc_se = found.get("mean_log_density_mc_se")
    mc_text = "nats, 2 standard errors"
    mc_text += f"; may be too low for rows that are not reliable: {n_doubtful:,}" if n_doubtful else ""
    scaled = with_error(found.get("mean_log_density_scaled"), found.get("mean_log_density_scaled_se"))
    return [
        ("mean log-density", with_error(mean, found.get("mean_log_density_se")), text),
        ("of which Monte Carlo", numeral(None) if mc_se is None else f"±{NO_BREAK}{numeral(2 * mc_se, 2)}", mc_text),
        ("in the model's space", scaled, "nats a row, after scaling"),
        *_bits_tile(found),
    ]


def _bits_tile(found: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """Of images: what is quoted of other models of images."""
    bits = found.get("bits_per_dimension")
    text = "less is better; an upper bound of the bits that each value of a pixel takes"
    return [] if bits is None else [("bits per dimension", with_error(bits, found["bits_per_dimension_se"]), text)]


def _comparison(found: Mapping[str, Any]) -> list[Markup]:
    """Ours and the baselines by mean log-density, best first."""
    baselines = _known(found, "mean_log_density")
    if not baselines or found.get("mean_log_density") is None:
        reason = (found.get("reasons") or {}).get("baselines")
        return [note(f"No other estimators beside it: {reason}.")] if reason else []
    why_no_mixtures = (found.get("reasons") or {}).get("gaussian_mixture")
    means = {_OURS: (found["mean_log_density"], found.get("mean_log_density_se"))}
    means |= {name: (item["mean_log_density"], item.get("mean_log_density_se")) for name, item in baselines.items()}
    order = sorted(means, key=lambda name: -means[name][0])
    rows = []
    for name in order:
        item = baselines.get(name, {})
        gain = "" if name == _OURS else with_error(item.get("gain"), item.get("gain_se"))
        rows.append((_label(name), with_error(*means[name]), gain, _chosen(item.get("chosen"))))
    header = ("estimator", "mean log-density", "we gain", "chosen for it")
    return [
        tag("h3", "Beside other estimators, on the same rows"),
        table(header, rows, strong=order.index(_OURS), words=(0, 3)),
        grid(plot_box("Mean log-density, ± 2 standard errors", _dots(means, order))),
        note("Higher is better. What we gain is the mean difference row by row, with its own error: rows that are hard "
             "for every estimator do not count."),
        *([note(f"No Gaussian mixtures: {why_no_mixtures}.")] if why_no_mixtures else []),
    ]  # fmt: skip


def _dots(means: Mapping[str, tuple[float, float | None]], order: list[str]) -> Markup:
    names = order[::-1]  # the best on top
    mean = np.array([means[name][0] for name in names], np.float64)
    half = np.array([2 * (means[name][1] or 0.0) for name in names])
    low, high = widened(float((mean - half).min()), float((mean + half).max()), by=0.05)
    labels = [_label(name) for name in names]
    frame = Frame(
        axis(low, high, "nats a row", 4), named_axis(labels), height=60 + 26 * len(names),
        left=min(WIDTH / 2, 16 + 6.2 * max(map(len, labels))),
    )  # fmt: skip
    place = np.arange(len(names), dtype=np.float64)
    is_ours = np.array([name == _OURS for name in names])
    marks = [
        mark
        for chosen, colour in ((is_ours, FIRST), (~is_ours, SECOND))
        for mark in (
            level_whiskers(frame, place[chosen], (mean - half)[chosen], (mean + half)[chosen], colour),
            points(frame, mean[chosen], place[chosen], colour, 8),
        )
    ]
    return frame.plot("Mean log-density of each estimator with two standard errors", *marks)


def _outliers(found: Mapping[str, Any]) -> list[Markup]:
    """How well low densities find the labelled outliers, beside baselines and detectors."""
    ours = found.get("outliers") or {}
    if ours.get("auroc") is None:
        return []
    others = {
        name: item["outliers"]
        for name, item in (found.get("baselines") or {}).items()
        if item and (item.get("outliers") or {}).get("auroc") is not None
    }
    chosen = {name: _chosen(item.get("chosen")) for name, item in (found.get("baselines") or {}).items()}
    methods = {_OURS: ours} | others
    ranked = sorted(methods, key=lambda name: -methods[name]["auroc"])
    rows = [
        (_label(name), *(numeral(methods[name].get(figure), 3) for figure in _OUTLIER_FIGURES), chosen.get(name, ""))
        for name in ranked
    ]
    header = ("estimator", "AUROC", "average precision", "precision at k", "chosen for it")
    text = f"The {ours['n_outliers']:,} labelled outliers were not told to any estimator as such; k is their number. "
    text += "A density knows what is rare; whether what is rare is what somebody called an outlier, it cannot know."
    shown = table(header, rows, strong=ranked.index(_OURS), words=(0, 4))
    return [tag("h3", "Outliers found by low density"), shown, note(text)]


def _classes(found: Mapping[str, Any]) -> list[Markup]:
    """The mean log-density of each class."""
    classes = found.get("classes") or {}
    rows = [
        (name, f"{item.get('n', 0):,}", with_error(item.get("mean_log_density"), item.get("mean_log_density_se")))
        for name, item in list(classes.items())[:MOST_CLASSES]
    ]
    return (
        [tag("h3", class_title("By class", classes)), table(("class", "rows", "mean log-density"), rows)]
        if rows
        else []
    )


def _own_rows(found: Mapping[str, Any]) -> list[Markup]:
    """What the model's own rows say: typicality and the eight diagnostics."""
    parts = []
    typicality = found.get("typicality") or {}
    if typicality.get("rows") and typicality.get("simulated"):
        quantiles = sorted(typicality["rows"]["quantiles"], key=float)
        rows = [
            (words, nats(item["mean"]), *(nats(item["quantiles"][name]) for name in quantiles))
            for words, item in (("these rows", typicality["rows"]), ("rows of the model", typicality["simulated"]))
        ]
        parts += [
            tag("h3", "Log-densities in the model's space, of these rows and of rows that the model makes"),
            table(("", "mean", *(f"{name} %" for name in quantiles)), rows),
        ]
    generation = found.get("generation") or {}
    if own := generation.get("of_itself"):
        rows = [(name.replace("_", " "), numeral(generation[name], 3), numeral(own[name], 3)) for name in own]
        text = "Even two samples of one distribution are not at distance 0. A perfect model comes to about the second "
        text += "column: as many rows of the model as there are of these, against the same generated ones."
        parts.append(folded("Eight distances between these rows and generated ones",
                            table(("distance", "these rows", "two samples of the model itself"), rows),
                            note(text)))  # fmt: skip
    return parts


def _known(found: Mapping[str, Any], figure: str) -> dict[str, Any]:
    """The baselines that have a figure."""
    baselines = found.get("baselines") or {}
    return {name: item for name, item in baselines.items() if item and item.get(figure) is not None}


def _label(name: str) -> str:
    return name if name == _OURS else baseline_name(name)


def _chosen(chosen: Mapping[str, Any] | None) -> str:
    """What was chosen, in a few words; choices of each class are too many for a cell."""
    if not chosen:
        return ""
    experts = chosen["classes"] if "scaling" in chosen and "classes" in chosen else chosen  # of a competitor, or all
    by_class = [value for value in experts.values() if isinstance(value, Mapping)]
    words = ["by class"] if by_class else []
    words += [
        f"{name.replace('_', ' ')} {numeral(value, 3) if isinstance(value, float) else value}"
        for name, value in chosen.items()
        if not name.startswith("n_") and not isinstance(value, Mapping)  # counts of rows, choices of a class
    ]
    n_fit, n_train = (
        sum(item.get(name, 0) for item in by_class or [chosen]) for name in ("n_fit_rows", "n_train_rows")
    )
    return ", ".join([*words, *([f"fitted to {n_fit:,} of {n_train:,} rows"] if n_fit < n_train else [])])
