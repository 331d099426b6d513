"""ARFF files: their header declares the columns, their rows are read as delimited text."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from bayesnde_cli.data.readers.bounds import refuse_columns
from bayesnde_cli.data.readers.encoding import encoding_of
from bayesnde_cli.data.readers.source import Source
from bayesnde_cli.data.readers.table import Kind, duplicates, listed, shown
from bayesnde_cli.data.readers.text import TextTable
from bayesnde_cli.data.readers.text_format import TextFormat, TextLayout
from bayesnde_cli.data.readers.text_stream import MAX_RECORD_BYTES, MAX_SHOWN_BYTES, EndlessRecord, endless
from bayesnde_cli.errors import BadInput, escaped

NUMERIC_TYPES = ("numeric", "real", "integer")
MISSING_TOKENS = ("?", "")  # "NA" or "None" may be declared values here

_QUOTED = r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\""
ATTRIBUTE = re.compile(rf"@attribute\s+({_QUOTED}|[^\s{{]+)\s*(.*)", re.IGNORECASE | re.DOTALL)
# one way to match, so that a line of a million blanks takes no longer than another
VALUE = re.compile(rf"\s*+(?:({_QUOTED})\s*+|([^,]*+))(?:,|$)", re.DOTALL)
NEEDS_REWRITE = re.compile(r"[%{'\"]")


@dataclass(frozen=True)
class Attribute:
    """One declared column: numeric, text, a list of values, or a date."""

    name: str
    type: str
    values: tuple[str, ...] = ()


class ArffTable(TextTable):
    """An ARFF file; nominal cells are checked against the declared values."""

    def __init__(self, source: Source, layout: TextLayout, attributes: Sequence[Attribute]) -> None:
        super().__init__(source, layout)
        self._attributes = {attribute.name: attribute for attribute in attributes}
        self.has_own_names = True

    def kinds(self, columns: Sequence[str]) -> dict[str, Kind | None]:
        """What the header declares."""
        return {name: self._declared_kind(self._attributes[name]) for name in columns}

    def column(self, name: str, cells: pa.Array, kind: Kind, first_row: int) -> pa.Array:
        """Cleaned cells as numbers or text, refusing a nominal value that is not declared."""
        values = self._attributes[name].values
        if values:
            is_declared = pc.or_(pc.is_null(cells), pc.is_in(cells, value_set=pa.array(values)))
            index = pc.index(is_declared, False).as_py()
            if index >= 0:
                raise BadInput(
                    f"column {shown(name)} holds an undeclared value in {self.source.row(first_row + index)}",
                    found=[f"cell: {shown(cells[index].as_py())}", f"declared: {listed(values)}"],
                    hint="add the value to the @attribute line, or correct the cell",
                )
        return super().column(name, cells, kind, first_row)

    def _declared_kind(self, attribute: Attribute) -> Kind:
        if attribute.type in NUMERIC_TYPES:
            return "number"
        if attribute.type == "date":
            raise BadInput(
                f"column {shown(attribute.name)} holds dates",
                found="ARFF type: date",
                hint=f"convert it to a number, or use `--drop {escaped(attribute.name)}`",
            )
        return "text"


def open_arff(source: Source, text: TextFormat) -> ArffTable:
    """The table of an ARFF file, its header read."""
    encoding = encoding_of(source, text.encoding)
    attributes, n_header_bytes = _header(source, encoding)
    names = tuple(attribute.name for attribute in attributes)
    again = duplicates(names)
    if again or not names:
        raise BadInput(
            f"{source.name} has several columns of one name" if again else f"{source.name} declares no column",
            found=f"more than once: {listed(again)}" if again else "no @attribute line before @data",
            hint="correct the @attribute lines",
        )
    layout = TextLayout(
        names=names,
        delimiter=",",
        quote='"',
        has_header=False,
        decimal=text.decimal or ".",
        encoding=encoding,
        missing=(*MISSING_TOKENS, *text.missing),
        description=", ".join(["ARFF", encoding, *(["gzip"] if source.is_gzip else [])]),
        rewrite=_csv_lines(source),
        n_skipped_bytes=n_header_bytes,
    )
    return ArffTable(source, layout, attributes)


def _header(source: Source, encoding: str) -> tuple[list[Attribute], int]:
    """The declared columns, and the number of bytes up to the first row."""
    attributes: list[Attribute] = []
    n_bytes = 0
    with source.open() as stream:
        while raw := stream.readline(MAX_RECORD_BYTES):
            n_bytes += len(raw)
            if len(raw) == MAX_RECORD_BYTES:
                raise endless(f"the header of {source.name}", EndlessRecord(raw[:MAX_SHOWN_BYTES], is_in_quotes=False))
            line = raw.decode(encoding, errors="replace").strip()
            word = line.lower()
            if word.startswith("@data"):
                return attributes, n_bytes
            if word.startswith("@attribute"):
                attributes.append(_attribute(source, line))
                refuse_columns(source.name, len(attributes))
    raise BadInput(
        f"{source.name} has no @data line",
        found=f"{len(attributes)} @attribute lines and the end of the file",
        hint="put @data before the rows",
    )


def _attribute(source: Source, line: str) -> Attribute:
    match = ATTRIBUTE.fullmatch(line)
    name, declared = (_unquoted(match.group(1)), match.group(2)) if match else ("", "")
    if declared.startswith("{") and declared.endswith("}"):
        return Attribute(name, "nominal", _values(declared[1:-1]))
    kind = declared.split()[0].lower() if declared else ""
    if kind in (*NUMERIC_TYPES, "string", "date"):
        return Attribute(name, kind)
    raise BadInput(
        f"{source.name} declares a column of unknown type",
        found=f"line: {shown(line)}",
        hint="use numeric, real, integer, string, date or {value, value, ...}",
    )


def _values(text: str) -> tuple[str, ...]:
    """The comma-separated values of a line, unquoted."""
    values = []
    position = 0
    while position < len(text):
        match = VALUE.match(text, position)
        assert match is not None  # an open quote, too, is taken as it stands
        values.append(_unquoted(match[1] or match[2].rstrip()))
        position = match.end()
    return (*values, "") if text.endswith(",") else tuple(values)


def _unquoted(token: str) -> str:
    if len(token) > 1 and token[0] in "'\"" and token[-1] == token[0]:
        return re.sub(r"\\(.)", r"\1", token[1:-1])
    return token


def _csv_lines(source: Source) -> Callable[[str], str]:
    """A rewrite of ARFF rows as CSV: comments dropped, quotes of either sort as doubled double quotes."""

    def csv_line(line: str) -> str:
        if line.startswith("%"):
            return ""
        if line.startswith("{"):
            raise BadInput(
                f"{source.name} is a sparse ARFF file",
                found=f"row: {shown(line)}",
                hint="convert it to dense rows, such as `1,0,0,5`",
            )
        if "'" not in line and '"' not in line:
            return line
        return ",".join(f'"{value}"' for value in (cell.replace('"', '""') for cell in _values(line)))

    def rewrite(lines: str) -> str:
        if not NEEDS_REWRITE.search(lines):
            return lines
        return "\n".join(csv_line(line.strip()) for line in re.split(r"\r\n|\r|\n", lines))

    return rewrite
