"""The answer to the first question, and the advice: good, middling and bad cases."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from report_samples import HOSTILE, full_data, light_data, metrics, sentences, training

from bayesnde_cli.report.collect import ReportData
from bayesnde_cli.report.page import render
from bayesnde_cli.report.trust import Cause, Check, Level, advise, auroc_error, judge


def _commands(data: ReportData) -> list[str]:
    return [command for commands in advise(judge(data), data).values() for command in commands]


def _check(data: ReportData, name: str) -> Check:
    (found,) = [check for check in judge(data) if check.name == name]
    return found


def _level(data: ReportData) -> Level:
    return max(check.level for check in judge(data))


def _rows(**verdicts: int) -> dict[str, Any]:
    named = {name.replace("_", " "): n for name, n in verdicts.items()}
    n = sum(named.values())
    more = {"n_incomplete": 0, "n_in_mean": n, "n_above_1_nat": 0}
    return {"n": n, "n_reliable": named.get("reliable", 0), "verdicts": named, **more}


@pytest.mark.parametrize(
    ("auroc", "rival", "n", "level", "words"),
    [
        (0.90, 0.85, 300, Level.GOOD, "AUROC of 0.90 (1 finds all, 0.5 is chance)."),
        (0.63, 0.92, 183, Level.FAIR, "The best of 2 other estimators (isolation forest) reaches 0.92."),
        (0.80, 0.92, 60, Level.GOOD, "AUROC of 0.80 (1 finds all, 0.5 is chance)."),  # of so few it may be chance
        (0.58, 0.60, 183, Level.FAIR, "That may be chance."),
        (0.20, 0.55, 183, Level.FAIR, "The best of 2 other estimators"),
    ],
)
def test_outliers_that_others_find_better_are_reported(
    auroc: float, rival: float, n: int, level: Level, words: str
) -> None:
    figures = {"n": n, "n_outliers": n // 10, "auroc": auroc, "precision_at_k": 0.1, "average_precision": 0.1}
    rivals = metrics()["baselines"]
    rivals["isolation_forest"]["outliers"]["auroc"] = rival
    rivals["gaussian"]["outliers"]["auroc"] = 0.5
    data = light_data(outliers=figures, baselines=rivals)
    assert _check(data, "outliers").level is level
    assert words in sentences(data)["Outliers"]
    assert ("outliers" in advise(judge(data), data)) is (level is Level.FAIR)


def test_the_error_of_an_auroc_is_what_other_rows_would_change() -> None:
    rng = np.random.default_rng(0)
    found = []
    for _ in range(4000):  # exponential scores, for which the formula is exact
        others, outliers = rng.exponential(size=60), rng.exponential(3.0, size=20)
        found.append((outliers[:, None] > others).mean())
    assert auroc_error(0.75, 20, 60) == pytest.approx(np.std(found), rel=0.05)
    assert auroc_error(0.75, 5, 60) > 1.5 * auroc_error(0.75, 20, 60)


def test_a_good_run_is_trusted_and_gets_commands_to_try() -> None:
    data = light_data()
    assert _level(data) is Level.GOOD
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
        (
            {"reliable": 70, "chains_disagree": 12, "error_above_target": 18},
            Level.POOR,
            Cause.ESTIMATES | Cause.PRECISION,
        ),
        ({"reliable": 83, "chains_disagree": 12, "error_above_target": 5}, Level.POOR, Cause.ESTIMATES),
    ],
)
def test_unreliable_rows_lower_the_trust(found: dict[str, int], level: Level, cause: Cause) -> None:
    data = light_data(rows=_rows(**found))
    check = _check(data, "rows")
    assert (check.level, check.cause) == (level, cause)
    command = "bayesnde density --run results --restart --chains 8 --warm-up 400 --draws 400"
    assert (command in _commands(data)) is (level is not Level.GOOD and Cause.ESTIMATES in cause)


def test_errors_above_a_nat_count_as_doubt() -> None:
    rows = _rows(reliable=50, error_above_target=50, chains_disagree=0)
    data = light_data(rows=rows | {"n_above_1_nat": 20})
    check = _check(data, "rows")
    assert (check.level, check.cause) == (Level.POOR, Cause.ESTIMATES | Cause.PRECISION)
    assert sentences(data)["Estimates"] == (
        "50 of 100 rows (50\u00a0%) are reliable: they passed every check and their s.e. is at most 0.05 nats. "
        "The others: 50 error above target. Rows with an s.e. above 1 nat, which say little: 20."
    )


def _beside(gain: float, se: float, gaussian_gain: float = 1.0) -> ReportData:
    return light_data(
        baselines={
            "gaussian": {"mean_log_density": -4.0 - gaussian_gain, "gain": gaussian_gain, "gain_se": 0.1},
            "kernel_density": {"mean_log_density": -4.0 - gain, "gain": gain, "gain_se": se},
        }
    )


def test_the_comparison_is_with_the_best_baseline_and_its_own_error() -> None:
    better, equal = (sentences(_beside(gain, 0.1))["Comparison"] for gain in (0.3, -0.1))
    assert better == "Better than the best of 2 other estimators (kernel density), by 0.300 ±\u00a00.200 nats per row."
    assert equal.endswith("within the error: 0.100 ±\u00a00.200 nats per row below it.")
    assert sentences(_beside(-0.3, 0.1))["Comparison"].startswith("Worse than the best of 2 other estimators (kernel")
    levels = [_check(_beside(gain, 0.1), "baselines").level for gain in (-0.1, -0.3, -1.5)]
    assert levels == [Level.GOOD, Level.FAIR, Level.POOR]
    assert _check(_beside(-0.3, 0.1, gaussian_gain=-0.4), "baselines").level is Level.POOR


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
            data = replace(_beside(-2.0, 0.1), changed={stage: {name: 30, "checks": 7}})
            assert f"bayesnde {stage} --run results --restart --checks 7" in _commands(data)
            assert f"bayesnde {other} --run results --restart" in _commands(data)
            assert next(iter(advise(judge(data), data))) == "default_length"


def test_what_was_chosen_is_repeated_and_what_the_advice_changes_is_not() -> None:
    chosen: dict[str, dict[str, Any]] = {
        "warmstart": {"width": 128, "seed": 7},
        "refine": {"draws": 4},
        "density": {"chains": 12, "target_se": 0.1},
    }
    data = replace(_beside(-2.0, 0.1), changed=chosen, settings={"warmstart": {"width": 128}})
    assert _commands(data) == [
        "bayesnde warmstart --run results --restart --width 256 --seed 7",
        "bayesnde refine --run results --restart --draws 4",
        "bayesnde density --run results --restart --chains 12 --target-se 0.1",
        "bayesnde evaluate --run results --restart",
    ]
    doubtful = replace(light_data(rows=_rows(reliable=80, chains_disagree=20)), changed=chosen)
    again = "bayesnde density --run results --restart --chains 12 --target-se 0.1 --warm-up 400 --draws 400"
    assert _commands(doubtful)[0] == again


def test_a_model_that_was_still_improving_is_to_be_trained_longer() -> None:
    data = replace(_beside(-0.3, 0.1), training=(training("warmstart"), training("refine", selected=3)))
    assert "bayesnde refine --run results --restart --epochs 60" in _commands(data)


def test_untypical_rows() -> None:
    def of(p_value: float, ks: float) -> Level:
        found = metrics()["typicality"] | {"ks_p_value": p_value, "ks": ks, "verdict": "rows have lower density"}
        return _check(light_data(typicality=found), "typicality").level

    assert of(0.02, 0.3) is Level.GOOD
    assert of(1e-6, 0.1) is Level.FAIR  # many rows make a small difference certain
    assert of(1e-6, 0.3) is Level.POOR
    found = metrics()["typicality"] | {"n_below_all": 6, "n_below_all_p_value": 1e-5}
    data = light_data(typicality=found)
    assert _check(data, "typicality")[1::2] == (Level.FAIR, Cause.FIT)
    assert "6 of 300 rows are less likely than any of 300 generated rows (p" in sentences(data)["Typicality"]


@pytest.mark.parametrize(
    ("mean", "level", "words"),
    [
        (-4.2, Level.GOOD, "0.200 ± 0.283 nats below that of the validation rows, within the error."),
        (-4.35, Level.GOOD, "0.350 ± 0.283 nats below that of the validation rows."),  # 2.5 standard errors
        (-3.0, Level.GOOD, "1.000 ± 0.283 nats above that of the validation rows."),
        (-4.6, Level.FAIR, "0.600 ± 0.283 nats below that of the validation rows."),
        (-5.5, Level.POOR, "1.500 ± 0.283 nats below that of the validation rows."),
    ],
)
def test_rows_below_the_validation_rows(mean: float, level: Level, words: str) -> None:
    data = replace(light_data(mean_log_density=mean), training=(training("refine"),))
    assert _check(data, "held_out").level is level
    assert sentences(data)["Validation rows"].replace("\u00a0", " ") == f"The mean of these rows is {words}"
    other = replace(data, subject=replace(data.subject, set_name="new-1a2b", data_argument="new.csv"))
    assert ("other_rows" in advise(judge(other), other)) is (level is not Level.GOOD)


@pytest.mark.parametrize(
    ("gap", "level", "words"),
    [
        (1.5, Level.GOOD, "not more likely"),
        (2.5, Level.GOOD, "not clearly more likely"),
        (-4.0, Level.GOOD, "not more likely"),
        (9.0, Level.FAIR, "more likely"),
    ],
)
def test_memorised_training_rows(gap: float, level: Level, words: str) -> None:
    spread = np.tile([-1.0, 1.0], 100)
    error = np.sqrt(2 * spread.var(ddof=1) / 200)
    seen = {"train": spread + gap * error, "validation": spread}
    data = light_data()
    data = replace(data, model=data.model._replace(seen_log_density=seen))
    assert _check(data, "memory").level is level
    assert sentences(data)["Memorisation"].startswith(f"Training rows are {words} than validation rows")


def test_small_tables_are_named_as_such() -> None:
    def of(**changed: Any) -> Level:
        data = full_data()
        return _check(replace(data, subject=replace(data.subject, **changed)), "size").level

    assert of(n_train=150) is Level.FAIR
    assert of(n_train=600, classes={"a": 300, "b": 300}) is Level.GOOD
    assert of(n_train=2000, n_features=90) is Level.GOOD
    assert of(n_train=2000, n_features=110) is Level.FAIR
    assert of(n_train=5000, classes={"a": 4985, "b": 15}) is Level.FAIR
    few = light_data(rows=metrics()["rows"] | {"n_in_mean": 20})
    assert _check(few, "size").level is Level.FAIR
    words = "300 rows scored, 20 of them complete and with a finite log-density: the means"
    assert words in sentences(few)["Size"]


def test_the_truth_counts_where_it_is_known() -> None:
    def of(spearman: float, difference: float) -> Level:
        return _check(light_data(truth={"spearman": spearman, "mean_difference": difference}), "truth").level

    assert of(0.98, -0.05) is Level.GOOD
    assert of(0.98, -0.3) is Level.FAIR
    assert of(0.5, 0.0) is Level.POOR


def test_figures_that_say_nothing_are_no_check_of_the_fit() -> None:
    """One row: a gain without an error, and no test of typicality."""
    baselines = {"gaussian": {"mean_log_density": -5.0, "gain": 1.0, "gain_se": None}}
    typicality = metrics()["typicality"] | {"ks": None, "ks_p_value": None, "verdict": "too few rows to tell"}
    nothing = {"truth": {"n": 1, "spearman": None, "mean_difference": 0.0}, "typicality": typicality}
    data = light_data(baselines=baselines, **nothing)
    assert _check(data, "fit").cause is Cause.UNKNOWN
    assert _commands(data)[0] == "bayesnde evaluate --run results --restart"
    assert _level(data) is Level.FAIR
    assert "baselines" not in [check.name for check in judge(data)]
    assert "fit" not in [check.name for check in judge(full_data())]


def test_columns_without_a_density_are_named_and_the_table_comes_before_all_else() -> None:
    subject = replace(full_data().subject, table_argument="t.csv")
    chosen = {"prepare": {"drop": ["id"], "condition": "k"}}
    spikes, linear = {"a": 0.2, HOSTILE: 0.9}, {"b c": ("x", "y")}
    data = replace(light_data(), spikes=spikes, linear=linear, subject=subject, changed=chosen)
    assert _level(data) is Level.FAIR
    words, name = sentences(data), HOSTILE.replace("\x00", "\\x00")
    assert words["Spikes"].startswith(f"In 2 continuous columns one value recurs in many rows: {name} (90\u00a0%), a (")
    assert words["Linear columns"].startswith("1 column is nearly a linear function of others: b c (of x, y).")
    command = "bayesnde fit t.csv --drop id --drop 'b c' --condition k --run results --restart"
    assert _commands(data)[0] == command


def test_the_table_is_prepared_again_with_all_that_was_chosen() -> None:
    prepare = {
        "features": ["x*", "y,b c"],
        "drop_constant": True,
        "split_column": "part",
        "type": ["b c=lattice", "y=lattice"],
        "split": [0.5, 0.25, 0.25],
        "scale": "standard",
        "seed": 7,
    }
    chosen: dict[str, dict[str, Any]] = {"prepare": prepare, "refine": {"epochs": 50}, "density": {"keep_draws": True}}
    data = replace(full_data(), linear={"b c": ("y",), "x9": ("y",)}, changed=chosen)
    assert _commands(data)[0] == (
        "bayesnde fit --features 'x*' --features y --drop-constant --split-column part --type y=lattice "
        "--split 0.5,0.25,0.25 --scale standard --seed 7 --drop x9 --set refine.epochs=50 "
        "--set density.keep_draws=true --run results --restart"
    )
