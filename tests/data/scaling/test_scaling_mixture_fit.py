"""Fitted mixtures against the distributions that the rows came from."""

import numpy as np
import pytest
from scipy.stats import expon, kstest, lognorm, norm, t, uniform

from bayesnde_cli.data.scaling import fit_mixture, fit_standard

N_TRAIN, N_VALIDATION, N_FRESH = 16_200, 1_800, 20_000
# The Kolmogorov-Smirnov distance of 20,000 rows of the right distribution exceeds 0.0115 in one of 100 cases;
# the rest is the error of fitting to 16,200 rows, which adds the like of it.
LARGEST_DISTANCE = 0.02


def three_modes(n_rows, rng):
    return rng.choice([-1.0, 0.0, 1.0], n_rows) + 0.1 * rng.normal(size=n_rows)


def log_three_modes(x):
    return np.log(sum(norm.pdf(x, mean, 0.1) for mean in (-1.0, 0.0, 1.0)) / 3.0)


SAMPLERS = {
    "gaussian": lambda n, rng: rng.normal(3.0, 2.0, n),
    "three modes": three_modes,
    "log-normal": lambda n, rng: rng.lognormal(0.0, 1.0, n),
    "t with 3 degrees of freedom": lambda n, rng: rng.standard_t(3, n),
    "exponential": lambda n, rng: rng.exponential(1.0, n),
    "uniform": lambda n, rng: rng.random(n),
}
# Held-out loss against the truth, nats a row, measured 0.000 to 0.005; hard edges are the hardest.
LOG_DENSITIES = {
    "gaussian": (norm(3.0, 2.0).logpdf, 0.002),
    "three modes": (log_three_modes, 0.01),
    "log-normal": (lognorm(1.0).logpdf, 0.01),
    "t with 3 degrees of freedom": (t(3).logpdf, 0.01),
    "exponential": (expon.logpdf, 0.01),
    "uniform": (uniform.logpdf, 0.01),
}


def distance_from_normal(u):
    return kstest(u, norm.cdf).statistic


@pytest.fixture(scope="module")
def fitted():
    """For each distribution: the map, and fresh rows that it has not seen."""
    maps = {}
    for name, sampler in SAMPLERS.items():
        rng = np.random.default_rng(7)
        train, validation, fresh = (sampler(n, rng) for n in (N_TRAIN, N_VALIDATION, N_FRESH))
        maps[name] = (fit_mixture(train, validation), fresh, train)
    return maps


@pytest.mark.parametrize("name", SAMPLERS)
def test_fresh_rows_become_standard_normal(fitted, name):
    column_map, fresh, _ = fitted[name]
    assert distance_from_normal(column_map.forward(fresh)[0]) < LARGEST_DISTANCE


@pytest.mark.parametrize("name", ["three modes", "log-normal", "exponential", "uniform"])
def test_shift_and_scale_alone_would_not_pass_that_check(fitted, name):
    _, fresh, train = fitted[name]
    assert distance_from_normal(fit_standard(train).forward(fresh)[0]) > 2 * LARGEST_DISTANCE


@pytest.mark.parametrize("name", SAMPLERS)
def test_fresh_rows_have_nearly_their_true_log_density(fitted, name):
    column_map, fresh, _ = fitted[name]
    truth, tolerance = LOG_DENSITIES[name]
    u, log_slope = column_map.forward(fresh)
    loss = np.mean(truth(fresh)) - np.mean(norm.logpdf(u) + log_slope)
    assert loss < tolerance


@pytest.mark.parametrize("n_rows", [50, 272])
def test_small_gaussian_tables_lose_little_against_a_gaussian_fit(n_rows):
    losses = []
    for seed in range(20):
        rng = np.random.default_rng(seed)
        train, validation, fresh = (rng.normal(size=n) for n in (n_rows, n_rows // 9, 2_000))
        ours = np.mean(fit_mixture(train, validation).mixture.log_density(fresh))
        losses.append(np.mean(norm.logpdf(fresh, train.mean(), train.std())) - ours)
    assert np.mean(losses) < 0.02


def test_small_bimodal_tables_gain_much_over_a_gaussian_fit():
    rng = np.random.default_rng(0)

    def sample(n):
        return rng.choice([-2.0, 2.0], n) + 0.5 * rng.normal(size=n)

    train, validation, fresh = sample(45), sample(5), sample(2_000)
    ours = np.mean(fit_mixture(train, validation).mixture.log_density(fresh))
    assert ours > np.mean(norm.logpdf(fresh, train.mean(), train.std())) + 0.4


def test_a_better_fitting_size_is_found_only_if_unseen_rows_gain():
    rng = np.random.default_rng(3)
    gaussian = fit_mixture(rng.normal(size=5_000), rng.normal(size=500))
    modes = fit_mixture(three_modes(5_000, rng), three_modes(500, rng))
    assert len(gaussian.mixture.weights) <= 2
    assert len(modes.mixture.weights) >= 3


def test_units_do_not_matter():
    rng = np.random.default_rng(4)
    train, validation = rng.lognormal(size=3_000), rng.lognormal(size=300)
    plain = fit_mixture(train, validation)
    moved = fit_mixture(1e6 + 1024.0 * train, 1e6 + 1024.0 * validation)
    u, log_slope = plain.forward(validation)
    u_moved, log_slope_moved = moved.forward(1e6 + 1024.0 * validation)
    np.testing.assert_allclose(u_moved, u, atol=1e-5)
    np.testing.assert_allclose(log_slope_moved + np.log(1024.0), log_slope, atol=1e-4)


@pytest.mark.parametrize(
    "train",
    [
        np.array([2.0]),
        np.full(50, 2.0),
        np.array([1.0, 2.0] * 30),
        np.concatenate([np.zeros(900), np.linspace(1.0, 2.0, 100)]),
        np.concatenate([np.linspace(0.0, 1.0, 100), [1e200]]),
    ],
    ids=["one row", "constant", "two values", "a spike at zero", "one absurd value"],
)
def test_ties_spikes_and_tiny_tables_do_not_collapse(train):
    column_map = fit_mixture(train, train[:5])
    x = np.unique(np.concatenate([train, [-1e6, 0.5, 1e6]]))
    u, log_slope = column_map.forward(x)
    assert np.isfinite(log_slope).all()
    assert np.all(np.diff(u) > 0)
    assert np.max(log_slope) < np.log(1e4)


def test_without_validation_rows_the_training_rows_choose_the_size():
    rng = np.random.default_rng(5)
    column_map = fit_mixture(three_modes(300, rng), np.empty(0))
    assert len(column_map.mixture.weights) >= 3


def test_no_training_rows_are_refused():
    with pytest.raises(ValueError, match="at least 1 training row"):
        fit_mixture(np.empty(0), np.zeros(3))


@pytest.mark.parametrize("share", [0.3, 0.9, 0.99])
@pytest.mark.parametrize("at_the_end", [True, False])
def test_a_column_that_is_mostly_one_value_has_a_finite_ordered_map(share: float, at_the_end: bool) -> None:
    rng = np.random.default_rng(11)
    values = rng.random(1000)
    values[rng.random(1000) < share] = 1.0 if at_the_end else 0.5
    column = fit_mixture(values[:900], values[900:])
    u, log_slope = column.forward(np.linspace(-1.0, 2.0, 301))
    assert np.all(np.isfinite(u))
    assert np.all(np.isfinite(log_slope))
    assert np.all(np.diff(u) > 0)


def test_three_values_far_apart_of_which_one_is_nearly_everything_have_a_finite_map() -> None:
    values = np.zeros(1200)
    values[[7, 500]], values[[9, 700]] = 13.1, 19.9
    column = fit_mixture(values[:1100], values[1100:])
    u, log_slope = column.forward(np.array([-5.0, 0.0, 5.0, 13.1, 19.9, 1e6]))
    assert np.all(np.isfinite(u))
    assert np.all(np.isfinite(log_slope))
    assert np.all(np.diff(u) > 0)
