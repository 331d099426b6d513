"""`bayesnde posterior`: draws from the latent posterior of every row."""

import functools
from dataclasses import replace
from typing import Annotated

import typer

from bayesnde_cli.cli.console import Console
from bayesnde_cli.cli.options import JsonOption, QuietOption, RestartOption, RunOption, VerboseOption, with_settings
from bayesnde_cli.cli.run_directory import run_directory
from bayesnde_cli.cli.scoring_options import DataArgument, ShardOption, asked_for
from bayesnde_cli.config import PosteriorConfig, nearest_hint
from bayesnde_cli.errors import BadUsage

_EXPORTS = ("netcdf",)


@with_settings(PosteriorConfig)
def posterior(
    config: PosteriorConfig,
    data: DataArgument = None,
    shard: ShardOption = None,
    export: Annotated[
        str | None,
        typer.Option(metavar="FORMAT", help="Write all draws to one file, too: netcdf, which ArviZ reads."),
    ] = None,
    run: RunOption = None,
    restart: RestartOption = False,
    json: JsonOption = False,
    quiet: QuietOption = False,
    verbose: VerboseOption = 0,
) -> None:
    """Draw from the latent posterior of every row; `density` uses the draws.

    Rows are worked on in blocks, which any number of processes may share: each takes a block that nobody has. Stopped
    or killed, the same command goes on with the blocks that are missing, to the same result.

    \b
    Example:
      bayesnde posterior
      bayesnde posterior new.csv --draws 400 --run bank
      bayesnde posterior --shard 3/8
      bayesnde posterior --export netcdf
    """
    from bayesnde_cli.artifacts.layout import RunLayout
    from bayesnde_cli.stages.scoring import open_engine, run_posterior

    _check_export(export, shard)
    console = Console(quiet=quiet)
    layout = RunLayout(run_directory(run))
    factory = functools.partial(open_engine, is_verbose=verbose >= 2)
    asked = replace(asked_for(data, shard, is_restart=restart), is_exporting=export is not None)
    console.finish(run_posterior(layout, asked, config, console, factory=factory), is_json=json)


def _check_export(export: str | None, shard: str | None) -> None:
    """Refuse, before the long work, an export that cannot be."""
    if export is not None and export not in _EXPORTS:
        raise BadUsage(
            f"--export cannot be '{export}'",
            found=f"formats: {', '.join(_EXPORTS)}",
            hint=nearest_hint(export, _EXPORTS, "use --export netcdf"),
        )
    if export is not None and shard is not None:
        raise BadUsage(
            "--export writes all draws, and --shard makes a part of them",
            found=f"--export {export} --shard {shard}",
            hint="run all shards first, then once without --shard",
        )
