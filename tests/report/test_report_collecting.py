"""The data of a report, read from a small run with every kind of column."""

import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from linear_gaussian_oracle import random_oracle
from scipy.stats import multivariate_normal, norm

import fake_engine
from bayesnde_cli.artifacts.arrays import write_arrays
from bayesnde_cli.artifacts.layout import RunLayout
from bayesnde_cli.artifacts.manifest import Manifest
from bayesnde_cli.artifacts.tables import write_table
from bayesnde_cli.config import DensityConfig, PrepareConfig, RefineConfig, StageConfig, WarmstartConfig, resolve
from bayesnde_cli.data.kinds import Kind
from bayesnde_cli.data.roles import Roles
from bayesnde_cli.data.scaling import Noise, fit_categorical, fit_lattice, fit_none, fit_standard
from bayesnde_cli.data.schema import Feature, Schema
from bayesnde_cli.model.decoder import decoder_spec
from bayesnde_cli.model.encoder import encoder_spec
from bayesnde_cli.model.parameters import to_numpy
from bayesnde_cli.report.advice import advise
from bayesnde_cli.report.page import render
from bayesnde_cli.report.report_data import DoubtfulColumns, ReportData, Subject
from bayesnde_cli.report.trust import judge
from bayesnde_cli.stages.evaluate.fitted_model import RefinedModel
from bayesnde_cli.stages.report import report_bytes
from bayesnde_cli.stages.report.cells import scaled_places
from bayesnde_cli.stages.report.chosen_settings import chosen_settings, fast_settings
from bayesnde_cli.stages.report.collect import collect
from bayesnde_cli.stages.report.doubtful_columns import doubtful_columns
from bayesnde_cli.stages.report.model_view import _scaled_edges
from bayesnde_cli.stages.report.pair_density import pair_shares
from bayesnde_cli.training.joint_parameters import decoder_of, initial_autoencoder
from scoring_runs import other_set

N_ROWS = 400
HISTORY = [
    {"phase": "columns", "epoch": None, "step": 10, "loss": 1.0},
    *({"phase": "elbo", "epoch": float(epoch), "step": 3 * epoch, "loss": 5.0 - epoch} for epoch in (1, 2)),
]
SELECTION = [
    {"phase": "columns", "step": 10, "is_chosen": False, "marginal": None, "marginal_se": None},
    {"phase": "elbo", "step": 6, "is_chosen": True, "marginal": -4.0, "marginal_se": 0.1},
]


class LinearModel:
    """x = (z, -z, z / 2) plus noise of standard deviation 0.5, whatever the class."""

    device, latent_dim = "fake", 1
    weights, variance = np.array([[1.0], [-1.0], [0.5]]), 0.25

    def simulate(self, n_rows: int, y: np.ndarray | None, seed: int) -> np.ndarray:
        rng = np.random.Generator(np.random.Philox(seed))
        mean, variance = self.decode(rng.standard_normal((n_rows, 1)), y)
        return (mean + np.sqrt(variance) * rng.standard_normal(mean.shape)).astype(np.float32)

    def decode(self, z: np.ndarray, y: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
        assert y is None or len(y) == len(z)
        return z @ self.weights.T, np.full((len(z), 3), self.variance)

    def log_density(self, x: np.ndarray, y: np.ndarray | None, seed: int) -> np.ndarray:
        return -np.sum(np.square(x, dtype=np.float64), axis=1)


@pytest.fixture(scope="module")
def scored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with a condition, a truth, outliers, a lattice and words, whose later stages are stand-ins."""
    from bayesnde_cli.cli.main import run
    from bayesnde_cli.stages import scoring

    folder = tmp_path_factory.mktemp("report")
    rng = np.random.default_rng(0)
    lines = ["<b>a</b>,n,word,k,odd,true_log_density"]
    for index in range(N_ROWS):
        labels = f"{'uv'[index % 2]},{int(index % 20 == 0)},{-index / 9:.3f}"
        lines.append(f"{rng.normal():.5f},{rng.poisson(4)},{'xyz'[index % 3]},{labels}")
    (folder / "d.csv").write_text("\n".join(lines) + "\n")
    (folder / "new.csv").write_text("<b>a</b>,n,word,k\n0.5,3,x,u\n,4,y,v\n-9,2,z,u\n")
    to = ["--run", str(folder / "run"), "-q"]
    assert run(["prepare", str(folder / "d.csv"), "--condition", "k", "--outlier-label", "odd", *to]) == 0
    fake_engine.pretend_refined(folder / "run")
    layout = RunLayout(folder / "run")
    for path, name, rows in (
        (layout.history_file("refine"), "history", HISTORY),
        (layout.selection_file("refine"), "selection", SELECTION),
    ):
        write_table(path, pa.Table.from_pylist(rows), schema_name=name, schema_version=1, run_id="r")
    real = scoring.open_engine
    fake_engine.install()
    try:
        assert run(["density", *to, *fake_engine.SMALL]) == 0
        assert run(["density", str(folder / "new.csv"), *to, *fake_engine.SMALL]) == 0
    finally:
        scoring.open_engine = real
    return folder / "run"


@pytest.fixture(scope="module")
def collected(scored: Path) -> ReportData:
    return collect(RunLayout(scored), "test", {}, LinearModel())


def test_the_subject_tells_the_size_of_the_task(collected: ReportData) -> None:
    subject = collected.subject
    assert (subject.title, subject.set_name, subject.data_argument) == ("d.csv", "test", "")
    assert (subject.n_train, subject.n_validation, subject.n_rows) == (324, 36, 40)
    assert (subject.n_features, subject.classes) == (3, {"u": 162, "v": 162})
    facts = dict(subject.facts)
    assert facts["Columns"] == "3 features (1 continuous, 1 lattice, 1 categorical), given k (2 classes)"
    assert facts["Rows"] == "324 training, 36 validation, 40 scored (test)"


def test_columns_are_in_the_units_of_the_file(collected: ReportData) -> None:
    first, lattice, words = collected.columns
    assert [column.name for column in collected.columns] == ["<b>a</b>", "n", "word"]
    assert np.array_equal(lattice.real, np.rint(lattice.real))
    assert np.array_equal(lattice.generated, np.rint(lattice.generated))
    assert words.categories == ("x", "y", "z")
    assert set(words.real) | set(words.generated) <= {0.0, 1.0, 2.0}
    assert all(len(column.real) == 40 for column in collected.columns)
    assert np.isfinite(first.generated).all()


def test_rows_are_those_of_the_table_in_its_order(collected: ReportData, scored: Path) -> None:
    table = pq.read_table(scored / "prepare/test.parquet")
    assert collected.columns[0].real == pytest.approx(table["<b>a</b>"].to_numpy(), abs=1e-5)
    assert collected.rows is not None
    assert collected.rows.truth is not None
    assert collected.rows.truth.tolist() == table["true_log_density"].to_pylist()
    assert collected.rows.is_outlier is not None
    assert collected.rows.is_outlier.tolist() == [label == 1 for label in table["odd"].to_pylist()]


def test_the_lowest_rows_come_with_their_own_cells(collected: ReportData, scored: Path) -> None:
    densities = pq.read_table(scored / "density/test/density.parquet").sort_by("log_density").to_pylist()[:10]
    cells = {row["row_id"]: row for row in pq.read_table(scored / "prepare/test.parquet").to_pylist()}
    assert collected.lowest is not None
    assert collected.lowest.header[4:] == ("k", "odd", "true_log_density", "<b>a</b>", "n", "word")
    for shown, row in zip(collected.lowest.rows, densities, strict=True):
        own = cells[row["row_id"]]
        assert shown[0] == str(row["row_id"] + 1)
        assert shown[4] == own["k"]
        assert shown[-3:] == (f"{own['<b>a</b>']:.5g}", str(own["n"]), own["word"])


def test_training_counts_its_steps_over_all_phases(collected: ReportData) -> None:
    (refine,) = collected.training
    assert [(curve.phase, curve.step.tolist()) for curve in refine.losses] == [("columns", [10]), ("elbo", [13, 16])]
    assert refine.step.tolist() == [10, 16]
    assert (refine.chosen, refine.chosen_log_density, refine.n_epochs) == (1, -4.0, 2)


def test_seen_rows_are_in_the_units_of_the_file(collected: ReportData, scored: Path) -> None:
    table = pq.read_table(scored / "prepare/validation.parquet")
    x = np.array(table["x_scaled"].to_pylist())
    wanted = LinearModel().log_density(x, None, 0) + table["log_jacobian"].to_numpy()
    assert collected.seen_log_density["validation"] == pytest.approx(wanted)
    assert len(collected.seen_log_density["train"]) == 324


def test_the_cells_of_a_map_add_up_to_what_lies_in_them(collected: ReportData) -> None:
    assert [(cells.x_index, cells.y_index) for cells in collected.pair_maps] == [(0, 1), (0, 2), (1, 2)]
    generated = [column.generated for column in collected.columns]
    for cells in collected.pair_maps:
        areas = np.outer(np.diff(cells.y_edges), np.diff(cells.x_edges))
        shares, _, _ = np.histogram2d(
            generated[cells.x_index], generated[cells.y_index], (cells.x_edges, cells.y_edges)
        )
        # Sums over both sides, against 5,000 generated rows: two standard errors of a share are below 0.015.
        for side in (0, 1):
            found = (cells.density * areas).sum(axis=side)
            assert np.abs(found - shares.sum(axis=1 - side) / 5000).max() < 0.03
        assert 0.9 < (cells.density * areas).sum() <= 1.0 + 1e-9


def test_the_ends_of_categories_reach_as_far_as_the_model_does() -> None:
    categories = Feature("kind", Kind.CATEGORICAL, ("u", "v"), fit_standard(np.array([0.0, 1.0]), Noise()))
    assert _scaled_edges(categories, np.array([-0.5, 0.5, 1.5])).tolist() == [
        -np.inf,
        pytest.approx(0.0, abs=1e-6),
        np.inf,
    ]
    numbers = Feature("count", Kind.LATTICE, (), fit_standard(np.array([0.0, 1.0]), Noise()))
    assert np.isfinite(_scaled_edges(numbers, np.array([-0.5, 0.5, 1.5]))).all()


def test_a_report_is_made_the_same_again(scored: Path) -> None:
    figures = {"schema_version": 1, "mean_log_density": -4.0, "mean_log_density_se": 0.1}
    page = report_bytes(RunLayout(scored), "test", figures, LinearModel())
    assert b"&lt;b&gt;a&lt;/b&gt;" in page
    assert b"<b>a</b>" not in page
    assert report_bytes(RunLayout(scored), "test", figures, LinearModel()) == page


def test_a_file_of_the_user_with_missing_cells_has_a_report_too(scored: Path) -> None:
    set_name = other_set(scored)
    data = collect(RunLayout(scored), set_name, {}, LinearModel())
    assert data.subject.title == "new.csv"
    assert data.subject.data_argument.endswith("/new.csv")
    assert data.lowest is not None
    shown = {row[0]: row[-3:] for row in data.lowest.rows}
    assert set(shown) == {"1", "3"}  # the density of row 2 is that of two cells
    assert data.lowest.note == "Left out for missing cells, as their density is another quantity: 1 row."
    assert data.rows is not None
    assert np.isfinite(data.rows.log_density).tolist() == [True, False, True]
    assert shown["3"][1:] == ("2", "z")
    assert float(shown["3"][0]) == pytest.approx(-9, rel=1e-3)
    assert f"densities of {set_name}" in render(data)


def _made(**configs: StageConfig) -> dict[str, Manifest]:
    """Manifests of a run with seed 3 and these settings."""
    configs = {"prepare": PrepareConfig(seed=3), "warmstart": WarmstartConfig(seed=3), "refine": RefineConfig(seed=3),
               "density": DensityConfig(seed=3)} | configs  # fmt: skip
    return {
        stage: Manifest(stage=stage, set_name=None, run_id="r", identity={}, config=config.as_dict(), seed=3,
                        inputs={}, outputs={}, device="cpu", started="")
        for stage, config in configs.items()
    }  # fmt: skip


def test_chosen_settings_are_those_that_are_not_the_defaults() -> None:
    nothing = {"warmstart": {}, "refine": {}, "density": {}}
    assert chosen_settings(_made()) == {"prepare": {"seed": 3}, **nothing}  # later stages have the seed of the run
    prepare = PrepareConfig(seed=3, features=("x*",), scale="standard", split=(0.5, 0.25, 0.25))
    made = _made(prepare=prepare, refine=RefineConfig(seed=4, epochs=9))
    assert chosen_settings(made) == nothing | {
        "prepare": {"features": ["x*"], "split": [0.5, 0.25, 0.25], "scale": "standard", "seed": 3},
        "refine": {"epochs": 9, "seed": 4},
    }
    made = _made(warmstart=WarmstartConfig(seed=3, width=4, depth=3, class_maps=False))
    assert chosen_settings(made)["warmstart"] == {"width": 4, "depth": 3, "class_maps": False}
    assert chosen_settings(made, are_images=True)["warmstart"] == {"width": 4, "class_maps": False}


def test_after_the_preset_fast_the_advice_is_a_full_training() -> None:
    stages = {"warmstart": WarmstartConfig, "refine": RefineConfig}
    fast = {name: resolve(stage, flags={}, environ={}, preset="fast") for name, stage in stages.items()}
    made = _made(**{name: replace(config, seed=3) for name, config in fast.items()})
    beaten = {"baselines": {"gaussian": {"mean_log_density": -1.0, "gain": -2.0, "gain_se": 0.1}}}
    data = ReportData(Subject("t", "test", "1"), beaten, chosen=chosen_settings(made), fast=fast_settings(made))
    (first, *_) = advise(judge(data), data)
    assert first.text == "The model was trained with the preset fast, for a first look. Train it fully:"
    assert first.commands[:2] == ("bayesnde warmstart --restart", "bayesnde refine --restart")
    other = made | _made(refine=replace(fast["refine"], seed=3, draws=16))
    assert fast_settings(other) == {}
    data = replace(data, chosen=chosen_settings(other), fast={})
    assert "the preset fast" not in advise(judge(data), data)[0].text


def test_pair_densities_of_a_linear_gaussian_model_are_bivariate_normal() -> None:
    oracle = random_oracle(3, 2, seed=1)
    z = np.random.default_rng(0).standard_normal((40_000, 2))
    mean = z @ oracle.weights.T + oracle.offset
    sd = np.broadcast_to(np.sqrt(oracle.variance), mean.shape)
    covariance = oracle.weights @ oracle.weights.T + np.diag(oracle.variance)
    scale = np.sqrt(np.diag(covariance))
    places = [oracle.offset[index] + scale[index] * np.linspace(-2, 2, 9) for index in range(3)]
    found = pair_shares([(mean[:20_000], sd[:20_000]), (mean[20_000:], sd[20_000:])], places)
    assert list(found) == [(0, 1), (0, 2), (1, 2)]
    for (i, j), shares in found.items():
        own = multivariate_normal(oracle.offset[[i, j]], covariance[np.ix_([i, j], [i, j])])
        corners = own.cdf(np.stack(np.meshgrid(places[i], places[j], indexing="ij"), axis=-1))
        truth = np.diff(np.diff(corners, axis=0), axis=1)
        # A share of 0.1 from 40,000 latents has a standard error below 0.0015.
        assert np.abs(shares - truth).max() < 0.006
        wrong = np.diff(np.diff(corners.T, axis=0), axis=1)  # the negative control: axes exchanged
        assert np.abs(shares - wrong).max() > 0.006 or np.allclose(truth, truth.T, atol=0.006)


def test_places_of_a_column_with_noise_go_through_its_map() -> None:
    values = np.repeat(np.arange(6.0), 20)
    lattice = fit_lattice(values, values, noise=Noise())
    places = np.array([-0.5, 0.2, 2.5, 5.49])
    scaled = scaled_places(lattice, places)
    assert (np.diff(scaled) > 0).all()
    assert lattice.inverse(scaled) == pytest.approx(places, abs=1e-6)
    standard = fit_standard(values, None)
    assert standard.inverse(scaled_places(standard, places)) == pytest.approx(places)
    assert scaled_places(fit_none(Noise()), places) == pytest.approx(places, abs=1e-8)


@pytest.mark.parametrize("n_categories", [2, 3, 4])
def test_edges_of_categories_are_places_whatever_their_number(n_categories: int) -> None:
    codes = np.repeat(np.arange(float(n_categories)), 20)
    categorical = fit_categorical(codes, codes, n_categories=n_categories)
    edges = np.arange(n_categories + 1) - 0.5
    scaled = scaled_places(categorical, edges)
    assert categorical.inverse(scaled) == pytest.approx(edges, abs=1e-6)
    # The cells between the edges have the probabilities of the categories; each is as frequent as the others.
    assert np.diff(norm.cdf(scaled)) == pytest.approx(1 / n_categories, abs=1e-6)


def test_columns_without_a_density_are_found_in_the_training_rows() -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(500, 3)).astype(np.float32)
    x[:100, 0] = 0.5
    x[:, 2] = 3 * x[:, 1] + 1
    names = ("a", "b", "c")
    features = tuple(Feature(name, Kind.CONTINUOUS, (), fit_none(None)) for name in names)
    schema = Schema(Roles(names), features, (), False, 0)
    found = doubtful_columns(schema, x)
    assert found == DoubtfulColumns(spikes=(("a", 0.2),), linear=(("c", ("b",)),))
    assert doubtful_columns(schema, rng.normal(size=(500, 3)).astype(np.float32)) == DoubtfulColumns()


def test_the_files_that_render_know_no_run(examples: Path) -> None:
    package = examples.parents[1] / "src/bayesnde_cli/report"
    for module in package.rglob("*.py"):
        if module.parent.name == "collecting":
            continue
        others = [
            line for line in module.read_text("utf-8").splitlines() if "import" in line and "bayesnde_cli" in line
        ]
        assert [line for line in others if ".report" not in line and ".errors" not in line] == [], module


def test_making_the_text_of_a_page_needs_no_tensorflow() -> None:
    code = "import sys; import bayesnde_cli.report.page; print(sorted({'tensorflow', 'pyarrow'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_the_refined_model_decodes_as_its_decoder_does(tmp_path: Path) -> None:
    layout = RunLayout(tmp_path)
    decoder, encoder = decoder_spec(2, 3), encoder_spec(2, 3)
    weights = initial_autoencoder(decoder, encoder, seed=1)
    facts = {"decoder": asdict(decoder), "encoder": asdict(encoder)}
    write_arrays(layout.weights_dir("refine") / "model.npz", to_numpy(weights), facts)
    model = RefinedModel(layout, 64, "cpu")
    z = np.random.default_rng(0).standard_normal((5, 2)).astype(np.float32)
    mean, variance = decoder_of(decoder, weights)(z)
    np.testing.assert_array_equal(model.decode(z, None)[0], mean)
    np.testing.assert_array_equal(model.decode(z, None)[1], variance)
    assert model.latent_dim == 2
