"""`bayesnde prepare`: a table becomes checked, typed, split and scaled Parquet."""

import io
import sys
from pathlib import Path
from typing import Annotated

import typer

from bayesnde_cli.cli.console import Console
from bayesnde_cli.cli.options import JsonOption, QuietOption, RestartOption, RunOption, with_settings
from bayesnde_cli.cli.run_directory import run_directory
from bayesnde_cli.config import PrepareConfig


@with_settings(PrepareConfig)
def prepare(
    data: Annotated[
        list[Path],
        typer.Argument(
            metavar="DATA",
            help="CSV, TSV, Parquet, NPY, NPZ, MAT, ARFF or IDX files, or folders of images; - is stdin.",
        ),
    ],
    config: PrepareConfig,
    run: RunOption = None,
    restart: RestartOption = False,
    json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Check, type, split and scale a table; the first stage of a run.

    The format, separators, header and types are found out and shown. The scaling is fitted on training rows only,
    and every later log-density is reported in the units of the file.

    \b
    Example:
      bayesnde prepare data.csv
      bayesnde prepare bank.csv --drop duration --condition y --run bank
      bayesnde prepare photos/ --condition label --run photos
      bayesnde simulate moons --rows 5000 | bayesnde prepare -
    """
    from bayesnde_cli.artifacts.layout import RunLayout
    from bayesnde_cli.stages.prepare import run as run_stage

    console = Console(quiet=quiet)
    layout = RunLayout(run_directory(run))
    stdin = sys.stdin.buffer if sys.stdin else io.BytesIO()  # a closed standard input is None in Python
    result = run_stage(layout, data, config, console, stdin=stdin, is_restart=restart)
    console.finish(result, is_json=json)
