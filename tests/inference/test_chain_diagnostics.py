"""R-hat and effective sample size: ArviZ has the same numbers, theory agrees, and broken chains are never praised."""

from collections.abc import Callable

import numpy as np
import pytest
from arviz_stats.base import array_stats
from scipy.signal import lfilter
from scipy.special import ndtri
from scipy.stats import rankdata

from bayesnde_cli.inference import chain_diagnostics
from bayesnde_cli.inference.chain_diagnostics import bulk_ess, mean_ess, rhat

N_ROWS, N_CHAINS, N_DRAWS, D = 3, 4, 100, 2


def _autoregression(rho: float, shape: tuple[int, ...] = (N_ROWS, N_CHAINS, N_DRAWS, D), seed: int = 0) -> np.ndarray:
    """Chains z_t = rho z_t-1 + sqrt(1 - rho^2) e_t along the third axis, N(0, 1) from the first draw on."""
    noise = np.random.default_rng(seed).standard_normal(shape)
    noise[:, :, 1:] *= np.sqrt(1.0 - rho**2)
    return lfilter([1.0], [1.0, -rho], noise, axis=2)


def _per_chain(*values: float) -> np.ndarray:
    return np.array(values)[None, :, None, None]


def _heavy_tailed() -> np.ndarray:
    return np.random.default_rng(1).standard_cauchy((N_ROWS, N_CHAINS, N_DRAWS, D))


CHAINS = {
    "independent": _autoregression(0.0),
    "slow": _autoregression(0.5),
    "very slow": _autoregression(0.95),
    "antithetic": _autoregression(-0.5),
    "very antithetic": _autoregression(-0.95),
    "shifted": _autoregression(0.5) + _per_chain(0.0, 0.0, 0.0, 1.0),
    "far apart": _autoregression(0.5) + _per_chain(0.0, 0.0, 0.0, 1e6),
    "of different scales": _autoregression(0.5) * _per_chain(1.0, 1.0, 1.0, 5.0),
    "heavy-tailed": _heavy_tailed(),
    "odd": _autoregression(0.9, (N_ROWS, N_CHAINS, N_DRAWS + 1, D)),
    "with ties": np.round(_autoregression(0.7)),
    "in float32": _autoregression(0.7).astype(np.float32),
    "two": _autoregression(0.7, (N_ROWS, 2, N_DRAWS, D)),
    "shortest": _autoregression(0.7, (50, N_CHAINS, chain_diagnostics.MIN_DRAWS_ESS, D)),
    "short and odd": _autoregression(0.7, (50, N_CHAINS, 13, D)),
}


@pytest.fixture(params=CHAINS.values(), ids=CHAINS.keys())
def chains(request: pytest.FixtureRequest) -> np.ndarray:
    return request.param


def test_rhat_is_that_of_arviz(chains: np.ndarray) -> None:
    expected = array_stats.rhat(chains.astype(np.float64), chain_axis=1, draw_axis=2, method="rank")
    np.testing.assert_allclose(rhat(chains), expected, rtol=1e-8)


def test_bulk_ess_is_that_of_arviz(chains: np.ndarray) -> None:
    expected = array_stats.ess(chains.astype(np.float64), chain_axis=1, draw_axis=2, method="bulk")
    np.testing.assert_allclose(bulk_ess(chains), expected, rtol=1e-8)


def test_mean_ess_is_that_of_arviz(chains: np.ndarray) -> None:
    values = chains[..., 0]
    expected = array_stats.ess(values.astype(np.float64), chain_axis=1, draw_axis=2, method="mean")
    np.testing.assert_allclose(mean_ess(values), expected, rtol=1e-8)


def test_normal_scores_are_those_of_scipy(chains: np.ndarray) -> None:
    pooled = chains[..., 0].reshape(len(chains), -1)
    expected = ndtri((rankdata(pooled, axis=1) - 3 / 8) / (pooled.shape[1] + 1 / 4))
    scores = chain_diagnostics._normal_scores(chains[..., 0])
    np.testing.assert_allclose(scores.reshape(pooled.shape), expected, rtol=1e-12)


def test_chains_that_agree_have_an_rhat_near_one() -> None:
    assert np.all(rhat(_autoregression(0.0, (20, 4, 400, 2))) < 1.02)


def test_rhat_sees_chains_in_different_places_and_of_different_widths() -> None:
    agreeing = _autoregression(0.0, (20, 4, 400, 2))
    assert np.all(rhat(agreeing + _per_chain(0.0, 0.0, 0.0, 1.0)) > 1.05)
    scaled = agreeing * _per_chain(1.0, 1.0, 1.0, 5.0)
    assert np.all(rhat(scaled) > 1.05)
    # Negative control: without the distances from the median, widths are out of sight.
    assert np.all(chain_diagnostics._variance_ratio(_scores_of_halves(scaled)) < 1.02)


def _scores_of_halves(draws: np.ndarray) -> np.ndarray:
    return chain_diagnostics._normal_scores(chain_diagnostics._halves(np.moveaxis(draws, 3, 1)))


def test_one_chain_is_compared_with_itself() -> None:
    steady = _autoregression(0.0, (20, 1, 400, 2))
    assert np.all(rhat(steady) < 1.02)
    assert np.all(rhat(steady + np.linspace(0.0, 2.0, 400)[None, None, :, None]) > 1.05)
    # ArviZ has no R-hat for one chain, but a size.
    np.testing.assert_allclose(bulk_ess(steady), array_stats.ess(steady, chain_axis=1, draw_axis=2), rtol=1e-8)


def _bulk(draws: np.ndarray) -> np.ndarray:
    return bulk_ess(draws)[:, 0]


def _mean(draws: np.ndarray) -> np.ndarray:
    return mean_ess(draws[..., 0])


both_sizes = pytest.mark.parametrize("ess", [_bulk, _mean])
Size = Callable[[np.ndarray], np.ndarray]


@both_sizes
def test_slow_chains_count_as_theory_says_and_shuffled_ones_in_full(ess: Size) -> None:
    rho, n_total = 0.95, 4 * 800
    draws = _autoregression(rho, (200, 4, 800, 1))
    # One row is off by 30%, the mean of 200 by 2%: 10% are four standard errors and the bias of chains of this length.
    assert np.mean(ess(draws)) == pytest.approx(n_total * (1.0 - rho) / (1.0 + rho), rel=0.1)
    # Negative control, the same numbers in no order. Among all chains: their means would still tell them apart.
    shuffled = np.random.default_rng(2).permuted(draws.reshape(200, n_total), axis=1).reshape(draws.shape)
    assert np.mean(ess(shuffled)) == pytest.approx(n_total, rel=0.1)


@both_sizes
def test_antithetic_chains_count_for_more_than_their_number_up_to_the_cap(ess: Size) -> None:
    n_total = 4 * 800
    assert np.mean(ess(_autoregression(-0.5, (50, 4, 800, 1)))) == pytest.approx(3.0 * n_total, rel=0.1)
    np.testing.assert_allclose(ess(_autoregression(-0.95, (50, 4, 800, 1))), n_total * np.log10(n_total))


@pytest.mark.parametrize("unit", [1e-200, 1e-16, 1e200])
def test_mean_ess_does_not_depend_on_the_unit(unit: float) -> None:
    values = _autoregression(0.7)[..., 0]
    np.testing.assert_allclose(mean_ess(unit * values), mean_ess(values), rtol=1e-8)


@pytest.mark.parametrize("places", [(0.0,) * 4, (0.1,) * 4, (-1e30,) * 4, (0.1, 0.2, 0.3, 0.7)])
def test_chains_that_stand_still_count_as_one_draw(places: tuple[float, ...]) -> None:
    draws = np.broadcast_to(_per_chain(*places), (2, 4, 100, 3))
    assert np.all(rhat(draws) == np.inf)
    assert np.all(bulk_ess(draws) == 1.0)
    assert np.all(mean_ess(draws[..., 0]) == 1.0)


def test_one_chain_that_stands_still_spoils_its_own_coordinate_only() -> None:
    draws = _autoregression(0.0)
    expected_rhat, expected_ess, expected_mean = rhat(draws), bulk_ess(draws), mean_ess(draws[..., 0])
    draws[1, 2, :, 0] = 0.05
    # In the midst of the others it would pass for as good as any.
    assert array_stats.ess(draws[1, :, :, 0], chain_axis=0, draw_axis=1) > 300.0
    expected_rhat[1, 0], expected_ess[1, 0], expected_mean[1] = np.inf, 1.0, 1.0
    np.testing.assert_array_equal(rhat(draws), expected_rhat)
    np.testing.assert_array_equal(bulk_ess(draws), expected_ess)
    np.testing.assert_array_equal(mean_ess(draws[..., 0]), expected_mean)


def test_a_move_to_and_fro_in_the_draw_that_belongs_to_neither_half_is_no_move() -> None:
    draws = np.zeros((1, 4, 101, 1))
    draws[:, :, 50] = 1.0
    assert rhat(draws) == np.inf
    assert _bulk(draws) == _mean(draws) == 1.0


def test_chains_that_jump_once_between_their_halves_have_not_converged() -> None:
    draws = np.repeat(np.array([0.1, 0.7]), 50)[None, None, :, None] + np.zeros((1, 4, 1, 1))
    assert rhat(draws) == np.inf
    assert 1.0 < _bulk(draws) < 10.0


def test_rhat_of_two_values_is_that_of_the_draws_alone() -> None:
    # Exactly half of them each, so that all are as far from the median.
    draws = np.random.default_rng(3).permuted(np.repeat([-1.0, 1.0], 200)).reshape(1, 4, 100, 1)
    np.testing.assert_allclose(rhat(draws), chain_diagnostics._variance_ratio(_scores_of_halves(draws)))


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1e307])
@pytest.mark.parametrize("n_draws", [100, 101])
def test_a_value_that_is_not_finite_spoils_its_own_coordinate_only(value: float, n_draws: int) -> None:
    draws = _autoregression(0.5, (N_ROWS, N_CHAINS, n_draws, D))
    expected_rhat, expected_ess, expected_mean = rhat(draws), bulk_ess(draws), mean_ess(draws[..., 1])
    draws[2, 1, 50, 1] = value  # of 101 draws, this is the one that belongs to neither half
    expected_rhat[2, 1], expected_ess[2, 1], expected_mean[2] = np.inf, 0.0, 0.0
    np.testing.assert_array_equal(rhat(draws), expected_rhat)
    np.testing.assert_array_equal(bulk_ess(draws), expected_ess)
    np.testing.assert_array_equal(mean_ess(draws[..., 1]), expected_mean)


@pytest.mark.parametrize("n_draws", [0, 1, 3])
def test_too_few_draws_for_rhat_are_no_evidence(n_draws: int) -> None:
    assert np.all(rhat(_autoregression(0.5)[:, :, :n_draws]) == np.inf)


@pytest.mark.parametrize("n_draws", [0, 3, 8, chain_diagnostics.MIN_DRAWS_ESS - 1])
def test_too_few_draws_for_a_size_count_as_none(n_draws: int) -> None:
    draws = _autoregression(0.5)[:, :, :n_draws]
    assert np.all(_bulk(draws) == 0.0)
    assert np.all(_mean(draws) == 0.0)


def test_the_size_that_arviz_gives_to_so_few_draws_knows_nothing_of_them() -> None:
    draws = _autoregression(0.99)[..., : chain_diagnostics.MIN_DRAWS_ESS - 1, 0]
    n_total = N_CHAINS * 8
    np.testing.assert_allclose(array_stats.ess(draws, chain_axis=1, draw_axis=2), n_total * np.log10(n_total))


def test_no_rows_give_no_rows() -> None:
    draws = np.zeros((0, N_CHAINS, N_DRAWS, D))
    assert rhat(draws).shape == bulk_ess(draws).shape == (0, D)
    assert mean_ess(draws[..., 0]).shape == (0,)


@pytest.mark.parametrize("n_values", [1, 2 * N_CHAINS * N_DRAWS * D])
def test_the_pieces_do_not_matter(n_values: int, monkeypatch: pytest.MonkeyPatch) -> None:
    draws = _autoregression(0.7)
    whole = rhat(draws), bulk_ess(draws), mean_ess(draws[..., 0])
    monkeypatch.setattr(chain_diagnostics, "N_VALUES_AT_ONCE", n_values)
    for expected, found in zip(whole, (rhat(draws), bulk_ess(draws), mean_ess(draws[..., 0])), strict=True):
        np.testing.assert_array_equal(found, expected)
