"""What the pages of a Parquet file declare: values, and bytes when unpacked.

A page of a few bytes may unpack to two gigabytes, or stand for two thousand million values. Each page says so in its
own header, which pyarrow does not show; the headers are walked here, and the pages skipped.

The headers are Thrift structures in the compact protocol; format: parquet.thrift, `PageHeader`.
"""

from collections.abc import Collection, Iterator
from typing import Any, BinaryIO, NamedTuple

import pyarrow.parquet as pq

from bayesnde_cli.headers.bad_header import BadHeader

# A header is some 30 bytes, more with statistics of long words; what is read at once, and at most.
_FIRST_READ, _LONGEST = 256, 1 << 20
_DEEPEST = 8
# Fields of `PageHeader`, and of the three kinds of header inside it.
_UNPACKED_BYTES, _PACKED_BYTES = 2, 3
_OF_DATA, _OF_DICTIONARY, _OF_DATA_V2 = 5, 7, 8
_N_VALUES = 1


class Declared(NamedTuple):
    """The pages of some columns, taken together."""

    n_values: int  # of data pages: cells
    n_bytes: int  # of all pages, unpacked
    n_bytes_at_once: int  # of the largest page of each column: what lies in memory side by side


def declared_by_pages(stream: BinaryIO, metadata: pq.FileMetaData, columns: Collection[int]) -> Declared:
    """What the pages of the columns at these positions declare; `BadHeader` if they do not fit into their place."""
    n_values = n_bytes = 0
    largest = dict.fromkeys(columns, 0)
    for group in range(metadata.num_row_groups):
        for column in columns:
            chunk = metadata.row_group(group).column(column)
            n_left = chunk.num_values
            for page in _pages(stream, chunk):
                n_bytes += page.n_unpacked
                n_values += page.n_values
                n_left -= page.n_values
                largest[column] = max(largest[column], page.n_unpacked)
            if n_left:
                raise BadHeader(f"a column of {chunk.num_values:,} values with pages of {chunk.num_values - n_left:,}")
    return Declared(n_values, n_bytes, sum(largest.values()))


class _Page(NamedTuple):
    n_values: int
    n_unpacked: int


def _pages(stream: BinaryIO, chunk: pq.ColumnChunkMetaData) -> Iterator[_Page]:
    """The pages of a column in a row group."""
    at = chunk.data_page_offset
    if chunk.has_dictionary_page and chunk.dictionary_page_offset:
        at = min(at, chunk.dictionary_page_offset)
    end = at + chunk.total_compressed_size
    if at < 0 or end < at:
        raise BadHeader(f"a column from byte {at} to byte {end}")
    while at < end:
        header, n_header = _header(stream, at)
        page, n_packed = _declared(header)
        at += n_header + n_packed
        if at > end:
            raise BadHeader(f"a page of {n_packed:,} bytes that reaches {at - end:,} bytes beyond its column")
        yield page


def _declared(header: dict[int, Any]) -> tuple[_Page, int]:
    """A page, and its length in the file."""
    kinds = [header[kind] for kind in (_OF_DATA, _OF_DATA_V2) if kind in header]
    numbers = [header.get(_UNPACKED_BYTES), header.get(_PACKED_BYTES), *(kind.get(_N_VALUES) for kind in kinds)]
    if len(kinds) > 1 or not all(isinstance(number, int) and number >= 0 for number in numbers):
        raise BadHeader(f"a page header of {numbers}")
    n_unpacked, n_packed, *n_values = numbers
    return _Page(n_values[0] if n_values else 0, n_unpacked), n_packed


def _header(stream: BinaryIO, at: int) -> tuple[dict[int, Any], int]:
    """The fields of the header at a place, by number, and its length in bytes."""
    n_read = _FIRST_READ
    while True:
        stream.seek(at)
        data = stream.read(n_read)
        try:
            reader = _Compact(data)
            return reader.struct(), reader.at
        except IndexError:  # longer than what was read, or than the file
            if len(data) < n_read or n_read >= _LONGEST:
                raise BadHeader(f"a page header at byte {at} that does not end") from None
        n_read *= 16


class _Compact:
    """Reads Thrift's compact protocol; IndexError at the end of the data."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.at = 0

    def struct(self, depth: int = 0) -> dict[int, Any]:
        """The fields of a structure by number: integers and structures; others as None."""
        if depth > _DEEPEST:
            raise BadHeader("a page header of too many levels")
        fields: dict[int, Any] = {}
        number = 0
        while kind := self._byte():
            number = number + (kind >> 4) if kind >> 4 else self._integer()
            fields[number] = self._value(kind & 15, depth)
        return fields

    def _value(self, kind: int, depth: int) -> Any:
        if kind in (1, 2):  # true and false stand in the kind itself
            return None
        if kind == 3:
            return self._byte()
        if kind in (4, 5, 6):
            return self._integer()
        if kind == 7:
            return self._skip(8)
        if kind == 8:
            return self._skip(self._varint())
        if kind in (9, 10):
            return self._skip_list(depth)
        if kind == 12:
            return self.struct(depth + 1)
        raise BadHeader(f"a page header with a field of kind {kind}")

    def _skip_list(self, depth: int) -> None:
        first = self._byte()
        size = first >> 4 if first >> 4 != 15 else self._varint()
        for _ in range(size):
            # Inside a list true and false are a byte each.
            self._byte() if first & 15 in (1, 2) else self._value(first & 15, depth + 1)

    def _skip(self, n_bytes: int) -> None:
        self.at += n_bytes
        if self.at > len(self._data):
            raise IndexError

    def _byte(self) -> int:
        value = self._data[self.at]
        self.at += 1
        return value

    def _varint(self) -> int:
        value = 0
        for shift in range(0, 70, 7):
            byte = self._byte()
            value |= (byte & 127) << shift
            if byte < 128:
                return value
        raise BadHeader("a number of too many bytes in a page header")

    def _integer(self) -> int:
        """Zigzag: 0, -1, 1, -2, …"""
        value = self._varint()
        return value >> 1 if value % 2 == 0 else -(value >> 1) - 1
