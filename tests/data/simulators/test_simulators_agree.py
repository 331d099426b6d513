"""Sampling and scoring of each simulator belong to the same distribution."""

import numpy as np
import pytest
from scipy import stats

from bayesnde_cli.data.simulators import Simulator, make_simulator
from bayesnde_cli.data.simulators.gmm import IndependentMixture
from bayesnde_cli.data.simulators.involute import Involute
from bayesnde_cli.rng import generator

# name, options, half width of a square that holds all but 1e-12 of the mass, grid step.
# The step is at most a third of the noise: the trapezoidal rule is then exact to rounding for a Gaussian blur.
# The board's step puts no grid point on an edge.
PLANE = [
    ("involute", {}, 9.6, 0.1),
    ("gmm", {}, 1.8, 0.03),
    ("gmm", {"rotate": True}, 2.4, 0.03),
    ("linear-gaussian", {"dim": 2, "latent_dim": 1}, 9.0, 0.06),
    ("moons", {}, 2.9, 0.03),
    ("checkerboard", {}, 2.5, 0.02),
    ("rings", {}, 3.8, 0.03),
]
N_ROWS = 20_000


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
def test_the_density_integrates_to_one_and_describes_the_sample(name, options, half_width, step):
    simulator = make_simulator(name, **options)
    grid = Grid(simulator, half_width, step)
    x = simulator.sample(N_ROWS, generator(0, "agree", name))
    assert x.shape == (N_ROWS, 2)
    assert x.dtype == np.float64
    assert grid.total == pytest.approx(1.0, abs=1e-9)
    # Five standard errors: one false alarm in a million.
    assert abs(z_score_of_mean_log_density(x, simulator, grid.mean_log_density)) < 5
    # The grid's distribution function is exact at its edges and linear between: an error far below 1/sqrt(rows).
    assert stats.kstest(x[:, 0], grid.first_column_cdf).pvalue > 1e-4


def test_the_noise_of_the_involute_taken_as_a_variance_fails_the_same_checks():
    x = Involute().sample(N_ROWS, generator(0, "agree", "involute"))
    wrong = Involute(noise_sd=0.4**0.5)
    grid = Grid(wrong, 11.2, 0.15)
    assert grid.total == pytest.approx(1.0, abs=1e-9)
    assert abs(z_score_of_mean_log_density(x, wrong, grid.mean_log_density)) > 20
    assert stats.kstest(x[:, 0], grid.first_column_cdf).pvalue < 1e-4


def test_the_mean_log_density_of_the_involute_is_the_known_figure():
    assert Grid(Involute(), 9.6, 0.1).mean_log_density == pytest.approx(-4.03, abs=0.01)


@pytest.mark.parametrize("rotate", [False, True])
def test_the_mean_log_density_of_the_mixture_is_the_known_figure(rotate):
    # The components are ten standard deviations apart, so the entropy is that of a normal plus log 3 per column.
    expected = -15 * (np.log(3) + 0.5 * np.log(2 * np.pi * np.e * 0.01))
    assert expected == pytest.approx(-3.2, abs=0.05)
    simulator = IndependentMixture(15, rotate=rotate)
    x = simulator.sample(N_ROWS, generator(0, "agree", "gmm-15"))
    assert abs(z_score_of_mean_log_density(x, simulator, expected)) < 5


def test_the_mean_log_density_of_the_linear_gaussian_is_its_negative_entropy():
    simulator = make_simulator("linear-gaussian", dim=30, latent_dim=4)
    expected = -stats.multivariate_normal(simulator.offset, simulator.covariance).entropy()
    x = simulator.sample(N_ROWS, generator(0, "agree", "linear-30"))
    assert abs(z_score_of_mean_log_density(x, simulator, expected)) < 5
    # The first two moments, with standard errors from theory.
    sd = np.sqrt(np.diag(simulator.covariance))
    assert np.all(np.abs(x.mean(axis=0) - simulator.offset) < 5 * sd / np.sqrt(N_ROWS))
    error = np.cov(x.T) - simulator.covariance
    assert np.all(np.abs(error) < 6 * np.sqrt(2) * np.outer(sd, sd) / np.sqrt(N_ROWS))
