"""Mixtures of normals against scipy's normals: densities, marginals, draws, conditionals, and storage."""

from pathlib import Path

import numpy as np
import pytest
from scipy.stats import multivariate_normal

from bayesnde_cli.model import normal_mixtures
from bayesnde_cli.model.normal_mixtures import ClassMixtures, NormalMixture, log_sum_exp
from bayesnde_cli.rows import Rows
from bayesnde_cli.runs.files import read_arrays, write_arrays

P = 3


def _mixture(kind: str, n_components: int = 4) -> NormalMixture:
    """Components that overlap, with strong correlations where covariances are full."""
    rng = np.random.default_rng(5)
    weights, means = rng.dirichlet(np.full(n_components, 3.0)), rng.normal(size=(n_components, P)) * 1.5
    if kind == "full":
        root = rng.normal(size=(n_components, P, P))
        scales = np.linalg.cholesky(root @ root.transpose(0, 2, 1) + 0.05 * np.eye(P))
    else:
        scales = rng.uniform(0.4, 1.5, (1 if kind == "shared" else n_components, P))
    return NormalMixture(np.log(weights), means, scales)


def _covariances(mixture: NormalMixture) -> np.ndarray:
    if mixture.is_full:
        return mixture.scales @ mixture.scales.transpose(0, 2, 1)
    return np.broadcast_to(mixture.scales**2, mixture.means.shape)[:, None, :] * np.eye(mixture.means.shape[1])


def _exact(mixture: NormalMixture, x: np.ndarray, columns: slice | list[int] = slice(None)) -> np.ndarray:
    """scipy's log-density of some columns; x holds these columns only."""
    terms = [
        log_weight + multivariate_normal(mean[columns], covariance[columns][:, columns]).logpdf(x)
        for log_weight, mean, covariance in zip(mixture.log_weights, mixture.means, _covariances(mixture), strict=True)
    ]
    return np.asarray(np.logaddexp.reduce(terms))


def _rows(n: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(n, P)) * 2.0


def _mean_and_covariance(mixture: NormalMixture) -> tuple[np.ndarray, np.ndarray]:
    weights = np.exp(mixture.log_weights)
    mean = weights @ mixture.means
    squares = _covariances(mixture) + mixture.means[:, :, None] * mixture.means[:, None]
    return mean, np.einsum("k,kij->ij", weights, squares) - np.outer(mean, mean)


kinds = pytest.mark.parametrize("kind", ["full", "diagonal", "shared"])


@kinds
def test_the_density_is_scipys_in_any_number_of_blocks(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    mixture, x = _mixture(kind), _rows(50)
    np.testing.assert_allclose(mixture.log_density(x), _exact(mixture, x), rtol=1e-10)
    monkeypatch.setattr(normal_mixtures, "_NUMBERS_AT_ONCE", 37)
    np.testing.assert_allclose(mixture.log_density(x), _exact(mixture, x), rtol=1e-10)


@kinds
def test_a_mask_leaves_the_exact_marginal_of_the_observed_cells(kind: str) -> None:
    mixture, x = _mixture(kind), _rows(200)
    observed = np.random.default_rng(1).random(x.shape) < 0.6
    observed[:2] = [[False] * P, [True] * P]
    log_density = mixture.log_density(np.where(observed, x, 0.0), observed)
    assert log_density[0] == 0.0
    for row in range(1, len(x)):
        if observed[row].any():
            columns = np.flatnonzero(observed[row]).tolist()
            assert log_density[row] == pytest.approx(_exact(mixture, x[row, columns], columns), rel=1e-9)


@kinds
def test_the_marginal_is_the_density_integrated_over_the_missing_cell(kind: str) -> None:
    mixture, row = _mixture(kind), np.array([0.3, -0.2, 0.0])
    grid = np.tile(row, (4001, 1))
    grid[:, 2] = np.linspace(-25.0, 25.0, len(grid))
    observed = np.array([[True, True, False]])
    integral = np.log(np.trapezoid(np.exp(mixture.log_density(grid)), grid[:, 2]))
    assert mixture.log_density(row[None], observed)[0] == pytest.approx(integral, abs=1e-8)
    # The control: the density at a filled-in 0, and the marginal of other columns, would be seen.
    assert abs(mixture.log_density(row[None])[0] - integral) > 0.1
    assert abs(mixture.log_density(row[None], np.array([[True, False, True]]))[0] - integral) > 0.1


@kinds
def test_extreme_rows_have_a_tiny_density_or_none_and_wrong_ones_nan(kind: str) -> None:
    x = np.array([[1e30] * P, [1e200] * P, [1e308, -1e308, 0.0], [np.inf] * P, [-np.inf, np.inf, 0.0], [np.nan] * P])
    found = _mixture(kind).log_density(x)
    assert -1e65 < found[0] < -1e55
    assert np.isneginf(found[1:5]).all()
    assert np.isnan(found[5])


def test_columns_far_from_zero_lose_no_digits() -> None:
    kernels, x = _rows(30) * 1e-3, _rows(10, 1) * 1e-3
    log_weights, scales = np.full(30, -np.log(30)), np.full((1, P), 1e-4)
    there, here = (
        NormalMixture(log_weights, kernels + shift, scales).log_density(x + shift) for shift in (2.0**20, 0.0)
    )
    # Cells of a million are rounded to 1e-10, a millionth of the s.d., some 100 s.d. from the kernels.
    np.testing.assert_allclose(there, here, rtol=1e-5)


@kinds
def test_a_blur_adds_its_variance(kind: str) -> None:
    mixture, x = _mixture(kind), _rows(40)
    wide = mixture.blur(0.7)
    np.testing.assert_allclose(_covariances(wide), _covariances(mixture) + 0.49 * np.eye(P), atol=1e-12)
    np.testing.assert_allclose(wide.log_density(x), _exact(wide, x), rtol=1e-10)


@kinds
def test_draws_have_the_mean_the_covariance_and_the_entropy_of_the_mixture(kind: str) -> None:
    mixture, n = _mixture(kind), 200_000
    x = mixture.draw(n, 1)
    mean, covariance = _mean_and_covariance(mixture)
    # Five standard errors: of a mean, sd / sqrt n; of a covariance, about twice the product of two s.d.
    sd = np.sqrt(np.diag(covariance))
    assert np.all(np.abs(x.mean(axis=0) - mean) < 5.0 * sd / np.sqrt(n))
    assert np.all(np.abs(np.cov(x.T) - covariance) < 10.0 * np.outer(sd, sd) / np.sqrt(n))
    # E[q(x) / p(x)] = 1 under draws from p, for a normal q that is narrower than a component.
    narrow = multivariate_normal(mixture.means[0], 0.3 * _covariances(mixture)[0])
    ratio = np.exp(narrow.logpdf(x) - mixture.log_density(x))
    assert abs(ratio.mean() - 1.0) < 5.0 * ratio.std() / np.sqrt(n)
    # The control: the density of another mixture.
    other = np.exp(narrow.logpdf(x) - mixture.blur(0.5).log_density(x))
    assert abs(other.mean() - 1.0) > 10.0 * other.std() / np.sqrt(n)
    np.testing.assert_array_equal(mixture.draw(5, 1), mixture.draw(5, 1))
    assert not np.array_equal(mixture.draw(5, 1), mixture.draw(5, 2))


@kinds
def test_the_average_of_diagonal_normals_is_the_density(kind: str) -> None:
    mixture, x, n = _mixture(kind), _rows(20), 100_000
    mean, variance = mixture.moments(n, 3)

    def error(of: np.ndarray, variance: np.ndarray) -> np.ndarray:
        """The difference from the exact density, in standard errors."""
        log_terms = -0.5 * (((of[:, None] - mean) ** 2) / variance + np.log(2.0 * np.pi * variance)).sum(axis=-1)
        terms = np.exp(log_terms)  # (rows, n)
        return np.asarray(np.abs(terms.mean(axis=1) - np.exp(mixture.log_density(of))) * np.sqrt(n) / terms.std(axis=1))

    assert error(x, variance).max() < 4.5
    assert error(x, 1.2 * variance).max() > 10.0  # the control


def test_the_diagonal_part_stays_large_in_columns_apart_from_collinear_ones() -> None:
    covariance = np.array([[1.0, 0.999999, 0.0], [0.999999, 1.0, 0.0], [0.0, 0.0, 1.0]])
    mixture = NormalMixture(np.zeros(1), np.zeros((1, P)), np.linalg.cholesky(covariance)[None])
    mean, variance = mixture.moments(100_000, 0)
    assert variance[0, 2] > 0.4  # a multiple of the identity would be 1e-6
    np.testing.assert_allclose(np.cov(mean.T) + np.diag(variance[0]), covariance, atol=0.02)


@kinds
def test_missing_cells_are_drawn_given_the_observed_ones(kind: str) -> None:
    mixture, n = _mixture(kind), 100_000
    row = np.array([0.4, 0.0, -0.6])
    observed = np.tile([True, False, True], (n, 1))
    x = mixture.fill(np.tile(row, (n, 1)), observed, 7)
    assert np.all(x[:, [0, 2]] == row[[0, 2]])
    grid = np.tile(row, (4001, 1))
    grid[:, 1] = np.linspace(-20.0, 20.0, len(grid))
    density = np.exp(mixture.log_density(grid))
    cumulative = np.cumsum(density) / density.sum()
    uniform = np.interp(x[:, 1], grid[:, 1], cumulative)
    # Kolmogorov's distance: beyond 2 / sqrt n with probability 7e-4; the grid adds half a step of 0.01.
    distance = np.max(np.abs(np.sort(uniform) - (np.arange(n) + 0.5) / n))
    assert distance < 2.0 / np.sqrt(n) + 0.005
    # The control: draws that ignore the observed cells.
    blind = np.interp(mixture.draw(n, 7)[:, 1], grid[:, 1], cumulative)
    assert np.max(np.abs(np.sort(blind) - (np.arange(n) + 0.5) / n)) > 0.03


@kinds
def test_filled_draws_have_the_distribution_of_the_mixture_whatever_is_missing(kind: str) -> None:
    mixture, n = _mixture(kind), 100_000
    observed = np.random.default_rng(2).random((n, P)) < 0.5
    x = mixture.draw(n, 1)
    filled = mixture.fill(np.where(observed, x, 0.0), observed, 2)
    np.testing.assert_array_equal(filled[observed], x[observed])
    assert np.mean(filled[~observed] != x[~observed]) == 1.0
    mean, covariance = _mean_and_covariance(mixture)
    sd = np.sqrt(np.diag(covariance))
    assert np.all(np.abs(filled.mean(axis=0) - mean) < 5.0 * sd / np.sqrt(n))
    assert np.all(np.abs(np.cov(filled.T) - covariance) < 10.0 * np.outer(sd, sd) / np.sqrt(n))
    # A row keeps its draw when other rows are observed elsewhere.
    others = observed.copy()
    others[1:] = ~observed[1:]
    np.testing.assert_array_equal(mixture.fill(x, others, 2)[0], filled[0])


def test_filling_next_to_impossible_cells_is_finite() -> None:
    filled = _mixture("diagonal").fill(np.array([[1e200, 0.0, 0.0]]), np.array([[True, False, False]]), 0)
    assert np.isfinite(filled).all()


@kinds
def test_mixtures_and_their_classes_survive_a_file(kind: str, tmp_path: Path) -> None:
    mixture = _mixture(kind)
    mixtures = ClassMixtures((mixture, None, mixture.blur(0.5), None))
    write_arrays(tmp_path / "mixtures.npz", mixtures.arrays(), {})
    found = ClassMixtures.from_arrays(read_arrays(tmp_path / "mixtures.npz")[0])
    assert [own is None for own in found.mixtures] == [False, True, False, True]
    rows = Rows(_rows(8).astype(np.float32), y=np.eye(4, dtype=np.float32)[np.arange(8) % 4])
    log_density = found.log_density(rows)
    np.testing.assert_array_equal(log_density, mixtures.log_density(rows))
    np.testing.assert_array_equal(log_density[[0, 4]], mixture.log_density(rows.x[[0, 4]]))
    assert np.isnan(log_density[1::2]).all()
    assert np.isfinite(log_density[::2]).all()
    np.testing.assert_array_equal(found.blur(0.5).log_density(rows)[::4], mixture.blur(0.5).log_density(rows.x[::4]))


def test_without_classes_there_is_one_mixture_and_cells_may_be_missing() -> None:
    mixture, x = _mixture("full"), _rows(6).astype(np.float32)
    observed = np.arange(6)[:, None] != np.arange(P)
    found = ClassMixtures((mixture,)).log_density(Rows(x, observed=observed))
    np.testing.assert_array_equal(found, mixture.log_density(x, observed))


def test_the_log_of_a_sum_is_that_of_no_term_and_of_huge_ones() -> None:
    values = np.array([[-np.inf, -np.inf], [-1e300, -np.inf], [700.0, 900.0], [0.0, 0.0]])
    np.testing.assert_allclose(log_sum_exp(values, axis=1), [-np.inf, -1e300, 900.0, np.log(2.0)])


@pytest.mark.parametrize("is_full", [True, False])
def test_rescaled_columns_have_the_density_of_a_change_of_variables(is_full: bool) -> None:
    rng = np.random.default_rng(0)
    scales = np.linalg.cholesky(np.array([np.eye(2) + 0.5, 2.0 * np.eye(2)])) if is_full else np.array([[0.5, 2.0]])
    mixture = NormalMixture(np.log([0.3, 0.7]), rng.standard_normal((2, 2)), scales)
    x, mean, sd = rng.standard_normal((20, 2)), np.array([5.0, -1.0]), np.array([100.0, 0.01])
    expected = mixture.log_density(x) - np.log(sd).sum()
    np.testing.assert_allclose(mixture.rescale(mean, sd).log_density(mean + sd * x), expected, rtol=1e-9)
