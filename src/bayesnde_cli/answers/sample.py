"""`sample`: new rows of the fitted model in the units and types of the file, as a table or as a sheet of images.

A block is drawn whole even if only its first rows are used, so that a longer sample begins with the shorter one.
"""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from bayesnde_cli.answers import FittedRun
from bayesnde_cli.errors import BadUsage
from bayesnde_cli.formatting import counted, format_nats
from bayesnde_cli.report.sheets import Picture, SheetRow, in_rows, to_rgb, white_level
from bayesnde_cli.rng import derive_seed
from bayesnde_cli.rows import Rows
from bayesnde_cli.stages.loading import Engine, Prior
from bayesnde_cli.tables.columns import IMAGE_COLUMN, listed, stored_pixels
from bayesnde_cli.tables.model_rows import GeneratedColumn, cell_type, format_cells, invert_scaling, scale_columns

BLOCK_ROWS = 1024
_FIGURES = {"log_density": pa.float64(), "mc_se": pa.float64(), "reliable": pa.bool_()}
# A larger sheet is too much for a viewer.
_MOST_IMAGES = 10_000


@dataclass(frozen=True)
class Sampler:
    """Draws rows of a fitted run: of the chosen classes in turn, or with classes as frequent as in training.

    With an engine, every row also has a density; `run.block_rows` rows go through the engine together.
    """

    run: FittedRun
    prior: Prior  # in blocks of BLOCK_ROWS
    chosen_classes: tuple[int, ...] = ()
    engine: Engine | None = None

    @property
    def columns(self) -> pa.Schema:
        """The features, the condition, then the figures of the density."""
        columns = {feature.name: cell_type(feature) for feature in self.run.schema.features}
        if self.run.schema.condition:
            columns[self.run.schema.condition] = self.run.class_type
        return pa.schema(columns | _FIGURES if self.engine else columns)

    def batches(self, n_rows: int) -> Iterator[pa.RecordBatch]:
        """The first rows of the sample."""
        for block in range(-(-n_rows // BLOCK_ROWS)):
            columns, class_index = self._draw_block(block)
            n_wanted = min(BLOCK_ROWS, n_rows - block * BLOCK_ROWS)
            size = self.run.block_rows if self.engine else BLOCK_ROWS
            for start in range(0, n_wanted, size):
                own = [column.slice(start, start + size) for column in columns]
                index = None if class_index is None else class_index[start : start + size]
                features = zip(self.run.schema.features, own, strict=True)
                arrays = [format_cells(feature, column) for feature, column in features]
                arrays += [] if index is None else [self.run.class_cells(index)]
                arrays += self._score(own, index, derive_seed(self.run.seed, "sample", block, "density", start))
                yield pa.RecordBatch.from_arrays(arrays, schema=self.columns).slice(0, n_wanted - start)

    def _draw_block(self, block: int) -> tuple[list[GeneratedColumn], np.ndarray | None]:
        """The columns of a block, and the positions of the classes."""
        index = y = None
        if self.chosen_classes:
            turn = block * BLOCK_ROWS + np.arange(BLOCK_ROWS)
            index = np.array(self.chosen_classes)[turn % len(self.chosen_classes)]
        elif self.run.classes:
            index = self.run.draw_classes(BLOCK_ROWS, "sample", block)
        if index is not None:
            y = self.run.one_hot(index)
        x = self.prior.rows(derive_seed(self.run.seed, "sample", block), y)  # (rows, p)
        return [invert_scaling(feature, u) for feature, u in zip(self.run.schema.features, x.T, strict=True)], index

    def _score(self, columns: list[GeneratedColumn], class_index: np.ndarray | None, seed: int) -> list[pa.Array]:
        """Log-density in the units of the file, its standard error, and whether it is reliable."""
        if self.engine is None:
            return []
        x, log_jacobian = scale_columns(self.run.schema, columns)
        y = None if class_index is None else self.run.one_hot(class_index)
        scores = self.engine.estimate(Rows(x, None, y), seed)
        found = {name: np.array(values[: len(x)]) for name, values in scores.items()}
        found["log_density"] = found["log_density_scaled"] + log_jacobian
        return [pa.array(found[name], kind) for name, kind in _FIGURES.items()]


def sort_by_density(batches: Iterable[pa.RecordBatch]) -> list[pa.RecordBatch]:
    """The rows of all batches, highest density first; rows without a density come last."""
    return list(pa.Table.from_batches(list(batches)).sort_by([("log_density", "descending")]).to_batches())


def check_sheet(run: FittedRun, n_images: int, out: str) -> None:
    """Refuse, before any work, a sheet of rows that are not images, or of too many images."""
    if run.schema.image is None:
        raise BadUsage(
            f"--out {out}: only images can be drawn as a sheet",
            found=f"the run is of a table, {counted(len(run.schema.features), 'column')}",
            hint="write the rows: --out FILE.csv, .parquet or .jsonl",
        )
    if n_images > _MOST_IMAGES:
        raise BadUsage(
            f"--out {out}: too many images for a sheet",
            found=f"{n_images:,} images, at most {_MOST_IMAGES:,}",
            hint="draw fewer, or write them as rows: --out FILE.parquet",
        )


def sample_sheet(run: FittedRun, sample: pa.Table, *, is_by_class: bool) -> tuple[list[SheetRow], str]:
    """The images of a sample, in one row per class or in a square, and a description of the sheet."""
    image, condition = run.schema.image, run.schema.condition
    assert image is not None
    batches = run.training_rows([IMAGE_COLUMN])
    highest = max((int(stored_pixels(batch.column(0)).max()) for batch in batches if batch.num_rows), default=255)
    white = white_level(highest)
    values = np.stack([sample[name].to_numpy() for name in image.pixel_names()], axis=1).astype(np.uint8)
    pixels = to_rgb(values.reshape(-1, image.height, image.width, image.channels), white)
    pictures = [Picture(own, hint) for own, hint in zip(pixels, _hints(sample, condition), strict=True)]
    words = f"{len(pictures):,} images of {image}"
    if is_by_class and condition is not None:
        classes = np.array([str(name) for name in sample[condition].to_pylist()])
        rows = [
            SheetRow(tuple(pictures[index] for index in np.flatnonzero(classes == name)), name) for name in run.classes
        ]
        words += f", a row for each class, from the top {listed(run.classes)}"
    else:
        rows = in_rows(pictures, math.ceil(math.sqrt(len(pictures))))
    return rows, words + ("" if white == 255 else f"; white is {white}, the highest value of training")


def _hints(sample: pa.Table, condition: str | None) -> list[str]:
    """The class of each image, and its log-density if known."""
    found = []
    for row in sample.select([name for name in (condition, *_FIGURES) if name in sample.column_names]).to_pylist():
        words = [] if condition is None else [str(row[condition])]
        if "log_density" in row:
            words.append(f"log-density {format_nats(row['log_density'])}, s.e. {format_nats(row['mc_se'])}")
            words += [] if row["reliable"] else ["not reliable"]
        found.append(", ".join(words))
    return found
