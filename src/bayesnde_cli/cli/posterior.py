"""`bayesnde posterior`: draws from the latent posterior of every row."""

import functools

from bayesnde_cli.cli.console import Console
from bayesnde_cli.cli.options import JsonOption, QuietOption, RestartOption, RunOption, VerboseOption, with_settings
from bayesnde_cli.cli.run_directory import run_directory
from bayesnde_cli.cli.scoring_options import DataArgument, ShardOption, asked_for
from bayesnde_cli.config import PosteriorConfig


@with_settings(PosteriorConfig)
def posterior(
    config: PosteriorConfig,
    data: DataArgument = None,
    shard: ShardOption = None,
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
    """
    from bayesnde_cli.artifacts.layout import RunLayout
    from bayesnde_cli.stages.scoring import open_engine, run_posterior

    console = Console(quiet=quiet)
    layout = RunLayout(run_directory(run))
    factory = functools.partial(open_engine, is_verbose=verbose >= 2)
    asked = asked_for(data, shard, is_restart=restart)
    console.finish(run_posterior(layout, asked, config, console, factory=factory), is_json=json)
