"""Rows of any file in the model's space, and generated rows as columns of the file."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest

from bayesnde_cli.cli.main import run as run_cli
from bayesnde_cli.errors import BadInput
from bayesnde_cli.rows import Rows
from bayesnde_cli.runs.layout import RunLayout
from bayesnde_cli.scaling.column_map import Affine, Noise, fit_minmax, fit_standard
from bayesnde_cli.scaling.discrete import fit_categorical, fit_lattice
from bayesnde_cli.scaling.mixture import fit_mixture
from bayesnde_cli.tables import model_rows
from bayesnde_cli.tables.columns import LARGEST_EXACT_INTEGER, ImageShape, Kind
from bayesnde_cli.tables.schema import Feature, Schema
from bayesnde_cli.tables.sources import open_sources, sources_of

N_ROWS = 200
RNG = np.random.default_rng(8)
COLUMNS = {
    "size": RNG.normal(size=N_ROWS).tolist(),
    "count": RNG.poisson(3.0, N_ROWS).tolist(),
    "colour": RNG.choice(["red", "green"], N_ROWS).tolist(),
    "class": RNG.choice(["1", "2"], N_ROWS).tolist(),
}
IMAGES = RNG.integers(0, 256, (60, 2, 3), np.uint8)


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    def call(columns: dict[str, list]) -> Path:
        pa.csv.write_csv(pa.table(columns), tmp_path / "other.csv")
        return tmp_path / "other.csv"

    return call


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The prepared run of `data.csv`, which holds COLUMNS."""
    folder = tmp_path_factory.mktemp("columns")
    pa.csv.write_csv(pa.table(COLUMNS), folder / "data.csv")
    command = ["prepare", folder / "data.csv", "--condition", "class", "--scale", "marginal", "--run", folder / "run"]
    assert run_cli([str(word) for word in [*command, "-q"]]) == 0
    return folder / "run"


@pytest.fixture(scope="module")
def image_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The prepared run of `a.npy`, which holds IMAGES."""
    folder = tmp_path_factory.mktemp("images")
    np.save(folder / "a.npy", IMAGES)
    assert run_cli(["prepare", str(folder / "a.npy"), "--run", str(folder / "run"), "-q"]) == 0
    return folder / "run"


@pytest.fixture
def schema(run: Path) -> Schema:
    return model_rows.read_schema(RunLayout(run))


@pytest.fixture
def image_schema(image_run: Path) -> Schema:
    return model_rows.read_schema(RunLayout(image_run))


def _rows(path: Path, schema: Schema) -> tuple[np.ndarray, np.ndarray, tuple[str, ...]]:
    table = open_sources(sources_of([path]))
    matched, ignored = model_rows.match_table(table, schema)
    assert matched.image == schema.image
    rows = Rows.concatenate(list(model_rows.scale_table(table, matched)))
    cells = rows.x if rows.observed is None else np.where(rows.observed, rows.x, np.nan)
    return cells, rows.log_jacobian, ignored


def _refusal(path: Path, schema: Schema) -> str:
    with pytest.raises(BadInput) as caught:
        _rows(path, schema)
    return str(caught.value)


@pytest.mark.parametrize(("fixture", "name"), [("run", "data.csv"), ("image_run", "a.npy")])
def test_the_training_file_comes_out_as_prepare_wrote_it(
    fixture: str, name: str, request: pytest.FixtureRequest
) -> None:
    run = request.getfixturevalue(fixture)
    schema = model_rows.read_schema(RunLayout(run))
    x_scaled, log_jacobian, ignored = _rows(run.parent / name, schema)
    assert ignored == ()
    for split in ("train", "validation", "test"):
        table = pq.read_table(run / f"prepare/{split}.parquet")
        rows = table["row_id"].to_numpy()
        assert np.array_equal(x_scaled[rows], np.array(table["x_scaled"].to_pylist(), np.float32))
        assert np.array_equal(log_jacobian[rows], table["log_jacobian"].to_numpy())
        read = model_rows.read_split(RunLayout(run), split, with_values=True)
        assert np.array_equal(read.x, x_scaled[rows])
        assert read.values is not None
        assert np.array_equal(schema.scale(read.values, read.row_ids)[0], read.x)


def test_the_order_of_columns_is_free_and_others_are_ignored(run: Path, schema: Schema, write: Callable) -> None:
    expected, _, _ = _rows(run.parent / "data.csv", schema)
    shuffled = {name: COLUMNS[name] for name in ("class", "colour", "size", "count")} | {"extra": ["?"] * N_ROWS}
    found, _, ignored = _rows(write(shuffled), schema)
    assert np.array_equal(found, expected)
    assert ignored == ("extra",)


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
            "  the model was fitted to whole numbers\nhint: correct or remove the row",
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
def test_cells_that_do_not_fit_are_refused_with_their_row(
    changes: dict, message: str, schema: Schema, write: Callable
) -> None:
    columns = {name: list(values) for name, values in COLUMNS.items()}
    for name, cell in changes.items():
        if cell is None:
            del columns[name]
        else:
            columns[name] = [*map(str, columns[name][:4]), str(cell), *map(str, columns[name][5:])]
    assert _refusal(write(columns), schema) == message


def test_missing_cells_stay_missing_and_the_others_are_as_they_were(run: Path, schema: Schema, write: Callable) -> None:
    whole, jacobian, _ = _rows(run.parent / "data.csv", schema)
    gaps = {name: [str(value) for value in values] for name, values in COLUMNS.items()}
    names = ("size", "count", "colour")
    for row, name in enumerate(names):
        gaps[name][row] = gaps[name][7] = ""
    found, partial, _ = _rows(write(gaps), schema)
    position = [schema.roles.features.index(name) for name in names]
    expected = np.zeros(found.shape, bool)
    expected[7, position] = expected[[0, 1, 2], position] = True
    assert np.array_equal(np.isnan(found), expected)
    assert np.array_equal(found[~expected], whole[~expected])
    assert np.array_equal(np.delete(partial, [0, 1, 2, 7]), np.delete(jacobian, [0, 1, 2, 7]))
    assert partial[7] == 0.0
    # The log-slope of each missing cell is all that the log-Jacobian of its row lacks.
    values = model_rows.scale_batch(
        pa.RecordBatch.from_pydict({**COLUMNS, "count": np.array(COLUMNS["count"], float)}), schema, np.arange(N_ROWS)
    ).values
    assert values is not None
    for row, column in enumerate(position):
        log_slope = schema.features[column].scale(values[[row], column], np.array([row]), schema.seed)[1]
        assert partial[row] == pytest.approx(jacobian[row] - log_slope[0], abs=1e-8)


def test_values_far_outside_stay_finite_and_ordered(schema: Schema, write: Callable) -> None:
    far = [-1e12, -1e6, -100.0, -10.0, 10.0, 100.0, 1e6, 1e12]
    rows = {name: values[: len(far)] for name, values in COLUMNS.items()} | {"size": far}
    x_scaled, log_jacobian, _ = _rows(write(rows), schema)
    assert np.all(np.isfinite(x_scaled))
    assert np.all(np.isfinite(log_jacobian))
    assert np.all(np.diff(x_scaled[:, schema.roles.features.index("size")]) > 0)


# Images


def _pixel_table(values: np.ndarray) -> pa.Table:
    return pa.table(dict(zip(ImageShape(2, 3).pixel_names(), values.reshape(-1, 6).T, strict=True)))


def test_images_are_the_same_rows_in_any_file(image_run: Path, image_schema: Schema, tmp_path: Path) -> None:
    expected = _rows(image_run.parent / "a.npy", image_schema)[0]
    np.savez(tmp_path / "b.npz", some=IMAGES)
    pq.write_table(_pixel_table(IMAGES.astype(np.int64)), tmp_path / "b.parquet")  # such as a sample
    for name in ("b.npz", "b.parquet"):
        assert np.array_equal(_rows(tmp_path / name, image_schema)[0], expected)


def test_other_images_than_the_model_s_are_refused(image_schema: Schema, tmp_path: Path) -> None:
    np.save(tmp_path / "b.npy", np.zeros((5, 3, 2), np.uint8))
    assert _refusal(tmp_path / "b.npy", image_schema) == (
        "error: the images are not of the model's size\n  images of 3 x 2\n  the model's: 2 x 3\n"
        "hint: bring the images to the model's size, or prepare a run of their own"
    )
    np.save(tmp_path / "b.npy", np.zeros((5, 4, 4), np.uint8))  # not one with columns to spare
    assert "images of 4 x 4\n  the model's: 2 x 3\n" in _refusal(tmp_path / "b.npy", image_schema)
    np.save(tmp_path / "b.npy", IMAGES.reshape(-1, 6))
    assert _refusal(tmp_path / "b.npy", image_schema) == (
        "error: the file lacks 6 of the model's 6 columns\n"
        "  missing: px_1_1, px_1_2, px_1_3, px_2_1, px_2_2, px_2_3\n"
        "  columns: c1, c2, c3, c4, c5, c6\n"
        "hint: the model is one of images of 2 x 3: give such images, or columns of these names"
    )
    values = IMAGES.astype(np.int64)
    values[4, 1, 0] = 256
    pq.write_table(_pixel_table(values), tmp_path / "b.parquet")
    assert _refusal(tmp_path / "b.parquet", image_schema) == (
        "error: column 'px_2_1' has a number out of range in row 5\n  cell: 256.0\n"
        "  --scale logit takes 0 to 255 only\nhint: correct or remove the row"
    )


def test_a_schema_of_another_version_is_refused(image_run: Path, tmp_path: Path) -> None:
    layout = RunLayout(tmp_path)
    layout.schema_file().parent.mkdir()
    document = json.loads(RunLayout(image_run).schema_file().read_text())
    layout.schema_file().write_text(json.dumps(document | {"schema_version": 2}))
    with pytest.raises(
        Exception, match=r"another format version\n  schema version 2, this bayesnde reads 1\nhint: run"
    ):
        model_rows.read_schema(layout)


# Generated rows

COUNTS = RNG.poisson(4.0, 400).astype(float)
HEIGHTS = RNG.gamma(2.0, 3.0, 400)
WORDS = ("blue", "green", "red")
CODES = RNG.integers(0, 3, 400).astype(float)
NARROW, USUAL, WIDE = Noise(0.0, 0.5), Noise(), Noise(-1.5, 1.5)
FEATURES = [
    Feature("height", Kind.CONTINUOUS, (), fit_mixture(HEIGHTS, HEIGHTS[:50])),
    Feature("height", Kind.CONTINUOUS, (), fit_standard(HEIGHTS)),
    Feature("count", Kind.LATTICE, (), fit_lattice(COUNTS, COUNTS[:50], noise=USUAL)),
    Feature("count", Kind.LATTICE, (), fit_lattice(COUNTS, COUNTS[:50], noise=NARROW)),
    Feature("count", Kind.LATTICE, (), fit_standard(USUAL.add(COUNTS, RNG.random(400)), USUAL)),
    Feature("count", Kind.LATTICE, (), fit_mixture(WIDE.add(COUNTS, RNG.random(400)), COUNTS[:50], noise=WIDE)),
    Feature("colour", Kind.CATEGORICAL, WORDS, fit_categorical(CODES, CODES[:50], n_categories=3, noise=USUAL)),
    Feature("colour", Kind.CATEGORICAL, WORDS, fit_minmax(USUAL.add(CODES, RNG.random(400)), USUAL)),
]


@pytest.mark.parametrize("feature", FEATURES, ids=lambda item: f"{item.name}-{type(item.map).__name__}")
def test_scaled_cells_come_back_with_their_noise_and_their_type(feature: Feature) -> None:
    value = HEIGHTS if feature.kind is Kind.CONTINUOUS else COUNTS % 3
    noise = feature.map.noise
    # Wider noise than the step reaches into the neighbours' cells: only its middle third is sure to come back.
    share = RNG.uniform(0.01, 0.99, 400)
    fraction = None if noise is None else (1 + share) / 3 if noise == WIDE else share
    u, log_slope = feature.map.forward(value, fraction)
    column = model_rows.invert_scaling(feature, u)
    assert np.allclose(column.value, value, rtol=1e-9)
    again, log_jacobian = model_rows.scale_columns(Schema((feature,), 0), [column])
    assert np.allclose(again[:, 0], u, atol=1e-5)
    assert np.allclose(log_jacobian, log_slope, atol=1e-5)
    drawn = model_rows.invert_scaling(feature, RNG.normal(u.mean(), 2.0 * u.std(), 500))
    cells = model_rows.format_cells(feature, drawn)
    assert cells.type == model_rows.cell_type(feature)
    assert cells.null_count == 0
    if feature.kind is Kind.CATEGORICAL:
        assert set(cells.to_pylist()) <= set(WORDS)
    elif feature.kind is Kind.CONTINUOUS:
        assert (cells.to_numpy() != np.rint(cells.to_numpy())).mean() > 0.9  # a continuous column is not rounded


def test_values_without_noise_or_beyond_all_bounds_are_rounded_to_cells() -> None:
    def cells(feature: Feature, u: list[float]) -> list:
        return model_rows.format_cells(feature, model_rows.invert_scaling(feature, np.array(u))).to_pylist()

    bare = Feature("count", Kind.LATTICE, (), Affine(0.0, 1.0))
    assert cells(bare, [1.4, 2.6]) == [1, 3]
    column = model_rows.invert_scaling(bare, np.array([1.4, 2.6]))
    assert model_rows.scale_columns(Schema((bare,), 0), [column])[0].tolist() == [[1.0], [3.0]]  # scored where it is
    noisy = Feature("count", Kind.LATTICE, (), Affine(0.0, 1.0, USUAL))
    assert cells(noisy, [1e30, -1e30]) == [LARGEST_EXACT_INTEGER, -LARGEST_EXACT_INTEGER]
    colour = Feature("colour", Kind.CATEGORICAL, WORDS, Affine(0.0, 1.0))
    assert cells(colour, [-5.0, 1.2, 9.0]) == ["blue", "green", "red"]
