"""`bayesnde refine`: the model, from the warm start."""

from bayesnde_cli.cli.console import Console
from bayesnde_cli.cli.options import JsonOption, QuietOption, RestartOption, RunOption, VerboseOption, with_settings
from bayesnde_cli.cli.run_directory import run_directory
from bayesnde_cli.config import RefineConfig


@with_settings(RefineConfig)
def refine(
    config: RefineConfig,
    run: RunOption = None,
    restart: RestartOption = False,
    json: JsonOption = False,
    quiet: QuietOption = False,
    verbose: VerboseOption = 0,
) -> None:
    """Refine the warm start; the third stage of a run.

    By default with the importance-weighted bound: draws from the encoder's proposal, weighted, stand for the latent
    posterior, so that the marginal likelihood itself is maximised. --latent-update posterior draws from it by Markov
    chains; --latent-update map maximises over the latents, as the paper does, and needs its regularisers. Selection,
    checkpoints and resumption are those of `warmstart`.

    \b
    Example:
      bayesnde refine
      bayesnde refine --draws 16 --run bank
      bayesnde refine --preset paper-bank --run bank
    """
    from bayesnde_cli.artifacts.layout import RunLayout
    from bayesnde_cli.stages.training import run_refine

    console = Console(quiet=quiet)
    layout = RunLayout(run_directory(run))
    console.finish(run_refine(layout, config, console, is_restart=restart, is_verbose=verbose >= 2), is_json=json)
