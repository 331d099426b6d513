"""`bayesnde slurm`: a SLURM cluster scores the rows."""

import functools
from pathlib import Path
from typing import Annotated

import typer

from bayesnde_cli.cli.console import Console
from bayesnde_cli.cli.options import (
    AssignmentsOption,
    JsonOption,
    QuietOption,
    RestartOption,
    RunOption,
    VerboseOption,
    with_settings,
)
from bayesnde_cli.cli.run_directory import run_directory
from bayesnde_cli.cli.scoring_options import asked_for
from bayesnde_cli.config import DensityConfig
from bayesnde_cli.stages.slurm.requests import Request, read_setup

_DEFAULT = Request()


@with_settings(DensityConfig, ())
def slurm(
    config: DensityConfig,
    data: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="[DATA]...",
            help="Files with the columns of the model. [default: the test rows]",
            show_default=False,
        ),
    ] = None,
    submit: Annotated[bool, typer.Option("--submit", help="Send both jobs to SLURM.")] = False,
    shards: Annotated[
        int | None,
        typer.Option(metavar="N", help=f"Tasks of the array. [default: {_DEFAULT.shards}]", show_default=False),
    ] = None,
    cpus_per_task: Annotated[int, typer.Option(metavar="N", help="CPUs, and threads, of a task.")] = (
        _DEFAULT.cpus_per_task
    ),
    gpus_per_task: Annotated[
        int, typer.Option(metavar="N", help="GPUs of a task; it fails if TensorFlow cannot use them.")
    ] = _DEFAULT.gpus_per_task,
    time: Annotated[
        str, typer.Option(metavar="TIME", help="Limit of a task, as in sbatch; one that needs more is requeued.")
    ] = _DEFAULT.time,
    partition: Annotated[str | None, typer.Option(metavar="NAME", help="As in sbatch.")] = None,
    account: Annotated[str | None, typer.Option(metavar="NAME", help="As in sbatch.")] = None,
    array_limit: Annotated[int | None, typer.Option(metavar="N", help="Tasks at a time. [default: all]")] = None,
    setup: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Shell commands for both jobs (module load …), and #SBATCH lines."),
    ] = None,
    probe: Annotated[
        bool | None,
        typer.Option(
            "--probe/--no-probe", help="Foretell the time from two blocks scored here. [default: if --submit]"
        ),
    ] = None,
    run: RunOption = None,
    restart: RestartOption = False,
    json: JsonOption = False,
    quiet: QuietOption = False,
    verbose: VerboseOption = 0,
    assignments: AssignmentsOption = None,
) -> None:
    """Have a SLURM cluster score the rows: writes an array job and its gather job, and sends them.

    The scripts are in the run directory, to be read and, if need be, changed. A task that runs out of time goes back
    into the queue; a shard that fails can be submitted again, `status` says how. Shards that are done, or in the queue,
    are not sent again. Settings of `density` come from --set, --config or --preset.

    \b
    Example:
      bayesnde slurm new.csv --shards 16 --time 01:00:00 --partition cpu
      bayesnde slurm --gpus-per-task 1 --setup cluster.sh --submit
      bayesnde slurm --set density.draws=400
    """
    from bayesnde_cli.artifacts.layout import RunLayout
    from bayesnde_cli.stages import scoring
    from bayesnde_cli.stages.slurm.submitting import Wanted, run_slurm

    wanted = Wanted(
        Request(
            shards=_DEFAULT.shards if shards is None else shards,
            cpus_per_task=cpus_per_task,
            gpus_per_task=gpus_per_task,
            time=time,
            partition=partition,
            account=account,
            array_limit=array_limit,
        ),
        setup=None if setup is None else read_setup(setup),
        is_count_chosen=shards is not None,
        is_submitting=submit,
        is_probing=submit if probe is None else probe,
    )
    console = Console(quiet=quiet)
    factory = functools.partial(scoring.open_engine, is_verbose=verbose >= 2)
    asked = asked_for(data, None, is_restart=restart)
    outcome = run_slurm(RunLayout(run_directory(run)), asked, config, console, wanted, factory=factory)
    console.finish(outcome, is_json=json)
