"""Images beside each other, in rows that may have names: one PNG, or an SVG whose images say what they are."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from bayesnde_cli.report.markup import Markup, tag
from bayesnde_cli.report.png import data_uri, enlarged, png_bytes

# Pixels of an image's longer side, at least: each of its own is a block of them, so that no viewer blurs it.
_LEAST_SIDE = 80
_GAP = 4
# Units of the SVG: room for names on the left, and for a line below each image.
_EDGE, _LETTER, _MOST_LETTERS, _CAPTION = 6, 7.5, 16, 15
# Images that are dark all over: their highest value is white, or there would be nothing to see.
_DARK = 64
# Neither black nor white, so that images of either have an edge.
_PAPER = 170
_STYLE = "text{font:13px system-ui,sans-serif;fill:#333} image{image-rendering:pixelated} .panel{fill:none;stroke:#aaa}"


@dataclass(frozen=True)
class Picture:
    """An image of a sheet."""

    pixels: np.ndarray  # (height, width, 3) uint8
    hint: str = ""  # shown where it is pointed at
    caption: str = ""  # shown below it


@dataclass(frozen=True)
class SheetRow:
    """Images side by side."""

    pictures: tuple[Picture, ...]
    name: str = ""


def white_level(highest: int) -> int:
    """The value that is shown white, of images whose highest value this is: 255, unless they are dark all over."""
    return max(highest, 1) if highest < _DARK else 255


def colours(images: np.ndarray, white: int = 255) -> np.ndarray:
    """Images (n, height, width, channels) of bytes as colours, (n, height, width, 3) uint8.

    One or two channels are grey, the second one not shown; of more, the first three are red, green and blue.
    """
    shown = images[..., :3] if images.shape[-1] >= 3 else np.repeat(images[..., :1], 3, axis=-1)
    return np.minimum(np.rint(shown.astype(np.float64) * (255 / white)), 255).astype(np.uint8)


def in_rows(pictures: Sequence[Picture], n_columns: int) -> list[SheetRow]:
    """Rows of so many pictures, without names."""
    starts = range(0, len(pictures), n_columns)
    return [SheetRow(tuple(pictures[start : start + n_columns])) for start in starts]


def sheet_png(rows: Sequence[SheetRow]) -> bytes:
    """All images of the rows, one row below the other, without names."""
    height, width, factor = _size(rows)
    n_columns = max(len(row.pictures) for row in rows)
    paper = np.full((_along(len(rows), height), _along(n_columns, width), 3), _PAPER, np.uint8)
    for i, row in enumerate(rows):
        for j, picture in enumerate(row.pictures):
            top, left = _along(i, height), _along(j, width)
            paper[top : top + height, left : left + width] = enlarged(picture.pixels, factor)
    return png_bytes(paper)


def sheet_svg(rows: Sequence[SheetRow], title: str) -> Markup:
    """The rows with their names at the left, and each image with its hint and its caption, for a page."""
    width, height, parts = _drawn(rows)
    return tag(
        "svg", tag("title", title), *parts, viewBox=f"0 0 {width:g} {height:g}", role="img", class_="sheet",
        style=f"max-width:{width:g}px",
    )  # fmt: skip


def sheet_file(rows: Sequence[SheetRow], title: str) -> bytes:
    """The same as a file of its own."""
    width, height, parts = _drawn(rows)
    paper = tag("rect", width=width, height=height, fill="#ffffff")
    whole = tag(
        "svg", tag("title", title), tag("style", Markup(_STYLE)), paper, *parts, xmlns="http://www.w3.org/2000/svg",
        width=width, height=height, viewBox=f"0 0 {width:g} {height:g}",
    )  # fmt: skip
    return f"{whole}\n".encode()


def _drawn(rows: Sequence[SheetRow]) -> tuple[float, float, list[Markup]]:
    """Width and height of the sheet, and all that is on it."""
    height, width, _ = _size(rows)
    line = height + _CAPTION * any(picture.caption for row in rows for picture in row.pictures)
    n_letters = min(max(len(row.name) for row in rows), _MOST_LETTERS)
    margin = _EDGE + _LETTER * n_letters if n_letters else 0.0
    parts, edges = [], []
    for i, row in enumerate(rows):
        top = _along(i, line)
        if row.name:
            name = tag("text", _cut(row.name), x=margin, y=top + height / 2 + 4.5, class_="label", text_anchor="end")
            parts.append(name)
        for j, picture in enumerate(row.pictures):
            left = margin + _along(j, width)
            hint = [tag("title", picture.hint)] if picture.hint else []
            parts.append(tag("image", *hint, x=left, y=top, width=width, height=height, href=data_uri(picture.pixels)))
            edges.append(f"M{left:g} {top}h{width}v{height}h{-width}z")
            if picture.caption:
                at, foot = left + width / 2, top + height + 11.5
                parts.append(tag("text", picture.caption, x=at, y=foot, class_="tick", text_anchor="middle"))
    parts.append(tag("path", d="".join(edges), class_="panel"))
    n_columns = max(len(row.pictures) for row in rows)
    return margin + _along(n_columns, width), _along(len(rows), line), parts


def _size(rows: Sequence[SheetRow]) -> tuple[int, int, int]:
    """The height and width of an image on the sheet, and how often each of its pixels is repeated."""
    height, width, _ = rows[0].pictures[0].pixels.shape
    factor = -(-_LEAST_SIDE // max(height, width))
    return factor * height, factor * width, factor


def _along(index: int, size: float) -> int:
    """Where the image of this position begins."""
    return int(_GAP + index * (size + _GAP))


def _cut(text: str) -> str:
    return text if len(text) <= _MOST_LETTERS else text[: _MOST_LETTERS - 1] + "…"
