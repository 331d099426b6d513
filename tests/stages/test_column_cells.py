"""The cells of columns: from the training rows into the network's description, and back from the file."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

import fake_training
from bayesnde_cli.artifacts.arrays import read_arrays, write_arrays
from bayesnde_cli.artifacts.layout import RunLayout
from bayesnde_cli.data.kinds import Kind
from bayesnde_cli.data.scaling import Affine, Logit, Noise
from bayesnde_cli.data.schema import Feature
from bayesnde_cli.errors import BadArtifact
from bayesnde_cli.model.cells import END, ColumnCells, LevelCells, joined_cells
from bayesnde_cli.stages.reading import read_schema
from bayesnde_cli.stages.training.noisy_values import _column_cells, read_noisy_values
from bayesnde_cli.stages.training.rows import read_rows
from bayesnde_cli.stages.weights import read_networks

SMALL = ["--width", "8", "--depth", "1", "--column-steps", "20", "--epochs", "2", "--checks", "1",
         "--validation-draws", "4", "--generated-rows", "50", "-q"]  # fmt: skip
COUNTS, SIZES, WORDS, MONEY = range(4)


@pytest.fixture(scope="module", params=["marginal", "standard"])
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A prepared run of small whole numbers, real numbers, words, and whole numbers that hardly recur."""
    own = tmp_path_factory.mktemp("cells") / "run"
    _prepare(own, request.param)
    return own


def _prepare(own: Path, scale: str) -> None:
    from bayesnde_cli.cli.main import run

    rng, data = np.random.default_rng(0), own.with_name("d.csv")
    rows = [f"{rng.poisson(2.0)},{rng.normal()},{'uvw'[rng.integers(3)]},{rng.integers(100_000)}" for _ in range(1500)]
    data.write_text("\n".join(["counts,sizes,words,money", *rows]) + "\n")
    arguments = ["--scale", scale, "--type", "money=lattice", "--run", str(own), "-q"]
    assert run(["prepare", str(data), *arguments]) == 0


def _cells(run: Path) -> tuple[ColumnCells, ...]:
    values = read_noisy_values(RunLayout(run), read_rows(RunLayout(run), "train"), 1)
    assert values is not None
    return values.cells()


def test_frequent_values_have_cells_and_others_have_none(run: Path) -> None:
    cells = _cells(run)
    assert 5 <= len(cells[COUNTS].lower) <= 8
    assert cells[SIZES] == ColumnCells()
    assert len(cells[MONEY].lower) == 0
    assert len(cells[WORDS].lower) == 3
    assert (cells[WORDS].lower[0], cells[WORDS].upper[-1]) == (-END, END)  # there is no fourth category
    for column in (COUNTS, WORDS):  # neighbours touch
        assert cells[column].lower[1:] == cells[column].upper[:-1]


def test_every_row_lies_in_the_cell_of_its_value(run: Path) -> None:
    cells = joined_cells(_cells(run))
    assert cells is not None
    layout = RunLayout(run)
    values, schema = read_noisy_values(layout, read_rows(layout, "train"), 1), read_schema(layout)
    assert values is not None
    for x in (read_rows(layout, "train").x, values.x(0).numpy()):
        found = cells.find(x)
        for column in (COUNTS, WORDS):
            value = schema.features[column].map.to_value(
                schema.features[column].map.inverse(x[:, column].astype(float))
            )
            inside = found.is_inside.numpy()[:, column]
            lower = found.lower.numpy()[inside, column]
            assert inside.mean() > 0.97
            # One cell for each value, and one value for each cell.
            assert len({*zip(value[inside], lower, strict=True)}) == len({*value[inside]}) == len({*lower})


def test_a_cell_is_all_there_or_not_at_all() -> None:
    # Unscaled percentages: the cell of 100 would reach beyond where cells may end.
    feature = Feature("share", Kind.LATTICE, (), Affine(0.0, 1.0, Noise()))
    found = _column_cells(feature, np.repeat(np.arange(90.0, 111.0), 10))
    assert found == ColumnCells(tuple(np.arange(89.5, 99.0)), tuple(np.arange(90.5, 100.0)), width=1.0, step=1.0)


def test_the_ends_of_categories_that_were_only_scaled_keep_their_values() -> None:
    feature = Feature("kind", Kind.CATEGORICAL, ("u", "v"), Affine(0.5, 0.5, Noise(-0.2, 0.2)))
    found = _column_cells(feature, np.repeat([0.0, 1.0], 50))
    assert found == ColumnCells((-END, 0.0), (0.0, END), width=0.8, step=2.0)


def test_noise_at_the_very_end_of_a_cell_does_not_leave_it_in_float32(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cells, schema = joined_cells(_cells(run)), read_schema(RunLayout(run))
    assert cells is not None
    values, ids = np.repeat(np.arange(3.0), 2)[:, None] * np.ones(4), np.arange(6)
    edges = np.tile([2.0**-53, 1.0 - 2.0**-53], 3)
    monkeypatch.setattr("bayesnde_cli.data.schema.noise_fractions", lambda *_: edges)
    x, _ = schema.scale(values, ids)
    for column in (COUNTS, WORDS):
        found = cells.find(x)
        lower = found.lower.numpy()[:, column]
        assert found.is_inside.numpy()[:, column].all()
        assert (lower[::2] == lower[1::2]).all()
        assert len({*lower}) == 3


@pytest.mark.parametrize("dtype", [tf.float32, tf.float64])
@pytest.mark.parametrize("far", [2.0**-53, 1e-9, 1e-7, 1e-5])
def test_nor_does_that_of_a_pixel(dtype: tf.DType, far: float, monkeypatch: pytest.MonkeyPatch) -> None:
    values, pixel = np.repeat(np.arange(256.0), 2), Feature("px_1_1", Kind.LATTICE, (), Logit())
    monkeypatch.setattr("bayesnde_cli.data.schema.noise_fractions", lambda *_: np.tile([far, 1.0 - far], 256))
    x = pixel.scale(values, np.arange(512), 1)[0].astype(np.float32)
    assert (pixel.map.to_value(pixel.map.inverse(x.astype(float))) == values).all()
    for find in (LevelCells(256.0).find, tf.function(LevelCells(256.0).find, jit_compile=True)):
        lower = find(tf.constant(x, dtype)).lower.numpy()
        assert (lower[::2] == lower[1::2]).all()
        assert len({*lower}) == 256


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with a warm start."""
    from bayesnde_cli.cli.main import run

    own = tmp_path_factory.mktemp("trained") / "run"
    _prepare(own, "marginal")
    with fake_training.installed():  # the networks are tested, not their weights
        assert run(["warmstart", "--run", str(own), *SMALL]) == 0
    return own


def test_cells_are_stored_with_the_network(trained: Path) -> None:
    stored = read_networks(RunLayout(trained), "warmstart")
    assert stored.decoder.cells == _cells(trained)
    assert stored.encoder.cells == ()
    manifest = json.loads((trained / "warmstart/manifest.json").read_text())
    assert "levels" not in manifest["identity"]["settings"]  # of images: tables are what they always were


def test_a_network_may_do_without(trained: Path, bayesnde: Callable, tmp_path: Path) -> None:
    own = Path(shutil.copytree(trained, tmp_path / "run"))
    with fake_training.installed():
        outcome = bayesnde("warmstart", "--run", own, *SMALL, "--no-cells", "--restart")
    assert outcome.code == 0, outcome.err
    assert read_networks(RunLayout(own), "warmstart").decoder.cells == ()


def _rewritten(trained: Path, folder: Path, change: Callable[[dict], object]) -> RunLayout:
    """A copy of the run whose network is described otherwise."""
    own = Path(shutil.copytree(trained, folder / "run"))
    path = own / "warmstart/weights/model.npz"
    arrays, facts = read_arrays(path)
    change(facts)
    path.unlink()
    write_arrays(path, arrays, facts)
    return RunLayout(own)


@pytest.mark.parametrize(
    "damage",
    [lambda cells: cells[0].pop("width"), lambda cells: cells.pop(), lambda cells: cells[0].update(lower=["a"]),
     lambda cells: cells[0].update(lower=[0.0], upper=[-1.0]), lambda cells: cells[0].update(width=True)],
)  # fmt: skip
def test_damaged_cells_are_refused(trained: Path, tmp_path: Path, damage: Callable) -> None:
    layout = _rewritten(trained, tmp_path, lambda facts: damage(facts["decoder"]["cells"]))
    with pytest.raises(BadArtifact, match="is damaged"):
        read_networks(layout, "warmstart")


def test_networks_of_before_have_none(trained: Path, tmp_path: Path) -> None:
    layout = _rewritten(trained, tmp_path, lambda facts: [facts[name].pop("cells") for name in ("decoder", "encoder")])
    assert read_networks(layout, "warmstart").decoder.cells == ()
