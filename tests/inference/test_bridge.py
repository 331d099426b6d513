"""Bridge sampling against known integrals, and the judge on its estimates."""

import numpy as np
import pytest
from scipy.special import logsumexp
from scipy.stats import norm

from bayesnde_cli.inference.bridge import CHAINS_DISAGREE, RELIABLE, Bridge, bridge, judge

N_ROWS, N_CHAINS, N_DRAWS, N_PROPOSED = 400, 4, 100, 1000


def _ratios(z: np.ndarray, shift: float, scale: float, log_z: float) -> np.ndarray:
    """log pi - log q, with pi = Z N(0, 1) and q = N(shift, scale^2)."""
    return log_z + norm.logpdf(z) - norm.logpdf(z, shift, scale)


def _autoregressive(rng: np.random.Generator, rho: float) -> np.ndarray:
    """Chains with N(0, 1) as their law. (rows, chains, draws)."""
    z = rng.standard_normal((N_ROWS, N_CHAINS, N_DRAWS))
    for index in range(1, N_DRAWS):
        z[:, :, index] = rho * z[:, :, index - 1] + np.sqrt(1 - rho**2) * z[:, :, index]
    return z


@pytest.mark.parametrize("log_z", [0.0, -1e4, 300.0])
@pytest.mark.parametrize("rho", [0.0, 0.7])
def test_the_constant_is_found_and_the_error_means_what_it_says(rho: float, log_z: float) -> None:
    rng = np.random.default_rng(1)
    proposed = 0.3 + 1.3 * rng.standard_normal((N_ROWS, N_PROPOSED))
    n_effective = np.full(N_ROWS, N_CHAINS * N_DRAWS * (1 - rho) / (1 + rho))
    found = bridge(_ratios(_autoregressive(rng, rho), 0.3, 1.3, log_z), _ratios(proposed, 0.3, 1.3, log_z), n_effective)
    error = found.log_z - log_z
    assert abs(error.mean()) < 5 * found.se.mean() / np.sqrt(N_ROWS)
    assert 0.92 <= np.mean(np.abs(error) < 1.96 * found.se) <= 0.98
    assert found.is_converged.all()
    assert found.n_iterations.max() < 20


def test_without_the_autocorrelation_the_error_would_be_too_small() -> None:
    """Negative control of the test above: the same chains, shuffled before the error is taken."""
    rng = np.random.default_rng(2)
    chains = _autoregressive(rng, 0.9)
    shuffled = rng.permuted(chains.reshape(N_ROWS, -1), axis=1).reshape(chains.shape)
    proposed = 1.0 + 1.3 * rng.standard_normal((N_ROWS, N_PROPOSED))
    n_effective = np.full(N_ROWS, float(N_CHAINS * N_DRAWS))
    covered = []
    for z in (chains, shuffled):
        found = bridge(_ratios(z, 1.0, 1.3, 0.0), _ratios(proposed, 1.0, 1.3, 0.0), n_effective)
        covered.append(np.mean(np.abs(found.log_z) < 1.96 * found.se))
    assert covered[0] > 0.88
    assert covered[1] < covered[0] - 0.2


def test_it_solves_the_paper_s_fixed_point_and_overlap_is_its_integral() -> None:
    rng = np.random.default_rng(3)
    held = _ratios(rng.standard_normal((1, 4, 5000)), 0.5, 1.5, 0.0)
    proposed = _ratios(0.5 + 1.5 * rng.standard_normal((1, 20000)), 0.5, 1.5, 0.0)
    n_effective = np.array([20000.0])
    found = bridge(held, proposed, n_effective)
    s_p = s_q = 0.5
    r = 1.0
    for _ in range(1000):
        r = np.mean(np.exp(proposed) / (s_p * np.exp(proposed) + s_q * r)) / np.mean(1 / (s_p * np.exp(held) + s_q * r))
    assert found.log_z[0] == pytest.approx(np.log(r), abs=1e-7)
    grid = np.linspace(-12, 12, 100001)
    p, q = norm.pdf(grid), norm.pdf(grid, 0.5, 1.5)
    overlap = np.trapezoid(p * q / (s_p * p + s_q * q), grid)
    assert found.overlap[0] == pytest.approx(overlap, abs=0.01)
    # Theorem 2: the variance by the overlap.
    by_theorem = np.sqrt((1 / overlap - 1) / (s_p * s_q) / 40000)
    assert found.se[0] == pytest.approx(by_theorem, rel=0.1)
    assert found.log_z_is[0] == pytest.approx(logsumexp(proposed) - np.log(proposed.size))


def test_a_proposal_that_is_the_posterior_leaves_no_error() -> None:
    found = bridge(np.full((2, 4, 10), -7.0), np.full((2, 50), -7.0), np.array([40.0, 20.0]))
    np.testing.assert_allclose(found.log_z, -7.0)
    np.testing.assert_allclose(found.se, 0.0, atol=1e-12)
    np.testing.assert_allclose(found.overlap, 1.0)


def test_the_chains_know_the_error_of_importance_sampling_too_and_of_places_that_it_misses() -> None:
    """Two normals far apart, and a proposal that is one of them: its own draws see nothing, those of a chain do."""
    rng = np.random.default_rng(9)
    chains = rng.standard_normal((N_ROWS, N_CHAINS, N_DRAWS))
    proposed = 1.2 * rng.standard_normal((N_ROWS, N_PROPOSED))
    n_effective = np.full(N_ROWS, N_CHAINS * N_DRAWS)
    found = bridge(_ratios(chains, 0.0, 1.2, 0.0), _ratios(proposed, 0.0, 1.2, 0.0), n_effective)
    assert found.se_is_by_chains.mean() == pytest.approx(found.se_is.mean(), rel=0.02)
    assert found.se_is.mean() == pytest.approx(np.std(found.log_z_is), rel=0.1)

    chains[:, 0, -3:] += 20.0

    def ratios(z: np.ndarray) -> np.ndarray:
        return np.logaddexp(norm.logpdf(z), norm.logpdf(z, 20.0)) - norm.logpdf(z, 0.0, 1.2)

    missed = bridge(ratios(chains), ratios(proposed), n_effective)
    own = {"rhat_max": np.full(N_ROWS, 1.01), "ess_min": n_effective.astype(float), "missed_mass": np.zeros(N_ROWS)}
    assert np.median(missed.se_is) < 0.02
    assert (missed.se_is_by_chains > 1.0).all()
    assert (judge(missed, own, 0.05) == CHAINS_DISAGREE).all()
    assert (judge(found, own, 0.05) == RELIABLE).all()


def test_hardly_any_overlap_still_arrives() -> None:
    """A proposal 12 standard deviations away: a large error, said to be large, and no failure."""
    rng = np.random.default_rng(4)
    held = _ratios(rng.standard_normal((20, 4, 100)), 12.0, 1.0, 0.0)
    proposed = _ratios(12.0 + rng.standard_normal((20, 500)), 12.0, 1.0, 0.0)
    found = bridge(held, proposed, np.full(20, 400.0))
    assert found.is_converged.all()
    assert np.isfinite(found.log_z).all()
    assert (found.overlap < 1e-3).all()
    # Where not a single draw of the one is anywhere near the other, the error must not come out as 0.
    found = bridge(np.full((1, 4, 10), 800.0) + np.arange(10), np.full((1, 50), -800.0) + np.arange(50), np.ones(1))
    assert found.se[0] > 0.5


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_spoils_its_own_row_only(bad: float) -> None:
    rng = np.random.default_rng(5)
    held = _ratios(rng.standard_normal((3, 4, 50)), 0.0, 1.2, 0.0)
    proposed = _ratios(1.2 * rng.standard_normal((3, 300)), 0.0, 1.2, 0.0)
    calm = bridge(held, proposed, np.full(3, 100.0))
    held[1, 2, 7] = bad
    found = bridge(held, proposed, np.full(3, 100.0))
    assert np.isnan(found.log_z[1])
    assert not found.is_converged[1]
    np.testing.assert_array_equal(found.log_z[[0, 2]], calm.log_z[[0, 2]])


def test_proposed_points_of_density_zero_count_as_zero() -> None:
    rng = np.random.default_rng(6)
    held = _ratios(rng.standard_normal((1, 4, 200)), 0.0, 1.2, 0.0)
    proposed = _ratios(1.2 * rng.standard_normal((1, 2000)), 0.0, 1.2, 0.0)
    proposed[0, 1000:] = -np.inf
    # Half of the proposal's mass lies where the posterior has none: each of the others counts for half.
    found = bridge(held - np.log(2), proposed - 0.0, np.array([800.0]))
    assert np.isfinite(found.log_z[0])
    assert found.log_z_is[0] == pytest.approx(np.log(0.5), abs=0.05)


ONE = np.ones(1)
SOUND = Bridge(
    log_z=0 * ONE,
    se=0.01 * ONE,
    log_z_is=0.01 * ONE,
    se_is=0.1 * ONE,
    se_is_by_chains=0.1 * ONE,
    unseen=0 * ONE,
    overlap=ONE,
    n_iterations=ONE.astype(np.int32),
    is_converged=ONE > 0,
)
AGREEING = {"rhat_max": ONE, "ess_min": 1000 * ONE, "missed_mass": 0 * ONE}
# Importance sampling alone is exact, and the chains only confirm it.
EXACT = SOUND._replace(log_z_is=0 * ONE, se_is=0.04 * ONE, se_is_by_chains=0.04 * ONE)
WITNESSES = {"rhat_max": 1.19 * ONE, "ess_min": 21 * ONE, "missed_mass": 0 * ONE}


@pytest.mark.parametrize(
    ("estimate", "chains", "target_se", "verdict"),
    [
        (SOUND, AGREEING, 0.05, "reliable"),
        (SOUND._replace(log_z_is=3 * ONE), AGREEING, 0.05, "estimates disagree"),
        (SOUND._replace(se=0.06 * ONE), AGREEING, 0.05, "error above target"),
        (SOUND, AGREEING | {"missed_mass": 0.06 * ONE}, 0.05, "modes may be missing"),
        (SOUND._replace(is_converged=ONE < 0), AGREEING, 0.05, "bridge did not converge"),
        (SOUND._replace(log_z=np.nan * ONE), AGREEING, 0.05, "not finite"),
        # Mass that the proposal has found and no chain has been to; few draws may well have missed as much.
        (SOUND._replace(unseen=0.1 * ONE), AGREEING, 0.05, "chains disagree"),
        (SOUND._replace(unseen=0.1 * ONE), AGREEING | {"ess_min": 60 * ONE}, 0.05, "reliable"),
        # Places of the chains that the proposal hardly ever draws.
        (SOUND._replace(se_is_by_chains=2 * ONE), AGREEING, 0.05, "chains disagree"),
        # Chains that agree poorly are believed where importance sampling is exact.
        (EXACT, WITNESSES, 0.05, "reliable"),
        (EXACT, WITNESSES, 1.0, "reliable"),
        (EXACT, WITNESSES, 0.03, "chains disagree"),
        (EXACT, WITNESSES | {"rhat_max": 1.21 * ONE}, 0.05, "chains disagree"),
        (EXACT, WITNESSES | {"ess_min": 19 * ONE}, 0.05, "chains disagree"),
        (EXACT, WITNESSES | {"missed_mass": np.nan * ONE}, 0.05, "chains disagree"),  # no search for modes
        (EXACT._replace(se_is=0.06 * ONE), WITNESSES, 1.0, "chains disagree"),
        (EXACT._replace(se_is_by_chains=0.06 * ONE), WITNESSES, 1.0, "chains disagree"),
    ],
)
def test_the_verdict_is_the_first_problem(estimate: Bridge, chains: dict, target_se: float, verdict: str) -> None:
    assert judge(estimate, chains, target_se)[0] == verdict
