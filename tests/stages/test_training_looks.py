"""Looks at validation rows: which rows, which figures, which look is chosen."""

import numpy as np
import pytest

from bayesnde_cli.stages.training.looks import chosen_look, n_misses
from bayesnde_cli.stages.training.rows import Rows, labels_like
from bayesnde_cli.training.diagnostics import DIAGNOSTICS


def _looks(*marginals: float | None) -> list[dict]:
    return [{"round": index + 1, "marginal": value, "plug_in": 0.0} for index, value in enumerate(marginals)]


@pytest.mark.parametrize(
    ("marginals", "chosen"),
    [
        ((1.0, 3.0, 2.0), 1),
        ((1.0, 1.0005, 1.0009), 0),  # within the noise
        ((None, 1.0), 1),
        ((1.0, None), 0),
        ((None, None), 0),
        ((2.0,), 0),
    ],
)
def test_the_best_look_is_chosen_and_one_that_is_not_finite_never_wins(marginals: tuple, chosen: int) -> None:
    assert chosen_look(_looks(*marginals), "marginal") == chosen


def test_the_rank_chooses_the_smallest_diagnostics_and_none_counts_as_infinite() -> None:
    looks = [dict.fromkeys(DIAGNOSTICS, value) for value in (2.0, 1.0, None)]
    assert chosen_look(looks, "rank") == 1
    assert n_misses(looks, "rank", after_round=0) == 0


def test_looks_without_a_gain_are_counted_after_the_warm_up() -> None:
    looks = _looks(1.0, 3.0, 2.0, 2.5)
    assert n_misses(looks, "marginal", after_round=0) == 2
    assert n_misses(looks, "marginal", after_round=3) == 1
    assert n_misses([], "marginal", after_round=0) == 0


def _sorted_rows(n: int) -> Rows:
    x = np.arange(n, dtype=np.float32)[:, None]
    y = np.eye(2, dtype=np.float32)[(np.arange(n) >= n // 2).astype(int)]
    return Rows(np.arange(n), x, np.zeros(n), y)


def test_a_sample_of_a_sorted_file_has_rows_from_all_over() -> None:
    sample = _sorted_rows(4000).sample(400, seed=3)
    assert len(sample.x) == 400
    assert np.all(np.diff(sample.row_ids) > 0)
    assert abs(float(sample.x.mean()) - 2000.0) < 300.0  # five standard errors; the first 400 rows have 200
    assert sample.y is not None
    assert 0.35 < sample.y[:, 1].mean() < 0.65
    np.testing.assert_array_equal(sample.x[:, 0], sample.row_ids)
    assert len(_sorted_rows(30).sample(400, seed=3).x) == 30


def test_every_class_is_generated_as_often_as_it_is_there_and_once_at_least() -> None:
    y = np.eye(3, dtype=np.float32)[[0] * 990 + [1] * 10]  # the third class is in no validation row
    labels = labels_like(y, 50)
    assert labels is not None
    assert labels.sum(axis=0).tolist() == [50.0, 1.0, 0.0]
    assert labels_like(None, 50) is None
