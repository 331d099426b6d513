"""Removing the checkpoint of a training stage that is complete: its chosen weights are an output by then."""

import contextlib
from collections.abc import Mapping
from typing import Any

from bayesnde_cli.artifacts import claims
from bayesnde_cli.artifacts.arrays import read_arrays
from bayesnde_cli.artifacts.differences import compare
from bayesnde_cli.artifacts.layout import RunLayout
from bayesnde_cli.errors import BadArtifact, CannotWrite


def forget_checkpoint(layout: RunLayout, stage: str) -> None:
    """Remove all of it. The state goes first, as it names the others. What may not be removed stays."""
    with contextlib.suppress(OSError):
        layout.checkpoint_file(stage).unlink(missing_ok=True)
        for path in layout.checkpoint_dir(stage).glob("look-*.npz"):
            path.unlink(missing_ok=True)


def forget_leftover(layout: RunLayout, stage: str, identity: Mapping[str, Any]) -> None:
    """Remove a checkpoint that the process which completed the stage was killed before it could remove.

    That of a restart with other settings, which is not complete, stays.
    """
    folder = layout.checkpoint_dir(stage)
    if not folder.is_dir() or not any(folder.iterdir()):
        return
    with contextlib.suppress(CannotWrite), claims.holding(layout.claim_file(stage)) as ours:
        if ours is not None and _is_leftover(layout, stage, identity):
            forget_checkpoint(layout, stage)


def _is_leftover(layout: RunLayout, stage: str, identity: Mapping[str, Any]) -> bool:
    path = layout.checkpoint_file(stage)
    if not path.exists():  # it was half removed, or not yet begun
        return True
    try:
        facts = read_arrays(path)[1]
    except BadArtifact:
        return False
    found = facts.get("identity")
    return isinstance(found, dict) and not compare(found, identity)
