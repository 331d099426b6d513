"""ARFF: the header declares, the rows obey or are named."""

import gzip
from pathlib import Path

import pyarrow as pa
import pytest

from bayesnde_cli.data.readers import Table, TextFormat, open_table
from bayesnde_cli.errors import BadInput

HEADER = """% a comment, with 'quotes'

@RELATION 'some data'
@attribute size REAL
@attribute 'the colour' {red, 'dark blue', "it's", None}
@attribute code {0,1}
@ATTRIBUTE note string
@attribute day date "yyyy-MM-dd"
@data
"""
CHOSEN = ["size", "the colour", "code", "note"]


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def opened(content: str, pack=bytes) -> Table:
    Path("a.arff").write_bytes(pack(content.encode()))
    return open_table([Path("a.arff")])


def message(content: str, columns: list[str] | None = None) -> str:
    with pytest.raises(BadInput) as caught:
        list(opened(content).batches(columns))
    assert caught.value.exit_code == 2
    return str(caught.value)


@pytest.mark.parametrize("pack", [bytes, gzip.compress])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_declared_types_decide_and_question_marks_are_missing(pack, end: str) -> None:
    rows = """1.5, red, 0, 'a, "b"', ?
% a comment

?, 'dark blue', 1, "c", ?
2,"it's",?,'it\\'s',?
3,None,1,?,?
"""
    table = pa.Table.from_batches(opened((HEADER + rows).replace("\n", end), pack).batches(CHOSEN))
    assert table.to_pydict() == {
        "size": [1.5, None, 2.0, 3.0],
        "the colour": ["red", "dark blue", "it's", "None"],
        "code": ["0", "1", None, "1"],
        "note": ['a, "b"', "c", "it's", None],
    }


def test_a_value_that_is_not_declared() -> None:
    assert message(HEADER + "1,red,0,?,?\n2,green,0,?,?\n", CHOSEN) == (
        "error: column 'the colour' holds an undeclared value in row 2\n"
        "  cell: 'green'\n"
        "  declared: 'red', 'dark blue', \"it's\", 'None'\n"
        "hint: add the value to the @attribute line, or correct the cell"
    )


def test_text_in_a_numeric_column() -> None:
    assert message(HEADER + "big,red,0,?,?\n", CHOSEN) == (
        "error: column 'size' holds text in row 1\n"
        "  cell: 'big'\n"
        "hint: correct the cell; or use `--missing-token big`, `--drop size`, or `--type size=categorical`"
    )


def test_dates_are_refused_when_chosen() -> None:
    assert message(HEADER + "1,red,0,?,2020-01-01\n") == (
        "error: column 'day' holds dates\n  ARFF type: date\nhint: convert it to a number, or use `--drop day`"
    )


def test_sparse_rows() -> None:
    assert message(HEADER + "{0 1.5, 1 red}\n", CHOSEN) == (
        "error: a.arff is a sparse ARFF file\n"
        "  row: '{0 1.5, 1 red}'\n"
        "hint: convert it to dense rows, such as `1,0,0,5`"
    )


def test_an_unknown_type() -> None:
    assert message("@relation r\n@attribute a float32\n@data\n1\n") == (
        "error: a.arff declares a column of unknown type\n"
        "  line: '@attribute a float32'\n"
        "hint: use numeric, real, integer, string, date or {value, value, ...}"
    )


def test_no_data_line() -> None:
    assert message("@relation r\n@attribute a real\n1\n") == (
        "error: a.arff has no @data line\n  1 @attribute lines and the end of the file\nhint: put @data before the rows"
    )


def test_no_columns() -> None:
    assert message("@relation r\n@data\n1\n") == (
        "error: a.arff declares no column\n  no @attribute line before @data\nhint: correct the @attribute lines"
    )


def test_no_rows() -> None:
    assert message("@relation r\n@attribute a real\n@data\n% none\n") == (
        "error: a.arff holds no rows\n  1 columns and no row\nhint: give a file with rows"
    )


def test_a_row_with_a_wrong_number_of_cells() -> None:
    assert message("@relation r\n@attribute a real\n@attribute b real\n@data\n1,2\n% x\n3\n") == (
        "error: row 2 has 1 cell instead of 2\n  row: '3'\nhint: correct the row, or set `--delimiter` and `--quote`"
    )


def test_the_users_missing_tokens_count_here_too() -> None:
    Path("a.arff").write_text("@relation r\n@attribute a real\n@data\n1\n-9\n")
    table = open_table([Path("a.arff")], TextFormat(missing=("-9",)))
    assert [batch.to_pydict() for batch in table.batches()] == [{"a": [1.0, None]}]
