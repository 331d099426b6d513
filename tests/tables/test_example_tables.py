"""The example tables have the shapes that their README states, and the rows of their sources."""

import csv
from pathlib import Path

import numpy as np
import pytest

from bayesnde_cli.rng import generator
from bayesnde_cli.tables.simulator_catalogue import make_simulator

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples" / "data"


def read_example(name: str) -> tuple[list[str], list[list[str]]]:
    with open(EXAMPLES / name, newline="") as file:
        header, *rows = csv.reader(file)
    return header, rows


def test_the_involute_table_is_what_the_simulator_gives() -> None:
    header, rows = read_example("involute.csv")
    written = np.array(rows, dtype=np.float64)
    simulator = make_simulator("involute")
    x = simulator.sample(65_536, generator(0, "simulate", 0))[:5000]  # as `simulate` draws its first chunk
    assert header == ["x1", "x2", "true_log_density"]
    # Not bit for bit: sine and exponential may differ in the last digit between machines.
    np.testing.assert_allclose(written[:, :2], x, rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(written[:, 2], simulator.log_density(x), rtol=1e-10)


@pytest.mark.parametrize(
    ("name", "n_rows", "n_columns"), [("faithful.csv", 272, 2), ("vehicle.csv", 846, 19), ("cardio.csv", 1831, 22)]
)
def test_the_examples_have_the_shapes_of_their_readme(name: str, n_rows: int, n_columns: int) -> None:
    header, rows = read_example(name)
    assert len(rows) == n_rows
    assert len(set(header)) == n_columns
    assert {len(row) for row in rows} == {n_columns}
    assert not any(value.strip() != value or value == "" for row in [header, *rows] for value in row)
    assert f"| `{name}` | {n_rows:,} x {n_columns} |" in (EXAMPLES / "README.md").read_text(encoding="utf-8")


def test_the_labels_are_complete_and_the_columns_of_cardio_are_named_right_where_arithmetic_can_tell() -> None:
    classes = [row[-1] for row in read_example("vehicle.csv")[1]]
    assert {name: classes.count(name) for name in set(classes)} == {"bus": 218, "opel": 212, "saab": 217, "van": 199}
    header, rows = read_example("cardio.csv")
    assert [row[-1] for row in rows] == ["0"] * 1655 + ["1"] * 176
    column = dict(zip(header, np.array(rows, dtype=np.float64).T, strict=True))
    design = np.stack([column["Max"], column["Min"]], axis=1)
    coefficient, residual, _, _ = np.linalg.lstsq(design, column["Width"])
    assert coefficient[0] > 0 > coefficient[1]
    assert residual[0] < 1e-10  # a sum of 1,831 squares: width is maximum minus minimum
    assert len(np.unique(column["Tendency"])) == 3  # left, none, right
