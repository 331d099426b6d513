"""Removing a stage's work, for `--restart`."""

import contextlib
import os
import shutil
from collections.abc import Callable

from bayesnde_cli.artifacts import claims
from bayesnde_cli.artifacts.atomic import cannot_write, temporary_beside
from bayesnde_cli.artifacts.layout import RunLayout
from bayesnde_cli.errors import StageBusy


def discard(
    layout: RunLayout, stage: str, set_name: str | None = None, *, is_wanted: Callable[[], bool] = lambda: True
) -> bool:
    """Whether something was removed. The folder goes in one step, so that half a stage never looks whole.

    `StageBusy` if a living process is at work in it. The claim on the stage is ours first, and then the blocks are
    looked at; whoever computes a block claims it first, and then looks at the stage: at least one sees the other.
    `is_wanted` is asked last, for the stage may have been removed and begun anew meanwhile.
    """
    folder, path = layout.stage_dir(stage, set_name), layout.claim_file(stage, set_name)
    if not folder.is_dir():
        return False
    # Aside first, under a temporary name: if we are killed half-way, whoever makes the stage next sweeps it.
    aside = temporary_beside(folder)
    with claims.holding(path) as ours:
        busy = [str(who) for who in claims.block_holders(folder).values() if who.is_alive]
        if ours is None:
            busy.insert(0, str(claims.holder(path) or "a process that has just ended"))
        if busy:
            raise StageBusy(
                f"{layout.label(stage, set_name)} cannot be removed: it is being made",
                found=busy,
                hint="wait for it or stop it, then run the same command again",
            )
        if not is_wanted():
            return False
        with cannot_write(folder), contextlib.suppress(FileNotFoundError):  # the folder went by another hand
            os.rename(folder, aside)
    shutil.rmtree(aside, ignore_errors=True)
    return True
