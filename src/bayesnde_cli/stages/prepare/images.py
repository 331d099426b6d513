"""Rows that are images: all pixels are features with one map, and nothing about single columns is worth telling."""

from collections.abc import Collection, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa

from bayesnde_cli.config import PrepareConfig
from bayesnde_cli.data.image import IMAGE_COLUMN, ImageShape, image_column
from bayesnde_cli.data.kinds import Kind
from bayesnde_cli.data.readers import Table
from bayesnde_cli.data.readers.table import LABEL
from bayesnde_cli.data.roles import Roles, listed, quoted
from bayesnde_cli.data.scaling import Logit
from bayesnde_cli.data.schema import Feature
from bayesnde_cli.errors import BadInput
from bayesnde_cli.stages.prepare.staging import StagedTable, stage_batches
from bayesnde_cli.stages.reporting import Report

_SCALES = ("auto", "logit")


def image_of(table: Table, roles: Roles, config: PrepareConfig, report: Report) -> ImageShape | None:
    """The size of the images that the run models; None if its rows are an ordinary table.

    Options about single columns ask for one: there is no image with a pixel left out.
    """
    if table.image is None or config.scale not in _SCALES:
        return None
    asked = {
        "--features": bool(config.features),
        "--drop-constant": config.drop_constant,
        "--type": bool(config.type),
        "--dequantize": config.dequantize != ("auto",),
        "--max-robust-z": config.max_robust_z is not None,
        "a pixel with another role": not set(table.image.pixel_names()) <= set(roles.features),
    }
    reasons = [option for option, is_asked in asked.items() if is_asked]
    if reasons:
        report.note(f"read as a table of pixels, not as images of {table.image}: {', '.join(reasons)}")
        return None
    return table.image


def image_roles(roles: Roles, image: ImageShape) -> Roles:
    """The roles with the pixels, and nothing else, as features: a label that nobody asked for is no pixel."""
    pixels = image.pixel_names()
    if IMAGE_COLUMN in roles.used:
        raise BadInput(
            f"column '{IMAGE_COLUMN}' has a name that bayesnde writes itself",
            found=f"reserved in a run of images: {IMAGE_COLUMN}",
            hint=f"rename it in the file, or leave it out with --drop {IMAGE_COLUMN}",
        )
    others = set(roles.features) - set(pixels)
    ignored = (*(name for name in roles.features if name in others), *roles.ignored)
    return replace(roles, features=pixels, ignored=ignored)


def stage_images(
    table: Table, file: Path, roles: Roles, image: ImageShape, *, as_text: Collection[str], report: Report
) -> StagedTable:
    """Read the images and the columns beside them into a file, an image in a cell."""
    beside = roles.used[len(roles.features) :]
    batches = table.batches(roles.used, as_text=as_text)
    images = _images(batches, image.n_pixels)
    return stage_batches(images, file, [IMAGE_COLUMN, *beside], features=(), report=report)


def _images(batches: Iterator[pa.RecordBatch], n_pixels: int) -> Iterator[pa.RecordBatch]:
    """Batches whose first columns, the pixels, are one."""
    for batch in batches:
        pixels = np.empty((batch.num_rows, n_pixels), np.uint8)
        for position, column in enumerate(batch.columns[:n_pixels]):
            pixels[:, position] = column.to_numpy()
        beside = dict(zip(batch.schema.names[n_pixels:], batch.columns[n_pixels:], strict=True))
        yield pa.RecordBatch.from_pydict({IMAGE_COLUMN: image_column(pixels), **beside})


def show_images(roles: Roles, image: ImageShape, n_images: int, n_classes: int, report: Report) -> None:
    """What the user sees of the rows before anything is written."""
    report.note(f"{n_images:,} images of {image}{f', {n_classes} classes' if n_classes else ''}")
    report.note(
        "every pixel has uniform noise, U(0, 1), addressed by image, and goes through a logit: "
        "log-densities are those of value plus noise"
    )
    if roles.ignored and roles.condition is None:
        label = LABEL if LABEL in roles.ignored else roles.ignored[0]
        report.note(
            f"not used: {listed(roles.ignored)}; this is p(x) of all images, "
            f"and --condition {quoted(label)} is p(x | {label})"
        )
    elif roles.ignored:
        report.note(f"not used: {listed(roles.ignored)}")


def image_features(image: ImageShape) -> tuple[Feature, ...]:
    """All pixels in order."""
    return tuple(Feature(name, Kind.LATTICE, (), Logit()) for name in image.pixel_names())
