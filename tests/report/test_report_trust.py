"""The answer to the first question, and the advice: good, middling and bad cases."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from report_samples import HOSTILE, full_data, metrics, training, with_metrics

from bayesnde_cli.report.advice import advise
from bayesnde_cli.report.check import Cause, Level
from bayesnde_cli.report.page import render
from bayesnde_cli.report.report_data import DoubtfulColumns, ReportData, Subject
from bayesnde_cli.report.trust import judge


def _commands(data: ReportData) -> list[str]:
    return [command for item in advise(judge(data), data) for command in item.commands]


def _check(data: ReportData, subject: str) -> Any:
    (found,) = [check for check in judge(data).checks if check.subject == subject]
    return found


def _rows(**verdicts: int) -> dict[str, Any]:
    named = {name.replace("_", " "): n for name, n in verdicts.items()}
    return {"n": sum(named.values()), "n_reliable": named.get("reliable", 0), "verdicts": named}


def test_a_good_run_is_trusted_and_told_what_it_is_good_for() -> None:
    data = full_data()
    assert judge(data).level is Level.GOOD
    assert "Yes.</strong> These densities can be trusted." in render(data)
    assert _commands(data) == [
        "bayesnde density new.csv --run results",
        "bayesnde outliers --top 20 --run results",
        "bayesnde sample 1000 --run results",
    ]


@pytest.mark.parametrize(
    ("verdicts", "level", "cause"),
    [
        ({"reliable": 99, "chains_disagree": 1}, Level.GOOD, Cause.ESTIMATES),
        ({"reliable": 95, "chains_disagree": 5}, Level.FAIR, Cause.ESTIMATES),
        ({"reliable": 80, "modes_may_be_missing": 20}, Level.POOR, Cause.ESTIMATES),
        # Sound estimates with wide errors are never a reason to distrust all.
        ({"reliable": 50, "error_above_target": 50}, Level.FAIR, Cause.PRECISION),
    ],
)
def test_unreliable_rows_lower_the_trust(verdicts: dict[str, int], level: Level, cause: Cause) -> None:
    check = _check(with_metrics(rows=_rows(**verdicts)), "Each number")
    assert (check.level, check.cause) == (level, cause)


def test_the_words_of_a_doubtful_run_name_the_rows_and_the_command() -> None:
    data = with_metrics(rows=_rows(reliable=95, chains_disagree=5))
    text = render(data)
    assert "Mostly.</strong> These densities can be used, with the care named below." in text
    assert "95 of 100 rows (95\u00a0%) are reliable" in text
    assert "The others: 5 chains disagree." in text
    assert "bayesnde density --run results --restart --chains 8 --warm-up 400 --draws 400" in _commands(data)


def _beside(gain: float, se: float, gaussian_gain: float = 1.0) -> ReportData:
    return with_metrics(baselines={
        "gaussian": {"mean_log_density": -4.0 - gaussian_gain, "gain": gaussian_gain, "gain_se": 0.1},
        "kernel_density": {"mean_log_density": -4.0 - gain, "gain": gain, "gain_se": se},
    })  # fmt: skip


def test_the_comparison_is_with_the_best_baseline_and_its_own_error() -> None:
    assert _check(_beside(0.3, 0.1), "Comparison").text.startswith("Better than the best of 2 plain estimators (kernel")
    equal = _check(_beside(-0.1, 0.1), "Comparison")
    assert equal.level is Level.GOOD
    assert "below it, within the error" in equal.text
    assert _check(_beside(-0.3, 0.1), "Comparison").level is Level.FAIR
    assert _check(_beside(-1.5, 0.1), "Comparison").level is Level.POOR
    assert _check(_beside(-0.3, 0.1, gaussian_gain=-0.4), "Comparison").level is Level.POOR


def test_a_model_that_a_gaussian_beats_is_not_trusted_and_is_to_be_trained_again() -> None:
    data = _beside(-2.0, 0.1, gaussian_gain=-2.0)
    assert "No.</strong> Do not rely on these densities yet." in render(data)
    assert _commands(data) == [
        "bayesnde warmstart --run results --restart --width 512",
        "bayesnde refine --run results --restart",
        "bayesnde density --run results --restart",
        "bayesnde evaluate --run results --restart",
    ]


def test_a_model_that_was_trained_briefly_is_to_be_trained_fully() -> None:
    data = replace(_beside(-2.0, 0.1), settings={"warmstart": {"epochs": 30, "width": 128}})
    assert _commands(data)[0] == "bayesnde warmstart --run results --restart"


def test_a_model_that_was_still_gaining_is_to_be_trained_longer() -> None:
    data = replace(_beside(-0.3, 0.1), training=(training("warmstart"), training("refine", chosen=3)))
    assert "bayesnde refine --run results --restart --epochs 60" in _commands(data)


def test_untypical_rows() -> None:
    def of(p_value: float, ks: float) -> Level:
        found = metrics()["typicality"] | {"ks_p_value": p_value, "ks": ks, "verdict": "rows have lower density"}
        return _check(with_metrics(typicality=found), "Typical rows").level

    assert of(0.02, 0.3) is Level.GOOD
    assert of(1e-6, 0.1) is Level.FAIR  # many rows make a small difference certain
    assert of(1e-6, 0.3) is Level.POOR


def test_rows_far_below_the_validation_rows() -> None:
    near, far, very_far = (with_metrics(mean_log_density=mean) for mean in (-4.3, -4.6, -5.5))
    levels = [_check(data, "Against validation rows").level for data in (near, far, very_far)]
    assert levels == [Level.GOOD, Level.FAIR, Level.POOR]
    other = replace(very_far, subject=replace(very_far.subject, set_name="new-1a2b", data_argument="new.csv"))
    assert Cause.OTHER_ROWS in judge(other).causes


def test_training_rows_known_by_heart() -> None:
    rng = np.random.default_rng(0)
    seen = {"train": rng.normal(-3.0, 1.0, 500), "validation": rng.normal(-4.0, 1.0, 200)}
    check = _check(replace(full_data(), seen_log_density=seen), "Learnt, not memorised")
    assert (check.level, check.cause) == (Level.FAIR, Cause.OVERFIT)


def test_small_tables_are_named_as_such() -> None:
    def of(**changed: Any) -> Level:
        data = full_data()
        return _check(replace(data, subject=replace(data.subject, **changed)), "Size").level

    assert of(n_train=150) is Level.FAIR
    assert of(n_rows=20) is Level.FAIR
    assert of(n_train=600, classes=("a", "b", "c", "d")) is Level.FAIR
    assert of(n_train=2000, n_features=90) is Level.GOOD
    assert of(n_train=2000, n_features=110) is Level.FAIR


def test_the_truth_counts_where_it_is_known() -> None:
    def of(spearman: float, difference: float) -> Level:
        return _check(with_metrics(truth={"spearman": spearman, "mean_difference": difference}), "Truth").level

    assert of(0.98, -0.05) is Level.GOOD
    assert of(0.98, -0.3) is Level.FAIR
    assert of(0.5, 0.0) is Level.POOR


def test_a_set_that_was_not_evaluated_is_not_trusted_blindly() -> None:
    data = ReportData(Subject("t", "new-1a2b", "now", run_option="--run r", data_argument="'a b.csv'"))
    assert judge(data).level is Level.FAIR
    assert _commands(data)[0] == "bayesnde evaluate 'a b.csv' --run r"


def test_columns_without_a_density_are_named_and_the_table_comes_before_all_else() -> None:
    doubtful = DoubtfulColumns(spikes=(("a", 0.2), (HOSTILE, 0.9)), linear=(("b c", ("x", "y")),))
    subject = replace(full_data().subject, table_argument="t.csv")
    settings = {"prepare": {"condition": "k", "drop": ["id"]}}
    data = replace(full_data(), doubtful=doubtful, subject=subject, settings=settings)
    assert judge(data).level is Level.FAIR
    assert _check(data, "Spikes").text.startswith(
        f"In 2 continuous columns one value recurs in many rows: {HOSTILE} (90"
    )
    assert "1 column is nearly a linear function of others: b c (of x, y)." in _check(data, "Linear columns").text
    command = "bayesnde fit t.csv --condition k --drop id --drop 'b c' --run results --restart"
    assert _commands(data)[0] == command
