"""Mistakes in delimited text: each message whole, with row, cell and way out."""

from pathlib import Path

import pytest

from bayesnde_cli.data.readers import TextFormat, open_table
from bayesnde_cli.errors import BadInput


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def message(*contents: str | bytes, **said: object) -> str:
    paths = [Path(f"{letter}.csv") for letter in "abc"[: len(contents)]]
    for path, content in zip(paths, contents, strict=True):
        path.write_bytes(content.encode() if isinstance(content, str) else content)
    with pytest.raises(BadInput) as caught:
        list(open_table(paths, TextFormat(**said)).batches())  # type: ignore[arg-type]
    assert caught.value.exit_code == 2
    return str(caught.value)


def test_text_in_a_column_of_numbers() -> None:
    assert message("age,x\n" + "1,1\n" * 16 + "n/a2,1\n") == (
        "error: column 'age' holds text in row 17\n"
        "  cell: 'n/a2'\n"
        "hint: correct the cell; or use `--missing-token n/a2`, `--drop age`, or `--type age=categorical`"
    )


def test_a_row_is_counted_within_its_file_and_the_file_is_named_when_there_are_several() -> None:
    assert message("age\n1\n2\n", "age\n3\nx\n5\n") == (
        "error: column 'age' holds text in row 2 of b.csv\n"
        "  cell: 'x'\n"
        "hint: correct the cell; or use `--missing-token x`, `--drop age`, or `--type age=categorical`"
    )


def test_rows_are_counted_across_batches() -> None:
    assert "in row 70001\n" in message("age\n" + "1\n" * 70_000 + "x\n")


def test_rows_are_counted_across_blocks_with_line_breaks_in_cells() -> None:
    row = '1,"' + "y" * 200 + '\n"\n'
    assert message("a,b\n" + row * 60_000 + "\n1,2,3\n").startswith("error: row 60001 has 3 cells instead of 2")


def test_control_characters_are_spelled_out() -> None:
    assert message("a\x1b[31m b\n1\n2\n\x1b[2Jx\n", delimiter=",") == (
        "error: column 'a\\x1b[31m b' holds text in row 3\n"
        "  cell: '\\x1b[2Jx'\n"
        "hint: correct the cell; or use `--missing-token '\\x1b[2Jx'`, `--drop 'a\\x1b[31m b'`, "
        "or `--type 'a\\x1b[31m b=categorical'`"
    )


def test_a_row_with_too_many_cells() -> None:
    assert message("a,b\n1,2\n\n   \n" + "3,4," + "5" * 80 + "\n1,2\n") == (
        "error: row 2 has 3 cells instead of 2\n"
        f"  row: '3,4,{'5' * 53}...'\n"
        "hint: correct the row, or set `--delimiter` and `--quote`"
    )


def test_a_row_with_too_few_cells() -> None:
    assert message("1,2,3\n1,2,3\n1,2\n") == (
        "error: row 3 has 2 cells instead of 3\n  row: '1,2'\nhint: correct the row, or set `--delimiter` and `--quote`"
    )


OPEN_QUOTE_HINT = 'hint: close it; if the character does not quote cells here, use `--quote ""`'


@pytest.mark.parametrize("row", ['1,"x', '"1,x'])
def test_a_quote_left_open(row: str) -> None:
    assert message(f"a,b\n5,6\n{row}\n2,3\n") == (
        f"error: row 2 opens a quote that is not closed\n  row: '{row}\\n2,3'\n{OPEN_QUOTE_HINT}"
    )


def test_a_quote_left_open_early_in_a_large_file() -> None:
    text = message('a,b\n1,"x\n' + "2,3\n" * 9_000_000)
    assert text.startswith("error: row 1 opens a quote that is not closed\n  row: '1,\"x\\n2,3\\n")


def test_a_quote_left_open_in_the_header() -> None:
    text = message('a,"b\n1,2\n', header=True, delimiter=",")
    assert text == (
        f"error: the header of a.csv opens a quote that is not closed\n  row: 'a,\"b\\n1,2'\n{OPEN_QUOTE_HINT}"
    )


def test_names_that_occur_twice() -> None:
    assert message("a,b,a,b,c\n1,2,3,4,5\n") == (
        "error: a.csv has several columns of one name\n"
        "  more than once: 'a', 'b'\n"
        "hint: rename them; if the first line is data, use `--header no`"
    )


def test_an_empty_name_becomes_one_by_position_unless_that_is_taken() -> None:
    assert message("a, ,c2\n1,2,3\n") == (
        "error: a.csv has several columns of one name\n"
        "  more than once: 'c2'\n"
        "hint: rename them; if the first line is data, use `--header no`"
    )


def test_a_header_without_rows() -> None:
    assert message("a,b\n") == (
        "error: a.csv holds a header and no rows\n"
        "  header: 'a', 'b'\n"
        "hint: give a file with rows; if this line is data, use `--header no`"
    )


def test_blanks_only() -> None:
    assert message(" \n\n \n") == "error: a.csv is empty\n  no text\nhint: give a file that holds a table"


def test_binary_content() -> None:
    assert message(b"\x01\x02\x00\x03") == (
        "error: a.csv is not text\n"
        "  NUL bytes, as in binary files\n"
        "hint: give CSV, Parquet, NPY, NPZ, MAT, IDX or ARFF; for UTF-16 text set `--encoding utf-16-le`"
    )


def test_bytes_that_the_encoding_does_not_have() -> None:
    assert message(b"a,b\n1,\x81\n", encoding="utf8") == (
        "error: a.csv is not utf-8 text\n  bytes: b'\\x81\\n'\nhint: set `--encoding`, for example `--encoding latin-1`"
    )


def test_a_wrong_byte_far_behind_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    from bayesnde_cli.data.readers import encoding

    monkeypatch.setattr(encoding, "TRIED_BYTES", 1 << 20)
    content = b"x\n" + b"1\n" * (5 << 20) + b"\xff\n"
    assert message(content) == (
        "error: a.csv is not utf-8 text\n  bytes: b'\\xff\\n'\nhint: set `--encoding`, for example `--encoding latin-1`"
    )


def test_an_encoding_that_does_not_exist() -> None:
    assert message("a\n1\n", encoding="utf-9") == (
        "error: unknown encoding 'utf-9'\n"
        "  encodings go by names such as utf-8, latin-1, cp1252, utf-16\n"
        "hint: set `--encoding` to one of them, or leave it out"
    )


def test_a_delimiter_of_two_characters() -> None:
    with pytest.raises(BadInput) as caught:
        TextFormat(delimiter="::")
    assert str(caught.value) == (
        "error: '::' cannot be used with --delimiter\n"
        "  not one ASCII character\n"
        "hint: give one character, such as `--delimiter ';'`"
    )


@pytest.mark.parametrize(
    "said", [{"decimal": ";"}, {"decimal": ",", "delimiter": ","}, {"delimiter": "'", "quote": "'"}]
)
def test_contradictions_about_the_text_are_refused(said: dict[str, str]) -> None:
    with pytest.raises(BadInput):
        TextFormat(**said)  # type: ignore[arg-type]


def test_a_column_that_is_not_there() -> None:
    Path("a.csv").write_text("age,job\n1,x\n")
    with pytest.raises(BadInput) as caught:
        open_table([Path("a.csv")]).batches(["agee"])
    assert str(caught.value) == ("error: there is no column 'agee'\n  columns: 'age', 'job'\nhint: did you mean 'age'?")


def test_a_row_without_end() -> None:
    text = message("1," * (20 << 20))
    start = ("1," * 30)[:57]
    assert text == (
        f"error: the first row of a.csv has no end\n  row: '{start}...'\n  more than 32 MiB without a line break\n"
        "hint: give a text file with one row per line"
    )
