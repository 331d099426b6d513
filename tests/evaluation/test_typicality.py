"""The typicality check on Gaussians, whose log-density is known: silent if the model is right, loud if it is not."""

from itertools import combinations

import numpy as np
import pytest
from scipy import stats

from bayesnde_cli.evaluation.typicality import TYPICAL, typicality_figures


def _figures(rows_sd: float, model_sd: float = 1.0, n: int = 800, seed: int = 0) -> dict:
    """Rows of one Gaussian in three dimensions under the density of another, beside its own rows."""
    rng = np.random.default_rng(seed)
    model = stats.norm(scale=model_sd)
    rows, simulated = rng.normal(0.0, rows_sd, (n, 3)), model.rvs((n, 3), random_state=rng)
    return typicality_figures(model.logpdf(rows).sum(axis=1), model.logpdf(simulated).sum(axis=1))


def test_rows_of_the_model_itself_look_typical() -> None:
    found = [_figures(1.0, seed=seed) for seed in range(40)]
    # Two tests at a level of 1 %: five false alarms in 40 happen once in a thousand such tests.
    assert sum(item["verdict"] != TYPICAL for item in found) < 5
    assert np.mean([item["ks_p_value"] for item in found]) == pytest.approx(0.5, abs=0.2)


def test_a_model_that_is_too_narrow_or_too_wide_is_told_apart() -> None:
    narrow, wide = _figures(1.3), _figures(0.7)
    assert narrow["verdict"].startswith("rows have lower density than the model's own rows")
    assert narrow["mean_difference"] == pytest.approx(1.5 * (1 - 1.3**2), abs=0.3)
    assert wide["verdict"].startswith("rows have higher density than the model's own rows")
    assert wide["mean_difference"] > 0
    assert min(narrow["ks"], wide["ks"]) > 0.1


def test_a_mixture_of_too_low_and_too_high_is_neither() -> None:
    rng = np.random.default_rng(0)
    rows = np.concatenate([rng.normal(-4.0, 0.1, 300), rng.normal(4.0, 0.1, 300)])
    assert typicality_figures(rows, rng.normal(0.0, 1.0, 600))["verdict"].startswith("densities of rows are spread")


def test_summaries_of_both_samples() -> None:
    values = np.array([*range(101), np.nan, -np.inf], np.float64)
    rows = typicality_figures(values, values[:50])["rows"]
    assert (rows["n"], rows["n_not_finite"], rows["mean"]) == (101, 2, 50.0)
    assert rows["quantiles"] == {"5": 5.0, "25": 25.0, "50": 50.0, "75": 75.0, "95": 95.0}


def test_too_few_rows_are_no_ground_for_a_verdict() -> None:
    found = typicality_figures(np.array([1.0, np.nan]), np.arange(5.0))
    assert (found["verdict"], found["ks"], found["rows"]["sd"]) == ("too few rows to tell", None, None)


def test_rows_below_all_of_the_model_are_counted_with_their_exact_probability() -> None:
    """Every order of 3 rows and 4 simulated ones is equally likely: by hand, over all of them."""
    simulated = np.arange(4.0)
    orders = list(combinations(range(7), 3))  # the places of the rows
    n_below = [next((k for k in range(3) if order[k] != k), 3) for order in orders]
    for k in range(4):
        rows = np.concatenate([-1.0 - np.arange(k), 0.5 + np.arange(3 - k)])
        found = typicality_figures(rows, simulated)
        assert found["n_below_all"] == k
        assert found["n_below_all_p_value"] == pytest.approx(np.mean(np.array(n_below) >= k))
    assert np.mean(n_below) == pytest.approx(3 / 5)  # n / (m + 1)


def test_a_heavy_lower_tail_is_seen_where_kolmogorov_and_smirnov_see_nothing() -> None:
    rng = np.random.default_rng(0)
    rows, simulated = rng.normal(size=61), rng.normal(size=1000)
    assert typicality_figures(rows, simulated)["verdict"] == TYPICAL
    rows[:6] = -50.0
    found = typicality_figures(rows, simulated)
    assert found["ks_p_value"] > 0.01
    assert found["n_below_all"] == 6
    assert found["verdict"].startswith("too many rows are less likely than any of the model's own rows")
