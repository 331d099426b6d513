"""`bayesnde warmstart`: the evidence lower bound, from scratch."""

from bayesnde_cli.cli.console import Console
from bayesnde_cli.cli.options import (
    JsonOption,
    QuietOption,
    RestartOption,
    RunOption,
    VerboseOption,
    with_settings,
)
from bayesnde_cli.cli.run_directory import run_directory
from bayesnde_cli.config import WarmstartConfig


@with_settings(WarmstartConfig)
def warmstart(
    config: WarmstartConfig,
    run: RunOption = None,
    restart: RestartOption = False,
    json: JsonOption = False,
    quiet: QuietOption = False,
    verbose: VerboseOption = 0,
) -> None:
    """Fit the generative model by the evidence lower bound; the second stage of a run.

    The weights of the epoch with the best validation log-density are kept; test rows are never read. Stopped or killed,
    it goes on from its last checkpoint, to the same result.

    \b
    Example:
      bayesnde warmstart
      bayesnde warmstart --latent-dim 8 --epochs 300 --run bank
    """
    from bayesnde_cli.artifacts.layout import RunLayout
    from bayesnde_cli.stages.training import run_warmstart

    console = Console(quiet=quiet)
    layout = RunLayout(run_directory(run))
    console.finish(run_warmstart(layout, config, console, is_restart=restart, is_verbose=verbose >= 2), is_json=json)
