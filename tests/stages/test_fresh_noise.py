"""Dequantisation noise that is drawn anew for every epoch of training."""

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

import fake_training
from bayesnde_cli.artifacts.layout import RunLayout
from bayesnde_cli.stages.reading import read_schema
from bayesnde_cli.stages.training.noisy_values import read_noisy_values
from bayesnde_cli.stages.training.rows import read_rows

SMALL = ["--width", "8", "--depth", "1", "--column-steps", "0", "--epochs", "3", "--checks", "1",
         "--validation-draws", "4", "--generated-rows", "50", "-q"]  # fmt: skip
COUNTS, SIZES, WORDS = 0, 1, 2


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A prepared run of whole numbers, real numbers and words."""
    return _prepared(
        tmp_path_factory.mktemp("mixed"), lambda rng: (rng.poisson(2.0), rng.normal(), "uvw"[rng.integers(3)])
    )


@pytest.fixture(scope="module")
def continuous(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A prepared run without a column that needs noise."""
    return _prepared(tmp_path_factory.mktemp("continuous"), lambda rng: tuple(rng.normal(size=3).tolist()))


def _prepared(folder: Path, row: Callable[[np.random.Generator], tuple]) -> Path:
    from bayesnde_cli.cli.main import run

    rng = np.random.default_rng(0)
    lines = ["counts,sizes,words", *(",".join(map(str, row(rng))) for _ in range(500))]
    (folder / "d.csv").write_text("\n".join(lines) + "\n")
    arguments = ["--scale", "marginal", "--run", str(folder / "run"), "-q"]
    assert run(["prepare", str(folder / "d.csv"), *arguments]) == 0
    return folder / "run"


def test_an_epoch_moves_cells_with_noise_within_their_values_and_no_others(mixed: Path) -> None:
    layout = RunLayout(mixed)
    noise = read_noisy_values(layout, read_rows(layout, "train"), 1)
    assert noise is not None
    first, second, as_prepared = noise.x(0).numpy(), noise.x(1).numpy(), read_rows(layout, "train").x
    assert np.array_equal(first[:, SIZES], as_prepared[:, SIZES])
    assert np.array_equal(second[:, SIZES], as_prepared[:, SIZES])
    schema = read_schema(layout)
    for column in (COUNTS, WORDS):
        assert (first[:, column] != second[:, column]).all()
        assert (first[:, column] != as_prepared[:, column]).all()
        values = [np.rint(schema.features[column].map.inverse(x[:, column].astype(float))) for x in (first, second)]
        assert np.array_equal(*values)


def test_over_many_epochs_the_noise_of_a_cell_is_uniform(mixed: Path) -> None:
    layout = RunLayout(mixed)
    noise = read_noisy_values(layout, read_rows(layout, "train"), 1)
    assert noise is not None
    n_epochs = 400
    inverse = read_schema(layout).features[COUNTS].map.inverse
    places = np.array([inverse(noise.x(epoch)[:1, COUNTS].numpy().astype(float))[0] for epoch in range(n_epochs)])
    fractions = np.sort(places - np.rint(places.mean()) + 0.5)
    distance = np.abs(fractions - (np.arange(n_epochs) + 0.5) / n_epochs).max()
    assert distance < 1.63 / np.sqrt(n_epochs)  # Kolmogorov and Smirnov, one in a hundred


def test_an_epoch_seen_again_is_the_same_and_another_seed_is_not(mixed: Path) -> None:
    layout = RunLayout(mixed)
    noise, again, other = (read_noisy_values(layout, read_rows(layout, "train"), seed) for seed in (1, 1, 2))
    assert noise is not None
    assert again is not None
    assert other is not None
    noise.x(0), noise.x(5)
    assert np.array_equal(noise.x(0), again.x(0))
    assert not np.array_equal(noise.x(0), other.x(0))


def test_rows_without_noise_have_none_to_draw(continuous: Path) -> None:
    layout = RunLayout(continuous)
    assert read_noisy_values(layout, read_rows(layout, "train"), 1) is None


@pytest.mark.parametrize(("name", "is_other"), [("mixed", True), ("continuous", False)])
def test_training_sees_it_only_where_there_is_noise(
    bayesnde: Callable, tmp_path: Path, request: pytest.FixtureRequest, name: str, is_other: bool
) -> None:
    losses = []
    for flag in ("--fresh-noise", "--no-fresh-noise"):
        run = Path(shutil.copytree(request.getfixturevalue(name), tmp_path / flag))
        with fake_training.installed():
            outcome = bayesnde("warmstart", "--run", run, *SMALL, flag)
        assert outcome.code == 0, outcome.err
        losses.append(pq.read_table(run / "warmstart/history.parquet")["loss"].to_pylist())
    assert (losses[0] != losses[1]) == is_other
