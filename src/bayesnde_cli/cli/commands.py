"""The commands of `bayesnde`, as the option parser sees them."""

import importlib
import os
from collections.abc import Callable
from typing import Annotated, Any

import typer

from bayesnde_cli import __version__
from bayesnde_cli.config import nearest_hint
from bayesnde_cli.errors import BadUsage

# Name and first line of each command; the list of commands is shown without loading them.
COMMANDS = {
    "fit": "From a table to a report: prepare, warmstart, refine, density of the test rows, evaluate.",
    "prepare": "Check, type, split and scale a table; the first stage of a run.",
    "warmstart": "Fit the generative model from scratch; the second stage of a run.",
    "refine": "Refine the warm start; the third stage of a run.",
    "posterior": "Draw from the latent posterior of every row; `density` uses the draws.",
    "density": "The log-density of every row, with its Monte-Carlo error and a verdict.",
    "evaluate": "How good the densities are: figures with errors, beside plain estimators on the same rows.",
    "sample": "New rows of the fitted model, in the units and types of the file that it was fitted to.",
    "outliers": "The rows of lowest density, with their rank, error and verdict beside their own columns.",
    "classify": "The probability of every class for every row, p(y | x), from densities p(x | y).",
    "grid": "The density of two columns on a grid, all others integrated out, as a table and a picture.",
    "simulate": "Rows of a distribution whose exact log-density is known, as the column true_log_density.",
    "reproduce": "The paper's experiments by name: our figure beside the paper's and beside every competitor's.",
    "slurm": "Have a SLURM cluster score the rows: writes an array job and its gather job, and sends them.",
    "status": "Where a run stands: missing, queued, running, interrupted, done, stale or damaged, and what is next.",
}


def run_command(arguments: list[str]) -> int:
    """Run one command line; the exit code that the command asks for."""
    is_completing = any(name.endswith("_BAYESNDE_COMPLETE") for name in os.environ)
    loaded = set(COMMANDS) if is_completing else set(arguments) & set(COMMANDS)
    if not is_completing and arguments and not arguments[0].startswith("-") and arguments[0] not in COMMANDS:
        raise unknown_command(arguments[0])
    code = typer.main.get_command(_app(loaded)).main(args=arguments, prog_name="bayesnde", standalone_mode=False)
    return code if isinstance(code, int) else 0


def unknown_command(word: str) -> BadUsage:
    """For a first word that is no command."""
    return BadUsage(
        f"there is no command '{word}'",
        found=f"commands: {', '.join(COMMANDS)}",
        hint=nearest_hint(word, list(COMMANDS), "see `bayesnde --help`"),
    )


def command(name: str) -> Callable[..., None]:
    """The function behind a command."""
    function: Callable[..., None] = getattr(importlib.import_module(f"bayesnde_cli.cli.{name}"), name)
    return function


def _app(loaded: set[str]) -> typer.Typer:
    """The program, with the commands that are loaded and the first lines of the others."""
    app = typer.Typer(
        name="bayesnde",
        # Plain help: the pretty one costs a tenth of a second, more than everything else together.
        rich_markup_mode=None,
        no_args_is_help=True,
        context_settings={"help_option_names": ["--help", "-h"], "max_content_width": 100},
    )
    app.callback()(bayesnde)
    for name, first_line in COMMANDS.items():
        if name in loaded:
            app.command(name, short_help=first_line)(command(name))
        else:
            app.command(name, help=first_line, short_help=first_line)(_nothing)
    return app


def _nothing() -> Any:
    """In the place of a command that is only listed."""


def _show_version(wanted: bool) -> None:
    if wanted:
        print(f"bayesnde {__version__}")
        raise typer.Exit


def bayesnde(
    version: Annotated[
        bool, typer.Option("--version", help="Show the version and exit.", callback=_show_version, is_eager=True)
    ] = False,
) -> None:
    """Log-densities of the rows of a table, each with its Monte-Carlo error and a verdict.

    \b
    Example:
      bayesnde fit data.csv
      bayesnde status
      bayesnde density new.csv --out scored.csv

    \b
    Or stage by stage:
      bayesnde prepare data.csv
      bayesnde warmstart
      bayesnde refine
      bayesnde density
      bayesnde evaluate
    """
