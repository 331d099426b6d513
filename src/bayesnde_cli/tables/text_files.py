"""Delimited text as a table: its layout is detected, its rows are parsed in blocks and converted batch by batch."""

import codecs
import csv
import io
import re
import shlex
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from typing import BinaryIO

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

from bayesnde_cli import stopping
from bayesnde_cli.errors import BadInput, escaped
from bayesnde_cli.tables import sources
from bayesnde_cli.tables.columns import listed, quoted
from bayesnde_cli.tables.sources import CellType, Source, Table, TextFormat, shorten

BLOCK_BYTES = 8 << 20  # text is read in blocks of this size
MAX_RECORD_BYTES = 4 * BLOCK_BYTES
TRIED_BYTES = 64 << 20  # beyond this, a byte that is not UTF-8 is an error rather than a sign of cp1252
PREAMBLE_BYTES = 1 << 20
SAMPLE_RECORDS = 100

WHITE_SPACE = " "  # as a delimiter: any run of blanks and tabs
DELIMITERS = ("\t", ";", "|", ",", WHITE_SPACE)  # in order of preference
MIN_AGREEMENT = 0.5  # a few broken rows must not hide the delimiter: they are named when the rows are read
MISSING_TOKENS = ("", "NA", "N/A", "#N/A", "<NA>", "na", "n/a", "NaN", "nan", "null", "NULL", "None", "?")

NUMBER = r"[+-]?(?:(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?|(?i:inf|infinity|nan))"
_NUMBER = re.compile(NUMBER)
_DECIMAL_COMMA = re.compile(r"[+-]?[0-9]*,[0-9]+(?:[eE][+-]?[0-9]+)?")
_DECIMAL_POINT = re.compile(r"[+-]?[0-9]*\.[0-9]+(?:[eE][+-]?[0-9]+)?")
_SINGLE_QUOTED = re.compile(r"(?:^|(?<=[\t;|, ]))'[^'\r\n]*'(?=[\t;|, \r\n]|$)", re.MULTILINE)
_SEPARATOR = re.compile(rb"sep=(.)\s*", re.IGNORECASE)  # Excel's first line

# `stopping` handles signals. Arrow's own handlers would end a read in progress with an error of Arrow.
pa.enable_signal_handlers(False)


@dataclass(frozen=True)
class TextLayout:
    """Everything that is needed to read a delimited text."""

    names: tuple[str, ...]
    delimiter: str  # in the text after `rewrite`
    quote: str
    has_header: bool
    decimal: str
    encoding: str
    missing: tuple[str, ...]
    description: str
    rewrite: Callable[[str], str] | None = None  # turns whole lines into CSV: white space into tabs, ARFF rows
    n_skipped_bytes: int = 0  # before the first row: comments, or the header of an ARFF file


class TextTable(Table):
    """A delimited text file."""

    def __init__(self, source: Source, layout: TextLayout) -> None:
        self.source = source
        self.layout = layout
        self.names = layout.names
        self.description = layout.description
        self.has_own_names = layout.has_header
        self._missing = pa.array(layout.missing)
        self._kinds: dict[str, CellType | None] = {}

    def kinds(self, columns: Sequence[str]) -> dict[str, CellType | None]:
        """Return what the columns hold, from the first batch in which they have any cell."""
        unknown = [name for name in columns if name not in self._kinds]
        if unknown:
            found: dict[str, CellType | None] = dict.fromkeys(unknown)
            for _, batch in self._read_cells(unknown):
                for name, cells in zip(unknown, batch, strict=True):
                    found[name] = found[name] or self._detect_kind(cells)
                if None not in found.values():
                    break
            self._kinds |= found
        return {name: self._kinds[name] for name in columns}

    def batches_as(self, kinds: Mapping[str, CellType]) -> Iterator[pa.RecordBatch]:
        for first_row, batch in self._read_cells(list(kinds)):
            columns = [
                self.convert(name, cells, kind, first_row)
                for (name, kind), cells in zip(kinds.items(), batch, strict=True)
            ]
            yield pa.RecordBatch.from_arrays(columns, list(kinds))

    def convert(self, name: str, cells: pa.Array, kind: CellType, first_row: int) -> pa.Array:
        """Return cells of a column, missing ones null, as numbers or text; refuse a cell that is not a number."""
        if kind == "text":
            return sources.normalise_words(cells)
        plain = self._with_decimal_point(cells)
        try:
            return sources.nan_as_null(plain.cast(pa.float64()))
        except pa.ArrowInvalid as error:
            is_number = pc.fill_null(pc.match_substring_regex(plain, f"^(?:{NUMBER})$"), True)
            index = pc.index(is_number, False).as_py()
            cell = cells[index].as_py()
            raise BadInput(
                f"column '{name}' holds text in row {first_row + index} of {self.source.name}",
                found=f"cell: {shorten(cell)}",
                hint=f"correct the cell; or use `--missing-token {shlex.quote(escaped(cell[:20]))}`, "
                f"`--drop {quoted(name)}`, or `--type {quoted(f'{name}=categorical')}`",
            ) from error

    def _detect_kind(self, cells: pa.Array) -> CellType | None:
        """Return number if more than half of the cells that are not missing are numbers; None if all are missing."""
        n_filled = len(cells) - cells.null_count
        if not n_filled:
            return None
        is_number = pc.match_substring_regex(self._with_decimal_point(cells), f"^(?:{NUMBER})$")
        return "number" if 2 * pc.sum(is_number).as_py() > n_filled else "text"

    def _with_decimal_point(self, cells: pa.Array) -> pa.Array:
        if self.layout.decimal == ".":
            return cells
        # "1.234" with a decimal comma may mean a thousand: better not a number than the wrong one
        return pc.replace_substring(pc.replace_substring(cells, ".", "!"), ",", ".")

    def _read_cells(self, columns: Sequence[str]) -> Iterator[tuple[int, list[pa.Array]]]:
        """Return batches of stripped cells, missing ones null, each with the number of its first row."""
        next_row = 1 - int(self.layout.has_header)
        with self.source.open() as raw:
            raw.read(self.layout.n_skipped_bytes)
            try:
                for block in split_blocks(decode(self.source, raw, self.layout.encoding), self.layout):
                    stopping.check()
                    parsed = self._parse_block(block, columns, next_row) if block.strip(b" \r\n") else []
                    for batch in parsed:
                        if next_row == 0:
                            batch, next_row = batch.slice(1), 1
                        for start in range(0, batch.num_rows, sources.MAX_BATCH_ROWS):
                            piece = batch.slice(start, sources.MAX_BATCH_ROWS)
                            yield next_row, [self._clean(cells) for cells in piece.columns]
                            next_row += piece.num_rows
            except EndlessRecord as error:
                place = f"row {next_row}" if next_row else "the header"
                raise BadInput(
                    f"{place} of {self.source.name} does not end",
                    found=f"row: {shorten(error.args[0])}",
                    hint='close the quote, or use `--quote ""` if cells are not quoted; give one row per line',
                ) from error
        if next_row <= 1:
            raise BadInput(
                f"{self.source.name} holds no rows",
                found=f"columns: {listed(self.names)}",
                hint="give a file with rows; if the first line is data, use `--header no`",
            )

    def _clean(self, cells: pa.Array) -> pa.Array:
        stripped = pc.utf8_trim_whitespace(cells)
        return pc.if_else(pc.is_in(stripped, value_set=self._missing), pa.scalar(None, pa.string()), stripped)

    def _parse_block(self, block: bytes, columns: Sequence[str], first_row: int) -> list[pa.RecordBatch]:
        """Return the records of a block with all cells as strings.

        Blocks are parsed one by one from memory: pyarrow's streaming reader reads Python streams in a thread of its
        own, which can lock up or abort when an error ends the reading early.
        """
        fields = {name: f"f{index}" for index, name in enumerate(self.names)}  # names that pyarrow gives no meaning
        errors: list[BadInput] = []
        n_blank = 0

        def handle_wrong_row(row: pyarrow.csv.InvalidRow) -> str:
            nonlocal n_blank
            if not row.text.strip():  # a line of blanks is not a row
                n_blank += 1
                return "skip"
            place = f"row {first_row + row.number - 1 - n_blank} of {self.source.name}"
            cells = "cell" if row.actual_columns == 1 else "cells"
            what = f"{place} has {row.actual_columns} {cells} instead of {row.expected_columns}"
            hint = "correct the row, or set `--delimiter` and `--quote`"
            errors.append(BadInput(what, found=f"row: {shorten(row.text)}", hint=hint))
            return "error"

        with self.source.refuse_damage("text file", pa.ArrowInvalid):
            try:
                table = pyarrow.csv.read_csv(
                    pa.BufferReader(block),
                    # with several threads, the parser does not number the rows that it refuses
                    read_options=pyarrow.csv.ReadOptions(
                        use_threads=False, block_size=len(block), column_names=list(fields.values())
                    ),
                    parse_options=pyarrow.csv.ParseOptions(
                        delimiter=self.layout.delimiter,
                        quote_char=self.layout.quote or False,
                        newlines_in_values=bool(self.layout.quote),
                        invalid_row_handler=handle_wrong_row,
                    ),
                    convert_options=pyarrow.csv.ConvertOptions(
                        column_types=dict.fromkeys(fields.values(), pa.string()),
                        include_columns=[fields[name] for name in columns],
                    ),
                )
            except pa.ArrowInvalid as error:
                raise (errors[0] if errors else error) from error
        return [batch for batch in table.to_batches() if batch.num_rows]


class EndlessRecord(Exception):
    """A record that runs to the end of the text in an open quote, or exceeds `MAX_RECORD_BYTES`; carries its text."""


def split_blocks(chunks: Iterable[str], layout: TextLayout) -> Iterator[bytes]:
    """Cut the text into blocks that end with a record; blanks between a delimiter and an opening quote are dropped."""
    chunks = chunks if layout.rewrite is None else _rewrite_lines(chunks, layout.rewrite)
    if not layout.quote:
        return _split_blocks(chunks, _after_last_line_break)
    # possessive repeats: a match takes linear time
    d, q = re.escape(layout.delimiter), re.escape(layout.quote)
    line_end = r"(?:\r\n?|\n)"
    cell = rf"(?: *+{_quoted_cell(layout.quote)}[^{d}\r\n]*+|(?! *+{q})[^{d}\r\n]*+)"
    records = re.compile(rf"(?:[^{q}\r\n]*+{line_end}|{cell}(?:{d}{cell})*+{line_end})*+".encode())
    # quoted cells without blanks match as well, so that nothing inside their quotes does
    padded = re.compile(rf"(?<![^{d}\r\n]) *+({_quoted_cell(layout.quote)})".encode())
    quote = layout.quote.encode()

    def find_end(text: bytes) -> int:
        match = records.match(text) if quote in text else None
        return match.end() if match else _after_last_line_break(text)

    blocks = _split_blocks(chunks, find_end)
    return (padded.sub(rb"\1", block) if b" " + quote in block else block for block in blocks)


def _split_blocks(chunks: Iterable[str], find_end: Callable[[bytes], int]) -> Iterator[bytes]:
    """Cut the text into blocks; `find_end` returns the end of the last whole record, ignoring line breaks in quotes."""
    held = b""
    for chunk in chunks:
        held += chunk.encode(errors="replace")
        end = find_end(held)
        if end:
            yield held[:end]
            held = held[end:]
        elif len(held) > MAX_RECORD_BYTES:
            raise EndlessRecord(held[:400].decode(errors="replace").rstrip())
    if held:  # the last line may have no line break
        held += b"\n"
        if find_end(held) < len(held):
            raise EndlessRecord(held[:400].decode(errors="replace").rstrip())
        yield held


def _after_last_line_break(text: bytes) -> int:
    return max(text.rfind(b"\n"), text.rfind(b"\r")) + 1


def _quoted_cell(quote: str) -> str:
    q = re.escape(quote)
    return rf"{q}[^{q}]*+(?:{q}{q}[^{q}]*+)*+{q}"


def _rewrite_lines(chunks: Iterable[str], rewrite: Callable[[str], str]) -> Iterator[str]:
    """Return the text with whole lines passed through `rewrite`."""
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


def join_with_tabs(quote: str) -> Callable[[str], str]:
    """Return a rewrite of lines whose cells are separated by runs of blanks: one tab between cells, none around."""
    blanks = re.compile(r"[ \t]+")
    edges = re.compile(r"^\t|\t$", re.MULTILINE)
    cell = re.compile(rf"{_quoted_cell(quote)}(?=[ \t]|$)|[^ \t]+" if quote else r"[^ \t]+")

    def rewrite(lines: str) -> str:
        lines = lines.replace("\r\n", "\n").replace("\r", "\n")
        if quote and quote in lines:
            return "\n".join("\t".join(cell.findall(line)) for line in lines.split("\n"))
        return edges.sub("", blanks.sub("\t", lines))

    return rewrite


# The layout: what the user says about the text, and the rest detected from its first lines.


def open_text(source: Source, text: TextFormat) -> TextTable:
    """Return the table of a delimited text, its layout detected from its first lines where `text` does not say it."""
    encoding = detect_encoding(source, text.encoding)
    n_skipped_bytes, n_skipped_lines, declared = _read_preamble(source, encoding)
    with source.open() as stream:
        stream.read(n_skipped_bytes)
        first = next(decode(source, stream, encoding), "")
    sample = "".join(islice(io.StringIO(first, newline=None), 2 * SAMPLE_RECORDS))
    asked = text.delimiter or declared
    quote = _detect_quote(sample) if text.quote is None else text.quote
    quote = "" if quote == asked else quote
    delimiter = asked or _detect_delimiter(sample, quote, text.decimal)
    records = _split_records(sample, delimiter, quote)
    if not records:
        found = f"text: {shorten(sample.strip())}" if sample.strip() else "no text"
        raise BadInput(f"{source.name} holds no table", found=found, hint="give a text file with one row per line")
    decimal = text.decimal or _detect_decimal(records, delimiter)
    has_header = _detect_header(records, decimal) if text.header is None else text.header
    names = sources.made_up_names(len(records[0]))
    if has_header:  # an empty name is replaced by c1, c2, ... by its position
        names = tuple(name or made_up for name, made_up in zip(records[0], names, strict=True))
    parts = ["CSV", *_describe(delimiter, records[0], has_header)]
    parts += [f"{n_skipped_lines} comment line{'s' * (n_skipped_lines != 1)} skipped"] if n_skipped_lines else []
    parts += ["decimal comma"] if decimal == "," else []
    layout = TextLayout(
        names=names,
        delimiter="\t" if delimiter == WHITE_SPACE else delimiter,
        quote=quote,
        has_header=has_header,
        decimal=decimal,
        encoding=encoding,
        missing=(*MISSING_TOKENS, *text.missing),
        description=", ".join([*parts, encoding, *(["gzip"] if source.is_gzip else [])]),
        rewrite=join_with_tabs(quote) if delimiter == WHITE_SPACE else None,
        n_skipped_bytes=n_skipped_bytes,
    )
    return TextTable(source, layout)


def detect_encoding(source: Source, asked: str | None) -> str:
    """Return the encoding that was asked for, else that of the byte order mark, else UTF-8 or cp1252."""
    if asked is not None:
        try:
            "x".encode(asked)  # refuses codecs that are not text encodings, such as rot13
            return codecs.lookup(asked).name
        except (LookupError, UnicodeError) as error:
            raise BadInput(
                f"unknown encoding {asked!r}",
                found="encodings have names such as utf-8, latin-1, cp1252, utf-16",
                hint="set `--encoding` to one of them, or leave it out",
            ) from error
    if source.head(2) in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):
        return "utf-16"
    decoder = codecs.getincrementaldecoder("utf-8")()
    with source.open() as stream, suppress(UnicodeDecodeError):
        for _ in range(0, TRIED_BYTES, BLOCK_BYTES):
            chunk = stream.read(BLOCK_BYTES)
            decoder.decode(chunk, final=not chunk)
            if not chunk:
                break
        return "utf-8"
    return "cp1252"


def decode(source: Source, stream: BinaryIO, encoding: str) -> Iterator[str]:
    """Return the text of the stream in chunks, without byte order mark; refuse bytes that are not text."""

    def read_chunks() -> Iterator[bytes]:
        while raw := stream.read(BLOCK_BYTES):
            if b"\0" in raw and not encoding.startswith(("utf-16", "utf-32")):
                raise UnicodeError("NUL bytes, as in binary files")
            yield raw

    try:
        yield from codecs.iterdecode(read_chunks(), "utf-8-sig" if encoding == "utf-8" else encoding)
    except UnicodeError as error:
        raise BadInput(
            f"{source.name} is not {encoding} text",
            found=str(error),
            hint="set `--encoding`, for example `--encoding latin-1`; or give Parquet, NPY, NPZ, MAT, IDX or ARFF",
        ) from error


def _read_preamble(source: Source, encoding: str) -> tuple[int, int, str | None]:
    """Return the bytes and lines of comments (#) and of Excel's `sep=;` before the table, and that separator."""
    if encoding.startswith(("utf-16", "utf-32")):  # where an ASCII character is more than one byte
        return 0, 0, None
    n_bytes, n_lines, separator = 0, 0, None
    with source.open() as stream:
        while n_bytes < PREAMBLE_BYTES:
            line = stream.readline(PREAMBLE_BYTES)
            text = line.removeprefix(codecs.BOM_UTF8) if n_lines == 0 else line
            declared = _SEPARATOR.fullmatch(text) if n_lines == 0 else None
            if declared is None and not text.startswith(b"#"):
                break
            separator = declared[1].decode("latin-1") if declared else separator
            n_bytes += len(line)
            n_lines += 1
    return n_bytes, n_lines, separator


def _split_records(sample: str, delimiter: str, quote: str) -> list[list[str]]:
    """Return the first records, their cells stripped, without blank lines."""
    if delimiter == WHITE_SPACE:
        sample, delimiter = join_with_tabs(quote)(sample), "\t"
    reader = csv.reader(
        io.StringIO(sample),
        delimiter=delimiter,
        quotechar=quote or None,
        quoting=csv.QUOTE_MINIMAL if quote else csv.QUOTE_NONE,
        skipinitialspace=True,
    )
    records: list[list[str]] = []
    with suppress(csv.Error):  # a cell without end is named when the rows are read
        records.extend([cell.strip() for cell in record] for record in islice(reader, SAMPLE_RECORDS))
    return [record for record in records if any(record) or len(record) > 1]


def _detect_quote(sample: str) -> str:
    """Return the double quote, unless single quotes enclose cells and occur nowhere else."""
    n_enclosed = len(_SINGLE_QUOTED.findall(sample))
    return "'" if n_enclosed and '"' not in sample and sample.count("'") == 2 * n_enclosed else '"'


def _detect_delimiter(sample: str, quote: str, decimal: str | None) -> str:
    """Return the delimiter on whose number of cells most lines agree; a comma if there is only one column."""
    best, best_agreement = ",", MIN_AGREEMENT
    for delimiter in DELIMITERS:
        records = _split_records(sample, delimiter, quote)
        if not records or (delimiter == "," and (decimal == "," or _splits_decimals(records))):
            continue
        n_cells, n_records = Counter(len(record) for record in records).most_common(1)[0]
        agreement = n_records / len(records) if n_cells > 1 else 0.0
        if agreement > best_agreement:
            best, best_agreement = delimiter, agreement
    # with a decimal comma, the comma must not return as the delimiter of a single column
    return "\t" if best == "," == decimal else best


def _splits_decimals(records: Sequence[Sequence[str]]) -> bool:
    """Return whether the comma is part of numbers that blanks separate: "1,5 2,5" gives the cell "5 2"."""

    def is_several_numbers(cell: str) -> bool:
        tokens = cell.split()
        return len(tokens) > 1 and all(is_number(token) for token in tokens)

    return all(any(is_several_numbers(cell) for cell in record) for record in records[1:] or records)


def _detect_decimal(records: Sequence[Sequence[str]], delimiter: str) -> str:
    cells = [cell for record in records for cell in record]
    has_comma = delimiter != "," and any(_DECIMAL_COMMA.fullmatch(cell) for cell in cells)
    return "," if has_comma and not any(_DECIMAL_POINT.fullmatch(cell) for cell in cells) else "."


def _detect_header(records: Sequence[Sequence[str]], decimal: str) -> bool:
    first, below = records[0], records[1:]
    # A name may be empty: tables with an unnamed index column are common.
    if not any(first) or any(is_number(cell, decimal) for cell in first):
        return False
    columns = [[record[index] for record in below if index < len(record)] for index in range(len(first))]
    filled = [[cell for cell in column if cell not in MISSING_TOKENS] for column in columns]
    if any(2 * sum(is_number(cell, decimal) for cell in column) > len(column) for column in filled):
        return True
    return not any(name in column for name, column in zip(first, columns, strict=True) if name)


def is_number(cell: str, decimal: str = ".") -> bool:
    """Return whether a cell, stripped of blanks, is a number with this decimal mark."""
    if decimal == ",":
        cell = cell.replace(".", "!").replace(",", ".")
    return _NUMBER.fullmatch(cell) is not None


def _describe(delimiter: str, first: Sequence[str], has_header: bool) -> list[str]:
    """Return the delimiter and the header in words; the first row helps a user to correct the detection."""
    separators = {WHITE_SPACE: "separated by white space", "\t": "separated by tabs"}
    separator = separators.get(delimiter, f"separated by {delimiter!r}") if len(first) > 1 else "one column"
    cells = [cell if len(cell) <= 60 else f"{cell[:60]}…" for cell in first[:3]]
    row = f"no header (first row: {', '.join(cells)}{', …' * (len(first) > 3)})"
    return [separator, "header" if has_header else row]
