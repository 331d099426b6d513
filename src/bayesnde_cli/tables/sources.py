"""Inputs that a user names, recognised by their content, and the table that every reader returns.

    table = open_sources(sources_of([Path("bank.csv")]))
    for batch in table.batches(["age", "job"]):
        ...

Reads delimited text, ARFF and IDX (each also with gzip), NPY, NPZ, MAT v5, Parquet and folders of images; "-" is
standard input. The reader of a format is imported when such a file is opened.
"""

import contextlib
import gzip
import os
import shutil
import sys
import tempfile
import weakref
import zipfile
import zlib
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Literal

import pyarrow as pa
import pyarrow.compute as pc

from bayesnde_cli import stopping
from bayesnde_cli.errors import BadInput, escaped
from bayesnde_cli.runs.manifest import FileRecord, describe_file, describe_folder
from bayesnde_cli.tables.columns import ImageShape, listed, quoted

MAX_BATCH_ROWS = 65_536
MAX_COLUMNS = 100_000  # a network with more inputs is out of reach
SHOWN_CHARACTERS = 60
LABEL = "label"  # the column of classes that come as a vector next to an array, or as folders of images

CellType = Literal["number", "text"]

Format = Literal["parquet", "npy", "npz", "mat", "idx", "arff", "text", "images"]
MAGIC: dict[Format, bytes | tuple[bytes, ...]] = {
    "parquet": b"PAR1",
    "npy": b"\x93NUMPY",
    "mat": b"MATLAB 5.0",
    "npz": (b"PK\x03\x04", b"PK\x05\x06"),
}
# An IDX file starts with two zero bytes, the code of its number type, and its number of axes.
IDX_TYPES = {0x08: ">u1", 0x09: ">i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}
HEAD_BYTES = 1 << 20  # ARFF files may start with pages of % comments

_EXPORT = "export the table as CSV or Parquet"
_UNPACK = "unpack it first, or compress it with gzip, which can be read directly"
# Formats that users try: their first bytes, their name, and the way out.
UNSUPPORTED: tuple[tuple[bytes | tuple[bytes, ...], str, str], ...] = (
    (b"MATLAB 7.3", "a MATLAB v7.3 file (HDF5)", "save it in MATLAB with `save(file, '-v7')`"),
    (b"\x89HDF\r\n\x1a\n", "an HDF5 file", _EXPORT),
    (b"\xd0\xcf\x11\xe0", "an Excel workbook", "save the sheet as CSV"),
    (b"%PDF", "a PDF document", _EXPORT),
    (b"ARROW1", "an Arrow (Feather) file", "write it as Parquet"),
    (b"SQLite format 3", "an SQLite database", _EXPORT),
    (b"BZh", "a bzip2 file", _UNPACK),
    (b"\xfd7zXZ", "an xz file", _UNPACK),
    (b"\x28\xb5\x2f\xfd", "a Zstandard file", _UNPACK),
    ((b'{"', b"{\n", b"[{", b"[["), "a JSON file", _EXPORT),
)
_CGROUP_LIMIT = Path("/sys/fs/cgroup/memory.max")


@dataclass(frozen=True)
class TextFormat:
    """What the user says about a text file; None is detected from its content."""

    delimiter: str | None = None  # one character; " " stands for runs of white space
    quote: str | None = None  # one character; "" for none
    header: bool | None = None
    decimal: str | None = None  # "." or ","
    encoding: str | None = None
    missing: tuple[str, ...] = ()  # further tokens that mean a missing cell

    def __post_init__(self) -> None:
        options = {"--delimiter": self.delimiter, "--quote": self.quote or None, "--decimal": self.decimal}
        given = {option: character for option, character in options.items() if character is not None}
        is_single = all(len(character) == 1 and character.isascii() for character in given.values())
        if not is_single or not set("\r\n\0").isdisjoint(given.values()) or len(set(given.values())) < len(given):
            raise BadInput(
                "--delimiter, --quote and --decimal must be single, different ASCII characters",
                found=", ".join(f"{option} {shorten(character)}" for option, character in given.items()),
                hint="give one character to each option, such as `--delimiter ';'`",
            )


DEFAULT_TEXT = TextFormat()


@contextlib.contextmanager
def refuse_unreadable(name: str) -> Iterator[None]:
    """Turn the system's refusals to read an input into `BadInput`."""
    try:
        yield
    except OSError as error:
        found = error.strerror or str(error)
        place = escaped(str(error.filename)) if error.filename else name
        raise BadInput(f"cannot read {place}", found=found, hint="check the file's permissions") from error


class Source:
    """One input of the user: its bytes, decompressed if they are gzip, and its name in messages."""

    files: Sequence[Path] = ()  # the images, relative to `path`, if the input is a folder
    is_gzip = False

    def __init__(self, path: Path, name: str) -> None:
        self.path = path
        self.name = name
        first = self.head(2)
        if not first:
            raise BadInput(f"{name} is empty", found="0 bytes", hint="give a file that holds a table")
        self.is_gzip = first == b"\x1f\x8b"

    @contextlib.contextmanager
    def open(self) -> Iterator[BinaryIO]:
        """Open the decompressed bytes from the start."""
        with refuse_unreadable(self.name), self.path.open("rb") as raw:
            if not self.is_gzip:
                yield raw
                return
            errors = (EOFError, gzip.BadGzipFile, zlib.error)
            with gzip.open(raw) as unpacked, self.refuse_damage("gzip file", errors):
                yield unpacked  # type: ignore[misc]

    def head(self, n_bytes: int) -> bytes:
        """Return the first bytes, decompressed."""
        with self.open() as stream:
            return stream.read(n_bytes)

    @contextlib.contextmanager
    def refuse_damage(
        self, what: str, errors: type[Exception] | tuple[type[Exception], ...] = Exception
    ) -> Iterator[None]:
        """Turn errors of the library that parses the input into `BadInput`: damage makes it raise many kinds."""
        try:
            yield
        except BadInput:
            raise
        except errors as error:
            raise BadInput(
                f"{self.name} is a truncated or damaged {what}",
                found=str(error).partition("\n")[0] or type(error).__name__,
                hint="copy or download the file again",
            ) from error


def sources_of(paths: Sequence[Path | Literal["-"]], *, stdin: BinaryIO | None = None) -> list[Source]:
    """Return the inputs behind the paths; pipes and standard input are copied to temporary files."""
    if sum(str(path) == "-" for path in paths) > 1:
        raise BadInput("standard input is given twice", found="- and -", hint="give - once")
    return [_open_source(path, stdin) for path in paths]


def _open_source(path: Path | str, stdin: BinaryIO | None) -> Source:
    if str(path) == "-":
        return _spool(sys.stdin.buffer if stdin is None else stdin, "standard input")
    path = Path(path)
    name = escaped(str(path))
    if path.is_dir():
        from bayesnde_cli.tables.binary_files import ImageFolder

        return ImageFolder(path, name)
    if not path.exists():
        folder = "the working directory" if path.parent == Path() else escaped(str(path.parent))
        raise BadInput(f"{name} does not exist", found=f"no such file in {folder}", hint="check the path")
    if path.is_file():
        return Source(path, name)
    with stopping.interruptible():  # opening a named pipe waits for its writer
        pipe = path.open("rb")
    with pipe:
        return _spool(pipe, name)


def _spool(stream: BinaryIO, name: str) -> Source:
    """Copy a stream, which can be read only once, to a temporary file that is deleted with the source."""
    handle, path = tempfile.mkstemp(prefix="bayesnde-")
    try:
        with os.fdopen(handle, "wb") as spool, stopping.interruptible():  # the writer of a pipe may take any time
            shutil.copyfileobj(stream, spool)
        source = Source(Path(path), name)
    except BaseException:
        os.unlink(path)
        raise
    weakref.finalize(source, Path(path).unlink, missing_ok=True)
    return source


def describe_sources(sources: Sequence[Source], data: Sequence[Path]) -> dict[str, FileRecord]:
    """Return the inputs as a manifest records them: `data` are their paths as given, - for standard input."""
    records: dict[str, FileRecord] = {}
    for index, (source, given) in enumerate(zip(sources, data, strict=True)):
        with refuse_unreadable(source.name):
            record = describe_folder(source.path, source.files) if source.files else describe_file(source.path)
        path = "-" if str(given) == "-" else os.path.abspath(given)
        records[f"data-{index}"] = {**record, "path": path.encode("utf-8", "backslashreplace").decode()}
    return records


class Table(ABC):
    """Columns of a user's file: `float64` (a missing cell and NaN are null) or `string`."""

    names: tuple[str, ...]
    description: str
    n_rows: int | None = None  # if it is known before the rows are read
    has_own_names: bool = True  # False for the made-up names c1, c2, ...: such columns are matched by position
    image: ImageShape | None = None  # the size of the images, if rows are images; then every pixel is a column

    def batches(
        self, columns: Sequence[str] | None = None, *, as_text: Collection[str] = ()
    ) -> Iterator[pa.RecordBatch]:
        """Return record batches of the chosen columns, in the chosen order; each call reads from the start.

        Cells of other columns are not checked. Columns in `as_text` come as strings whatever they hold.
        """
        chosen = self.names if columns is None else tuple(columns)
        found = self.kinds([name for name in chosen if name not in as_text])
        # a column without any cell counts as a column of missing numbers
        return self.batches_as({name: found.get(name, "text") or "number" for name in chosen})

    @abstractmethod
    def kinds(self, columns: Sequence[str]) -> dict[str, CellType | None]:
        """Return what the columns hold; None where every cell is missing."""

    @abstractmethod
    def batches_as(self, kinds: Mapping[str, CellType]) -> Iterator[pa.RecordBatch]:
        """Return record batches of the columns of `kinds`, in its order, converted to these kinds."""

    def join_labels(self, vector: "Table") -> "Table | None":
        """Return this table with a bare vector of labels as a further column; None if the two do not fit."""
        return None


def open_sources(sources: Sequence[Source], text: TextFormat = DEFAULT_TEXT) -> Table:
    """Return one table of the sources: label vectors joined to their arrays, then rows below rows."""
    parts: list[tuple[str, Table]] = []
    for source in sources:
        table = _open(source, text)
        joined = parts[-1][1].join_labels(table) if parts else None
        if joined is None:
            parts.append((source.name, table))
        else:
            parts[-1] = (parts[-1][0], joined)
    return parts[0][1] if len(parts) == 1 else Concatenation(parts)


def _open(source: Source, text: TextFormat) -> Table:
    """Return the table of one input."""
    table: Table
    match detect_format(source):
        case "text":
            from bayesnde_cli.tables.text_files import open_text

            table = open_text(source, text)
        case "arff":
            from bayesnde_cli.tables.arff_files import open_arff

            table = open_arff(source, text)
        case binary:
            from bayesnde_cli.tables.binary_files import OPENERS

            table = OPENERS[binary](source)
    if table.n_rows == 0 or not table.names:
        raise BadInput(f"{source.name} holds no rows", found=table.description, hint="give a file with rows")
    check_width(source.name, len(table.names))
    repeated = [name for name, count in Counter(table.names).items() if count > 1]
    if repeated:
        found, hint = f"more than once: {listed(repeated)}", "rename them; if the first line is data, use `--header no`"
        raise BadInput(f"{source.name} has duplicate column names", found=found, hint=hint)
    return table


def detect_format(source: Source) -> Format:
    """Return the format of the content, whatever the file is called; unsupported formats are refused by name."""
    if source.files:
        return "images"
    head = source.head(HEAD_BYTES)
    found = next((name for name, magic in MAGIC.items() if head.startswith(magic)), None)
    if found and source.is_gzip:
        what, hint = f"{source.name} is a gzip-compressed {found} file", "unpack it with `gunzip`"
        raise BadInput(what, found="only text, ARFF and IDX may be gzip-compressed", hint=hint)
    if found == "npz":
        _check_zip(source)
    if found:
        return found
    for magic, what, hint in UNSUPPORTED:
        if head.startswith(magic):
            raise BadInput(f"{source.name} is {what}", found=f"first bytes: {head[:8]!r}", hint=hint)
    if head[:2] == b"\0\0" and len(head) >= 4 and head[2] in IDX_TYPES and 1 <= head[3] <= 8:
        return "idx"
    lines = (line.strip() for line in head.removeprefix(b"\xef\xbb\xbf").splitlines())
    first = next((line for line in lines if line and not line.startswith(b"%")), b"")
    return "arff" if first.lower().startswith(b"@relation") else "text"


def _check_zip(source: Source) -> None:
    """Refuse a zip file that does not hold arrays."""
    with source.refuse_damage("zip file (NPZ, Excel or other)"), zipfile.ZipFile(source.path) as archive:
        members = archive.namelist()
    if not members or not all(member.endswith(".npy") for member in members):
        is_excel = any(member.startswith("xl/") for member in members)
        raise BadInput(
            f"{source.name} is {'an Excel workbook' if is_excel else 'a zip file without arrays'}",
            found=f"inside: {listed(members) or 'nothing'}",
            hint="save the sheet as CSV" if is_excel else "unzip it and give the files inside it",
        )


class Concatenation(Table):
    """The rows of several tables in the given order, with the column names of the first."""

    def __init__(self, parts: Sequence[tuple[str, Table]]) -> None:
        _check_same_columns(parts)
        first = parts[0][1]
        self._parts = parts
        self.names, self.has_own_names, self.image = first.names, first.has_own_names, first.image
        descriptions = dict.fromkeys(table.description for _, table in parts)
        self.description = f"{len(parts)} files: {'; '.join(descriptions)}"

    def kinds(self, columns: Sequence[str]) -> dict[str, CellType | None]:
        """Return what each column holds in the first file in which it has any cell."""
        kinds: dict[str, CellType | None] = dict.fromkeys(columns)
        for _, table in self._parts:
            unknown = [name for name in columns if kinds[name] is None]
            kinds |= zip(unknown, table.kinds(self._own_names(table, unknown)).values(), strict=True)
        return kinds

    def batches_as(self, kinds: Mapping[str, CellType]) -> Iterator[pa.RecordBatch]:
        numbers = [name for name, kind in kinds.items() if kind == "number"]
        for place, table in self._parts:
            found = table.kinds(self._own_names(table, numbers)).values()
            for name in (name for name, kind in zip(numbers, found, strict=True) if kind == "text"):
                raise BadInput(
                    f"column '{name}' holds text in {place} and numbers in an earlier file",
                    found="type: text",
                    hint=f"use `--type {quoted(name)}=categorical`, or give files with equal types",
                )
            own = self._own_names(table, kinds)
            for batch in table.batches_as(dict(zip(own, kinds.values(), strict=True))):
                yield batch.rename_columns(list(kinds))

    def _own_names(self, table: Table, columns: Iterable[str]) -> list[str]:
        """Return the names that these columns of the whole have in one of the tables."""
        own = dict(zip(self.names, self.names if table.has_own_names else table.names, strict=True))
        return [own[name] for name in columns]


def _check_same_columns(parts: Sequence[tuple[str, Table]]) -> None:
    (first_name, first), *others = parts
    for name, table in others:
        if table.image != first.image:
            found = [f"{place}: {part.description}" for place, part in ((first_name, first), (name, table))]
            hint = "give images of one size, or prepare them separately"
            raise BadInput(f"{name} and {first_name} do not hold images of the same size", found=found, hint=hint)
        if first.has_own_names and table.has_own_names:
            missing = [column for column in first.names if column not in table.names]
            extra = [column for column in table.names if column not in first.names]
            found = [f"{what}: {listed(names)}" for what, names in (("missing", missing), ("extra", extra)) if names]
        elif table.has_own_names or len(table.names) != len(first.names):
            named = "with" if table.has_own_names else "without"
            found = [f"{len(first.names)} columns, and {len(table.names)} columns {named} names"]
        else:
            found = []
        if found:
            hint = "give files with the same column names in any order, or with names in the first file only"
            raise BadInput(f"{name} has different columns from {first_name}", found=found, hint=hint)


def made_up_names(n_columns: int) -> tuple[str, ...]:
    """Return c1, c2, ...: names of columns whose source has none."""
    return tuple(f"c{index}" for index in range(1, n_columns + 1))


def normalise_words(cells: pa.Array) -> pa.Array:
    """Return cells of text with one spelling of whole numbers: `17.0` becomes `17`, as in typed files."""
    return pc.replace_substring_regex(cells, r"^(-?(?:0|[1-9][0-9]*))\.0+$", r"\1")


def nan_as_null(values: pa.Array) -> pa.Array:
    """Return floating-point values with every NaN replaced by null."""
    return pc.if_else(pc.is_nan(values), pa.scalar(None, values.type), values)


def shorten(text: str) -> str:
    """Return the text in quotes, cut to the length of a line, with control characters spelled out."""
    return repr(text if len(text) <= SHOWN_CHARACTERS else text[: SHOWN_CHARACTERS - 3] + "...")


def check_width(name: str, n_columns: int) -> None:
    """Refuse a table with more columns than any model takes."""
    if n_columns > MAX_COLUMNS:
        raise BadInput(
            f"{name} has too many columns",
            found=f"{n_columns:,} columns, the limit is {MAX_COLUMNS:,}",
            hint="transpose the table if rows and columns are swapped; otherwise keep the columns that matter",
        )


def available_memory() -> int:
    """Return the bytes that this process may use: those of the machine or of the container."""
    limits = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    with contextlib.suppress(OSError, ValueError):  # no container, or one without a limit ("max")
        limits.append(int(_CGROUP_LIMIT.read_text()))
    return min(limits)


def check_memory(name: str, n_bytes: int, *, hint: str) -> None:
    """Refuse an input that declares more bytes than this process can hold."""
    available = available_memory()
    if n_bytes > available:
        raise BadInput(
            f"{name} does not fit into memory",
            found=f"at least {n_bytes / 1e9:,.1f} GB needed, {available / 1e9:,.1f} GB available",
            hint=hint,
        )
