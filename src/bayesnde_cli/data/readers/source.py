"""Where the bytes come from: a file, a gzip file, a pipe, or standard input; always readable again."""

import gzip
import io
import os
import shutil
import sys
import tempfile
import weakref
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from bayesnde_cli.data.readers.bounds import refuse_bomb
from bayesnde_cli.errors import BadInput, escaped

GZIP_MAGIC = b"\x1f\x8b"
GZIP_ERRORS = (EOFError, gzip.BadGzipFile, zlib.error)
STDIN_NAME = "standard input"


class Source:
    """One input of the user: its bytes, unpacked if they are gzip, and how messages speak of it."""

    def __init__(self, path: Path, name: str, *, is_one_of_several: bool = False) -> None:
        self.path = path
        self.name = name
        self.is_one_of_several = is_one_of_several
        with self._raw() as stream:
            first = stream.read(len(GZIP_MAGIC))
        if not first:
            raise BadInput(f"{self.name} is empty", found="0 bytes", hint="give a file that holds a table")
        self.is_gzip = first == GZIP_MAGIC

    @contextmanager
    def open(self) -> Iterator[BinaryIO]:
        """The unpacked bytes from the start; damage of the gzip is told as such, wherever it shows."""
        with self._raw() as raw:
            if not self.is_gzip:
                yield raw
                return
            with gzip.open(raw) as unpacked, io.BufferedReader(_Counted(self, unpacked)) as stream:
                try:
                    yield stream
                except GZIP_ERRORS as error:
                    raise self.damaged("gzip file", error) from error

    def head(self, n_bytes: int) -> bytes:
        """The first bytes, unpacked."""
        with self.open() as stream:
            return stream.read(n_bytes)

    def size(self) -> int:
        """Bytes on disk."""
        return self.path.stat().st_size

    def row(self, number: int) -> str:
        """How a message names a row: 1-based, the header not counted, with the file if there are several."""
        return f"row {number} of {self.name}" if self.is_one_of_several else f"row {number}"

    def damaged(self, what: str, found: object) -> BadInput:
        """The error for bytes that end too early or contradict their own header."""
        return BadInput(
            f"{self.name} is a truncated or damaged {what}",
            found=escaped(str(found)),
            hint="copy or download the file again",
        )

    @contextmanager
    def _raw(self) -> Iterator[BinaryIO]:
        try:
            stream = self.path.open("rb")
        except OSError as error:
            raise BadInput(
                f"cannot read {self.name}",
                found=error.strerror or str(error),
                hint="check the file's permissions",
            ) from error
        with stream:
            yield stream


class _Counted(io.RawIOBase):
    """Unpacked bytes, counted: a gzip file that unpacks without end is refused on the way."""

    def __init__(self, source: Source, unpacked: gzip.GzipFile) -> None:
        self._source, self._unpacked = source, unpacked
        self._n_packed, self._n_unpacked = source.size(), 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: "memoryview | bytearray") -> int:  # type: ignore[override]
        n_read = self._unpacked.readinto(buffer)
        self._n_unpacked += n_read
        hint = "if it is what it seems to be, unpack it with `gunzip` and give the result"
        refuse_bomb(self._source.name, self._n_packed, self._n_unpacked, hint=hint)
        return n_read


def source_of(path: Path | str, *, stdin: BinaryIO | None, is_one_of_several: bool = False) -> Source:
    """The source behind a path of the command line; "-" is standard input."""
    if str(path) == "-":
        spooled = _spooled(sys.stdin.buffer if stdin is None else stdin)
        return _owning(spooled, STDIN_NAME, is_one_of_several=is_one_of_several)
    path = Path(path)
    name = escaped(str(path))
    if not path.exists():
        raise BadInput(f"{name} does not exist", found=f"no such file in {_folder(path)}", hint="check the path")
    if path.is_file():
        return Source(path, name, is_one_of_several=is_one_of_several)
    with path.open("rb") as pipe:  # a pipe can be read only once
        spooled = _spooled(pipe)
    return _owning(spooled, name, is_one_of_several=is_one_of_several)


def _folder(path: Path) -> str:
    folder = path.parent
    return "the working directory" if folder == Path() else escaped(str(folder))


def _spooled(stream: BinaryIO) -> Path:
    handle, name = tempfile.mkstemp(prefix="bayesnde-")
    try:
        with os.fdopen(handle, "wb") as spool:
            shutil.copyfileobj(stream, spool, 1 << 20)
    except BaseException:
        os.unlink(name)
        raise
    return Path(name)


def _owning(spooled: Path, name: str, *, is_one_of_several: bool) -> Source:
    try:
        source = Source(spooled, name, is_one_of_several=is_one_of_several)
    except BadInput:
        spooled.unlink()
        raise
    weakref.finalize(source, spooled.unlink, missing_ok=True)
    return source
