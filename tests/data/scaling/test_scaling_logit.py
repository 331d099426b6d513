"""The logit of bytes: exact slope, exact way back, and a density that is one."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import norm

from bayesnde_cli.data.scaling import Logit, map_from_json

LEVELS = np.arange(256.0)


@given(st.integers(0, 255), st.floats(0.01, 0.99))
def test_the_slope_is_the_derivative(value, fraction):
    step = 1e-6
    ends = [Logit().forward(np.array([float(value)]), np.array([fraction + side * step]))[0] for side in (-1, 1)]
    _, log_slope = Logit().forward(np.array([float(value)]), np.array([fraction]))
    # the slope changes by at most a part in 1e2 per 0.01 of the way to the end, so central differences are good to 1e-6
    assert abs(np.log((ends[1] - ends[0]) / (2 * step)) - log_slope)[0] < 1e-6


@pytest.mark.parametrize("fraction", [2.0**-53, 1e-9, 0.5, 1 - 1e-9, 1 - 2.0**-53])
def test_all_256_values_come_back_with_their_noise(fraction):
    u, log_slope = Logit().forward(LEVELS, np.full(256, fraction))
    assert np.isfinite(u).all()
    assert np.isfinite(log_slope).all()
    y = Logit().inverse(u)
    np.testing.assert_allclose(y, LEVELS + fraction, rtol=1e-13)
    if 1e-9 <= fraction <= 1 - 1e-9:  # closer to the edge of a cell, rounding may choose the neighbour
        assert np.array_equal(Logit().to_value(y), LEVELS)


def test_both_ends_have_all_their_digits():
    tiny = 2.0**-53  # beside 255 it is lost
    low, low_slope = Logit().forward(np.zeros(1), np.array([tiny]))
    high, high_slope = Logit().forward(np.array([255.0]), np.array([1.0 - tiny]))
    assert low[0] == -high[0] == pytest.approx(np.log(tiny / 256), abs=1e-12)
    assert low_slope[0] == high_slope[0] == pytest.approx(-np.log(tiny), abs=1e-12)


def test_a_density_of_the_model_s_space_is_one_over_all_bytes_and_their_noise():
    # Cells of 256 values, 64 midpoints in each: the integrand is smooth, and next to nothing at both ends.
    fraction = (np.arange(64) + 0.5) / 64
    value, share = (part.ravel() for part in np.meshgrid(LEVELS, fraction))
    u, log_slope = Logit().forward(value, share)
    for mean, sd in [(0.0, 1.0), (-2.0, 0.7), (1.5, 0.3)]:
        whole = np.exp(norm.logpdf(u, mean, sd) + log_slope).sum() / 64
        assert whole == pytest.approx(1.0, abs=1e-4)
        # negative control: without the noise's share of the cell the sum would be another one
        assert np.exp(norm.logpdf(u, mean, sd)).sum() / 64 != pytest.approx(1.0, abs=0.1)


def test_draws_of_the_model_s_space_are_bytes():
    y = Logit().inverse(np.array([-800.0, -3.0, 0.0, 3.0, 800.0]))
    assert Logit().to_value(y).tolist() == [0.0, 12.0, 128.0, 243.0, 255.0]
    assert Logit().to_value(np.array([-0.1, 256.0, 300.0])).tolist() == [0.0, 255.0, 255.0]


@pytest.mark.parametrize("value", [-1.0, 256.0, 0.5, np.nan])
def test_other_values_have_no_density(value):
    with pytest.raises(ValueError, match=f"expected a whole number from 0 to 255, got {value:g}"):
        Logit().forward(np.array([3.0, value]), np.full(2, 0.5))


def test_it_survives_json():
    stored = json.loads(json.dumps(Logit().to_json()))
    assert stored == {"kind": "logit"}
    assert map_from_json(stored) == Logit()
