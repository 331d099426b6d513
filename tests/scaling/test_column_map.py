"""Maps without a fitted distribution: shift and scale, and the logit of bytes."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import norm

from bayesnde_cli.scaling.column_map import Affine, Logit, Noise, fit_minmax, fit_standard

LEVELS = np.arange(256.0)


def test_standardised_training_values_have_mean_zero_and_sd_one() -> None:
    for shift, sd in ((7.0, 3.0), (1.6e9, 0.5)):  # a large offset keeps its decimals
        y = np.random.default_rng(0).normal(shift, sd, 500)
        column_map = fit_standard(y)
        u, log_slope = column_map.forward(y)
        assert abs(np.mean(u)) < 1e-6
        assert abs(np.std(u) - 1.0) < 1e-6
        truth = norm.logpdf(y, column_map.shift, column_map.scale)
        np.testing.assert_allclose(norm.logpdf(u) + log_slope, truth, rtol=1e-12)


def test_minmax_puts_the_training_values_on_zero_to_one() -> None:
    y = np.random.default_rng(0).normal(7.0, 3.0, 500)
    u, _ = fit_minmax(y).forward(y)
    assert (u.min(), u.max()) == (0.0, 1.0)


def test_a_constant_column_keeps_the_scale_of_the_file() -> None:
    assert fit_standard(np.full(9, 4.0)) == fit_minmax(np.full(9, 4.0)) == Affine(4.0, 1.0)


@given(st.integers(-1000, 1000), st.floats(0.001, 0.999), st.sampled_from([(-0.5, 0.5), (-0.2, 0.2), (0.0, 1.0)]))
def test_a_lattice_value_survives_noise_and_scaling(value: int, fraction: float, bounds: tuple[float, float]) -> None:
    column_map = Affine(3.0, 7.0, Noise(*bounds))
    u, _ = column_map.forward(np.array([value], float), np.array([fraction]))
    assert column_map.to_value(column_map.inverse(u))[0] == value


@given(st.integers(0, 255), st.floats(0.01, 0.99))
def test_the_slope_of_the_logit_is_its_derivative(value: int, fraction: float) -> None:
    step = 1e-6
    ends = [Logit().forward(np.array([float(value)]), np.array([fraction + side * step]))[0] for side in (-1, 1)]
    _, log_slope = Logit().forward(np.array([float(value)]), np.array([fraction]))
    # the slope changes by at most a part in 1e2 per 0.01 of the way to the end, so central differences are good to 1e-6
    assert abs(np.log((ends[1] - ends[0]) / (2 * step)) - log_slope)[0] < 1e-6


@pytest.mark.parametrize("fraction", [2.0**-53, 1e-9, 0.5, 1 - 1e-9, 1 - 2.0**-53])
def test_all_256_values_come_back_from_the_logit_with_their_noise(fraction: float) -> None:
    u, log_slope = Logit().forward(LEVELS, np.full(256, fraction))
    assert np.isfinite(u).all()
    assert np.isfinite(log_slope).all()
    y = Logit().inverse(u)
    np.testing.assert_allclose(y, LEVELS + fraction, rtol=1e-13)
    if 1e-9 <= fraction <= 1 - 1e-9:  # closer to the edge of a cell, rounding may choose the neighbour
        assert np.array_equal(Logit().to_value(y), LEVELS)


def test_both_ends_of_the_logit_have_all_their_digits() -> None:
    tiny = 2.0**-53  # added to 255 it is lost
    low, low_slope = Logit().forward(np.zeros(1), np.array([tiny]))
    high, high_slope = Logit().forward(np.array([255.0]), np.array([1.0 - tiny]))
    assert low[0] == -high[0] == pytest.approx(np.log(tiny / 256), abs=1e-12)
    assert low_slope[0] == high_slope[0] == pytest.approx(-np.log(tiny), abs=1e-12)


def test_a_density_in_the_model_s_space_integrates_to_one_over_all_bytes_and_their_noise() -> None:
    # Cells of 256 values, 64 midpoints in each: the integrand is smooth, and negligible at both ends.
    fraction = (np.arange(64) + 0.5) / 64
    value, share = (part.ravel() for part in np.meshgrid(LEVELS, fraction))
    u, log_slope = Logit().forward(value, share)
    for mean, sd in [(0.0, 1.0), (-2.0, 0.7), (1.5, 0.3)]:
        whole = np.exp(norm.logpdf(u, mean, sd) + log_slope).sum() / 64
        assert whole == pytest.approx(1.0, abs=1e-4)
        # negative control: without the log-slope the sum is another one
        assert np.exp(norm.logpdf(u, mean, sd)).sum() / 64 != pytest.approx(1.0, abs=0.1)


def test_draws_from_the_model_s_space_are_bytes() -> None:
    y = Logit().inverse(np.array([-800.0, -3.0, 0.0, 3.0, 800.0]))
    assert Logit().to_value(y).tolist() == [0.0, 12.0, 128.0, 243.0, 255.0]
    assert Logit().to_value(np.array([-0.1, 256.0, 300.0])).tolist() == [0.0, 255.0, 255.0]
