"""Tables: equal rows give equal bytes, every library opens them, and damage is detected."""

import errno
import gc
import os
import sys
from pathlib import Path

import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bayesnde_cli.errors import BadArtifact, CannotWrite, MissingArtifact
from bayesnde_cli.runs import parquet_files
from bayesnde_cli.runs.layout import RunLayout
from bayesnde_cli.runs.parquet_files import (
    RowRanges,
    Stamp,
    column_names,
    count_rows,
    iter_batches,
    read_table,
    write_table,
)

STAMP = Stamp("density", "r" * 16)
N_ROWS = 70_000  # a full row group and a part


def make_table(n_rows: int = N_ROWS) -> pa.Table:
    rng = np.random.default_rng(1)
    z = pa.FixedSizeListArray.from_arrays(pa.array(rng.normal(size=n_rows * 3).astype(np.float32)), 3)
    return pa.table(
        {
            "row_id": pa.array(np.arange(n_rows)),
            "log_density": pa.array(rng.normal(size=n_rows)),
            "z": z,
            "converged": pa.array(rng.random(n_rows) < 0.5),
            "label": pa.array([None if i % 7 == 0 else f"klasse ä{i % 5}" for i in range(n_rows)], pa.string()),
        }
    )


TABLE = make_table()


@pytest.fixture
def layout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunLayout:
    monkeypatch.chdir(tmp_path)
    return RunLayout(Path("run"))


@pytest.fixture
def path(layout: RunLayout) -> Path:
    return layout.density_file("test")


def pieces(table: pa.Table, n_rows: int) -> list[pa.RecordBatch]:
    return table.to_batches(max_chunksize=n_rows)


@pytest.mark.parametrize("n_rows", [7_001, 65_537])
def test_the_bytes_do_not_depend_on_how_rows_come_in(tmp_path: Path, n_rows: int) -> None:
    write_table(tmp_path / "whole", TABLE, STAMP)
    write_table(tmp_path / "pieces", pieces(TABLE, n_rows), STAMP)
    assert (tmp_path / "pieces").read_bytes() == (tmp_path / "whole").read_bytes()


def test_pages_do_not_follow_the_pieces_of_a_wide_column(tmp_path: Path) -> None:
    # 3 MB: several pages in one row group, whose borders could betray where a piece ended.
    values = pa.array(np.random.default_rng(2).normal(size=20_000 * 40).astype(np.float32))
    wide = pa.table({"z": pa.FixedSizeListArray.from_arrays(values, 40)})
    write_table(tmp_path / "whole", wide, STAMP)
    write_table(tmp_path / "pieces", pieces(wide, 777), STAMP)
    assert (tmp_path / "pieces").read_bytes() == (tmp_path / "whole").read_bytes()


def test_a_table_reads_back_as_it_was(path: Path) -> None:
    write_table(path, TABLE, STAMP)
    found = read_table(path, STAMP)
    assert found.replace_schema_metadata(None).equals(TABLE)
    assert read_table(path, "density", ["z", "row_id"]).column_names == ["z", "row_id"]
    assert count_rows(path, "density") == N_ROWS
    batches = list(iter_batches(path, "density", ["row_id"]))
    assert pa.Table.from_batches(batches)["row_id"].to_pylist() == list(range(N_ROWS))
    assert len(batches) == 2


def test_rows_as_wide_as_images_come_in_smaller_row_groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet_files, "ROW_GROUP_CELLS", 700)
    wide = pa.array(np.zeros((40, 60)).tolist(), pa.list_(pa.float64(), 60))
    write_table(tmp_path / "wide", pa.table({"x": wide, "n": range(40)}), STAMP)
    write_table(tmp_path / "narrow", pa.table({"n": range(40)}), STAMP)
    sizes = {}
    for name in ("wide", "narrow"):
        found = pq.read_metadata(tmp_path / name)
        sizes[name] = [found.row_group(index).num_rows for index in range(found.num_row_groups)]
    assert sizes == {"wide": [8, 8, 8, 8, 8], "narrow": [40]}  # 700 cells are 11 rows of 61


def test_files_have_fixed_row_groups_statistics_and_a_stamp(path: Path) -> None:
    write_table(path, TABLE, Stamp("density", "r" * 16, "p" * 64))
    found = pq.read_metadata(path)
    sizes = [found.row_group(i).num_rows for i in range(found.num_row_groups)]
    assert sizes == [65_536, N_ROWS - 65_536]
    column = found.row_group(0).column(0)
    assert (column.compression, column.statistics.max) == ("ZSTD", 65_535)
    stamp = {key: value for key, value in found.metadata.items() if key.startswith(b"bayesnde.")}
    assert stamp == {
        b"bayesnde.schema": b"density",
        b"bayesnde.schema_version": b"1",
        b"bayesnde.run_id": b"r" * 16,
        b"bayesnde.plan_hash": b"p" * 64,
    }


def test_duckdb_pandas_and_polars_open_the_files_as_they_are(path: Path) -> None:
    table = make_table(100)
    write_table(path, table, STAMP)
    expected = table.to_pylist()

    rows = duckdb.read_parquet(str(path)).order("row_id").to_arrow_table().to_pylist()
    assert [{**row, "z": list(row["z"])} for row in rows] == expected

    frame = pd.read_parquet(path)
    assert list(frame.columns) == table.column_names
    assert frame["log_density"].dtype == np.float64
    assert frame["row_id"].dtype == np.int64
    assert frame["converged"].dtype == np.bool_
    assert [list(row) for row in frame["z"]] == [row["z"] for row in expected]

    polars_frame = pl.read_parquet(path)
    assert polars_frame.schema["z"] == pl.Array(pl.Float32, 3)
    assert polars_frame.schema["label"] == pl.String
    assert [{**row, "z": list(row["z"])} for row in polars_frame.to_dicts()] == expected


@pytest.mark.parametrize("how", ["truncated", "text", "one bit"])
def test_a_damaged_file_is_named_with_the_command_that_repairs_it(path: Path, how: str) -> None:
    write_table(path, TABLE, STAMP)
    content = path.read_bytes()
    one_bit = bytearray(content)
    one_bit[2000] ^= 1
    path.write_bytes({"truncated": content[:-100], "text": b"row_id\n" * 10, "one bit": bytes(one_bit)}[how])
    with pytest.raises(BadArtifact) as caught:
        read_table(path, "density")
    what, found, hint = str(caught.value).split("\n")
    assert what == "error: run/density/test/density.parquet cannot be read as a Parquet file"
    assert found.startswith("  ")
    assert hint == "hint: run `bayesnde density --restart`"


@pytest.mark.parametrize(
    ("wanted", "version", "message"),
    [
        (Stamp("posterior"), 1, "is not the expected table\n  bayesnde.schema is density, expected posterior"),
        (Stamp("density", plan_hash="x"), 1, "is not the expected table\n  bayesnde.plan_hash is (none), expected x"),
        (STAMP, 2, "has another format version\n  schema version 2, this bayesnde reads 1"),
        (STAMP, None, "is missing\n  no such file"),
    ],
)
def test_a_table_of_something_else_is_refused(
    path: Path, monkeypatch: pytest.MonkeyPatch, wanted: Stamp, version: int | None, message: str
) -> None:
    if version is not None:
        with monkeypatch.context() as patch:
            patch.setattr(parquet_files, "FORMAT_VERSION", version)
            write_table(path, make_table(10), STAMP)
    with pytest.raises(BadArtifact if version else MissingArtifact) as caught:
        read_table(path, wanted)
    restart = " --restart" if version else ""
    assert str(caught.value) == (
        f"error: run/density/test/density.parquet {message}\nhint: run `bayesnde density{restart}`"
    )


def test_a_table_that_the_system_refuses_is_let_go_without_another_word(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A writer that is only dropped would try again when it is collected, and Python print a traceback of that."""
    close, told = pq.ParquetWriter.close, []

    def refused(writer: pq.ParquetWriter) -> None:
        if writer.is_open:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        close(writer)

    monkeypatch.setattr(pq.ParquetWriter, "close", refused)
    monkeypatch.setattr(sys, "unraisablehook", lambda unraisable: told.append(unraisable.exc_value))
    with pytest.raises(CannotWrite):
        write_table(tmp_path / "t.parquet", make_table(3), STAMP)
    gc.collect()
    assert told == []
    assert list(tmp_path.iterdir()) == []


ROWS = pa.table({"row_id": range(25), "x": [index / 3 for index in range(25)], "other": ["?"] * 25})


@pytest.fixture
def grouped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A table in four row groups."""
    monkeypatch.setattr(parquet_files, "ROW_GROUP_ROWS", 7)
    write_table(tmp_path / "t.parquet", ROWS, STAMP)
    assert pq.read_metadata(tmp_path / "t.parquet").num_row_groups == 4
    return tmp_path / "t.parquet"


def test_every_range_is_a_slice_of_the_table(grouped: Path) -> None:
    ranges = RowRanges(grouped, STAMP, ["row_id", "x"])
    assert ranges.n_rows == 25
    for start in range(0, 25, 3):
        for stop in range(start + 1, 26, 2):
            expected = ROWS.slice(start, stop - start).select(["row_id", "x"])
            assert ranges.read(start, stop).replace_schema_metadata(None).equals(expected)


def test_ranges_of_another_table_are_refused(grouped: Path, tmp_path: Path) -> None:
    assert column_names(grouped, STAMP) == ["row_id", "x", "other"]
    with pytest.raises(BadArtifact, match=r"bayesnde\.run_id is r+, expected another"):
        RowRanges(grouped, Stamp("density", "another"), ["x"])
    with pytest.raises(MissingArtifact):
        RowRanges(tmp_path / "none.parquet", STAMP, ["x"])
