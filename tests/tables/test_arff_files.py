"""ARFF: the header declares the columns, and rows that contradict it are named."""

import gzip
from collections.abc import Callable
from pathlib import Path

import pytest
from table_reading import opened, opened_text, read, refusal, text_refusal

pytestmark = pytest.mark.usefixtures("empty_folder")

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
ONE = "@relation r\n@attribute a real\n"


@pytest.mark.parametrize("pack", [bytes, gzip.compress])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_declared_types_decide_and_question_marks_are_missing(pack: Callable[[bytes], bytes], end: str) -> None:
    rows = """1.5, red, 0, 'a, "b"', ?
% a comment

?, 'dark blue', 1, "c", ?
2,"it's",?,'it\\'s',?
3,None,1,?,?
"""
    table = opened_text(pack((HEADER + rows).replace("\n", end).encode()))
    assert table.description == "ARFF, utf-8" + ", gzip" * (pack is gzip.compress)
    assert read(table, CHOSEN) == {
        "size": [1.5, None, 2.0, 3.0],
        "the colour": ["red", "dark blue", "it's", "None"],
        "code": ["0", "1", None, "1"],
        "note": ['a, "b"', "c", "it's", None],
    }


def test_missing_tokens_of_the_user_count() -> None:
    assert read(opened_text(f"{ONE}@data\n1\n-9\n", missing=("-9",))) == {"a": [1.0, None]}


@pytest.mark.parametrize(
    ("row", "start"),
    [
        ("2,green,0,?,?", "column 'the colour' holds an undeclared value in row 2 of a.arff\n  cell: 'green'\n"),
        ("big,red,0,?,?", "column 'size' holds text in row 2 of a.arff\n  cell: 'big'\n"),
        ("3", "row 2 of a.arff has 1 cell instead of 5\n  row: '3'\n"),
    ],
)
def test_wrong_rows(row: str, start: str) -> None:
    Path("a.arff").write_text(f"{HEADER}1,red,0,?,?\n% x\n{row}\n")
    assert refusal("a.arff", columns=CHOSEN).startswith(f"error: {start}")


def test_dates_are_refused_only_when_they_are_read() -> None:
    Path("a.arff").write_text(HEADER + "1,red,0,?,2020-01-01\n")
    assert refusal("a.arff") == (
        "error: column 'day' holds dates\n  ARFF type: date\nhint: convert it to a number, or use `--drop day`"
    )
    assert read(opened("a.arff"), ["size"]) == {"size": [1.0]}


@pytest.mark.parametrize(
    ("content", "start"),
    [
        ("@relation r\n@attribute a float32\n@data\n1\n", "a.csv declares a column of unknown type\n"),
        ("@relation r\n@data\n1\n", "a.csv is an ARFF file without columns or rows\n  @attribute lines: 0"),
        (f"{ONE}@attribute a real\n@data\n1,2\n", "a.csv has duplicate column names\n"),
        (f"{ONE}@data\n% none\n", "a.csv holds no rows\n"),
    ],
)
def test_wrong_headers(content: str, start: str) -> None:
    assert text_refusal(content).startswith(f"error: {start}")
