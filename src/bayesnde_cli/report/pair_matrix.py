"""All pairs of a few features in one picture: rows below the diagonal, density above it, marginals on it."""

from collections.abc import Sequence

import numpy as np

from bayesnde_cli.report.binning import bin_shares, shown_range, thinned, whole_edges
from bayesnde_cli.report.colours import FIRST, SECOND, map_pixels
from bayesnde_cli.report.frame import Axis, Frame
from bayesnde_cli.report.marks import bars, picture, points, steps
from bayesnde_cli.report.markup import Markup, joined, tag
from bayesnde_cli.report.report_data import Column, PairMap

_SIDE, _GAP, _EDGE = 110, 6, 20
_MOST_POINTS = 300
_N_BINS = 20
_LONGEST_NAME = 16


def pair_matrix(columns: Sequence[Column], maps: Sequence[PairMap]) -> Markup:
    """The matrix, with the names of the features along its edges."""
    spans = _spans(columns, maps)
    panels = []
    for row, column in np.ndindex(len(columns), len(columns)):
        if row == column:
            panels.append(_place(row, column, _diagonal(columns[row], spans[row])))
        elif row > column:
            panels.append(_place(row, column, _rows(columns[column], columns[row], spans[column], spans[row])))
    panels += [_place(cells.x_index, cells.y_index, _density(cells)) for cells in maps]
    side = _EDGE + len(columns) * (_SIDE + _GAP)
    return tag(
        "svg", tag("title", "Matrix of pairs of features"), *panels, *_names(columns),
        viewBox=f"0 0 {side} {side}", role="img", class_="matrix", style=f"min-width:{min(side, 620)}px",
    )  # fmt: skip


def _place(row: int, column: int, panel: Markup) -> Markup:
    left, top = _EDGE + column * (_SIDE + _GAP), row * (_SIDE + _GAP)
    edge = tag("rect", width=_SIDE, height=_SIDE, class_="panel")
    return tag("g", panel, edge, transform=f"translate({left} {top})")


def _spans(columns: Sequence[Column], maps: Sequence[PairMap]) -> list[tuple[float, float]]:
    """The range of each column: that of its maps."""
    edges = {cells.x_index: cells.x_edges for cells in maps} | {cells.y_index: cells.y_edges for cells in maps}
    return [
        (float(edges[index][0]), float(edges[index][-1])) if index in edges
        else shown_range(column.real, column.generated)
        for index, column in enumerate(columns)
    ]  # fmt: skip


def _bare(low: float, high: float) -> Axis:
    return Axis(low, high, "", (), ())


def _panel(x_axis: Axis, y_axis: Axis) -> Frame:
    """A frame that is all inside."""
    return Frame(x_axis, y_axis, width=_SIDE, height=_SIDE, left=0, right=0, top=0, bottom=0)


def _diagonal(column: Column, span: tuple[float, float]) -> Markup:
    edges = np.linspace(*span, (len(column.categories) or _N_BINS) + 1)
    if column.is_whole:
        edges = whole_edges(span[0] + 0.5, span[1] - 0.5, _N_BINS)  # without the half that makes a cell
    heights = [bin_shares(values[np.isfinite(values)], edges) for values in (column.real, column.generated)]
    top = max(float(height.max()) for height in heights) or 1.0
    frame = _panel(_bare(*span), _bare(0.0, 1.1 * top))
    return joined([bars(frame, edges, heights[0], FIRST), steps(frame, edges, heights[1], SECOND)])


def _rows(across: Column, up: Column, x_span: tuple[float, float], y_span: tuple[float, float]) -> Markup:
    chosen = thinned(len(across.real), _MOST_POINTS)
    frame = _panel(_bare(*x_span), _bare(*y_span))
    return points(frame, across.real[chosen], up.real[chosen], f"faint {FIRST}", 2.5)


def _density(cells: PairMap) -> Markup:
    """The density with the columns of the mirrored panel: across is the later one."""
    frame = _panel(_bare(0.0, 1.0), _bare(0.0, 1.0))
    return picture(frame, map_pixels(cells.density.T)[0])


def _names(columns: Sequence[Column]) -> list[Markup]:
    foot = len(columns) * (_SIDE + _GAP) + 8
    names = []
    for index, column in enumerate(columns):
        text = column.name if len(column.name) <= _LONGEST_NAME else column.name[: _LONGEST_NAME - 1] + "…"
        middle = index * (_SIDE + _GAP) + _SIDE / 2
        names.append(tag("text", text, x=_EDGE + middle, y=foot, class_="tick", text_anchor="middle"))
        names.append(tag("text", text, x=12, y=middle, class_="tick", text_anchor="middle",
                         transform=f"rotate(-90 12 {middle:g})"))  # fmt: skip
    return names
