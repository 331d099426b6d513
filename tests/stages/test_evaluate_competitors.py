"""`evaluate --baseline NAME`: a neural density beside the model, wherever the plain estimators are."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

import fake_model
from bayesnde_cli.evaluation.baselines import neural
from scoring_runs import SMALL

FEW = ["--generated-rows", "100", "--typicality-rows", "50", "--accuracy-rows", "0", "--no-baselines", "-q"]


@pytest.fixture
def scored(bayesnde: Callable, engines: list, run: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run whose test rows are scored."""
    fake_model.install(monkeypatch, fake_model.NormalModel())
    assert bayesnde("density", "--run", run, *SMALL).code == 0
    return run


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neural densities of few steps."""
    for package in ("torch", "zuko", "normflows"):
        pytest.importorskip(package, reason="needs the extra bayesnde[baselines]")
    from bayesnde_cli.evaluation.baselines.neural import fitting, residual
    from bayesnde_cli.evaluation.baselines.neural.training import Length

    monkeypatch.setattr(residual, "N_BLOCKS", 2)
    few = {name: kind._replace(length=Length(steps=30, look_every=10)) for name, kind in fitting.KINDS.items()}
    monkeypatch.setattr(fitting, "KINDS", few)


def _metrics(run: Path) -> dict:
    return json.loads((run / "evaluate/test/metrics.json").read_text())


@pytest.mark.usefixtures("quick")
def test_a_competitor_stands_wherever_the_plain_estimators_do(bayesnde: Callable, scored: Path) -> None:
    outcome = bayesnde("evaluate", "--run", scored, *FEW, "--baselines", "--baseline", "made", "--baseline", "resflow")
    assert outcome.code == 0, outcome.err
    found = _metrics(scored)["baselines"]
    assert {"gaussian", "made", "resflow"} < set(found)
    assert set(found["made"]) == set(found["gaussian"])
    assert found["made"]["n"] == found["gaussian"]["n"]
    assert found["made"]["chosen"]["fit"] == "conditional"
    assert found["resflow"]["chosen"]["fit"] == "experts"
    assert set(found["resflow"]["chosen"]["classes"]) == {"u", "v"}
    for name in ("made", "resflow"):
        assert found[name]["chosen"]["scaling"] in ("file", "model")
        figures = found[name]
        shown = f"{figures['mean_log_density']:.4f}"
        line = next(line for line in outcome.out.splitlines() if line.startswith(f"{name} "))
        assert shown in line
        assert line.endswith(f"{figures['gain']:.4f} ± {2 * figures['gain_se']:.4f}")
    page = (scored / "evaluate/test/report.html").read_text()
    assert "MADE" in page
    assert "residual flow" in page
    assert "by class, fit experts, scaling" in page


@pytest.mark.usefixtures("quick")
def test_competitors_alone_and_the_same_numbers_again(bayesnde: Callable, scored: Path) -> None:
    options = ["evaluate", "--run", scored, *FEW, "--baseline", "nsf,nsf"]
    assert bayesnde(*options).code == 0
    first = _metrics(scored)
    assert list(first["baselines"]) == ["nsf"]
    assert "(up to date)" in bayesnde(*options).out
    assert bayesnde(*options, "--restart").code == 0
    assert _metrics(scored) == first
    other = bayesnde("evaluate", "--run", scored, *FEW)
    assert other.code == 2
    assert "  settings.baseline: ['nsf', 'nsf'] -> (none)\n" in other.err


def test_what_was_evaluated_before_there_were_competitors_is_up_to_date(bayesnde: Callable, scored: Path) -> None:
    assert bayesnde("evaluate", "--run", scored, *FEW).code == 0
    path = scored / "evaluate/test/manifest.json"
    settings = json.loads(path.read_text())["identity"]["settings"]
    assert settings["baseline"] is None


def test_without_the_packages_it_says_what_to_install_before_the_work(
    bayesnde: Callable, scored: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(neural, "find_spec", lambda name: None)
    outcome = bayesnde("evaluate", "--run", scored, *FEW, "--baseline", "nsf", "--baseline", "cfm")
    assert outcome.code == 2
    assert outcome.err == (
        "error: --baseline nsf --baseline cfm needs packages that are not installed\n"
        "  no torch, zuko, normflows\n"
        "hint: run `pip install 'bayesnde[baselines]'`, then the same command again\n"
    )
    assert not (scored / "evaluate").exists()


def test_a_name_that_is_none_has_the_nearest_one_as_its_hint(bayesnde: Callable, scored: Path) -> None:
    outcome = bayesnde("evaluate", "--run", scored, *FEW, "--baseline", "realnpv")
    assert outcome.code == 2
    assert outcome.err == (
        "error: --baseline cannot be 'realnpv'\n"
        "  choices: made, maf, realnvp, nsf, cfm, resflow, roundtrip\n"
        "hint: did you mean 'realnvp'?\n"
    )


def test_fit_refuses_at_once_what_evaluate_would_refuse_in_the_end(
    bayesnde: Callable, examples: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(neural, "find_spec", lambda name: None if name == "torch" else object())
    data = examples / "faithful.csv"
    outcome = bayesnde("fit", data, "--run", tmp_path / "run", "--set", "evaluate.baseline=maf,made")
    assert outcome.code == 2
    assert outcome.err == (
        "error: --baseline maf --baseline made needs packages that are not installed\n"
        "  no torch\n"
        "hint: run `pip install 'bayesnde[baselines]'`, then the same command again\n"
    )
    assert not (tmp_path / "run" / "prepare").exists()
