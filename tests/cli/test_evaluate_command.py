"""`bayesnde evaluate` as a user meets it: the result in words, JSON, and requirements with their exit codes."""

import json
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fake_engine
import fake_model
from bayesnde_cli.cli import stage_commands
from bayesnde_cli.cli.main import run as run_command
from bayesnde_cli.cli.stage_commands import Requirement, check_requirements, parse_requirement
from bayesnde_cli.errors import BadUsage, RequirementNotMet
from bayesnde_cli.stages import loading
from bayesnde_cli.stages.evaluate import Evaluated
from bayesnde_cli.stages.measures import outlier_figures, truth_figures
from scoring_runs import SMALL

ROOT = Path(__file__).resolve().parents[2]
OPTIONS = ["--generated-rows", "100", "--typicality-rows", "50", "--accuracy-rows", "8", "-q"]


@pytest.fixture(scope="module")
def evaluated(fitted: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A run whose test rows are evaluated. Not to be written to."""
    run = Path(shutil.copytree(fitted, tmp_path_factory.mktemp("evaluated") / "run"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loading, "open_engine", loading.open_engine)  # put back afterwards
        fake_engine.install()
        fake_model.install(patch, fake_model.NormalModel())
        assert run_command(["density", "--run", str(run), *SMALL, "-q"]) == 0
        assert run_command(["evaluate", "--run", str(run), *OPTIONS]) == 0
        yield run


def test_the_result_in_words_and_as_json(bayesnde: Callable, evaluated: Path) -> None:
    found = json.loads((evaluated / "evaluate/test/metrics.json").read_text())
    outcome = bayesnde("evaluate", "--run", evaluated, *OPTIONS, "--json")
    assert (outcome.code, outcome.err, json.loads(outcome.out)) == (0, "", found)
    lines = bayesnde("evaluate", "--run", evaluated, *OPTIONS).out.splitlines()
    rows, truth = found["rows"], found["truth"]
    counts = f"{rows['n']} rows, {rows['n_reliable']} reliable (up to date)"
    assert lines[0] == f"{evaluated}/evaluate/test/metrics.json: {counts}"
    assert lines[1] == (
        f"mean log-density: {found['mean_log_density']:.4f} ± {2 * found['mean_log_density_se']:.4f} (units of the "
        f"file, ± 2 s.e., of which Monte-Carlo: {2 * found['mean_log_density_mc_se']:.4f}, "
        f"which may be too low for {rows['n'] - rows['n_reliable']} rows not reliable)"
    )
    scaled = f"{found['mean_log_density_scaled']:.4f} ± {2 * found['mean_log_density_scaled_se']:.4f}"
    assert lines[2] == f"in the model's space: {scaled}"
    assert lines[3].startswith(f"against the truth: Spearman {truth['spearman']:.4f}, Pearson ")
    accuracy = f"{found['accuracy']:.4f} ± {2 * found['accuracy_se']:.4f}"
    assert lines[4] == f"accuracy of the likeliest class: {accuracy} (8 rows)"
    assert re.fullmatch(
        r"typicality: no difference found \(50 rows, KS [\d.]+, p = [\d.]+; "
        r"\d less likely than all of the model's, p = [\d.]+\)",
        lines[5],
    )
    assert lines[6] == f"report: {evaluated}/evaluate/test/report.html"
    assert lines[8].split("  ")[-1] == "this model is better by"
    means = {name: figures["mean_log_density"] for name, figures in found["baselines"].items()}
    best_first = [name.replace("_", " ") for name in sorted(means, key=means.__getitem__, reverse=True)]
    table = lines[9 : 10 + len(best_first)]
    assert [line.split("  ")[0] for line in table] == ["this model", *best_first]
    gaussian = found["baselines"]["gaussian"]
    gain = f"{gaussian['gain']:.4f} ± {2 * gaussian['gain_se']:.4f}"
    assert table[1 + best_first.index("gaussian")].endswith(gain)
    told, groups = lines[10 + len(best_first)], dict[str, list[str]]()
    for name, own in found["baselines"].items():
        errors = own["gain"] / own["gain_se"]
        word = "is clearly better than" if errors > 2.0 else "cannot be told apart from"
        groups.setdefault("is clearly worse than" if errors < -2.0 else word, []).append(name.replace("_", " "))
    for label, names in groups.items():
        assert f"{label} {', '.join(names)}" in told
    assert told.startswith(f"on {rows['n']} rows this model ")
    assert lines[11 + len(best_first)].startswith("these are few rows: differences below ")
    for (name, own), line in zip(found["classes"].items(), lines[-2:], strict=True):
        mean, error = own["mean_log_density"], 2 * own["mean_log_density_se"]
        assert line.split() == [name, str(own["n"]), f"{mean:.4f}", f"{error:.4f}"]


def test_every_name_of_the_document_is_in_the_readme(evaluated: Path) -> None:
    section = (ROOT / "README.md").read_text("utf-8").partition("## `evaluate`")[2].partition("\n## ")[0]
    found = json.loads((evaluated / "evaluate/test/metrics.json").read_text())
    named = [*found, *found["rows"], *found["truth"], *found["generation"], *found["typicality"], *found["baselines"]]
    named += [*found["confusion_matrix"], *found["baselines"]["gaussian"], *found["typicality"]["rows"]]
    named += [*found["baselines"]["gaussian"]["chosen"]["u"], *found["classes"]["u"]]
    assert [name for name in named if f"`{name}`" not in section] == []


def test_missing_and_enormous_values_in_words(evaluated: Path) -> None:
    metrics = json.loads((evaluated / "evaluate/test/metrics.json").read_text())
    metrics |= dict.fromkeys(("classes", "truth", "accuracy", "typicality", "baselines", "mean_log_density_se"))
    metrics |= {"mean_log_density": -1.5e60, "mean_log_density_mc_se": None, "mean_log_density_scaled_se": None}
    metrics |= {"mean_log_density_scaled": -1.25, "rows": metrics["rows"] | {"n_reliable": metrics["rows"]["n"]}}
    lines = str(Evaluated("m", "r", False, metrics)).splitlines()
    assert lines[1] == "mean log-density: -1.500e+60 (units of the file, ± 2 s.e., of which Monte-Carlo: –)"
    assert lines[2] == "in the model's space: -1.2500"
    assert lines[-1].split() == ["this", "model", "-1.500e+60", "–"]


def test_requirements_are_checked_every_time_and_their_exit_code_is_5(bayesnde: Callable, evaluated: Path) -> None:
    def require(*texts: str) -> Any:
        options = [part for text in texts for part in ("--require", text)]
        return bayesnde("evaluate", "--run", evaluated, *OPTIONS, *options)

    mean = json.loads((evaluated / "evaluate/test/metrics.json").read_text())["mean_log_density"]
    missed = require("mean_log_density>=1e6", "rows.n>=1")
    assert missed.code == 5
    assert missed.out.startswith(f"{evaluated}/evaluate/test/metrics.json: ")  # the result is there all the same
    assert missed.err == (
        "error: 1 of 2 requirements is not met\n"
        f"  mean_log_density is {mean:.6g}, wanted >= 1e+06: missed by {1e6 - mean:.3g}\n"
        "hint: see all figures with --json\n"
    )
    assert require(f"mean_log_density>={mean - 1e-6}", "rows.verdicts.chains disagree<=5").code == 0
    assert require("outliers.auroc>0.5").code == 5
    assert require("truth.spearmen>=0.5").code == 2


def test_wrong_requirements_and_missing_runs_are_refused_before_the_work(bayesnde: Callable, tmp_path: Path) -> None:
    outcome = bayesnde("evaluate", "--run", tmp_path / "none", "--require", "spearman")
    assert outcome.code == 2
    assert outcome.err == (
        "error: --require spearman is not of the form NAME OP VALUE\n"
        "  OP is one of >= <= == > <, VALUE a number\nhint: for instance --require 'mean_log_density>=-4.1'\n"
    )
    outcome = bayesnde("evaluate", "--run", tmp_path / "none")
    assert outcome.code == 3
    assert outcome.err.startswith("error: prepare is missing or incomplete\n")


# Requirements

METRICS = {
    "mean_log_density": -4.2,
    "truth": {"spearman": 0.95, "rmse": None},
    "outliers": None,
    "classes": {"a>b": {"n": 3}},
    "is_new": True,
    "rows": {"set": "test"},
}


def _check(*texts: str) -> None:
    check_requirements([parse_requirement(text) for text in texts], METRICS)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("truth.spearman>=0.97", ("truth.spearman", ">=", 0.97)),
        (" mean_log_density > -4.1 ", ("mean_log_density", ">", -4.1)),
        ("rows.n==5e2", ("rows.n", "==", 500.0)),
        ("classes.a>b.n<7", ("classes.a>b.n", "<", 7.0)),
        ("a<=-inf", ("a", "<=", float("-inf"))),
    ],
)
def test_the_forms_of_a_requirement(text: str, expected: tuple) -> None:
    assert parse_requirement(text) == Requirement(*expected)


@pytest.mark.parametrize(
    "text", ["", "spearman", ">=3", "spearman>=", "a>=b", "a=3", "a>=nan", "a=>3", "a!=3", "a=<3", "a ~> 3", "a<>3"]
)
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(BadUsage, match="is not of the form NAME OP VALUE"):
        parse_requirement(text)


def test_requirements_are_met_or_missed_and_the_message_says_by_how_much() -> None:
    _check()
    _check("truth.spearman>=0.95", "truth.spearman<=0.95", "truth.spearman==0.95", "classes.a>b.n>=3")
    _check("mean_log_density>-5", "mean_log_density<0")
    for text in ("truth.spearman>0.95", "truth.spearman<0.95", "mean_log_density>=-4.1999"):
        with pytest.raises(RequirementNotMet, match="error: the requirement is not met"):
            _check(text)
    with pytest.raises(RequirementNotMet) as caught:
        _check("mean_log_density>=-4.1", "truth.spearman>=0.9", "truth.rmse<=1", "outliers.auroc>=0.9")
    assert str(caught.value) == (
        "error: 3 of 4 requirements are not met\n"
        "  mean_log_density is -4.2, wanted >= -4.1: missed by 0.1\n"
        "  truth.rmse has no value here, wanted <= 1\n"
        "  outliers.auroc has no value here, wanted >= 0.9\n"
        "hint: see all figures with --json"
    )
    assert caught.value.exit_code == 5


def test_an_unknown_name_is_refused_with_the_known_ones() -> None:
    with pytest.raises(BadUsage) as caught:
        _check("mean_log_density<=0", "truth.spearmann>=0.9")
    assert str(caught.value) == (
        "error: --require: there is no figure 'truth.spearmann'\n"
        "  figures: mean_log_density, truth.spearman, truth.rmse, classes.a>b.n, outliers.n, outliers.n_outliers, "
        "outliers.precision_at_k, outliers.auroc, outliers.average_precision\n"
        "hint: did you mean 'truth.spearman'?"
    )
    # In a section that these rows lack as well, whose names are those of its figures.
    with pytest.raises(BadUsage, match=r"there is no figure 'outliers\.aurock'\n(.|\n)*did you mean 'outliers\.auroc'"):
        _check("outliers.aurock>=0.5")
    nothing = np.empty(0)
    assert list(stage_commands._SECTIONS["truth"]) == list(truth_figures(nothing, nothing))
    assert list(stage_commands._SECTIONS["outliers"]) == list(outlier_figures(nothing, nothing.astype(bool)))
