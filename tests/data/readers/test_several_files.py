"""Several files as one table: matched by name where there are names, by position where there are none."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bayesnde_cli.data.readers import Table, open_table
from bayesnde_cli.errors import BadInput


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def opened(*contents: str) -> Table:
    paths = [Path(f"{letter}.csv") for letter in "abc"[: len(contents)]]
    for path, content in zip(paths, contents, strict=True):
        path.write_text(content)
    return open_table(paths)


def read(table: Table, **options: object) -> dict[str, list]:
    return pa.Table.from_batches(table.batches(**options)).to_pydict()  # type: ignore[arg-type]


def message(*contents: str) -> str:
    with pytest.raises(BadInput) as caught:
        opened(*contents)
    assert caught.value.exit_code == 2
    return str(caught.value)


def test_columns_are_matched_by_name_in_any_order() -> None:
    table = opened("a,b\n1,x\n", "b;a\ny;2\n")
    assert read(table) == {"a": [1, 2], "b": ["x", "y"]}
    assert table.description == ("2 files: CSV, separated by ',', header, utf-8; CSV, separated by ';', header, utf-8")


def test_files_without_names_are_matched_by_position() -> None:
    assert read(opened("1 2\n", "3,4\n")) == {"c1": [1, 3], "c2": [2, 4]}


def test_later_files_without_names_take_those_of_the_first() -> None:
    assert read(opened("a,b\n1,2\n", "3,4\n")) == {"a": [1, 3], "b": [2, 4]}


def test_a_column_of_text_in_the_first_file_is_text_in_all() -> None:
    assert read(opened("a,n\nx,1\n", "a,n\n7,1\n")) == {"a": ["x", "7"], "n": [1, 1]}


def test_the_type_of_a_column_comes_from_the_first_file_that_fills_it() -> None:
    assert read(opened("a,n\n,1\n", "a,n\nx,1\n")) == {"a": [None, "x"], "n": [1, 1]}


def test_formats_may_be_mixed() -> None:
    pq.write_table(pa.table({"b": ["y"], "a": [2]}), "b.parquet")
    Path("a.csv").write_text("a,b\n1,x\n")
    table = open_table([Path("a.csv"), Path("b.parquet")])
    assert read(table, as_text=["a"]) == {"a": ["1", "2"], "b": ["x", "y"]}


def test_other_names_are_told_as_missing_and_extra() -> None:
    assert message("a,b\n1,x\n", "a,b\n1,x\n", "a,c,d\n1,x,y\n") == (
        "error: c.csv has other columns than a.csv\n"
        "  missing: 'b'\n"
        "  extra: 'c', 'd'\n"
        "hint: give files with the same columns, in any order"
    )


def test_another_number_of_columns() -> None:
    assert message("1,2\n", "1,2,3\n") == (
        "error: b.csv has 3 columns and a.csv has 2\n"
        "  files without column names are matched by position\n"
        "hint: give files with the same number of columns"
    )


def test_names_in_a_later_file_only() -> None:
    assert message("1,2\n", "a,b\n1,2\n") == (
        "error: b.csv names its columns and a.csv does not\n"
        "  names: 'a', 'b'\n"
        "hint: give the file with the names first, or use `--header yes` or `--header no` for all files"
    )
