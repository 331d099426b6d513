"""Blocks on disk: published once, stamped with their plan, read back in order."""

from collections.abc import Iterator

import pyarrow as pa

from bayesnde_cli.artifacts.environment import computing_versions, versions_text
from bayesnde_cli.artifacts.layout import RunLayout
from bayesnde_cli.artifacts.plan import Plan
from bayesnde_cli.artifacts.tables import Stamp, read_table, writing_table_once


def publish_block(layout: RunLayout, plan: Plan, block: int, table: pa.Table, *, schema_version: int = 1) -> bool:
    """Whether this call published the block; False if another process was first, whose block is equal."""
    path = layout.block_file(plan.stage, plan.set_name, block)
    stamp = Stamp(plan.stage, schema_version, plan.run_id, plan.plan_hash, versions_text(computing_versions()))
    with writing_table_once(path, table.schema, stamp) as (writer, draft):
        writer.write(table)
    return draft.is_published


def read_block(layout: RunLayout, plan: Plan, block: int, *, schema_version: int = 1) -> pa.Table:
    """A published block; `BadArtifact` if it belongs to another plan."""
    return read_table(
        layout.block_file(plan.stage, plan.set_name, block),
        plan.stage,
        schema_version=schema_version,
        run_id=plan.run_id,
        plan_hash=plan.plan_hash,
    )


def iter_blocks(layout: RunLayout, plan: Plan, *, schema_version: int = 1) -> Iterator[pa.Table]:
    """All blocks of a plan, in order, one in memory at a time."""
    for block in range(plan.n_blocks):
        yield read_block(layout, plan, block, schema_version=schema_version)
