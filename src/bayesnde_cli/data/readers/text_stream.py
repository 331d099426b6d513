"""A text source as blocks of UTF-8 bytes, each made of whole records: what the parser reads one by one."""

import codecs
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import BinaryIO

from bayesnde_cli.data.readers.source import Source
from bayesnde_cli.data.readers.table import shown
from bayesnde_cli.errors import BadInput

BLOCK_BYTES = 8 << 20
MAX_RECORD_BYTES = 4 * BLOCK_BYTES
MAX_SHOWN_BYTES = 400  # enough for the characters that a message shows
HALF_CHARACTER = re.compile("[\ud800-\udfff]")  # some encodings, such as utf-7, deliver surrogates on their own


class EndlessRecord(Exception):
    """A record that runs to the end of the text or past all bounds; carries its bytes."""

    def __init__(self, record: bytes, *, is_in_quotes: bool) -> None:
        super().__init__(record)
        self.record = record
        self.is_in_quotes = is_in_quotes


@dataclass(frozen=True)
class RecordLayout:
    """What decides where a record ends."""

    delimiter: str
    quote: str
    is_padded: bool = False  # blanks may stand before a quote that opens a cell


def record_blocks(chunks: Iterator[str], layout: RecordLayout) -> Iterator[bytes]:
    """The text in blocks that end with a record; `EndlessRecord` where one has no end."""
    blocks = _record_blocks(chunks, _end_of_records(layout))
    if not layout.is_padded:
        return blocks
    padded_cell = re.compile(_padded_cell(layout.delimiter, layout.quote).pattern.encode())
    return (padded_cell.sub(rb"\2", block) for block in blocks)


def _record_blocks(chunks: Iterator[str], end_of_records: Callable[[bytes], int]) -> Iterator[bytes]:
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
    is_in_quotes = end_of_records(last) < len(last)
    is_endless = is_in_quotes or len(held) > MAX_RECORD_BYTES
    ready += b"" if is_endless else last
    if ready:
        yield ready
    if is_endless:
        raise EndlessRecord(held, is_in_quotes=is_in_quotes)


def endless(place: str, error: EndlessRecord) -> BadInput:
    """What the user is told about a record without end."""
    start = shown(error.record[:MAX_SHOWN_BYTES].decode(errors="replace").rstrip())
    if error.is_in_quotes:
        return BadInput(
            f"{place} opens a quote that is not closed",
            found=f"row: {start}",
            hint='close it; if the character does not quote cells here, use `--quote ""`',
        )
    return BadInput(
        f"{place} has no end",
        found=[f"row: {start}", f"more than {MAX_RECORD_BYTES >> 20} MiB without a line break"],
        hint="give a text file with one row per line",
    )


def decoded(source: Source, stream: BinaryIO, encoding: str, *, chunk_bytes: int = BLOCK_BYTES) -> Iterator[str]:
    """The text of the stream in chunks, without byte order mark; refuses what is no text."""
    decoder = codecs.getincrementaldecoder(encoding)()
    is_first = True
    while True:
        raw = stream.read(chunk_bytes)
        try:
            text = decoder.decode(raw, final=not raw)
        except UnicodeError as error:
            if b"\0" in raw and not encoding.startswith("utf-16"):
                raise _binary(source) from error
            wrong = error.object[error.start : error.start + 8] if isinstance(error, UnicodeDecodeError) else raw[:8]
            raise BadInput(
                f"{source.name} is not {encoding} text",
                found=f"bytes: {wrong!r}",
                hint="set `--encoding`, for example `--encoding latin-1`",
            ) from error
        if "\0" in text:
            raise _binary(source)
        if half := HALF_CHARACTER.search(text):
            raise BadInput(
                f"{source.name} is not {encoding} text",
                found=f"half a character: {half[0]!r}",
                hint="set `--encoding`, for example `--encoding utf-8`",
            )
        if is_first:
            text = text.removeprefix("\ufeff")
            is_first = False
        if text:
            yield text
        if not raw:
            return


def _binary(source: Source) -> BadInput:
    return BadInput(
        f"{source.name} is not text",
        found="NUL bytes, as in binary files",
        hint="give CSV, Parquet, NPY, NPZ, MAT, IDX or ARFF; for UTF-16 text set `--encoding utf-16-le`",
    )


def one_tab_between(quote: str) -> Callable[[str], str]:
    """A rewrite of lines whose cells stand apart by runs of blanks: one tab between cells, none around them."""
    blanks = re.compile(r"[ \t]+")
    edges = re.compile(r"^\t|\t$", re.MULTILINE)
    cell = re.compile(rf"{_quoted(quote)}(?=[ \t]|$)|[^ \t]+" if quote else r"[^ \t]+")

    def rewrite(lines: str) -> str:
        lines = lines.replace("\r\n", "\n").replace("\r", "\n")
        if quote and quote in lines:
            return "\n".join("\t".join(cell.findall(line)) for line in lines.split("\n"))
        return edges.sub("", blanks.sub("\t", lines))

    return rewrite


def is_padded(text: str, delimiter: str, quote: str) -> bool:
    """Whether blanks stand before quotes that open cells: no parser sees a quote behind blanks."""
    return bool(quote) and any(match[1] for match in _padded_cell(delimiter, quote).finditer(text))


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
        if len(held) > MAX_RECORD_BYTES:
            raise EndlessRecord(held[:MAX_SHOWN_BYTES].encode(), is_in_quotes=False)
    if held:
        yield rewrite(held)


def _end_of_records(layout: RecordLayout) -> Callable[[bytes], int]:
    """The function that finds where the last whole record of a text ends, line breaks in quotes left alone.

    A quote counts only at the start of a cell; all repeats are possessive, so a match takes linear time.
    """
    if not layout.quote:
        return _after_last_line_break
    d, q = re.escape(layout.delimiter), re.escape(layout.quote)
    opening = f"{_blanks(layout.delimiter)}*+" if layout.is_padded else ""
    line_end = r"(?:\r\n?|\n)"
    cell = rf"(?:{opening}{_quoted(layout.quote)}[^{d}\r\n]*+|(?!{opening}{q})[^{d}\r\n]*+)"
    record = rf"{cell}(?:{d}{cell})*+{line_end}"
    whole_records = re.compile(rf"(?:[^{q}\r\n]*+{line_end}|{record})*+".encode())

    def end_of_records(text: bytes) -> int:
        if layout.quote.encode() not in text:
            return _after_last_line_break(text)
        match = whole_records.match(text)
        return match.end() if match else 0

    return end_of_records


def _padded_cell(delimiter: str, quote: str) -> re.Pattern[str]:
    """Blanks at the start of a cell, possibly none, and the whole of the quoted cell behind them."""
    # cells without blanks are matched, too, so that nothing inside their quotes is
    return re.compile(rf"(?<![^{re.escape(delimiter)}\r\n])({_blanks(delimiter)}*+)({_quoted(quote)})")


def _after_last_line_break(text: bytes) -> int:
    return max(text.rfind(b"\n"), text.rfind(b"\r")) + 1


def _quoted(quote: str) -> str:
    q = re.escape(quote)
    return rf"{q}[^{q}]*+(?:{q}{q}[^{q}]*+)*+{q}"


def _blanks(delimiter: str) -> str:
    return "[ ]" if delimiter == "\t" else r"[ \t]"
