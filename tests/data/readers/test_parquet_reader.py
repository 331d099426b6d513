"""Parquet: numbers of all sorts become float64, strings stay, the rest is refused when it is chosen."""

import datetime
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bayesnde_cli.data.readers import open_table
from bayesnde_cli.errors import BadInput

COLUMNS = {
    "i": pa.array([17, None], pa.int64()),
    "f": pa.array([0.5, float("nan")], pa.float32()),
    "d": pa.array([Decimal("1.25"), None]),
    "b": pa.array([True, False]),
    "s": pa.array(["x", None]),
    "l": pa.array(["x", "y"], pa.large_string()),
    "k": pa.array(["x", "y"]).dictionary_encode(),
    "n": pa.array([None, None], pa.null()),
    "t": pa.array([datetime.date(2020, 1, 2), None]),
    "v": pa.array([[1, 2], [3]]),
}


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    pq.write_table(pa.table(COLUMNS), "a.parquet")


def read(columns: list[str], as_text: list[str] | None = None) -> dict[str, list]:
    return pa.Table.from_batches(open_table([Path("a.parquet")]).batches(columns, as_text=as_text or [])).to_pydict()


def message(columns: list[str], *names: str, as_text: list[str] | None = None) -> str:
    with pytest.raises(BadInput) as caught:
        list(open_table([Path(name) for name in names or ["a.parquet"]]).batches(columns, as_text=as_text or []))
    assert caught.value.exit_code == 2
    return str(caught.value)


def test_every_sort_of_number_becomes_float64_and_nan_is_missing() -> None:
    assert read(["i", "f", "d", "b", "n"]) == {
        "i": [17.0, None],
        "f": [0.5, None],
        "d": [1.25, None],
        "b": [1.0, 0.0],
        "n": [None, None],
    }


def test_every_sort_of_string_becomes_string() -> None:
    assert read(["k", "s", "l"]) == {"k": ["x", "y"], "s": ["x", None], "l": ["x", "y"]}


def test_columns_as_text_are_spelled_plainly() -> None:
    chosen = ["i", "f", "d", "b", "t"]
    assert read(chosen, chosen) == {
        "i": ["17", None],
        "f": ["0.5", None],
        "d": ["1.25", None],
        "b": ["true", "false"],
        "t": ["2020-01-02", None],
    }


def test_integers_past_the_precision_of_a_double_are_rounded() -> None:
    pq.write_table(pa.table({"i": [2**60 + 1]}), "a.parquet")
    assert read(["i"]) == {"i": [float(2**60)]}


def test_dates_are_refused_when_chosen() -> None:
    assert message(["i", "t"]) == (
        "error: column 't' of a.parquet holds neither numbers nor text\n"
        "  type: date32[day]\n"
        "hint: use `--type t=categorical`, or `--drop t`"
    )


@pytest.mark.parametrize("as_text", [[], ["v"]])
def test_nested_columns_are_refused_when_chosen(as_text: list[str]) -> None:
    text = message(["v"], as_text=as_text)
    assert text.startswith("error: column 'v' of a.parquet holds neither numbers nor text\n  type: list<")
    assert text.endswith("\nhint: flatten it into columns of numbers, or use `--drop v`")


def test_batches_are_bounded() -> None:
    pq.write_table(pa.table({"x": pa.array(range(150_000))}), "a.parquet")
    batches = list(open_table([Path("a.parquet")]).batches())
    assert [batch.num_rows for batch in batches] == [65_536, 65_536, 18_928]


def test_a_truncated_parquet_file() -> None:
    Path("a.parquet").write_bytes(Path("a.parquet").read_bytes()[:-9])
    assert message(["i"]).startswith("error: a.parquet is a truncated or damaged Parquet file\n")


def test_a_parquet_file_without_rows() -> None:
    pq.write_table(pa.table({"x": pa.array([], pa.float64())}), "a.parquet")
    assert message(["x"]) == "error: a.parquet holds no rows\n  Parquet, 0 x 1\nhint: give a file with rows"


def test_files_of_different_types() -> None:
    pq.write_table(pa.table({"x": [1.0]}), "a.parquet")
    pq.write_table(pa.table({"x": ["one"]}), "b.parquet")
    assert message(["x"], "a.parquet", "b.parquet") == (
        "error: column 'x' holds text in b.parquet and numbers in a file before it\n"
        "  type: text\n"
        "hint: use `--type x=categorical`, or give files of equal types"
    )


@pytest.mark.parametrize("as_text", [[], ["x"]])
def test_half_floats_and_coded_integers_are_numbers(as_text: list[str]) -> None:
    pq.write_table(pa.table({"x": pa.array([1, 2, 1]).dictionary_encode()}), "a.parquet")
    assert read(["x"], as_text) == {"x": ["1", "2", "1"] if as_text else [1.0, 2.0, 1.0]}
    pq.write_table(pa.table({"x": pa.array([1.5, None], pa.float16())}), "a.parquet")
    assert read(["x"], as_text) == {"x": ["1.5", None] if as_text else [1.5, None]}


def test_row_groups_without_rows_are_no_damage() -> None:
    table = pa.table({"k": ["x", "y", "x"], "d": [1.0, 2.0, 1.0]})
    with pq.ParquetWriter("a.parquet", table.schema) as writer:
        for part in (table, table.slice(0, 0), table):
            writer.write_table(part)
    assert read(["k", "d"]) == {"k": ["x", "y", "x"] * 2, "d": [1.0, 2.0, 1.0] * 2}


def test_text_in_an_encoding_that_pyarrow_cannot_read_is_no_damage() -> None:
    table = pa.table({"k": ["x", "y", "x"], "d": [1.0, 2.0, 1.0]})
    pq.write_table(table, "a.parquet", use_dictionary=False, column_encoding={"k": "DELTA_BYTE_ARRAY"})
    assert message(["k"]).startswith("error: a.parquet holds text in an encoding that cannot be read\n  ")
    assert read(["d"]) == {"d": [1.0, 2.0, 1.0]}
