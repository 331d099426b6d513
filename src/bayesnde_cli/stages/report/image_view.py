"""What a report shows of a run of images: some of the set beside some of the model's, and those at both ends."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from bayesnde_cli.artifacts.layout import RunLayout
from bayesnde_cli.artifacts.tables import read_table
from bayesnde_cli.data.schema import Schema
from bayesnde_cli.report.image_sheet import Picture, SheetRow, colours, in_rows, white_level
from bayesnde_cli.report.numerals import nats
from bayesnde_cli.report.report_data import ImageSheets
from bayesnde_cli.rng import bits_at
from bayesnde_cli.stages.report.cells import file_cells
from bayesnde_cli.stages.report.model_view import ModelView
from bayesnde_cli.stages.report.scored_rows import model_rows
from bayesnde_cli.stages.scoring.density_table import DENSITY_SCHEMA, DENSITY_VERSION

# Images in a row of a sheet: some as they come, and those of highest or lowest density.
_SOME, _AT_AN_END = 8, 5
_MOST_CLASSES = 20
# Rows of a sheet that has no classes.
_N_ROWS = 5


class _Scores(NamedTuple):
    """What is known of the rows of the set, (rows,) each."""

    row_ids: np.ndarray
    log_density: np.ndarray  # NaN with a missing pixel: the density of the others is another quantity
    is_whole: np.ndarray
    class_index: np.ndarray  # 0 without classes


class _Chosen(NamedTuple):
    """Positions of rows of one class."""

    some: np.ndarray
    highest: np.ndarray
    lowest: np.ndarray


def image_sheets(layout: RunLayout, set_name: str, schema: Schema, view: ModelView) -> ImageSheets:
    """The images that a report shows; with many classes those of the first ones."""
    assert schema.image is not None
    names = schema.classes[:_MOST_CLASSES] or ("",)
    n_rows = 1 if schema.classes else _N_ROWS
    scores = _read_scores(layout, set_name, schema)
    chosen = [_choose(scores, index, n_rows) for index in range(len(names))]
    white = white_level(int(file_cells(schema, view.x_train.max(axis=0, keepdims=True)).max()))

    position = np.unique(np.concatenate([part for parts in chosen for part in parts]))  # ascending, as files are read
    shown = _colours(schema, model_rows(layout, set_name, schema, position), white)
    pictures = {index: _picture(own, scores, index) for index, own in zip(position.tolist(), shown, strict=True)}

    captioned = {index: replace(item, caption=nats(scores.log_density[index], 1)) for index, item in pictures.items()}

    def rows(parts: Sequence[np.ndarray], own: Mapping[int, Picture], n_columns: int) -> tuple[SheetRow, ...]:
        return _rows([[own[index] for index in part.tolist()] for part in parts], names, n_columns)

    return ImageSheets(
        size=str(schema.image),
        white=white,
        real=rows([part.some for part in chosen], pictures, _SOME),
        generated=_rows(_generated(schema, view, len(names), n_rows * _SOME, white), names, _SOME),
        highest=rows([part.highest for part in chosen], captioned, _AT_AN_END),
        lowest=rows([part.lowest for part in chosen], captioned, _AT_AN_END),
    )


def _read_scores(layout: RunLayout, set_name: str, schema: Schema) -> _Scores:
    condition = schema.roles.condition
    columns = ["row_id", "log_density", "n_observed", *([condition] if condition else [])]
    table = read_table(layout.density_file(set_name), DENSITY_SCHEMA, columns, schema_version=DENSITY_VERSION)
    is_whole = table["n_observed"].to_numpy() == len(schema.features)
    class_index = schema.one_hot(table[condition].to_pylist()).argmax(axis=1) if condition else np.zeros(len(table))
    log_density = np.where(is_whole, table["log_density"].to_numpy(), np.nan)
    return _Scores(table["row_id"].to_numpy(), log_density, is_whole, class_index)


def _choose(scores: _Scores, class_index: int, n_rows: int) -> _Chosen:
    """Rows of a class: some by their own random numbers, and those of highest and of lowest density."""
    own = np.flatnonzero(scores.is_whole & (scores.class_index == class_index))
    some = own[np.argsort(bits_at(0, scores.row_ids[own]), kind="stable")[: n_rows * _SOME]]
    known = own[np.isfinite(scores.log_density[own])]
    rising = known[np.argsort(scores.log_density[known], kind="stable")]
    n_ends = n_rows * _AT_AN_END
    return _Chosen(some, rising[::-1][:n_ends], rising[:n_ends])


def _picture(pixels: np.ndarray, scores: _Scores, index: int) -> Picture:
    return Picture(pixels, f"row {scores.row_ids[index] + 1}, log-density {nats(scores.log_density[index])}")


def _generated(schema: Schema, view: ModelView, n_classes: int, n_of_each: int, white: int) -> list[list[Picture]]:
    """Images of the model, so many of each class."""
    y = None
    if schema.classes:
        y = np.eye(len(schema.classes), dtype=np.float32)[np.repeat(np.arange(n_classes), n_of_each)]
    shown = _colours(schema, view.generated_images(n_classes * n_of_each, y), white)
    return [[Picture(own) for own in part] for part in np.split(shown, n_classes)]


def _rows(parts: Sequence[list[Picture]], names: Sequence[str], n_columns: int) -> tuple[SheetRow, ...]:
    """A row for each class that has images; without classes, rows of all."""
    if tuple(names) == ("",):
        return tuple(in_rows(parts[0], n_columns))
    return tuple(SheetRow(tuple(part), name) for part, name in zip(parts, names, strict=True) if part)


def _colours(schema: Schema, x_scaled: np.ndarray, white: int) -> np.ndarray:
    """Rows of the model's space as colours, (rows, height, width, 3) uint8."""
    image = schema.image
    assert image is not None
    values = file_cells(schema, x_scaled).astype(np.uint8)
    return colours(values.reshape(-1, image.height, image.width, image.channels), white)
