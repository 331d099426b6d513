"""Roundtrip's density against the closed form of linear generators, and its t: what is drawn is what is scored."""

from collections.abc import Callable

import numpy as np
import pytest
import tensorflow as tf
from linear_gaussian_oracle import LinearGaussianOracle
from scipy import stats

from bayesnde_cli.evaluation.baselines import roundtrip
from bayesnde_cli.evaluation.baselines.roundtrip import FREEDOMS, Choice, Estimate, Pair, Roundtrip, draw, log_prob
from bayesnde_cli.model.parameters import Parameters

SIGMA = 0.2
_RNG = np.random.default_rng(5)
ORACLE = LinearGaussianOracle(_RNG.normal(size=(4, 2)), _RNG.normal(size=4), np.full(4, SIGMA**2))
CHOICE = Choice(SIGMA, 0.25, 5, 0.0)
N_ROWS = 200
SHIFTS = np.array([[0.0, 0.0, 0.0, 0.0], [3.0, -2.0, 1.0, 0.5]])  # of the rows of each class


def _pair(weights: Parameters) -> Pair:
    """The oracle and the mean of its posterior, or a place so far `off`."""

    def decode(z: tf.Tensor, y: tf.Tensor | None = None) -> tf.Tensor:
        return ORACLE(z)[0] + (0.0 if y is None else tf.matmul(y, tf.constant(SHIFTS, tf.float32)))

    def encode(x: tf.Tensor, y: tf.Tensor | None = None) -> tf.Tensor:
        centred = x - ORACLE.offset - (0.0 if y is None else tf.matmul(y, tf.constant(SHIFTS, tf.float32)))
        slope = ORACLE.posterior(ORACLE.offset + np.eye(4)).mean  # (p, d)
        return tf.matmul(centred, tf.constant(slope, tf.float32)) + weights["off"]

    return Pair(decode, encode)


ESTIMATOR = Roundtrip(_pair)  # compiled once
RIGHT = {"off": tf.constant(0.0)}


@pytest.fixture(scope="module")
def x() -> np.ndarray:
    return ORACLE.sample(N_ROWS, np.random.default_rng(0))[1]


def _estimate(x: np.ndarray, weights: Parameters = RIGHT, *, n_draws: int = 1000, seed: int = 1) -> Estimate:
    return ESTIMATOR.estimate(weights, CHOICE, x, None, n_draws=n_draws, seed=seed)


def _product(centre: tf.Tensor, scale: tf.Tensor, z: tf.Tensor, *, freedom: int) -> tf.Tensor:
    """The log-density of independent t's: what a multivariate t is not."""
    distance = (tf.cast(z, tf.float64) - tf.cast(centre, tf.float64)[:, None, :]) / scale
    constant = stats.t.logpdf(0.0, freedom) - tf.math.log(scale)
    return tf.reduce_sum(constant - 0.5 * (freedom + 1) * tf.math.log1p(tf.square(distance) / freedom), axis=2)


def _total_of_the_prior(score: Callable[..., tf.Tensor], freedom: int) -> tuple[float, float]:
    """E_q[N(z; 0, I) / q(z)] and its standard error, in three dimensions."""
    centre, scale = tf.constant([[0.5, -0.3, 0.2]]), tf.constant(0.8, tf.float64)
    z = draw(centre, scale, 400_000, tf.constant([3, 4]), freedom=freedom)
    log_prior = stats.norm.logpdf(z.numpy().astype(float)).sum(axis=2)
    weights = np.exp(log_prior - score(centre, scale, z, freedom=freedom).numpy())[0]
    return weights.mean(), weights.std() / np.sqrt(len(weights))


@pytest.mark.parametrize("freedom", FREEDOMS)
def test_what_is_drawn_is_what_is_scored(freedom: int) -> None:
    total, se = _total_of_the_prior(log_prob, freedom)
    assert se < 0.01
    assert abs(total - 1.0) < 4.0 * se
    # The negative control: drawn as one multivariate t, scored as a product.
    total, se = _total_of_the_prior(_product, freedom)
    assert abs(total - 1.0) > 6.0 * se


@pytest.mark.parametrize("freedom", FREEDOMS)
def test_every_coordinate_of_a_draw_is_a_t_and_the_density_is_scipys(freedom: int) -> None:
    centre, scale = tf.constant([[1.0, -2.0]]), tf.constant(0.3, tf.float64)
    z = draw(centre, scale, 20_000, tf.constant([1, 2]), freedom=freedom)
    standard = (z.numpy().astype(float) - [1.0, -2.0])[0] / 0.3
    for column in standard.T:
        assert stats.kstest(column, stats.t(freedom).cdf).pvalue > 1e-3
    exact = stats.multivariate_t([1.0, -2.0], 0.09 * np.eye(2), df=freedom).logpdf(z.numpy()[0])
    np.testing.assert_allclose(log_prob(centre, scale, z, freedom=freedom)[0], exact, rtol=1e-6)


def test_a_linear_generator_has_the_density_of_the_closed_form_and_the_errors_cover_it(x: np.ndarray) -> None:
    found = _estimate(x)
    assert found.log_density.dtype == found.mc_se.dtype == np.float64
    standard = (found.log_density - ORACLE.log_density(x)) / found.mc_se
    assert found.mc_se.max() < 0.1
    # 200 rows: the share within two errors is 0.954 +- 0.015, the s.d. 1 +- 0.05, the mean 0 +- 0.07.
    assert 0.90 <= np.mean(np.abs(standard) < 2.0) <= 0.995
    assert 0.8 < standard.std() < 1.2
    assert abs(standard.mean()) < 0.3


def test_draws_that_are_scored_as_a_product_miss_the_closed_form(
    x: np.ndarray, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(roundtrip, "log_prob", _product)
    found = Roundtrip(_pair).estimate(RIGHT, CHOICE, x, None, n_draws=1000, seed=1)
    standard = (found.log_density - ORACLE.log_density(x)) / found.mc_se
    assert abs(standard.mean()) > 1.0
    assert np.mean(np.abs(standard) < 2.0) < 0.8


def test_any_number_of_draws_gives_an_unbiased_density(x: np.ndarray) -> None:
    """200 draws are no whole number of chunks: if the rest of the last were counted, ratios would be near 1.28."""
    ratio = np.exp(_estimate(x, n_draws=200).log_density - ORACLE.log_density(x))
    assert abs(ratio.mean() - 1.0) < 4.0 * ratio.std() / np.sqrt(N_ROWS)
    assert ratio.std() / np.sqrt(N_ROWS) < 0.02


def test_more_draws_shrink_the_error_by_the_root(x: np.ndarray) -> None:
    few, many = (np.sqrt(np.mean(_estimate(x, n_draws=n).mc_se ** 2)) for n in (500, 8000))
    assert few / many == pytest.approx(4.0, rel=0.15)


def test_validation_rows_choose_the_true_sigma(x: np.ndarray) -> None:
    choice = ESTIMATOR.choose(RIGHT, x, None, seed=1)
    # 200 rows with two free directions each: sigma is known to 4 %, and the grid's step is 9 %.
    assert SIGMA / 1.15 < choice.sigma < 1.15 * SIGMA
    # Sigma was fitted to these rows, by far less than 0.05; so much may the bias of 1,000 draws cost.
    assert choice.log_density == pytest.approx(ORACLE.log_density(x).mean(), abs=0.05)
    wide = ESTIMATOR.choose(RIGHT, ORACLE.offset + 2.0 * (x - ORACLE.offset), None, seed=1)
    assert wide.sigma > 1.5 * SIGMA


def test_an_encoder_that_is_off_is_told_by_the_errors(x: np.ndarray) -> None:
    found = _estimate(x, {"off": tf.constant(4.0)})
    assert np.median(found.mc_se) > 0.3
    assert np.median(found.log_density - ORACLE.log_density(x)) < -0.1
    assert found.mc_se.max() <= 1.0


def test_the_same_seed_gives_the_same_numbers_and_another_one_does_not(x: np.ndarray) -> None:
    first, again, other = (_estimate(x, seed=seed) for seed in (1, 1, 2))
    assert np.array_equal(first, again)
    assert not np.any(np.equal(first.log_density, other.log_density))


def test_rows_that_fill_no_block_are_scored_as_among_others(x: np.ndarray) -> None:
    whole, some = _estimate(x), _estimate(x[:70])
    assert np.array_equal(whole.log_density[:70], some.log_density)
    assert len(_estimate(x[:0]).log_density) == 0


def test_a_row_beyond_all_measure_does_not_spoil_the_others(x: np.ndarray) -> None:
    odd = x.copy()
    odd[3] = 1e60
    with np.errstate(over="ignore"):
        found = _estimate(odd).log_density
    assert not np.isfinite(found[3])
    assert np.array_equal(np.delete(found, 3), np.delete(_estimate(x).log_density, 3))


def test_rows_of_classes_have_the_density_of_their_class(x: np.ndarray) -> None:
    classes = np.arange(N_ROWS) % 2
    y = np.eye(2, dtype=np.float32)[classes]
    found = ESTIMATOR.estimate(RIGHT, CHOICE, x + SHIFTS[classes], y, n_draws=1000, seed=1)
    standard = (found.log_density - ORACLE.log_density(x)) / found.mc_se
    assert np.mean(np.abs(standard) < 2.0) > 0.9
    wrong = ESTIMATOR.estimate(RIGHT, CHOICE, x + SHIFTS[classes], 1.0 - y, n_draws=1000, seed=1)
    assert wrong.log_density.mean() < found.log_density.mean() - 5.0
