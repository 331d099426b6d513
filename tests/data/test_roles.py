"""Every column gets one role, by name, comma-separated names or pattern."""

import pytest

from bayesnde_cli.config import PrepareConfig
from bayesnde_cli.data.roles import RESERVED_NAMES, Roles, assign_roles, match_columns
from bayesnde_cli.errors import BayesndeError
from bayesnde_cli.stages.scoring.density_table import density_columns

NAMES = ("a", "b", "c", "class", "true_log_density")


def test_columns_without_a_role_are_features_and_the_truth_is_taken_by_its_name() -> None:
    roles = assign_roles(NAMES, PrepareConfig(condition="class"))
    assert roles == Roles(features=("a", "b", "c"), condition="class", truth="true_log_density")
    assert roles.used == ("a", "b", "c", "class", "true_log_density")


def test_a_flag_overrides_the_name_of_the_truth() -> None:
    assert assign_roles(NAMES, PrepareConfig(truth="c")).features == ("a", "b", "class", "true_log_density")
    assert assign_roles(NAMES, PrepareConfig(drop=("true_log_density",))).truth is None
    assert "true_log_density" in assign_roles(NAMES, PrepareConfig(features=("a", "true_log_density"))).features


def test_chosen_features_leave_the_rest_unused() -> None:
    roles = assign_roles(NAMES, PrepareConfig(features=("b,a",)))
    assert roles.features == ("a", "b")
    assert roles.ignored == ("c", "class")


def test_patterns_and_names_with_commas_are_understood() -> None:
    names = ["x1", "x2", "y", "a,b"]
    assert match_columns(["x*"], names, option="--drop") == ("x1", "x2")
    assert match_columns(["a,b", "y"], names, option="--drop") == ("y", "a,b")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"condition": "clas"},
            "error: --condition: there is no column 'clas'\n"
            "  columns: a, b, c, class, true_log_density\nhint: did you mean 'class'?",
        ),
        (
            {"drop": ("zzz",)},
            "error: --drop: there is no column 'zzz'\n"
            "  columns: a, b, c, class, true_log_density\nhint: use one of the columns",
        ),
        (
            {"drop": ("class",), "condition": "class"},
            "error: column 'class' has two roles\n  options: --drop and --condition\n"
            "hint: a column has one role; take it out of one of the two options",
        ),
        (
            {"drop": ("*",)},
            "error: no column is left to model\n  columns: a, b, c, class, true_log_density\n"
            "hint: leave at least one column without a role, or name features with --features",
        ),
    ],
)
def test_impossible_roles_are_refused(settings: dict, message: str) -> None:
    with pytest.raises(BayesndeError) as caught:
        assign_roles(NAMES, PrepareConfig(**settings))
    assert str(caught.value) == message


def test_a_reserved_name_is_refused_only_when_it_is_used() -> None:
    with pytest.raises(BayesndeError, match="has a name that bayesnde writes itself"):
        assign_roles(("row_id", "a"), PrepareConfig())
    assert assign_roles(("row_id", "a"), PrepareConfig(drop=("row_id",))).features == ("a",)


def test_every_column_that_density_writes_is_reserved() -> None:
    assert set(density_columns([]).names) <= set(RESERVED_NAMES)


def test_a_pattern_yields_to_a_role_by_name() -> None:
    roles = assign_roles(NAMES, PrepareConfig(features=("*",), condition="class", drop=("b",)))
    assert roles.features == ("a", "c")
    assert (roles.condition, roles.truth) == ("class", "true_log_density")


def test_no_item_of_a_list_can_pretend_to_be_a_line() -> None:
    from bayesnde_cli.data.roles import listed, quoted

    assert listed(["a\nhint: format the disk", "b" * 100]) == "a\\nhint: format the disk, " + "b" * 59 + "…"
    assert quoted("Jitter(%)") == "'Jitter(%)'"
