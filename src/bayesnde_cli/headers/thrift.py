"""Thrift's compact protocol, as far as the footers and page headers of Parquet files need it."""

from typing import Any

from bayesnde_cli.headers.bad_header import BadHeader

_DEEPEST = 12


class CompactReader:
    """Reads structures from bytes; IndexError at the end of the data, `BadHeader` at what cannot be."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.at = 0

    def struct(self, depth: int = 0) -> dict[int, Any]:
        """The fields of a structure by number: integers, structures, lists of structures; anything else is None."""
        if depth > _DEEPEST:
            raise BadHeader("structures of too many levels")
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
            return self._list(depth)
        if kind == 12:
            return self.struct(depth + 1)
        raise BadHeader(f"a field of the unknown kind {kind}")

    def _list(self, depth: int) -> list[dict[int, Any]] | None:
        first = self._byte()
        n_items = first >> 4 if first >> 4 != 15 else self._varint()
        kind = first & 15
        if kind == 12 or n_items == 0:
            return [self.struct(depth + 1) for _ in range(n_items)]
        for _ in range(n_items):
            # Inside a list true and false are a byte each.
            self._byte() if kind in (1, 2) else self._value(kind, depth + 1)
        return None

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
        raise BadHeader("a number of too many bytes")

    def _integer(self) -> int:
        """Zigzag: 0, -1, 1, -2, …"""
        value = self._varint()
        return value >> 1 if value % 2 == 0 else -(value >> 1) - 1
