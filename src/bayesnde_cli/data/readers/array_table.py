"""Arrays as tables: matrices and vectors of equal length side by side, read block by block."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import pyarrow as pa

from bayesnde_cli.data.readers.source import Source
from bayesnde_cli.data.readers.table import (
    MAX_BATCH_ROWS,
    Kind,
    Table,
    duplicates,
    listed,
    schema_of,
    shown,
)
from bayesnde_cli.errors import BadInput, escaped

BLOCK_CELLS = 4 << 20  # 32 MiB as float64: images have many columns
NUMBER_KINDS = "biuf"  # numpy's letters for bool, integers and floats


class ReadableArray(Protocol):
    """An array whose rows come in blocks, wherever it lies."""

    @property
    def dtype(self) -> np.dtype: ...

    @property
    def shape(self) -> tuple[int, ...]: ...

    def blocks(self, n_rows: int) -> Iterator[np.ndarray]:
        """Arrays of (n_rows, columns); the last one is shorter."""
        ...

    def as_vector(self) -> "ReadableArray":
        """The array with all its axes laid flat into one."""
        ...


@dataclass(frozen=True)
class HeldArray:
    """An array in memory."""

    array: np.ndarray

    @property
    def dtype(self) -> np.dtype:
        return self.array.dtype

    @property
    def shape(self) -> tuple[int, ...]:
        return self.array.shape

    def blocks(self, n_rows: int) -> Iterator[np.ndarray]:
        """Arrays of (n_rows, columns); the last one is shorter."""
        matrix = self.array.reshape(len(self.array), -1)
        for start in range(0, len(matrix), n_rows):
            yield matrix[start : start + n_rows]

    def as_vector(self) -> "HeldArray":
        """The array with all its axes laid flat into one."""
        return HeldArray(self.array.reshape(-1))


@dataclass(frozen=True)
class Piece:
    """Some columns of one array."""

    names: tuple[str, ...]
    dtype: np.dtype
    # blocks(n) gives arrays of (n, columns), the last one shorter
    blocks: Callable[[int], Iterator[np.ndarray]]

    @property
    def kind(self) -> Kind:
        return "number" if self.dtype.kind in NUMBER_KINDS else "text"


class ArrayTable(Table):
    """Pieces of equal length, side by side."""

    def __init__(self, source: Source, pieces: Sequence[Piece], n_rows: int, description: str) -> None:
        self.source = source
        self.pieces = tuple(pieces)
        self.n_rows = n_rows
        self.description = description
        self.names = tuple(name for piece in pieces for name in piece.names)
        self.is_vector = False  # one array of one axis, which may be the labels of the array before it
        again = duplicates(self.names)
        if again:
            raise BadInput(
                f"{source.name} has several columns of one name",
                found=f"more than once: {listed(again)}",
                hint="rename the array of that name",
            )
        if not n_rows or not self.names:
            raise BadInput(f"{source.name} holds no rows", found=description, hint="give an array that holds numbers")

    def kinds(self, columns: Sequence[str]) -> dict[str, Kind | None]:
        """Numbers or text, as the arrays are stored."""
        kinds = {name: piece.kind for piece in self.pieces for name in piece.names}
        return {name: kinds[name] for name in columns}

    def batches_as(self, kinds: Mapping[str, Kind]) -> Iterator[pa.RecordBatch]:
        """Record batches of rows of all pieces; pieces without a chosen column are not read."""
        for name, kind in self.kinds(list(kinds)).items():
            if kinds[name] == "number" and kind == "text":
                raise not_numbers(self.source, name)
        used = [piece for piece in self.pieces if not kinds.keys().isdisjoint(piece.names)]
        width = max(len(piece.names) for piece in used)
        n_block_rows = min(MAX_BATCH_ROWS, max(1, BLOCK_CELLS // width))
        schema = schema_of(kinds)
        for blocks in zip(*(piece.blocks(n_block_rows) for piece in used), strict=True):
            columns: dict[str, pa.Array] = {}
            for piece, block in zip(used, blocks, strict=True):
                for index, name in enumerate(piece.names):
                    if name in kinds:
                        columns[name] = _arrow(block[:, index], kinds[name])
            yield pa.RecordBatch.from_arrays([columns[name] for name in kinds], schema=schema)


def beside(left: ArrayTable, right: ArrayTable, name: str) -> ArrayTable:
    """The one vector of `right` as a further column of `left`."""
    (piece,) = right.pieces
    label = Piece((name,), piece.dtype, piece.blocks)
    description = f"{left.description} with {name} from {right.source.name}"
    table = ArrayTable(left.source, (*left.pieces, label), left.n_rows, description)
    table.has_own_names = left.has_own_names
    table.image = left.image
    return table


def not_numbers(source: Source, name: str) -> BadInput:
    """The error for a typed column of text where the files before have numbers."""
    return BadInput(
        f"column {shown(name)} holds text in {source.name} and numbers in a file before it",
        found="type: text",
        hint=f"use `--type {escaped(name)}=categorical`, or give files of equal types",
    )


def _arrow(column: np.ndarray, kind: Kind) -> pa.Array:
    if column.dtype.kind == "U":
        return pa.array(column.tolist(), pa.string())
    if kind == "number":
        # a copy per column, so that the batch does not keep the whole block alive
        return pa.array(column.astype(np.float64), from_pandas=True)
    # NumPy's own byte order, and the two sizes of float that Arrow writes as text
    if column.dtype.kind == "f":
        size = np.float32 if column.dtype.itemsize <= 4 else np.float64
        return pa.array(column.astype(size), from_pandas=True).cast(pa.string())
    return pa.array(column.astype(column.dtype.newbyteorder("="))).cast(pa.string())
