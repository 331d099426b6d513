"""Measures of log-densities against values worked out by hand, by SciPy or by scikit-learn."""

from itertools import combinations, permutations

import numpy as np
import pytest
from scipy import stats

from bayesnde_cli.stages.measures import (
    TYPICAL,
    accuracy_figures,
    baseline_figures,
    gain_figures,
    log_density_figures,
    outlier_figures,
    outlier_score,
    precision_at_k,
    truth_figures,
    typicality_figures,
)

# Log-densities


def test_the_mean_and_the_two_parts_of_its_error() -> None:
    log_density = np.array([-1.0, np.nan, -2.0, -6.0, -np.inf])
    found = log_density_figures(log_density, log_density + 0.5, np.array([0.3, np.nan, 0.0, 0.4, np.inf]))
    assert found == {
        "mean_log_density": -3.0,
        "mean_log_density_se": pytest.approx(np.sqrt((4 + 1 + 9) / 2) / np.sqrt(3)),
        "mean_log_density_mc_se": pytest.approx(0.5 / 3),
        "mean_log_density_scaled": -2.5,
        "mean_log_density_scaled_se": pytest.approx(np.sqrt(7.0) / np.sqrt(3)),
    }
    nothing = np.array([np.nan])
    assert set(log_density_figures(nothing, nothing, nothing).values()) == {None}
    assert log_density_figures(*np.ones((3, 1)))["mean_log_density_se"] is None


def test_the_error_of_a_gain_is_that_of_paired_differences_of_finite_rows() -> None:
    """Rows differ by tens of nats, the two densities by a constant: the gain has no error."""
    log_density = np.random.default_rng(0).normal(-50.0, 20.0, 400)
    found = gain_figures(log_density, log_density - 0.25)
    assert found["gain"] == pytest.approx(0.25)
    assert found["gain_se"] < 1e-12
    assert gain_figures(log_density, log_density[::-1] - 0.25)["gain_se"] > 0.5  # the control: rows in another order
    ours, other = np.array([1.0, -np.inf, np.nan, 3.0, 7.0]), np.array([0.0, -np.inf, 0.0, 1.0, np.nan])
    found = baseline_figures(other, ours)
    assert (found["n"], found["mean_log_density"], found["gain"], found["n_not_finite"]) == (2, 0.5, 1.5, 2)


def test_agreement_with_the_truth_is_scipys() -> None:
    rng = np.random.default_rng(1)
    truth = np.round(rng.normal(size=300), 1)  # with ties
    log_density = truth + rng.normal(0.1, 0.5, 300)
    found = truth_figures(log_density, truth)
    assert found["spearman"] == pytest.approx(stats.spearmanr(log_density, truth).statistic)
    assert found["pearson"] == pytest.approx(stats.pearsonr(log_density, truth).statistic)
    assert found["rmse"] == pytest.approx(np.sqrt(np.mean((log_density - truth) ** 2)))
    assert found["mean_difference"] == pytest.approx(np.mean(log_density) - np.mean(truth))
    constant = truth_figures(np.arange(3.0), np.zeros(3))
    assert (constant["spearman"], constant["pearson"], constant["rmse"]) == (None, None, pytest.approx(np.sqrt(5 / 3)))
    nothing = truth_figures(np.array([np.nan, 1.0]), np.array([1.0, np.nan]))
    assert nothing == {"n": 0, "spearman": None, "pearson": None, "rmse": None, "mean_difference": None}


# Outliers: from the most outlying down, outlier, other, outlier, other, other.
SCORE = np.array([5.0, 4.0, 3.0, 2.0, 1.0])
IS_OUTLIER = np.array([True, False, True, False, False])


def test_outlier_figures_by_hand_and_none_if_all_rows_are_outliers_or_none_is() -> None:
    expected = {"precision_at_k": 1 / 2, "auroc": 5 / 6, "average_precision": (1 / 1 + 2 / 3) / 2}
    assert outlier_figures(SCORE, IS_OUTLIER) == {"n": 5, "n_outliers": 2} | expected  # one of 2 x 3 pairs is wrong
    for is_outlier in (np.zeros(5, bool), np.ones(5, bool)):
        found = outlier_figures(SCORE, is_outlier)
        assert (found.pop("n"), found.pop("n_outliers"), set(found.values())) == (5, is_outlier.sum(), {None})


def test_rows_of_low_density_and_rows_without_a_number_are_outlying() -> None:
    log_density = np.array([-9.0, -1.0, -8.0, -2.0, -0.5])
    assert outlier_figures(outlier_score(log_density), IS_OUTLIER)["auroc"] == 1.0
    assert outlier_figures(outlier_score(-log_density), IS_OUTLIER)["auroc"] == 0.0
    score = outlier_score(np.array([np.nan, -3.0, -np.inf, -1.0, -2.0]))
    assert score.tolist() == [np.inf, 3.0, np.inf, 1.0, 2.0]
    assert outlier_figures(score, IS_OUTLIER)["auroc"] == 1.0


def test_tied_rows_count_as_on_average_over_their_orders() -> None:
    score, is_outlier = np.array([2.0, 1.0, 1.0, 1.0, 0.0]), np.array([False, True, False, True, False])
    orders = [np.array(order) for order in permutations(range(5)) if (np.diff(score[list(order)]) <= 0).all()]
    assert len(orders) == 6
    assert precision_at_k(score, is_outlier, 2) == pytest.approx(np.mean([is_outlier[o][:2].mean() for o in orders]))
    ranks = [outlier_figures(-np.arange(5.0), is_outlier[order])["auroc"] for order in orders]
    assert outlier_figures(score, is_outlier)["auroc"] == pytest.approx(np.mean(ranks))
    assert outlier_figures(np.zeros(5), is_outlier)["auroc"] == 0.5


# Classes


def test_accuracy_and_confusion_of_the_likeliest_class() -> None:
    """A row without a number under some class is wrong, and so is one with two likeliest classes."""
    log_density = np.array([[0.0, -1.0], [-3.0, -1.0], [-3.0, -1.0], [-1.0, np.nan], [-1.0, -1.05], [0.0, 0.0]])
    found = accuracy_figures(log_density, np.full((6, 2), 0.1), np.array([0, 1, 0, 0, 0, 0]), ["a", "b"])
    assert found["accuracy"] == 3 / 6
    interval = stats.binomtest(3, 6).proportion_ci(stats.norm.cdf(2) - stats.norm.cdf(-2), method="wilson")
    assert found["accuracy_se"] == pytest.approx((interval.high - interval.low) / 4)
    matrix = {"classes": ["a", "b"], "counts": [[2, 1], [0, 1]], "n": 6, "n_without_class": 2, "n_close": 1}
    assert found["confusion_matrix"] == matrix
    perfect = accuracy_figures(np.array([[0.0, -1.0]] * 10), np.zeros((10, 2)), np.zeros(10, int), ["a", "b"])
    assert (perfect["accuracy"], perfect["accuracy_se"]) == (1.0, pytest.approx(1 / 14))  # not 0


# Typicality on Gaussians, whose log-density is known


def _typicality(rows_sd: float, n: int = 800, seed: int = 0) -> dict:
    """Rows of one Gaussian in three dimensions under the standard one, next to rows of the latter."""
    rng = np.random.default_rng(seed)
    rows, simulated = (stats.norm.logpdf(rng.normal(0.0, sd, (n, 3))).sum(axis=1) for sd in (rows_sd, 1.0))
    return typicality_figures(rows, simulated)


def test_a_right_model_looks_typical_and_one_too_narrow_or_too_wide_does_not() -> None:
    right = [_typicality(1.0, seed=seed) for seed in range(40)]
    # Two tests at a level of 1 %: five false alarms in 40 happen once in a thousand such tests.
    assert sum(item["verdict"] != TYPICAL for item in right) < 5
    assert np.mean([item["ks_p_value"] for item in right]) == pytest.approx(0.5, abs=0.2)
    narrow, wide = _typicality(1.3), _typicality(0.7)
    assert narrow["verdict"].startswith("rows have lower density than the model's own rows")
    assert narrow["mean_difference"] == pytest.approx(1.5 * (1 - 1.3**2), abs=0.3)
    assert wide["verdict"].startswith("rows have higher density than the model's own rows")
    assert wide["mean_difference"] > 0
    rng = np.random.default_rng(0)
    both = np.concatenate([rng.normal(-4.0, 0.1, 300), rng.normal(4.0, 0.1, 300)])
    assert typicality_figures(both, rng.normal(0.0, 1.0, 600))["verdict"].startswith("densities of rows are spread")


def test_summaries_of_both_samples_and_too_few_rows() -> None:
    values = np.array([*range(101), np.nan, -np.inf], np.float64)
    rows = typicality_figures(values, values[:50])["rows"]
    assert (rows["n"], rows["n_not_finite"], rows["mean"]) == (101, 2, 50.0)
    assert rows["quantiles"] == {"5": 5.0, "25": 25.0, "50": 50.0, "75": 75.0, "95": 95.0}
    few = typicality_figures(np.array([1.0, np.nan]), np.arange(5.0))
    assert (few["verdict"], few["ks"], few["rows"]["sd"]) == ("too few rows to tell", None, None)


def test_rows_below_all_of_the_model_are_counted_with_their_exact_probability() -> None:
    """Every order of 3 rows and 4 simulated ones is equally likely: by hand, over all of them."""
    orders = list(combinations(range(7), 3))  # the ranks of the rows
    n_below = [next((k for k in range(3) if order[k] != k), 3) for order in orders]
    for k in range(4):
        rows = np.concatenate([-1.0 - np.arange(k), 0.5 + np.arange(3 - k)])
        found = typicality_figures(rows, np.arange(4.0))
        assert found["n_below_all"] == k
        assert found["n_below_all_p_value"] == pytest.approx(np.mean(np.array(n_below) >= k))
    assert np.mean(n_below) == pytest.approx(3 / 5)  # n / (m + 1)
    # A heavy lower tail is detected where the Kolmogorov-Smirnov test detects nothing.
    rng = np.random.default_rng(0)
    rows, simulated = rng.normal(size=61), rng.normal(size=1000)
    assert typicality_figures(rows, simulated)["verdict"] == TYPICAL
    rows[:6] = -50.0
    found = typicality_figures(rows, simulated)
    assert found["ks_p_value"] > 0.01
    assert found["n_below_all"] == 6
    assert found["verdict"].startswith("too many rows are less likely than any of the model's own rows")
