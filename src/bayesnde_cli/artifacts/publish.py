"""A stage's finished files go from its staging folder to their places, the manifest last."""

import os
from collections.abc import Sequence
from pathlib import Path

from bayesnde_cli.artifacts.atomic import cannot_write, flush_folder
from bayesnde_cli.artifacts.claims import Claim
from bayesnde_cli.artifacts.held_signals import signals_held
from bayesnde_cli.errors import StageBusy


def publish(staging: Path, folder: Path, outputs: Sequence[str], manifest: str, claim: Claim) -> None:
    """Move the outputs and then the manifest from `staging` to `folder`: renames only, with signals held back.

    An older manifest goes first: from then until the new one is in place the stage counts as interrupted. Names are
    flushed to disk before the manifest gets its own, so that not even a power cut leaves it without its outputs.
    """
    with cannot_write(folder), signals_held():
        if not claim.refresh():
            raise StageBusy(
                f"{folder} was taken over by another process",
                found="this one was silent for too long, and its result was not put in place",
                hint="run the same command again",
            )
        (folder / manifest).unlink(missing_ok=True)
        for name in outputs:
            (folder / name).parent.mkdir(exist_ok=True)
            os.replace(staging / name, folder / name)
        for place in {folder, *((folder / name).parent for name in outputs)}:
            flush_folder(place)
        os.replace(staging / manifest, folder / manifest)
        flush_folder(folder)
