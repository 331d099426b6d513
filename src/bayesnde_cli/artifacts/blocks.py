"""Blocks on disk: published once, stamped with their plan, read back in order."""

from collections.abc import Iterator
from dataclasses import replace

import pyarrow as pa

from bayesnde_cli.artifacts.environment import computing_versions, versions_text
from bayesnde_cli.artifacts.layout import RunLayout
from bayesnde_cli.artifacts.plan import Plan
from bayesnde_cli.artifacts.tables import Stamp, read_stamped, writing_table_once


def publish_block(layout: RunLayout, plan: Plan, block: int, table: pa.Table) -> bool:
    """Whether this call published the block; False if another process was first, whose block is equal."""
    path = layout.block_file(plan.stage, plan.set_name, block)
    stamp = replace(block_stamp(plan, block), made_with=versions_text(computing_versions()))
    with writing_table_once(path, table.schema, stamp) as (writer, draft):
        writer.write(table)
    return draft.is_published


def read_block(layout: RunLayout, plan: Plan, block: int) -> pa.Table:
    """A published block; `BadArtifact` if it is another one, or belongs to another plan."""
    return read_stamped(layout.block_file(plan.stage, plan.set_name, block), block_stamp(plan, block))


def iter_blocks(layout: RunLayout, plan: Plan) -> Iterator[pa.Table]:
    """All blocks of a plan, in order, one in memory at a time."""
    for block in range(plan.n_blocks):
        yield read_block(layout, plan, block)


def block_stamp(plan: Plan, block: int) -> Stamp:
    """The stamp that a block must have, whatever versions made it."""
    return Stamp(plan.stage, 1, plan.run_id, plan.plan_hash, block=block)
