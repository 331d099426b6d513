"""The answer to the first question, and the advice: good, middling and bad cases."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from report_samples import HOSTILE, full_data, metrics, training, with_metrics

from bayesnde_cli.inference import verdicts
from bayesnde_cli.report import trust
from bayesnde_cli.report.advice import advise
from bayesnde_cli.report.check import Cause, Level
from bayesnde_cli.report.outlier_check import auroc_error
from bayesnde_cli.report.page import render
from bayesnde_cli.report.report_data import DoubtfulColumns, ReportData, Subject
from bayesnde_cli.report.sections import errors
from bayesnde_cli.report.trust import judge


def _commands(data: ReportData) -> list[str]:
    return [command for item in advise(judge(data), data) for command in item.commands]


def _check(data: ReportData, subject: str) -> Any:
    (found,) = [check for check in judge(data).checks if check.subject == subject]
    return found


def _rows(**verdicts: int) -> dict[str, Any]:
    named = {name.replace("_", " "): n for name, n in verdicts.items()}
    return {"n": sum(named.values()), "n_reliable": named.get("reliable", 0), "verdicts": named}


@pytest.mark.parametrize(
    ("auroc", "rival", "n", "level", "words"),
    [
        (0.90, 0.85, 300, Level.GOOD, "AUROC of 0.90 (1 finds all, 0.5 is chance)."),
        (0.63, 0.92, 183, Level.FAIR, "The best of 2 other estimators (isolation forest) has 0.92."),
        (0.80, 0.92, 60, Level.GOOD, "AUROC of 0.80 (1 finds all, 0.5 is chance)."),  # of so few it may be chance
        (0.58, 0.60, 183, Level.FAIR, "That may be chance."),
        (0.20, 0.55, 183, Level.FAIR, "The best of 2 other estimators"),
    ],
)
def test_outliers_that_others_find_better_are_told_of(
    auroc: float, rival: float, n: int, level: Level, words: str
) -> None:
    figures = {"n": n, "n_outliers": n // 10, "auroc": auroc, "precision_at_k": 0.1, "average_precision": 0.1}
    rivals = metrics()["baselines"]
    rivals["isolation_forest"]["outliers"]["auroc"] = rival
    rivals["gaussian"]["outliers"]["auroc"] = 0.5
    data = with_metrics(outliers=figures, baselines=rivals)
    check = _check(data, "Outliers")
    assert (check.level, words in check.text) == (level, True)
    told = any("take the estimator that finds them best" in item.text for item in advise(judge(data), data))
    assert told is (level is Level.FAIR)


def test_the_error_of_an_auroc_is_what_other_rows_would_change() -> None:
    rng = np.random.default_rng(0)
    found = []
    for _ in range(4000):  # exponential scores, for which the formula is exact
        others, outliers = rng.exponential(size=60), rng.exponential(3.0, size=20)
        found.append((outliers[:, None] > others).mean())
    assert auroc_error(0.75, 20, 60) == pytest.approx(np.std(found), rel=0.05)
    assert auroc_error(0.75, 5, 60) > 1.5 * auroc_error(0.75, 20, 60)


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
    ("found", "level", "cause"),
    [
        ({"reliable": 99, "chains_disagree": 1}, Level.GOOD, Cause.ESTIMATES),
        ({"reliable": 95, "chains_disagree": 5}, Level.FAIR, Cause.ESTIMATES),
        ({"reliable": 80, "modes_may_be_missing": 20}, Level.POOR, Cause.ESTIMATES),
        # Sound estimates with wide errors are never a reason to distrust all.
        ({"reliable": 50, "error_above_target": 50}, Level.FAIR, Cause.PRECISION),
        # Where many rows are in doubt, wide errors of others are not all there is to say.
        ({"reliable": 70, "chains_disagree": 12, "error_above_target": 18}, Level.POOR,
         Cause.ESTIMATES | Cause.PRECISION),
        ({"reliable": 83, "chains_disagree": 12, "error_above_target": 5}, Level.POOR, Cause.ESTIMATES),
    ],
)  # fmt: skip
def test_unreliable_rows_lower_the_trust(found: dict[str, int], level: Level, cause: Cause) -> None:
    check = _check(with_metrics(rows=_rows(**found)), "Each number")
    assert (check.level, check.cause) == (level, cause)


def test_the_page_and_the_engine_have_the_same_words() -> None:
    every = {word for name, word in vars(verdicts).items() if name.isupper() and isinstance(word, str)}
    assert set(verdicts.VERDICTS) == every
    assert {*trust._SOUND, trust._WIDE, *errors._COLOURS} <= every


def test_errors_above_a_nat_count_as_doubt() -> None:
    rows = _rows(reliable=50, error_above_target=50, chains_disagree=0)
    check = _check(with_metrics(rows=rows | {"n_above_1_nat": 20}), "Each number")
    assert (check.level, check.cause) == (Level.POOR, Cause.ESTIMATES | Cause.PRECISION)
    assert check.text.endswith("The others: 50 error above target. Errors above 1 nat, which say little: 20.")


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
    assert _check(_beside(0.3, 0.1), "Comparison").text.startswith("Better than the best of 2 other estimators (kernel")
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
    for stage, other in (("warmstart", "refine"), ("refine", "warmstart")):
        for name in ("epochs", "steps"):
            data = replace(_beside(-2.0, 0.1), chosen={stage: {name: 30, "checks": 7}})
            assert f"bayesnde {stage} --run results --restart --checks 7" in _commands(data)
            assert f"bayesnde {other} --run results --restart" in _commands(data)
            assert "epochs or steps" in advise(judge(data), data)[0].text


def test_what_was_chosen_is_repeated_and_what_the_advice_changes_is_not() -> None:
    chosen = {"warmstart": {"width": 128, "seed": 7}, "refine": {"draws": 4},
              "density": {"chains": 12, "target_se": 0.1}}  # fmt: skip
    data = replace(_beside(-2.0, 0.1), chosen=chosen, settings={"warmstart": {"width": 128}})
    assert _commands(data) == [
        "bayesnde warmstart --run results --restart --width 256 --seed 7",
        "bayesnde refine --run results --restart --draws 4",
        "bayesnde density --run results --restart --chains 12 --target-se 0.1",
        "bayesnde evaluate --run results --restart",
    ]
    doubtful = replace(with_metrics(rows=_rows(reliable=80, chains_disagree=20)), chosen=chosen)
    again = "bayesnde density --run results --restart --chains 12 --target-se 0.1 --warm-up 400 --draws 400"
    assert _commands(doubtful)[0] == again


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
    good = _check(full_data(), "Typical rows").text
    assert good.startswith("No difference found (300 rows) to the log-densities of rows that the model makes itself")


def test_too_many_rows_below_all_of_the_model_are_named() -> None:
    found = metrics()["typicality"] | {"n_below_all": 6, "n_below_all_p_value": 1e-5}
    check = _check(with_metrics(typicality=found), "Typical rows")
    assert (check.level, check.cause) == (Level.FAIR, Cause.FIT)
    assert "6 of 300 rows are less likely than any of 300 rows of the model (p" in check.text


@pytest.mark.parametrize(
    ("mean", "words"),
    [
        (-4.2, "0.200 ± 0.283 nats below the validation rows, within the error."),
        (-4.35, "0.350 ± 0.283 nats below the validation rows."),  # 2.5 standard errors
        (-3.0, "1.000 ± 0.283 nats above the validation rows."),
        (-4.6, "0.600 ± 0.283 nats below the validation rows."),
    ],
)
def test_within_the_error_is_said_only_of_what_is(mean: float, words: str) -> None:
    text = _check(with_metrics(mean_log_density=mean), "Against validation rows").text.replace("\u00a0", " ")
    assert text == f"These rows are {words}"


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


@pytest.mark.parametrize(("gap", "words"), [(1.5, "no likelier"), (2.5, "not clearly likelier"), (-4.0, "no likelier")])
def test_a_difference_between_two_and_three_errors_is_not_denied(gap: float, words: str) -> None:
    spread = np.tile([-1.0, 1.0], 100)
    error = np.sqrt(2 * spread.var(ddof=1) / 200)
    seen = {"train": spread + gap * error, "validation": spread}
    check = _check(replace(full_data(), seen_log_density=seen), "Learnt, not memorised")
    assert check.level is Level.GOOD
    assert check.text.startswith(f"Training rows are {words} than validation rows: a difference of ")


def test_small_tables_are_named_as_such() -> None:
    def of(**changed: Any) -> Level:
        data = full_data()
        return _check(replace(data, subject=replace(data.subject, **changed)), "Size").level

    assert of(n_train=150) is Level.FAIR
    assert of(n_train=600, classes={"a": 300, "b": 300}) is Level.GOOD
    assert of(n_train=2000, n_features=90) is Level.GOOD
    assert of(n_train=2000, n_features=110) is Level.FAIR


def test_the_smallest_class_must_be_large_enough() -> None:
    data = full_data()
    subject = replace(data.subject, n_train=5000, classes={"a": 4985, "b c": 15})
    check = _check(replace(data, subject=subject), "Size")
    assert check.level is Level.FAIR
    assert check.text.startswith("5,000 training rows in 2 classes (fewest: 15 of b c) for 2 features, 300 rows scored")


def test_only_whole_rows_with_a_density_are_rows_to_judge_by() -> None:
    check = _check(with_metrics(rows=metrics()["rows"] | {"n_in_mean": 20}), "Size")
    assert check.level is Level.FAIR
    assert "300 rows scored, 20 of them complete and with a finite log-density: the means" in check.text


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


def test_figures_that_say_nothing_are_no_check_of_the_fit() -> None:
    """One row: a gain without an error, and no test of typicality."""
    baselines = {"gaussian": {"mean_log_density": -5.0, "gain": 1.0, "gain_se": None}}
    typicality = metrics()["typicality"] | {"ks": None, "ks_p_value": None, "verdict": "too few rows to tell"}
    nothing = {"truth": {"n": 1, "spearman": None, "mean_difference": 0.0}, "typicality": typicality}
    data = with_metrics(baselines=baselines, **nothing)
    assert _check(data, "Fit").cause is Cause.UNKNOWN
    assert _commands(data)[0] == "bayesnde evaluate --run results --restart"
    assert judge(data).level is Level.FAIR
    assert "Comparison" not in [check.subject for check in judge(data).checks]
    assert "Fit" not in [check.subject for check in judge(full_data()).checks]


def test_rows_without_a_density_of_ours_are_left_out_of_the_comparison_and_counted() -> None:
    rows = metrics()["rows"] | {"n_incomplete": 10, "n_in_mean": 285}
    assert _check(with_metrics(rows=rows), "Comparison").text.endswith(" 5 rows without a density of ours left out.")
    assert "left out" not in _check(full_data(), "Comparison").text


def test_columns_without_a_density_are_named_and_the_table_comes_before_all_else() -> None:
    doubtful = DoubtfulColumns(spikes=(("a", 0.2), (HOSTILE, 0.9)), linear=(("b c", ("x", "y")),))
    subject = replace(full_data().subject, table_argument="t.csv")
    chosen = {"prepare": {"drop": ["id"], "condition": "k"}}
    data = replace(full_data(), doubtful=doubtful, subject=subject, chosen=chosen)
    assert judge(data).level is Level.FAIR
    assert _check(data, "Spikes").text.startswith(
        f"In 2 continuous columns one value recurs in many rows: {HOSTILE} (90"
    )
    assert "1 column is nearly a linear function of others: b c (of x, y)." in _check(data, "Linear columns").text
    command = "bayesnde fit t.csv --drop id --drop 'b c' --condition k --run results --restart"
    assert _commands(data)[0] == command


def test_the_table_is_prepared_again_with_all_that_was_chosen() -> None:
    prepare = {
        "features": ["x*", "y,b c"], "drop_constant": True, "split_column": "part",
        "type": ["b c=lattice", "y=lattice"], "split": [0.5, 0.25, 0.25], "scale": "standard", "seed": 7,
    }  # fmt: skip
    chosen = {"prepare": prepare, "refine": {"epochs": 50}, "density": {"keep_draws": True}}
    doubtful = DoubtfulColumns(linear=(("b c", ("y",)), ("x9", ("y",))))
    data = replace(full_data(), doubtful=doubtful, chosen=chosen)
    assert _commands(data)[0] == (
        "bayesnde fit --features 'x*' --features y --drop-constant --split-column part --type y=lattice "
        "--split 0.5,0.25,0.25 --scale standard --seed 7 --drop x9 --set refine.epochs=50 "
        "--set density.keep_draws=true --run results --restart"
    )
