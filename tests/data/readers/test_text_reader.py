"""Delimited text: delimiter, header, decimal mark, encoding and types are found, or taken as said."""

import gzip
from pathlib import Path

import pyarrow as pa
import pytest

from bayesnde_cli.data.readers import Table, TextFormat, open_table


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def opened(content: str | bytes, text: TextFormat | None = None) -> Table:
    Path("data.csv").write_bytes(content.encode() if isinstance(content, str) else content)
    return open_table([Path("data.csv")], text or TextFormat())


def columns_of(table: Table, **options: object) -> dict[str, list]:
    return pa.Table.from_batches(table.batches(**options)).to_pydict()  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("content", "description"),
    [
        ("a,b\n1,2\n", "CSV, separated by ',', header, utf-8"),
        ("a;b\n1,5;2\n", "CSV, separated by ';', header, decimal comma, utf-8"),
        ("a\tb c\n1\t2\n", "CSV, separated by tabs, header, utf-8"),
        ("a|b\n1|2,5\n", "CSV, separated by '|', header, decimal comma, utf-8"),
        ("1  2\n 3 4\n", "CSV, separated by white space, no header (first row: 1, 2), utf-8"),
        ("x\n1\n2\n", "CSV, one column, header, utf-8"),
        (
            "1,5 2,5\n3,5 4,5\n",
            "CSV, separated by white space, no header (first row: 1,5, 2,5), decimal comma, utf-8",
        ),
        ("# made by hand\n# in 2024\na,b\n1,2\n", "CSV, separated by ',', header, 2 comment lines skipped, utf-8"),
        ("sep=;\na;b\n1,5;2\n", "CSV, separated by ';', header, 1 comment line skipped, decimal comma, utf-8"),
        ("a,b\n1,2\n".encode("utf-16"), "CSV, separated by ',', header, utf-16"),
        (b"\xef\xbb\xbfa,b\n1,2\n", "CSV, separated by ',', header, utf-8"),
        ("a,b\n1,ä\n".encode("cp1252"), "CSV, separated by ',', header, cp1252"),
        (gzip.compress(b"a,b\n1,2\n", mtime=0), "CSV, separated by ',', header, utf-8, gzip"),
    ],
)
def test_the_layout_is_found_from_the_content(content: str | bytes, description: str) -> None:
    assert opened(content).description == description


def test_numbers_are_float64_and_text_is_string_and_missing_cells_are_null() -> None:
    table = opened("age,job\n 17 , NA\nNaN,cook\n?,\n+1e2,  \n")
    batch = next(table.batches())
    assert batch.schema == pa.schema([("age", pa.float64()), ("job", pa.string())])
    assert batch.to_pydict() == {"age": [17.0, None, None, 100.0], "job": [None, "cook", None, None]}


def test_infinity_is_passed_on() -> None:
    assert columns_of(opened("x\n1\n-inf\n")) == {"x": [1.0, float("-inf")]}


def test_further_missing_tokens_count_as_missing() -> None:
    assert columns_of(opened("x,y\n1,a\n-999,b\n", TextFormat(missing=("-999", "b")))) == {
        "x": [1.0, None],
        "y": ["a", None],
    }


def test_columns_are_chosen_and_ordered_and_others_are_not_validated() -> None:
    table = opened("a,b,c\n1,2,3\n4,oops,6\n7,8,9\n1,1,1\n")
    assert columns_of(table, columns=["c", "a"]) == {"c": [3, 6, 9, 1], "a": [1, 4, 7, 1]}


def test_a_column_asked_for_as_text_keeps_its_spelling() -> None:
    assert columns_of(opened("zip,x\n007,1\nNA,2\n"), as_text=["zip"]) == {"zip": ["007", None], "x": [1, 2]}


def test_a_table_is_read_again_from_the_start() -> None:
    table = opened("a\n1\n2\n")
    assert columns_of(table) == columns_of(table)


def test_a_column_is_text_unless_more_than_half_of_its_cells_are_numbers() -> None:
    assert columns_of(opened("a,n\n1,1\nx,1\n")) == {"a": ["1", "x"], "n": [1, 1]}


def test_a_column_without_any_cell_is_a_column_of_missing_numbers() -> None:
    batch = next(opened("a,b\n1,\n2,NA\n").batches())
    assert batch.schema.field("b").type == pa.float64()
    assert batch.column("b").null_count == 2


def test_the_type_of_a_column_is_found_where_its_first_cell_is() -> None:
    n_empty = 70_000  # more than one batch
    table = opened("a,b\n" + "1,\n" * n_empty + "1,word\n")
    batches = list(table.batches())
    assert {batch.schema.field("b").type for batch in batches} == {pa.string()}
    assert max(batch.num_rows for batch in batches) == 65_536
    assert sum(batch.num_rows for batch in batches) == n_empty + 1


def test_python_spellings_of_numbers_are_text() -> None:
    assert columns_of(opened("a\n1_0\n0x1\n", TextFormat(header=True))) == {"a": ["1_0", "0x1"]}


def test_a_point_under_a_decimal_comma_is_not_read_as_a_number() -> None:
    assert columns_of(opened("a;b\n1.234;1,5\n1.235;2,5\n", TextFormat(decimal=","))) == {
        "a": ["1.234", "1.235"],
        "b": [1.5, 2.5],
    }


def test_quoted_cells_may_hold_delimiters_quotes_and_line_breaks() -> None:
    assert columns_of(opened('a,b\n1,"x, ""y""\nz"\n2,w\n')) == {"a": [1, 2], "b": ['x, "y"\nz', "w"]}


def test_blanks_before_a_quote_do_not_hide_it() -> None:
    table = opened('"a", "b c"\n1, "x, ""y"""\n2,  "z"\n')
    assert columns_of(table) == {"a": [1, 2], "b c": ['x, "y"', "z"]}


def test_single_quotes_are_found() -> None:
    assert columns_of(opened("'a','b c'\n1,'x,y'\n")) == {"a": [1], "b c": ["x,y"]}


def test_a_quote_inside_a_cell_is_a_character_like_others() -> None:
    assert columns_of(opened('a,b\n1,6" pipe\n2,5" pipe\n')) == {"a": [1, 2], "b": ['6" pipe', '5" pipe']}


def test_quoting_can_be_switched_off() -> None:
    assert columns_of(opened('a,b\n1,"x\n2,y\n', TextFormat(quote=""))) == {"a": [1, 2], "b": ['"x', "y"]}


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_every_line_ending_is_read_and_blank_lines_are_ignored(end: str) -> None:
    lines = ["a,b", "", "1,2", "   ", "3,4"]
    assert columns_of(opened(end.join(lines))) == {"a": [1, 3], "b": [2, 4]}


def test_white_space_separated_cells_may_be_quoted() -> None:
    assert columns_of(opened('a  "b c"\n 1   "x  y" \n\n2 z\n')) == {"a": [1, 2], "b c": ["x  y", "z"]}


@pytest.mark.parametrize(
    ("content", "names"),
    [
        ("a,b\nx,1\n", ("a", "b")),
        ("a,b\nx,y\nz,y\n", ("a", "b")),
        ("x,y\nx,z\n", ("c1", "c2")),
        ("a,1\nb,2\n", ("c1", "c2")),
        (" a , b \n1,2\n", ("a", "b")),
    ],
)
def test_a_header_is_told_from_data(content: str, names: tuple[str, ...]) -> None:
    assert opened(content).names == names


def test_what_the_user_says_about_the_text_is_taken() -> None:
    said = TextFormat(delimiter=",", header=False, decimal=".", encoding="latin-1", quote="'")
    table = opened("a;b,'1,5'\nä;c,2\n".encode("latin-1"), said)
    assert columns_of(table, as_text=["c2"]) == {"c1": ["a;b", "ä;c"], "c2": ["1,5", "2"]}


def test_a_few_broken_rows_do_not_hide_the_delimiter() -> None:
    assert opened("a;b\n1;2\n3;4;5\n").names == ("a", "b")


def test_a_cell_longer_than_a_block_is_read() -> None:
    long = "x" * (9 << 20)
    assert columns_of(opened(f'a,b\n1,"{long}\n"\n2,y\n')) == {"a": [1, 2], "b": [long, "y"]}


def test_a_delimiter_that_is_usually_a_quote_quotes_nothing() -> None:
    assert columns_of(opened('a"b\n1"2\n', TextFormat(delimiter='"'))) == {"a": [1], "b": [2]}
