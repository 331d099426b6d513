"""IDX files (the format of MNIST): a header of type and sizes, then big-endian numbers."""

import math
import struct

import numpy as np

from bayesnde_cli.data.image import ImageShape, shape_of_array
from bayesnde_cli.data.readers.array_table import ArrayTable, Piece
from bayesnde_cli.data.readers.bounds import refuse_columns
from bayesnde_cli.data.readers.formats import IDX_TYPES
from bayesnde_cli.data.readers.source import Source
from bayesnde_cli.data.readers.stored_array import StoredArray
from bayesnde_cli.data.readers.table import made_up_names
from bayesnde_cli.errors import BadInput

MAX_AXES = 4
DEFLATE_RATIO = 1032  # the most that gzip can pack into a byte


def open_idx(source: Source) -> ArrayTable:
    """The table of an IDX file: images laid flat as px_row_column(_channel), matrices and vectors as c1, c2, ..."""
    head = source.head(4)
    code, n_axes = head[2], head[3]
    offset = 4 + 4 * n_axes
    head = source.head(offset)
    if len(head) < offset:
        raise source.damaged("IDX file", f"{len(head)} bytes instead of {offset} of header")
    shape = struct.unpack(f">{n_axes}I", head[4:])
    if n_axes > MAX_AXES:
        raise BadInput(
            f"{source.name} is an IDX array of {n_axes} axes",
            found=f"shape: {shape_text(shape)}",
            hint="give vectors, matrices or images: up to four axes",
        )
    array = StoredArray(source, "IDX file", source.open, offset, np.dtype(IDX_TYPES[code]), shape)
    array.check_size(source.size() * (DEFLATE_RATIO if source.is_gzip else 1))
    refuse_columns(source.name, math.prod(shape[1:]))
    names = _pixel_names(*shape[1:]) if n_axes > 2 else made_up_names(shape[1] if n_axes == 2 else 1)
    description = f"IDX, {shape_text(shape)}{', gzip' if source.is_gzip else ''}"
    table = ArrayTable(source, [Piece(names, array.dtype, array.blocks)], shape[0], description)
    table.has_own_names = False
    table.is_vector = n_axes == 1
    table.image = shape_of_array(shape, array.dtype)
    return table


def shape_text(shape: tuple[int, ...]) -> str:
    """The sizes for people: 60000 x 28 x 28."""
    return " x ".join(str(size) for size in shape)


def _pixel_names(*sizes: int) -> tuple[str, ...]:
    # as many rows as the header likes, and not one pixel
    return ImageShape(*sizes).pixel_names() if math.prod(sizes) else ()
