"""A stage's finished files go from its staging folder to their places, the manifest last."""

import os
from collections.abc import Sequence
from pathlib import Path

from bayesnde_cli.artifacts.atomic import cannot_write
from bayesnde_cli.artifacts.claims import Claim
from bayesnde_cli.artifacts.held_signals import signals_held
from bayesnde_cli.errors import StageBusy


def publish(staging: Path, folder: Path, outputs: Sequence[str], manifest: str, claim: Claim) -> None:
    """Move the outputs and then the manifest from `staging` to `folder`: renames only, with signals held back.

    An older manifest goes first: from then until the new one is in place the stage counts as interrupted.
    """
    if not claim.refresh():
        raise StageBusy(
            f"{folder} was taken over by another process",
            found="this one was silent for too long, and its result was not put in place",
            hint="run the same command again",
        )
    with cannot_write(folder), signals_held():
        (folder / manifest).unlink(missing_ok=True)
        for name in (*outputs, manifest):
            (folder / name).parent.mkdir(exist_ok=True)
            os.replace(staging / name, folder / name)
