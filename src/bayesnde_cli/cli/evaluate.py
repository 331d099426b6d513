"""`bayesnde evaluate`: how good the densities are."""

import functools
from typing import Annotated

import typer

from bayesnde_cli.cli.console import Console
from bayesnde_cli.cli.options import JsonOption, QuietOption, RestartOption, RunOption, VerboseOption, with_settings
from bayesnde_cli.cli.run_directory import run_directory
from bayesnde_cli.cli.scoring_options import DataArgument, asked_for
from bayesnde_cli.config import EvaluateConfig


@with_settings(EvaluateConfig)
def evaluate(
    config: EvaluateConfig,
    data: DataArgument = None,
    require: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME>=VALUE", help="A bar for a figure of metrics.json (>= <= > < ==); repeatable."),
    ] = None,
    run: RunOption = None,
    restart: RestartOption = False,
    json: JsonOption = False,
    quiet: QuietOption = False,
    verbose: VerboseOption = 0,
) -> None:
    """How good the densities are: figures with errors, beside plain estimators on the same rows.

    Reads what `density` has made of the test rows, or of DATA, and writes metrics.json and report.html. With --require,
    exit code 5 if a figure misses its bar.

    \b
    Example:
      bayesnde evaluate
      bayesnde evaluate new.csv --json
      bayesnde evaluate --require 'mean_log_density>=-4.1' --require 'truth.spearman>=0.97'
    """
    from bayesnde_cli.evaluation.requirements import check_requirements, parse_requirement

    requirements = [parse_requirement(text) for text in require or ()]
    from bayesnde_cli.artifacts.layout import RunLayout
    from bayesnde_cli.stages.evaluate import open_model, run_evaluate
    from bayesnde_cli.stages.scoring import open_engine

    console = Console(quiet=quiet)
    is_verbose = verbose >= 2
    outcome = run_evaluate(
        RunLayout(run_directory(run)), asked_for(data, None, is_restart=restart), config, console,
        models=functools.partial(open_model, is_verbose=is_verbose),
        factory=functools.partial(open_engine, is_verbose=is_verbose),
    )  # fmt: skip
    console.finish(outcome, is_json=json)
    check_requirements(requirements, outcome.metrics)
