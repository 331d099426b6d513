"""`bayesnde status`: where a run stands and what to type next."""

from typing import Annotated

import typer

from bayesnde_cli.cli.console import Console
from bayesnde_cli.cli.options import JsonOption, RunOption
from bayesnde_cli.cli.status_answer import StatusQuestion


def status(
    run: RunOption = None,
    verify: Annotated[bool, typer.Option("--verify", help="Read every output and compare it with its hash.")] = False,
    json: JsonOption = False,
) -> None:
    """Where a run stands: missing, queued, running, interrupted, done, stale or damaged, and what is next.

    Exit code 0 if all that is there is sound, 3 if nothing is prepared or something is stale or damaged.

    \b
    Example:
      bayesnde status
      bayesnde status --run bank --json
    """
    raise typer.Exit(StatusQuestion(run, verify, json).answer(Console()))
