"""How log-densities are distributed, and how they compare with true ones."""

import numpy as np

from bayesnde_cli.report.binning import bin_shares, common_edges, robust_range, thinned, widened
from bayesnde_cli.report.blocks import note, plot_box, section, wide_grid
from bayesnde_cli.report.colours import BAD, FIRST, SECOND, THIRD
from bayesnde_cli.report.frame import Frame, axis
from bayesnde_cli.report.marks import bars, diagonal, legend, points, steps
from bayesnde_cli.report.markup import Markup
from bayesnde_cli.report.report_data import ReportData, ScoredRows

_MOST_POINTS = 1500
_SEEN = {"train": ("training", SECOND), "validation": ("validation", THIRD)}


def densities(data: ReportData) -> Markup | None:
    """Histograms of log-densities, and a scatter against the truth."""
    if data.rows is None or not np.isfinite(data.rows.log_density).any():
        return None
    boxes = [_histogram(data, data.rows)]
    if data.rows.is_outlier is not None and 0 < data.rows.is_outlier.sum() < len(data.rows.is_outlier):
        boxes.append(_by_label(data.rows, data.rows.is_outlier))
    if data.rows.truth is not None:
        boxes.append(_against_truth(data.rows, data.rows.truth))
    text = "Units of the file; rows beyond the plot are counted in its first and last bar."
    if data.seen_log_density:
        text += " Training and validation rows (at most 512 each) are scored by importance sampling, as in training."
    return section("densities", "Log-densities", wide_grid(*boxes), note(text))


def _histogram(data: ReportData, rows: ScoredRows) -> Markup:
    seen = [(*_SEEN[name], values) for name, values in data.seen_log_density.items() if name in _SEEN]
    finite = rows.log_density[np.isfinite(rows.log_density)]
    edges = common_edges([finite, *(values for _, _, values in seen)])
    heights = [100 * bin_shares(values, edges) for _, _, values in seen]
    own = 100 * bin_shares(finite, edges)
    top = max(float(height.max()) for height in (own, *heights))
    frame = Frame(axis(float(edges[0]), float(edges[-1]), "log-density, nats"), axis(0.0, 1.05 * top, "% of rows"))
    marks = [bars(frame, edges, own, FIRST)]
    marks += [steps(frame, edges, height, colour) for (_, colour, _), height in zip(seen, heights, strict=True)]
    names = [(data.subject.set_name, FIRST), *((name, colour) for name, colour, _ in seen)]
    return plot_box("Distribution", frame.plot("Histogram of log-densities", *marks), legend(names))


def _by_label(rows: ScoredRows, is_outlier: np.ndarray) -> Markup:
    """Labelled outliers against the other rows."""
    parts = [rows.log_density[~is_outlier], rows.log_density[is_outlier]]
    parts = [values[np.isfinite(values)] for values in parts]
    edges = common_edges([np.concatenate(parts)])
    heights = [100 * bin_shares(values, edges) for values in parts]
    top = max(float(height.max()) for height in heights)
    frame = Frame(axis(float(edges[0]), float(edges[-1]), "log-density, nats"), axis(0.0, 1.05 * top, "% of each"))
    marks = [bars(frame, edges, heights[0], FIRST), steps(frame, edges, heights[1], BAD)]
    names = [(f"others ({len(parts[0]):,})", FIRST), (f"labelled outliers ({len(parts[1]):,})", BAD)]
    return plot_box("Outliers and others", frame.plot("Log-densities of outliers and others", *marks), legend(names))


def _against_truth(rows: ScoredRows, truth: np.ndarray) -> Markup:
    chosen = thinned(len(truth), _MOST_POINTS)
    low, high = widened(*robust_range(np.concatenate([truth, rows.log_density])), by=0.03)
    frame = Frame(axis(low, high, "true log-density"), axis(low, high, "estimated"), height=320)
    marks = [diagonal(frame), points(frame, truth[chosen], rows.log_density[chosen], f"faint {FIRST}", 3.5)]
    return plot_box("Estimated against true", frame.plot("Estimated against true log-densities", *marks))
