"""`bayesnde status`: where a run stands and what to type next."""

from typing import Annotated

import typer

from bayesnde_cli.artifacts.layout import RunLayout
from bayesnde_cli.cli.console import Console, aligned
from bayesnde_cli.cli.options import JsonOption, RunOption, run_directory
from bayesnde_cli.config import STAGE_CONFIGS


def status(
    run: RunOption = None,
    verify: Annotated[bool, typer.Option("--verify", help="Read every output and compare it with its hash.")] = False,
    json: JsonOption = False,
) -> None:
    """Show the stages of a run: missing, running, interrupted, done, stale or damaged, and the next command.

    Exit code 0 if all that is there is sound, 3 if nothing is prepared or something is stale or damaged.

    \b
    Example:
      bayesnde status
      bayesnde status --run bank --json
    """
    from bayesnde_cli.stages.status import run_status

    console = Console()
    found = run_status(RunLayout(run_directory(run)), list(STAGE_CONFIGS), is_verifying=verify)
    if json:
        console.result_json(found.as_dict())
    else:
        rows = [
            [
                item.stage if item.set_name is None else f"{item.stage}/{item.set_name}",
                str(item.state),
                "" if item.blocks is None else f"{item.blocks_done:,} of {item.blocks:,}",
                "" if item.shards is None else f"{item.shards_done:,} of {item.shards:,}",
                item.detail,
            ]
            for item in found.stages
        ]
        console.result(f"run directory: {found.run}")
        console.result(aligned(["stage", "state", "blocks", "shards", "detail"], rows))
        console.result(f"next: {found.next_command or 'nothing left to run in this version'}")
    if not found.is_sound:
        raise typer.Exit(3)
