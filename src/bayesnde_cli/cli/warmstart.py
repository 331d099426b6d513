"""`bayesnde warmstart`: the model, from scratch."""

from bayesnde_cli.cli.console import Console
from bayesnde_cli.cli.options import JsonOption, QuietOption, RestartOption, RunOption, VerboseOption, with_settings
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
    """Fit the generative model from scratch; the second stage of a run.

    By default by the evidence lower bound (--objective elbo); --objective egm is the paper's adversarial warm start,
    and only it has weights of terms. The weights of the best look at the validation rows are kept; test rows are never
    read. Stopped or killed, it goes on from its last checkpoint, to the same result.

    \b
    Example:
      bayesnde warmstart
      bayesnde warmstart --latent-dim 8 --epochs 300 --run bank
      bayesnde warmstart --preset paper-bank --run bank
    """
    from bayesnde_cli.artifacts.layout import RunLayout
    from bayesnde_cli.stages.training import run_warmstart

    console = Console(quiet=quiet)
    layout = RunLayout(run_directory(run))
    console.finish(run_warmstart(layout, config, console, is_restart=restart, is_verbose=verbose >= 2), is_json=json)
