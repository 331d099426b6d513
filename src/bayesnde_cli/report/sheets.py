"""Sheets of images, in rows that may have names: one PNG, or an SVG in which every image has a tooltip."""

import base64
import io
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow.parquet as pq

from bayesnde_cli.formatting import format_nats
from bayesnde_cli.report.collect import read_scaled
from bayesnde_cli.report.page import render_template
from bayesnde_cli.report.plots import Plot
from bayesnde_cli.rng import bits_at
from bayesnde_cli.runs.layout import RunLayout
from bayesnde_cli.tables.model_rows import read_schema, to_file_units

# Images in each row of a sheet: random ones, and those of highest or lowest density. Rows of a sheet without classes.
N_RANDOM_IMAGES, _N_EXTREME_IMAGES, N_IMAGE_ROWS = 8, 5, 5
MAX_IMAGE_CLASSES = 20
# Least length of an image's longer side. Small images are enlarged by a whole number, so that viewers do not blur them.
_LEAST_SIDE = 80
_GAP = 4
# SVG units: space for the row names on the left, and for a caption below each image.
_MARGIN, _LETTER_WIDTH, _MAX_LETTERS, _CAPTION_HEIGHT = 6, 7.5, 16, 15
# Images whose highest value is below this are brightened: the highest value becomes white.
_DARK = 64
# Neither black nor white, so that images of either colour have a visible edge.
_PAPER = 170


class Picture(NamedTuple):
    """One image of a sheet."""

    pixels: np.ndarray  # (height, width, 3) uint8
    hint: str = ""  # tooltip
    caption: str = ""  # text below the image


class SheetRow(NamedTuple):
    """Images side by side, and the name of the row."""

    pictures: tuple[Picture, ...]
    name: str = ""


class ImageSheets(NamedTuple):
    """The sheets of a report: one row per class, or several rows without classes."""

    size: str  # `28 x 28`
    white: int  # the pixel value shown as white
    real: list[SheetRow]
    generated: list[SheetRow]
    highest: list[SheetRow]  # real images of highest density
    lowest: list[SheetRow]


def white_level(highest: int) -> int:
    """The pixel value shown as white: 255, or the highest value of images that are dark throughout."""
    return max(highest, 1) if highest < _DARK else 255


def to_rgb(images: np.ndarray, white: int = 255) -> np.ndarray:
    """Images (n, height, width, channels) of bytes as RGB, (n, height, width, 3) uint8.

    One or two channels are shown in grey, by the first channel; of more, the first three are red, green and blue.
    """
    shown = images[..., :3] if images.shape[-1] >= 3 else np.repeat(images[..., :1], 3, axis=-1)
    return np.minimum(np.rint(shown.astype(np.float64) * (255 / white)), 255).astype(np.uint8)


def in_rows(pictures: Sequence[Picture], n_columns: int) -> list[SheetRow]:
    """The pictures in rows of this length, without names."""
    starts = range(0, len(pictures), n_columns)
    return [SheetRow(tuple(pictures[start : start + n_columns])) for start in starts]


# Drawing


def png_bytes(pixels: np.ndarray) -> bytes:
    """A PNG file of pixels (height, width, 3) uint8, the first row at the top."""
    from PIL import Image

    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG", optimize=True)
    return file.getvalue()


def sheet_png(rows: Sequence[SheetRow]) -> bytes:
    """All images of the rows as one PNG, without names."""
    height, width, factor = _image_size(rows)
    n_columns = max(len(row.pictures) for row in rows)
    paper = np.full((_offset(len(rows), height), _offset(n_columns, width), 3), _PAPER, np.uint8)
    for i, row in enumerate(rows):
        for j, picture in enumerate(row.pictures):
            top, left = _offset(i, height), _offset(j, width)
            enlarged = picture.pixels.repeat(factor, axis=0).repeat(factor, axis=1)
            paper[top : top + height, left : left + width] = enlarged
    return png_bytes(paper)


def sheet_svg(rows: Sequence[SheetRow], title: str, *, is_file: bool = False) -> str:
    """The rows with names, tooltips and captions, as an SVG element of a page or as a file."""
    height, width, _ = _image_size(rows)
    has_captions = any(picture.caption for row in rows for picture in row.pictures)
    line_height = height + _CAPTION_HEIGHT * has_captions
    n_letters = min(max(len(row.name) for row in rows), _MAX_LETTERS)
    margin = _MARGIN + _LETTER_WIDTH * n_letters if n_letters else 0
    return render_template(
        "sheet.svg",
        rows=rows,
        title=title,
        is_file=is_file,
        gap=_GAP,
        margin=margin,
        image_width=width,
        image_height=height,
        line_height=line_height,
        width=margin + _offset(max(len(row.pictures) for row in rows), width),
        height=_offset(len(rows), line_height),
        data_uri=lambda pixels: "data:image/png;base64," + base64.b64encode(png_bytes(pixels)).decode(),
    )


def _image_size(rows: Sequence[SheetRow]) -> tuple[int, int, int]:
    """Height and width of each image on the sheet, and the factor by which it is enlarged."""
    height, width, _ = rows[0].pictures[0].pixels.shape
    factor = -(-_LEAST_SIDE // max(height, width))
    return factor * height, factor * width, factor


def _offset(index: int, size: float) -> int:
    """The first pixel of the image at this position."""
    return int(_GAP + index * (size + _GAP))


# Images of a report


def draw_sheets(images: ImageSheets) -> tuple[list[Plot], list[Plot]]:
    """Sheets of real and generated images, and of those with the highest and lowest density."""
    pairs = (
        {"Images of these rows": images.real, "Generated images": images.generated},
        {"Highest, from the left": images.highest, "Lowest, from the left": images.lowest},
    )
    some, ends = ([Plot(title, sheet_svg(rows, title)) for title, rows in pair.items() if rows] for pair in pairs)
    return some, ends


def collect_images(layout: RunLayout, set_name: str, x_train: np.ndarray, x_generated: np.ndarray) -> ImageSheets:
    """The images that a report shows, random ones and those at both ends; with many classes those of the first ones."""
    schema = read_schema(layout)
    image, condition = schema.image, schema.condition
    assert image is not None
    names = schema.classes[:MAX_IMAGE_CLASSES] or ("",)
    white = white_level(int(to_file_units(schema, x_train.max(axis=0, keepdims=True)).max()))
    columns = ["row_id", "log_density", "n_observed", *([condition] if condition else [])]
    table = pq.read_table(layout.density_file(set_name), columns=columns)
    row_ids, log_density = table["row_id"].to_numpy(), table["log_density"].to_numpy()
    # With missing pixels, the density is that of the others: a different quantity.
    complete = np.flatnonzero(table["n_observed"].to_numpy() == len(schema.features))
    classes = schema.one_hot(table[condition].to_pylist()).argmax(axis=1) if condition else np.zeros(len(table))

    def pixels(x_scaled: np.ndarray) -> np.ndarray:
        """Rows of the model's space as RGB images."""
        values = to_file_units(schema, x_scaled).astype(np.uint8)
        return to_rgb(values.reshape(-1, image.height, image.width, image.channels), white)

    def in_classes(parts: Iterable[list[Picture]], n_columns: int) -> list[SheetRow]:
        """One row for each class that has images; without classes, rows of equal length."""
        if condition is None:
            return [row for part in parts for row in in_rows(part, n_columns)]
        return [SheetRow(tuple(part), name) for name, part in zip(names, parts, strict=True) if part]

    def sheet(order: np.ndarray, n_columns: int, *, has_captions: bool = True) -> list[SheetRow]:
        """The first images of each class in this order."""
        parts = []
        for index in range(len(names)):
            own = order[classes[order] == index][: n_columns if condition else n_columns * N_IMAGE_ROWS]
            hints = [f"row {row_ids[at] + 1}, log-density {format_nats(log_density[at])}" for at in own]
            captions = [format_nats(log_density[at], 1) if has_captions else "" for at in own]
            found = pixels(read_scaled(layout, set_name, own))
            parts.append([Picture(*parts) for parts in zip(found, hints, captions, strict=True)])
        return in_classes(parts, n_columns)

    finite = complete[np.isfinite(log_density[complete])]
    rising = finite[np.argsort(log_density[finite], kind="stable")]
    random = complete[np.argsort(bits_at(0, row_ids[complete]), kind="stable")]
    generated = [[Picture(own) for own in part] for part in np.split(pixels(x_generated), len(names))]
    return ImageSheets(
        size=str(image),
        white=white,
        real=sheet(random, N_RANDOM_IMAGES, has_captions=False),
        generated=in_classes(generated, N_RANDOM_IMAGES),
        highest=sheet(rising[::-1], _N_EXTREME_IMAGES),
        lowest=sheet(rising, _N_EXTREME_IMAGES),
    )
