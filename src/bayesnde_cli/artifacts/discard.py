"""Removing a stage's work, for `--restart`."""

import contextlib
import os
import shutil

from bayesnde_cli.artifacts import claims
from bayesnde_cli.artifacts.atomic import temporary_beside
from bayesnde_cli.artifacts.layout import RunLayout
from bayesnde_cli.errors import StageBusy


def discard(layout: RunLayout, stage: str, set_name: str | None = None) -> bool:
    """Whether there was something to remove. The folder goes in one step, so that half a stage never looks whole.

    `StageBusy` if a living process is at work in it. A block that one publishes later all the same carries the old
    plan's hash, and is refused when it is read.
    """
    folder = layout.stage_dir(stage, set_name)
    if not folder.is_dir():
        return False
    stage_holder = claims.holder(layout.claim_file(stage, set_name))
    holders = [stage_holder] if stage_holder else []
    busy = [who for who in [*holders, *claims.block_holders(folder).values()] if who.is_alive]
    if busy:
        raise StageBusy(
            f"{layout.label(stage, set_name)} cannot be removed: it is being made",
            found=[str(who) for who in busy],
            hint="wait for it or stop it, then run the same command again",
        )
    # Aside first: a temporary name, which `sweep` of the folder above removes if we are killed half-way.
    aside = temporary_beside(folder)
    with contextlib.suppress(FileNotFoundError):  # somebody else was faster
        os.rename(folder, aside)
        shutil.rmtree(aside, ignore_errors=True)
    return True
