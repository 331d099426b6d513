"""What the commands that apply a fitted run are told alike, and how they end."""

from pathlib import Path
from typing import Annotated

import typer

from bayesnde_cli.cli.console import Console, Outcome
from bayesnde_cli.errors import BadUsage

# Of the settings of `density`, those that a command which scores rows has a flag for.
SETTINGS = ("seed", "device", "threads")

ConditionOption = Annotated[
    str | None,
    typer.Option("--condition", metavar="CLASS", help="Given this class. [default: all, as often as in training]"),
]


def check_json(out: Path | None, *, is_json: bool) -> None:
    """Refuse, before the long work, two results on stdout."""
    if is_json and out is not None and str(out) == "-":
        raise BadUsage("--json and --out - both write to stdout", found="both", hint="give --out FILE, or no --json")


def finish(console: Console, outcome: Outcome, out: Path | None, *, is_json: bool) -> None:
    """Say what was made: on stdout, unless the table is there."""
    if out is not None and str(out) == "-":
        console.note(str(outcome))
    else:
        console.finish(outcome, is_json=is_json)
