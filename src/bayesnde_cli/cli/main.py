"""The program `bayesnde`: its commands, and how an exception becomes a message and an exit code.

Signals are handled before anything else is loaded, and a command's own modules are loaded only if it is called.
"""

import errno
import importlib
import os
import shlex
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Annotated, Any

from bayesnde_cli import __version__, stopping
from bayesnde_cli.errors import BadUsage, BayesndeError, CannotWrite, OutputClosed, Stopped, unknown_word

if TYPE_CHECKING:
    import typer

    from bayesnde_cli.cli.console import Console

_HELP = """Log-densities of the rows of a table, each with its Monte-Carlo error and a verdict.

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
# Name and first line of each command; the list of commands is shown without loading them.
COMMANDS = {
    "fit": "Go from a table to a report: prepare, warmstart, refine, density of the test rows, evaluate.",
    "prepare": "Check, type, split and scale a table; the first stage of a run.",
    "warmstart": "Fit the generative model from scratch; the second stage of a run.",
    "refine": "Refine the warm start; the third stage of a run.",
    "posterior": "Draw from the latent posterior of every row, for `density` to use.",
    "density": "Compute the log-density of every row, with its Monte-Carlo error and a verdict.",
    "evaluate": "Measure how good the densities are, and compare them with classical estimators on the same rows.",
    "sample": "Draw new rows from the fitted model, in the units and types of the original table.",
    "outliers": "List the rows of lowest density, with rank, error, verdict and all their columns.",
    "classify": "Compute the probability of every class for every row, p(y | x), from densities p(x | y).",
    "grid": "Compute the joint density of two columns on a grid, as a table and a picture.",
    "simulate": "Simulate rows of a known distribution, with their exact log-density in a column.",
    "reproduce": "Rerun the paper's experiments by name and compare with the paper and with competitors.",
    "slurm": "Score rows on a SLURM cluster: write, and optionally submit, an array job and its gather job.",
    "status": "Show the state of every stage of a run, and the next command.",
}
# Where the functions of commands are; the other commands run stages.
_MODULES = {
    "answer_commands": {"sample", "outliers", "classify", "grid"},
    "support_commands": {"simulate", "status", "reproduce"},
}
# Errors of a write to stdout; an error of a file names the file.
_OUTPUT_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EIO)


def main() -> None:
    """Run the command line and exit."""
    code = run(sys.argv[1:])
    stopping.ignore()
    sys.exit(code)


def run(arguments: list[str]) -> int:
    """Run a command line and return its exit code."""
    with stopping.listening():
        from bayesnde_cli.cli.console import Console

        console = Console()
        try:
            code = run_command(arguments)
            if sys.stdout is not None:
                sys.stdout.flush()
            return code
        except Stopped as stopped:
            console.error(str(stopped))
            return stopped.exit_code
        except Exception as error:
            return _explain(error, arguments, console)


def _explain(error: Exception, arguments: list[str], console: "Console") -> int:
    """Print the message of an error and return the exit code."""
    if isinstance(error, BayesndeError):
        console.error(str(error))
        return error.exit_code
    if isinstance(error, BrokenPipeError | OutputClosed):
        # The reader of the output has gone, as `| head` does. Python must not complain about it at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    if isinstance(error, OSError) and error.errno in _OUTPUT_ERRORS and error.filename is None:
        hint = "free some space and run again"
        console.error(str(CannotWrite("cannot write the output", found=os.strerror(error.errno), hint=hint)))
        return 2
    if hasattr(error, "format_message"):  # a usage error of the option parser
        message = error.format_message()
        if message.startswith("Usage:"):  # no command given: the message is the help itself
            print(message, file=sys.stderr)
        else:
            console.error(str(_usage_error(error, arguments)))
        return 2
    import traceback

    console.error(f"error: this is a bug in bayesnde {__version__}, please report it with what follows")
    traceback.print_exc()
    return 1


def run_command(arguments: list[str]) -> int:
    """Run one command line; returns the exit code that the command asks for."""
    is_completing = any(name.endswith("_BAYESNDE_COMPLETE") for name in os.environ)
    loaded = set(COMMANDS) if is_completing else set(arguments) & set(COMMANDS)
    if not is_completing and arguments and not arguments[0].startswith("-") and arguments[0] not in COMMANDS:
        what, otherwise = f"there is no command '{arguments[0]}'", "see `bayesnde --help`"
        raise unknown_word(what, arguments[0], list(COMMANDS), label="commands", otherwise=otherwise)
    import typer.main

    code = typer.main.get_command(_app(loaded)).main(args=arguments, prog_name="bayesnde", standalone_mode=False)
    return code if isinstance(code, int) else 0


def command(name: str) -> Callable[..., None]:
    """The function behind a command."""
    module = next((module for module, names in _MODULES.items() if name in names), "stage_commands")
    function: Callable[..., None] = getattr(importlib.import_module(f"bayesnde_cli.cli.{module}"), name)
    return function


def _app(loaded: set[str]) -> "typer.Typer":
    """The program, with the commands that are loaded and the first lines of the others."""
    import typer

    from bayesnde_cli.cli.options import GroupedCommand

    def show_version(wanted: bool) -> None:
        if wanted:
            print(f"bayesnde {__version__}")
            raise typer.Exit

    flag = typer.Option("--version", help="Show the version and exit.", callback=show_version, is_eager=True)

    def bayesnde(version: Annotated[bool, flag] = False) -> None:
        pass

    app = typer.Typer(
        name="bayesnde",
        help=_HELP,
        # Plain help: the pretty one costs a tenth of a second, more than everything else together.
        rich_markup_mode=None,
        no_args_is_help=True,
        context_settings={"help_option_names": ["--help", "-h"], "max_content_width": 100},
    )
    app.callback()(bayesnde)
    for name, first_line in COMMANDS.items():
        if name in loaded:
            app.command(name, cls=GroupedCommand, short_help=first_line)(command(name))
        else:
            app.command(name, help=first_line, short_help=first_line)(lambda: None)
    return app


def _usage_error(error: Any, arguments: Sequence[str]) -> BayesndeError:
    """The message for an exception of the option parser, whose classes are known by their attributes alone."""
    name = next((word for word in arguments if word in COMMANDS), None)
    option, context = getattr(error, "option_name", None), getattr(error, "ctx", None)
    if name and option and context is not None and hasattr(error, "possibilities"):
        known = [word for item in context.command.params for word in (*item.opts, *item.secondary_opts)]
        return _unknown_option(name, option, [word for word in known if word.startswith("--")])
    message = error.format_message()
    hint = "see `bayesnde --help`"
    if name:
        example = (command(name).__doc__ or "").partition("Example:")[2].strip().partition("\n")[0]
        hint = f"for instance `{example}`; see `bayesnde {name} --help`"
    return BadUsage(
        (message[0].lower() + message[1:]).rstrip("."),
        found=f"typed: {shlex.join(['bayesnde', *arguments])}",
        hint=hint,
    )


def _unknown_option(name: str, option: str, known: Sequence[str]) -> BayesndeError:
    """The message for an option that a command does not have; it names the stages that have such a setting."""
    from bayesnde_cli.settings.stage_settings import STAGE_SETTINGS

    what = f"`bayesnde {name}` has no option {option}"
    key = option.lstrip("-").replace("-", "_")
    stages = [stage for stage, settings in STAGE_SETTINGS.items() if key in settings.model_fields]
    if stages:
        ways = [f"--set {stage}.{key}=VALUE" if "--set" in known else f"`bayesnde {stage}`" for stage in stages]
        hint = f"{'write' if '--set' in known else 'give it to'} {' or '.join(ways)}"
        return BadUsage(what, found=f"{key} is a setting of: {', '.join(stages)}", hint=hint)
    return unknown_word(what, option, known, label="known", otherwise=f"see `bayesnde {name} --help`")
