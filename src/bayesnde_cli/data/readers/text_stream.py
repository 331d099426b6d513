"""A text source as blocks of UTF-8 bytes, each made of whole records: what the parser reads one by one."""

import codecs
import re
from collections.abc import Callable, Iterator
from typing import BinaryIO

from bayesnde_cli.data.readers.source import Source
from bayesnde_cli.errors import BadInput

BLOCK_BYTES = 8 << 20
MAX_RECORD_BYTES = 4 * BLOCK_BYTES  # past this a quote has been left open


class OpenQuote(Exception):
    """A record that does not end; carries its first bytes."""

    def __init__(self, start: bytes) -> None:
        super().__init__(start)
        self.start = start


def record_blocks(chunks: Iterator[str], delimiter: str, quote: str) -> Iterator[bytes]:
    """The text in blocks that end with a record; `OpenQuote` where a record has no end."""
    end_of_records = _end_of_records(delimiter, quote)
    ready = held = b""
    for chunk in chunks:
        held += chunk.encode()
        end = end_of_records(held)
        if end:
            if ready:
                yield ready
            ready, held = held[:end], held[end:]
        elif len(held) > MAX_RECORD_BYTES:
            break
    last = held + b"\n" if held else b""  # the last line may lack its end
    is_open = end_of_records(last) < len(last)
    ready += b"" if is_open else last
    if ready:
        yield ready
    if is_open:
        raise OpenQuote(held)


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


def whole_lines(chunks: Iterator[str], rewrite: Callable[[str], str]) -> Iterator[str]:
    """The text with whole lines passed through `rewrite`."""
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


def _end_of_records(delimiter: str, quote: str) -> Callable[[bytes], int]:
    """The function that finds where the last whole record of a text ends, line breaks in quotes left alone.

    A quote counts only at the start of a cell; all repeats are possessive, so a match takes linear time.
    """
    if not quote:
        return lambda text: max(text.rfind(b"\n"), text.rfind(b"\r")) + 1
    d, q = re.escape(delimiter), re.escape(quote)
    line_end = r"(?:\r\n?|\n)"
    quoted = rf"{q}[^{q}]*+(?:{q}{q}[^{q}]*+)*+{q}[^{d}\r\n]*+"
    cell = rf"(?:{quoted}|(?!{q})[^{d}\r\n]*+)"
    record = rf"{cell}(?:{d}{cell})*+{line_end}"
    whole_records = re.compile(rf"(?:[^{q}\r\n]*+{line_end}|{record})*+".encode())

    def end_of_records(text: bytes) -> int:
        if quote.encode() not in text:
            return max(text.rfind(b"\n"), text.rfind(b"\r")) + 1
        match = whole_records.match(text)
        return match.end() if match else 0

    return end_of_records
