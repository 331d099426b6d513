"""Rows that were put down, whole and of the right columns, and yet none of the model's: refused by what is odd."""

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bayesnde_cli.artifacts.layout import RunLayout
from bayesnde_cli.artifacts.tables import Stamp
from bayesnde_cli.errors import BadArtifact
from bayesnde_cli.stages.evaluate.rows import split_rows
from bayesnde_cli.stages.reading import read_schema
from bayesnde_cli.stages.scoring.rows import SetRows
from bayesnde_cli.stages.training.rows import read_rows
from damages import rewrite


def _changed(run: Path, column: str, value: object) -> Path:
    """The test rows with another value in the second row."""
    path = run / "prepare/test.parquet"
    table = pq.read_table(path)
    said = {key.decode(): text.decode() for key, text in table.schema.metadata.items() if key.startswith(b"bayesnde.")}
    values = table[column].to_pylist()
    values[1] = value
    index, kind = table.column_names.index(column), table.schema.field(column).type
    rewrite(path, table.set_column(index, column, pa.array(values, kind)), said)
    return path


@pytest.mark.parametrize(
    ("column", "value", "found"),
    [
        ("k", "w", "there is no class 'w'"),
        ("k", None, "a row without k"),
        ("row_id", None, "a row without row_id"),
        ("x_scaled", None, "a row without x_scaled"),
        ("log_jacobian", None, "a row without log_jacobian"),
    ],
)
def test_a_row_that_the_model_cannot_take_is_damage(run: Path, column: str, value: object, found: str) -> None:
    path = _changed(run, column, value)
    layout = RunLayout(run)
    run_id = pq.read_schema(path).metadata[b"bayesnde.run_id"].decode()
    rows = SetRows(path, Stamp("rows", 1, run_id), read_schema(layout))
    with pytest.raises(BadArtifact) as caught:
        rows.block(0, rows.n_rows)
    assert (caught.value.what, caught.value.found) == (f"{path} is damaged", (found,))


@pytest.mark.parametrize("read", [read_rows, lambda layout, split: split_rows(layout, read_schema(layout), split)])
def test_nor_can_training_and_evaluation(run: Path, read: Callable) -> None:
    path = _changed(run, "k", "w")
    with pytest.raises(BadArtifact) as caught:
        read(RunLayout(run), "test")
    assert (caught.value.what, caught.value.found) == (f"{path} is damaged", ("there is no class 'w'",))
    _changed(run, "log_jacobian", None)
    with pytest.raises(BadArtifact, match="a row without log_jacobian"):
        read(RunLayout(run), "test")


def test_columns_of_other_types_are_damage(run: Path) -> None:
    path = run / "prepare/test.parquet"
    table = pq.read_table(path)
    said = {key.decode(): text.decode() for key, text in table.schema.metadata.items() if key.startswith(b"bayesnde.")}
    index = table.column_names.index("x_scaled")
    rewrite(path, table.set_column(index, "x_scaled", pa.nulls(table.num_rows, pa.bool_())), said)
    with pytest.raises(BadArtifact) as caught:
        read_rows(RunLayout(run), "test")
    assert caught.value.found == ("column x_scaled is bool, expected fixed_size_list<item: float>[3]",)
