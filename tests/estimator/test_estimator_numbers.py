"""Small networks, really fitted: the estimator and the command line give the same bits, and the same samples."""

import csv
import io
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from bayesnde_cli.estimator import BayesNDE, UnreliableDensity
from bayesnde_cli.runs.files import read_arrays

# What the model says is tested, not the fit.
SETTINGS = {f"warmstart.{key}": value for key, value in {"width": 8, "depth": 1, "column_steps": 50}.items()}
SETTINGS |= {f"{stage}.epochs": epochs for stage, epochs in (("warmstart", 4), ("refine", 1))}
SETTINGS |= {f"{stage}.validation_draws": 16 for stage in ("warmstart", "refine")}
SETTINGS |= {f"{stage}.checks": 1 for stage in ("warmstart", "refine")}
SCORING = {"block_rows": 32, "chains": 2, "warm_up": 25, "draws": 50, "pilot_draws": 200, "proposal_draws": 2000}
SETTINGS |= {f"density.{key}": value for key, value in (SCORING | {"escalations": 0}).items()}


def _numbers(text: str, *names: str) -> np.ndarray:
    rows = list(csv.DictReader(io.StringIO(text)))
    return np.array([[float(row[name]) for name in names] for row in rows])


@pytest.mark.slow
@pytest.mark.usefixtures("without_xla")
def test_the_command_line_and_the_estimator_give_the_same_bits_and_samples(bayesnde: Callable, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    classes = rng.integers(0, 2, 300)
    rows = rng.normal(size=(300, 3)) @ np.array([[1.0, 0.6, 0.0], [0.0, 0.8, 0.5], [0.0, 0.0, 0.9]])
    rows += 2.0 * classes[:, None] + np.array([10.0, 0.0, -3.0])
    file, run = tmp_path / "my table.csv", tmp_path / "run"

    def write(n_rows: int) -> None:
        """Another name and format than the estimator's own file of these rows has."""
        lines = zip(rows[:n_rows].tolist(), classes, strict=False)
        file.write_text("c1,c2,c3,y\n" + "".join(f"{a!r},{b!r},{c!r},{y}\n" for (a, b, c), y in lines))

    model = BayesNDE(tmp_path / "api", conditional=True, settings=SETTINGS, random_state=3).fit(rows, classes)
    write(300)
    where = ["--run", run, "-q"]
    scoring = {name.partition(".")[2]: value for name, value in SETTINGS.items() if name.startswith("density")}
    assert bayesnde("prepare", file, "--condition", "y", "--seed", "3", *where).code == 0
    for stage in ("warmstart", "refine"):
        own = [f"--{name.partition('.')[2].replace('_', '-')}" for name in SETTINGS if name.startswith(stage)]
        values = [value for name, value in SETTINGS.items() if name.startswith(stage)]
        assert bayesnde(stage, *where, *(part for pair in zip(own, values, strict=True) for part in pair)).code == 0
    by_file, by_array = (read_arrays(folder / "refine/weights/model.npz")[0] for folder in (run, model.run_))
    assert {name: array.tobytes() for name, array in by_file.items()} == {
        name: array.tobytes() for name, array in by_array.items()
    }

    write(40)
    scored = tmp_path / "scored.parquet"
    config = tmp_path / "config.toml"
    config.write_text("[density]\n" + "".join(f"{key} = {value}\n" for key, value in scoring.items()))
    assert bayesnde("density", file, *where, "--config", config, "--out", scored).code == 0
    by_command_line, by_estimator = pq.read_table(scored), model.density_table(rows[:40], classes[:40])
    assert by_estimator.equals(by_command_line.cast(by_estimator.schema))
    log_density = by_command_line["log_density"].to_numpy()
    loaded = BayesNDE.load(model.run_).set_params(settings=SETTINGS)
    with warnings.catch_warnings(action="ignore", category=UnreliableDensity):  # so few draws
        assert loaded.score(rows[:40], classes[:40]) == pytest.approx(log_density.mean())

    made, _ = model.sample(200)
    assert np.array_equal(loaded.sample(10)[0], made[:10])
    assert not np.array_equal(model.sample(10, random_state=4)[0], made[:10])
    drawn = bayesnde("sample", "200", *where).out
    assert np.array_equal(_numbers(drawn, "c1", "c2", "c3"), made)
