"""Blocks: the unit of work, randomness and resumption of a data set, and how processes divide them.

A plan says which rows make which block; the first process writes it and the others join. Shards say which blocks one
of N processes computes. Blocks are published once, stamped with their plan, and read back in order.
"""

import os
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from pydantic import Field, NonNegativeInt, PositiveInt

from bayesnde_cli.errors import BadUsage
from bayesnde_cli.runs.files import Document, create_once, json_bytes, sha256_json
from bayesnde_cli.runs.layout import BLOCK_NAME, RunLayout, numbers
from bayesnde_cli.runs.manifest import compare, computing_versions, settings_differ

if TYPE_CHECKING:  # `status` reads plans without Arrow
    import pyarrow as pa

    from bayesnde_cli.runs.parquet_files import Stamp

_SLURM_VARIABLES = tuple(f"SLURM_ARRAY_TASK_{name}" for name in ("ID", "COUNT", "MIN", "MAX"))


# Plans


class Plan(Document):
    """What decides every block of a data set in one stage. `inputs` maps a role to the SHA-256 of its content."""

    stage: str
    set_name: str
    run_id: str
    n_rows: NonNegativeInt
    block_rows: PositiveInt
    seed: int
    inputs: dict[str, str] = Field(default_factory=dict)
    settings: dict[str, Any] = Field(default_factory=dict)

    @property
    def n_blocks(self) -> int:
        return -(-self.n_rows // self.block_rows)

    def rows(self, block: int) -> tuple[int, int]:
        """The first row of a block and the one after its last; only the last block may be short."""
        start = block * self.block_rows
        return start, min(start + self.block_rows, self.n_rows)

    @cached_property
    def plan_hash(self) -> str:
        """The SHA-256 of the plan, which every block carries."""
        return sha256_json(self.model_dump())

    def differences(self, other: "Plan") -> list[str]:
        """A line for each value in which another plan differs from this one."""
        return compare(self.model_dump(), other.model_dump())


def create_or_join(layout: RunLayout, plan: Plan) -> Plan:
    """The plan on disk, equal to the one given; `SettingsDiffer` if another one is there."""
    path = layout.plan_file(plan.stage, plan.set_name)
    return plan if create_once(path, json_bytes(plan.model_dump())) else join(layout, plan)


def join(layout: RunLayout, plan: Plan) -> Plan:
    """The plan on disk, equal to the one given; `SettingsDiffer` if another one is there, `MissingArtifact` if none."""
    found = Plan.read(layout.plan_file(plan.stage, plan.set_name))
    if differences := found.differences(plan):
        raise settings_differ(layout, plan.stage, plan.set_name, differences)
    return found


def blocks_done(layout: RunLayout, plan: Plan) -> set[int]:
    """The published blocks, from one listing of the folder: a file with a block's name is complete."""
    folder = layout.stage_dir(plan.stage, plan.set_name)
    return blocks_among(os.listdir(folder) if folder.is_dir() else (), plan)


def blocks_among(names: Iterable[str], plan: Plan) -> set[int]:
    """The blocks of a plan among the names of files."""
    n_blocks = plan.n_blocks
    return {index for index in numbers(BLOCK_NAME, names) if index < n_blocks}


# Block files


def publish_block(layout: RunLayout, plan: Plan, block: int, table: "pa.Table") -> bool:
    """Whether this call published the block; False if another process was first, whose block is equal."""
    from bayesnde_cli.runs.parquet_files import write_table_once

    path = layout.block_file(plan.stage, plan.set_name, block)
    return write_table_once(path, table, block_stamp(plan, block, made_with=computing_versions()))


def read_block(layout: RunLayout, plan: Plan, block: int) -> "pa.Table":
    """A published block; `BadArtifact` if it is another one, or belongs to another plan."""
    from bayesnde_cli.runs.parquet_files import read_table

    return read_table(layout.block_file(plan.stage, plan.set_name, block), block_stamp(plan, block))


def iter_blocks(layout: RunLayout, plan: Plan) -> "Iterator[pa.Table]":
    """All blocks of a plan, in order, one in memory at a time."""
    return (read_block(layout, plan, block) for block in range(plan.n_blocks))


def block_stamp(plan: Plan, block: int, *, name: str | None = None, made_with: str | None = None) -> "Stamp":
    """The stamp of a block's table: of the stage, or of the name given. Without `made_with` it matches any versions."""
    from bayesnde_cli.runs.parquet_files import Stamp

    return Stamp(name or plan.stage, plan.run_id, plan.plan_hash, made_with=made_with, block=block)


# Shards


@dataclass(frozen=True)
class Shard:
    """The `index`-th of `count` shards, counted from 1."""

    index: int
    count: int

    def __str__(self) -> str:
        return f"{self.index}/{self.count}"

    def blocks(self, n_blocks: int) -> range:
        """The blocks of this shard: every N-th one, so that hard rows that lie together are spread over all shards.

        The shards of one N are disjoint, cover all blocks, and differ in size by at most one; some may be empty.
        """
        return range(self.index - 1, n_blocks, self.count)


@dataclass(frozen=True)
class ArrayTask:
    """A task of a SLURM array, according to its environment; its shard depends on the frozen division."""

    id: int
    count: int
    min: int
    max: int


class Division(Document):
    """How an array divides a data set: its first task id and the number of shards.

    Frozen by the first task of an array: resubmitting `--array=3,7` changes SLURM's count and minimum.
    """

    first: int
    count: PositiveInt


def parse_shard(text: str, environ: Mapping[str, str]) -> Shard | ArrayTask:
    """What `--shard TEXT` asks for: a shard `I/N`, or for `auto` the task of the SLURM array that we run in."""
    if text == "auto":
        return ArrayTask(*(_slurm_number(name, environ.get(name, "")) for name in _SLURM_VARIABLES))
    match = re.fullmatch(r"(\d{1,9})/(\d{1,9})", text, re.ASCII)
    if match is None or not 1 <= int(match[1]) <= int(match[2]):
        raise BadUsage(
            f"--shard {text} is not of the form I/N",
            found="I and N are integers, and I goes from 1 to N",
            hint="write `--shard 3/8` for the third of eight shards, or `--shard auto` in a SLURM array",
        )
    return Shard(int(match[1]), int(match[2]))


def freeze(layout: RunLayout, stage: str, set_name: str, asked: Shard | ArrayTask) -> Shard:
    """The shard to compute. The first array task freezes the division; all later ones must agree with it."""
    path = layout.shards_file(stage, set_name)
    label, divide_again = layout.label(stage, set_name), f"to divide it again, delete {path}"
    if isinstance(asked, Shard):
        count = frozen_count(layout, stage, set_name)
        if count in (None, asked.count):
            return asked
        same = layout.command(stage, set_name, "--shard", str(Shard(min(asked.index, count), count)))
        raise BadUsage(
            f"{label} is divided into {count} shards, not {asked.count}",
            found=f"asked for --shard {asked}",
            hint=f"run `{same}`; {divide_again}",
        )
    if not path.exists():
        create_once(path, json_bytes(_first_division(asked).model_dump()))
    frozen = Division.read(path)
    index = asked.id - frozen.first + 1
    if 1 <= index <= frozen.count:
        return Shard(index, frozen.count)
    raise BadUsage(
        f"{label} is divided into {frozen.count} shards",
        found=f"array task {asked.id} is outside of them",
        hint=f"submit with `--array={frozen.first}-{frozen.first + frozen.count - 1}`; {divide_again}",
    )


def frozen_count(layout: RunLayout, stage: str, set_name: str) -> int | None:
    """The number of shards that an array froze for a set; None if none did."""
    path = layout.shards_file(stage, set_name)
    return Division.read(path).count if path.exists() else None


def missing_shards(done: Collection[int], count: int, n_blocks: int) -> list[int]:
    """The numbers of the shards, of `count`, that have blocks that are not done."""
    n_done = Counter(block % count + 1 for block in done)
    some = (Shard(index, count) for index in range(1, min(count, n_blocks) + 1))
    return [shard.index for shard in some if n_done[shard.index] < len(shard.blocks(n_blocks))]


def _slurm_number(name: str, text: str) -> int:
    if not text.isdecimal():
        raise BadUsage(
            "--shard auto works inside a SLURM array job only",
            found=f"{name} is {text!r}" if text else f"{name} is not set",
            hint="submit with `sbatch --array=1-8 …`, or write `--shard 3/8`",
        )
    return int(text)


def _first_division(task: ArrayTask) -> Division:
    if task.max - task.min + 1 == task.count and task.min in (0, 1):
        return Division(first=task.min, count=task.count)
    raise BadUsage(
        "the first array of a set must be whole, and start at 0 or 1",
        found=f"this one has {task.count} tasks, from {task.min} to {task.max}",
        hint=f"submit with `--array=1-{task.count}`; parts of it can be submitted again later",
    )
