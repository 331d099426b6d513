"""The class of highest density against the true one: a table of counts, and a picture of shares."""

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np

from bayesnde_cli.report.blocks import grid, plot_box
from bayesnde_cli.report.colours import scale_colours
from bayesnde_cli.report.frame import WIDTH, Frame, named_axis
from bayesnde_cli.report.marks import picture
from bayesnde_cli.report.markup import Markup, tag
from bayesnde_cli.report.png import enlarged
from bayesnde_cli.report.tables import table

# Classes in a table, and at an axis.
MOST_CLASSES = 20
_LONGEST_NAME = 6
# Pixels of the picture's side, at least.
_LEAST_PIXELS = 300


def confusion(found: Mapping[str, Any]) -> list[Markup]:
    """The confusion matrix, if there is one; of more than two classes as a picture, too."""
    matrix = found.get("confusion_matrix") or {}
    if not matrix:
        return []
    names = matrix["classes"][:MOST_CLASSES]
    rows = [
        (f"is {name}", *(f"{n:,}" for n in counts[:MOST_CLASSES]))
        for name, counts in zip(names, matrix["counts"][:MOST_CLASSES], strict=True)
    ]
    title = class_title("The class of highest density against the true one", matrix["classes"])
    shown = [tag("h3", title), table(("", *(f"found {name}" for name in names)), rows)]
    return shown + ([_shares(matrix)] if len(matrix["classes"]) > 2 else [])


def class_title(text: str, classes: Collection[str]) -> str:
    """The title of a table of classes, which says how many are shown."""
    n = len(classes)
    return text if n <= MOST_CLASSES else f"{text}, {MOST_CLASSES} of {n:,} classes"


def _shares(matrix: Mapping[str, Any]) -> Markup:
    """The shares of all classes as a picture: a line is a true class, the first one on top."""
    counts = np.array(matrix["counts"], np.float64)
    shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1.0)
    is_named = len(counts) <= MOST_CLASSES
    names = [name if is_named and len(name) <= _LONGEST_NAME else "" for name in matrix["classes"]]
    frame = Frame(named_axis(names, "class found"), named_axis(names[::-1], "true class"), height=WIDTH)
    pixels = enlarged(scale_colours(shares), -(-_LEAST_PIXELS // len(counts)))
    title = "Share of each true class by the class found, bright is high"
    return grid(plot_box(title, frame.plot(title, picture(frame, pixels), has_grid=False)))
