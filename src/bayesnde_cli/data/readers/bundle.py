"""Files of several named arrays (NPZ, MAT): which of them are the table."""

import math
from collections.abc import Mapping
from types import MappingProxyType

from bayesnde_cli.data.image import ImageShape
from bayesnde_cli.data.readers.array_table import NUMBER_KINDS, ArrayTable, Piece, ReadableArray
from bayesnde_cli.data.readers.bounds import refuse_columns
from bayesnde_cli.data.readers.idx import shape_text
from bayesnde_cli.data.readers.source import Source
from bayesnde_cli.data.readers.table import made_up_names
from bayesnde_cli.errors import BadInput, escaped


def bundle(
    source: Source, format_name: str, arrays: Mapping[str, ReadableArray], unreadable: Mapping[str, str],
    images: Mapping[str, ImageShape] = MappingProxyType({}),
) -> ArrayTable:  # fmt: skip
    """The largest numeric matrix as c1, c2, ..., and every vector of as many rows under its own name.

    Without a matrix the longest vectors are the table. Everything else is ignored and told in the description. Arrays
    among `images` count as matrices, whose columns are pixels.
    """
    matrices = {key: array for key, array in arrays.items() if _is_matrix(array) or key in images}
    vectors = {key: array for key, array in arrays.items() if _length(array) is not None}
    if not matrices and not vectors:
        raise BadInput(
            f"{source.name} holds no numeric matrix",
            found=_contents(arrays, unreadable),
            hint="save the rows as one array of (rows, columns)",
        )
    if not matrices:
        _refuse_other_images(source, arrays)
    pieces: list[Piece] = []
    parts: list[str] = []
    matrix = max(matrices, key=lambda key: _size(matrices[key]), default=None)
    if matrix is None:
        n_rows = max(_length(array) or 0 for array in vectors.values())
    else:
        chosen = matrices[matrix]
        n_rows = chosen.shape[0]
        n_columns = math.prod(chosen.shape[1:])
        refuse_columns(source.name, n_columns)
        names = images[matrix].pixel_names() if matrix in images else made_up_names(n_columns)
        pieces.append(Piece(names, chosen.dtype, chosen.blocks))
        parts.append(f"{escaped(matrix)} {shape_text(chosen.shape)}")
    beside = {key: array for key, array in vectors.items() if _length(array) == n_rows and key != matrix}
    for key, array in beside.items():
        pieces.append(Piece((key,), array.dtype, array.as_vector().blocks))
        parts.append(f"{escaped(key)} {n_rows} x 1")
    ignored = [key for key in (*arrays, *unreadable) if key != matrix and key not in beside]
    parts += [f"ignored: {', '.join(escaped(key) for key in ignored)}"] if ignored else []
    table = ArrayTable(source, pieces, n_rows, ", ".join([format_name, *parts]))
    table.image = None if matrix is None else images.get(matrix)
    return table


def _refuse_other_images(source: Source, arrays: Mapping[str, ReadableArray]) -> None:
    """Refuse an array of more axes: it was meant to be the rows, and the vectors beside it are their labels."""
    for key, array in arrays.items():
        if len(array.shape) > 2:
            raise BadInput(
                f"{source.name}: '{escaped(key)}' is an array of {len(array.shape)} axes",
                found=f"shape: {shape_text(array.shape)}, dtype: {array.dtype}",
                hint="reshape it to (rows, columns); images are arrays of bytes, `array.astype(np.uint8)`",
            )


def _is_matrix(array: ReadableArray) -> bool:
    return array.dtype.kind in NUMBER_KINDS and len(array.shape) == 2 and min(array.shape) > 1


def _length(array: ReadableArray) -> int | None:
    """The number of rows if the array is a vector: (n,), (n, 1) or (1, n)."""
    is_vector = len(array.shape) == 1 or (len(array.shape) == 2 and 1 in array.shape)
    return _size(array) if is_vector else None


def _size(array: ReadableArray) -> int:
    return math.prod(array.shape)


def _contents(arrays: Mapping[str, ReadableArray], unreadable: Mapping[str, str]) -> str:
    contents = [f"{escaped(key)} ({shape_text(array.shape) or 'single'})" for key, array in arrays.items()]
    contents += [f"{escaped(key)} ({what})" for key, what in unreadable.items()]
    return f"arrays: {', '.join(contents)}" if contents else "no array"
