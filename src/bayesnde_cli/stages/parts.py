"""The files of a stage of which no manifest tells: plan, division, blocks, rows, checkpoints. Is one damaged?"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from bayesnde_cli.artifacts import plan as plans
from bayesnde_cli.artifacts import shards
from bayesnde_cli.artifacts.layout import RunLayout
from bayesnde_cli.artifacts.plan import Plan

if TYPE_CHECKING:
    from bayesnde_cli.artifacts.tables import Stamp


def check_division(layout: RunLayout, stage: str, set_name: str, names: Sequence[str]) -> Plan | None:
    """The plan of a data set, None if there is none; `BadArtifact` if it or the division into shards is damaged.

    `names` are those of the folder's files.
    """
    path = layout.plan_file(stage, set_name)
    plan = plans.read(path) if path.name in names else None
    shards.frozen_count(layout, stage, set_name)
    return plan


def check_parts(layout: RunLayout, plan: Plan, names: Sequence[str]) -> None:
    """Read all parts of a data set and compare them with their own hashes; `BadArtifact` at the first that differs."""
    from bayesnde_cli.artifacts.tables import check_table

    for path, stamp in _tables(layout, plan, names):
        check_table(path, stamp)


def check_checkpoint(layout: RunLayout, stage: str) -> None:
    """Read what a training stage goes on from; `BadArtifact` if a file is damaged."""
    from bayesnde_cli.artifacts.arrays import read_arrays

    for path in sorted(layout.checkpoint_dir(stage).glob("*.npz")):
        read_arrays(path)


def _tables(layout: RunLayout, plan: Plan, names: Sequence[str]) -> "Iterator[tuple[Path, Stamp]]":
    """The tables of a data set that are there, with the stamps that they must have."""
    from bayesnde_cli.artifacts.blocks import block_stamp
    from bayesnde_cli.stages.scoring.draws import diagnostics_stamp
    from bayesnde_cli.stages.scoring.rows import staged_stamp

    rows = layout.rows_file(plan.stage, plan.set_name)
    if rows.name in names:
        yield rows, staged_stamp(plan.run_id, plan.inputs)
    for block in sorted(plans.blocks_among(names, plan)):
        yield layout.block_file(plan.stage, plan.set_name, block), block_stamp(plan, block)
        if plan.stage == "posterior":
            yield layout.diagnostics_file(plan.set_name, block), diagnostics_stamp(plan, block)
