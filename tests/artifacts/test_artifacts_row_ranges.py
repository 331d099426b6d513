"""Any range of a table's rows, whatever the row groups are."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bayesnde_cli.artifacts import tables
from bayesnde_cli.artifacts.row_ranges import RowRanges, column_names
from bayesnde_cli.errors import BadArtifact, MissingArtifact

STAMP = tables.Stamp("rows", 1, "run")
TABLE = pa.table({"row_id": range(25), "x": [index / 3 for index in range(25)], "other": ["?"] * 25})
X = pa.schema([("x", pa.float64())])


@pytest.fixture
def path(tmp_path, monkeypatch):
    monkeypatch.setattr(tables, "ROW_GROUP_ROWS", 7)
    tables.write_table(tmp_path / "t.parquet", TABLE, schema_name="rows", schema_version=1, run_id="run")
    assert pq.read_metadata(tmp_path / "t.parquet").num_row_groups == 4
    return tmp_path / "t.parquet"


def test_every_range_is_the_slice_of_the_table(path):
    ranges = RowRanges(path, STAMP, TABLE.select(["row_id", "x"]).schema)
    assert ranges.n_rows == 25
    for start in range(25):
        for stop in range(start + 1, 26):
            expected = TABLE.slice(start, stop - start).select(["row_id", "x"])
            assert ranges.read(start, stop).replace_schema_metadata(None).equals(expected)


@pytest.mark.parametrize(("start", "stop"), [(-1, 3), (3, 3), (20, 26)])
def test_rows_that_are_not_there_cannot_be_read(path, start, stop):
    with pytest.raises(IndexError):
        RowRanges(path, STAMP, X).read(start, stop)


def test_blocks_in_order_read_each_row_group_once(path, monkeypatch):
    ranges = RowRanges(path, STAMP, X)
    read = []
    group = pq.ParquetFile.read_row_group
    monkeypatch.setattr(
        pq.ParquetFile, "read_row_group", lambda file, index, **kw: read.append(index) or group(file, index, **kw)
    )
    for start in range(0, 25, 5):
        ranges.read(start, start + 5)
    assert read == [0, 1, 2, 3]


def test_what_is_not_the_table_is_refused(path, tmp_path):
    assert column_names(path, STAMP) == ["row_id", "x", "other"]
    with pytest.raises(BadArtifact, match=r"bayesnde\.run_id is run, expected another"):
        RowRanges(path, tables.Stamp("rows", 1, "another"), X)
    with pytest.raises(MissingArtifact):
        RowRanges(tmp_path / "none.parquet", STAMP, X)
    with pytest.raises(BadArtifact, match="column x is double, expected float"):
        RowRanges(path, STAMP, pa.schema([("x", pa.float32())]))
