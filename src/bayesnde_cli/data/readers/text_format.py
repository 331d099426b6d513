"""How a delimited text is laid out: what the user says about it, and the rest found from a sample."""

import csv
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from bayesnde_cli.data.readers.bounds import refuse_columns
from bayesnde_cli.data.readers.cells import MISSING_TOKENS, is_number
from bayesnde_cli.data.readers.delimiter import find_delimiter, find_quote
from bayesnde_cli.data.readers.encoding import encoding_of
from bayesnde_cli.data.readers.preamble import preamble_of
from bayesnde_cli.data.readers.records import WHITE_SPACE, records_of, sample_of
from bayesnde_cli.data.readers.source import Source
from bayesnde_cli.data.readers.table import SHOWN_CHARACTERS, duplicates, listed, made_up_names, shown
from bayesnde_cli.data.readers.text_stream import (
    MAX_RECORD_BYTES,
    MAX_SHOWN_BYTES,
    EndlessRecord,
    decoded,
    endless,
    is_padded,
    one_tab_between,
)
from bayesnde_cli.errors import BadInput

SAMPLE_BYTES = 4 << 20

LINE_BREAK = re.compile(r"\r\n|\r|\n")
DECIMAL_COMMA = re.compile(r"[+-]?[0-9]*,[0-9]+(?:[eE][+-]?[0-9]+)?")
DECIMAL_POINT = re.compile(r"[+-]?[0-9]*\.[0-9]+(?:[eE][+-]?[0-9]+)?")


@dataclass(frozen=True)
class TextFormat:
    """What the user says about a text file; None is found from its content."""

    delimiter: str | None = None  # one character; " " stands for runs of white space
    quote: str | None = None  # one character; "" for none
    header: bool | None = None
    decimal: str | None = None  # "." or ","
    encoding: str | None = None
    missing: tuple[str, ...] = ()  # more tokens that mean a missing cell

    def __post_init__(self) -> None:
        _require_ascii_character("--delimiter", self.delimiter)
        if self.quote:
            _require_ascii_character("--quote", self.quote)
        if self.decimal not in (None, ".", ","):
            raise BadInput(
                f"{self.decimal!r} is no decimal mark", found="--decimal", hint="use `.` or `,` with --decimal"
            )
        if self.delimiter is not None and self.delimiter == self.quote:
            raise BadInput(
                f"{self.quote!r} cannot both separate and quote cells",
                found="--delimiter and --quote are the same",
                hint="change one of the two",
            )
        if self.decimal == "," == self.delimiter:
            raise BadInput(
                "the comma cannot separate both cells and decimals",
                found="--delimiter , and --decimal ,",
                hint="change one of the two",
            )


@dataclass(frozen=True)
class TextLayout:
    """Everything needed to read a delimited text."""

    names: tuple[str, ...]
    delimiter: str  # as it stands in the stream after `rewrite`
    quote: str
    has_header: bool
    decimal: str
    encoding: str
    missing: tuple[str, ...]
    description: str
    is_padded: bool = False  # blanks may stand before a quote that opens a cell
    # Turns whole lines into lines that the parser can read: white space into tabs, ARFF into CSV.
    rewrite: Callable[[str], str] | None = None
    n_skipped_bytes: int = 0  # what stands before the first row, such as the header of an ARFF file


def find_layout(source: Source, text: TextFormat) -> TextLayout:
    """The layout of a delimited text from its first lines; what `text` says is taken as it is."""
    encoding = encoding_of(source, text.encoding)
    n_skipped_bytes, n_skipped_lines, declared = preamble_of(source, encoding)
    sample, is_whole = _sample(source, encoding, n_skipped_bytes)
    asked = text.delimiter or declared
    quote = find_quote(sample) if text.quote is None else text.quote
    quote = "" if quote == asked else quote
    delimiter = asked or find_delimiter(sample, quote, text.decimal)
    records = records_of(sample, delimiter, quote)
    if not records:
        raise _no_record(source, sample)
    refuse_columns(source.name, len(records[0]))
    decimal = text.decimal or _decimal(records, delimiter)
    has_header = _has_header(records, decimal) if text.header is None else text.header
    if has_header and is_whole and sum(bool(line.strip()) for line in sample.split("\n")) == 1:
        raise BadInput(
            f"{source.name} holds a header and no rows",
            found=f"header: {listed(records[0])}",
            hint="give a file with rows; if this line is data, use `--header no`",
        )
    return TextLayout(
        names=_names(source, records[0]) if has_header else made_up_names(len(records[0])),
        delimiter="\t" if delimiter == WHITE_SPACE else delimiter,
        quote=quote,
        has_header=has_header,
        decimal=decimal,
        encoding=encoding,
        missing=(*MISSING_TOKENS, *text.missing),
        description=_description(source, delimiter, records[0], has_header, decimal, encoding, n_skipped_lines),
        is_padded=delimiter != WHITE_SPACE and is_padded(sample, delimiter, quote),
        rewrite=one_tab_between(quote) if delimiter == WHITE_SPACE else None,
        n_skipped_bytes=n_skipped_bytes,
    )


def _sample(source: Source, encoding: str, n_skipped_bytes: int) -> tuple[str, bool]:
    """The first lines of the text, two of them at least, and whether that is all of it."""
    text, is_whole = "", True
    with source.open() as stream:
        stream.read(n_skipped_bytes)
        for chunk in decoded(source, stream, encoding, chunk_bytes=SAMPLE_BYTES):
            if len(LINE_BREAK.findall(text)) > 1:
                is_whole = False
                break
            text += chunk
            start = max(text.rfind("\n"), text.rfind("\r")) + 1
            if len(text) - start > MAX_RECORD_BYTES:
                record = EndlessRecord(text[start : start + MAX_SHOWN_BYTES].encode(), is_in_quotes=False)
                raise endless(f"the {'second' if start else 'first'} row of {source.name}", record)
    return sample_of(text, is_whole=is_whole), is_whole


def _no_record(source: Source, sample: str) -> BadInput:
    if not sample.strip():
        return BadInput(f"{source.name} is empty", found="no text", hint="give a file that holds a table")
    return BadInput(
        f"{source.name} begins with a cell that is too long",
        found=[f"text: {shown(sample.lstrip())}", f"a cell has {csv.field_size_limit():,} characters at most"],
        hint='give a table of numbers and words; if a quote is not closed, close it, or use `--quote ""`',
    )


def _decimal(records: Sequence[Sequence[str]], delimiter: str) -> str:
    if delimiter == ",":
        return "."
    cells = [cell for record in records for cell in record]
    has_comma = any(DECIMAL_COMMA.fullmatch(cell) for cell in cells)
    return "," if has_comma and not any(DECIMAL_POINT.fullmatch(cell) for cell in cells) else "."


def _has_header(records: Sequence[Sequence[str]], decimal: str) -> bool:
    first, below = records[0], records[1:]
    # A name may be empty: tables with an unnamed index column are common.
    if not any(first) or any(is_number(cell, decimal) for cell in first):
        return False
    columns = [[record[index] for record in below if index < len(record)] for index in range(len(first))]
    filled = [[cell for cell in column if cell not in MISSING_TOKENS] for column in columns]
    if any(2 * sum(is_number(cell, decimal) for cell in column) > len(column) for column in filled):
        return True
    return not any(name in column for name, column in zip(first, columns, strict=True) if name)


def _names(source: Source, header: Sequence[str]) -> tuple[str, ...]:
    """The names of the header; an empty one becomes c1, c2, ... by its position."""
    names = tuple(name or made_up for name, made_up in zip(header, made_up_names(len(header)), strict=True))
    again = duplicates(names)
    if again:
        raise BadInput(
            f"{source.name} has several columns of one name",
            found=f"more than once: {listed(again)}",
            hint="rename them; if the first line is data, use `--header no`",
        )
    return names


def _description(
    source: Source, delimiter: str, first: Sequence[str], has_header: bool, decimal: str, encoding: str, n_skipped: int
) -> str:
    words = {WHITE_SPACE: "separated by white space", "\t": "separated by tabs"}
    layout = words.get(delimiter, f"separated by {delimiter!r}") if len(first) > 1 else "one column"
    # Without a header the first row is shown: whoever sees names there knows what to do.
    some = ", ".join(cell if len(cell) <= SHOWN_CHARACTERS else f"{cell[:SHOWN_CHARACTERS]}…" for cell in first[:3])
    header = "header" if has_header else f"no header (first row: {some}{', …' * (len(first) > 3)})"
    parts = ["CSV", layout, header]
    parts += [f"{n_skipped} comment line{'s' * (n_skipped != 1)} skipped"] if n_skipped else []
    parts += ["decimal comma"] if decimal == "," else []
    parts += [encoding, *(["gzip"] if source.is_gzip else [])]
    return ", ".join(parts)


def _require_ascii_character(option: str, character: str | None) -> None:
    if character is None or (len(character) == 1 and character.isascii() and character not in "\r\n\0"):
        return
    raise BadInput(
        f"{shown(character)} cannot be used with {option}",
        found="not one ASCII character",
        hint=f"give one character, such as `{option} ';'`",
    )
