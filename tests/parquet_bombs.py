"""Parquet files of a few hundred bytes that stand for as many rows as one likes, written byte by byte.

One column of one value: a dictionary page that holds it, and data pages that repeat it (run-length-encoded, each run of
any length). Structures are Thrift's compact protocol; format: parquet.thrift.
"""

import struct
import zlib
from collections.abc import Mapping

_DOUBLE, _BYTE_ARRAY, _UTF8 = 5, 6, 0
_PLAIN, _RLE_DICTIONARY = 0, 8
_UNCOMPRESSED, _GZIP = 0, 2
_MOST_VALUES = 2**31 - 1  # of a page


def repeated(n_rows: int, value: float | str = 1.5, *, name: str = "x", metadata: Mapping[str, str] | None = None,
             is_packed: bool = False) -> bytes:  # fmt: skip
    """A file of `n_rows` rows, all with one value; `is_packed` packs the value with gzip."""
    is_text = isinstance(value, str)
    plain = _text(value) if isinstance(value, str) else struct.pack("<d", value)
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    stored = packer.compress(plain) + packer.flush() if is_packed else plain
    dictionary_header = {1: 2, 2: len(plain), 3: len(stored), 7: {1: 1, 2: _PLAIN}}
    body = bytearray(b"PAR1")
    dictionary_at = len(body)
    body += _struct(dictionary_header) + stored
    data_at = len(body)
    n_left = n_rows
    while n_left:
        n_values = min(n_left, _MOST_VALUES)
        page = b"\x00" + _varint(n_values << 1)  # positions of no bits, in one run
        packer = zlib.compressobj(9, zlib.DEFLATED, 31)
        packed = packer.compress(page) + packer.flush() if is_packed else page
        body += _struct({1: 0, 2: len(page), 3: len(packed), 5: {1: n_values, 2: _RLE_DICTIONARY, 3: 3, 4: 3}}) + packed
        n_left -= n_values
    n_chunk = len(body) - dictionary_at
    column = {
        1: _BYTE_ARRAY if is_text else _DOUBLE, 2: [_PLAIN, _RLE_DICTIONARY], 3: [name.encode()],
        4: _GZIP if is_packed else _UNCOMPRESSED, 5: Long(n_rows), 6: Long(n_chunk), 7: Long(n_chunk),
        9: Long(data_at), 11: Long(dictionary_at),
    }  # fmt: skip
    leaf = {1: _BYTE_ARRAY if is_text else _DOUBLE, 3: 0, 4: name.encode()} | ({6: _UTF8} if is_text else {})
    footer = {
        1: 2,
        2: [{4: b"schema", 5: 1}, leaf],
        3: Long(n_rows),
        4: [{1: [{2: Long(dictionary_at), 3: column}], 2: Long(n_chunk), 3: Long(n_rows)}],
        5: [{1: key.encode(), 2: text.encode()} for key, text in (metadata or {}).items()],
    }
    written = _struct({number: value for number, value in footer.items() if value != []})
    return bytes(body) + written + len(written).to_bytes(4, "little") + b"PAR1"


class Long(int):
    """A number of 64 bits."""


def _text(value: str) -> bytes:
    return len(value.encode()).to_bytes(4, "little") + value.encode()


def _struct(fields: Mapping[int, object]) -> bytes:
    written, before = bytearray(), 0
    for number, value in fields.items():
        kind, content = _value(value)
        written += bytes([(number - before) << 4 | kind]) + content
        before = number
    return bytes(written) + b"\x00"


def _value(value: object) -> tuple[int, bytes]:
    """The kind of a field, and its content."""
    if isinstance(value, int):
        return 6 if isinstance(value, Long) else 5, _varint(value << 1 if value >= 0 else ~(value << 1))
    if isinstance(value, bytes):
        return 8, _varint(len(value)) + value
    if isinstance(value, Mapping):
        return 12, _struct(value)
    assert isinstance(value, list)
    items = [_value(item) for item in value]
    size = bytes([len(items) << 4 | items[0][0]]) if len(items) < 15 else b"\xf0" + _varint(len(items))
    return 9, size + b"".join(content for _, content in items)


def _varint(value: int) -> bytes:
    written = bytearray()
    while value >= 128:
        written.append(value & 127 | 128)
        value >>= 7
    return bytes([*written, value])
