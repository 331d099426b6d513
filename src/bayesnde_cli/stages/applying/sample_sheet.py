"""A sample of images as a sheet: a row for each class, or a square of all."""

import math

import numpy as np
import pyarrow as pa

from bayesnde_cli.data.image import IMAGE_COLUMN, ImageShape, stored_pixels
from bayesnde_cli.data.roles import listed
from bayesnde_cli.errors import BadUsage
from bayesnde_cli.report.image_sheet import Picture, SheetRow, colours, in_rows, white_level
from bayesnde_cli.report.numerals import nats
from bayesnde_cli.stages.applying.fitted_run import FittedRun
from bayesnde_cli.stages.reporting import counted

# More are no sheet to look at, and too much for a viewer.
_MOST_IMAGES = 10_000


def check_sheet(run: FittedRun, n_images: int, out: str) -> None:
    """Refuse, before the work, what no sheet can be made of."""
    n_features = len(run.schema.features)
    if run.schema.image is None:
        raise BadUsage(
            f"--out {out}: a sheet of pictures is made of images",
            found=f"the run is of a table, {counted(n_features, 'column')}",
            hint="write the rows: --out FILE.csv, .parquet or .jsonl",
        )
    if n_images > _MOST_IMAGES:
        raise BadUsage(
            f"--out {out}: too many images for a sheet",
            found=f"{n_images:,} images, at most {_MOST_IMAGES:,}",
            hint="make fewer, or write them as rows: --out FILE.parquet",
        )


def sample_sheet(run: FittedRun, sample: pa.Table, *, is_by_class: bool) -> tuple[list[SheetRow], str]:
    """The images of a sample in its order, and what to say of the sheet."""
    image, condition = run.schema.image, run.schema.roles.condition
    assert image is not None
    white = white_level(_highest_value(run))
    pixels = colours(_images(sample, image), white)
    classes = None if condition is None else [str(name) for name in sample[condition].to_pylist()]
    pictures = [Picture(own, hint) for own, hint in zip(pixels, _hints(sample, classes), strict=True)]
    words = f"{len(pictures):,} images of {image}"
    if is_by_class and classes is not None:
        rows = [
            SheetRow(tuple(pictures[index] for index, own in enumerate(classes) if own == name), name)
            for name in run.classes
        ]
        words += f", a row for each class, from the top {listed(run.classes)}"
    else:
        rows = in_rows(pictures, math.ceil(math.sqrt(len(pictures))))
    return rows, words + ("" if white == 255 else f"; white is {white}, the highest value of training")


def _images(sample: pa.Table, image: ImageShape) -> np.ndarray:
    """(rows, height, width, channels) uint8."""
    pixels = np.stack([sample[name].to_numpy() for name in image.pixel_names()], axis=1)
    return pixels.astype(np.uint8).reshape(-1, image.height, image.width, image.channels)


def _hints(sample: pa.Table, classes: list[str] | None) -> list[str]:
    """The class of each image, and its density where there is one."""
    found = [[name] for name in classes] if classes is not None else [[] for _ in range(sample.num_rows)]
    if "log_density" in sample.column_names:
        figures = sample.select(["log_density", "mc_se", "reliable"]).to_pylist()
        for words, row in zip(found, figures, strict=True):
            words.append(f"log-density {nats(row['log_density'])}, error {nats(row['mc_se'])}")
            words.extend([] if row["reliable"] else ["not reliable"])
    return [", ".join(words) for words in found]


def _highest_value(run: FittedRun) -> int:
    """Of all pixels of the training images."""
    batches = run.training_rows([IMAGE_COLUMN])
    return max((int(stored_pixels(batch.column(0)).max()) for batch in batches if batch.num_rows), default=255)
