"""The mixture as a distribution, and the map through it: exact, monotone, invertible, never without a density."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import norm, t

from bayesnde_cli.data.scaling import MixtureMarginal, Noise, map_from_json
from bayesnde_cli.data.scaling.mixture import Mixture, Tail


@st.composite
def mixtures(draw):
    n_components = draw(st.integers(1, 5))
    reals = st.floats(-5.0, 5.0)
    return Mixture(
        weights=np.array(draw(st.lists(st.floats(0.01, 1.0), min_size=n_components, max_size=n_components))),
        means=np.array(draw(st.lists(reals, min_size=n_components, max_size=n_components))),
        sds=np.array(draw(st.lists(st.floats(0.02, 3.0), min_size=n_components, max_size=n_components))),
        tail=Tail(draw(st.floats(1e-4, 0.5)), draw(reals), draw(st.floats(0.7, 5.0))),
        centre=draw(st.floats(-100.0, 100.0)),
        scale=draw(st.floats(1e-3, 1e3)),
    )


TWO_MODES = Mixture(
    np.array([0.6, 0.4]), np.array([-1.0, 2.0]), np.array([0.3, 0.5]), Tail(0.01, 0.0, 1.0), centre=5.0, scale=2.0
)


def reference(mixture, x):
    """cdf, survival and density by scipy.stats, one component at a time."""
    weights = np.append(mixture.weights, mixture.tail.weight)
    weights = weights / weights.sum()
    places = mixture.centre + mixture.scale * np.append(mixture.means, mixture.tail.centre)
    scales = mixture.scale * np.append(mixture.sds, mixture.tail.scale)
    parts = [norm(place, scale) for place, scale in zip(places[:-1], scales[:-1], strict=True)]
    parts.append(t(2, places[-1], scales[-1]))
    pairs = list(zip(weights, parts, strict=True))
    return [sum(w * getattr(part, name)(x) for w, part in pairs) for name in ("cdf", "sf", "pdf")]


@settings(max_examples=40, deadline=None)
@given(mixtures(), st.lists(st.floats(-30.0, 30.0), min_size=1, max_size=10))
def test_it_agrees_with_scipy_component_by_component(mixture, places):
    x = mixture.centre + mixture.scale * np.array(places)
    cdf, survival, density = reference(mixture, x)
    lower, upper = mixture.tails(x)
    np.testing.assert_allclose(lower, cdf, rtol=1e-8)
    np.testing.assert_allclose(upper, survival, rtol=1e-8)
    np.testing.assert_allclose(np.exp(mixture.log_density(x)), density, rtol=1e-9)


@settings(max_examples=40, deadline=None)
@given(mixtures(), st.lists(st.floats(-1e4, 1e4), min_size=2, max_size=20))
def test_forward_increases_and_inverse_undoes_it(mixture, places):
    x = mixture.centre + mixture.scale * np.sort(np.array(places))
    u, log_slope = mixture.to_normal(x)
    assert np.all(np.diff(u) >= 0)
    # u has 16 digits: where du/dx is small, x cannot have more than that leaves.
    resolution = 1e-15 * (1.0 + np.abs(u)) * np.exp(-log_slope)
    allowed = 1e-9 * (mixture.scale + np.abs(x - mixture.centre)) + 10 * resolution
    assert np.all(np.abs(mixture.from_normal(u) - x) <= allowed)


def test_inverse_does_not_circle_around_a_narrow_mode():
    mixture = Mixture(
        np.array([0.64, 0.09, 0.09]),
        np.zeros(3),
        np.array([1.0, 0.25, 0.03]),
        Tail(0.18, 2.0, 2.0),
        centre=0.0,
        scale=1.0,
    )
    x = np.linspace(-0.2, 0.2, 401)
    np.testing.assert_allclose(mixture.from_normal(mixture.to_normal(x)[0]), x, atol=1e-12)


@settings(max_examples=40, deadline=None)
@given(mixtures(), st.floats(-8.0, 8.0))
def test_the_log_slope_is_the_derivative(mixture, place):
    x = mixture.centre + mixture.scale * place
    step = 1e-4 * mixture.scale * float(mixture.sds.min())
    around = np.array([x - step, x, x + step])
    u, log_slope = mixture.to_normal(around)
    numerical = (u[2] - u[0]) / (around[2] - around[0])
    rounding = 1e-14 / step
    assert np.exp(log_slope[1]) == pytest.approx(numerical, rel=1e-4, abs=rounding)


@settings(max_examples=10, deadline=None)
@given(mixtures())
def test_the_density_integrates_to_one(mixture):
    # Trapezoids in a, x = centre + scale * sinh(a), which reaches 1e8 scales. Around a = 0 a step of 1e-4 is a
    # 200th of the narrowest s.d.; sinh stretches it up to 5 times at the means farthest out.
    a = np.arange(-19.0, 19.0, 1e-4)
    density = np.exp(mixture.log_density(mixture.centre + mixture.scale * np.sinh(a)))
    total = 1e-4 * np.sum(density * mixture.scale * np.cosh(a))
    assert total == pytest.approx(1.0, abs=1e-6)


def test_a_standard_normal_in_u_gives_back_the_density_in_file_units():
    x = np.linspace(-20.0, 30.0, 201)
    u, log_slope = TWO_MODES.to_normal(x)
    np.testing.assert_allclose(norm.logpdf(u) + log_slope, np.log(reference(TWO_MODES, x)[2]), rtol=1e-10)


def test_far_values_are_finite_and_ordered():
    far = 10.0 ** np.arange(1, 290, 4)
    x = 5.0 + np.concatenate([-far[::-1], far])
    u, log_slope = TWO_MODES.to_normal(x)
    assert np.isfinite(u).all()
    assert np.isfinite(log_slope).all()
    assert np.all(np.diff(u) > 0)


def test_the_largest_float_has_a_density():
    largest = np.finfo(float).max
    u, log_slope = TWO_MODES.to_normal(np.array([-largest, largest]))
    assert np.isfinite(u).all()
    assert np.isfinite(log_slope).all()


def test_inverse_is_stable_far_out():
    u = np.linspace(-35.0, 35.0, 701)
    x = TWO_MODES.from_normal(u)
    assert np.all(np.diff(x) > 0)
    np.testing.assert_allclose(TWO_MODES.to_normal(x)[0], u, atol=1e-11)


def test_the_mass_of_a_cell_is_the_difference_of_the_distribution_function():
    v = np.arange(-40.0, 50.0)
    lower, upper = TWO_MODES.tails(v - 0.5)
    lower_end, upper_end = TWO_MODES.tails(v + 0.5)
    difference = np.where(v < 5, lower_end - lower, upper - upper_end)
    np.testing.assert_allclose(np.exp(TWO_MODES.log_mass(v)), difference, rtol=1e-9)


def test_the_mass_of_a_cell_is_finite_far_out_and_in_wide_columns():
    assert np.isfinite(TWO_MODES.log_mass(np.array([-1e200, -1e15, 1e12, 1e16]))).all()
    wide = TWO_MODES._replace(scale=1e13)
    v = np.array([-3e13, 0.0, 2e13])
    np.testing.assert_allclose(wide.log_mass(v), wide.log_density(v))


def test_stored_and_read_back_it_gives_the_same_bits():
    column_map = MixtureMarginal(TWO_MODES, Noise(-1.0, 1.0))
    again = map_from_json(json.loads(json.dumps(column_map.to_json())))
    value, fraction = np.arange(-5.0, 20.0), np.linspace(0.01, 0.99, 25)
    for ours, theirs in zip(column_map.forward(value, fraction), again.forward(value, fraction), strict=True):
        assert np.array_equal(ours, theirs)
    assert np.array_equal(column_map.inverse(fraction), again.inverse(fraction))


def test_a_map_of_many_rows_equals_the_map_of_each_row():
    x = np.random.default_rng(0).normal(5.0, 3.0, 40_000)  # more than two chunks
    u, log_slope = TWO_MODES.to_normal(x)
    rows = [0, 16_383, 16_384, 39_999]
    one_by_one = [TWO_MODES.to_normal(x[row : row + 1]) for row in rows]
    np.testing.assert_allclose(u[rows], [pair[0][0] for pair in one_by_one], rtol=1e-14)
    np.testing.assert_allclose(log_slope[rows], [pair[1][0] for pair in one_by_one], rtol=1e-12)


def test_no_rows_give_no_rows():
    assert [len(part) for part in TWO_MODES.to_normal(np.empty(0))] == [0, 0]
    assert len(TWO_MODES.from_normal(np.empty(0))) == 0
