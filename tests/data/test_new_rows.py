"""A new file in the model's space: columns by name, order free, one message for what does not fit."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest

from bayesnde_cli.data.new_rows import match_table, model_rows
from bayesnde_cli.data.readers import open_table
from bayesnde_cli.data.schema import Schema
from bayesnde_cli.errors import BadInput

N_ROWS = 200


@pytest.fixture
def columns() -> dict[str, list]:
    rng = np.random.default_rng(8)
    return {
        "size": rng.normal(size=N_ROWS).tolist(),
        "count": rng.poisson(3.0, N_ROWS).tolist(),
        "colour": rng.choice(["red", "green"], N_ROWS).tolist(),
        "class": rng.choice(["1", "2"], N_ROWS).tolist(),
    }


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    def call(columns: dict[str, list], name: str = "data.csv") -> Path:
        pa.csv.write_csv(pa.table(columns), tmp_path / name)
        return tmp_path / name

    return call


@pytest.fixture
def schema(columns: dict[str, list], write: Callable, bayesnde: Callable, tmp_path: Path) -> Schema:
    assert bayesnde("prepare", write(columns), "--condition", "class", "--run", tmp_path / "run").code == 0
    return Schema.from_json(json.loads((tmp_path / "run/prepare/schema.json").read_text()))


def _rows(path: Path, schema: Schema) -> tuple[np.ndarray, np.ndarray, tuple[str, ...]]:
    table = open_table([path])
    matched, ignored = match_table(table, schema)
    batches = list(model_rows(table, matched))
    x_scaled = np.concatenate([batch.x_scaled for batch in batches])
    return x_scaled, np.concatenate([batch.log_jacobian for batch in batches]), ignored


def test_the_training_file_comes_out_as_prepare_wrote_it(
    schema: Schema, columns: dict[str, list], write: Callable, tmp_path: Path
) -> None:
    x_scaled, log_jacobian, _ = _rows(write(columns), schema)
    for split in ("train", "validation", "test"):
        table = pq.read_table(tmp_path / f"run/prepare/{split}.parquet")
        rows = table["row_id"].to_numpy()
        assert np.array_equal(x_scaled[rows], np.array(table["x_scaled"].to_pylist(), np.float32))
        assert np.array_equal(log_jacobian[rows], table["log_jacobian"].to_numpy())


def test_the_order_of_columns_is_free_and_others_are_ignored(
    schema: Schema, columns: dict[str, list], write: Callable
) -> None:
    expected, _, ignored = _rows(write(columns), schema)
    assert ignored == ()
    shuffled = {name: columns[name] for name in ("class", "colour", "size", "count")} | {"extra": ["?"] * N_ROWS}
    found, _, ignored = _rows(write(shuffled, "other.csv"), schema)
    assert np.array_equal(found, expected)
    assert ignored == ("extra",)


def test_a_schema_survives_json_to_the_last_bit(schema: Schema, columns: dict[str, list], write: Callable) -> None:
    again = Schema.from_json(json.loads(json.dumps(schema.to_json())))
    path = write(columns)
    for one, other in zip(_rows(path, schema)[:2], _rows(path, again)[:2], strict=True):
        assert np.array_equal(one, other)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"size": None, "count": None},
            "error: the file lacks 2 of the model's 4 columns\n  missing: size, count\n"
            "  columns: colour, class\n"
            "hint: columns are matched by name; rename them in the file, or give a header",
        ),
        (
            {"colour": "violet"},
            "error: column 'colour' has an unseen category in row 5\n  cell: 'violet'\n"
            "  categories: green, red\nhint: correct or remove the row",
        ),
        (
            {"count": 2.5},
            "error: column 'count' has a number off the lattice in row 5\n  cell: 2.5\n"
            "  the model knows whole numbers only\nhint: correct or remove the row",
        ),
        (
            {"class": "3"},
            "error: condition 'class' has an unseen class in row 5\n  cell: '3'\n"
            "  classes: 1, 2\nhint: correct or remove the row",
        ),
        (
            {"size": float("inf")},
            "error: column 'size' has an infinity in row 5\n  cell: inf\nhint: correct or remove the row",
        ),
    ],
)
def test_what_does_not_fit_is_refused_with_its_row(
    changes: dict, message: str, schema: Schema, columns: dict[str, list], write: Callable
) -> None:
    for name, cell in changes.items():
        if cell is None:
            del columns[name]
        else:
            columns[name] = [str(value) for value in columns[name]]
            columns[name][4] = str(cell)
    with pytest.raises(BadInput) as caught:
        _rows(write(columns), schema)
    assert str(caught.value) == message


def test_missing_cells_stay_missing_and_the_others_are_as_they_were(
    schema: Schema, columns: dict[str, list], write: Callable
) -> None:
    whole, jacobian, _ = _rows(write(columns), schema)
    gaps = {name: [str(value) for value in values] for name, values in columns.items()}
    for name, rows in {"size": (0, 7), "count": (1, 7), "colour": (2, 7)}.items():
        for row in rows:
            gaps[name][row] = ""
    found, partial, _ = _rows(write(gaps, "gaps.csv"), schema)
    is_missing = np.isnan(found)
    position = [schema.roles.features.index(name) for name in ("size", "count", "colour")]
    assert sorted(zip(*np.nonzero(is_missing), strict=True)) == sorted(
        [(0, position[0]), (1, position[1]), (2, position[2]), *((7, column) for column in position)]
    )
    assert np.array_equal(found[~is_missing], whole[~is_missing])
    assert np.array_equal(np.delete(partial, [0, 1, 2, 7]), np.delete(jacobian, [0, 1, 2, 7]))
    assert partial[7] == 0.0
    # The three columns' own Jacobians, each left out once, make up those of the whole rows.
    slopes = [schema.features[column].scale(*_cell(schema, columns, column, row), schema.seed)[1][0]
              for row, column in enumerate(position)]  # fmt: skip
    assert np.allclose(partial[:3], jacobian[:3] - slopes, atol=1e-8)


def _cell(schema: Schema, columns: dict[str, list], column: int, row: int) -> tuple[np.ndarray, np.ndarray]:
    """One cell as numbers, with its row."""
    feature = schema.features[column]
    value = columns[feature.name][row]
    code = feature.categories.index(value) if feature.categories else value
    return np.array([float(code)]), np.array([row])


def test_values_far_outside_stay_finite_and_ordered(schema: Schema, columns: dict[str, list], write: Callable) -> None:
    far = [-1e12, -1e6, -100.0, -10.0, 10.0, 100.0, 1e6, 1e12]
    rows = {name: values[: len(far)] for name, values in columns.items()} | {"size": far}
    x_scaled, log_jacobian, _ = _rows(write(rows), schema)
    assert np.all(np.isfinite(x_scaled))
    assert np.all(np.isfinite(log_jacobian))
    position = schema.roles.features.index("size")
    assert np.all(np.diff(x_scaled[:, position]) > 0)


def test_classes_become_unit_vectors(schema: Schema) -> None:
    assert schema.one_hot(["2", 1]).tolist() == [[0.0, 1.0], [1.0, 0.0]]
