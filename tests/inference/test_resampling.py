"""Draws of a proposal that are turned into draws of its target."""

import numpy as np
import pytest

from bayesnde_cli.inference.resampling import resampled


def test_draws_are_taken_by_their_share_of_the_weights():
    z = np.arange(4, dtype=np.float32).reshape(1, 4, 1)
    taken = resampled(z, np.log([[1.0, 3.0, 4.0, 2.0]]), 10)
    assert taken[0, :, 0].tolist() == [0.0] + [1.0] * 3 + [2.0] * 4 + [3.0] * 2


def test_draws_of_a_wide_normal_become_those_of_a_narrow_one():
    rng = np.random.Generator(np.random.Philox(key=5))
    z = (3.0 * rng.standard_normal((2, 20_000, 1))).astype(np.float32)
    means = np.array([[0.0], [1.0]])
    log_pi = -0.5 * (z[:, :, 0] - means) ** 2
    taken = resampled(z, log_pi + z[:, :, 0] ** 2 / 18.0 - 500.0, 5_000)[:, :, 0]
    np.testing.assert_allclose(taken.mean(axis=1), means[:, 0], atol=0.05)
    np.testing.assert_allclose(taken.std(axis=1), 1.0, atol=0.05)
    assert resampled(z, np.zeros((2, 20_000)), 5_000).std() > 2.5, "without weights they stay as wide as they were"


def test_a_draw_that_the_proposal_hardly_makes_does_not_stand_for_all():
    log_ratios = np.zeros((1, 100))
    log_ratios[0, 7] = np.log(1000.0)  # 91 % of the weight
    taken = resampled(np.arange(100, dtype=np.float32).reshape(1, 100, 1), log_ratios, 100)[0, :, 0]
    assert 0.5 < (taken == 7.0).mean() < 0.55


@pytest.mark.parametrize("bad", [np.nan, -np.inf, np.inf])
def test_draws_without_a_finite_weight_are_never_taken(bad):
    z = np.arange(6, dtype=np.float32).reshape(2, 3, 1)
    log_ratios = np.array([[0.0, bad, 0.0], [bad, bad, bad]])
    taken = resampled(z, log_ratios, 4)
    assert taken[0, :, 0].tolist() == [0.0, 0.0, 2.0, 2.0]
    assert np.isnan(taken[1]).all(), "a row without any is no draw"
