"""The log-densities against naive references, near and far."""

import numpy as np
import pytest
from scipy import integrate, stats

from bayesnde_cli.data.simulators import make_simulator
from bayesnde_cli.data.simulators.checkerboard import Checkerboard
from bayesnde_cli.data.simulators.gmm import IndependentMixture, rotation_matrix
from bayesnde_cli.data.simulators.involute import Involute
from bayesnde_cli.data.simulators.linear_gaussian import LinearGaussian
from bayesnde_cli.data.simulators.moons import Moons
from bayesnde_cli.data.simulators.rings import Rings
from bayesnde_cli.rng import generator


def by_adaptive_quadrature(point, centre, noise_sd, breaks):
    """log of 1/(2 pi) times the integral of N(point; centre(t), noise_sd^2 I) over (0, 2 pi)."""

    def log_kernel(t):
        first, second = centre(t)
        squared = (point[0] - first) ** 2 + (point[1] - second) ** 2
        return -0.5 * squared / noise_sd**2 - np.log(2 * np.pi * noise_sd**2)

    t = np.linspace(0, 2 * np.pi, 200_001)
    values = log_kernel(t)
    peak = values.max()
    # Only pieces that matter: beyond 60 below the peak a piece adds less than 1e-26 of the whole.
    edges = np.unique(np.concatenate([np.linspace(0, 2 * np.pi, 4001), breaks]))
    highest = np.maximum.reduceat(values, np.minimum(np.searchsorted(t, edges[:-1]), len(t) - 1))
    total = 0.0
    for index in np.flatnonzero(highest > peak - 60):
        piece, _ = integrate.quad(
            lambda s: np.exp(log_kernel(s) - peak), edges[index], edges[index + 1], epsabs=1e-16, epsrel=1e-10
        )
        total += piece
    return peak + np.log(total / (2 * np.pi))


def spiral(r):
    return r * np.sin(2 * r), r * np.cos(2 * r)


def half_circles(t):
    second = np.asarray(t) > np.pi
    return np.cos(t) + second, np.sin(t) + 0.5 * second


@pytest.mark.parametrize(
    "point",
    [
        (0.0, 0.0),
        (0.3, -0.2),
        (-4.0, 1.0),
        (0.0, 6.2),
        (0.2, 2 * np.pi),
        (-0.7, 2 * np.pi + 0.3),
        (5.0, -4.5),
        (-8.0, 8.0),
        (0.0, -11.5),
        (6.0, 12.0),
        (30.0, -10.0),
        (-100.0, 250.0),
    ],
)
def test_the_involute_agrees_with_adaptive_quadrature(point):
    expected = by_adaptive_quadrature(point, spiral, 0.4, breaks=[])
    assert Involute().log_density([point])[0] == pytest.approx(expected, abs=1e-10, rel=1e-13)


@pytest.mark.parametrize(
    "point",
    [(0.0, 1.0), (0.5, 0.25), (1.0, 0.0), (0.0, 0.5), (2.0, 0.5), (1.9, 0.8), (-2.0, -1.0), (3.0, 3.0), (20.0, -9.0)],
)
def test_the_moons_agree_with_adaptive_quadrature(point):
    expected = by_adaptive_quadrature(point, half_circles, 0.1, breaks=[np.pi])
    assert Moons().log_density([point])[0] == pytest.approx(expected, abs=1e-10, rel=1e-13)


@pytest.mark.parametrize("point", [(0.0, 0.0), (0.5, 0.8), (-2.0, 0.0), (1.4, -2.2), (3.1, 2.0)])
def test_the_rings_agree_with_adaptive_quadrature(point):
    per_radius = [
        by_adaptive_quadrature(point, lambda t, radius=radius: (radius * np.cos(t), radius * np.sin(t)), 0.1, [])
        for radius in (1.0, 2.0, 3.0)
    ]
    expected = np.logaddexp.reduce(per_radius) - np.log(3)
    assert Rings().log_density([point])[0] == pytest.approx(expected, abs=1e-10, rel=1e-13)


def test_the_mixture_agrees_with_the_formula_of_the_paper():
    x = generator(0, "test").normal(size=(50, 4))
    density = sum(stats.norm.pdf(x, mean, 0.1) for mean in (-1, 0, 1)) / 3
    np.testing.assert_allclose(IndependentMixture(4).log_density(x), np.log(density).sum(axis=1), rtol=1e-12)


@pytest.mark.parametrize(("dim", "latent_dim"), [(1, 1), (5, 2), (5, 5), (40, 3)])
def test_the_linear_gaussian_agrees_with_scipy(dim, latent_dim):
    simulator = LinearGaussian(dim, latent_dim)
    noise = np.diag(simulator.noise_sd**2)
    reference = stats.multivariate_normal(simulator.offset, simulator.weights @ simulator.weights.T + noise)
    x = 5.0 * generator(0, "test").normal(size=(200, dim))
    expected = np.reshape(reference.logpdf(x), -1)
    np.testing.assert_allclose(simulator.log_density(x), expected, rtol=1e-9)


def test_the_board_is_dark_on_eight_squares_and_empty_elsewhere():
    middle = np.arange(-2.5, 3.0)  # one square around the board too
    x = np.stack(np.meshgrid(middle, middle, indexing="ij"), axis=-1).reshape(-1, 2)
    log_density = Checkerboard().log_density(x)
    dark = np.isfinite(log_density)
    assert dark.sum() == 8
    assert np.all(log_density[dark] == -np.log(8))
    assert np.all(log_density[~dark] == -np.inf)
    # Neighbours of a dark square are light, its diagonal neighbours are dark.
    assert np.isfinite(Checkerboard().log_density([[-1.5, -1.5], [-0.5, -0.5]])).all()
    assert not np.isfinite(Checkerboard().log_density([[-1.5, -0.5], [-0.5, -1.5]])).any()


@pytest.mark.parametrize("name", ["involute", "gmm", "linear-gaussian", "moons", "rings"])
def test_far_rows_have_finite_log_densities_that_fall_with_the_distance(name):
    simulator = make_simulator(name)
    direction = np.full(len(simulator.names), 0.6)
    log_density = simulator.log_density(10.0 ** np.arange(1, 101, dtype=float)[:, None] * direction)
    assert np.isfinite(log_density).all()
    assert np.all(np.diff(log_density) < 0)


@pytest.mark.parametrize("name", ["involute", "gmm", "linear-gaussian", "moons", "checkerboard", "rings"])
def test_a_row_beyond_the_range_of_squares_is_minus_infinity(name):
    simulator = make_simulator(name)
    assert simulator.log_density(np.full((1, len(simulator.names)), 1e200)) == -np.inf


@pytest.mark.parametrize("name", ["involute", "moons"])
def test_a_row_has_the_same_log_density_alone_and_among_many(name):
    simulator = make_simulator(name)
    x = 20.0 * generator(0, "test").normal(size=(3000, 2))
    together = simulator.log_density(x)
    alone = np.concatenate([simulator.log_density(x[index : index + 1]) for index in range(0, 3000, 100)])
    np.testing.assert_allclose(together[::100], alone, rtol=1e-14)


def test_rows_of_another_width_are_refused():
    for name in ("involute", "gmm", "linear-gaussian", "moons", "checkerboard", "rings"):
        with pytest.raises(ValueError, match=r"expected rows of shape \(n, \d\), got \(4, 7\)"):
            make_simulator(name).log_density(np.zeros((4, 7)))


@pytest.mark.parametrize("dim", [1, 2, 3, 15, 200])
def test_the_rotation_is_a_rotation_and_keeps_the_log_density(dim):
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
