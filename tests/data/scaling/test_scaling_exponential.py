"""The exponential that has the same bits everywhere."""

import numpy as np

from bayesnde_cli.data.scaling.exponential import portable_exp


def test_it_is_the_exponential_to_its_stated_error():
    x = -np.linspace(0.0, 40.0, 100_001)
    assert np.max(np.abs(portable_exp(x) / np.exp(x) - 1.0)) < 1.3e-9


def test_it_never_increases_towards_minus_infinity():
    x = -np.linspace(0.0, 50.0, 100_001)
    assert np.all(np.diff(portable_exp(x)) <= 0)


def test_far_arguments_count_as_minus_forty_and_the_input_is_left_alone():
    x = np.array([-41.0, -1e300, 0.0])
    np.testing.assert_allclose(portable_exp(x), [np.exp(-40.0), np.exp(-40.0), 1.0], rtol=1e-9)
    assert np.array_equal(x, [-41.0, -1e300, 0.0])
