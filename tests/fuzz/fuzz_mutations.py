"""Files that were valid once: bytes, documents and tables in which hypothesis changes a few things."""

import copy
import gzip
import hashlib
import io
import json
import math
import re
import zipfile
import zlib
from collections.abc import Callable, Sequence
from typing import Any

from hypothesis import strategies as st

from bayesnde_cli.artifacts.sealed import SEAL, sealed_bytes

# Numbers at which arithmetic, and trust, end.
SIZES = [0, 1, 2, 7, 255, 2**15, 2**16 - 1, 2**31 - 1, 2**31, 2**32 - 1, 2**40, 10**15, 2**63 - 1, 2**63, 2**64 - 1]
NUMBERS = [-1, 0, 1, 0.5, -0.0, 1e308, 5e-324, math.inf, -math.inf, math.nan, 2**53 + 1, 10**30, *SIZES]
WORDS = [
    "",
    " ",
    "a",
    "x" * 3000,
    "../../etc/passwd",
    "/etc/passwd",
    "a\\b",
    "\x1b[31m",
    "<script>",
    "a\nhint: b",
    "\ufeff",
    "\u202e",
    "row_id",
    "log_density",
    "NaN",
    "inf",
    "1e999",
    "0x10",
    "é",
    "日本",
    "\U0001f600",
    "a\0b",
    "{",
    "'",
    '"',
    ",",
    "%",
    "@data",
]  # fmt: skip
VALUES = [None, True, False, [], {}, [[]], [None], {"": {}}, *NUMBERS, *WORDS]


@st.composite
def damaged(draw: st.DrawFn, content: bytes, n_most: int = 4) -> bytes:
    """Bytes with one to four things done to them."""
    data = bytearray(content)
    for _ in range(draw(st.integers(1, n_most))):
        change = draw(st.sampled_from(_CHANGES))
        at = draw(st.integers(0, len(data)))
        change(draw, data, at)
    return bytes(data)


def _flip(draw: st.DrawFn, data: bytearray, at: int) -> None:
    if at < len(data):
        data[at] ^= 1 << draw(st.integers(0, 7))


def _set(draw: st.DrawFn, data: bytearray, at: int) -> None:
    data[at : at + 1] = bytes([draw(st.sampled_from([0, 1, 9, 10, 13, 34, 39, 44, 127, 128, 254, 255]))])


def _number(draw: st.DrawFn, data: bytearray, at: int) -> None:
    """An integer of four or eight bytes in the place of what is there."""
    n_bytes, order = draw(st.sampled_from([(2, "little"), (4, "little"), (4, "big"), (8, "little")]))
    value = draw(st.sampled_from(SIZES)) % 2 ** (8 * n_bytes)
    data[at : at + n_bytes] = value.to_bytes(n_bytes, order)  # type: ignore[arg-type]


def _cut(draw: st.DrawFn, data: bytearray, at: int) -> None:
    del data[at : at + draw(st.integers(1, 64))]


def _truncate(draw: st.DrawFn, data: bytearray, at: int) -> None:
    del data[at:]


def _repeat(draw: st.DrawFn, data: bytearray, at: int) -> None:
    data[at:at] = bytes(data[at : at + draw(st.integers(1, 64))]) * draw(st.sampled_from([1, 2, 50]))


def _insert(draw: st.DrawFn, data: bytearray, at: int) -> None:
    data[at:at] = draw(st.binary(min_size=1, max_size=16))


def _move(draw: st.DrawFn, data: bytearray, at: int) -> None:
    piece = bytes(data[at : at + 32])
    to = draw(st.integers(0, len(data)))
    data[to : to + len(piece)] = piece


_CHANGES: Sequence[Callable[[st.DrawFn, bytearray, int], None]] = (
    _flip, _flip, _set, _number, _number, _cut, _truncate, _repeat, _insert, _move
)  # fmt: skip


@st.composite
def changed_document(draw: st.DrawFn, document: Any) -> Any:
    """A JSON document with one to three of its values, keys or items replaced, removed or added."""
    made = json.loads(json.dumps(document))
    for _ in range(draw(st.integers(1, 3))):
        place = made
        while isinstance(place, dict | list) and place:
            key = draw(st.sampled_from(sorted(place) if isinstance(place, dict) else range(len(place))))
            if isinstance(place[key], dict | list) and place[key] and draw(st.integers(0, 3)):
                place = place[key]
                continue
            _change_item(draw, place, key)
            break
    return made


def _change_item(draw: st.DrawFn, place: Any, key: Any) -> None:
    what = draw(st.integers(0, 5))
    value = copy.deepcopy(draw(st.sampled_from(VALUES)))  # a later change may go into it
    if what == 0:
        del place[key]
    elif what == 1 and isinstance(place, dict):
        place[draw(st.sampled_from(WORDS))] = place.pop(key)
    elif what == 2:
        place[key] = [place[key]]
    elif what == 3 and isinstance(place, list):
        place[key:key] = [value] * draw(st.sampled_from([1, 2, 100]))
    else:
        place[key] = value


@st.composite
def json_files(draw: st.DrawFn, content: bytes, *, is_sealed: bool) -> bytes:
    """A JSON file, damaged as bytes or as a document; a sealed one is often sealed again."""
    try:
        whole = json.loads(content)
    except ValueError:  # damaged before
        return content
    if draw(st.integers(0, 3)) == 0 or not isinstance(whole, dict):
        return draw(damaged(content))
    document = draw(changed_document({name: value for name, value in whole.items() if name != SEAL}))
    if is_sealed and draw(st.integers(0, 3)):
        try:
            return sealed_bytes(document)
        except ValueError:  # NaN: nobody can seal it
            pass
    deep = b"[" * 100_000
    return draw(st.sampled_from([json.dumps(document).encode(), json.dumps(document).encode(), deep]))


_DTYPES = ["<f8", ">f4", "|O", "<U3", "<U0", "|V8", "|b1", "<i8", "<c16", "f8", "<M8[s]", [("a", "<f8")], 3]


@st.composite
def npy_files(draw: st.DrawFn, content: bytes) -> bytes:
    """An NPY file, damaged as bytes or with another header."""
    if draw(st.booleans()):
        return draw(damaged(content))
    size = st.one_of(st.integers(-1, 5), st.sampled_from(SIZES))
    header = {
        "descr": draw(st.sampled_from(_DTYPES)),
        "fortran_order": draw(st.sampled_from([False, True, 1])),
        "shape": draw(st.one_of(st.lists(size, max_size=4).map(tuple), st.sampled_from([3, (True, 2), "x", (2.0,)]))),
    }
    told = repr(header)
    text = draw(st.sampled_from([told + "\n", told, "(" * 500, "{'descr': '\\d'}", told + " " * 9900]))
    version = draw(st.sampled_from([(1, 0), (2, 0), (3, 0), (9, 9)]))
    n_length = 2 if version == (1, 0) else 4
    length = draw(st.sampled_from([len(text), len(text), len(text), 0, 2**16 - 1, 2 ** (8 * n_length) - 1]))
    head = b"\x93NUMPY" + bytes(version) + length.to_bytes(n_length, "little") + text.encode()
    return head + bytes(draw(st.integers(0, 200)))


@st.composite
def zip_files(draw: st.DrawFn, content: bytes, *, has_digest: bool = False) -> bytes:
    """A zip of arrays: damaged as bytes, or with members damaged, renamed, packed or repeated."""
    if draw(st.integers(0, 2)) == 0:
        return draw(damaged(content))
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        members = [(name, archive.read(name)) for name in archive.namelist()]
    for _ in range(draw(st.integers(1, 3))):
        index = draw(st.integers(0, len(members) - 1))
        name, old = members[index]
        what = draw(st.integers(0, 5))
        if what == 0 and len(members) > 1:
            del members[index]
        elif what == 1:
            members[index] = (draw(st.sampled_from([*WORDS[1:8], "a.npy", "facts.json", "xl/a"])), old)
        elif what == 2:
            members.append((f"more{len(members)}.npy", old))
        elif name == "facts.json" and old.startswith(b"{"):
            members[index] = (name, draw(json_files(old, is_sealed=False)))
        else:
            members[index] = (name, draw(npy_files(old)))
    how = draw(st.sampled_from([zipfile.ZIP_STORED, zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2]))
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", how) as archive:
        for name, data in dict(members).items():
            archive.writestr(zipfile.ZipInfo(name.replace("\0", "") or "n"), data, how)
        archive.comment = b"0" * 64 if has_digest else b""
    made = buffer.getvalue()
    return made[:-64] + hashlib.sha256(made[:-64]).hexdigest().encode() if has_digest else made


@st.composite
def packed_files(draw: st.DrawFn, inner: st.SearchStrategy[bytes]) -> bytes:
    """A gzip file: around damaged content, or damaged itself."""
    content = draw(inner)
    whole = gzip.compress(content, 1, mtime=0)
    return draw(damaged(whole)) if draw(st.booleans()) else whole


@st.composite
def mat_files(draw: st.DrawFn, content: bytes) -> bytes:
    """A MAT file: damaged, or with the content of a packed element damaged and packed again."""
    kind, n_bytes = int.from_bytes(content[128:132], "little"), int.from_bytes(content[132:136], "little")
    if kind != 15 or draw(st.integers(0, 2)) == 0:
        return draw(damaged(content))
    inner = zlib.compress(draw(damaged(zlib.decompress(content[136 : 136 + n_bytes]))))
    return content[:132] + len(inner).to_bytes(4, "little") + inner + content[136 + n_bytes :]


@st.composite
def parquet_files(draw: st.DrawFn, content: bytes) -> bytes:
    """A Parquet file, damaged anywhere, or in its footer with the rest left whole."""
    if draw(st.booleans()):
        return draw(damaged(content))
    n_footer = int.from_bytes(content[-8:-4], "little")
    start = len(content) - 8 - n_footer
    footer = draw(damaged(content[start:-8]))
    length = draw(st.sampled_from([len(footer), len(footer), len(footer), *SIZES])) % 2**32
    return content[:start] + footer + length.to_bytes(4, "little") + b"PAR1"


def again_digested(content: bytes) -> bytes:
    """A table of ours whose own SHA-256 is right again, if it still has a place for it."""
    place = re.search(rb"bayesnde\.sha256\x18\x40([0-9a-f]{64})", content)
    if place is None:
        return content
    blank = content[: place.start(1)] + b"0" * 64 + content[place.end(1) :]
    return content[: place.start(1)] + hashlib.sha256(blank).hexdigest().encode() + content[place.end(1) :]


_TOKENS = [
    ",",
    ";",
    "\t",
    " ",
    "|",
    "\n",
    "\r\n",
    "\r",
    '"',
    "'",
    '""',
    "#",
    "%",
    "1",
    "-2.5",
    "1e5",
    "3,5",
    "NA",
    "?",
    "a",
    "é",
    "nan",
    "inf",
    "sep=;",
    "@relation",
    "@attribute",
    "@data",
    "{",
    "}",
    "numeric",
    "\\",
    "\x00",
    "\x1b[2J",
    "\ufeff",
    "\u2028",
    "x" * 200,
    " " * 300,
]  # fmt: skip


@st.composite
def text_files(draw: st.DrawFn, content: bytes) -> bytes:
    """A text: damaged as bytes, with tokens put in, or made of tokens, in some encoding."""
    what = draw(st.integers(0, 3))
    if what == 0:
        return draw(damaged(content))
    if what == 1:
        text = "".join(draw(st.lists(st.sampled_from(_TOKENS), max_size=60)))
    else:
        text = content.decode("utf-8")
        for _ in range(draw(st.integers(1, 6))):
            at = draw(st.integers(0, len(text)))
            text = text[:at] + draw(st.sampled_from(_TOKENS)) + text[at + draw(st.integers(0, 3)) :]
    encoding = draw(st.sampled_from(["utf-8", "utf-8", "utf-8", "utf-16", "latin-1", "utf-8-sig"]))
    return text.encode(encoding, "replace")
