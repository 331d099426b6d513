"""What is drawn into a frame: bars, steps, lines, points, error bars, pictures, guides."""

from collections.abc import Sequence

import numpy as np

from bayesnde_cli.report.colours import hex_colours
from bayesnde_cli.report.frame import Frame
from bayesnde_cli.report.markup import Markup, joined, tag
from bayesnde_cli.report.png import data_uri

# Groups that points coloured by a number are drawn in: one path for each, instead of one element for each point.
_N_SHADES = 24


def bars(frame: Frame, edges: np.ndarray, heights: np.ndarray, colour: str) -> Markup:
    """A filled histogram; edges (bins + 1,), heights (bins,)."""
    return tag("path", d=_outline(frame, edges, heights) + "Z", class_=f"fill {colour}")


def steps(frame: Frame, edges: np.ndarray, heights: np.ndarray, colour: str) -> Markup:
    """The outline of a histogram."""
    return tag("path", d=_outline(frame, edges, heights), class_=f"line {colour}")


def line(frame: Frame, x: np.ndarray, y: np.ndarray, colour: str) -> Markup:
    """A line through points; it is broken where a value is not finite."""
    path, is_broken = [], True
    for at_x, at_y, is_there in zip(frame.x(x), frame.y(y), np.isfinite(x) & np.isfinite(y), strict=True):
        if is_there:
            path.append(f"{'M' if is_broken else 'L'}{_at(at_x, at_y)}")
        is_broken = not is_there
    return tag("path", d="".join(path), class_=f"line {colour}")


def points(frame: Frame, x: np.ndarray, y: np.ndarray, colour: str, size: float = 4.0) -> Markup:
    """Dots, in one path: a line of no length with round ends is a dot."""
    return tag("path", d=_dots(frame, x, y), class_=f"dots {colour}", stroke_width=size)


def shaded_points(frame: Frame, x: np.ndarray, y: np.ndarray, shares: np.ndarray, size: float = 4.0) -> Markup:
    """Dots coloured by a share of the colour scale, from 0 to 1."""
    shade = np.clip(np.nan_to_num(shares) * _N_SHADES, 0, _N_SHADES - 1).astype(int)
    colours = hex_colours((np.arange(_N_SHADES) + 0.5) / _N_SHADES)
    return joined(
        tag("path", d=_dots(frame, x[shade == index], y[shade == index]), class_="dots", stroke_width=size,
            style=f"--colour:{colours[index]}")
        for index in range(_N_SHADES)
        if (shade == index).any()
    )  # fmt: skip


def ring(frame: Frame, x: float, y: float, colour: str) -> Markup:
    """A circle around one point."""
    return tag("circle", cx=float(frame.x(x)), cy=float(frame.y(y)), r=7, class_=f"line {colour}")


def whiskers(frame: Frame, x: np.ndarray, low: np.ndarray, high: np.ndarray, colour: str) -> Markup:
    """Upright error bars."""
    ends = zip(frame.x(x), frame.y(low), frame.y(high), strict=True)
    return tag("path", d="".join(f"M{_at(at, foot)}V{top:.1f}" for at, foot, top in ends), class_=f"line {colour}")


def level_whiskers(frame: Frame, y: np.ndarray, low: np.ndarray, high: np.ndarray, colour: str) -> Markup:
    """Error bars that lie down."""
    ends = zip(frame.y(y), frame.x(low), frame.x(high), strict=True)
    return tag("path", d="".join(f"M{_at(left, at)}H{right:.1f}" for at, left, right in ends), class_=f"line {colour}")


def upright_guide(frame: Frame, x: float) -> Markup:
    """A dashed line at a value of the x axis."""
    _, top, _, height = frame.box
    return tag("path", d=f"M{float(frame.x(x)):.1f} {top}v{height}", class_="guide")


def level_guide(frame: Frame, y: float) -> Markup:
    """A dashed line at a value of the y axis."""
    left, _, width, _ = frame.box
    return tag("path", d=f"M{left} {float(frame.y(y)):.1f}h{width}", class_="guide")


def diagonal(frame: Frame) -> Markup:
    """The line of equal values; both axes must be the same."""
    left, top, width, height = frame.box
    return tag("path", d=f"M{left} {top + height}L{left + width} {top}", class_="guide")


def picture(frame: Frame, pixels: np.ndarray) -> Markup:
    """A picture that fills the frame, (height, width, 3) uint8, the first row at the top."""
    left, top, width, height = frame.box
    return tag("image", x=left, y=top, width=width, height=height, preserveAspectRatio="none", href=data_uri(pixels))


def legend(entries: Sequence[tuple[str, str]]) -> Markup:
    """Names of series beside their colours; entries are (name, colour)."""
    return tag("p", *(tag("span", tag("i", class_=colour), name) for name, colour in entries), class_="legend")


def _outline(frame: Frame, edges: np.ndarray, heights: np.ndarray) -> str:
    at_x, at_y, foot = frame.x(edges), frame.y(heights), float(frame.y(frame.y_axis.low))
    tops = "".join(f"V{top:.1f}H{right:.1f}" for top, right in zip(at_y, at_x[1:], strict=True))
    return f"M{_at(at_x[0], foot)}{tops}V{foot:.1f}"


def _dots(frame: Frame, x: np.ndarray, y: np.ndarray) -> str:
    is_there = np.isfinite(x) & np.isfinite(y)
    return "".join(f"M{_at(*place)}h0" for place in zip(frame.x(x[is_there]), frame.y(y[is_there]), strict=True))


def _at(x: float, y: float) -> str:
    return f"{x:.1f} {y:.1f}"
