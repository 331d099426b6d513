"""Random tables, written as text in random ways, come back as they were."""

import csv
import io
import math
from pathlib import Path

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from bayesnde_cli.data.readers import TextFormat, open_table
from bayesnde_cli.data.readers.cells import MISSING_TOKENS, is_number

FLOATS = st.floats(allow_nan=False, allow_infinity=False)
INTEGERS = st.integers(-(10**6), 10**6).map(float)
LATIN = st.characters(codec="latin-1", exclude_categories=["Cc"])


def is_plain_text(word: str) -> bool:
    return word == word.strip() and word not in MISSING_TOKENS and not is_number(word) and not is_number(word, ",")


WORDS = st.text(st.one_of(LATIN, st.sampled_from(',;|"\n')), min_size=1, max_size=8).filter(is_plain_text)
NAMES = st.text("abcdefgh XYZ_", min_size=1, max_size=6).map(str.strip).filter(is_plain_text)


@st.composite
def tables(draw: st.DrawFn) -> dict[str, list]:
    names = draw(st.lists(NAMES, min_size=2, max_size=5, unique=True))
    n_rows = draw(st.integers(1, 12))
    columns: dict[str, list] = {}
    for name in names:
        cells = draw(st.sampled_from([FLOATS, INTEGERS, WORDS]))
        filled = draw(cells)  # one cell at least, so that the type shows
        rest = draw(st.lists(st.one_of(st.none(), cells), min_size=n_rows - 1, max_size=n_rows - 1))
        columns[name] = [filled, *rest]
    return columns


def spelled(cell: float | str | None, decimal: str) -> str:
    if cell is None:
        return ""
    return cell if isinstance(cell, str) else repr(cell).replace(".", decimal)


@settings(max_examples=150, deadline=None)
@given(
    columns=tables(),
    delimiter=st.sampled_from([",", ";", "\t", "|"]),
    decimal=st.sampled_from([".", ","]),
    quoting=st.sampled_from([csv.QUOTE_MINIMAL, csv.QUOTE_ALL, csv.QUOTE_NONNUMERIC]),
    encoding=st.sampled_from(["utf-8", "utf-8-sig", "utf-16", "latin-1"]),
    end=st.sampled_from(["\n", "\r\n"]),
)
def test_a_written_table_is_read_back(tmp_path_factory, columns, delimiter, decimal, quoting, encoding, end) -> None:
    decimal = "." if delimiter == "," else decimal
    text = io.StringIO(newline="")
    writer = csv.writer(text, delimiter=delimiter, quoting=quoting, lineterminator=end)
    writer.writerow(columns)
    for row in zip(*columns.values(), strict=True):
        writer.writerow([spelled(cell, decimal) for cell in row])
    path: Path = tmp_path_factory.mktemp("round", numbered=True) / "data.csv"
    path.write_bytes(text.getvalue().encode(encoding))

    said = TextFormat(delimiter=delimiter, decimal=decimal, header=True, quote='"', encoding=encoding)
    table = pa.Table.from_batches(open_table([path], said).batches())
    assert table.to_pydict() == columns


@settings(max_examples=60, deadline=None)
@given(
    rows=st.lists(st.lists(FLOATS, min_size=3, max_size=3), min_size=2, max_size=10),
    delimiter=st.sampled_from([",", ";", "\t", "|", " ", "   "]),
    has_header=st.booleans(),
)
def test_the_layout_of_a_table_of_numbers_is_found(tmp_path_factory, rows, delimiter, has_header) -> None:
    lines = [delimiter.join(repr(cell) for cell in row) for row in rows]
    names = ["x", "y", "z"] if has_header else ["c1", "c2", "c3"]
    lines = [delimiter.join(names), *lines] if has_header else lines
    path: Path = tmp_path_factory.mktemp("found", numbered=True) / "data.csv"
    path.write_text("\n".join(lines))
    table = pa.Table.from_batches(open_table([path]).batches())
    assert table.column_names == names
    assert [list(row.values()) for row in table.to_pylist()] == rows
    assert all(math.isfinite(cell) for row in rows for cell in row)
