"""Numbers and commands as people read and type them."""

from bayesnde_cli.formatting import (
    NO_BREAK,
    format_nats,
    format_number,
    format_share,
    format_with_error,
    shell_assignments,
    shell_options,
)


def test_numbers_have_significant_digits() -> None:
    values = (-4.35211, 12345.6, 3.2e-7, 2e7, 0.0, None, float("nan"), float("inf"))
    shown = ["-4.352", "12,346", "3.200e-7", "2.000e+7", "0", "–", "–", "infinite"]
    assert [format_number(value) for value in values] == shown


def test_log_densities_have_decimals_and_two_standard_errors() -> None:
    assert format_nats(-1234.5) == "-1,234.500"
    assert format_with_error(-4.0, 0.05) == f"-4.000 ±{NO_BREAK}0.100"
    assert format_with_error(-4.0, None) == "-4.000"


def test_a_share_never_rounds_to_all_or_nothing() -> None:
    parts = ((27, 27), (9999, 10000), (999999, 1000000), (1, 3), (0, 0))
    shown = [f"100{NO_BREAK}%", f"99.99{NO_BREAK}%", f"99.99{NO_BREAK}%", f"33.3{NO_BREAK}%", "–"]
    assert [format_share(*part) for part in parts] == shown


def test_settings_are_options_of_a_command() -> None:
    settings = {"split": (0.5, 0.25, 0.25), "drop": ["a b", "c"], "baselines": False, "keep_draws": True, "seed": None}
    words = ["--split 0.5,0.25,0.25", "--drop 'a b'", "--drop c", "--no-baselines", "--keep-draws"]
    assert shell_options(settings) == words
    assert shell_assignments("refine", {"epochs": 50, "fast": True}) == [
        "--set refine.epochs=50",
        "--set refine.fast=true",
    ]
