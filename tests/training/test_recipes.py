"""How long a stage trains, the noise of its rows in every epoch, and the cells and class maps of its networks."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import tensorflow as tf

import fake_training
from bayesnde_cli.model.coders import Networks
from bayesnde_cli.model.likelihood import END, ColumnCells, LevelCells, join_cells
from bayesnde_cli.model.networks import NetworkSpec
from bayesnde_cli.runs.layout import RunLayout
from bayesnde_cli.scaling.column_map import Affine, Logit, Noise
from bayesnde_cli.settings import stage_settings
from bayesnde_cli.settings.stage_settings import RefineSettings, TrainingSettings, WarmstartSettings
from bayesnde_cli.stages.loading import read_networks
from bayesnde_cli.stages.train import read_noisy_values
from bayesnde_cli.tables.columns import Kind
from bayesnde_cli.tables.model_rows import read_schema, read_split
from bayesnde_cli.tables.schema import Feature
from bayesnde_cli.training.recipes import NoisyValues, Sizes, column_cells

BATCH = 256
SMALL = ["--width=2", "--epochs=2", "--checks=1", "--validation-draws=4", "--generated-rows=50", "-q"]
COUNTS, SIZES, WORDS, MONEY = range(4)


@pytest.mark.parametrize(
    ("config", "n_rows", "kind", "expected"),
    [
        (WarmstartSettings(), 60 * BATCH, "mlp", 25),  # 1,500 steps
        (RefineSettings(), 60 * BATCH, "mlp", 17),  # 1,000 in the first cycle
        (RefineSettings(), 60 * BATCH, "residual", 17),
        (WarmstartSettings(), 6000 * BATCH, "mlp", 1),
        (RefineSettings(), 8 * BATCH, "mlp", 125),
        (WarmstartSettings(objective="egm"), 60 * BATCH, "mlp", 100),  # 6,000 steps
        (RefineSettings(latent_update="map"), 6000 * BATCH, "mlp", 30),  # a large table is seen several times
        (RefineSettings(latent_update="map"), 8 * BATCH, "mlp", 400),  # a small one has a limit
        (WarmstartSettings(steps=1000), 60 * BATCH, "mlp", 17),  # whole epochs
        (WarmstartSettings(steps=10000), 8 * BATCH, "mlp", 1250),
        (WarmstartSettings(steps=1000, epochs=3), 60 * BATCH, "mlp", 3),
    ],
)
def test_epochs(config: TrainingSettings, n_rows: int, kind: Any, expected: int) -> None:
    spec = NetworkSpec(2, 2, kind=kind, width=8, depth=1)
    assert Sizes(config, Networks(spec, spec), n_rows).n_epochs == expected


def _run(*arguments: object) -> None:
    from bayesnde_cli.cli.main import run

    with fake_training.installed():  # the networks are tested, not their weights
        assert run([str(argument) for argument in arguments]) == 0


@pytest.fixture(scope="module", params=["marginal", "standard"])
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A prepared run of small whole numbers, real numbers, words, and whole numbers that hardly recur."""
    folder, rng = tmp_path_factory.mktemp("cells"), np.random.default_rng(0)
    rows = [f"{rng.poisson(2.0)},{rng.normal()},{'uvw'[rng.integers(3)]},{rng.integers(100_000)}" for _ in range(1500)]
    (folder / "d.csv").write_text("\n".join(["counts,sizes,words,money", *rows]) + "\n")
    options = ("--scale", request.param, "--type", "money=lattice", "-q")
    _run("prepare", folder / "d.csv", *options, "--run", folder / "run")
    return folder / "run"


def _values(run: Path, seed: int = 1) -> NoisyValues:
    values = read_noisy_values(RunLayout(run), read_split(RunLayout(run), "train"), seed)
    assert values is not None
    return values


def test_an_epoch_moves_cells_with_noise_within_their_values_and_no_others(run: Path) -> None:
    noise, features = _values(run), read_schema(RunLayout(run)).features
    first, second, as_prepared = noise.x(0).numpy(), noise.x(1).numpy(), read_split(RunLayout(run), "train").x
    assert np.array_equal(first[:, SIZES], as_prepared[:, SIZES])
    for column in (COUNTS, WORDS):
        assert (first[:, column] != second[:, column]).all()
        assert (first[:, column] != as_prepared[:, column]).all()
        values = [np.rint(features[column].map.inverse(x[:, column].astype(float))) for x in (first, second)]
        assert np.array_equal(*values)
    assert np.array_equal(noise.x(0), first)  # an epoch seen again is the same
    assert not np.array_equal(_values(run, 2).x(0), first)


def test_over_many_epochs_the_noise_of_a_cell_is_uniform(run: Path) -> None:
    n_epochs, row, schema = 400, read_split(RunLayout(run), "train").take(slice(1)), read_schema(RunLayout(run))
    noise = NoisyValues(schema, _values(run)._values[:1], row, 1)
    inverse = schema.features[COUNTS].map.inverse
    places = np.array([inverse(noise.x(epoch)[:, COUNTS].numpy().astype(float))[0] for epoch in range(n_epochs)])
    fractions = np.sort(places - np.rint(places.mean()) + 0.5)
    distance = np.abs(fractions - (np.arange(n_epochs) + 0.5) / n_epochs).max()
    assert distance < 1.63 / np.sqrt(n_epochs)  # Kolmogorov and Smirnov, one in a hundred


def test_frequent_values_have_cells_and_others_have_none(run: Path) -> None:
    cells = _values(run).cells()
    assert 5 <= len(cells[COUNTS].lower) <= 8
    assert cells[SIZES] == ColumnCells()
    assert len(cells[MONEY].lower) == 0
    assert len(cells[WORDS].lower) == 3
    assert (cells[WORDS].lower[0], cells[WORDS].upper[-1]) == (-END, END)  # there is no fourth category
    for column in (COUNTS, WORDS):  # neighbours touch
        assert cells[column].lower[1:] == cells[column].upper[:-1]


def test_every_row_lies_in_the_cell_of_its_value(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cells, schema = join_cells(_values(run).cells()), read_schema(RunLayout(run))
    assert cells is not None
    for x in (read_split(RunLayout(run), "train").x, _values(run).x(0).numpy()):
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


def test_training_stores_cells_and_sees_fresh_noise_unless_told_otherwise(run: Path, tmp_path: Path) -> None:
    losses = []
    for name, flags in (("with", ()), ("without", ("--no-cells", "--no-fresh-noise"))):
        own = Path(shutil.copytree(run, tmp_path / name))
        _run("warmstart", "--run", own, *SMALL, *flags)
        stored = read_networks(RunLayout(own), "warmstart")
        assert stored.decoder.cells == (_values(run).cells() if name == "with" else ())
        assert stored.encoder.cells == ()
        losses.append(pq.read_table(own / "warmstart/history.parquet")["loss"].to_pylist())
    assert losses[0] != losses[1]


def _prepare_images(folder: Path, n_classes: int, *options: str) -> Path:
    images = np.random.default_rng(1).integers(0, 256, (10 * max(n_classes, 6), 4, 4), np.uint8)
    labels: dict[str, Any] = {"label": np.arange(len(images)) % n_classes} if n_classes else {}
    np.savez(folder / "a.npz", images=images, **labels)
    condition = ("--condition", "label") if n_classes else ()
    _run("prepare", folder / "a.npz", "--run", folder / "run", "-q", *condition, *options)
    return folder / "run"


@pytest.mark.parametrize(
    ("n_classes", "flags", "has_maps"),
    [(3, (), True), (3, ("--no-class-maps", "--no-cells"), False), (stage_settings.MOST_MAPPED_CLASSES + 1, (), False)],
)
def test_images_have_levels_and_a_latent_map_for_each_class(
    tmp_path: Path, n_classes: int, flags: tuple[str, ...], has_maps: bool
) -> None:
    run = _prepare_images(tmp_path, n_classes)
    layout = RunLayout(run)
    assert read_noisy_values(layout, read_split(layout, "train"), 1) is None  # images keep the noise of prepare
    _run("warmstart", "--run", run, *SMALL, *flags)
    stored = read_networks(layout, "warmstart")
    has_levels = "--no-cells" not in flags
    assert (stored.decoder.levels, stored.encoder.levels) == (256 if has_levels else 0, 0)
    assert (stored.decoder.class_maps, stored.encoder.class_maps) == (has_maps, False)
    assert stored.weights["decoder/dense/kernel"].shape[0] == 10 + n_classes + 10 * n_classes * has_maps
    assert json.loads((run / "warmstart/manifest.json").read_text())["config"]["class_maps"] is has_maps


@pytest.mark.parametrize(("is_table", "found"), [(True, "a table, 3 classes"), (False, "images, no classes")])
def test_class_maps_are_refused_where_they_mean_nothing(
    bayesnde: Callable, tmp_path: Path, is_table: bool, found: str
) -> None:
    run = _prepare_images(tmp_path, 3, "--scale", "marginal") if is_table else _prepare_images(tmp_path, 0)
    outcome = bayesnde("warmstart", "--run", run, *SMALL, "--class-maps")
    expected = f"error: --class-maps needs images and a condition\n  {found}\nhint: leave out --class-maps\n"
    assert (outcome.code, outcome.err) == (2, expected)
