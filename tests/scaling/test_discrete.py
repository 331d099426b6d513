"""Integers and label codes, spread out by noise, through their smoothed frequencies."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import geom, kstest, norm

from bayesnde_cli.scaling.column_map import Noise, fit_standard
from bayesnde_cli.scaling.discrete import LatticeMarginal, fit_categorical, fit_lattice

NOISES = [Noise(-0.5, 0.5), Noise(-0.2, 0.2), Noise(0.0, 1.0)]


def fractions(n: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).uniform(1e-6, 1.0 - 1e-6, n)


@st.composite
def lattice_maps(draw: st.DrawFn) -> LatticeMarginal:
    train = np.array(draw(st.lists(st.integers(-300, 300), min_size=1, max_size=60)), dtype=float)
    validation = np.array(draw(st.lists(st.integers(-300, 300), max_size=10)), dtype=float)
    # Repeated, the column has many rows per value and takes the quick background.
    return fit_lattice(np.tile(train, draw(st.sampled_from([1, 20]))), validation, noise=draw(st.sampled_from(NOISES)))


@settings(max_examples=12, deadline=None)
@given(lattice_maps(), st.lists(st.integers(-1000, 1000), min_size=2, max_size=30, unique=True))
def test_forward_increases_and_inverse_finds_the_value_again(column_map: LatticeMarginal, values: list[int]) -> None:
    value = np.sort(np.array(values, dtype=float))
    fraction = fractions(len(value))
    u, log_slope = column_map.forward(value, fraction)
    assert np.all(np.diff(u) > 0)
    y = column_map.inverse(u)
    assert np.array_equal(column_map.to_value(y), value)
    resolution = 1e-14 * (1.0 + np.abs(u)) * np.exp(-log_slope)
    assert np.all(np.abs(y - column_map.noise.add(value, fraction)) <= 1e-9 + resolution)


@settings(max_examples=12, deadline=None)
@given(lattice_maps(), st.integers(-1000, 1000), st.floats(0.05, 0.95))
def test_the_log_slope_is_the_derivative(column_map: LatticeMarginal, value: int, fraction: float) -> None:
    step = 1e-4
    u, log_slope = column_map.forward(np.full(3, float(value)), fraction + step * np.array([-1.0, 0.0, 1.0]))
    numerical = (u[2] - u[0]) / (2 * step * column_map.noise.width)
    assert np.exp(log_slope[1]) == pytest.approx(numerical, rel=1e-4, abs=1e-10)


@settings(max_examples=4, deadline=None)
@given(lattice_maps())
def test_the_cells_of_all_integers_add_up_to_one(column_map: LatticeMarginal) -> None:
    value = np.arange(-20_000.0, 20_001.0)
    u, log_slope = column_map.forward(value, np.full(len(value), 0.5))
    mass = np.exp(norm.logpdf(u) + log_slope) * column_map.noise.width
    # The t component has less than (5 scales of at most 300 over 20,000)^2 beyond.
    assert 1.0 - 6e-3 < mass.sum() <= 1.0 + 1e-9


def test_far_values_are_finite_and_ordered() -> None:
    rng = np.random.default_rng(0)
    for train in (rng.integers(0, 10, 300), rng.integers(0, 5_000, 300)):
        column_map = fit_lattice(train.astype(float), train[:50].astype(float))
        far = np.array([1e4, 1e6, 1e9, 1e15, 1e30, 1e100, 1e200])
        value = np.concatenate([-far[::-1], far])
        u, log_slope = column_map.forward(value, np.full(len(value), 0.5))
        assert np.isfinite(u).all()
        assert np.isfinite(log_slope).all()
        assert np.all(np.diff(u) > 0)
        assert np.all(np.diff(column_map.inverse(np.linspace(-35.0, 35.0, 701))) > 0)


def test_values_seen_often_have_their_frequency() -> None:
    train = np.repeat([0.0, 1.0, 5.0], [700, 200, 100])
    column_map = fit_lattice(train, train[::10])
    u, log_slope = column_map.forward(np.array([0.0, 1.0, 5.0]), np.full(3, 0.5))
    np.testing.assert_allclose(np.exp(norm.logpdf(u) + log_slope), [0.7, 0.2, 0.1], rtol=0.02)


def test_fresh_rows_of_a_geometric_column_become_standard_normal() -> None:
    rng = np.random.default_rng(1)
    train, validation, fresh = (rng.geometric(0.1, n).astype(float) for n in (16_200, 1_800, 20_000))
    column_map = fit_lattice(train, validation)
    u, log_slope = column_map.forward(fresh, fractions(len(fresh), 2))
    assert kstest(u, norm.cdf).statistic < 0.02
    loss = np.mean(geom.logpmf(fresh, 0.1)) - np.mean(norm.logpdf(u) + log_slope)
    assert loss < 0.01
    # negative control: shift and scale alone do not pass
    assert kstest(fit_standard(train).forward(fresh)[0], norm.cdf).statistic > 0.04


def test_a_small_table_of_integers_leans_on_its_background() -> None:
    rng = np.random.default_rng(3)
    train, validation, fresh = (np.rint(rng.normal(50.0, 20.0, n)) for n in (60, 6, 5_000))
    u, log_slope = fit_lattice(train, validation).forward(fresh, fractions(len(fresh)))
    loss = np.mean(norm.logpdf(fresh, 50.0, 20.0)) - np.mean(norm.logpdf(u) + log_slope)
    assert loss < 0.1


def test_a_long_column_of_different_integers_has_a_short_table() -> None:
    values = np.random.default_rng(0).integers(0, 10**9, 20_000).astype(float)
    assert len(fit_lattice(values[:18_000], values[18_000:]).values) < 100


def test_a_spike_at_zero_is_kept_apart_from_amounts_seen_once() -> None:
    rng = np.random.default_rng(5)

    def sample(n: int) -> np.ndarray:
        return np.where(rng.random(n) < 0.5, 0.0, np.rint(rng.lognormal(8.0, 1.0, n)))

    train, validation, fresh = sample(8_000), sample(900), sample(8_000)
    u, log_slope = fit_lattice(train, validation).forward(fresh, fractions(len(fresh)))
    amount = np.maximum(fresh, 1.0)
    truth = np.log(0.5) + np.where(fresh > 0, norm.logpdf(np.log(amount), 8.0, 1.0) - np.log(amount), 0.0)
    assert np.mean(truth) - np.mean(norm.logpdf(u) + log_slope) < 0.15
    assert kstest(u, norm.cdf).statistic < 0.02


@pytest.mark.parametrize("noise", NOISES)
def test_a_narrower_noise_raises_the_density_by_its_width(noise: Noise) -> None:
    train = np.repeat(np.arange(4.0), 100)
    u, log_slope = fit_lattice(train, train[::9], noise=noise).forward(train, fractions(400))
    wide_u, wide_log_slope = fit_lattice(train, train[::9]).forward(train, fractions(400))
    np.testing.assert_allclose(u, wide_u)
    np.testing.assert_allclose(log_slope, wide_log_slope - np.log(noise.width))


@pytest.mark.parametrize("noise", NOISES)
def test_categories_have_nearly_their_frequencies_and_add_up_to_one(noise: Noise) -> None:
    train = np.repeat(np.arange(4.0), [600, 300, 100, 0])
    column_map = fit_categorical(train, train[::7], n_categories=4, noise=noise)
    u, log_slope = column_map.forward(np.arange(4.0), np.full(4, 0.5))
    mass = np.exp(norm.logpdf(u) + log_slope) * noise.width
    assert mass.sum() == pytest.approx(1.0, abs=1e-12)
    np.testing.assert_allclose(mass, [0.6, 0.3, 0.1, 0.0], atol=0.002)
    assert mass[3] > 0


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(0, 6), min_size=1, max_size=50), st.sampled_from(NOISES))
def test_codes_survive_the_way_there_and_back(codes: list[int], noise: Noise) -> None:
    column_map = fit_categorical(np.array(codes, float), np.array(codes[:5], float), n_categories=7, noise=noise)
    value = np.repeat(np.arange(7.0), 5)
    fraction = np.tile(np.array([1e-6, 0.1, 0.5, 0.9, 1.0 - 1e-6]), 7)
    u, _ = column_map.forward(value, fraction)
    assert np.all(np.diff(u) > 0)
    y = column_map.inverse(u)
    np.testing.assert_allclose(y, noise.add(value, fraction), atol=1e-9)
    assert np.array_equal(column_map.to_value(y), value)


def test_every_normal_number_has_a_category() -> None:
    column_map = fit_categorical(np.zeros(10), np.zeros(2), n_categories=3)
    codes = column_map.to_value(column_map.inverse(np.linspace(-40.0, 40.0, 801)))
    assert set(codes) == {0.0, 1.0, 2.0}
    assert np.array_equal(column_map.to_value(np.array([-9.0, 9.0])), [0.0, 2.0])
