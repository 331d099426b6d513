"""Rows that are images: their size, the names of their pixels, and how they lie in a table."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from typing import Any

import numpy as np
import pyarrow as pa

# Of the rows of an image run: all pixels of a row in one cell.
IMAGE_COLUMN = "image"
# The values that a pixel can have: one byte.
N_LEVELS = 256


@dataclass(frozen=True)
class ImageShape:
    """The size of an image; a row holds its pixels row by row, the channel last and fastest."""

    height: int
    width: int
    channels: int = 1

    def __post_init__(self) -> None:
        if min(self.height, self.width, self.channels) < 1:
            raise ValueError(f"an image of {self.height} x {self.width} x {self.channels}")

    @property
    def n_pixels(self) -> int:
        """The number of features: every channel of every pixel."""
        return self.height * self.width * self.channels

    def pixel_names(self) -> tuple[str, ...]:
        """px_row_column, from 1, or px_row_column_channel; in the order of the pixels. (n_pixels,)"""
        return _pixel_names(self.height, self.width, self.channels)

    def __str__(self) -> str:
        sizes = (self.height, self.width, *((self.channels,) if self.channels > 1 else ()))
        return " x ".join(str(size) for size in sizes)

    def to_json(self) -> list[int]:
        return [self.height, self.width, self.channels]

    @classmethod
    def from_json(cls, stored: Any) -> "ImageShape":
        """The size that `to_json` described; ValueError if it is none."""
        if not isinstance(stored, list) or len(stored) != 3 or not all(type(size) is int for size in stored):
            raise ValueError(f"image is {stored!r}, not three sizes")
        return cls(*stored)


def shape_of_array(shape: tuple[int, ...], dtype: np.dtype) -> ImageShape | None:
    """The size of the images in an array of (n, h, w) or (n, h, w, channels) bytes; None if it holds no images."""
    is_image = len(shape) in (3, 4) and dtype == np.dtype(np.uint8) and math.prod(shape[1:]) > 0
    return ImageShape(*shape[1:]) if is_image else None


def image_column(pixels: np.ndarray) -> pa.FixedSizeListArray:
    """Pixels (rows, n_pixels) as a column of bytes, an image in a cell."""
    flat = np.ascontiguousarray(pixels, np.uint8).reshape(-1)
    return pa.FixedSizeListArray.from_arrays(pa.array(flat), pixels.shape[1])


def image_type(image: ImageShape) -> pa.DataType:
    """The type of such a column."""
    return pa.list_(pa.uint8(), image.n_pixels)


def stored_pixels(column: pa.Array | pa.ChunkedArray) -> np.ndarray:
    """The pixels of such a column, (rows, n_pixels) uint8; ValueError if a row has no image."""
    whole = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    if whole.null_count:
        raise ValueError("a row without image")
    return whole.flatten().to_numpy().reshape(len(whole), whole.type.list_size)


def pixel_columns(table: pa.Table, image: ImageShape) -> pa.Table:
    """The table with a column for each pixel, as files have them, in place of the column of images."""
    pixels = stored_pixels(table[IMAGE_COLUMN]).astype(np.int64)
    columns: dict[str, Any] = dict(zip(image.pixel_names(), pixels.T, strict=True))
    others: Mapping[str, Any] = {name: table[name] for name in table.column_names if name != IMAGE_COLUMN}
    return pa.table({**columns, **others})


@lru_cache(maxsize=4)
def _pixel_names(height: int, width: int, channels: int) -> tuple[str, ...]:
    sizes = (height, width, *((channels,) if channels > 1 else ()))
    places = product(*(range(1, size + 1) for size in sizes))
    return tuple("_".join(["px", *map(str, place)]) for place in places)
