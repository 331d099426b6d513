"""What sections are built of: headings, notes, plots side by side, folded parts."""

from bayesnde_cli.report.markup import Markup, tag


def section(anchor: str, title: str, *parts: Markup) -> Markup:
    """A section of the page."""
    return tag("section", tag("h2", title), *parts, id=anchor)


def note(text: str) -> Markup:
    """An explanation."""
    return tag("p", text, class_="note")


def plot_box(title: str, plot: Markup, *below: Markup, class_: str = "plot") -> Markup:
    """A plot with its title, and what belongs below it."""
    return tag("figure", tag("figcaption", title), plot, *below, class_=class_)


def grid(*boxes: Markup) -> Markup:
    """Plots side by side where there is room, one below the other on a phone."""
    return tag("div", *boxes, class_="grid")


def wide_grid(*boxes: Markup) -> Markup:
    """Larger plots, two side by side where there is room."""
    return tag("div", *boxes, class_="grid two")


def folded(title: str, *parts: Markup) -> Markup:
    """A part that opens on a click."""
    return tag("details", tag("summary", title), *parts)
