"""`--require`: what is understood, what is met, and what is said if not."""

import numpy as np
import pytest

from bayesnde_cli.errors import BadUsage, RequirementNotMet
from bayesnde_cli.evaluation.outliers import outlier_figures
from bayesnde_cli.evaluation.requirements import _SECTIONS, Requirement, check_requirements, parse_requirement
from bayesnde_cli.evaluation.truth import truth_figures

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
    ("text", "wanted"),
    [
        ("truth.spearman>=0.97", ("truth.spearman", ">=", 0.97)),
        (" mean_log_density > -4.1 ", ("mean_log_density", ">", -4.1)),
        ("rows.n==5e2", ("rows.n", "==", 500.0)),
        ("classes.a>b.n<7", ("classes.a>b.n", "<", 7.0)),
        ("a<=-inf", ("a", "<=", float("-inf"))),
    ],
)
def test_the_forms_of_a_requirement(text: str, wanted: tuple) -> None:
    assert parse_requirement(text) == Requirement(*wanted)


@pytest.mark.parametrize(
    "text", ["", "spearman", ">=3", "spearman>=", "a>=b", "a=3", "a>=nan", "a=>3", "a!=3", "a=<3", "a ~> 3", "a<>3"]
)
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(BadUsage, match="is not of the form NAME OP VALUE"):
        parse_requirement(text)


def test_requirements_that_are_met_pass() -> None:
    _check()
    _check("truth.spearman>=0.95", "truth.spearman<=0.95", "truth.spearman==0.95", "mean_log_density>-5",
           "mean_log_density<0", "classes.a>b.n>=3")  # fmt: skip


@pytest.mark.parametrize("text", ["truth.spearman>0.95", "truth.spearman<0.95", "mean_log_density>=-4.1999"])
def test_a_bar_that_is_just_missed_is_missed(text: str) -> None:
    with pytest.raises(RequirementNotMet):
        _check(text)


def test_the_message_says_what_was_found_and_wanted_and_by_how_much() -> None:
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
    with pytest.raises(RequirementNotMet, match="error: the requirement is not met"):
        _check("mean_log_density>=-4.1")


def test_a_name_that_is_no_figure_is_refused_with_the_names_that_are() -> None:
    with pytest.raises(BadUsage) as caught:
        _check("mean_log_density<=0", "truth.spearmann>=0.9")
    assert str(caught.value) == (
        "error: --require: there is no figure 'truth.spearmann'\n"
        "  figures: mean_log_density, truth.spearman, truth.rmse, classes.a>b.n, outliers.n, outliers.n_outliers, "
        "outliers.precision_at_k, outliers.auroc, outliers.average_precision\n"
        "hint: did you mean 'truth.spearman'?"
    )


def test_a_wrong_name_in_a_section_that_is_not_there_is_refused_as_well() -> None:
    with pytest.raises(BadUsage, match=r"there is no figure 'outliers\.aurock'\n(.|\n)*did you mean 'outliers\.auroc'"):
        _check("outliers.aurock>=0.5")


def test_the_names_of_sections_that_rows_may_not_have_are_those_of_their_figures() -> None:
    nothing = np.empty(0)
    assert list(_SECTIONS["truth"]) == list(truth_figures(nothing, nothing))
    assert list(_SECTIONS["outliers"]) == list(outlier_figures(nothing, nothing.astype(bool)))
