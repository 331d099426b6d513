"""R-hat and effective sample size: ArviZ has the same numbers, theory agrees, and broken chains are never praised."""

from collections.abc import Callable

import numpy as np
import pytest
from arviz_stats.base import array_stats
from scipy.signal import lfilter

from bayesnde_cli.inference import diagnostics
from bayesnde_cli.inference.diagnostics import bulk_ess, mean_ess, rhat

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
    "shortest": _autoregression(0.7, (50, N_CHAINS, diagnostics.MIN_DRAWS_ESS, D)),
    "short and odd": _autoregression(0.7, (50, N_CHAINS, 13, D)),
}


@pytest.fixture(params=CHAINS.values(), ids=[*CHAINS])
def chains(request: pytest.FixtureRequest) -> np.ndarray:
    return request.param


def test_the_numbers_are_those_of_arviz(chains: np.ndarray) -> None:
    wide, axes = chains.astype(np.float64), {"chain_axis": 1, "draw_axis": 2}
    np.testing.assert_allclose(rhat(chains), array_stats.rhat(wide, **axes, method="rank"), rtol=1e-8)
    np.testing.assert_allclose(bulk_ess(chains), array_stats.ess(wide, **axes, method="bulk"), rtol=1e-8)
    expected = array_stats.ess(wide[..., 0], **axes, method="mean")
    np.testing.assert_allclose(mean_ess(chains[..., 0]), expected, rtol=1e-8)


def test_rhat_sees_chains_in_different_places_and_of_different_widths() -> None:
    agreeing = _autoregression(0.0, (20, 4, 400, 2))
    assert np.all(rhat(agreeing) < 1.02)
    assert np.all(rhat(agreeing + _per_chain(0.0, 0.0, 0.0, 1.0)) > 1.05)
    scaled = agreeing * _per_chain(1.0, 1.0, 1.0, 5.0)
    assert np.all(rhat(scaled) > 1.05)
    # Negative control: without the distances from the median, widths are out of sight.
    assert np.all(diagnostics._variance_ratio(_scores_of_halves(scaled)) < 1.02)


def _scores_of_halves(draws: np.ndarray) -> np.ndarray:
    chains = np.moveaxis(draws, 3, 1)
    return diagnostics._normal_scores(chains.reshape(*chains.shape[:2], -1, chains.shape[3] // 2))


def test_one_chain_is_compared_with_itself() -> None:
    steady = _autoregression(0.0, (20, 1, 400, 2))
    assert np.all(rhat(steady) < 1.02)
    assert np.all(rhat(steady + np.linspace(0.0, 2.0, 400)[None, None, :, None]) > 1.05)
    # ArviZ has no R-hat for one chain, but a size.
    np.testing.assert_allclose(bulk_ess(steady), array_stats.ess(steady, chain_axis=1, draw_axis=2), rtol=1e-8)


@pytest.mark.parametrize("ess", [lambda draws: bulk_ess(draws)[:, 0], lambda draws: mean_ess(draws[..., 0])])
def test_chains_count_as_theory_says_and_shuffled_ones_in_full(ess: Callable[[np.ndarray], np.ndarray]) -> None:
    rho, n_total = 0.95, 4 * 800
    draws = _autoregression(rho, (200, 4, 800, 1))
    # One row is off by 30%, the mean of 200 by 2%: 10% are four standard errors and the bias of chains of this length.
    assert np.mean(ess(draws)) == pytest.approx(n_total * (1.0 - rho) / (1.0 + rho), rel=0.1)
    # Negative control, the same numbers in no order. Among all chains: their means would still tell them apart.
    shuffled = np.random.default_rng(2).permuted(draws.reshape(200, n_total), axis=1).reshape(draws.shape)
    assert np.mean(ess(shuffled)) == pytest.approx(n_total, rel=0.1)
    # Antithetic chains count for more than their number, up to the cap.
    assert np.mean(ess(_autoregression(-0.5, (50, 4, 800, 1)))) == pytest.approx(3.0 * n_total, rel=0.1)
    np.testing.assert_allclose(ess(_autoregression(-0.95, (50, 4, 800, 1))), n_total * np.log10(n_total))


@pytest.mark.parametrize("unit", [1e-200, 1e-16, 1e200])
def test_mean_ess_does_not_depend_on_the_unit(unit: float) -> None:
    values = _autoregression(0.7)[..., 0]
    np.testing.assert_allclose(mean_ess(unit * values), mean_ess(values), rtol=1e-8)


def _measures(draws: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    return rhat(draws), bulk_ess(draws), mean_ess(draws[..., 0])


@pytest.mark.parametrize("places", [(0.0,) * 4, (-1e30,) * 4, (0.1, 0.2, 0.3, 0.7)])
def test_chains_that_stand_still_count_as_one_draw(places: tuple[float, ...]) -> None:
    found = _measures(np.broadcast_to(_per_chain(*places), (2, 4, 100, 3)))
    assert all(np.all(values == expected) for values, expected in zip(found, (np.inf, 1.0, 1.0), strict=True))


@pytest.mark.parametrize("n_draws", [100, 101])
@pytest.mark.parametrize(
    ("chain", "value", "expected"),
    [
        (slice(None), 0.05, (np.inf, 1.0, 1.0)),  # a chain that stands still in the midst of the others
        *((50, value, (np.inf, 0.0, 0.0)) for value in (np.nan, np.inf, -np.inf, 1e307)),
    ],
)
def test_a_bad_chain_spoils_its_own_coordinate_only(
    chain: slice | int, value: float, expected: tuple[float, ...], n_draws: int
) -> None:
    draws = _autoregression(0.0, (N_ROWS, N_CHAINS, n_draws, D))
    calm = _measures(draws)
    draws[1, 2, chain, 0] = value  # of 101 draws, number 50 belongs to neither half
    for before, bad, found in zip(calm, expected, _measures(draws), strict=True):
        before[(1, 0) if before.ndim == 2 else 1] = bad
        np.testing.assert_array_equal(found, before)


def test_chains_that_jump_once_between_their_halves_have_not_converged() -> None:
    draws = np.repeat(np.array([0.1, 0.7]), 50)[None, None, :, None] + np.zeros((1, 4, 1, 1))
    assert rhat(draws) == np.inf
    assert 1.0 < bulk_ess(draws) < 10.0


def test_rhat_of_two_values_is_that_of_the_draws_alone() -> None:
    # Exactly half of them each, so that all are as far from the median.
    draws = np.random.default_rng(3).permuted(np.repeat([-1.0, 1.0], 200)).reshape(1, 4, 100, 1)
    np.testing.assert_allclose(rhat(draws), diagnostics._variance_ratio(_scores_of_halves(draws)))


@pytest.mark.parametrize("n_draws", [0, 3, 8, diagnostics.MIN_DRAWS_ESS - 1])
def test_too_few_draws_are_no_evidence(n_draws: int) -> None:
    r_hat, *sizes = _measures(_autoregression(0.5)[:, :, :n_draws])
    assert np.all((r_hat == np.inf) == (n_draws < 4))
    assert all(np.all(size == 0.0) for size in sizes)


@pytest.mark.parametrize("n_values", [1, 2 * N_CHAINS * N_DRAWS * D])
def test_the_pieces_do_not_matter(n_values: int, monkeypatch: pytest.MonkeyPatch) -> None:
    draws = _autoregression(0.7)
    whole = _measures(draws)
    monkeypatch.setattr(diagnostics, "N_VALUES_AT_ONCE", n_values)
    assert all(np.array_equal(found, expected) for found, expected in zip(_measures(draws), whole, strict=True))
    assert [part.shape for part in _measures(draws[:0])] == [(0, D), (0, D), (0,)]
