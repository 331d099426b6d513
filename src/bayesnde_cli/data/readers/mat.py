"""MATLAB v5 files (up to v7): their numeric variables, held in memory because they lie column by column.

Read here and not by scipy, whose parser a damaged file can crash. Cells, structures and objects are skipped: nothing
of the kind is ever built. Format: "MAT-File Format", The MathWorks, level 5.
"""

import math
import struct
import zlib
from collections.abc import Callable, Iterator
from typing import BinaryIO, NamedTuple

import numpy as np

from bayesnde_cli.data.readers.array_table import ArrayTable, HeldArray
from bayesnde_cli.data.readers.bounds import refuse_bomb, refuse_memory
from bayesnde_cli.data.readers.bundle import bundle
from bayesnde_cli.data.readers.source import Source
from bayesnde_cli.headers.bad_header import BadHeader

_HEADER_BYTES = 128
_MATRIX, _COMPRESSED = 14, 15
# How numbers are stored, by the type of their element; a matrix of doubles may be stored in fewer bytes.
_STORED = {1: "i1", 2: "u1", 3: "i2", 4: "u2", 5: "i4", 6: "u4", 7: "f4", 9: "f8", 12: "i8", 13: "u8"}
_CLASSES = {1: "cell", 2: "struct", 3: "object", 4: "char", 5: "sparse", 16: "function", 17: "opaque"}
_NUMERIC = range(6, 16)
_IS_COMPLEX = 0x800
_LONGEST = 4096  # bytes of a name, or of sizes
_MOST_FILLING = 16  # bytes after the numbers of a packed matrix
_SMALLER = "save the matrix alone, or as CSV or NPY"

Read = Callable[[int], bytes | bytearray]


class _Variable(NamedTuple):
    """A variable: its numbers, or what it is if it has none for us."""

    name: str
    array: np.ndarray | None
    what: str = ""


def open_mat(source: Source) -> ArrayTable:
    """The table of a MAT file: its largest matrix as c1, c2, ..., vectors of equal length by their names."""
    arrays: dict[str, HeldArray] = {}
    ignored: dict[str, str] = {}
    try:
        for variable in _variables(source):
            if variable.array is None:
                ignored[variable.name] = variable.what
            else:
                arrays[variable.name] = HeldArray(variable.array)
    except (BadHeader, zlib.error) as error:
        raise source.damaged("MAT file", error) from error
    return bundle(source, "MAT v5", arrays, ignored)


def _variables(source: Source) -> Iterator[_Variable]:
    n_file, n_held = source.size(), 0
    with source.open() as stream:
        order = ">" if stream.read(_HEADER_BYTES)[126:] == b"MI" else "<"
        while len(tag := stream.read(8)) == 8:
            kind, n_bytes = struct.unpack(f"{order}2I", tag)
            stop = stream.tell() + n_bytes
            if stop > n_file:
                raise BadHeader(f"an element of {n_bytes:,} bytes, where {n_file - stop + n_bytes:,} are left")
            if kind in (_MATRIX, _COMPRESSED):
                matrix = _Matrix(source, order, n_held, _Unpacking(stream, n_bytes) if kind == _COMPRESSED else None)
                variable = matrix.read(stream.read)
                if variable.name:  # what has no name is MATLAB's own
                    n_held += 0 if variable.array is None else variable.array.nbytes
                    yield variable
            stream.seek(stop)


class _Matrix:
    """Reads one matrix. `unpacking`, if it is packed, reads so many unpacked bytes; `n_held` are in memory already."""

    def __init__(self, source: Source, order: str, n_held: int, unpacking: "_Unpacking | None") -> None:
        self._source, self._order, self._n_held, self._unpacking = source, order, n_held, unpacking

    def read(self, plain: Read) -> _Variable:
        """The variable; only numbers of the declared sizes are read, after a look at how many they are."""
        self._read = self._unpacking or plain
        if self._unpacking is not None and self._tag()[0] != _MATRIX:
            raise BadHeader("a packed element that is no matrix")
        flags = self._small("flags")
        if len(flags) != 8:
            raise BadHeader(f"flags of {len(flags)} bytes")
        (word,) = struct.unpack(f"{self._order}I", flags[:4])
        sizes = self._small("sizes")
        shape = struct.unpack(f"{self._order}{len(sizes) // 4}i", sizes[: len(sizes) // 4 * 4])
        name = self._small("name").decode("latin-1")
        if word & 255 not in _NUMERIC or word & _IS_COMPLEX:
            what = "complex" if word & 255 in _NUMERIC else _CLASSES.get(word & 255, "unknown")
            return _Variable(name, None, what)
        return _Variable(name, self._numbers(shape))

    def _numbers(self, shape: tuple[int, ...]) -> np.ndarray:
        kind, n_bytes, inline = self._tag()
        dtype = np.dtype(self._order + _STORED.get(kind, "V1"))
        if kind not in _STORED or len(shape) < 2 or min(shape) < 0 or math.prod(shape) * dtype.itemsize != n_bytes:
            raise BadHeader(f"an array of shape {shape} in {n_bytes:,} bytes of type {kind}")
        if self._unpacking is not None:
            refuse_bomb(self._source.name, self._source.size(), self._n_held + n_bytes, hint=_SMALLER)
        refuse_memory(self._source.name, self._n_held + n_bytes, hint=_SMALLER)
        data = inline[:n_bytes] if inline else self._exactly(n_bytes)
        if self._unpacking is not None:
            self._unpacking.finish()
        return np.frombuffer(data, dtype).reshape(shape, order="F")

    def _small(self, what: str) -> bytes | bytearray:
        """The content of a short element, without what fills it up to eight bytes."""
        _, n_bytes, inline = self._tag()
        if n_bytes > _LONGEST:
            raise BadHeader(f"{what} of {n_bytes:,} bytes")
        return inline[:n_bytes] if inline else self._exactly(-(-n_bytes // 8) * 8)[:n_bytes]

    def _tag(self) -> tuple[int, int, bytes | bytearray]:
        """Type and length of an element, and its content if that stands in the tag: up to four bytes."""
        tag = self._exactly(8)
        kind, n_bytes = struct.unpack(f"{self._order}2I", tag)
        if kind >> 16 == 0:
            return kind, n_bytes, b""
        if kind >> 16 > 4:
            raise BadHeader(f"{kind >> 16} bytes in a tag")
        return kind & 0xFFFF, kind >> 16, tag[4:]

    def _exactly(self, n_bytes: int) -> bytes | bytearray:
        found = self._read(n_bytes)
        if len(found) < n_bytes:
            raise BadHeader(f"{n_bytes - len(found):,} bytes are missing at the end")
        return found


class _Unpacking:
    """Reads unpacked bytes of an element of so many packed ones."""

    def __init__(self, stream: BinaryIO, n_packed: int) -> None:
        self._stream, self._n_left = stream, n_packed
        self._unpacker, self._held = zlib.decompressobj(), bytearray()

    def __call__(self, n_bytes: int) -> bytes | bytearray:
        """As many bytes as are asked for, or as there are."""
        held, unpacker = self._held, self._unpacker
        while len(held) < n_bytes and not unpacker.eof:
            packed = unpacker.unconsumed_tail or self._stream.read(min(self._n_left, 1 << 16))
            self._n_left -= 0 if unpacker.unconsumed_tail else len(packed)
            if not packed:
                break
            held.extend(unpacker.decompress(packed, n_bytes - len(held)))
        found, self._held = held, bytearray()
        return found

    def finish(self) -> None:
        """To the end, where the checksum of all is compared; after the numbers there is only what fills up."""
        if len(self(_MOST_FILLING + 1)) > _MOST_FILLING or not self._unpacker.eof:
            raise BadHeader("a packed matrix that does not end with its numbers")
