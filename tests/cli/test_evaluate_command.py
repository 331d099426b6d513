"""`bayesnde evaluate` as a user meets it: the figures in words, JSON, and bars for figures with their exit codes."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

import fake_model
from bayesnde_cli.stages.evaluate import Evaluated
from scoring_runs import SMALL

ROOT = Path(__file__).resolve().parents[2]
FEW = ["--generated-rows", "100", "--typicality-rows", "50", "--accuracy-rows", "8", "--no-baselines", "-q"]


@pytest.fixture
def scored(bayesnde: Callable, engines: list, run: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run whose test rows are scored."""
    fake_model.install(monkeypatch, fake_model.NormalModel())
    assert bayesnde("density", "--run", run, *SMALL).code == 0
    return run


def test_the_result_in_words(bayesnde: Callable, scored: Path) -> None:
    outcome = bayesnde("evaluate", "--run", scored, *FEW, "--baselines")
    assert outcome.code == 0, outcome.err
    found = json.loads((scored / "evaluate/test/metrics.json").read_text())
    lines = outcome.out.splitlines()
    rows, truth = found["rows"], found["truth"]
    assert lines[0] == f"{scored}/evaluate/test/metrics.json: {rows['n']} rows, {rows['n_reliable']} reliable"
    assert lines[1] == (
        f"mean log-density: {found['mean_log_density']:.4f} ± {2 * found['mean_log_density_se']:.4f} (units of the "
        f"file, ± 2 standard errors, of which Monte-Carlo: {2 * found['mean_log_density_mc_se']:.4f}, "
        f"which may be too low for {rows['n'] - rows['n_reliable']} rows not reliable)"
    )
    scaled = f"{found['mean_log_density_scaled']:.4f} ± {2 * found['mean_log_density_scaled_se']:.4f}"
    assert lines[2] == f"in the model's space: {scaled}"
    assert lines[3].startswith(f"against the truth: Spearman {truth['spearman']:.4f}, Pearson ")
    assert lines[4] == (
        f"accuracy of the likeliest class: {found['accuracy']:.4f} ± {2 * found['accuracy_se']:.4f} (8 rows)"
    )
    assert re.fullmatch(
        r"typicality: no difference found \(50 rows, KS [\d.]+, p = [\d.]+; "
        r"\d less likely than all of the model's, p = [\d.]+\)",
        lines[5],
    )
    assert lines[6] == f"report: {scored}/evaluate/test/report.html"
    assert lines[8].split("  ")[-1] == "this model is better by"
    means = {name: figures["mean_log_density"] for name, figures in found["baselines"].items()}
    best_first = [name.replace("_", " ") for name in sorted(means, key=means.get, reverse=True)]
    table = lines[9 : 10 + len(best_first)]
    assert [line.split("  ")[0] for line in table] == ["this model", *best_first]
    gaussian = found["baselines"]["gaussian"]
    gain = f"{gaussian['gain']:.4f} ± {2 * gaussian['gain_se']:.4f}"
    assert table[1 + best_first.index("gaussian")].endswith(gain)
    classes = [line.split() for line in lines[-2:]]
    for (name, figures), shown in zip(found["classes"].items(), classes, strict=True):
        mean, error = figures["mean_log_density"], 2 * figures["mean_log_density_se"]
        assert shown == [name, str(figures["n"]), f"{mean:.4f}", f"{error:.4f}"]


def test_what_is_not_known_and_what_is_enormous_in_words() -> None:
    metrics = {
        "rows": {"n": 1, "n_reliable": 1, "n_not_finite": 0}, "mean_log_density": -1.5e60, "mean_log_density_se": None,
        "mean_log_density_mc_se": None, "mean_log_density_scaled": -1.25, "classes": None, "truth": None,
        "outliers": None, "accuracy": None, "typicality": None, "baselines": None, "reasons": {},
    }  # fmt: skip
    lines = str(Evaluated("m", "r", False, metrics)).splitlines()
    assert lines[1] == (
        "mean log-density: -1.500e+60 (units of the file, ± 2 standard errors, of which Monte-Carlo: –)"
    )
    assert lines[2] == "in the model's space: -1.2500"
    assert lines[-1].split() == ["this", "model", "-1.500e+60", "–"]


def test_json_is_the_document(bayesnde: Callable, scored: Path) -> None:
    outcome = bayesnde("evaluate", "--run", scored, *FEW, "--json")
    assert (outcome.code, outcome.err) == (0, "")
    assert json.loads(outcome.out) == json.loads((scored / "evaluate/test/metrics.json").read_text())


def test_every_name_of_the_document_is_in_the_readme(bayesnde: Callable, scored: Path) -> None:
    section = (ROOT / "README.md").read_text("utf-8").partition("## `evaluate`")[2].partition("\n## ")[0]
    found = json.loads(bayesnde("evaluate", "--run", scored, *FEW, "--baselines", "--json").out)
    named = [*found, *found["rows"], *found["truth"], *found["generation"], *found["typicality"], *found["baselines"]]
    named += [*found["confusion_matrix"], *found["baselines"]["gaussian"], *found["typicality"]["rows"]]
    named += [*found["baselines"]["gaussian"]["chosen"]["u"], *found["classes"]["u"]]
    assert [name for name in named if f"`{name}`" not in section] == []


def test_bars_are_checked_every_time_and_their_exit_code_is_5(bayesnde: Callable, scored: Path) -> None:
    first = bayesnde("evaluate", "--run", scored, *FEW, "--require", "mean_log_density>=1e6", "--require", "rows.n>=1")
    assert first.code == 5
    assert first.out.startswith(f"{scored}/evaluate/test/metrics.json: ")  # the result is there all the same
    mean = json.loads((scored / "evaluate/test/metrics.json").read_text())["mean_log_density"]
    assert first.err == (
        "error: 1 of 2 requirements is not met\n"
        f"  mean_log_density is {mean:.6g}, wanted >= 1e+06: missed by {1e6 - mean:.3g}\n"
        "hint: see all figures with --json\n"
    )
    again = bayesnde("evaluate", "--run", scored, *FEW, "--require", "mean_log_density>=1e6", "--json")
    assert again.code == 5
    assert json.loads(again.out)["mean_log_density"] == mean
    assert bayesnde("evaluate", "--run", scored, *FEW, "--require", f"mean_log_density>={mean - 1e-6}").code == 0


def test_a_bar_for_what_these_rows_do_not_have_is_missed(bayesnde: Callable, scored: Path) -> None:
    outcome = bayesnde("evaluate", "--run", scored, *FEW, "--require", "outliers.auroc>0.5")
    assert outcome.code == 5
    assert "  outliers.auroc has no value here, wanted > 0.5\n" in outcome.err


def test_a_bar_for_a_verdict_that_no_row_has_is_met(bayesnde: Callable, scored: Path) -> None:
    assert bayesnde("evaluate", "--run", scored, *FEW, "--require", "rows.verdicts.chains disagree<=5").code == 0
    wrong = bayesnde("evaluate", "--run", scored, *FEW, "--require", "outliers.aurock>=0.5")
    assert wrong.code == 2
    assert wrong.err.endswith("hint: did you mean 'outliers.auroc'?\n")


def test_an_unknown_figure_is_wrong_usage_and_the_names_are_listed(bayesnde: Callable, scored: Path) -> None:
    outcome = bayesnde("evaluate", "--run", scored, *FEW, "--require", "truth.spearmen>=0.5")
    assert outcome.code == 2
    assert outcome.err.startswith("error: --require: there is no figure 'truth.spearmen'\n  figures: accuracy, ")
    assert outcome.err.endswith("hint: did you mean 'truth.spearman'?\n")


def test_what_is_no_requirement_is_refused_before_the_work(bayesnde: Callable, scored: Path) -> None:
    outcome = bayesnde("evaluate", "--run", scored, *FEW, "--require", "spearman")
    assert outcome.code == 2
    assert outcome.err == (
        "error: --require spearman is not of the form NAME OP VALUE\n"
        "  OP is one of >= <= == > <, VALUE a number\nhint: for instance --require 'mean_log_density>=-4.1'\n"
    )
    assert not (scored / "evaluate").exists()


def test_without_a_run_it_says_where_to_begin(bayesnde: Callable, tmp_path: Path) -> None:
    outcome = bayesnde("evaluate", "--run", tmp_path / "none")
    assert outcome.code == 3
    assert outcome.err.startswith("error: prepare is not there, or not complete\n")
