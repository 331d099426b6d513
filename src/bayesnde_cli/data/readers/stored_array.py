"""An array in a file or in a zip member: its type and shape known, its numbers read block by block."""

import math
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import BinaryIO

import numpy as np

from bayesnde_cli.data.readers.bounds import refuse_memory
from bayesnde_cli.data.readers.source import Source

_ROW_MAJOR = "save it row by row, with `np.ascontiguousarray(array)`: it is then read in pieces"
# Halves of letters in UTF-16, which stand for none by themselves.
_FIRST_HALF, _LAST_HALF = 0xD800, 0xDFFF


@dataclass(frozen=True)
class StoredArray:
    """Numbers that lie row after row (or column after column) behind a header."""

    source: Source
    what: str  # for messages: "NPY file"
    open: Callable[[], AbstractContextManager[BinaryIO]]
    offset: int  # bytes of the header
    dtype: np.dtype
    shape: tuple[int, ...]
    is_column_major: bool = False

    def blocks(self, n_rows: int) -> Iterator[np.ndarray]:
        """Arrays of (n_rows, columns), all further axes laid flat; the last one is shorter."""
        total = self.shape[0]
        width = math.prod(self.shape[1:])
        with self.open() as stream:
            stream.read(self.offset)
            if self.is_column_major:
                # rows are scattered over the whole file: only then is the array read in one piece
                refuse_memory(self.source.name, total * width * self.dtype.itemsize, hint=_ROW_MAJOR)
                whole = self._read(stream, total * width).reshape(self.shape, order="F").reshape(total, width)
                for start in range(0, total, n_rows):
                    yield whole[start : start + n_rows]
                return
            for start in range(0, total, n_rows):
                count = min(n_rows, total - start)
                yield self._read(stream, count * width).reshape(count, width)

    def _read(self, stream: BinaryIO, n_numbers: int) -> np.ndarray:
        n_bytes = n_numbers * self.dtype.itemsize
        raw = stream.read(n_bytes)
        if len(raw) < n_bytes:
            raise self.source.damaged(self.what, f"{n_bytes - len(raw)} bytes are missing at the end")
        if self.dtype.kind == "U":
            self._check_letters(raw)
        return np.frombuffer(raw, self.dtype)

    def _check_letters(self, raw: bytes) -> None:
        """Refuse words, four bytes a letter, with numbers that stand for none."""
        letters = np.frombuffer(raw, np.dtype(np.uint32).newbyteorder(self.dtype.byteorder))
        wrong = (letters > sys.maxunicode) | ((letters >= _FIRST_HALF) & (letters <= _LAST_HALF))
        if wrong.any():
            raise self.source.damaged(self.what, f"{letters[wrong][0]:#x} is not a letter of Unicode")

    def as_vector(self) -> "StoredArray":
        """The array with all its axes laid flat into one; meant for (n, 1) and (1, n)."""
        return replace(self, shape=(math.prod(self.shape),), is_column_major=False)

    def check_size(self, n_bytes: int) -> None:
        """Refuse a file of `n_bytes` that is too short for the shape in its header."""
        needed = self.offset + math.prod(self.shape) * self.dtype.itemsize
        if n_bytes < needed:
            raise self.source.damaged(self.what, f"{n_bytes} bytes instead of {needed}")
