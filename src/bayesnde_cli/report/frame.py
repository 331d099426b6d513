"""The frame of a plot: where a value lies on the paper, and the axes around it."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from bayesnde_cli.report.markup import Markup, joined, tag
from bayesnde_cli.report.ticks import log_labels, log_ticks, nice_ticks, tick_labels

# Units of the SVG; a plot is shown at about this size, on a phone a little smaller.
WIDTH, HEIGHT = 380, 250
_LEFT, _RIGHT, _TOP, _BOTTOM = 54, 18, 10, 40


@dataclass(frozen=True)
class Axis:
    """A range of values with its ticks; of a logarithmic axis all of them are exponents of ten."""

    low: float
    high: float
    label: str
    ticks: tuple[float, ...]
    tick_labels: tuple[str, ...]
    is_log: bool = False

    def place(self, values: np.ndarray) -> np.ndarray:
        """Values as shares of the axis; those beyond its ends are at the ends. Shape of `values`."""
        with np.errstate(divide="ignore", invalid="ignore"):
            values = np.log10(values) if self.is_log else np.asarray(values, np.float64)
        inside = np.clip(np.nan_to_num(values, nan=self.low, posinf=self.high, neginf=self.low), self.low, self.high)
        return np.asarray((inside - self.low) / (self.high - self.low))


def axis(low: float, high: float, label: str = "", n_ticks: int = 5) -> Axis:
    """An axis of numbers."""
    ticks = nice_ticks(low, high, n_ticks)
    return Axis(low, high, label, tuple(ticks), tuple(tick_labels(ticks)))


def log_axis(low: float, high: float, label: str = "") -> Axis:
    """A logarithmic axis between two positive numbers."""
    exponents = float(np.log10(low)), float(np.log10(high))
    ticks = log_ticks(*exponents)
    return Axis(*exponents, label, tuple(ticks), tuple(log_labels(ticks)), is_log=True)


def named_axis(names: Sequence[str], label: str = "") -> Axis:
    """An axis of categories, which are at 0, 1, 2, …"""
    return Axis(-0.5, len(names) - 0.5, label, tuple(map(float, range(len(names)))), tuple(names))


@dataclass(frozen=True)
class Frame:
    """A rectangle with an axis at the bottom and one at the left."""

    x_axis: Axis
    y_axis: Axis
    width: float = WIDTH
    height: float = HEIGHT
    left: float = _LEFT
    right: float = _RIGHT
    top: float = _TOP
    bottom: float = _BOTTOM

    @property
    def box(self) -> tuple[float, float, float, float]:
        """Left, top, width and height of the inner rectangle."""
        return self.left, self.top, self.width - self.left - self.right, self.height - self.top - self.bottom

    def x(self, values: float | Sequence[float] | np.ndarray) -> np.ndarray:
        left, _, width, _ = self.box
        return left + width * self.x_axis.place(np.asarray(values, np.float64))

    def y(self, values: float | Sequence[float] | np.ndarray) -> np.ndarray:
        _, top, _, height = self.box
        return top + height * (1.0 - self.y_axis.place(np.asarray(values, np.float64)))

    def plot(self, title: str, *marks: Markup, has_grid: bool = True) -> Markup:
        """The marks in their frame; the title is for those who do not see the plot."""
        return tag(
            "svg", tag("title", title), self._axes(has_grid), *marks,
            viewBox=f"0 0 {self.width:g} {self.height:g}", role="img",
        )  # fmt: skip

    def _axes(self, has_grid: bool) -> Markup:
        left, top, width, height = self.box
        foot = top + height
        parts = [tag("path", d=f"M{left} {top}V{foot}H{left + width}", class_="axis")]
        for value, label in zip(self.x_axis.ticks, self.x_axis.tick_labels, strict=True):
            at = left + width * float((value - self.x_axis.low) / (self.x_axis.high - self.x_axis.low))
            parts.append(tag("path", d=f"M{at:.1f} {foot}v4", class_="axis"))
            parts.append(tag("text", label, x=at, y=foot + 15, class_="tick", text_anchor="middle"))
        for value, label in zip(self.y_axis.ticks, self.y_axis.tick_labels, strict=True):
            at = foot - height * float((value - self.y_axis.low) / (self.y_axis.high - self.y_axis.low))
            if has_grid:
                parts.append(tag("path", d=f"M{left} {at:.1f}h{width}", class_="gridline"))
            parts.append(tag("text", label, x=left - 6, y=at + 3.5, class_="tick", text_anchor="end"))
        parts.append(
            tag("text", self.x_axis.label, x=left + width / 2, y=self.height - 6, class_="label", text_anchor="middle")
        )
        middle = top + height / 2
        parts.append(
            tag("text", self.y_axis.label, x=12, y=middle, class_="label", text_anchor="middle",
                transform=f"rotate(-90 12 {middle:g})")
        )  # fmt: skip
        return joined(parts)
