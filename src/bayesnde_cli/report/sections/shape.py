"""The shape of the density: a map for two features, a matrix of pairs for more, generated rows beside real ones."""

import numpy as np

from bayesnde_cli.report.binning import (
    bin_shares,
    common_edges,
    n_bins,
    robust_range,
    shown_range,
    thinned,
    whole_edges,
    widened,
)
from bayesnde_cli.report.blocks import grid, note, plot_box, section, wide_grid
from bayesnde_cli.report.colours import FIRST, SECOND, map_pixels
from bayesnde_cli.report.frame import Axis, Frame, axis, named_axis
from bayesnde_cli.report.marks import bars, legend, picture, points, shaded_points, steps
from bayesnde_cli.report.markup import Markup, tag
from bayesnde_cli.report.numerals import numeral
from bayesnde_cli.report.pair_matrix import pair_matrix
from bayesnde_cli.report.report_data import Column, ReportData, ScoredRows

_MAP_HEIGHT = 320
_MOST_POINTS = 1500


def density_map(data: ReportData) -> Markup | None:
    """Two features: the density as a map, and rows on it."""
    if len(data.columns) != 2 or len(data.pair_maps) != 1 or data.rows is None:
        return None
    cells, (first, second) = data.pair_maps[0], data.columns
    axes = _column_axis(first, cells.x_edges), _column_axis(second, cells.y_edges)
    frame = Frame(*axes, height=_MAP_HEIGHT)
    chosen = thinned(len(first.real), _MOST_POINTS)
    pixels, top = map_pixels(cells.density)
    dots = points(frame, first.real[chosen], second.real[chosen], "ghost", 2.5)
    boxes = [
        plot_box("Estimated density", frame.plot("Estimated density of the two features",
                 picture(frame, pixels), has_grid=False), _scale("0", f"{numeral(top, 2)} and above")),
        plot_box("Estimated density, with the rows", frame.plot("Estimated density with the scored rows",
                 picture(frame, pixels), dots, has_grid=False)),
        *_row_maps(frame, first, second, data.rows),
    ]  # fmt: skip
    text = "Density in the units of the file; colours by its square root, so that low parts show. Each cell of the map "
    text += "is an average over the cell"
    text += ", all classes together as often as in training." if data.subject.classes else "."
    return section("map", "Map of the density", wide_grid(*boxes), note(text))


def pairs(data: ReportData) -> Markup | None:
    """More features: every pair."""
    if len(data.columns) < 3 or not data.pair_maps:
        return None
    shown = f"{len(data.columns)} of {data.subject.n_features:,} features: those in which generated rows differ most "
    shown += "from these. " if data.subject.n_features > len(data.columns) else ""
    if data.subject.n_features <= len(data.columns):
        shown = ""
    text = f"{shown}Below the diagonal the rows, above it the estimated density of the pair with all other features "
    text += "integrated out (bright is high), on it both: bars for rows, a line for generated ones."
    matrix = tag("div", pair_matrix(data.columns, data.pair_maps), class_="scroll")
    return section("pairs", "Pairs of features", note(text), matrix)


def marginals(data: ReportData) -> Markup | None:
    """Every shown feature: the rows and generated ones."""
    if not data.columns:
        return None
    names = legend([("these rows", FIRST), ("generated rows", SECOND)])
    boxes = [plot_box(column.name, _marginal(column)) for column in data.columns]
    parts = [names, grid(*boxes)]
    if data.subject.n_features > len(data.columns):
        parts.insert(0, note(f"The {len(data.columns)} of {data.subject.n_features:,} features that differ most."))
    return section("marginals", "Real and generated rows, feature by feature", *parts)


def _row_maps(frame: Frame, first: Column, second: Column, rows: ScoredRows) -> list[Markup]:
    """Where the truth is known: the rows coloured by estimated and by true log-density, on one scale."""
    if rows.truth is None:
        return []
    chosen = thinned(len(rows.truth), 2 * _MOST_POINTS)
    low, high = robust_range(np.concatenate([rows.truth, rows.log_density]))
    boxes = []
    for name, values in (("estimated", rows.log_density), ("true", rows.truth)):
        shares = (values[chosen] - low) / (high - low)
        marks = shaded_points(frame, first.real[chosen], second.real[chosen], shares)
        title = f"Rows by {name} log-density"
        boxes.append(
            plot_box(title, frame.plot(title, marks, has_grid=False), _scale(numeral(low, 3), numeral(high, 3)))
        )
    return boxes


def _marginal(column: Column) -> Markup:
    real, generated = (values[np.isfinite(values)] for values in (column.real, column.generated))
    if column.categories:
        edges = np.arange(len(column.categories) + 1) - 0.5
    elif column.is_whole:
        edges = whole_edges(*shown_range(real, generated), most=n_bins(len(real)))
    else:
        edges = common_edges([real, generated], shown_range(real, generated))
    heights = [100 * bin_shares(values, edges) for values in (real, generated)]
    top = max(float(height.max()) for height in heights)
    frame = Frame(_column_axis(column, edges, is_named=False), axis(0.0, 1.05 * top or 1.0, "% of rows", 4), height=190)
    marks = bars(frame, edges, heights[0], FIRST), steps(frame, edges, heights[1], SECOND)
    return frame.plot(f"Histogram of {column.name}, real and generated", *marks)


def _column_axis(column: Column, edges: np.ndarray, *, is_named: bool = True) -> Axis:
    label = column.name if is_named else ""
    if column.categories:
        return named_axis([_short(name) for name in column.categories], label)
    return axis(*widened(float(edges[0]), float(edges[-1])), label)


def _short(name: str, most: int = 8) -> str:
    return name if len(name) <= most else name[: most - 1] + "…"


def _scale(low: str, high: str) -> Markup:
    """The colour scale with its ends."""
    return tag("p", low, tag("i", class_="scale"), high, class_="legend")
