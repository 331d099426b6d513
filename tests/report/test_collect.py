"""The data of a report, read from a small run with every kind of column."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import fake_engine
from bayesnde_cli.report.collect import (
    ReportData,
    Subject,
    changed_settings,
    collect,
    fast_settings,
    find_doubtful_columns,
)
from bayesnde_cli.report.page import render
from bayesnde_cli.report.trust import advise, judge
from bayesnde_cli.runs.layout import RunLayout
from bayesnde_cli.runs.manifest import Manifest
from bayesnde_cli.runs.parquet_files import Stamp, write_table
from bayesnde_cli.scaling.column_map import Affine
from bayesnde_cli.settings import resolve
from bayesnde_cli.settings.declare import StageSettings
from bayesnde_cli.settings.stage_settings import DensitySettings, PrepareSettings, RefineSettings, WarmstartSettings
from bayesnde_cli.stages import loading
from bayesnde_cli.stages.loading import Model
from bayesnde_cli.stages.measures import model_figures
from bayesnde_cli.tables.columns import Kind
from bayesnde_cli.tables.schema import Feature, Schema
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

    def prior(self, block_rows: int) -> SimpleNamespace:
        def moments(seed: int, y: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
            return self.decode(np.random.Generator(np.random.Philox(seed)).standard_normal((block_rows, 1)), y)

        return SimpleNamespace(moments=moments)

    def log_density(self, x: np.ndarray, y: np.ndarray | None, seed: int) -> np.ndarray:
        return -np.sum(np.square(x, dtype=np.float64), axis=1)


@pytest.fixture(scope="module")
def scored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with a condition, a truth, outliers, a lattice and words, whose later stages are stand-ins."""
    from bayesnde_cli.cli.main import run

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
        write_table(path, pa.Table.from_pylist(rows), Stamp(name, "r"))
    real = loading.open_engine
    fake_engine.install()
    try:
        assert run(["density", *to, *fake_engine.SMALL]) == 0
        assert run(["density", str(folder / "new.csv"), *to, *fake_engine.SMALL]) == 0
    finally:
        loading.open_engine = real
    return folder / "run"


def _collect(run: Path, set_name: str) -> ReportData:
    layout, model = RunLayout(run), cast(Model, LinearModel())
    return collect(layout, set_name, {}, model_figures(model, layout, set_name))


@pytest.fixture(scope="module")
def collected(scored: Path) -> ReportData:
    return _collect(scored, "test")


def test_the_subject_tells_the_size_of_the_task(collected: ReportData) -> None:
    subject = collected.subject
    assert (subject.title, subject.set_name, subject.data_argument) == ("d.csv", "test", "")
    assert (subject.n_train, subject.n_validation, subject.n_rows) == (324, 36, 40)
    assert (subject.n_features, subject.classes) == (3, {"u": 162, "v": 162})
    # The facts are on the page, without the plots.
    text = render(replace(collected, training=(), rows=None, model=collected.model._replace(columns=())))
    words = " ".join(text.split())
    assert "<td>3 features (1 continuous, 1 lattice, 1 categorical), given k (2 classes)</td>" in words
    assert "<td>324 training, 36 validation, 40 scored (test)</td>" in words
    assert "&lt;b&gt;a&lt;/b&gt;" in text
    assert "<b>a</b>" not in text


def test_columns_are_in_the_units_of_the_file(collected: ReportData) -> None:
    first, lattice, words = columns = collected.model.columns
    assert [column.name for column in columns] == ["<b>a</b>", "n", "word"]
    assert np.array_equal(lattice.real, np.rint(lattice.real))
    assert np.array_equal(lattice.generated, np.rint(lattice.generated))
    assert words.categories == ("x", "y", "z")
    assert set(words.real) | set(words.generated) <= {0.0, 1.0, 2.0}
    assert all(len(column.real) == 40 for column in columns)
    assert np.isfinite(first.generated).all()


def test_rows_are_those_of_the_table_in_its_order(collected: ReportData, scored: Path) -> None:
    table = pq.read_table(scored / "prepare/test.parquet")
    assert collected.model.columns[0].real == pytest.approx(table["<b>a</b>"].to_numpy(), abs=1e-5)
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
    assert {phase: step.tolist() for phase, (step, _) in refine.losses.items()} == {"columns": [10], "elbo": [13, 16]}
    assert refine.step.tolist() == [10, 16]
    assert (refine.selected, refine.log_density[1], refine.n_epochs) == (1, -4.0, 2)


def test_seen_rows_are_in_the_units_of_the_file(collected: ReportData, scored: Path) -> None:
    table = pq.read_table(scored / "prepare/validation.parquet")
    x = np.array(table["x_scaled"].to_pylist())
    wanted = LinearModel().log_density(x, None, 0) + table["log_jacobian"].to_numpy()
    assert collected.model.seen_log_density["validation"] == pytest.approx(wanted)
    assert len(collected.model.seen_log_density["train"]) == 324


def test_the_cells_of_a_map_add_up_to_what_lies_in_them(collected: ReportData) -> None:
    assert [(cells.x_index, cells.y_index) for cells in collected.model.pair_maps] == [(0, 1), (0, 2), (1, 2)]
    generated = [column.generated for column in collected.model.columns]
    for cells in collected.model.pair_maps:
        areas = np.outer(np.diff(cells.y_edges), np.diff(cells.x_edges))
        shares, _, _ = np.histogram2d(
            generated[cells.x_index], generated[cells.y_index], (cells.x_edges, cells.y_edges)
        )
        # Sums over both sides, against 5,000 generated rows: two standard errors of a share are below 0.015.
        for side in (0, 1):
            found = (cells.density * areas).sum(axis=side)
            assert np.abs(found - shares.sum(axis=1 - side) / 5000).max() < 0.03
        assert 0.9 < (cells.density * areas).sum() <= 1.0 + 1e-9


def test_a_file_of_the_user_with_missing_cells_has_a_report_too(scored: Path) -> None:
    set_name = other_set(scored)
    data = _collect(scored, set_name)
    assert data.subject.title == "new.csv"
    assert data.subject.data_argument.endswith("/new.csv")
    assert data.lowest is not None
    shown = {row[0]: row[-3:] for row in data.lowest.rows}
    assert set(shown) == {"1", "3"}  # the density of row 2 is that of two cells
    assert data.lowest.n_incomplete == 1
    assert data.rows is not None
    assert np.isfinite(data.rows.log_density).tolist() == [True, False, True]
    assert shown["3"][1:] == ("2", "z")
    assert float(shown["3"][0]) == pytest.approx(-9, rel=1e-3)


def _made(**configs: StageSettings) -> dict[str, Manifest]:
    """Manifests of a run with seed 3 and these settings."""
    stages = (PrepareSettings, WarmstartSettings, RefineSettings, DensitySettings)
    configs = {settings.stage: settings(seed=3) for settings in stages} | configs
    empty: dict[str, Any] = {
        "set_name": None,
        "run_id": "r",
        "identity": {},
        "inputs": {},
        "outputs": {},
        "device": "cpu",
    }
    return {
        stage: Manifest(stage=stage, config=config.as_dict(), seed=3, started="", **empty)
        for stage, config in configs.items()
    }


def test_chosen_settings_are_those_that_are_not_the_defaults() -> None:
    nothing: dict[str, dict[str, Any]] = {"warmstart": {}, "refine": {}, "density": {}}
    assert changed_settings(_made()) == {"prepare": {"seed": 3}, **nothing}  # later stages have the seed of the run
    prepare = PrepareSettings(seed=3, features=("x*",), scale="standard", split=(0.5, 0.25, 0.25))
    made = _made(prepare=prepare, refine=RefineSettings(seed=4, epochs=9))
    assert changed_settings(made) == nothing | {
        "prepare": {"features": ["x*"], "split": [0.5, 0.25, 0.25], "scale": "standard", "seed": 3},
        "refine": {"epochs": 9, "seed": 4},
    }
    made = _made(warmstart=WarmstartSettings(seed=3, width=4, depth=3, class_maps=False))
    assert changed_settings(made)["warmstart"] == {"width": 4, "depth": 3, "class_maps": False}
    assert changed_settings(made, are_images=True)["warmstart"] == {"width": 4, "class_maps": False}


def test_after_the_preset_fast_the_advice_is_a_full_training() -> None:
    fast: dict[str, StageSettings] = {
        stage.stage: resolve(stage, flags={}, environ={}, preset="fast")
        for stage in (WarmstartSettings, RefineSettings)
    }
    made = _made(**{name: config.model_copy(update={"seed": 3}) for name, config in fast.items()})
    beaten = {"baselines": {"gaussian": {"mean_log_density": -1.0, "gain": -2.0, "gain_se": 0.1}}}
    data = ReportData(Subject("t", "test"), beaten, changed=changed_settings(made), fast=fast_settings(made))
    advice = advise(judge(data), data)
    assert advice["train_fully"][:2] == ("bayesnde warmstart --restart", "bayesnde refine --restart")
    other = made | _made(refine=fast["refine"].model_copy(update={"seed": 3, "draws": 16}))
    assert fast_settings(other) == {}
    data = replace(data, changed=changed_settings(other), fast={})
    assert "train_fully" not in advise(judge(data), data)


def test_columns_without_a_density_are_found_in_the_training_rows() -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(500, 3)).astype(np.float32)
    x[:100, 0] = 0.5
    x[:, 2] = 3 * x[:, 1] + 1
    names = ("a", "b", "c")
    features = tuple(Feature(name, Kind.CONTINUOUS, (), Affine(0.0, 1.0)) for name in names)
    schema = Schema(features, 0)
    assert find_doubtful_columns(schema, x) == ({"a": 0.2}, {"c": ("b",)})
    assert find_doubtful_columns(schema, rng.normal(size=(500, 3)).astype(np.float32)) == ({}, {})
