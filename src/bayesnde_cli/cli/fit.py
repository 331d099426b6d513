"""`bayesnde fit`: from a table to a report, stage after stage."""

import functools
import io
import sys
from pathlib import Path
from typing import Annotated

import typer

from bayesnde_cli.cli.console import Console
from bayesnde_cli.cli.options import (
    AssignmentsOption,
    JsonOption,
    QuietOption,
    RunOption,
    Sources,
    VerboseOption,
    with_settings,
)
from bayesnde_cli.cli.run_directory import run_directory
from bayesnde_cli.config import DensityConfig, EvaluateConfig, PrepareConfig, RefineConfig, WarmstartConfig


@with_settings(PrepareConfig)
def fit(
    data: Annotated[
        list[Path],
        typer.Argument(
            metavar="DATA",
            help="CSV, TSV, Parquet, NPY, NPZ, MAT, ARFF or IDX files, or folders of images; - is stdin.",
        ),
    ],
    config: PrepareConfig,
    sources: Sources,
    assignments: AssignmentsOption = None,
    run: RunOption = None,
    restart: Annotated[
        bool, typer.Option("--restart", help="Replace stages that were made with other settings or data.")
    ] = False,
    json: JsonOption = False,
    quiet: QuietOption = False,
    verbose: VerboseOption = 0,
) -> None:
    """From a table to a report: prepare, warmstart, refine, density of the test rows, evaluate.

    A stage that is done is not done again; after an interruption, the same command goes on, with --restart too: it
    replaces what was made with other settings or data, and keeps what is up to date. The options are those of
    `prepare`; settings of the other stages come from --set, --config or --preset.

    \b
    Example:
      bayesnde fit data.csv
      bayesnde fit data.csv --preset fast --run first
      bayesnde fit vehicle.csv --condition class --set refine.epochs=50
    """
    from bayesnde_cli.artifacts.layout import RunLayout
    from bayesnde_cli.stages.fit import FitSettings, run_fit
    from bayesnde_cli.stages.scoring import open_engine

    more = assignments or ()
    settings = FitSettings(
        config,
        sources.resolve(WarmstartConfig, assignments=more),
        sources.resolve(RefineConfig, assignments=more),
        sources.resolve(DensityConfig, assignments=more),
        sources.resolve(EvaluateConfig, assignments=more),
    )
    console = Console(quiet=quiet)
    stdin = sys.stdin.buffer if sys.stdin else io.BytesIO()  # a closed standard input is None in Python
    fitted = run_fit(
        RunLayout(run_directory(run)), data, settings, console, stdin=stdin, is_restart=restart,
        is_verbose=verbose >= 2, factory=functools.partial(open_engine, is_verbose=verbose >= 2),
    )  # fmt: skip
    console.closing(fitted, "fitted", is_json=json)
