"""The noise of the training rows in every epoch, the cells of their values, and windows of a large table."""

from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from bayesnde_cli.model.likelihood import END, ColumnCells, LevelCells, join_cells
from bayesnde_cli.runs.layout import RunLayout
from bayesnde_cli.scaling.column_map import Affine, Logit, Noise
from bayesnde_cli.tables.columns import Kind
from bayesnde_cli.tables.model_rows import read_schema, read_split
from bayesnde_cli.tables.schema import Feature
from bayesnde_cli.training import training_rows
from bayesnde_cli.training.training_rows import TrainingRows, column_cells

COUNTS, SIZES, WORDS, MONEY = range(4)


def _rows(run: Path, seed: int = 1, *, fresh_noise: bool = True) -> TrainingRows:
    return TrainingRows(RunLayout(run), seed, fresh_noise=fresh_noise, is_whole=False)


def test_an_epoch_moves_cells_with_noise_within_their_values_and_no_others(run: Path) -> None:
    rows, features = _rows(run), read_schema(RunLayout(run)).features
    first, second, as_prepared = (rows.epoch(number)[0].numpy() for number in (0, 1, None))
    assert np.array_equal(as_prepared, read_split(RunLayout(run), "train").x)
    assert np.array_equal(first[:, SIZES], as_prepared[:, SIZES])
    for column in (COUNTS, WORDS):
        assert (first[:, column] != second[:, column]).all()
        assert (first[:, column] != as_prepared[:, column]).all()
        values = [np.rint(features[column].map.inverse(x[:, column].astype(float))) for x in (first, second)]
        assert np.array_equal(*values)
    assert np.array_equal(rows.epoch(0)[0], first)  # an epoch seen again is the same
    assert not np.array_equal(_rows(run, 2).epoch(0)[0], first)


def test_over_many_epochs_the_noise_of_a_cell_is_uniform(run: Path) -> None:
    n_epochs, row = 400, _rows(run).part(np.array([0]))
    inverse = read_schema(RunLayout(run)).features[COUNTS].map.inverse
    places = np.array([inverse(row.epoch(epoch)[0][:, COUNTS].numpy().astype(float))[0] for epoch in range(n_epochs)])
    fractions = np.sort(places - np.rint(places.mean()) + 0.5)
    distance = np.abs(fractions - (np.arange(n_epochs) + 0.5) / n_epochs).max()
    assert distance < 1.63 / np.sqrt(n_epochs)  # Kolmogorov and Smirnov, one in a hundred


def test_frequent_values_have_cells_and_others_have_none(run: Path) -> None:
    cells = _rows(run).cells()
    assert 5 <= len(cells[COUNTS].lower) <= 8
    assert cells[SIZES] == ColumnCells()
    assert len(cells[MONEY].lower) == 0
    assert len(cells[WORDS].lower) == 3
    assert (cells[WORDS].lower[0], cells[WORDS].upper[-1]) == (-END, END)  # there is no fourth category
    for column in (COUNTS, WORDS):  # neighbours touch
        assert cells[column].lower[1:] == cells[column].upper[:-1]


def test_every_row_lies_in_the_cell_of_its_value(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cells, schema = join_cells(_rows(run).cells()), read_schema(RunLayout(run))
    assert cells is not None
    for x in (read_split(RunLayout(run), "train").x, _rows(run).epoch(0)[0].numpy()):
        found = cells.find(x)
        for column in (COUNTS, WORDS):
            column_map = schema.features[column].map
            value = column_map.to_value(column_map.inverse(x[:, column].astype(float)))
            inside = found.is_inside.numpy()[:, column]
            lower = found.lower.numpy()[inside, column]
            assert inside.mean() > 0.97
            # One cell for each value, and one value for each cell.
            assert len({*zip(value[inside], lower, strict=True)}) == len({*value[inside]}) == len({*lower})
    # Noise at the very end of a cell does not leave it in float32.
    values, edges = np.repeat(np.arange(3.0), 2)[:, None] * np.ones(4), np.tile([2.0**-53, 1.0 - 2.0**-53], 3)
    monkeypatch.setattr("bayesnde_cli.tables.schema.noise_fractions", lambda *_: edges)
    found = cells.find(schema.scale(values, np.arange(6))[0])
    for column in (COUNTS, WORDS):
        lower = found.lower.numpy()[:, column]
        assert found.is_inside.numpy()[:, column].all()
        assert (lower[::2] == lower[1::2]).all()
        assert len({*lower}) == 3


def test_a_cell_is_all_there_or_not_at_all() -> None:
    # Unscaled percentages: the cell of 100 would reach beyond where cells may end.
    feature = Feature("share", Kind.LATTICE, (), Affine(0.0, 1.0, Noise()))
    found = column_cells(feature, np.repeat(np.arange(90.0, 111.0), 10))
    assert found == ColumnCells(tuple(np.arange(89.5, 99.0)), tuple(np.arange(90.5, 100.0)), width=1.0, step=1.0)
    # The ends of categories that were only scaled keep their values.
    feature = Feature("kind", Kind.CATEGORICAL, ("u", "v"), Affine(0.5, 0.5, Noise(-0.2, 0.2)))
    found = column_cells(feature, np.repeat([0.0, 1.0], 50))
    assert found == ColumnCells((-END, 0.0), (0.0, END), width=0.8, step=2.0)
    # Bytes of a table have none.
    assert column_cells(Feature("b", Kind.LATTICE, (), Logit()), np.repeat(np.arange(4.0), 20)) == ColumnCells()


@pytest.mark.parametrize("dtype", [tf.float32, tf.float64])
@pytest.mark.parametrize("far", [2.0**-53, 1e-7, 1e-5])
def test_the_noise_of_a_pixel_stays_in_its_cell(dtype: tf.DType, far: float, monkeypatch: pytest.MonkeyPatch) -> None:
    values, pixel = np.repeat(np.arange(256.0), 2), Feature("px_1_1", Kind.LATTICE, (), Logit())
    monkeypatch.setattr("bayesnde_cli.tables.schema.noise_fractions", lambda *_: np.tile([far, 1.0 - far], 256))
    x = pixel.scale(values, np.arange(512), 1)[0].astype(np.float32)
    assert (pixel.map.to_value(pixel.map.inverse(x.astype(float))) == values).all()
    for find in (LevelCells(256.0).find, tf.function(LevelCells(256.0).find, jit_compile=True)):
        lower = find(tf.constant(x, dtype)).lower.numpy()
        assert (lower[::2] == lower[1::2]).all()
        assert len({*lower}) == 256


def _windows(run: Path, monkeypatch: pytest.MonkeyPatch, n_windows: int) -> TrainingRows:
    n_cells = read_split(RunLayout(run), "train").x.size
    monkeypatch.setattr(training_rows, "MOST_CELLS", -(-n_cells // n_windows))
    # Windows of at least this many rows are read for one epoch at a time.
    monkeypatch.setattr(training_rows, "EPOCH_ROWS", min(training_rows.EPOCH_ROWS, 1300 // n_windows))
    rows = _rows(run, fresh_noise=False)
    assert rows.n_windows == n_windows
    return rows


@pytest.mark.parametrize("n_windows", [2, 7])
def test_windows_of_a_large_table_take_turns_and_share_its_rows(
    run: Path, monkeypatch: pytest.MonkeyPatch, n_windows: int
) -> None:
    whole, rows = read_split(RunLayout(run), "train").x, _windows(run, monkeypatch, n_windows)
    n_rows = len(whole) // n_windows
    for cycle in (0, 1):  # every window once in each
        seen = [rows.epoch(cycle * n_windows + number)[0].numpy() for number in range(n_windows)]
        assert {len(x) for x in seen} == {n_rows}
        joined = np.concatenate(seen)
        assert len(np.unique(joined, axis=0)) == len(np.unique(whole[: n_windows * n_rows], axis=0))
        assert {*map(bytes, joined)} == {*map(bytes, whole[: n_windows * n_rows])}
    assert np.array_equal(rows.epoch(None)[0], whole[::n_windows][:n_rows])
    again = _windows(run, monkeypatch, n_windows)  # a resumed process sees what the first one would have seen
    assert np.array_equal(again.epoch(n_windows + 1)[0], rows.epoch(n_windows + 1)[0])


def test_a_window_of_few_rows_is_kept_for_several_epochs(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training_rows, "MOST_CELLS", 400)  # a hundred rows
    monkeypatch.setattr(training_rows, "EPOCH_ROWS", 300)
    rows = _rows(run, fresh_noise=False)
    seen = [rows.epoch(number)[0].numpy() for number in range(6)]
    assert len({x.tobytes() for x in seen[:3]}) == len({x.tobytes() for x in seen[3:]}) == 1
    assert not np.array_equal(seen[2], seen[3])


def test_a_window_has_fresh_noise_each_time(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    n_cells = read_split(RunLayout(run), "train").x.size
    monkeypatch.setattr(training_rows, "MOST_CELLS", n_cells // 2)
    monkeypatch.setattr(training_rows, "EPOCH_ROWS", 607)
    rows = _rows(run)
    epochs = [rows.epoch(number)[0].numpy() for number in range(2 * rows.n_windows)]
    assert len({x[:, COUNTS].tobytes() for x in epochs}) == len(epochs)
    assert len({x[:, SIZES].tobytes() for x in epochs}) == rows.n_windows


@pytest.mark.parametrize("n_windows", [1, 3])
def test_epochs_are_parts_of_a_window_with_many_rows(
    run: Path, monkeypatch: pytest.MonkeyPatch, n_windows: int
) -> None:
    monkeypatch.setattr(training_rows, "EPOCH_ROWS", 100)
    whole, rows = read_split(RunLayout(run), "train").x, _windows(run, monkeypatch, n_windows)
    n_parts = -(-len(rows.first) // 100)
    assert n_parts > 1
    seen = [rows.epoch(number)[0].numpy() for number in range(n_windows * n_parts)]
    assert {len(x) for x in seen} == {rows.n_epoch_rows}
    assert 50 < rows.n_epoch_rows <= 100
    # Together they are all rows but a few.
    found, known = {*map(bytes, np.concatenate(seen))}, {*map(bytes, whole)}
    assert found <= known
    assert len(found) > len(known) - n_windows * n_parts - n_windows
    assert np.array_equal(rows.epoch(n_windows * n_parts + 1)[0].numpy().shape, seen[0].shape)
    assert np.array_equal(rows.epoch(None)[0], rows.first.x[::n_parts][: rows.n_epoch_rows])


def test_some_objectives_keep_all_rows(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training_rows, "MOST_CELLS", 10)
    rows = TrainingRows(RunLayout(run), 1, fresh_noise=False, is_whole=True)
    monkeypatch.setattr(training_rows, "EPOCH_ROWS", 10)
    assert rows.n_epoch_rows == len(rows.first)
    assert (rows.n_windows, len(rows.first)) == (1, len(read_split(RunLayout(run), "train")))
