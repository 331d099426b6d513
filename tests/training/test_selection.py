"""The eight diagnostics against SciPy, loops and hand-made cases; which check is selected, on which rows."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scipy.spatial.distance import cdist
from scipy.stats import ks_2samp, wasserstein_distance

from bayesnde_cli.rng import generator
from bayesnde_cli.rows import Rows
from bayesnde_cli.training import generated_rows
from bayesnde_cli.training.generated_rows import DIAGNOSTICS, diagnose, diagnose_by_class, labels_like
from bayesnde_cli.training.selection import best_check, n_misses, rank_checks


def _rows(n_rows: int, p: int, *address: str, shift: float = 0.0, scale: float = 1.0) -> np.ndarray:
    return shift + scale * generator(0, *address).standard_normal((n_rows, p))


@pytest.mark.parametrize("p", [1, 2, 15])
def test_two_samples_of_one_distribution_score_nearly_nil_and_others_worse(p: int) -> None:
    real = _rows(600, p, "real")
    same = diagnose(real, _rows(600, p, "generated"), seed=1)
    assert tuple(same) == DIAGNOSTICS
    # Empty bins weigh in the divergence, unequal neighbours by chance in LISI. The others are of the order of the
    # standard error of a difference of means, sqrt(2/600) = 0.06, of which 0.2 is more than three.
    limits = {"symmetric_kl": 1.5, "one_minus_lisi": 0.07, "correlation_error": 0.06 * np.sqrt(p)}
    assert {name for name, value in same.items() if value > limits.get(name, 0.2)} == set()
    shifted = diagnose(real, _rows(600, p, "generated", shift=1.5, scale=1.5), seed=1)
    worse = set(DIAGNOSTICS) - {"correlation_error"}
    assert {name for name in worse if shifted[name] < 1.5 * same[name] + 0.1} <= {"rbf_mmd"}
    assert shifted["rbf_mmd"] > 10 * same["rbf_mmd"]


def test_dependence_is_seen_by_the_correlation_and_the_joint_diagnostics_alone() -> None:
    real = _rows(800, 2, "real")
    turned = _rows(800, 2, "generated") @ np.array([[1.0, 0.9], [0.0, np.sqrt(0.19)]])
    apart, same = diagnose(real, turned, seed=1), diagnose(real, _rows(800, 2, "generated"), seed=1)
    assert apart["correlation_error"] == pytest.approx(0.9, abs=0.05)
    assert all(apart[name] > 2 * same[name] for name in ("rbf_mmd", "sliced_wasserstein", "one_minus_lisi"))
    assert apart["ks"] < 0.1
    assert apart["one_minus_sd_share"] == 0.0


@pytest.mark.parametrize("decimals", [8, 0])
def test_column_distances_are_those_of_scipy_ties_included(decimals: int) -> None:
    real, generated = np.round(_rows(150, 3, "real"), decimals), np.round(_rows(90, 3, "g", shift=0.3), decimals)
    wasserstein, ks = generated_rows.column_distances(real, generated)
    for j in range(3):
        assert wasserstein[j] == pytest.approx(wasserstein_distance(real[:, j], generated[:, j]), rel=1e-10)
        assert ks[j] == pytest.approx(ks_2samp(real[:, j], generated[:, j]).statistic, rel=1e-10)


def test_the_sliced_distance_is_the_mean_of_scipy_s_over_projections_of_standardised_rows() -> None:
    real, generated = _rows(80, 3, "real", scale=5.0), _rows(120, 3, "generated", shift=1.0)
    pooled = np.concatenate([real, generated])
    x, y = ((rows - pooled.mean(axis=0)) / pooled.std(axis=0) for rows in (real, generated))
    directions = generator(7, "diagnostics", "directions").standard_normal((3, 64))
    directions /= np.linalg.norm(directions, axis=0)
    expected = np.mean([wasserstein_distance(x @ omega, y @ omega) for omega in directions.T])
    assert generated_rows.sliced_distance(real, generated, seed=7) == pytest.approx(expected, rel=1e-10)


def test_the_mmd_is_the_mean_over_three_kernels_around_the_median_distance() -> None:
    real, generated = _rows(40, 3, "real"), _rows(30, 3, "generated", shift=1.0)
    pooled = np.concatenate([real, generated])
    squared = cdist(pooled, pooled) ** 2
    median = np.median(squared[np.triu_indices(len(pooled), k=1)])
    sign = np.concatenate([np.full(40, 1 / 40), np.full(30, -1 / 30)])
    kernels = [np.exp(-squared / (2 * factor * median)) for factor in (0.25, 1.0, 4.0)]
    expected = np.mean([sign @ kernel @ sign for kernel in kernels])
    assert generated_rows.rbf_mmd(real, generated, seed=0) == pytest.approx(expected, rel=1e-5)  # float32


def test_the_mmd_of_many_rows_is_taken_on_a_sample_that_the_seed_fixes() -> None:
    real, generated = _rows(2_500, 2, "real"), _rows(2_100, 2, "generated", shift=0.2)
    found = generated_rows.rbf_mmd(real, generated, seed=0)
    assert found == generated_rows.rbf_mmd(real, generated, seed=0)
    assert found != generated_rows.rbf_mmd(real, generated, seed=1)
    assert found == pytest.approx(generated_rows.rbf_mmd(real[:2000], generated[:2000], seed=0), rel=0.5)


def test_the_symmetric_divergence_is_that_of_the_histograms() -> None:
    real, generated = _rows(900, 2, "real"), _rows(700, 2, "generated", scale=1.3)
    expected = []
    for x, y in zip(real.T, generated.T, strict=True):
        low, high = np.quantile(np.concatenate([x, y]), [0.001, 0.999])
        edges = np.linspace(low, high, 81)
        p, q = ([np.sum((v >= a) & (v < b)) + 1e-12 for a, b in pairwise(edges)] for v in (x, y))
        p[-1] += np.sum(x == high)
        q[-1] += np.sum(y == high)
        p, q = np.array(p) / np.sum(p), np.array(q) / np.sum(q)
        expected.append((np.sum(p * np.log(p / q)) + np.sum(q * np.log(q / p))) / 2)
    assert generated_rows.symmetric_kl(real, generated) == pytest.approx(np.mean(expected), rel=1e-9)


def test_mixing_is_one_for_fair_neighbourhoods_and_nil_for_two_islands() -> None:
    real = _rows(50, 2, "real", scale=0.1)
    assert generated_rows.mixing(real, real + 100.0) == 0.0
    # By brute force, with each row's 30 nearest others.
    generated = _rows(70, 2, "generated", shift=0.1, scale=0.1)
    pooled = np.concatenate([real, generated])
    index = []
    for i, row in enumerate(pooled):
        nearest = [j for j in np.argsort(np.linalg.norm(pooled - row, axis=1), kind="stable") if j != i][:30]
        share = np.mean([j < 50 for j in nearest])
        index.append(1 / (share**2 + (1 - share) ** 2))
    assert generated_rows.mixing(real, generated) == pytest.approx(np.mean(index) - 1, rel=1e-12)


def test_a_standard_deviation_is_reproduced_within_a_quarter() -> None:
    real = _rows(100, 5, "real")
    real[:, 4] = 2.0
    factors = np.array([0.74, 0.76, 1.24, 1.26, 1.0])
    assert generated_rows.sd_share(real, real * factors) == pytest.approx(3 / 5)
    generated = real * factors
    generated[0, 4] += 1.0  # a constant column is not reproduced by one that varies
    assert generated_rows.sd_share(real, generated) == pytest.approx(2 / 5)


def test_degenerate_samples_give_finite_numbers() -> None:
    real = _rows(40, 3, "real")
    real[:, 1] = 0.0
    collapsed = np.tile(real[:1], (50, 1))
    for generated in (collapsed, real.copy(), np.zeros((50, 3)), real[:1]):
        assert np.isfinite(list(diagnose(real, generated, seed=0).values())).all()
    assert max(diagnose(np.zeros((40, 3)), np.zeros((50, 3)), seed=0).values()) <= 1.0


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_model_that_generates_nonsense_comes_last(value: float) -> None:
    real, generated = _rows(40, 2, "real"), _rows(40, 2, "generated")
    broken = generated.copy()
    broken[3, 1] = value
    found = diagnose(real, broken, seed=0)
    assert set(found.values()) == {np.inf}
    assert rank_checks([found, diagnose(real, generated, seed=0)]) == [1.0, 0.0]


def test_classes_are_diagnosed_apart_and_weighted_by_their_share_of_the_real_rows() -> None:
    real, generated = _rows(300, 2, "real"), _rows(200, 2, "generated")
    real_class, generated_class = np.repeat([0, 3], [225, 75]), np.repeat([3, 0], [100, 100])
    real[real_class == 3] += 8.0
    generated[generated_class == 3] += 5.0
    real_y, generated_y = np.eye(4)[real_class], np.eye(4)[generated_class]
    weighted, by_class = diagnose_by_class(real, generated, real_y, generated_y, seed=1)
    assert by_class[3] == diagnose(real[225:], generated[:100], seed=1)
    assert by_class[0] == diagnose(real[:225], generated[100:], seed=1)
    for name in DIAGNOSTICS:
        assert weighted[name] == pytest.approx(0.75 * by_class[0][name] + 0.25 * by_class[3][name])
    assert by_class[3]["ks"] > 0.8 > by_class[0]["ks"]


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])  # times depend on the load of the machine
@given(st.lists(st.lists(st.sampled_from([0.0, 0.5, 1.0, None]), min_size=8, max_size=8), min_size=1, max_size=6))
def test_the_rank_is_the_paper_s_formula_and_none_counts_as_infinite(table: list[list[float | None]]) -> None:
    checks = [dict(zip(DIAGNOSTICS, row, strict=True)) for row in table]
    values = np.array([[np.inf if value is None else value for value in row] for row in table])
    ranks = [np.mean([np.sum(values[:, m] < row[m]) for m in range(8)]) / max(len(table) - 1, 1) for row in values]
    np.testing.assert_allclose(rank_checks(checks), ranks, rtol=1e-12)
    assert best_check(checks, "rank") == int(np.argmin(rank_checks(checks)))
    assert n_misses(checks, "rank", after_round=0) == 0


def _checks(*marginals: float | None) -> list[dict]:
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
def test_the_best_check_is_selected_and_one_that_is_not_finite_never_wins(marginals: tuple, chosen: int) -> None:
    assert best_check(_checks(*marginals), "marginal") == chosen


def test_checks_without_a_gain_are_counted_after_the_warm_up() -> None:
    checks = _checks(1.0, 3.0, 2.0, 2.5)
    assert n_misses(checks, "marginal", after_round=0) == 2
    assert n_misses(checks, "marginal", after_round=3) == 1
    assert n_misses([], "marginal", after_round=0) == 0


def test_a_sample_of_a_sorted_file_has_rows_from_all_over() -> None:
    rows = Rows(np.arange(4000, dtype=np.float32)[:, None])
    sample = rows.sample(400, seed=3)
    assert len(sample) == 400
    assert np.all(np.diff(sample.row_ids) > 0)
    assert abs(float(sample.x.mean()) - 2000.0) < 300.0  # five standard errors; the first 400 rows have 200
    np.testing.assert_array_equal(sample.x[:, 0], sample.row_ids)
    assert len(rows.take(slice(30)).sample(400, seed=3)) == 30


def test_every_class_is_generated_as_often_as_it_is_there_and_once_at_least() -> None:
    y = np.eye(3, dtype=np.float32)[[0] * 990 + [1] * 10]  # the third class is in no validation row
    labels = labels_like(y, 50)
    assert labels is not None
    assert labels.sum(axis=0).tolist() == [50.0, 1.0, 0.0]
    assert labels_like(None, 50) is None
