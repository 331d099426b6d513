"""Sampling and scoring of each simulator belong to one distribution, whose log-density agrees with naive references."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from scipy import integrate, stats

from bayesnde_cli.rng import generator
from bayesnde_cli.tables.simulator_catalogue import SIMULATORS, Simulator, make_simulator
from bayesnde_cli.tables.simulators import (
    Checkerboard,
    IndependentMixture,
    Involute,
    LinearGaussian,
    Moons,
    Rings,
    rotation_matrix,
)

# name, options, half width of a square that holds all but 1e-12 of the mass, grid step.
# The step is at most half of the noise: the midpoint rule is then exact to 1e-9 for a Gaussian blur.
# The board's step puts no grid point on an edge.
PLANE: list[tuple[str, dict[str, Any], float, float]] = [
    ("involute", {}, 9.6, 0.15),
    ("gmm", {"rotate": True}, 2.4, 0.04),
    ("linear-gaussian", {"dim": 2, "latent_dim": 1}, 9.0, 0.1),
    ("moons", {}, 2.9, 0.04),
    ("checkerboard", {}, 2.5, 0.02),
    ("rings", {}, 3.8, 0.04),
]
N_ROWS = 5000


class Grid:
    """The density of a plane simulator on a grid of midpoints: its integral, mean log-density and first marginal."""

    def __init__(self, simulator: Simulator, half_width: float, step: float) -> None:
        axis = np.arange(-half_width + step / 2, half_width, step)
        points = np.stack(np.meshgrid(axis, axis, indexing="ij"), axis=-1).reshape(-1, 2)
        log_density = simulator.log_density(points)
        mass = np.exp(log_density) * step**2
        self.total = mass.sum()
        inside = mass > 0
        self.mean_log_density = (mass[inside] * log_density[inside]).sum()
        self._edges = np.append(axis - step / 2, axis[-1] + step / 2)
        self._cdf = np.append(0.0, mass.reshape(len(axis), len(axis)).sum(axis=1).cumsum())

    def first_column_cdf(self, value: np.ndarray) -> np.ndarray:
        return np.interp(value, self._edges, self._cdf)


def z_score_of_mean_log_density(x: np.ndarray, simulator: Simulator, expected: float) -> float:
    log_density = simulator.log_density(x)
    # A constant density has no sampling error; rounding is then the scale.
    standard_error = max(log_density.std() / np.sqrt(len(x)), 1e-12)
    return float((log_density.mean() - expected) / standard_error)


@pytest.mark.parametrize(("name", "options", "half_width", "step"), PLANE)
def test_the_density_integrates_to_one_and_describes_the_sample(
    name: str, options: dict[str, Any], half_width: float, step: float
) -> None:
    simulator = make_simulator(name, **options)
    grid = Grid(simulator, half_width, step)
    x = simulator.sample(N_ROWS, generator(0, "agree", name))
    assert (x.shape, x.dtype) == ((N_ROWS, 2), np.float64)
    assert grid.total == pytest.approx(1.0, abs=1e-9)
    # Five standard errors: one false alarm in a million.
    assert abs(z_score_of_mean_log_density(x, simulator, grid.mean_log_density)) < 5
    # The grid's distribution function is exact at its edges and linear between: an error far below 1/sqrt(rows).
    assert stats.kstest(x[:, 0], grid.first_column_cdf).pvalue > 1e-4
    if name == "involute":
        assert grid.mean_log_density == pytest.approx(-4.03, abs=0.01)  # the known figure


def test_the_noise_of_the_involute_taken_as_a_variance_fails_the_same_checks() -> None:
    x = Involute().sample(N_ROWS, generator(0, "agree", "involute"))
    wrong = Involute(noise_sd=0.4**0.5)
    grid = Grid(wrong, 11.2, 0.3)
    assert grid.total == pytest.approx(1.0, abs=1e-9)
    assert abs(z_score_of_mean_log_density(x, wrong, grid.mean_log_density)) > 10
    assert stats.kstest(x[:, 0], grid.first_column_cdf).pvalue < 1e-4


@pytest.mark.parametrize("rotate", [False, True])
def test_the_mean_log_density_of_the_mixture_is_the_known_figure(rotate: bool) -> None:
    # The components are ten standard deviations apart, so the entropy is that of a normal plus log 3 per column.
    expected = -15 * (np.log(3) + 0.5 * np.log(2 * np.pi * np.e * 0.01))
    assert expected == pytest.approx(-3.2, abs=0.05)
    simulator = IndependentMixture(15, rotate=rotate)
    x = simulator.sample(N_ROWS, generator(0, "agree", "gmm-15"))
    assert abs(z_score_of_mean_log_density(x, simulator, expected)) < 5


def test_the_linear_gaussian_has_its_moments_and_entropy() -> None:
    simulator = LinearGaussian(12, 4)
    expected = -stats.multivariate_normal(simulator.offset, simulator.covariance).entropy()
    x = simulator.sample(N_ROWS, generator(0, "agree", "linear"))
    assert abs(z_score_of_mean_log_density(x, simulator, expected)) < 5
    # The first two moments, with standard errors from theory.
    sd = np.sqrt(np.diag(simulator.covariance))
    assert np.all(np.abs(x.mean(axis=0) - simulator.offset) < 5 * sd / np.sqrt(N_ROWS))
    error = np.cov(x.T) - simulator.covariance
    assert np.all(np.abs(error) < 6 * np.sqrt(2) * np.outer(sd, sd) / np.sqrt(N_ROWS))


def by_adaptive_quadrature(point: tuple[float, float], centre: Callable, noise_sd: float) -> float:
    """log of 1/(2 pi) times the integral of N(point; centre(t), noise_sd^2 I) over (0, 2 pi)."""

    def log_kernel(t: Any) -> Any:
        first, second = centre(t)
        squared = (point[0] - first) ** 2 + (point[1] - second) ** 2
        return -0.5 * squared / noise_sd**2 - np.log(2 * np.pi * noise_sd**2)

    t = np.linspace(0, 2 * np.pi, 20_001)
    values = log_kernel(t)
    peak = values.max()
    # Only pieces that matter: beyond 60 below the peak a piece adds less than 1e-26 of the whole.
    edges = np.linspace(0, 2 * np.pi, 401)  # one of them is pi, where the moons jump
    highest = np.maximum.reduceat(values, np.searchsorted(t, edges[:-1] - 1e-9))
    total = sum(
        integrate.quad(lambda s: np.exp(log_kernel(s) - peak), low, high, epsabs=1e-16, epsrel=1e-10)[0]
        for low, high in np.stack([edges[:-1], edges[1:]], axis=1)[highest > peak - 60]
    )
    return float(peak + np.log(total / (2 * np.pi)))


def spiral(r: Any) -> tuple[Any, Any]:
    return r * np.sin(2 * r), r * np.cos(2 * r)


def half_circles(t: Any) -> tuple[Any, Any]:
    second = np.asarray(t) > np.pi
    return np.cos(t) + second, np.sin(t) + 0.5 * second


@pytest.mark.parametrize("point", [(0.3, -0.2), (0.2, 2 * np.pi), (5.0, -4.5), (6.0, 12.0), (-100.0, 250.0)])
def test_the_involute_agrees_with_adaptive_quadrature(point: tuple[float, float]) -> None:
    expected = by_adaptive_quadrature(point, spiral, 0.4)
    assert Involute().log_density(np.array([point]))[0] == pytest.approx(expected, abs=1e-10, rel=1e-13)


@pytest.mark.parametrize("point", [(0.5, 0.25), (1.0, 0.0), (-2.0, -1.0), (20.0, -9.0)])
def test_the_moons_agree_with_adaptive_quadrature(point: tuple[float, float]) -> None:
    expected = by_adaptive_quadrature(point, half_circles, 0.1)
    assert Moons().log_density(np.array([point]))[0] == pytest.approx(expected, abs=1e-10, rel=1e-13)


@pytest.mark.parametrize("point", [(0.5, 0.8), (3.1, 2.0)])
def test_the_rings_agree_with_adaptive_quadrature(point: tuple[float, float]) -> None:
    per_radius = [
        by_adaptive_quadrature(point, lambda t, radius=radius: (radius * np.cos(t), radius * np.sin(t)), 0.1)
        for radius in (1.0, 2.0, 3.0)
    ]
    expected = np.logaddexp.reduce(per_radius) - np.log(3)
    assert Rings().log_density(np.array([point]))[0] == pytest.approx(expected, abs=1e-10, rel=1e-13)


def test_the_mixture_agrees_with_the_formula_of_the_paper() -> None:
    x = generator(0, "test").normal(size=(50, 4))
    density = sum(stats.norm.pdf(x, mean, 0.1) for mean in (-1, 0, 1)) / 3
    np.testing.assert_allclose(IndependentMixture(4).log_density(x), np.log(density).sum(axis=1), rtol=1e-12)


@pytest.mark.parametrize(("dim", "latent_dim"), [(1, 1), (5, 2), (5, 5)])
def test_the_linear_gaussian_agrees_with_scipy(dim: int, latent_dim: int) -> None:
    simulator = LinearGaussian(dim, latent_dim)
    noise = np.diag(simulator.noise_sd**2)
    reference = stats.multivariate_normal(simulator.offset, simulator.weights @ simulator.weights.T + noise)
    x = 5.0 * generator(0, "test").normal(size=(200, dim))
    np.testing.assert_allclose(simulator.log_density(x), np.reshape(reference.logpdf(x), -1), rtol=1e-9)


def test_the_board_is_dark_on_eight_squares_and_empty_elsewhere() -> None:
    middle = np.arange(-2.5, 3.0)  # one square around the board too
    x = np.stack(np.meshgrid(middle, middle, indexing="ij"), axis=-1).reshape(-1, 2)
    log_density = Checkerboard().log_density(x)
    dark = np.isfinite(log_density)
    assert dark.sum() == 8
    assert np.all(log_density[dark] == -np.log(8))
    assert np.all(log_density[~dark] == -np.inf)
    # Neighbours of a dark square are light, its diagonal neighbours are dark.
    assert np.isfinite(Checkerboard().log_density(np.array([[-1.5, -1.5], [-0.5, -0.5]]))).all()
    assert not np.isfinite(Checkerboard().log_density(np.array([[-1.5, -0.5], [-0.5, -1.5]]))).any()


@pytest.mark.parametrize("name", SIMULATORS)
def test_far_rows_have_log_densities_that_fall_with_the_distance_to_minus_infinity(name: str) -> None:
    simulator = make_simulator(name)
    direction = np.full((1, len(simulator.names)), 0.6)
    assert simulator.log_density(1e200 * direction) == -np.inf  # beyond the range of squares
    if name != "checkerboard":
        log_density = simulator.log_density(10.0 ** np.arange(1, 101, 9, dtype=float)[:, None] * direction)
        assert np.isfinite(log_density).all()
        assert np.all(np.diff(log_density) < 0)


@pytest.mark.parametrize("name", ["involute", "moons"])
def test_a_row_has_the_same_log_density_alone_and_among_many(name: str) -> None:
    simulator = make_simulator(name)
    x = 20.0 * generator(0, "test").normal(size=(1000, 2))
    together = simulator.log_density(x)
    alone = np.concatenate([simulator.log_density(x[index : index + 1]) for index in range(0, 1000, 100)])
    np.testing.assert_allclose(together[::100], alone, rtol=1e-14)


@pytest.mark.parametrize("dim", [1, 2, 15])
def test_the_rotation_is_a_rotation_and_keeps_the_log_density(dim: int) -> None:
    rotation = rotation_matrix(dim)
    np.testing.assert_allclose(rotation @ rotation.T, np.eye(dim), atol=1e-13)
    assert np.linalg.det(rotation) == pytest.approx(1.0, abs=1e-10)
    plain, rotated = IndependentMixture(dim), IndependentMixture(dim, rotate=True)
    y = plain.sample(100, generator(1, "test"))
    x = rotated.sample(100, generator(1, "test"))
    np.testing.assert_allclose(x, y @ rotation.T, atol=1e-13)
    np.testing.assert_allclose(rotated.log_density(x), plain.log_density(y), rtol=1e-9, atol=1e-9)
    if dim > 1:
        assert not np.allclose(x, y)
