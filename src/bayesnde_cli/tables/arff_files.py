"""ARFF files: the header declares the columns, the rows are read as delimited text."""

import re
from collections.abc import Callable, Mapping, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from bayesnde_cli.errors import BadInput
from bayesnde_cli.tables.columns import listed, quoted
from bayesnde_cli.tables.sources import CellType, Source, TextFormat, shorten
from bayesnde_cli.tables.text_files import TextLayout, TextTable, detect_encoding

NUMERIC_TYPES = ("numeric", "real", "integer")
MISSING_TOKENS = ("?", "")  # "NA" and "None" may be declared values here

_QUOTED = r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\""
_ATTRIBUTE = re.compile(rf"@attribute\s+({_QUOTED}|[^\s{{]+)\s*(.*)", re.IGNORECASE | re.DOTALL)
# possessive repeats: a line of a million blanks must not take quadratic time
_VALUE = re.compile(rf"\s*+(?:({_QUOTED})\s*+|([^,]*+))(?:,|$)", re.DOTALL)
_NEEDS_REWRITE = re.compile(r"[%{'\"]")


class ArffTable(TextTable):
    """An ARFF file: `types` are the declared types, or the declared values of nominal columns."""

    def __init__(self, source: Source, layout: TextLayout, types: Mapping[str, str | tuple[str, ...]]) -> None:
        super().__init__(source, layout)
        self._types = types
        self.has_own_names = True

    def kinds(self, columns: Sequence[str]) -> dict[str, CellType | None]:
        """Return the declared kinds; columns of dates are refused."""
        for name in columns:
            if self._types[name] == "date":
                hint = f"convert it to a number, or use `--drop {quoted(name)}`"
                raise BadInput(f"column '{name}' holds dates", found="ARFF type: date", hint=hint)
        return {name: "number" if self._types[name] in NUMERIC_TYPES else "text" for name in columns}

    def convert(self, name: str, cells: pa.Array, kind: CellType, first_row: int) -> pa.Array:
        """Return cells as numbers or text; refuse a nominal value that is not declared."""
        values = self._types[name]
        if isinstance(values, tuple):
            is_declared = pc.or_(pc.is_null(cells), pc.is_in(cells, value_set=pa.array(values, pa.string())))
            index = pc.index(is_declared, False).as_py()
            if index >= 0:
                raise BadInput(
                    f"column '{name}' holds an undeclared value in row {first_row + index} of {self.source.name}",
                    found=[f"cell: {shorten(cells[index].as_py())}", f"declared: {listed(values)}"],
                    hint="add the value to the @attribute line, or correct the cell",
                )
        return super().convert(name, cells, kind, first_row)


def open_arff(source: Source, text: TextFormat) -> ArffTable:
    """Return the table of an ARFF file, its header read."""
    encoding = detect_encoding(source, text.encoding)
    columns: list[tuple[str, str | tuple[str, ...]]] = []
    n_header_bytes = 0
    with source.open() as stream:
        for raw in stream:
            n_header_bytes += len(raw)
            line = raw.decode(encoding, errors="replace").strip()
            word = line[:10].lower()
            if word == "@attribute":
                columns.append(_parse_attribute(source, line))
            if word.startswith("@data"):
                break
    if not columns or not word.startswith("@data"):
        raise BadInput(
            f"{source.name} is an ARFF file without columns or rows",
            found=f"@attribute lines: {len(columns)}, last line of the header: {shorten(line)}",
            hint="declare every column with @attribute, and put @data before the rows",
        )
    layout = TextLayout(
        names=tuple(name for name, _ in columns),
        delimiter=",",
        quote='"',
        has_header=False,
        decimal=text.decimal or ".",
        encoding=encoding,
        missing=(*MISSING_TOKENS, *text.missing),
        description=", ".join(["ARFF", encoding, *(["gzip"] if source.is_gzip else [])]),
        rewrite=_rewrite_as_csv(source),
        n_skipped_bytes=n_header_bytes,
    )
    return ArffTable(source, layout, dict(columns))


def _parse_attribute(source: Source, line: str) -> tuple[str, str | tuple[str, ...]]:
    """Return the name of a column, and its type or its values."""
    match = _ATTRIBUTE.fullmatch(line)
    name, declared = (_unquote(match[1]), match[2]) if match else ("", "")
    if declared.startswith("{") and declared.endswith("}"):
        return name, _parse_values(declared[1:-1])
    kind = declared.split()[0].lower() if declared else ""
    if kind in (*NUMERIC_TYPES, "string", "date"):
        return name, kind
    raise BadInput(
        f"{source.name} declares a column of unknown type",
        found=f"line: {shorten(line)}",
        hint="use numeric, real, integer, string, date or {value, value, ...}",
    )


def _parse_values(text: str) -> tuple[str, ...]:
    """Return the comma-separated values of a line, unquoted."""
    # an open quote counts as a character; a match of nothing at the end is a value only after a comma
    found = [match for match in _VALUE.finditer(text) if match[0] or text.endswith(",")]
    return tuple(_unquote(match[1] or match[2].rstrip()) for match in found)


def _unquote(token: str) -> str:
    if len(token) > 1 and token[0] in "'\"" and token[-1] == token[0]:
        return re.sub(r"\\(.)", r"\1", token[1:-1])
    return token


def _rewrite_as_csv(source: Source) -> Callable[[str], str]:
    """Return a rewrite of ARFF rows as CSV: comments dropped, either kind of quotes as doubled double quotes."""

    def rewrite_line(line: str) -> str:
        if line.startswith("%"):
            return ""
        if line.startswith("{"):
            hint = "convert it to dense rows, such as `1,0,0,5`"
            raise BadInput(f"{source.name} is a sparse ARFF file", found=f"row: {shorten(line)}", hint=hint)
        if "'" not in line and '"' not in line:
            return line
        cells = (cell.replace('"', '""') for cell in _parse_values(line))
        return ",".join(f'"{cell}"' for cell in cells)

    def rewrite(lines: str) -> str:
        if not _NEEDS_REWRITE.search(lines):
            return lines
        return "\n".join(rewrite_line(line.strip()) for line in re.split(r"\r\n|\r|\n", lines))

    return rewrite
