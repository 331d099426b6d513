"""Tables: equal rows give equal bytes, every reader opens them, and damage is seen."""

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

import parquet_bombs
from bayesnde_cli.artifacts import tables
from bayesnde_cli.artifacts.blocks import iter_blocks, publish_block, read_block
from bayesnde_cli.artifacts.layout import RunLayout
from bayesnde_cli.artifacts.plan import Plan
from bayesnde_cli.artifacts.tables import Stamp, count_rows, iter_batches, read_table, write_table, writing_table
from bayesnde_cli.errors import BadArtifact, CannotWrite, MissingArtifact

STAMP = {"schema_name": "density", "schema_version": 1, "run_id": "r" * 16}
N_ROWS = 150_000  # two full row groups and a part


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
def layout(tmp_path, monkeypatch) -> RunLayout:
    monkeypatch.chdir(tmp_path)
    return RunLayout(Path("run"))


@pytest.fixture
def path(layout) -> Path:
    return layout.density_file("test")


def pieces(table: pa.Table, n_rows: int) -> list[pa.RecordBatch]:
    return table.to_batches(max_chunksize=n_rows)


@pytest.mark.parametrize("n_rows", [7_001, 65_536, 65_537, 100_000])
def test_the_bytes_do_not_depend_on_how_rows_come_in(tmp_path, n_rows):
    write_table(tmp_path / "whole", TABLE, **STAMP)
    write_table(tmp_path / "pieces", pieces(TABLE, n_rows), **STAMP)
    assert (tmp_path / "pieces").read_bytes() == (tmp_path / "whole").read_bytes()


def test_pages_do_not_follow_the_pieces_of_a_wide_column(tmp_path):
    # 3 MB: several pages in one row group, whose borders could betray where a piece ended.
    values = pa.array(np.random.default_rng(2).normal(size=20_000 * 40).astype(np.float32))
    wide = pa.table({"z": pa.FixedSizeListArray.from_arrays(values, 40)})
    write_table(tmp_path / "whole", wide, **STAMP)
    write_table(tmp_path / "pieces", pieces(wide, 777), **STAMP)
    assert (tmp_path / "pieces").read_bytes() == (tmp_path / "whole").read_bytes()


def test_the_bytes_do_not_depend_on_what_other_libraries_left_in_the_schema(tmp_path):
    write_table(tmp_path / "plain", TABLE, **STAMP)
    dressed = TABLE.set_column(4, "label", TABLE["label"].dictionary_encode())
    dressed = dressed.replace_schema_metadata({"pandas": "{}"})
    write_table(tmp_path / "dressed", dressed, **STAMP)
    write_table(tmp_path / "again", read_table(tmp_path / "plain", "density"), **STAMP)
    assert (tmp_path / "dressed").read_bytes() == (tmp_path / "plain").read_bytes()
    assert (tmp_path / "again").read_bytes() == (tmp_path / "plain").read_bytes()


def test_other_rows_give_other_bytes(tmp_path):
    write_table(tmp_path / "a", TABLE, **STAMP)
    write_table(tmp_path / "b", TABLE.slice(1), **STAMP)
    assert (tmp_path / "a").read_bytes() != (tmp_path / "b").read_bytes()


def test_a_table_reads_back_as_it_was(path):
    write_table(path, TABLE, **STAMP)
    found = read_table(path, "density", run_id="r" * 16)
    assert found.replace_schema_metadata(None).equals(TABLE)
    assert read_table(path, "density", ["z", "row_id"]).column_names == ["z", "row_id"]
    assert count_rows(path, "density") == N_ROWS
    batches = list(iter_batches(path, "density", ["row_id"], batch_rows=50_000))
    assert pa.Table.from_batches(batches)["row_id"].to_pylist() == list(range(N_ROWS))
    assert max(batch.num_rows for batch in batches) <= 50_000


def test_a_table_that_is_read_in_batches_is_not_held(tmp_path):
    """Ten row groups of noise, which no compression makes smaller: at most a few of them are in memory."""
    group = pa.table({"x": np.random.default_rng(3).normal(size=65_536)})
    write_table(tmp_path / "t", [batch for _ in range(10) for batch in group.to_batches()], **STAMP)
    before = pa.total_allocated_bytes()
    most = max(pa.total_allocated_bytes() - before for _ in iter_batches(tmp_path / "t", "density"))
    assert most < 4 * group.nbytes


def test_rows_as_wide_as_images_come_in_smaller_row_groups(tmp_path, monkeypatch):
    monkeypatch.setattr(tables, "ROW_GROUP_CELLS", 700)
    wide = pa.array(np.zeros((40, 60)).tolist(), pa.list_(pa.float64(), 60))
    write_table(tmp_path / "wide", pa.table({"x": wide, "n": range(40)}), **STAMP)
    write_table(tmp_path / "narrow", pa.table({"n": range(40)}), **STAMP)
    sizes = {}
    for name in ("wide", "narrow"):
        found = pq.read_metadata(tmp_path / name)
        sizes[name] = [found.row_group(index).num_rows for index in range(found.num_row_groups)]
    assert sizes == {"wide": [8, 8, 8, 8, 8], "narrow": [40]}  # 700 cells are 11 rows of 61


def test_files_have_fixed_row_groups_statistics_and_a_stamp(path):
    write_table(path, TABLE, **STAMP, plan_hash="p" * 64)
    found = pq.read_metadata(path)
    sizes = [found.row_group(i).num_rows for i in range(found.num_row_groups)]
    assert sizes == [65_536, 65_536, N_ROWS - 131_072]
    column = found.row_group(0).column(0)
    assert (column.compression, column.statistics.max) == ("ZSTD", 65_535)
    stamp = {key: value for key, value in found.metadata.items() if key.startswith(b"bayesnde.")}
    assert stamp.pop(b"bayesnde.sha256") != b"0" * 64
    assert stamp == {
        b"bayesnde.schema": b"density",
        b"bayesnde.schema_version": b"1",
        b"bayesnde.run_id": b"r" * 16,
        b"bayesnde.plan_hash": b"p" * 64,
    }


@pytest.mark.parametrize("n_rows", [0, 100])
def test_duckdb_pandas_and_polars_open_the_files_as_they_are(path, n_rows):
    table = make_table(n_rows)
    write_table(path, table, **STAMP)
    expected = table.to_pylist()

    query = duckdb.sql(f"select * from '{path}' order by row_id")
    rows = [dict(zip(query.columns, row, strict=True)) for row in query.fetchall()]
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


def test_rows_with_other_columns_are_refused_and_leave_nothing(path):
    def write_strangers() -> None:
        with writing_table(path, TABLE.schema, Stamp(**STAMP)) as writer:
            writer.write(TABLE)
            writer.write(pa.table({"row_id": [1]}))

    with pytest.raises(ValueError, match="names are not matching"):
        write_strangers()
    assert os.listdir(path.parent) == []


def test_a_disk_that_fills_up_under_parquet_is_named(path, monkeypatch):
    def full(*arguments: object, **options: object) -> None:
        raise OSError(errno.ENOSPC, "Error writing bytes to file. Detail: [errno 28] No space left on device")

    monkeypatch.setattr(pq.ParquetWriter, "write_table", full)
    with pytest.raises(CannotWrite) as caught:
        write_table(path, TABLE, **STAMP)
    assert str(caught.value) == (
        "error: cannot write run/density/test/density.parquet\n"
        "  No space left on device\n"
        "hint: free some space and run the same command again; finished work is kept"
    )
    assert os.listdir(path.parent) == []


def spoil(path: Path, how: str) -> None:
    content = path.read_bytes()
    flipped = bytearray(content)
    flipped[2000] ^= 1
    spoiled = {
        "empty": b"",
        "truncated": content[:-100],
        "text": b"row_id,log_density\n" * 10,
        "one bit": bytes(flipped),
    }
    path.write_bytes(spoiled[how])


@pytest.mark.parametrize("how", ["empty", "truncated", "text", "one bit"])
def test_a_damaged_file_is_named_with_the_command_that_repairs_it(path, how):
    write_table(path, TABLE, **STAMP)
    spoil(path, how)
    with pytest.raises(BadArtifact) as caught:
        read_table(path, "density")
    what, found, hint = str(caught.value).split("\n")
    if how == "one bit":
        assert what == "error: run/density/test/density.parquet is damaged"
        assert found == "  it is not what its own SHA-256 says"
    else:
        assert what == "error: run/density/test/density.parquet cannot be read as a Parquet file"
        assert found.startswith("  ")
    assert hint == "hint: run `bayesnde density --restart`"


def test_not_a_bit_of_a_small_table_can_be_flipped_unseen(path):
    write_table(path, TABLE.slice(0, 3), **STAMP, plan_hash="p" * 64)
    content = path.read_bytes()
    read_table(path, "density", plan_hash="p" * 64)
    for bit in np.random.default_rng(0).choice(8 * len(content), 400, replace=False):
        flipped = bytearray(content)
        flipped[bit // 8] ^= 1 << bit % 8
        path.write_bytes(flipped)
        with pytest.raises(BadArtifact):
            read_table(path, "density", plan_hash="p" * 64)


def test_a_table_of_a_plan_says_what_its_sha256_is(path):
    path.parent.mkdir(parents=True)
    stamp = Stamp("density", 1, "r" * 16, "p" * 64).metadata()
    pq.write_table(TABLE.slice(0, 3).replace_schema_metadata(stamp), path)
    read_table(path, "density")  # one that a manifest tells of may be from before there were digests
    with pytest.raises(BadArtifact) as caught:
        read_table(path, "density", plan_hash="p" * 64)
    assert caught.value.found == ("it does not say what its SHA-256 is",)


def test_a_table_that_unpacks_without_end_is_refused(path):
    path.parent.mkdir(parents=True)
    stamp = Stamp("density", 1, "r" * 16).metadata()
    path.write_bytes(parquet_bombs.repeated(1000, metadata=stamp))
    assert read_table(path, "density").num_rows == 1000
    path.write_bytes(parquet_bombs.repeated(10**12, metadata=stamp))
    with pytest.raises(BadArtifact) as caught:
        read_table(path, "density")
    assert str(caught.value) == (
        "error: run/density/test/density.parquet is damaged\n"
        f"  {path.stat().st_size:,} bytes become 8,000,000,000,000\n"
        "hint: run `bayesnde density --restart`"
    )


def test_a_table_of_ours_that_is_nearly_all_zeros_is_no_trap(path, monkeypatch):
    zeros = pa.table({"a": np.zeros(400_000)})
    monkeypatch.setattr("bayesnde_cli.headers.unpacked.FREE_BYTES", 1 << 16)
    write_table(path, zeros, **STAMP)
    assert path.stat().st_size < zeros.nbytes / 250
    assert read_table(path, "density").equals(zeros)
    monkeypatch.setattr("bayesnde_cli.artifacts.tables.memory_bytes", lambda: 1 << 20)
    again = path.with_name("again.parquet")
    write_table(again, zeros, **STAMP)
    with pytest.raises(BadArtifact):
        read_table(again, "density")


def test_damage_is_also_seen_in_batches(path):
    write_table(path, TABLE, **STAMP)
    spoil(path, "one bit")
    with pytest.raises(BadArtifact):
        list(iter_batches(path, "density"))


def test_a_missing_table_is_named(path):
    with pytest.raises(MissingArtifact) as caught:
        read_table(path, "density")
    assert str(caught.value) == (
        "error: run/density/test/density.parquet is not there\n  no such file\nhint: run `bayesnde density`"
    )


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        ({"schema_name": "posterior"}, "bayesnde.schema is density, expected posterior"),
        ({"schema_name": "density", "run_id": "x"}, f"bayesnde.run_id is {'r' * 16}, expected x"),
        ({"schema_name": "density", "plan_hash": "x"}, "bayesnde.plan_hash is (none), expected x"),
    ],
)
def test_a_table_of_something_else_is_refused(path, wanted, found):
    write_table(path, make_table(10), **STAMP)
    with pytest.raises(BadArtifact) as caught:
        read_table(path, **wanted)
    assert str(caught.value) == (
        "error: run/density/test/density.parquet is not the table that was expected\n"
        f"  {found}\n"
        "hint: run `bayesnde density --restart`"
    )


def test_a_foreign_parquet_file_is_refused(path):
    path.parent.mkdir(parents=True)
    pq.write_table(make_table(10), path)
    with pytest.raises(BadArtifact) as caught:
        read_table(path, "density")
    assert caught.value.found == ("bayesnde.schema is (none), expected density",)


def test_a_newer_table_is_not_guessed_at(path):
    write_table(path, make_table(10), **{**STAMP, "schema_version": 3})
    with pytest.raises(BadArtifact) as caught:
        read_table(path, "density", schema_version=2)
    assert str(caught.value) == (
        "error: run/density/test/density.parquet was written by a newer bayesnde\n"
        "  schema version 3, this bayesnde reads up to 2\n"
        "hint: upgrade bayesnde, or run `bayesnde density --restart`"
    )
    assert read_table(path, "density", schema_version=3).num_rows == 10


def test_a_column_that_is_not_there_is_named(path):
    write_table(path, pa.table({"a": [1], "b": [2]}), **STAMP)
    with pytest.raises(BadArtifact) as caught:
        read_table(path, "density", ["a", "c"])
    assert str(caught.value) == (
        "error: run/density/test/density.parquet lacks a column\n"
        "  missing: c\n"
        "  there: a, b\n"
        "hint: run `bayesnde density --restart`"
    )


def test_blocks_are_published_once_and_gathered_in_order(layout):
    plan = Plan("density", "test", "r" * 16, n_rows=250, block_rows=100, seed=0)
    table = make_table(250)
    for block in (2, 0, 1):
        start, stop = plan.rows(block)
        assert publish_block(layout, plan, block, table.slice(start, stop - start)) is True
        assert publish_block(layout, plan, block, table.slice(0, 1)) is False
    gathered = pa.concat_tables(iter_blocks(layout, plan))
    assert gathered.replace_schema_metadata(None).equals(table)


def test_a_block_of_another_plan_is_refused(layout):
    plan = Plan("density", "test", "r" * 16, n_rows=250, block_rows=100, seed=0)
    other = Plan("density", "test", "r" * 16, n_rows=250, block_rows=100, seed=1)
    publish_block(layout, other, 0, make_table(100))
    with pytest.raises(BadArtifact) as caught:
        read_block(layout, plan, 0)
    assert str(caught.value) == (
        "error: run/density/test/block-00000.parquet is not the table that was expected\n"
        f"  bayesnde.plan_hash is {other.plan_hash}, expected {plan.plan_hash}\n"
        "hint: delete that file and run `bayesnde density`; finished blocks are kept"
    )


def test_a_table_that_the_system_refuses_is_let_go_without_another_word(tmp_path, monkeypatch):
    """A writer that is only dropped would try again when it is collected, and Python print a traceback of that."""
    close, told = pq.ParquetWriter.close, []

    def refused(writer):
        if writer.is_open:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        close(writer)

    monkeypatch.setattr(pq.ParquetWriter, "close", refused)
    monkeypatch.setattr(sys, "unraisablehook", lambda unraisable: told.append(unraisable.exc_value))
    with pytest.raises(CannotWrite):
        write_table(tmp_path / "t.parquet", make_table(3), **STAMP)
    gc.collect()
    assert told == []
    assert list(tmp_path.iterdir()) == []
