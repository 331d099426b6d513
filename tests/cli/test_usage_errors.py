"""Wrong command lines: one message of three parts, with the right way out."""

from collections.abc import Callable
from pathlib import Path

import pytest

from bayesnde_cli.cli.main import COMMANDS

NAMES = ", ".join(COMMANDS)
EMPTY_RUN = "--run is empty\n  --run ''\nhint: name a directory; is a variable of the shell not set?"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["frobnicate"], f"there is no command 'frobnicate'\n  commands: {NAMES}\nhint: see `bayesnde --help`"),
        (["fitt", "x.csv"], f"there is no command 'fitt'\n  commands: {NAMES}\nhint: did you mean 'fit'?"),
        (
            ["prepare"],
            "missing argument 'DATA'\n  typed: bayesnde prepare\n"
            "hint: for instance `bayesnde prepare data.csv`; see `bayesnde prepare --help`",
        ),
        (
            ["fit", "my table.csv", "--run"],
            "option '--run' requires an argument\n  typed: bayesnde fit 'my table.csv' --run\n"
            "hint: for instance `bayesnde fit data.csv`; see `bayesnde fit --help`",
        ),
        (
            ["fit", "x.csv", "--epochs", "5"],
            "`bayesnde fit` has no option --epochs\n  epochs is a setting of: warmstart, refine\n"
            "hint: write --set warmstart.epochs=VALUE or --set refine.epochs=VALUE",
        ),
        (
            ["refine", "--target-se", "0.1"],
            "`bayesnde refine` has no option --target-se\n  target_se is a setting of: density\n"
            "hint: give it to `bayesnde density`",
        ),
        (
            ["status", "--runn", "x"],
            "`bayesnde status` has no option --runn\n  known: --verify, --run, --json\nhint: did you mean '--run'?",
        ),
        (
            ["fit", "x.csv", "--config", "none.toml"],
            "config file none.toml does not exist\n  no such file in the working directory\n"
            "hint: check the path given with --config",
        ),
        (["prepare", "x.csv", "--run", ""], EMPTY_RUN),  # not the working directory
        (["status", "--run", ""], EMPTY_RUN),
    ],
)
def test_a_wrong_command_line_gets_one_message_of_three_parts(
    arguments: list[str], message: str, bayesnde: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert bayesnde(*arguments) == (2, "", f"error: {message}\n")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("arguments", [["sample", "many"], ["status", "extra"], ["sample", "-5"], ["--verson"]])
def test_messages_of_the_option_parser_have_three_parts_too(arguments: list[str], bayesnde: Callable) -> None:
    outcome = bayesnde(*arguments)
    what, found, hint = outcome.err.splitlines()
    assert (outcome.code, outcome.out) == (2, "")
    assert (what[:7], found[:2], hint[:6]) == ("error: ", "  ", "hint: ")


def test_commands_in_the_wrong_order_name_all_that_come_before(
    bayesnde: Callable, examples: Path, tmp_path: Path
) -> None:
    run = tmp_path / "r"
    assert bayesnde("prepare", examples / "faithful.csv", "--run", run).code == 0
    for arguments in (["density"], ["evaluate"], ["sample", "5"], ["outliers"]):
        assert bayesnde(*arguments, "--run", run) == (
            3,
            "",
            f"error: refine is missing or incomplete\n  no {run}/refine/manifest.json\n"
            f"hint: run `bayesnde warmstart --run {run}`, then `bayesnde refine --run {run}`\n",
        )
