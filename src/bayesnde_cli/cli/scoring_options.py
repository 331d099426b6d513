"""What `posterior` and `density` are both told: the rows, and which share of them."""

import io
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from bayesnde_cli.stages.scoring import Asked

DataArgument = Annotated[
    list[Path] | None,
    typer.Argument(
        metavar="[DATA]...", help="Files with the columns of the model; - is stdin. [default: the test rows]",
        show_default=False,
    ),
]  # fmt: skip
ShardOption = Annotated[
    str | None,
    typer.Option("--shard", metavar="I/N|auto", help="Only the blocks of this shard; auto: of this SLURM array task."),
]


def asked_for(data: list[Path] | None, shard: str | None, *, is_restart: bool) -> "Asked":
    """What the user asked for."""
    from bayesnde_cli.artifacts.shards import parse_shard
    from bayesnde_cli.stages.scoring import Asked

    return Asked(
        data=data or [],
        stdin=sys.stdin.buffer if sys.stdin else io.BytesIO(),  # a closed standard input is None in Python
        shard=None if shard is None else parse_shard(shard, os.environ),
        is_restart=is_restart,
    )
