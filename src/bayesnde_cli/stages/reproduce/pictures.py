"""Pictures of the results as SVG files that stand alone: from numbers to bytes, no file is read."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

import numpy as np

from bayesnde_cli.report import frame as frames
from bayesnde_cli.report.colours import scale_colours
from bayesnde_cli.report.frame import Frame
from bayesnde_cli.report.marks import line, points, whiskers
from bayesnde_cli.report.markup import Markup, joined, tag
from bayesnde_cli.report.png import data_uri
from bayesnde_cli.report.ticks import nice_ticks, tick_labels
from bayesnde_cli.stages.reproduce.density_map import DensityMap

# Units of the SVG: the width of a page's text where a results page is read.
WIDTH = 900
_EDGE = 16
# Points of the true density above this quantile have the brightest colour of a map.
_BRIGHTEST = 0.99
# Colours of others' lines: Tol's muted scheme without its rose, which is too near to ours, and without its pale ones.
_OTHERS = ("#332288", "#44aa99", "#117733", "#999933", "#882255", "#6699cc", "#aa4499", "#997700", "#555555", "#33bbee")
_STYLE = (
    "text{font:12px system-ui,-apple-system,'Segoe UI',Helvetica,Arial,sans-serif;fill:#333} "
    ".title{font-size:16px;font-weight:600;fill:#111} .name{font-size:13px;font-weight:600;fill:#111} "
    ".note{fill:#555} .label{font-size:13px;fill:#111} .strong{font-weight:600;fill:#111} "
    ".axis{stroke:#333;fill:none} .gridline{stroke:#e4e7eb;fill:none} .border{stroke:#999;fill:none} "
    ".line{fill:none;stroke-width:1.6;stroke-linejoin:round} .dots{fill:none;stroke-linecap:round} "
    ".leader{fill:none;stroke-width:0.8;opacity:0.6} .diamond{fill:#fff;stroke-width:2} "
    ".own,.own2{stroke:#c0272d} .line.own,.line.own2{stroke-width:3.6} .line.own2{stroke-dasharray:9 5} "
    ".paper{stroke:#111} .importance{stroke:#2166ac} .whisker .line{stroke-width:1.6} "
    + " ".join(f".c{index}{{stroke:{colour}}}" for index, colour in enumerate(_OTHERS))
)


class Role(StrEnum):
    """Whose line it is."""

    OURS = "ours"
    PRINTED = "printed"  # figures that the paper has: points without a line
    OTHER = "other"


@dataclass(frozen=True)
class Series:
    """One line of a chart; a value that is not finite breaks it."""

    name: str
    x: Sequence[float]
    y: Sequence[float]
    role: Role = Role.OTHER


class Mean(NamedTuple):
    """A mean with its standard error, NaN if that is not known."""

    value: float
    se: float = np.nan


class BudgetPoint(NamedTuple):
    """What so many draws of a row give: two Spearman correlations, and the Monte-Carlo error that is told."""

    n_draws: int
    bridge: Mean
    importance: Mean
    mc_error: Mean


def density_maps(title: str, maps: Mapping[str, DensityMap]) -> bytes:
    """Maps by name side by side, the true density first; all must have its points.

    Colours go by the density: a logarithm would show the empty corners above all. The brightest one is at a quantile of
    the true density, so that neither its peak nor any method's spike leaves all else dark.
    """
    truth = next(iter(maps.values()))
    top = float(np.quantile(truth.density, _BRIGHTEST)) or 1.0
    n_columns = min((4, 5), key=lambda count: (-(-len(maps) // count), -len(maps) % count))  # few rows, then few gaps
    gap, words = 12, 40
    side = (WIDTH - 2 * _EDGE - (n_columns - 1) * gap) / n_columns
    head = 48
    parts = []
    for index, (name, found) in enumerate(maps.items()):
        row, column = divmod(index, n_columns)
        left, upper = _EDGE + column * (side + gap), head + row * (side + words + gap)
        parts.append(_one_map(left, upper, side, found.density / top))
        parts.append(tag("text", name, x=left, y=upper + side + 16, class_="name"))
        if found is not truth:
            below = f"Spearman {_shown(found.spearman(truth))}"
            parts.append(tag("text", below, x=left, y=upper + side + 32, class_="note"))
    foot = head + -(-len(maps) // n_columns) * (side + words + gap) + 4
    parts.append(_colour_bar(foot, top))
    parts += [
        tag("text", note, x=_EDGE, y=foot + 50 + 17 * at, class_="note") for at, note in enumerate(_map_notes(truth))
    ]
    return _sheet(title, foot + 98, parts)


def spearman_by_dimension(series: Sequence[Series]) -> bytes:
    """Spearman's correlation with the true density against the number of columns, a line for each method."""
    there = [one for one in series if np.isfinite(np.asarray(one.y, np.float64)).any()]
    x = sorted({float(at) for one in there for at in one.x})
    low = min(float(np.nanmin(np.asarray(one.y, np.float64))) for one in there)
    margin = 0.04 * (x[-1] - x[0]) or 1.0
    x_axis = frames.Axis(x[0] - margin, x[-1] + margin, "columns", tuple(x), tuple(f"{at:g}" for at in x))
    y_axis = frames.axis(min(low, 0.9) - 0.03, 1.01, "Spearman correlation", 8)
    height = 500
    frame = Frame(x_axis, y_axis, WIDTH - _EDGE, height - 40, right=200)
    classes = _classes(there)
    order = sorted(range(len(there)), key=lambda index: _LAYERS[there[index].role])
    marks = [_labels(frame, there, classes)]
    marks += [_drawn(frame, there[index], classes[index]) for index in order]
    title = "Gaussian mixture: agreement with the true density, by the number of columns"
    return _sheet(title, height, [_placed(frame, _EDGE / 2, 40, frame.plot(title, *marks))])


def budget_curve(points: Sequence[BudgetPoint]) -> bytes:
    """Spearman of both estimators against the number of draws, and the Monte-Carlo error that is told, beside it."""
    ordered = sorted(points)
    n_draws = np.array([point.n_draws for point in ordered], np.float64)
    ticks, labels = tuple(np.log10(n_draws).tolist()), tuple(f"{point.n_draws:,}" for point in ordered)
    x_axis = frames.Axis(ticks[0] - 0.08, ticks[-1] + 0.08, "draws of a row", ticks, labels, is_log=True)
    # Moved apart a little, so that whiskers at the same number of draws can be told from each other.
    curves = [
        ("bridge", "own", 0.975 * n_draws, [point.bridge for point in ordered]),
        ("importance sampling", "importance", 1.025 * n_draws, [point.importance for point in ordered]),
    ]
    values = np.concatenate([_ends(means) for *_, means in curves])
    margin = 0.1 * float(np.nanmax(values) - np.nanmin(values)) or 0.01
    y_axis = frames.axis(float(np.nanmin(values)) - margin, float(np.nanmax(values)) + margin, "Spearman correlation")
    left = Frame(x_axis, y_axis, 580, 330, left=58, right=172)
    ends = [Series(name, x.tolist(), [mean.value for mean in means], Role.OURS) for name, _, x, means in curves]
    marks = [_labels(left, ends, [colour for _, colour, *_ in curves])]
    marks += [_curve(left, x, means, colour) for _, colour, x, means in curves]
    errors = [point.mc_error for point in ordered]
    right = Frame(
        x_axis, frames.axis(0.0, 1.1 * float(np.nanmax(_ends(errors))) or 1.0, "nats, of the bridge"), 304, 330, left=58
    )
    title = "How many draws a row needs, 15 columns"
    note = "Whiskers: one standard error over seeds of the draws; the model and the test rows are the same."
    return _sheet(
        title, 440,
        [
            tag("text", "Agreement with the true density", x=66, y=58, class_="name"),
            tag("text", "Mean Monte-Carlo error", x=646, y=58, class_="name"),
            _placed(left, 8, 60, left.plot("Spearman correlation by draws", *marks)),
            _placed(right, 588, 60, right.plot("Monte-Carlo error by draws", _curve(right, n_draws, errors, "own"))),
            tag("text", note, x=_EDGE, y=420, class_="note"),
        ],
    )  # fmt: skip


# What is drawn later lies over what was drawn before.
_LAYERS = {Role.OTHER: 0, Role.OURS: 1, Role.PRINTED: 2}


def _map_notes(truth: DensityMap) -> list[str]:
    x1, x2 = (f"from {values[0]:.1f} to {values[-1]:.1f}" for values in (truth.x1, truth.x2))
    return [
        "One colour scale for all maps, by density and not by its logarithm; what is denser has the last colour.",
        f"x1 {x1} to the right, x2 {x2} upwards: {truth.log_density.size:,} points.",
        "Spearman: rank correlation with the true density over these points.",
    ]


def _classes(series: Sequence[Series]) -> list[str]:
    """A class of the style sheet for each line: ours thick, the first whole and the others dashed."""
    counts = dict.fromkeys(Role, 0)
    classes = []
    for one in series:
        at = counts[one.role]
        counts[one.role] += 1
        own = "own2" if at else "own"
        classes.append({Role.OURS: own, Role.PRINTED: "paper", Role.OTHER: f"c{at % len(_OTHERS)}"}[one.role])
    return classes


def _drawn(frame: Frame, one: Series, colour: str) -> Markup:
    x, y = np.asarray(one.x, np.float64), np.asarray(one.y, np.float64)
    if one.role is Role.PRINTED:
        there = np.isfinite(y)
        places = zip(frame.x(x[there]), frame.y(y[there]), strict=True)
        return joined(tag("path", d=f"M{a:.1f} {b - 7:.1f}l7 7l-7 7l-7 -7Z", class_="diamond paper") for a, b in places)
    return joined([line(frame, x, y, colour), points(frame, x, y, colour, 9.0 if one.role is Role.OURS else 5.0)])


def _curve(frame: Frame, x: np.ndarray, means: Sequence[Mean], colour: str) -> Markup:
    """A line with its points, and whiskers of one standard error where that is known."""
    value, se = (np.array(part, np.float64) for part in zip(*means, strict=True))
    there = np.isfinite(value) & np.isfinite(se)
    bars = whiskers(frame, x[there], (value - se)[there], (value + se)[there], colour)
    return joined(
        [tag("g", bars, class_="whisker"), line(frame, x, value, colour), points(frame, x, value, colour, 8.0)]
    )


def _ends(means: Sequence[Mean]) -> np.ndarray:
    """The values with their whiskers' ends."""
    value, se = (np.array(part, np.float64) for part in zip(*means, strict=True))
    return np.concatenate([value, value - se, value + se])


def _labels(frame: Frame, series: Sequence[Series], classes: Sequence[str]) -> Markup:
    """Each line's name at the right, as near to its end as the others let it, with a thread from there."""
    left, top, width, height = frame.box
    ends = []
    for one in series:
        last = int(np.flatnonzero(np.isfinite(np.asarray(one.y, np.float64)))[-1])
        ends.append((float(frame.x(one.x[last])), float(frame.y(one.y[last]))))
    edge = left + width + 16
    parts = []
    places = _spread([y for _, y in ends], 17.0, top + height)
    for one, colour, (x, y), at in zip(series, classes, ends, places, strict=True):
        parts.append(tag("path", d=f"M{x:.1f} {y:.1f}L{edge - 4:.1f} {at:.1f}", class_=f"leader {colour}"))
        weight = "strong" if one.role is Role.OURS else "note"
        parts.append(tag("text", one.name, x=edge, y=at + 4, class_=weight))
    return joined(parts)


def _spread(places: Sequence[float], gap: float, most: float) -> list[float]:
    """Places moved apart to `gap` at least, in their order, none beyond `most` unless there are too many."""
    order = np.argsort(places, kind="stable")
    at = np.asarray(places, np.float64)[order]
    for index in range(1, len(at)):
        at[index] = max(at[index], at[index - 1] + gap)
    if len(at):
        at[-1] = min(at[-1], most)
    for index in range(len(at) - 2, -1, -1):
        at[index] = min(at[index], at[index + 1] - gap)
    spread = np.empty(len(at))
    spread[order] = at
    return spread.tolist()


def _one_map(left: float, top: float, side: float, shares: np.ndarray) -> Markup:
    """A square map, every point a block of pixels, so that no viewer blurs it. shares (n1, n2)."""
    pixels = scale_colours(shares.T[::-1]).repeat(4, axis=0).repeat(4, axis=1)
    place = {"x": left, "y": top, "width": side, "height": side}
    image = tag("image", preserveAspectRatio="none", href=data_uri(pixels), **place)
    return joined([image, tag("rect", class_="border", **place)])


def _colour_bar(top: float, highest: float) -> Markup:
    width = 360
    colours = scale_colours(np.linspace(0.0, 1.0, 256))[None]
    place: dict[str, str | float] = {"x": _EDGE, "y": top, "width": width, "height": 12}
    parts = [tag("image", preserveAspectRatio="none", href=data_uri(colours), **place)]
    ticks = nice_ticks(0.0, highest)
    for tick, label in zip(ticks, tick_labels(ticks), strict=True):
        at = _EDGE + width * tick / highest
        parts.append(tag("path", d=f"M{at:.1f} {top + 12:.1f}v4", class_="axis"))
        anchor = "start" if tick == 0 else "middle"
        parts.append(tag("text", label, x=at, y=top + 28, text_anchor=anchor))
    parts.append(tag("text", "density", x=_EDGE + width + 14, y=top + 11, class_="label"))
    return joined(parts)


def _placed(frame: Frame, x: float, y: float, plot: Markup) -> Markup:
    return tag("svg", plot, x=x, y=y, width=frame.width, height=frame.height)


def _shown(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"


def _sheet(title: str, height: float, parts: Sequence[Markup]) -> bytes:
    """A whole file on white paper."""
    whole = tag(
        "svg", tag("style", Markup(_STYLE)), tag("rect", width=WIDTH, height=height, fill="#ffffff"),
        tag("text", title, x=_EDGE, y=28, class_="title"), *parts,
        xmlns="http://www.w3.org/2000/svg", width=WIDTH, height=height, viewBox=f"0 0 {WIDTH} {height:g}",
    )  # fmt: skip
    return f"{whole}\n".encode()
