"""The header of an NPY array: type, shape and order of the numbers that follow it."""

import ast
import math
import re
import struct
import warnings
from typing import IO, NamedTuple

import numpy as np

from bayesnde_cli.headers.bad_header import BadHeader

MAGIC = b"\x93NUMPY"
# NumPy's own bound; longer ones are refused before they are read.
_LONGEST = 10_000
_UTF8_SINCE = (3, 0)
# Behind a number, as Python 2 wrote it.
_LONG = re.compile(r"(?<=[0-9])L(?=[\s,)])")
_LENGTH_FORMATS = {(1, 0): "<H", (2, 0): "<I", (3, 0): "<I"}


class NpyHeader(NamedTuple):
    """What the header declares, and its own length in bytes."""

    dtype: np.dtype
    shape: tuple[int, ...]
    is_column_major: bool
    n_header_bytes: int

    @property
    def n_bytes(self) -> int:
        """Of the numbers behind the header."""
        return math.prod(self.shape) * self.dtype.itemsize


def read_npy_header(stream: IO[bytes]) -> NpyHeader:
    """The header at the start of a stream; `BadHeader` if there is none, or one of an array that cannot be."""
    start = _read(stream, len(MAGIC) + 2)
    version = (start[-2], start[-1])
    if not start.startswith(MAGIC) or version not in _LENGTH_FORMATS:
        raise BadHeader(f"it starts with {start!r}, which is no NPY header of a known version")
    length_format = _LENGTH_FORMATS[version]
    length = _read(stream, struct.calcsize(length_format))
    (n_text,) = struct.unpack(length_format, length)
    if n_text > _LONGEST:
        raise BadHeader(f"an NPY header of {n_text:,} bytes")
    shape, is_column_major, dtype = _parsed(version, _read(stream, n_text))
    if any(size < 0 for size in shape):
        raise BadHeader(f"an array of shape {shape}")
    if dtype.itemsize == 0:
        raise BadHeader(f"an array of {dtype}, whose items have no size")
    return NpyHeader(dtype, shape, is_column_major, len(start) + len(length) + n_text)


def _parsed(version: tuple[int, int], header: bytes) -> tuple[tuple[int, ...], bool, np.dtype]:
    """Shape, order and type from the text of a header: a dictionary, as Python writes it.

    Not by NumPy's parser: what it cannot read it takes apart once more, in case that Python 2 wrote it, which takes
    a minute for some texts of ten thousand letters.
    """
    try:
        text = header.decode("utf-8" if version >= _UTF8_SINCE else "latin-1")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of odd escapes
            found = ast.literal_eval(_LONG.sub("", text).strip())
        if not isinstance(found, dict) or found.keys() != {"descr", "fortran_order", "shape"}:
            raise ValueError("not a dictionary of descr, fortran_order and shape")
        shape, is_column_major = found["shape"], found["fortran_order"]
        if not isinstance(shape, tuple) or not all(type(size) is int for size in shape):
            raise ValueError(f"shape is {shape!r}")
        if not isinstance(is_column_major, bool):
            raise ValueError(f"fortran_order is {is_column_major!r}")
        return shape, is_column_major, np.lib.format.descr_to_dtype(found["descr"])
    except Exception as error:  # the parser of Python literals lets many sorts out: MemoryError, RecursionError, …
        raise BadHeader(f"an NPY header that cannot be parsed: {str(error).partition(chr(10))[0]}") from error


def _read(stream: IO[bytes], n_bytes: int) -> bytes:
    found = stream.read(n_bytes)
    if len(found) < n_bytes:
        raise BadHeader(f"{len(found)} bytes instead of {n_bytes} of NPY header")
    return found
