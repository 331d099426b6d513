"""Which format a source has, found from its bytes; the file's name plays no part."""

import zipfile
from typing import Literal

from bayesnde_cli.data.readers.source import Source
from bayesnde_cli.errors import BadInput

Format = Literal["parquet", "npy", "npz", "mat", "idx", "arff", "text"]

# IDX begins with two zero bytes, the code of its number type and its number of axes.
IDX_TYPES = {0x08: ">u1", 0x09: ">i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}
IDX_MAX_AXES = 8

MAGIC: tuple[tuple[bytes, Format], ...] = (
    (b"PAR1", "parquet"),
    (b"\x93NUMPY", "npy"),
    (b"MATLAB 5.0", "mat"),
)

_AS_TABLE = "export the table as CSV or Parquet"
_UNPACK = "unpack it first, or compress with gzip, which is read as it is"
FOREIGN: tuple[tuple[bytes, str, str], ...] = (
    (b"MATLAB 7.3", "a MATLAB v7.3 file (HDF5)", "save it in MATLAB with `save(file, '-v7')`"),
    (b"\x89HDF\r\n\x1a\n", "an HDF5 file", _AS_TABLE),
    (b"\xd0\xcf\x11\xe0", "an Excel workbook", "save the sheet as CSV"),
    (b"%PDF", "a PDF document", _AS_TABLE),
    (b"ARROW1", "an Arrow (Feather) file", "write it as Parquet"),
    (b"SQLite format 3", "an SQLite database", _AS_TABLE),
    (b"BZh", "a bzip2 file", _UNPACK),
    (b"\xfd7zXZ", "an xz file", _UNPACK),
    (b"\x28\xb5\x2f\xfd", "a Zstandard file", _UNPACK),
)

HEAD_BYTES = 4096
ARFF_COMMENT_BYTES = 1 << 20  # ARFF files may open with pages of % comments


def format_of(source: Source) -> Format:
    """The format of the source's content; formats that are not read are refused by name."""
    head = source.head(HEAD_BYTES)
    if head[:4] in (b"PK\x03\x04", b"PK\x05\x06"):
        _refuse_packed(source, "zip")
        return _zip_format(source)
    for magic, name in MAGIC:
        if head.startswith(magic):
            _refuse_packed(source, name)
            return name
    for magic, what, hint in FOREIGN:
        if head.startswith(magic):
            raise BadInput(f"{source.name} is {what}", found=f"first bytes: {head[:8]!r}", hint=hint)
    if head[:2] == b"\0\0" and len(head) >= 4 and head[2] in IDX_TYPES and 1 <= head[3] <= IDX_MAX_AXES:
        return "idx"
    if head.lstrip().startswith((b'{"', b"[{", b"[[", b"{\n")):
        raise BadInput(
            f"{source.name} is a JSON file",
            found=f"first bytes: {head[:16]!r}",
            hint="write the table as CSV or Parquet",
        )
    return "arff" if _is_arff(source) else "text"


def _refuse_packed(source: Source, what: str) -> None:
    """Parquet, NPY and the like are compressed inside; only text and IDX are read through gzip."""
    if source.is_gzip:
        raise BadInput(
            f"{source.name} is a gzip-compressed {what} file",
            found="gzip is read around text, ARFF and IDX only",
            hint="unpack it with `gunzip`",
        )


def _zip_format(source: Source) -> Format:
    try:
        with zipfile.ZipFile(source.path) as archive:
            members = archive.namelist()
    except (zipfile.BadZipFile, ValueError, NotImplementedError) as error:  # names that are no UTF-8, an odd version
        raise source.damaged("zip file (NPZ, Excel or other)", error) from error
    if any(member.startswith("xl/") for member in members):
        raise BadInput(f"{source.name} is an Excel workbook", found=_members(members), hint="save the sheet as CSV")
    if members and all(member.endswith(".npy") for member in members):
        return "npz"
    raise BadInput(
        f"{source.name} is a zip file without arrays",
        found=_members(members),
        hint="unzip it and give the files inside it",
    )


def _members(members: list[str]) -> str:
    return f"inside: {', '.join(repr(member) for member in members[:5])}" if members else "inside: nothing"


def _is_arff(source: Source) -> bool:
    """Whether the first line that is no comment starts with @relation."""
    n_read = 0
    with source.open() as stream:
        while n_read < ARFF_COMMENT_BYTES:
            line = stream.readline(ARFF_COMMENT_BYTES)
            n_read += len(line)
            word = line.removeprefix(b"\xef\xbb\xbf").strip()
            if not line or (word and not word.startswith(b"%")):
                return word.lower().startswith(b"@relation")
    return False
