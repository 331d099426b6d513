"""The program `bayesnde`: its commands, and how an exception becomes a message and an exit code."""

import errno
import os
import sys
from typing import Annotated

import typer

from bayesnde_cli import __version__
from bayesnde_cli.cli import prepare, refine, simulate, status, warmstart
from bayesnde_cli.cli.console import Console
from bayesnde_cli.cli.output_closed import OutputClosed
from bayesnde_cli.cli.signals import stopping_on_signals
from bayesnde_cli.errors import BayesndeError

app = typer.Typer(
    name="bayesnde",
    # Plain help: the pretty one costs a tenth of a second, more than everything else together.
    rich_markup_mode=None,
    no_args_is_help=True,
    context_settings={"help_option_names": ["--help", "-h"], "max_content_width": 100},
)
app.command("prepare")(prepare.prepare)
app.command("warmstart")(warmstart.warmstart)
app.command("refine")(refine.refine)
app.command("simulate")(simulate.simulate)
app.command("status")(status.status)


def _show_version(wanted: bool) -> None:
    if wanted:
        print(f"bayesnde {__version__}")
        raise typer.Exit


@app.callback()
def bayesnde(
    version: Annotated[
        bool, typer.Option("--version", help="Show the version and exit.", callback=_show_version, is_eager=True)
    ] = False,
) -> None:
    """Log-densities of the rows of a table, each with its Monte-Carlo error and a verdict.

    \b
    Example:
      bayesnde prepare data.csv
      bayesnde warmstart
      bayesnde refine
      bayesnde status
    """


def main() -> None:
    """Run the command line and exit."""
    sys.exit(run(sys.argv[1:]))


def run(arguments: list[str]) -> int:
    """The exit code of a command line."""
    console = Console()
    try:
        with stopping_on_signals():
            code = typer.main.get_command(app).main(args=arguments, prog_name="bayesnde", standalone_mode=False)
        if sys.stdout is not None:
            sys.stdout.flush()
        return code if isinstance(code, int) else 0
    except BayesndeError as error:
        console.error(str(error))
        return error.exit_code
    except (BrokenPipeError, OutputClosed):
        # The reader of our output has seen enough; keep Python from complaining about it at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EIO) or error.filename is not None:
            return _bug(console)
        console.error(
            f"error: cannot write the output\n  {os.strerror(error.errno)}\nhint: free some space and run again"
        )
        return 2
    except Exception as error:
        if hasattr(error, "format_message"):  # a usage error of the option parser
            return _usage_error(console, error)
        return _bug(console)


def _bug(console: Console) -> int:
    import traceback

    console.error(f"error: this is a bug in bayesnde {__version__}, please report it with what follows")
    traceback.print_exc()
    return 1


def _usage_error(console: Console, error: Exception) -> int:
    context = getattr(error, "ctx", None)
    command = context.command_path if context else "bayesnde"
    message = error.format_message()  # type: ignore[attr-defined]
    if not message.startswith("Usage:"):
        first = message[0].lower() + message[1:]
        console.error(f"error: {first.rstrip('.')}\nhint: see `{command} --help`")
    else:  # no command given: the message is the help itself
        print(message, file=sys.stderr)
    return 2
