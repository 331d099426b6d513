"""`sample`: rows have the distribution of the model, the types of the file, and the same bits for the same address."""

from pathlib import Path
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pytest
from linear_gaussian_oracle import LinearGaussianOracle, random_oracle

from bayesnde_cli.answers import FittedRun, fitted_run
from bayesnde_cli.answers.sample import BLOCK_ROWS, Sampler, sort_by_density
from bayesnde_cli.runs.layout import RunLayout
from bayesnde_cli.settings.stage_settings import DensitySettings
from bayesnde_cli.stages.loading import Prior
from bayesnde_cli.tables.model_rows import invert_scaling, scale_columns
from fake_engine import FakeEngine
from linear_model import OF_FITTED, LinearEngine, LinearPrior

# A mean of so many standard errors is missed once in 10,000 times.
MOST_ERRORS = 4.0


@pytest.fixture
def known(fitted: Path) -> FittedRun:
    return fitted_run(RunLayout(fitted), DensitySettings(block_rows=16))


def _sampler(known: FittedRun, chosen_classes: tuple[int, ...] = (), engine: Any = None) -> Sampler:
    return Sampler(known, cast(Prior, LinearPrior(OF_FITTED, BLOCK_ROWS)), chosen_classes, engine)


def _sample(known: FittedRun, n_rows: int, *chosen_classes: int, engine: Any = None) -> pa.Table:
    return pa.Table.from_batches(_sampler(known, chosen_classes, engine).batches(n_rows))


def _errors(x: np.ndarray, mean: np.ndarray, covariance: np.ndarray) -> np.ndarray:
    """How far the moments of rows are off, in standard errors: means, then products of two columns."""
    centred = x - mean
    products = np.einsum("ni,nj->nij", centred, centred).reshape(len(x), -1) - covariance.ravel()
    both = np.concatenate([centred, products], axis=1)
    return both.mean(axis=0) / (both.std(axis=0) / np.sqrt(len(x)))


def test_draws_have_the_moments_of_the_decoder() -> None:
    oracle = random_oracle(3, 2)
    prior = Prior(oracle, 2, block_rows=4096)
    x = np.concatenate([prior.rows(seed) for seed in range(10)]).astype(np.float64)
    covariance = oracle.weights @ oracle.weights.T + np.diag(oracle.variance)
    assert np.abs(_errors(x, oracle.offset, covariance)).max() < MOST_ERRORS
    narrower = LinearGaussianOracle(oracle.weights, oracle.offset, 0.9 * oracle.variance)
    wrong = narrower.weights @ narrower.weights.T + np.diag(narrower.variance)
    assert np.abs(_errors(x, oracle.offset, wrong)).max() > MOST_ERRORS  # the test can fail
    mean, variance = prior.moments(3)
    assert np.abs(_errors(mean, oracle.offset, oracle.weights @ oracle.weights.T)).max() < MOST_ERRORS
    assert np.allclose(variance, oracle.variance)
    assert np.array_equal(prior.rows(7), prior.rows(7))  # a seed is the address of a block
    assert not np.array_equal(prior.rows(7), prior.rows(8))
    assert not np.array_equal(prior.rows(7), prior.rows(7 + 2**40))


@pytest.mark.parametrize("chosen_class", [0, 1])
def test_rows_of_a_class_have_its_moments_in_the_models_space(known: FittedRun, chosen_class: int) -> None:
    table = _sample(known, 20 * BLOCK_ROWS, chosen_class)
    a, b, _ = known.schema.features  # both without noise: the file tells where the rows come from
    x = np.stack([feature.map.forward(table[feature.name].to_numpy())[0] for feature in (a, b)], axis=1)
    covariance = OF_FITTED.covariance[:2, :2]
    assert np.abs(_errors(x, OF_FITTED.mean(chosen_class)[:2], covariance)).max() < MOST_ERRORS
    assert np.abs(_errors(x, OF_FITTED.mean(1 - chosen_class)[:2], covariance)).max() > MOST_ERRORS
    assert set(table["k"].to_pylist()) == {"uv"[chosen_class]}


def test_classes_are_as_frequent_as_in_training(known: FittedRun) -> None:
    assert known.class_shares.sum() == pytest.approx(1.0)
    table = _sample(known, 8000)
    assert table.schema == pa.schema({"a": pa.float64(), "b": pa.float64(), "n": pa.int64(), "k": pa.string()})
    share = np.mean(np.array(table["k"].to_pylist()) == "u")
    error = np.sqrt(known.class_shares.prod() / 8000)
    assert abs(share - known.class_shares[0]) < MOST_ERRORS * error
    assert abs(share - 0.9) > MOST_ERRORS * error


def test_a_shorter_sample_is_the_beginning_of_a_longer_one(known: FittedRun) -> None:
    long = _sample(known, 2 * BLOCK_ROWS + 7)
    for n_rows in (1, 100, BLOCK_ROWS, BLOCK_ROWS + 1):
        assert _sample(known, n_rows).equals(long.slice(0, n_rows))
    assert not long.slice(0, 7).equals(long.slice(BLOCK_ROWS, 7))
    # The stand-in's figures depend on all rows of its block, as those of rows that are scored again do.
    engine = FakeEngine(DensitySettings(block_rows=16, chains=2, draws=4))
    scored = _sample(known, 50, engine=engine)
    for n_rows in (1, 16, 21, 49):
        assert _sample(known, n_rows, engine=engine).equals(scored.slice(0, n_rows))


def test_chosen_classes_come_in_turn_over_all_blocks(known: FittedRun) -> None:
    n_rows = 2 * BLOCK_ROWS  # not a multiple of three
    assert _sample(known, n_rows, 0, 0, 1)["k"].to_pylist() == (["u", "u", "v"] * n_rows)[:n_rows]
    assert _sample(known, 40, 1).equals(_sample(known, 40, 1, 1))


def test_scored_rows_are_the_same_rows_with_the_density_of_the_file(known: FittedRun) -> None:
    table = _sample(known, 40, engine=LinearEngine(OF_FITTED))
    assert table.select(["a", "b", "n", "k"]).equals(_sample(known, 40))
    columns, _ = _sampler(known)._draw_block(0)
    x, log_jacobian = scale_columns(known.schema, columns)
    classes = ["uv".index(name) for name in table["k"].to_pylist()]
    expected = [float(OF_FITTED.log_density(x[i], [0, 1, 2], classes[i]) + log_jacobian[i]) for i in range(40)]
    assert np.allclose(table["log_density"], expected, atol=1e-4)
    assert table["mc_se"].to_pylist() == [0.01 * (1 + index) for index in classes]
    assert table["reliable"].to_pylist() == [True] * 40


def test_by_density_the_highest_comes_first_and_what_has_none_last() -> None:
    parts = [{"x": [1, 2], "log_density": [-3.0, np.nan]}, {"x": [3, 4], "log_density": [-1.0, -3.0]}]
    batches = [pa.record_batch(part) for part in parts]
    assert [row["x"] for batch in sort_by_density(batches) for row in batch.to_pylist()] == [3, 1, 4, 2]


def test_the_inverse_of_the_scaling_is_where_the_rows_come_from(known: FittedRun) -> None:
    x = LinearPrior(OF_FITTED, 256).rows(5)
    for position, feature in enumerate(known.schema.features):
        column = invert_scaling(feature, x[:, position])
        again, _ = feature.map.forward(column.value, column.fraction)
        assert np.allclose(again, x[:, position], atol=1e-4)
