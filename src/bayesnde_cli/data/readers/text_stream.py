"""A text source as the stream of UTF-8 bytes that the parser reads, checked and closed by an end row."""

import codecs
import re
from collections.abc import Callable, Iterator
from typing import BinaryIO

from bayesnde_cli.data.readers.source import Source
from bayesnde_cli.errors import BadInput

BLOCK_BYTES = 16 << 20
# The stream ends with a row of this cell. No text may hold NUL, so only an open quote can swallow that row.
END_CELL = "\0end"


class TextStream:
    """File-like UTF-8 bytes of decoded text, whole lines passed through `rewrite`, then the end row."""

    def __init__(self, chunks: Iterator[str], end_row: str, rewrite: Callable[[str], str] | None) -> None:
        self._chunks = _whole_lines(chunks, rewrite) if rewrite else chunks
        self._end: str | None = f"\n{end_row}\n"
        self._ready = bytearray()
        self.closed = False

    def readable(self) -> bool:
        return True

    def close(self) -> None:
        self.closed = True

    def read(self, n_bytes: int) -> bytes:
        """The next `n_bytes` bytes, fewer only at the end."""
        while len(self._ready) < n_bytes and self._end is not None:
            chunk = next(self._chunks, None)
            if chunk is None:
                chunk, self._end = self._end, None
            self._ready += chunk.encode()
        taken = bytes(self._ready[:n_bytes])
        del self._ready[:n_bytes]
        return taken


def decoded(source: Source, stream: BinaryIO, encoding: str, *, chunk_bytes: int = BLOCK_BYTES) -> Iterator[str]:
    """The text of the stream in chunks, without byte order mark; refuses what is no text."""
    decoder = codecs.getincrementaldecoder(encoding)()
    is_first = True
    while True:
        raw = stream.read(chunk_bytes)
        try:
            text = decoder.decode(raw, final=not raw)
        except UnicodeDecodeError as error:
            wrong = error.object[error.start : error.start + 8]
            raise BadInput(
                f"{source.name} is not {encoding} text",
                found=f"bytes: {wrong!r}",
                hint="set `--encoding`, for example `--encoding latin-1`",
            ) from error
        if "\0" in text:
            raise BadInput(
                f"{source.name} is not text",
                found="NUL bytes, as in binary files",
                hint="give CSV, Parquet, NPY, NPZ, MAT, IDX or ARFF; for UTF-16 text set `--encoding utf-16`",
            )
        if is_first:
            text = text.removeprefix("\ufeff")
            is_first = False
        if text:
            yield text
        if not raw:
            return


def one_tab_between(quote: str) -> Callable[[str], str]:
    """A rewrite of lines whose cells stand apart by runs of blanks: one tab between cells, none around them."""
    blanks = re.compile(r"[ \t]+")
    edges = re.compile(r"^\t|\t$", re.MULTILINE)
    mark = re.escape(quote)
    cell = re.compile(rf"{mark}(?:[^{mark}]|{mark}{mark})*{mark}(?=[ \t]|$)|[^ \t]+" if quote else r"[^ \t]+")

    def rewrite(lines: str) -> str:
        lines = lines.replace("\r\n", "\n").replace("\r", "\n")
        if quote and quote in lines:
            return "\n".join("\t".join(cell.findall(line)) for line in lines.split("\n"))
        return edges.sub("", blanks.sub("\t", lines))

    return rewrite


def without_padding(delimiter: str, quote: str) -> Callable[[str], str]:
    """A rewrite that drops blanks between a delimiter and a quote, behind which no parser sees the quote."""
    mark = re.escape(quote)
    blanks = " " if delimiter == "\t" else r"[ \t]"
    # whole quoted cells are matched first and kept: what stands inside them is theirs
    pattern = re.compile(
        rf"({mark}(?:[^{mark}\r\n]|{mark}{mark})*{mark})|(?:^|(?<={re.escape(delimiter)})){blanks}+(?={mark})",
        re.MULTILINE,
    )
    return lambda lines: pattern.sub(lambda match: match.group(1) or "", lines)


def _whole_lines(chunks: Iterator[str], rewrite: Callable[[str], str]) -> Iterator[str]:
    held = ""
    for chunk in chunks:
        held += chunk
        # a \r at the very end may be half of a \r\n
        end = max(held.rfind("\n"), held.rfind("\r", 0, len(held) - 1)) + 1
        if end:
            yield rewrite(held[:end])
            held = held[end:]
    if held:
        yield rewrite(held)
