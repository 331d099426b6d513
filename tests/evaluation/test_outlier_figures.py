"""Outlier figures against counts by hand, scikit-learn, and averages over the orders of tied rows."""

from itertools import permutations

import numpy as np
import pytest
from sklearn.metrics import average_precision_score, roc_auc_score

from bayesnde_cli.evaluation.outliers import auroc, average_precision, outlier_figures, outlier_score, precision_at_k

# From the most outlying down: outlier, other, outlier, other, other.
SCORE = np.array([5.0, 4.0, 3.0, 2.0, 1.0])
IS_OUTLIER = np.array([True, False, True, False, False])


def test_figures_by_hand() -> None:
    assert outlier_figures(SCORE, IS_OUTLIER) == {
        "n": 5,
        "n_outliers": 2,
        "precision_at_k": 1 / 2,
        "auroc": 5 / 6,  # of 2 x 3 pairs, one is the wrong way round
        "average_precision": (1 / 1 + 2 / 3) / 2,
    }


def test_the_larger_the_score_the_more_outlying() -> None:
    """PyOD's orientation: rows of low density are outliers. The other way round, AUROC is its complement."""
    log_density = np.array([-9.0, -1.0, -8.0, -2.0, -0.5])
    assert outlier_figures(outlier_score(log_density), IS_OUTLIER)["auroc"] == 1.0
    assert outlier_figures(outlier_score(-log_density), IS_OUTLIER)["auroc"] == 0.0


def test_large_tables_agree_with_scikit_learn() -> None:
    rng = np.random.default_rng(0)
    is_outlier = rng.uniform(size=500) < 0.1
    score = np.round(rng.normal(size=500) + is_outlier, 1)  # with many ties
    assert auroc(score, is_outlier) == pytest.approx(roc_auc_score(is_outlier, score))
    assert average_precision(score, is_outlier) == pytest.approx(average_precision_score(is_outlier, score))


def test_tied_rows_count_as_on_average_over_their_orders() -> None:
    score, is_outlier = np.array([2.0, 1.0, 1.0, 1.0, 0.0]), np.array([False, True, False, True, False])
    orders = [np.array(order) for order in permutations(range(5)) if (np.diff(score[list(order)]) <= 0).all()]
    precisions = [is_outlier[order][:2].mean() for order in orders]
    ranks = [auroc(-np.arange(5.0), is_outlier[order]) for order in orders]
    assert len(orders) == 6
    assert precision_at_k(score, is_outlier, 2) == pytest.approx(np.mean(precisions))
    assert auroc(score, is_outlier) == pytest.approx(np.mean(ranks))
    assert auroc(np.zeros(5), is_outlier) == 0.5


def test_a_row_without_a_number_is_as_outlying_as_can_be() -> None:
    score = outlier_score(np.array([np.nan, -3.0, -np.inf, -1.0, -2.0]))
    assert score.tolist() == [np.inf, 3.0, np.inf, 1.0, 2.0]
    assert outlier_figures(score, IS_OUTLIER)["auroc"] == 1.0


def test_all_outliers_or_none_give_no_figures() -> None:
    for is_outlier in (np.zeros(5, bool), np.ones(5, bool)):
        found = outlier_figures(SCORE, is_outlier)
        assert (found.pop("n"), found.pop("n_outliers")) == (5, is_outlier.sum())
        assert set(found.values()) == {None}
