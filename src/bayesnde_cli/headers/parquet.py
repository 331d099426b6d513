"""What the pages of a Parquet file declare: values, and bytes when unpacked.

A page of a few bytes may unpack to two gigabytes, or stand for two thousand million values. Each page says so in its
own header, which pyarrow does not show; the headers are walked here, and the pages skipped. The footer is read here,
too: pyarrow's own view of a damaged one can end the process (version 26, `ColumnChunkMetaData`).

Format: parquet.thrift, `FileMetaData` and `PageHeader`.
"""

import os
from collections.abc import Collection, Iterator
from typing import Any, BinaryIO, NamedTuple

from bayesnde_cli.headers.bad_header import BadHeader
from bayesnde_cli.headers.thrift import CompactReader

# A page header is some 30 bytes, more with statistics of long words; what is read at once, and at most.
_FIRST_READ, _LONGEST = 256, 1 << 20
_END_BYTES = 8  # the length of the footer, and PAR1
# Fields by their numbers.
_ROW_GROUPS, _COLUMNS, _COLUMN = 4, 1, 3
_N_VALUES, _N_BYTES, _DATA_AT, _DICTIONARY_AT = 5, 7, 9, 11
_UNPACKED_BYTES, _PACKED_BYTES = 2, 3
_DATA_PAGE, _DATA_PAGE_V2, _N_PAGE_VALUES = 5, 8, 1  # a dictionary page has no cells


class Declared(NamedTuple):
    """The pages of some columns, taken together."""

    n_values: int  # of data pages: cells
    n_bytes: int  # of all pages, unpacked
    n_bytes_at_once: int  # of the largest page of each column: what lies in memory side by side


def declared_by_pages(stream: BinaryIO, columns: Collection[int] | None = None) -> Declared:
    """What the pages of the columns at these positions, or of all, declare; `BadHeader` if that cannot be."""
    n_values = n_bytes = 0
    largest: dict[int, int] = {}
    for column, chunk in _chunks(stream):
        if columns is not None and column not in columns:
            continue
        n_left, largest[column] = chunk.n_values, largest.get(column, 0)
        for page in _pages(stream, chunk):
            n_bytes += page.n_unpacked
            n_values += page.n_values
            n_left -= page.n_values
            largest[column] = max(largest[column], page.n_unpacked)
        if n_left:
            raise BadHeader(f"a column of {chunk.n_values:,} values with pages of {chunk.n_values - n_left:,}")
    return Declared(n_values, n_bytes, sum(largest.values()))


class _Chunk(NamedTuple):
    """A column in a row group: where it lies."""

    start: int
    stop: int
    n_values: int


class _Page(NamedTuple):
    n_values: int
    n_unpacked: int


def _chunks(stream: BinaryIO) -> Iterator[tuple[int, _Chunk]]:
    """The columns of every row group, each with its position."""
    n_file = stream.seek(0, os.SEEK_END)
    stream.seek(max(n_file - _END_BYTES, 0))
    n_footer = int.from_bytes(stream.read(4), "little")
    if n_footer + _END_BYTES > n_file:
        raise BadHeader(f"a footer of {n_footer:,} bytes in a file of {n_file:,}")
    stream.seek(n_file - _END_BYTES - n_footer)
    try:
        footer = CompactReader(stream.read(n_footer)).struct()
    except IndexError:
        raise BadHeader("a footer that does not end") from None
    for group in _structs(footer, _ROW_GROUPS):
        for column, chunk in enumerate(_structs(group, _COLUMNS)):
            yield column, _chunk(chunk.get(_COLUMN))


def _structs(fields: dict[int, Any], number: int) -> list[dict[int, Any]]:
    found = fields.get(number)
    if not isinstance(found, list):
        raise BadHeader(f"a footer without the list of field {number}")
    return found


def _chunk(fields: Any) -> _Chunk:
    if not isinstance(fields, dict):
        raise BadHeader("a column without a description")
    numbers: list[Any] = [fields.get(number) for number in (_N_VALUES, _N_BYTES, _DATA_AT)]
    dictionary_at = fields.get(_DICTIONARY_AT) or 0
    if not all(isinstance(number, int) and number >= 0 for number in (*numbers, dictionary_at)):
        raise BadHeader(f"a column of {numbers}")
    n_values, n_bytes, data_at = numbers
    start = min((at for at in (dictionary_at, data_at) if at), default=0)  # without values, without a place
    return _Chunk(start, start + n_bytes, n_values)


def _pages(stream: BinaryIO, chunk: _Chunk) -> Iterator[_Page]:
    """The pages of a column in a row group."""
    at = chunk.start
    while at < chunk.stop:
        header, n_header = _header(stream, at)
        page, n_packed = _declared(header)
        at += n_header + n_packed
        if at > chunk.stop:
            raise BadHeader(f"a page of {n_packed:,} bytes that reaches {at - chunk.stop:,} bytes beyond its column")
        yield page


def _declared(header: dict[int, Any]) -> tuple[_Page, int]:
    """A page, and its length in the file."""
    kinds = [header[kind] for kind in (_DATA_PAGE, _DATA_PAGE_V2) if kind in header]
    if len(kinds) > 1 or not all(isinstance(kind, dict) for kind in kinds):
        raise BadHeader(f"a page header of the fields {sorted(header)}")
    numbers = [header.get(_UNPACKED_BYTES), header.get(_PACKED_BYTES), *(kind.get(_N_PAGE_VALUES) for kind in kinds)]
    if not all(isinstance(number, int) and number >= 0 for number in numbers):
        raise BadHeader(f"a page header of {numbers}")
    n_unpacked, n_packed, *n_values = numbers
    return _Page(n_values[0] if n_values else 0, n_unpacked), n_packed


def _header(stream: BinaryIO, at: int) -> tuple[dict[int, Any], int]:
    """The fields of the page header at a place, by number, and its length in bytes."""
    n_read = _FIRST_READ
    while True:
        stream.seek(at)
        data = stream.read(n_read)
        try:
            reader = CompactReader(data)
            return reader.struct(), reader.at
        except IndexError:  # longer than what was read, or than the file
            if len(data) < n_read or n_read >= _LONGEST:
                raise BadHeader(f"a page header at byte {at} that does not end") from None
        n_read *= 16
