"""The likelihood of cells: against scipy, integrated, sampled, and in the limits."""

import math
from itertools import pairwise

import numpy as np
import pytest
import tensorflow as tf
from scipy.stats import norm, truncnorm

from bayesnde_cli.model import likelihood
from bayesnde_cli.model.likelihood import ColumnCells, log_joint, log_likelihood, log_normal_mass

# A column that went through its own distribution, one that was only scaled, and one without cells.
NORMAL = ColumnCells((-100.0, -0.5, 0.75), (-0.5, 0.25, 100.0))
EVEN = ColumnCells((-1.0, 0.0), (0.0, 1.0), width=0.4, step=1.0)
COLUMNS = (NORMAL, EVEN, ColumnCells())


def _cells() -> likelihood.ValueCells:
    cells = likelihood.join_cells(COLUMNS)
    assert cells is not None
    return cells


def _log_densities(x: np.ndarray, column: int, mean: float, sd: float) -> np.ndarray:
    """log p(x | z) of one column, the others masked."""
    places = np.repeat(x[:, None], 3, axis=1)
    means, variances = (np.full(places.shape, value) for value in (mean, sd**2))
    mask = tf.constant(np.arange(3) == column)[None]
    return log_likelihood(places, means, variances, _cells(), mask=mask, dtype=tf.float64).numpy()


def _log_density(x: float, column: int, mean: float, sd: float) -> float:
    return float(_log_densities(np.array([x]), column, mean, sd)[0])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_normal_distribution_function_holds_in_the_far_tail(dtype: type[np.floating]) -> None:
    t = np.concatenate([np.linspace(-60, 4, 400), [-10.0, -9.999, -10.001]]).astype(dtype)
    tolerance = 2e-5 if dtype == np.float32 else 2e-6  # the series at its border
    np.testing.assert_allclose(
        likelihood.log_normal_cdf(tf.constant(t)).numpy(), norm.logcdf(t), rtol=tolerance, atol=tolerance
    )


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_mass_between_two_places_holds_in_both_tails(dtype: type[np.floating]) -> None:
    low = np.array([-40.0, -12.0, -3.0, -0.1, 0.0, 2.0, 8.0, 30.0, -100.0, 0.5], dtype)
    high = np.array([-39.5, -11.0, 5.0, 0.1, 1e-2, 2.5, 9.0, 100.0, 100.0, 0.52], dtype)
    a, b = low.astype(float), high.astype(float)
    left = np.where(a + b > 0, -b, a), np.where(a + b > 0, -a, b)
    truth = norm.logcdf(left[1]) + np.log(-np.expm1(norm.logcdf(left[0]) - norm.logcdf(left[1])))
    tolerance = 1e-4 if dtype == np.float32 else 2e-6
    np.testing.assert_allclose(log_normal_mass(low, high).numpy(), truth, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(("mean", "sd"), [(0.1, 0.3), (-0.7, 1.0), (0.3, 0.02), (2.0, 0.5)])
@pytest.mark.parametrize("column", [0, 1])
def test_the_density_of_a_column_integrates_to_one(column: int, mean: float, sd: float) -> None:
    cells = COLUMNS[column]
    edges = sorted({*np.clip([*cells.lower, *cells.upper], -9.0, 9.0), -9.0, 9.0})
    half, total = 0.5 * cells.width, 0.0
    for low, high in pairwise(edges):
        if half and low in cells.lower:  # inside a cell there is noise around the middle only
            low, high = 0.5 * (low + high) - half, 0.5 * (low + high) + half
        n = 20_000
        middles = low + (np.arange(n) + 0.5) * (high - low) / n
        total += np.exp(_log_densities(middles, column, mean, sd)).mean() * (high - low)
    assert total == pytest.approx(1.0, abs=1e-5)


def test_inside_a_cell_the_density_is_that_of_cell_and_noise() -> None:
    mean, sd = 0.4, 0.3
    probability = norm.cdf(0.25, mean, sd) - norm.cdf(-0.5, mean, sd)
    truth = math.log(probability) + truncnorm.logpdf(0.1, -0.5, 0.25)
    assert _log_density(0.1, 0, mean, sd) == pytest.approx(truth, abs=1e-6)
    probability = norm.cdf(1.0, mean, sd) - norm.cdf(0.0, mean, sd)
    assert _log_density(0.6, 1, mean, sd) == pytest.approx(math.log(probability / 0.4), abs=1e-6)
    # Between cells, and without any, it is the density of the place.
    assert _log_density(0.5, 0, mean, sd) == pytest.approx(norm.logpdf(0.5, mean, sd), abs=1e-9)
    assert _log_density(0.6, 2, mean, sd) == pytest.approx(norm.logpdf(0.6, mean, sd), abs=1e-9)


def test_where_in_its_cell_a_row_lies_says_nothing_of_the_latent() -> None:
    x = tf.constant([[-0.4, 0.5, 0.0], [0.2, 0.6, 0.0]], tf.float32)
    z = tf.random.stateless_normal([2, 3], [1, 2])
    decoder = lambda z: (z, 0.1 + tf.square(z), _cells())  # noqa: E731
    with tf.GradientTape() as tape:
        tape.watch(z)
        value = log_joint(tf.repeat(z[:1], 2, axis=0), x, decoder)
        difference = value[0] - value[1]
    slope = tape.gradient(difference, z)
    np.testing.assert_allclose(slope.numpy(), 0.0, atol=1e-5)
    assert float(difference) != 0.0  # their noise has another density, though


def test_a_missing_cell_counts_for_nothing_and_spoils_no_slope() -> None:
    mean = tf.constant([[0.1, 0.2, 0.3]])
    with tf.GradientTape() as tape:
        tape.watch(mean)
        x, mask = tf.constant([[math.nan, 0.5, 0.3]]), tf.constant([[False, True, True]])
        value = log_likelihood(x, mean, tf.ones([1, 3]), _cells(), mask=mask)
    assert math.isfinite(float(value[0]))
    slope = tape.gradient(value, mean).numpy()[0]
    assert slope[0] == 0.0
    assert np.isfinite(slope).all()


def test_rows_drawn_from_the_model_have_the_density_that_is_scored() -> None:
    decoder = lambda z: (0.3 * z, 0.2 + 0.0 * z, _cells())  # noqa: E731
    x = likelihood.draw_rows(decoder, 200_000, 3, tf.constant([3, 4])).numpy()
    sd = math.sqrt(0.09 + 0.2)
    for column, places in ((0, np.linspace(-1.5, 1.5, 13)), (1, np.linspace(-1.5, 1.5, 13))):
        for low, high in pairwise(places):
            share = float(np.mean((x[:, column] >= low) & (x[:, column] < high)))
            fine = np.linspace(low, high, 401)[:-1] + (high - low) / 800
            density = np.exp(_log_densities(fine, column, 0.0, sd))
            if column == 1:  # no noise reaches the gaps between the cells
                middle = np.floor(fine) + 0.5
                density = np.where((np.abs(fine) < 1.0) & (np.abs(fine - middle) > 0.2), 0.0, density)
            assert share == pytest.approx(float(density.mean() * (high - low)), abs=0.004)


def test_a_cell_says_as_much_of_the_mean_as_its_curvature() -> None:
    for low, high in ((-1.0, 0.5), (-0.1, 0.1), (2.0, 3.0), (-8.0, 8.0), (0.0, 100.0), (6.0, 100.0)):
        edges = tf.constant([low, high], tf.float64)
        step = 1e-3
        three = [float(log_normal_mass(edges[0] - shift, edges[1] - shift)) for shift in (-step, 0.0, step)]
        curvature = -(three[0] - 2 * three[1] + three[2]) / step**2
        assert float(likelihood.information_share(edges[0], edges[1])) == pytest.approx(curvature, abs=1e-4)


def test_a_far_cell_says_nearly_as_much_as_a_point_in_float32_too() -> None:
    low = np.array([16.0, 60.0, 100.0, 300.0, -200.0, -1000.0, -16.0])
    high = np.array([17.0, 100.0, 102.0, 310.0, -190.0, -999.0, -14.9])
    shares = likelihood.information_share(tf.constant(low, tf.float32), tf.constant(high, tf.float32)).numpy()
    end = np.minimum(np.abs(low), np.abs(high))
    np.testing.assert_allclose(shares, 1.0 - 1.0 / end**2, atol=2e-3)


def test_a_last_category_that_reaches_to_infinity_is_drawn_around_its_value() -> None:
    cells = likelihood.join_cells((ColumnCells((-100.0, 0.4), (0.4, 100.0), width=0.5, step=0.8),))
    assert cells is not None
    x = tf.constant([[-3.0], [0.3], [0.5], [40.0]])
    for uniform, side in ((1e-6, -0.25), (0.5, 0.0), (1.0 - 1e-6, 0.25)):
        moved = cells.draw_inside(x, tf.fill([4, 1], uniform)).numpy()[:, 0]
        np.testing.assert_allclose(moved, np.array([0.0, 0.0, 0.8, 0.8]) + side, atol=1e-5)
