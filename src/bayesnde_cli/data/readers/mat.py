"""MATLAB v5 files (up to v7): numeric variables, held in memory because scipy reads them whole."""

import struct
import warnings
import zlib
from collections.abc import Iterator
from typing import BinaryIO

import numpy as np

from bayesnde_cli.data.readers.array_table import NUMBER_KINDS, ArrayTable, HeldArray
from bayesnde_cli.data.readers.bounds import refuse_bomb, refuse_memory
from bayesnde_cli.data.readers.bundle import bundle
from bayesnde_cli.data.readers.source import Source

# Classes of variables that are numbers; others are not read at all: no cell, structure or object is ever built.
_NUMERIC = ("double", "single", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "logical")
_HEADER_BYTES = 128
_COMPRESSED = 15  # the type of an element that holds another one, packed by zlib
_PIECE_BYTES = 1 << 20
_SMALLER = "save the matrix alone, or as CSV or NPY"


def open_mat(source: Source) -> ArrayTable:
    """The table of a MAT file: its largest matrix as c1, c2, ..., vectors of equal length by their names."""
    import scipy.io  # slow to import, and of no use to the other formats

    arrays: dict[str, HeldArray] = {}
    ignored: dict[str, str] = {}
    _refuse_bomb(source)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # scipy says what it skips; so does our description
            classes = {name: matlab_class for name, _, matlab_class in scipy.io.whosmat(source.path)}
            numeric = [name for name, matlab_class in classes.items() if matlab_class in _NUMERIC]
            values = scipy.io.loadmat(source.path, variable_names=numeric) if numeric else {}
    except Exception as error:  # scipy lets every sort of error out of a broken file
        raise source.damaged("MAT file", error) from error
    for name, matlab_class in classes.items():
        value = values.get(name)
        if isinstance(value, np.ndarray) and value.dtype.kind in NUMBER_KINDS:
            arrays[name] = HeldArray(value)
        else:
            is_complex = isinstance(value, np.ndarray) and value.dtype.kind == "c"
            ignored[name] = "complex" if is_complex else matlab_class
    return bundle(source, "MAT v5", arrays, ignored)


def _refuse_bomb(source: Source) -> None:
    """Unpack every element once, keeping nothing: only so is known how much memory scipy would take."""
    n_packed, n_unpacked = source.size(), 0
    with source.open() as stream:
        header = stream.read(_HEADER_BYTES)
        order = ">" if header[126:128] == b"MI" else "<"
        while len(tag := stream.read(8)) == 8:
            kind, n_bytes = struct.unpack(f"{order}2I", tag)
            start = stream.tell()
            if kind == _COMPRESSED:
                for n_piece in _unpacked_pieces(source, stream, n_bytes):
                    n_unpacked += n_piece
                    refuse_bomb(source.name, n_packed, n_unpacked, hint=_SMALLER)
            stream.seek(start + n_bytes)
    refuse_memory(source.name, n_packed + n_unpacked, hint=_SMALLER)


def _unpacked_pieces(source: Source, stream: BinaryIO, n_left: int) -> Iterator[int]:
    """The sizes of the pieces that a packed element unpacks to."""
    unpacker = zlib.decompressobj()
    try:
        while n_left and not unpacker.eof:
            packed = stream.read(min(n_left, _PIECE_BYTES))
            if not packed:
                return
            n_left -= len(packed)
            while packed and not unpacker.eof:
                yield len(unpacker.decompress(packed, _PIECE_BYTES))
                packed = unpacker.unconsumed_tail
    except zlib.error as error:
        raise source.damaged("MAT file", error) from error
