"""The proposal: draws and density agree, the fit is no worse than scikit-learn's, and bad draws do no harm."""

import warnings
from collections.abc import Callable
from functools import cache
from typing import NamedTuple

import numpy as np
import pytest
import tensorflow as tf
from scipy.special import logsumexp
from scipy.stats import multivariate_normal, multivariate_t, t
from sklearn.exceptions import ConvergenceWarning
from sklearn.mixture import GaussianMixture

from bayesnde_cli.inference.proposal import FitSettings, MixtureOfT, draw, fit, log_prob, resample

SEED = tf.constant([1, 2])
D, N_FITTED, N_FRESH, N_COMPONENTS = 8, 600, 4000, 5


class Normals(NamedTuple):
    """A mixture of normals, of which everything is known."""

    weights: np.ndarray  # (components,)
    means: np.ndarray  # (components, d)
    factors: np.ndarray  # (components, d, d)

    def draw(self, n: int, rng: np.random.Generator) -> np.ndarray:
        component = rng.choice(len(self.weights), n, p=self.weights)
        noise = rng.standard_normal((n, self.means.shape[1]))
        return self.means[component] + np.einsum("nij,nj->ni", self.factors[component], noise)

    def log_prob(self, z: np.ndarray) -> np.ndarray:
        parts = [multivariate_normal(mean, factor @ factor.T).logpdf(z) for mean, factor in zip(*self[1:], strict=True)]
        return logsumexp(np.array(parts) + np.log(self.weights)[:, None], axis=0)


def _factor(rng: np.random.Generator, d: int, sd: float) -> np.ndarray:
    noise = rng.standard_normal((2 * d, d)) * np.geomspace(1.0, 0.2, d)
    return sd * np.linalg.cholesky(noise.T @ noise / (2 * d))


@cache
def _targets() -> list[Normals]:
    """A normal; two far and narrow modes of different shape; a wide mode around a narrow one; three that overlap."""
    rng = np.random.default_rng(0)
    return [
        Normals(
            np.array(weights),
            centre + apart * rng.standard_normal((len(sds), D)),
            np.array([_factor(rng, D, sd) for sd in sds]),
        )
        for weights, centre, apart, sds in [
            ([1.0], 1.0, 0.0, [0.1]),
            ([0.7, 0.3], 0.0, 1.0, [0.003, 0.005]),
            ([0.5, 0.5], -2.0, 0.0, [0.5, 0.05]),
            ([0.5, 0.3, 0.2], 0.0, 0.3, [0.3, 0.3, 0.2]),
        ]
    ]


@cache
def _draws() -> np.ndarray:
    rng = np.random.default_rng(1)
    return np.array([target.draw(N_FITTED, rng) for target in _targets()], np.float32)  # (4, n, d)


@cache
def _compiled(n_components: int = N_COMPONENTS, absolute_regulariser: float = 0.0) -> Callable[..., MixtureOfT]:
    settings = FitSettings(n_components, 1e-3, absolute_regulariser)
    return tf.function(lambda draws, seed: fit(draws, settings, seed), jit_compile=True, autograph=False)


def _fitted(draws: np.ndarray, seed: tf.Tensor = SEED) -> MixtureOfT:
    return _compiled()(tf.constant(draws, tf.float32), seed)


_drawn = tf.function(draw, jit_compile=True, autograph=False)


def _row(proposal: MixtureOfT, row: int) -> Normals:
    return Normals(*(part.numpy()[row] for part in (tf.exp(proposal.log_weights), proposal.means, proposal.factors)))


def _made(d: int, n_rows: int = 3) -> MixtureOfT:
    """Mixtures with s.d. of one and of a thousandth, around |z| near 3."""
    rng = np.random.default_rng(d)
    weights = rng.dirichlet(np.ones(3), n_rows)
    factors = np.array([[_factor(rng, d, sd) for sd in (1.0, 0.1, 0.001)] for _ in range(n_rows)])
    means = rng.choice([-3.0, 3.0], (n_rows, 3, d)) + 0.1 * rng.standard_normal((n_rows, 3, d))
    return MixtureOfT(*map(tf.constant, (np.log(weights), means, factors, np.linalg.inv(factors))))


def _naive_log_prob(mixture: Normals, z: np.ndarray, freedom: int, defensive_weight: float) -> np.ndarray:
    d = z.shape[1]
    density = defensive_weight * multivariate_normal(np.zeros(d)).pdf(z)
    for weight, mean, factor in zip(*mixture, strict=True):
        density += (1.0 - defensive_weight) * weight * multivariate_t(mean, factor @ factor.T, df=freedom).pdf(z)
    return np.log(density)


def _product_of_t(mixture: Normals, z: np.ndarray) -> np.ndarray:
    """The density with which the paper's code scores such draws: independent t's along the axes of the factor."""
    density = 0.05 * multivariate_normal(np.zeros(z.shape[1])).pdf(z)
    for weight, mean, factor in zip(*mixture, strict=True):
        standard = np.linalg.solve(factor, (z - mean).T)
        density += 0.95 * weight * t(3).pdf(standard).prod(axis=0) / np.prod(np.diag(factor))
    return np.log(density)


def _error_of_one(log_ratio: np.ndarray) -> float:
    """How many standard errors the mean of p / q is away from 1."""
    ratio = np.exp(log_ratio)
    return float((ratio.mean() - 1.0) / (ratio.std() / np.sqrt(len(ratio))))


@pytest.mark.parametrize(("d", "freedom", "defensive_weight"), [(1, 3, 0.05), (2, 4, 0.0), (8, 3, 0.05)])
def test_the_density_is_that_of_the_formula(d: int, freedom: int, defensive_weight: float) -> None:
    proposal = _made(d)
    rng = np.random.default_rng(3)
    z = np.concatenate([_row(proposal, row).draw(50, rng) for row in range(3)]).astype(np.float32)
    got = log_prob(proposal, np.stack([z] * 3), freedom=freedom, defensive_weight=defensive_weight)
    assert got.dtype == tf.float64
    for row in range(3):
        expected = _naive_log_prob(_row(proposal, row), z.astype(float), freedom, defensive_weight)
        assert np.allclose(got[row], expected, rtol=0.0, atol=1e-7)


def test_draws_and_density_agree() -> None:
    proposal, n = _made(2), 20_000
    z = _drawn(proposal, n, SEED)
    assert z.dtype == tf.float32
    log_q = log_prob(proposal, z).numpy()
    for row in range(3):
        mixture, draws = _row(proposal, row), z[row].numpy().astype(float)
        # The normals of the proposal itself: the t's cover them.
        log_p = mixture.log_prob(draws)
        assert abs(_error_of_one(log_p - log_q[row])) < 5.0
        assert abs(_error_of_one(log_p - _product_of_t(mixture, draws))) > 5.0
        # The third component is narrow: draws near it come from there, as often as it weighs.
        is_near = np.linalg.norm(draws - mixture.means[2], axis=1) < 0.05
        expected = 0.95 * mixture.weights[2]
        assert abs(is_near.mean() - expected) < 5.0 * np.sqrt(expected / n) + 0.003


def test_fitted_proposals_cover_what_they_are_fitted_to() -> None:
    proposal = _fitted(_draws())
    z = _drawn(proposal, 4000, SEED)
    log_q = log_prob(proposal, z).numpy()
    for row, target in enumerate(_targets()):
        log_ratio = target.log_prob(z[row].numpy().astype(float)) - log_q[row]
        assert abs(_error_of_one(log_ratio)) < 5.0
        effective = np.exp(2.0 * logsumexp(log_ratio) - logsumexp(2.0 * log_ratio)) / 4000
        assert effective > 0.3
    assert np.allclose(proposal.inverses @ proposal.factors, np.eye(D), atol=1e-8)


def _score(mixture: Normals, target: Normals) -> float:
    """The mean log-density of fresh draws."""
    return float(mixture.log_prob(target.draw(N_FRESH, np.random.default_rng(2))).mean())


def test_the_fit_is_no_worse_than_that_of_scikit_learn() -> None:
    proposal = _fitted(_draws())
    for row, target in enumerate(_targets()):
        draws = _draws()[row].astype(float)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            other = GaussianMixture(N_COMPONENTS, random_state=0).fit(draws)
        expected = other.score(target.draw(N_FRESH, np.random.default_rng(2)))
        assert _score(_row(proposal, row), target) > expected - 0.05
        if row:  # negative control: one normal for all is seen to be worse
            one = Normals(np.ones(1), draws.mean(axis=0)[None], np.linalg.cholesky(np.cov(draws.T))[None])
            assert _score(one, target) < _score(_row(proposal, row), target) - 1.0


def test_a_narrow_posterior_far_from_zero_is_fitted_as_well() -> None:
    shifted = [target._replace(means=3.0 + 0.01 * target.means, factors=0.01 * target.factors) for target in _targets()]
    rng = np.random.default_rng(1)
    draws = np.array([target.draw(N_FITTED, rng) for target in shifted], np.float32)
    proposals = _fitted(_draws()), _fitted(draws)
    for row in (0, 2, 3):  # the narrow one would be at the end of float32
        scores = _score(_row(proposals[0], row), _targets()[row]), _score(_row(proposals[1], row), shifted[row])
        assert abs(scores[1] - D * np.log(100.0) - scores[0]) < 0.05


def test_one_component_is_the_sample_mean_and_covariance() -> None:
    d = 40  # more than elimination takes at once
    rng = np.random.default_rng(5)
    directions = np.linalg.qr(rng.standard_normal((d, d)))[0]
    draws = (3.0 + rng.standard_normal((2, 300, d)) * np.geomspace(1.0, 0.01, d) @ directions).astype(np.float32)
    proposal = _compiled(n_components=1, absolute_regulariser=1e-3)(tf.constant(draws), SEED)
    for row in range(2):
        sample, factor = draws[row].astype(float), proposal.factors[row, 0].numpy()
        assert np.allclose(proposal.means[row, 0], sample.mean(axis=0), atol=1e-6)
        # A thousandth wider in its own units, and 1e-3 in those of z: ten times the least variance.
        expected = 1.001 * np.cov(sample.T, bias=True) + 1e-3 * np.eye(d)
        standard = np.linalg.solve(np.linalg.cholesky(expected), factor)
        assert np.allclose(standard @ standard.T, np.eye(d), atol=1e-3)
        assert np.allclose(proposal.inverses[row, 0] @ factor, np.eye(d), atol=1e-10)
        assert np.array_equal(factor, np.tril(factor))


@pytest.mark.parametrize("n_repeats", [1, 6])
def test_components_of_few_draws_share_their_shape(n_repeats: int) -> None:
    target, few = _targets()[0], _draws()[0, :400].reshape(4, 100, D)
    draws = np.full((4, N_FITTED, D), np.nan, np.float32)
    draws[:, : n_repeats * 100] = np.repeat(few, n_repeats, axis=1)  # as by a chain that turns five of six down
    proposal = _fitted(draws)
    for row in range(4):
        other = GaussianMixture(N_COMPONENTS, random_state=0).fit(few[row].astype(float))
        expected = other.score(target.draw(N_FRESH, np.random.default_rng(2)))
        # 36 numbers for each covariance, of 20 draws: scikit-learn loses some three nats to the truth, this up to one.
        assert _score(_row(proposal, row), target) > expected + 1.5


def _stuck(n_chains: int) -> np.ndarray:
    starts = 0.5 + 0.01 * np.random.default_rng(4).standard_normal((n_chains, D))
    return np.repeat(starts, N_FITTED // n_chains, axis=0)


def _only(n: int, worst: float) -> np.ndarray:
    """n draws; the others are not finite."""
    draws = _draws()[0].copy()
    draws[n:, 3] = worst
    return draws


def _flat() -> np.ndarray:
    draws = _draws()[0].copy()
    draws[:, 3] = 2.0
    return draws


DEGENERATE = {
    "chains that never moved": lambda: _stuck(4),
    "all equal": lambda: _stuck(1),
    "fewer draws than dimensions": lambda: _only(5, np.nan),
    "one draw": lambda: _only(1, np.inf),
    "no draw": lambda: _only(0, -np.inf),
    "draws of the size of float32": lambda: _only(0, 3e38),
    "a coordinate without spread": _flat,
    "no dimension with spread but one": lambda: np.linspace(0.0, 1.0, N_FITTED)[:, None] * np.ones(D),
}


def test_degenerate_draws_give_a_useful_proposal_and_do_not_disturb_other_rows() -> None:
    cases = [DEGENERATE[name]() for name in DEGENERATE]
    calm = _fitted(_draws())
    for first in range(0, len(cases), 3):
        some = cases[first : first + 3]
        draws = _draws().copy()
        draws[: len(some)] = some
        proposal = _fitted(draws)
        assert all(np.all(np.isfinite(part)) for part in proposal)
        z = _drawn(proposal, 4000, SEED)
        log_q = log_prob(proposal, z).numpy()
        assert np.all(np.isfinite(z))
        assert np.all(np.isfinite(log_q))
        for row in range(len(some)):
            log_p = _row(proposal, row).log_prob(z[row].numpy().astype(float))
            assert abs(_error_of_one(log_p - log_q[row])) < 5.0
        for part, other in zip(proposal, calm, strict=True):
            assert np.array_equal(part.numpy()[len(some) :], other.numpy()[len(some) :])


def test_chains_that_never_moved_get_a_small_sphere() -> None:
    draws = np.stack([_stuck(1), _stuck(4), _only(1, np.nan), _only(0, np.nan)])
    proposal = _fitted(draws)
    for row, (least, most) in enumerate([(5e-6, 2e-5), (1e-3, 2e-2), (5e-6, 2e-5), (0.9, 1.1)]):
        mixture = _row(proposal, row)
        sds = np.array([np.linalg.svd(factor, compute_uv=False) for factor in mixture.factors])
        assert np.min(sds) > least
        assert np.max(sds) < most
    assert np.allclose(_row(proposal, 0).means, draws[0, 0], atol=1e-6)
    assert np.allclose(_row(proposal, 3).means, 0.0)


def test_the_seed_decides() -> None:
    proposals = [_fitted(_draws(), seed) for seed in (SEED, SEED, tf.constant([1, 3]))]
    assert all(np.array_equal(one, other) for one, other in zip(*proposals[:2], strict=True))
    assert not np.array_equal(proposals[0].means, proposals[2].means)
    draws = [_drawn(proposals[0], 4000, seed) for seed in (SEED, SEED, tf.constant([1, 3]))]
    assert np.array_equal(draws[0], draws[1])
    assert not np.any(np.all(draws[0] == draws[2], axis=2))


def test_draws_are_resampled_by_their_share_of_the_weights() -> None:
    z = np.arange(4, dtype=np.float32).reshape(1, 4, 1)
    taken = resample(z, np.log([[1.0, 3.0, 4.0, 2.0]]), 10)
    assert taken[0, :, 0].tolist() == [0.0] + [1.0] * 3 + [2.0] * 4 + [3.0] * 2
    # A draw that the proposal hardly makes, with 91 % of the weight, does not stand for all.
    log_ratios = np.zeros((1, 100))
    log_ratios[0, 7] = np.log(1000.0)
    taken = resample(np.arange(100, dtype=np.float32).reshape(1, 100, 1), log_ratios, 100)[0, :, 0]
    assert 0.5 < (taken == 7.0).mean() < 0.55


def test_draws_of_a_wide_normal_become_those_of_a_narrow_one() -> None:
    rng = np.random.Generator(np.random.Philox(key=5))
    z = (3.0 * rng.standard_normal((2, 20_000, 1))).astype(np.float32)
    means = np.array([[0.0], [1.0]])
    log_pi = -0.5 * (z[:, :, 0] - means) ** 2
    taken = resample(z, log_pi + z[:, :, 0] ** 2 / 18.0 - 500.0, 5_000)[:, :, 0]
    np.testing.assert_allclose(taken.mean(axis=1), means[:, 0], atol=0.05)
    np.testing.assert_allclose(taken.std(axis=1), 1.0, atol=0.05)
    assert resample(z, np.zeros((2, 20_000)), 5_000).std() > 2.5  # without weights they stay as wide as they were


@pytest.mark.parametrize("bad", [np.nan, -np.inf, np.inf])
def test_draws_without_a_finite_weight_are_never_taken(bad: float) -> None:
    z = np.arange(6, dtype=np.float32).reshape(2, 3, 1)
    taken = resample(z, np.array([[0.0, bad, 0.0], [bad, bad, bad]]), 4)
    assert taken[0, :, 0].tolist() == [0.0, 0.0, 2.0, 2.0]
    assert np.isnan(taken[1]).all()
