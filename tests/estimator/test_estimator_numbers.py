"""The estimator and the command line give the same bits: a small network, really fitted and scored by both."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from bayesnde_cli import BayesNDE
from bayesnde_cli.artifacts.arrays import read_arrays

SETTINGS = {
    "warmstart.width": 16, "warmstart.depth": 2, "warmstart.column_steps": 100, "warmstart.epochs": 4,
    "warmstart.checks": 2, "warmstart.validation_draws": 16, "warmstart.generated_rows": 100,
    "refine.epochs": 2, "refine.checks": 2, "refine.validation_draws": 16, "refine.generated_rows": 100,
    "density.block_rows": 32,
}  # fmt: skip


@pytest.fixture(scope="module")
def rows() -> np.ndarray:
    rng = np.random.default_rng(1)
    return rng.normal(size=(300, 2)) @ np.array([[1.0, 0.7], [0.0, 0.5]]) + np.array([10.0, -3.0])


@pytest.fixture(scope="module")
def model(rows: np.ndarray, tmp_path_factory: pytest.TempPathFactory) -> BayesNDE:
    return BayesNDE(tmp_path_factory.mktemp("api") / "run", settings=SETTINGS, random_state=3).fit(rows)


def _write(file: Path, rows: np.ndarray) -> None:
    """Another name and format than the estimator's own file of these rows has."""
    file.write_text("c1,c2\n" + "".join(f"{a!r},{b!r}\n" for a, b in rows.tolist()))


def test_the_command_line_gives_the_same_bits(
    model: BayesNDE, rows: np.ndarray, bayesnde: Callable, tmp_path: Path
) -> None:
    file, run = tmp_path / "my table.csv", tmp_path / "run"
    _write(file, rows)
    assignments = [part for name, value in SETTINGS.items() for part in ("--set", f"{name}={value}")]
    outcome = bayesnde("fit", file, "--run", run, "--seed", "3", "-q", *assignments)
    assert outcome.code == 0, outcome.err
    weights = Path("refine") / "weights" / "model.npz"
    by_file, by_array = (read_arrays(folder / weights)[0] for folder in (run, model.run_))
    assert {name: array.tobytes() for name, array in by_file.items()} == {
        name: array.tobytes() for name, array in by_array.items()
    }

    _write(file, rows[:40])
    scored = tmp_path / "scored.parquet"
    outcome = bayesnde("density", file, "--run", run, "-q", "--block-rows", "32", "--out", scored)
    assert outcome.code == 0, outcome.err
    by_command_line = pq.read_table(scored)
    by_estimator = model.density_table(rows[:40])
    assert by_estimator.column_names == by_command_line.column_names
    for name in by_estimator.column_names:
        assert by_estimator[name].equals(by_command_line[name]), name
    log_density, se = model.score_samples(rows[:40], return_se=True)
    assert np.array_equal(log_density, by_command_line["log_density"].to_numpy())
    assert np.array_equal(se, by_command_line["mc_se"].to_numpy())


def test_a_sample_is_in_the_units_of_the_rows(model: BayesNDE, rows: np.ndarray) -> None:
    made = model.sample(2000)
    assert made.shape == (2000, 2)
    assert np.array_equal(model.sample(10), made[:10])
    assert not np.array_equal(model.sample(10, random_state=4), made[:10])
    # A rough fit: means within a third of a standard deviation.
    assert np.all(np.abs(made.mean(axis=0) - rows.mean(axis=0)) < rows.std(axis=0) / 3)


def test_a_loaded_run_scores_as_the_fitted_one(model: BayesNDE, rows: np.ndarray) -> None:
    loaded = BayesNDE.load(model.run_).set_params(settings=SETTINGS)
    assert loaded.score(rows[:40]) == model.score(rows[:40])
    assert np.array_equal(loaded.sample(5), model.sample(5))
