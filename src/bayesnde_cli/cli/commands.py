"""The commands of `bayesnde`, as the option parser sees them."""

from typing import Annotated

import typer

from bayesnde_cli import __version__
from bayesnde_cli.cli import prepare, refine, simulate, status, warmstart

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


def run_command(arguments: list[str]) -> int:
    """Run one command line; the exit code that the command asks for."""
    code = typer.main.get_command(app).main(args=arguments, prog_name="bayesnde", standalone_mode=False)
    return code if isinstance(code, int) else 0
