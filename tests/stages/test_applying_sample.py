"""`sample`: rows have the distribution of the model, the types of the file, and the same bits for the same address."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from linear_gaussian_oracle import LinearGaussianOracle, random_oracle

from bayesnde_cli.artifacts.layout import RunLayout
from bayesnde_cli.config import DensityConfig
from bayesnde_cli.data.made_rows import made_column, scaled_again
from bayesnde_cli.errors import BadUsage
from bayesnde_cli.stages.applying.fitted_run import FittedRun, fitted_run
from bayesnde_cli.stages.applying.prior_draws import PriorDraws
from bayesnde_cli.stages.applying.sample import BLOCK_ROWS, RowMaker, ScoredSample, by_density
from fake_engine import FakeEngine
from linear_model import OF_FITTED, LinearEngine, LinearPrior

# A mean of so many standard errors is missed once in 10,000 times.
MOST_ERRORS = 4.0


@pytest.fixture
def known(fitted: Path) -> FittedRun:
    return fitted_run(RunLayout(fitted), DensityConfig(block_rows=16))


def _maker(known: FittedRun, *chosen_classes: int) -> RowMaker:
    return RowMaker(known, LinearPrior(OF_FITTED, BLOCK_ROWS), chosen_classes)


def _table(maker: RowMaker, n_rows: int) -> pa.Table:
    return pa.Table.from_batches(maker.batches(n_rows))


def _errors(x: np.ndarray, mean: np.ndarray, covariance: np.ndarray) -> np.ndarray:
    """How far the moments of rows are off, in standard errors: means, then products of two columns."""
    centred = x - mean
    products = np.einsum("ni,nj->nij", centred, centred).reshape(len(x), -1) - covariance.ravel()
    both = np.concatenate([centred, products], axis=1)
    return both.mean(axis=0) / (both.std(axis=0) / np.sqrt(len(x)))


def test_draws_have_the_moments_of_the_decoder() -> None:
    oracle = random_oracle(3, 2)
    prior = PriorDraws(oracle, 2, block_rows=4096)
    x = np.concatenate([prior.rows(seed) for seed in range(10)]).astype(np.float64)
    covariance = oracle.weights @ oracle.weights.T + np.diag(oracle.variance)
    assert np.abs(_errors(x, oracle.offset, covariance)).max() < MOST_ERRORS
    narrower = LinearGaussianOracle(oracle.weights, oracle.offset, 0.9 * oracle.variance)
    wrong = narrower.weights @ narrower.weights.T + np.diag(narrower.variance)
    assert np.abs(_errors(x, oracle.offset, wrong)).max() > MOST_ERRORS  # the test can fail
    mean, variance = prior.moments(3)
    assert np.abs(_errors(mean, oracle.offset, oracle.weights @ oracle.weights.T)).max() < MOST_ERRORS
    assert np.allclose(variance, oracle.variance)


def test_a_seed_is_the_address_of_a_block() -> None:
    prior = PriorDraws(random_oracle(3, 2), 2, block_rows=64)
    assert np.array_equal(prior.rows(7), prior.rows(7))
    assert not np.array_equal(prior.rows(7), prior.rows(8))
    assert not np.array_equal(prior.rows(7), prior.rows(7 + 2**40))


@pytest.mark.parametrize("chosen_class", [0, 1])
def test_rows_of_a_class_have_its_moments_in_the_models_space(known: FittedRun, chosen_class: int) -> None:
    maker = _maker(known, chosen_class)
    made = [made for made, _ in maker.blocks(20 * BLOCK_ROWS)]
    x = np.concatenate([scaled_again(known.schema, block.columns)[0] for block in made]).astype(np.float64)
    assert np.abs(_errors(x, OF_FITTED.mean(chosen_class), OF_FITTED.covariance)).max() < MOST_ERRORS
    assert np.abs(_errors(x, OF_FITTED.mean(1 - chosen_class), OF_FITTED.covariance)).max() > MOST_ERRORS
    names = set(_table(maker, 50)["k"].to_pylist())
    assert names == {"uv"[chosen_class]}


def test_classes_are_as_frequent_as_in_training(known: FittedRun) -> None:
    assert known.class_shares.sum() == pytest.approx(1.0)
    share = np.mean(np.array(_table(_maker(known), 8000)["k"].to_pylist()) == "u")
    error = np.sqrt(known.class_shares.prod() / 8000)
    assert abs(share - known.class_shares[0]) < MOST_ERRORS * error
    assert abs(share - 0.9) > MOST_ERRORS * error


def test_cells_have_the_types_of_the_file(known: FittedRun) -> None:
    table = _table(_maker(known), 300)
    assert table.schema == pa.schema({"a": pa.float64(), "b": pa.float64(), "n": pa.int64(), "k": pa.string()})
    assert len(set(table["n"].to_pylist())) > 3


def test_a_shorter_sample_is_the_beginning_of_a_longer_one(known: FittedRun) -> None:
    long = _table(_maker(known), 2 * BLOCK_ROWS + 7)
    for n_rows in (1, 100, BLOCK_ROWS, BLOCK_ROWS + 1):
        assert _table(_maker(known), n_rows).equals(long.slice(0, n_rows))
    blocks = [batch.to_pylist() for batch in _maker(known).batches(2 * BLOCK_ROWS)]
    assert blocks[0] != blocks[1]


def test_chosen_classes_come_in_turn_over_all_blocks(known: FittedRun) -> None:
    n_rows = 2 * BLOCK_ROWS  # no multiple of three
    assert _table(_maker(known, 0, 0, 1), n_rows)["k"].to_pylist() == (["u", "u", "v"] * n_rows)[:n_rows]
    assert _table(_maker(known, 1), 40).equals(_table(_maker(known, 1, 1), 40))


def _scored(known: FittedRun, engine: object, n_rows: int) -> pa.Table:
    return pa.Table.from_batches(ScoredSample(_maker(known), engine, 16).batches(n_rows))  # type: ignore[arg-type]


def test_scored_rows_are_the_same_rows_with_the_density_of_the_file(known: FittedRun) -> None:
    table = _scored(known, LinearEngine(OF_FITTED), 40)
    assert table.select(["a", "b", "n", "k"]).equals(_table(_maker(known), 40))
    (made, _) = next(iter(_maker(known).blocks(40)))
    x = np.stack([f.map.forward(c.value, c.fraction)[0] for f, c in zip(known.schema.features, made.columns,
                                                                       strict=True)], axis=1)  # fmt: skip
    slopes = sum(f.map.forward(c.value, c.fraction)[1] for f, c in zip(known.schema.features, made.columns,
                                                                      strict=True))  # fmt: skip
    classes = ["uv".index(name) for name in table["k"].to_pylist()]
    expected = [float(OF_FITTED.log_density(x[i], [0, 1, 2], classes[i]) + slopes[i]) for i in range(40)]
    assert np.allclose(table["log_density"], expected, atol=1e-4)
    assert table["mc_se"].to_pylist() == [0.01 * (1 + index) for index in classes]
    assert table["reliable"].to_pylist() == [True] * 40


def test_a_shorter_scored_sample_is_the_beginning_of_a_longer_one(known: FittedRun) -> None:
    # The stand-in's figures depend on all rows of its block, as those of rows that are tried again do.
    engine = FakeEngine(DensityConfig(block_rows=16, chains=2, draws=4))
    long = _scored(known, engine, 50)
    for n_rows in (1, 16, 21, 49):
        assert _scored(known, engine, n_rows).equals(long.slice(0, n_rows))


def test_by_density_the_highest_comes_first_and_what_has_none_last() -> None:
    batches = [pa.record_batch({"x": [1, 2], "log_density": [-3.0, np.nan]}),
               pa.record_batch({"x": [3, 4], "log_density": [-1.0, -3.0]})]  # fmt: skip
    assert [row["x"] for batch in by_density(batches) for row in batch.to_pylist()] == [3, 1, 4, 2]


def test_a_class_that_is_not_there_is_refused(known: FittedRun) -> None:
    with pytest.raises(BadUsage, match="there is no class 'w'\n  classes: u, v"):
        known.class_index("w")


def test_the_inverse_of_the_scaling_is_where_the_rows_come_from(known: FittedRun) -> None:
    x = LinearPrior(OF_FITTED, 256).rows(5)
    for position, feature in enumerate(known.schema.features):
        column = made_column(feature, x[:, position])
        again, _ = feature.map.forward(column.value, column.fraction)
        assert np.allclose(again, x[:, position], atol=1e-4)


def test_the_run_must_be_fitted(tmp_path: Path, bayesnde: Callable, examples: Path) -> None:
    run = tmp_path / "r"
    assert bayesnde("sample", "5", "--run", run).code == 3
    assert bayesnde("prepare", examples / "faithful.csv", "--run", run).code == 0
    outcome = bayesnde("sample", "5", "--run", run)
    assert outcome.code == 3
    assert outcome.err == (
        f"error: refine is not there, or not complete\n  no {run}/refine/manifest.json\n"
        f"hint: run `bayesnde warmstart --run {run}`, then `bayesnde refine --run {run}`\n"
    )
