"""Mean log-densities, agreement with the truth, accuracy: against figures worked out by hand or by SciPy."""

import numpy as np
import pytest
from scipy import stats

from bayesnde_cli.evaluation.classes import accuracy_figures
from bayesnde_cli.evaluation.scores import gain_figures, log_density_figures
from bayesnde_cli.evaluation.truth import truth_figures


def test_the_mean_and_the_two_parts_of_its_error() -> None:
    log_density = np.array([-1.0, -2.0, -6.0])
    found = log_density_figures(log_density, log_density + 0.5, np.array([0.3, 0.0, 0.4]))
    assert found == {
        "mean_log_density": -3.0,
        "mean_log_density_se": pytest.approx(np.sqrt((4 + 1 + 9) / 2) / np.sqrt(3)),
        "mean_log_density_mc_se": pytest.approx(0.5 / 3),
        "mean_log_density_scaled": -2.5,
        "mean_log_density_scaled_se": pytest.approx(np.sqrt(7.0) / np.sqrt(3)),
    }


def test_rows_that_are_not_finite_are_left_out_and_nothing_is_left_of_nothing() -> None:
    log_density = np.array([-1.0, np.nan, -3.0, -np.inf])
    se = np.array([0.1, np.nan, 0.1, np.inf])
    found = log_density_figures(log_density, log_density, se)
    assert found["mean_log_density"] == -2.0
    assert found["mean_log_density_mc_se"] == pytest.approx(np.sqrt(0.02) / 2)
    assert set(log_density_figures(log_density[1:2], log_density[1:2], se[1:2]).values()) == {None}
    assert log_density_figures(log_density[:1], log_density[:1], se[:1])["mean_log_density_se"] is None


def test_the_error_of_a_gain_is_that_of_differences_row_by_row() -> None:
    """Rows differ by tens of nats, the two densities by a constant: the gain has no error."""
    log_density = np.random.default_rng(0).normal(-50.0, 20.0, 400)
    found = gain_figures(log_density, log_density - 0.25)
    assert found["gain"] == pytest.approx(0.25)
    assert found["gain_se"] < 1e-12
    unpaired = gain_figures(log_density, log_density[::-1] - 0.25)
    assert unpaired["gain_se"] > 0.5  # the control: rows that do not belong together


def test_a_gain_is_over_the_rows_where_both_are_finite() -> None:
    found = gain_figures(np.array([1.0, -np.inf, np.nan, 3.0]), np.array([0.0, -np.inf, 0.0, 1.0]))
    assert found["gain"] == 1.5


def test_agreement_with_the_truth_is_scipys() -> None:
    rng = np.random.default_rng(1)
    truth = np.round(rng.normal(size=300), 1)  # with ties
    log_density = truth + rng.normal(0.1, 0.5, 300)
    found = truth_figures(log_density, truth)
    assert found["spearman"] == pytest.approx(stats.spearmanr(log_density, truth).statistic)
    assert found["pearson"] == pytest.approx(stats.pearsonr(log_density, truth).statistic)
    assert found["rmse"] == pytest.approx(np.sqrt(np.mean((log_density - truth) ** 2)))
    assert found["mean_difference"] == pytest.approx(np.mean(log_density) - np.mean(truth))


def test_a_monotone_distortion_is_seen_by_all_but_spearman() -> None:
    truth = np.linspace(-5.0, 0.0, 50)
    found = truth_figures(np.exp(truth), truth)
    assert found["spearman"] == pytest.approx(1.0)
    assert found["pearson"] < 0.9
    assert found["rmse"] > 1.0


def test_a_truth_that_says_nothing_gives_no_figures() -> None:
    constant = truth_figures(np.arange(3.0), np.zeros(3))
    assert (constant["spearman"], constant["pearson"], constant["rmse"]) == (None, None, pytest.approx(np.sqrt(5 / 3)))
    nothing = truth_figures(np.array([np.nan, 1.0]), np.array([1.0, np.nan]))
    assert nothing == {"n": 0, "spearman": None, "pearson": None, "rmse": None, "mean_difference": None}


def test_accuracy_and_confusion_of_the_likeliest_class() -> None:
    log_density = np.array([[0.0, -1.0], [-3.0, -1.0], [-3.0, -1.0], [-1.0, np.nan], [-1.0, -1.05]])
    mc_se = np.array([[0.1, 0.1]] * 5)
    found = accuracy_figures(log_density, mc_se, np.array([0, 1, 0, 0, 0]), ["a", "b"])
    assert found["accuracy"] == 3 / 5  # a row without a number is a mistake
    interval = stats.binomtest(3, 5).proportion_ci(stats.norm.cdf(2) - stats.norm.cdf(-2), method="wilson")
    assert found["accuracy_se"] == pytest.approx((interval.high - interval.low) / 4)
    assert found["confusion_matrix"] == {
        "classes": ["a", "b"],
        "counts": [[2, 1], [0, 1]],
        "n": 5,
        "n_without_class": 1,
        "n_close": 1,
    }


def test_an_accuracy_of_one_has_an_error() -> None:
    found = accuracy_figures(np.array([[0.0, -1.0]] * 10), np.zeros((10, 2)), np.zeros(10, int), ["a", "b"])
    assert found["accuracy"] == 1.0
    assert found["accuracy_se"] == pytest.approx(1 / 14)  # sqrt(1 / 10^2) / (1 + 4 / 10)


def test_a_row_of_equal_densities_has_no_likeliest_class() -> None:
    log_density = np.array([[0.0, 0.0], [0.0, -5.0], [-1.0, 0.0]])
    found = accuracy_figures(log_density, np.zeros((3, 2)), np.array([0, 0, 1]), ["a", "b"])
    assert found["accuracy"] == pytest.approx(2 / 3)
    assert found["confusion_matrix"]["counts"] == [[1, 0], [0, 1]]
    assert found["confusion_matrix"]["n_without_class"] == 1
