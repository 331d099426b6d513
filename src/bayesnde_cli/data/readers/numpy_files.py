"""NPY and NPZ files: never unpickled, read block by block."""

import math
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, BinaryIO

import numpy as np

from bayesnde_cli.data.image import shape_of_array
from bayesnde_cli.data.readers.array_table import NUMBER_KINDS, ArrayTable, Piece
from bayesnde_cli.data.readers.bounds import refuse_bomb, refuse_columns
from bayesnde_cli.data.readers.bundle import bundle
from bayesnde_cli.data.readers.idx import shape_text
from bayesnde_cli.data.readers.source import Source
from bayesnde_cli.data.readers.stored_array import StoredArray
from bayesnde_cli.data.readers.table import made_up_names
from bayesnde_cli.errors import BadInput
from bayesnde_cli.headers.bad_header import BadHeader
from bayesnde_cli.headers.npy import read_npy_header

READABLE_KINDS = NUMBER_KINDS + "U"
# What zipfile lets out: RuntimeError for a member with a password, NotImplementedError for an unknown way of packing.
DAMAGE = (ValueError, EOFError, OSError, RuntimeError, zipfile.BadZipFile, zlib.error)
# Each array is a stream of its own while the table is read.
MAX_ARRAYS = 500


def open_npy(source: Source) -> ArrayTable:
    """The table of an NPY file: c1, c2, ... of one or two axes, the pixels of images of three or four."""
    with source.open() as stream:
        array = _stored(source, stream, "NPY file")
    refused = _refused(array.dtype)
    if refused:
        raise BadInput(
            f"{source.name} holds {refused}",
            found=f"dtype: {array.dtype}",
            hint="save numbers: `np.save(file, array.astype(float))`",
        )
    image = shape_of_array(array.shape, array.dtype)
    if len(array.shape) not in (1, 2) and image is None:
        raise BadInput(
            f"{source.name} is an array of {len(array.shape)} axes",
            found=f"shape: {shape_text(array.shape) or 'a single number'}",
            hint="reshape it to (rows, columns); images are arrays of bytes, `array.astype(np.uint8)`",
        )
    array.check_size(source.size())
    n_columns = math.prod(array.shape[1:])
    refuse_columns(source.name, n_columns)
    names = image.pixel_names() if image else made_up_names(n_columns)
    description = f"NPY, {shape_text(array.shape)} {array.dtype}"
    pieces = [Piece(names, array.dtype, array.blocks)]
    table = ArrayTable(source, pieces, array.shape[0], description)
    table.has_own_names = False
    table.is_vector = len(array.shape) == 1
    table.image = image
    return table


def open_npz(source: Source) -> ArrayTable:
    """The table of an NPZ file: its largest matrix as c1, c2, ... or as pixels, vectors of equal length by key."""
    arrays: dict[str, StoredArray] = {}
    ignored: dict[str, str] = {}
    try:
        with zipfile.ZipFile(source.path) as archive:
            members = archive.infolist()
            _refuse_members(source, members)
            for member in members:
                with archive.open(member) as stream:
                    array = _stored(source, stream, "NPZ file", member=member.filename)
                key = member.filename.removesuffix(".npy")
                refused = _refused(array.dtype)
                if refused:
                    ignored[key] = refused
                else:
                    array.check_size(member.file_size)
                    arrays[key] = array
    except DAMAGE as error:
        raise source.damaged("NPZ file", error) from error
    found = {key: shape_of_array(array.shape, array.dtype) for key, array in arrays.items()}
    images = {key: image for key, image in found.items() if image is not None}
    return bundle(source, "NPZ", arrays, ignored, images)


def _refuse_members(source: Source, members: list[zipfile.ZipInfo]) -> None:
    if len(members) > MAX_ARRAYS:
        raise BadInput(
            f"{source.name} holds too many arrays",
            found=f"{len(members):,} arrays, {MAX_ARRAYS} are the most",
            hint="save the rows as one array of (rows, columns)",
        )
    hint = "if it is what it seems to be, save the arrays with `np.savez`, which packs nothing"
    refuse_bomb(source.name, source.size(), sum(member.file_size for member in members), hint=hint)


def _stored(source: Source, stream: IO[bytes], what: str, *, member: str | None = None) -> StoredArray:
    """The array behind an NPY header."""
    try:
        header = read_npy_header(stream)
    except BadHeader as error:
        raise source.damaged(what, error) from error
    opened = source.open if member is None else lambda: _member(source, member)
    # a column-major vector is a row-major one, too
    is_column_major = header.is_column_major and len(header.shape) > 1
    return StoredArray(source, what, opened, header.n_header_bytes, header.dtype, header.shape, is_column_major)


@contextmanager
def _member(source: Source, member: str) -> Iterator[BinaryIO]:
    with zipfile.ZipFile(source.path) as archive, archive.open(member) as stream:
        try:
            yield stream  # type: ignore[misc]
        except DAMAGE as error:
            raise source.damaged("NPZ file", error) from error


def _refused(dtype: np.dtype) -> str:
    """What the array holds if that cannot be a table, else the empty string."""
    if dtype.hasobject:
        return "pickled objects"
    if dtype.names is not None:
        return "structured records"
    if dtype.kind == "c":
        return "complex numbers"
    return "" if dtype.kind in READABLE_KINDS else "neither numbers nor text"
