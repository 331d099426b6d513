"""Shift and scale."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import norm

from bayesnde_cli.data.scaling import Affine, Noise, fit_minmax, fit_none, fit_standard, map_from_json


def test_standardised_training_values_have_mean_zero_and_sd_one():
    y = np.random.default_rng(0).normal(7.0, 3.0, 500)
    u, _ = fit_standard(y).forward(y)
    assert abs(np.mean(u)) < 1e-8
    assert abs(np.std(u) - 1.0) < 1e-8


def test_minmax_puts_the_training_values_on_zero_to_one():
    y = np.random.default_rng(0).normal(7.0, 3.0, 500)
    u, _ = fit_minmax(y).forward(y)
    assert (u.min(), u.max()) == (0.0, 1.0)


def test_no_scaling_is_the_identity():
    y = np.array([-2.0, 0.0, 1e6])
    u, log_slope = fit_none().forward(y)
    assert np.array_equal(u, y)
    assert np.array_equal(log_slope, np.zeros(3))


def test_a_standard_normal_in_u_is_the_gaussian_in_file_units():
    y = np.random.default_rng(1).normal(7.0, 3.0, 500)
    column_map = fit_standard(y)
    u, log_slope = column_map.forward(y)
    truth = norm.logpdf(y, column_map.shift, column_map.scale)
    np.testing.assert_allclose(norm.logpdf(u) + log_slope, truth, rtol=1e-12)


def test_a_large_offset_keeps_its_decimals():
    y = 1.6e9 + np.random.default_rng(2).normal(0.0, 0.5, 500)
    u, _ = fit_standard(y).forward(y)
    assert abs(np.mean(u)) < 1e-6


def test_a_constant_column_keeps_the_scale_of_the_file():
    assert fit_standard(np.full(9, 4.0)) == Affine(4.0, 1.0)
    assert fit_minmax(np.full(9, 4.0)) == Affine(4.0, 1.0)


@given(st.integers(-1000, 1000), st.floats(0.001, 0.999), st.sampled_from([(-0.5, 0.5), (-0.2, 0.2), (0.0, 1.0)]))
def test_a_lattice_value_survives_noise_and_scaling(value, fraction, bounds):
    column_map = Affine(3.0, 7.0, Noise(*bounds))
    u, _ = column_map.forward(np.array([value], float), np.array([fraction]))
    assert column_map.to_value(column_map.inverse(u))[0] == value


@settings(max_examples=30)
@given(st.floats(-1e6, 1e6), st.floats(1e-6, 1e6))
def test_stored_and_read_back_it_gives_the_same_bits(shift, scale):
    column_map = Affine(shift, scale)
    again = map_from_json(json.loads(json.dumps(column_map.to_json())))
    assert again == column_map


def test_a_scale_that_is_not_positive_is_refused():
    with pytest.raises(ValueError, match="expected a positive scale, got 0"):
        Affine(0.0, 0.0)


def test_fractions_are_given_if_and_only_if_there_is_noise():
    with pytest.raises(ValueError, match="has no noise"):
        Affine(0.0, 1.0).forward(np.zeros(2), np.full(2, 0.5))
    with pytest.raises(ValueError, match="has noise"):
        Affine(0.0, 1.0, Noise()).forward(np.zeros(2))


def test_an_unknown_kind_of_map_is_refused():
    with pytest.raises(ValueError, match="got 'spline'"):
        map_from_json({"kind": "spline"})
