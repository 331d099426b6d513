"""A grid of log-densities as a picture: SVG with axes, title and colour scale, or PNG of the map alone."""

import numpy as np

from bayesnde_cli.report import frame as frames
from bayesnde_cli.report.colours import scale_colours
from bayesnde_cli.report.frame import Frame
from bayesnde_cli.report.marks import picture
from bayesnde_cli.report.markup import Markup, joined, tag
from bayesnde_cli.report.png import data_uri, png_bytes
from bayesnde_cli.report.ticks import nice_ticks, tick_labels
from bayesnde_cli.stages.applying.axis import Axis
from bayesnde_cli.stages.applying.grid import Grid

# Units of the SVG.
_WIDTH, _HEIGHT = 640, 520
_LEFT, _RIGHT, _TOP, _BOTTOM = 84, 96, 44, 52
# The colours reach so many nats down from the highest density, to 1/400 of it; what is lower has the lowest colour.
_DEPTH = 6.0
# Pixels of a map's sides, at least; each point is a block of them, so that no viewer blurs it.
_LEAST_PIXELS = 600
_MOST_NAMES, _LONGEST_NAME = 12, 12
_STYLE = (
    "text{font:13px system-ui,sans-serif;fill:#333} .title{font-size:16px;fill:#111} "
    ".axis{stroke:#333;fill:none} .label{font-size:14px;fill:#111}"
)


def svg(grid: Grid) -> bytes:
    """The map with its axes, a title, and what the colours mean."""
    first, second = (_axis(axis) for axis in (grid.question.first, grid.question.second))
    frame = Frame(first, second, _WIDTH, _HEIGHT, _LEFT, _RIGHT, _TOP, _BOTTOM)
    low, high = _span(grid.log_density)
    title = tag("text", _cut(grid.title, 80), x=_LEFT, y=_TOP - 16, class_="title")
    plot = frame.plot(grid.title, picture(frame, _pixels(grid)), title, _colour_bar(frame, low, high), has_grid=False)
    paper = tag("rect", width=_WIDTH, height=_HEIGHT, fill="#ffffff")
    whole = tag(
        "svg", tag("style", Markup(_STYLE)), paper, plot,
        xmlns="http://www.w3.org/2000/svg", width=_WIDTH, height=_HEIGHT, viewBox=f"0 0 {_WIDTH} {_HEIGHT}",
    )  # fmt: skip
    return f"{whole}\n".encode()


def png(grid: Grid) -> bytes:
    """The map alone, the second column upwards."""
    return png_bytes(_pixels(grid))


def _pixels(grid: Grid) -> np.ndarray:
    """The colours of the points, each several pixels wide and high, the first row at the top."""
    low, high = _span(grid.log_density)
    with np.errstate(invalid="ignore"):
        shares = (grid.log_density.T[::-1] - low) / (high - low)  # (second, first)
    pixels = scale_colours(np.nan_to_num(shares, neginf=0.0))
    for side in (0, 1):
        pixels = np.repeat(pixels, -(-_LEAST_PIXELS // pixels.shape[side]), axis=side)
    return pixels


def _span(log_density: np.ndarray) -> tuple[float, float]:
    """The log-densities at both ends of the colours."""
    finite = log_density[np.isfinite(log_density)]
    if not len(finite):
        return -_DEPTH, 0.0
    high = float(finite.max())
    return high - _DEPTH, high


def _axis(axis: Axis) -> frames.Axis:
    low, high = axis.places[0] - 0.5 * axis.step, axis.places[-1] + 0.5 * axis.step
    label = _cut(axis.feature.name, 60)
    if not axis.feature.categories:
        return frames.axis(float(low), float(high), label, 6)
    every = -(-len(axis.places) // _MOST_NAMES)
    names = [_cut(name, _LONGEST_NAME) for name in axis.feature.categories]
    return frames.Axis(float(low), float(high), label, tuple(axis.places[::every].tolist()), tuple(names[::every]))


def _colour_bar(frame: Frame, low: float, high: float) -> Markup:
    left, top, width, height = frame.box
    edge = left + width + 18
    colours = scale_colours(np.linspace(1.0, 0.0, 256))[:, None, :]
    parts = [tag("image", x=edge, y=top, width=16, height=height, preserveAspectRatio="none", href=data_uri(colours))]
    ticks = nice_ticks(low, high)
    for tick, label in zip(ticks, tick_labels(ticks), strict=True):
        at = top + height * (high - tick) / (high - low)
        parts.append(tag("text", label, x=edge + 22, y=at + 4.5))
    parts.append(tag("text", "log-density", x=edge - 4, y=top - 16))
    return joined(parts)


def _cut(text: str, longest: int) -> str:
    return text if len(text) <= longest else text[: longest - 1] + "…"
