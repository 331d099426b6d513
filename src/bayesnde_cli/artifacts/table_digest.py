"""The SHA-256 that a table carries of itself, so that a file of which no manifest tells can be believed.

It stands in the key-value metadata of the Parquet footer, and is that of the whole file with zeros in its own place.
The place is found by the bytes alone: a damaged file is refused before any parser has seen it.
"""

import hashlib
import os
import re
from pathlib import Path
from typing import BinaryIO, NamedTuple

KEY = "bayesnde.sha256"
BLANK = "0" * 64
# In the footer (Thrift's compact protocol) a text follows the sign \x18 and its length, here 64.
_PLACE = re.compile(re.escape(KEY.encode()) + rb"\x18\x40([0-9a-f]{64})")
_END_BYTES = 8  # the length of the footer, and PAR1
_PIECE_BYTES = 1 << 20


class _Place(NamedTuple):
    at: int
    digest: str


def write_digest(path: Path) -> None:
    """Put a finished table's digest into the place that was left for it."""
    with path.open("r+b") as file:
        place = _place(file)
        assert place is not None  # the writer has left one
        digest = _digest(file, place.at)
        file.seek(place.at)
        file.write(digest.encode())


def is_unchanged(path: Path) -> bool | None:
    """Whether a table is what its own digest says; None if it has none, as the first ones."""
    with path.open("rb") as file:
        place = _place(file)
        return None if place is None else _digest(file, place.at) == place.digest


def _place(file: BinaryIO) -> _Place | None:
    """Where the digest stands, and what it is; None if there is none, or no footer either."""
    n_bytes = file.seek(0, os.SEEK_END)
    if n_bytes < _END_BYTES:
        return None
    file.seek(-_END_BYTES, os.SEEK_END)
    n_footer = int.from_bytes(file.read(4), "little")
    start = n_bytes - _END_BYTES - n_footer
    if start < 0:
        return None
    file.seek(start)
    found = _PLACE.search(file.read(n_footer))
    return None if found is None else _Place(start + found.start(1), found[1].decode())


def _digest(file: BinaryIO, blank_at: int) -> str:
    """The SHA-256 of a file with zeros in the place of its digest."""
    digest = hashlib.sha256()
    file.seek(0)
    n_left = blank_at
    while n_left:
        piece = file.read(min(n_left, _PIECE_BYTES))
        if not piece:
            break  # cut off since we looked
        digest.update(piece)
        n_left -= len(piece)
    digest.update(BLANK.encode())
    file.seek(blank_at + len(BLANK))
    while piece := file.read(_PIECE_BYTES):
        digest.update(piece)
    return digest.hexdigest()
