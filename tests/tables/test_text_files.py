"""Delimited text: its layout is detected or taken as said, its rows come back as they were, mistakes are named."""

import csv
import gzip
import io
from pathlib import Path
from typing import Literal

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from table_reading import opened_text, read, text_refusal

from bayesnde_cli.tables import text_files
from bayesnde_cli.tables.sources import TextFormat, open_sources, sources_of
from bayesnde_cli.tables.text_files import (
    MISSING_TOKENS,
    EndlessRecord,
    TextLayout,
    is_number,
    join_with_tabs,
    split_blocks,
)

pytestmark = pytest.mark.usefixtures("empty_folder")


@pytest.mark.parametrize(
    ("content", "description"),
    [
        ("a,b\n1,2\n", "CSV, separated by ',', header, utf-8"),
        ("a;b\n1,5;2\n", "CSV, separated by ';', header, decimal comma, utf-8"),
        ("a\tb c\n1\t2\n", "CSV, separated by tabs, header, utf-8"),
        ("a|b\n1|2,5\n", "CSV, separated by '|', header, decimal comma, utf-8"),
        ("1  2\n 3 4\n", "CSV, separated by white space, no header (first row: 1, 2), utf-8"),
        ("x\n1\n2\n", "CSV, one column, header, utf-8"),
        ("1,5 2,5\n3,5 4,5\n", "CSV, separated by white space, no header (first row: 1,5, 2,5), decimal comma, utf-8"),
        ("# made by hand\n# in 2024\na,b\n1,2\n", "CSV, separated by ',', header, 2 comment lines skipped, utf-8"),
        ("sep=;\na;b\n1,5;2\n", "CSV, separated by ';', header, 1 comment line skipped, decimal comma, utf-8"),
        ("a,b\n1,2\n".encode("utf-16"), "CSV, separated by ',', header, utf-16"),
        (b"\xef\xbb\xbfa,b\n1,2\n", "CSV, separated by ',', header, utf-8"),
        ("a,b\n1,ä\n".encode("cp1252"), "CSV, separated by ',', header, cp1252"),
        (gzip.compress(b"a,b\n1,2\n", mtime=0), "CSV, separated by ',', header, utf-8, gzip"),
        ("a;b\n1;2\n3;4;5\n", "CSV, separated by ';', header, utf-8"),
    ],
)
def test_the_layout_is_detected_from_the_content(content: str | bytes, description: str) -> None:
    assert opened_text(content).description == description


@pytest.mark.parametrize(
    ("content", "names"),
    [
        ("a,b\nx,1\n", ("a", "b")),
        ("a,b\nx,y\nz,y\n", ("a", "b")),
        ("x,y\nx,z\n", ("c1", "c2")),
        ("a,1\nb,2\n", ("c1", "c2")),
        (" a , b \n1,2\n", ("a", "b")),
        (",b\n1,2\n", ("c1", "b")),
        (b"\xef\xbb\xbfa,b\n1,2\n", ("a", "b")),
    ],
)
def test_a_header_is_told_from_data(content: str | bytes, names: tuple[str, ...]) -> None:
    assert opened_text(content).names == names


def test_numbers_are_float64_and_text_is_string_and_missing_cells_are_null() -> None:
    batch = next(opened_text("age,job\n 17 , NA\nNaN,cook\n?,\n+1e2,  \n").batches())
    assert batch.schema == pa.schema([("age", pa.float64()), ("job", pa.string())])
    assert batch.to_pydict() == {"age": [17.0, None, None, 100.0], "job": [None, "cook", None, None]}


@pytest.mark.parametrize(
    ("content", "said", "expected"),
    [
        ("x\n1\n-inf\n", {}, {"x": [1.0, float("-inf")]}),
        ("x,y\n1,a\n-999,b\n", {"missing": ("-999", "b")}, {"x": [1.0, None], "y": ["a", None]}),
        ("a,n\n1,1\nx,1\n", {}, {"a": ["1", "x"], "n": [1, 1]}),
        ("a\n1_0\n0x1\n", {"header": True}, {"a": ["1_0", "0x1"]}),
        ("a;b\n1.234;1,5\n1.235;2,5\n", {"decimal": ","}, {"a": ["1.234", "1.235"], "b": [1.5, 2.5]}),
        ('a,b\n1,"x, ""y""\nz"\n2,w\n', {}, {"a": [1, 2], "b": ['x, "y"\nz', "w"]}),
        ('"a", "b c"\n1, "x, ""y"""\n2,  "z"\n', {}, {"a": [1, 2], "b c": ['x, "y"', "z"]}),
        ("'a','b c'\n1,'x,y'\n", {}, {"a": [1], "b c": ["x,y"]}),
        ('a,b\n1,6" pipe\n2,5" pipe\n', {}, {"a": [1, 2], "b": ['6" pipe', '5" pipe']}),
        ('a,b\n1,"x\n2,y\n', {"quote": ""}, {"a": [1, 2], "b": ['"x', "y"]}),
        ('a"b\n1"2\n', {"delimiter": '"'}, {"a": [1], "b": [2]}),
        ('a  "b c"\n 1   "x  y" \n\n2 z\n', {}, {"a": [1, 2], "b c": ["x  y", "z"]}),
        ("a,b\n1,\n2,NA\n", {}, {"a": [1, 2], "b": [None, None]}),
        ("a,b\n\n1,2\n   \n3,4", {}, {"a": [1, 3], "b": [2, 4]}),
        ("a,b\r\n\r\n1,2\r\n   \r\n3,4", {}, {"a": [1, 3], "b": [2, 4]}),
        ("a,b\r\r1,2\r   \r3,4", {}, {"a": [1, 3], "b": [2, 4]}),
    ],
)
def test_cells_are_read(content: str, said: dict[str, object], expected: dict[str, list]) -> None:
    assert read(opened_text(content, **said)) == expected


def test_columns_are_chosen_and_ordered_and_others_are_not_checked() -> None:
    table = opened_text("a,b,c\n1,2,3\n4,oops,6\n7,8,9\n1,1,1\n")
    assert read(table, ["c", "a"]) == read(table, ["c", "a"]) == {"c": [3, 6, 9, 1], "a": [1, 4, 7, 1]}
    assert read(opened_text("zip,x\n007,1\nNA,2\n"), as_text=["zip"]) == {"zip": ["007", None], "x": [1, 2]}


def test_the_kind_of_a_column_comes_from_its_first_cell_in_whichever_batch() -> None:
    n_empty = 70_000  # more than one batch
    batches = list(opened_text("a,b\n" + "1,\n" * n_empty + "1,word\n").batches())
    assert {batch.schema.field("b").type for batch in batches} == {pa.string()}
    assert [batch.num_rows for batch in batches] == [65_536, n_empty + 1 - 65_536]


def test_the_layout_that_the_user_states_is_taken() -> None:
    said = {"delimiter": ",", "header": False, "decimal": ".", "encoding": "latin-1", "quote": "'"}
    table = opened_text("a;b,'1,5'\nä;c,2\n".encode("latin-1"), **said)
    assert read(table, as_text=["c2"]) == {"c1": ["a;b", "ä;c"], "c2": ["1,5", "2"]}


def is_plain_text(word: str) -> bool:
    return word == word.strip() and word not in MISSING_TOKENS and not is_number(word) and not is_number(word, ",")


FLOATS = st.floats(allow_nan=False, allow_infinity=False)
LATIN = st.characters(codec="latin-1", exclude_categories=["Cc"])
WORDS = st.text(st.one_of(LATIN, st.sampled_from(',;|"\n')), min_size=1, max_size=8).filter(is_plain_text)
NAMES = st.text("abcdefgh XYZ_", min_size=1, max_size=6).map(str.strip).filter(is_plain_text)


@st.composite
def tables(draw: st.DrawFn) -> dict[str, list]:
    n_rows = draw(st.integers(1, 6))
    columns: dict[str, list] = {}
    for name in draw(st.lists(NAMES, min_size=2, max_size=4, unique=True)):
        cells = draw(st.sampled_from([FLOATS, WORDS]))
        filled = draw(cells)  # at least one cell, so that the kind can be detected
        columns[name] = [filled, *draw(st.lists(st.none() | cells, min_size=n_rows - 1, max_size=n_rows - 1))]
    return columns


@settings(max_examples=20, deadline=None)
@given(
    columns=tables(),
    delimiter=st.sampled_from([",", ";", "\t", "|"]),
    decimal=st.sampled_from([".", ","]),
    quoting=st.sampled_from([csv.QUOTE_MINIMAL, csv.QUOTE_ALL, csv.QUOTE_NONNUMERIC]),
    encoding=st.sampled_from(["utf-8", "utf-8-sig", "utf-16", "latin-1"]),
    end=st.sampled_from(["\n", "\r\n"]),
)
def test_a_written_table_is_read_back(
    tmp_path_factory: pytest.TempPathFactory,
    columns: dict[str, list],
    delimiter: str,
    decimal: str,
    quoting: Literal[0, 1, 2],
    encoding: str,
    end: str,
) -> None:
    decimal = "." if delimiter == "," else decimal
    text = io.StringIO(newline="")
    writer = csv.writer(text, delimiter=delimiter, quoting=quoting, lineterminator=end)
    writer.writerow(columns)
    for row in zip(*columns.values(), strict=True):
        spelled = ["" if cell is None else cell if isinstance(cell, str) else repr(cell) for cell in row]
        words = [isinstance(cell, str) for cell in row]
        writer.writerow([s if is_word else s.replace(".", decimal) for s, is_word in zip(spelled, words, strict=True)])
    path: Path = tmp_path_factory.mktemp("round", numbered=True) / "data.csv"
    path.write_bytes(text.getvalue().encode(encoding))
    said = TextFormat(delimiter=delimiter, decimal=decimal, header=True, quote='"', encoding=encoding)
    assert read(open_sources(sources_of([path]), said)) == columns


@settings(max_examples=10, deadline=None)
@given(
    rows=st.lists(st.lists(FLOATS, min_size=3, max_size=3), min_size=2, max_size=6),
    delimiter=st.sampled_from([",", ";", "\t", "|", " ", "   "]),
    has_header=st.booleans(),
)
def test_the_layout_of_a_table_of_numbers_is_detected(
    tmp_path_factory: pytest.TempPathFactory, rows: list[list[float]], delimiter: str, has_header: bool
) -> None:
    names = ["x", "y", "z"] if has_header else ["c1", "c2", "c3"]
    lines = [delimiter.join(names)] * has_header + [delimiter.join(map(repr, row)) for row in rows]
    path: Path = tmp_path_factory.mktemp("detected", numbered=True) / "data.csv"
    path.write_text("\n".join(lines))
    found = read(open_sources(sources_of([path])))
    assert found == {name: [row[index] for row in rows] for index, name in enumerate(names)}


def layout(**changes: object) -> TextLayout:
    fixed = dict.fromkeys(["has_header", "decimal", "encoding", "missing", "description"], "")
    return TextLayout(**{"names": (), "delimiter": ",", "quote": '"', **fixed, **changes})  # type: ignore[arg-type]


def cut(text: str, sizes: list[int]) -> list[str]:
    ends = [sum(sizes[:count]) for count in range(len(sizes) + 1)]
    return [text[start:stop] for start, stop in zip(ends, [*ends[1:], None], strict=True)]


SIZES = st.lists(st.integers(1, 8), max_size=12)


@settings(max_examples=60, deadline=None)
@given(text=st.text('a,"\n\r é', max_size=40), sizes=SIZES)
def test_blocks_hold_the_records_of_the_text_wherever_its_chunks_end(text: str, sizes: list[int]) -> None:
    def records(part: str) -> list[list[str]]:
        reader = csv.reader(io.StringIO(part, newline=None), skipinitialspace=True)
        return [[cell.strip() for cell in record] for record in reader if record]

    try:
        blocks = [block.decode() for block in split_blocks(cut(text, sizes), layout())]
    except EndlessRecord:
        return
    assert [record for block in blocks for record in records(block)] == records(text)


@pytest.mark.parametrize("text", ['"', 'a,"b\n', '"a""', '1,2\n3, "x""\n4,5\n'])
def test_an_open_quote_is_noticed(text: str) -> None:
    with pytest.raises(EndlessRecord):
        list(split_blocks([text], layout()))


@pytest.mark.parametrize("text", ['a"b,c\n', '"a"b"c,d\n', '""\n', '"a\r\nb"\r\n'])
def test_a_quote_that_is_closed_or_inside_a_cell_is_not_open(text: str) -> None:
    assert b"".join(split_blocks([text], layout())).decode() == text


@settings(max_examples=30, deadline=None)
@given(text=st.text("a1 \t\n\r", max_size=40), sizes=SIZES)
def test_white_space_becomes_single_tabs_wherever_the_chunks_end(text: str, sizes: list[int]) -> None:
    with_tabs = layout(delimiter="\t", rewrite=join_with_tabs('"'))
    rewritten = b"".join(split_blocks(cut(text, sizes), with_tabs)).decode()
    lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    cells = [line.split("\t") for line in rewritten.split("\n") if line]
    assert cells == [line.split() for line in lines if line.split()]


def test_blanks_before_quotes_are_dropped_and_those_inside_are_kept() -> None:
    text = '"a", "b"\n 1,  "x, ""y"",  ""z\n , "" "\n'
    for position in range(len(text)):
        blocks = split_blocks([text[:position], text[position:]], layout())
        assert b"".join(blocks).decode() == '"a","b"\n 1,"x, ""y"",  ""z\n , "" "\n'


@pytest.mark.parametrize(
    ("contents", "start"),
    [
        (["age\n1\n2\n", "age\n3\nx\n5\n"], "error: column 'age' holds text in row 2 of b.csv\n  cell: 'x'\n"),
        (["age\n" + "1\n" * 70_000 + "x\n"], "error: column 'age' holds text in row 70001 of a.csv\n  cell: 'x'\n"),
        (["a,b\n1,1\n\n \n2,2\n3\n"], "error: row 3 of a.csv has 1 cell instead of 2\n  row: '3'\n"),
        (['a,"b\n1,2\n'], "error: the header of a.csv does not end\n  row: 'a,\"b\\n1,2'\nhint: close the quote,"),
        (["1" * 500_000], "error: a.csv holds no table\n  text: '1111"),
        (["1," * 150_000], "error: a.csv has too many columns\n  150,001 columns, the limit is 100,000\n"),
    ],
)
def test_mistakes_are_named_with_row_cell_and_way_out(contents: list[str | bytes], start: str) -> None:
    said = {"delimiter": ",", "header": True} if "header" in start else {}
    assert text_refusal(*contents, **said).startswith(start)


def test_rows_of_later_blocks_are_numbered_and_a_quote_left_open_ends_the_reading(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(text_files, "BLOCK_BYTES", 1000)
    monkeypatch.setattr(text_files, "MAX_RECORD_BYTES", 4000)
    rows = "a,b\n" + "1,2\n" * 900
    assert text_refusal(f"{rows}x,2\n").startswith("error: column 'a' holds text in row 901 of a.csv\n")
    assert text_refusal(f"{rows}1\n").startswith("error: row 901 of a.csv has 1 cell instead of 2\n")
    assert text_refusal(f'{rows}1,"x\n' + "2,3\n" * 5000).startswith(
        "error: row 901 of a.csv does not end\n  row: '1,\"x\\n2,3\\n"
    )
    long = "x" * 3000
    assert read(opened_text(f'a,b\n1,"{long}\n"\n2,y\n')) == {"a": [1, 2], "b": [long, "y"]}


def test_control_characters_are_spelled_out() -> None:
    assert text_refusal("a\x1b[31m b\n1\n2\n\x1b[2Jx\n", delimiter=",") == (
        "error: column 'a\\x1b[31m b' holds text in row 3 of a.csv\n  cell: '\\x1b[2Jx'\n"
        "hint: correct the cell; or use `--missing-token '\\x1b[2Jx'`, `--drop 'a\\x1b[31m b'`, "
        "or `--type 'a\\x1b[31m b=categorical'`"
    )


def test_bytes_that_the_encoding_does_not_have(monkeypatch: pytest.MonkeyPatch) -> None:
    what = "error: a.csv is not utf-8 text\n  'utf-8' codec can't decode byte"
    assert text_refusal(b"a,b\n1,\x81\n", encoding="utf8").startswith(f"{what} 0x81 in position 6")
    monkeypatch.setattr(text_files, "BLOCK_BYTES", 1000)
    monkeypatch.setattr(text_files, "TRIED_BYTES", 1000)
    assert text_refusal(b"x\n" + b"1\n" * 1000 + b"\xff\n").startswith(f"{what} 0xff")


@pytest.mark.parametrize(
    "said", [{"delimiter": "é"}, {"decimal": ",", "delimiter": ","}, {"delimiter": "'", "quote": "'"}]
)
def test_contradictory_statements_about_the_text(said: dict[str, str]) -> None:
    assert text_refusal("a\n1\n", **said).startswith("error: --delimiter, --quote and --decimal must be")
