"""Shards: which blocks one of N processes computes. The number N of an array job is frozen on first use.

Resubmitting `--array=3,7` changes SLURM_ARRAY_TASK_COUNT and _MIN, so they count only the first time.
"""

import re
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from bayesnde_cli.artifacts.atomic import create_once
from bayesnde_cli.artifacts.canonical import is_count, read_object
from bayesnde_cli.artifacts.layout import RunLayout, repair_hint
from bayesnde_cli.artifacts.sealed import SEAL, broken_seal, sealed_bytes
from bayesnde_cli.errors import BadArtifact, BadUsage

SCHEMA_VERSION = 2  # 2: sealed
_SEALED_SINCE = 2
_MOST_SHARDS = 10**9 - 1  # nine digits, as in `--shard`
_EXAMPLE = "write `--shard 3/8` for the third of eight shards, or `--shard auto` in a SLURM array"
_SLURM_VARIABLES = tuple(f"SLURM_ARRAY_TASK_{name}" for name in ("ID", "COUNT", "MIN", "MAX"))


@dataclass(frozen=True)
class Shard:
    """The `index`-th of `count` shards, counted from 1."""

    index: int
    count: int

    def __str__(self) -> str:
        return f"{self.index}/{self.count}"


@dataclass(frozen=True)
class ArrayTask:
    """A task of a SLURM array, as its environment tells; which shard it is depends on what was frozen."""

    id: int
    count: int
    min: int
    max: int


@dataclass(frozen=True)
class _Frozen:
    """How an array divides a set: its first task id, 0 or 1, and the number of shards."""

    first: int
    count: int

    @property
    def array(self) -> str:
        return f"--array={self.first}-{self.first + self.count - 1}"


def parse_shard(text: str, environ: Mapping[str, str]) -> Shard | ArrayTask:
    """What `--shard TEXT` asks for: a shard `I/N`, or for `auto` the task of the SLURM array we run in."""
    if text == "auto":
        return _array_task(environ)
    match = re.fullmatch(r"(\d{1,9})/(\d{1,9})", text, re.ASCII)
    if match is None:
        raise BadUsage(f"--shard {text} is not of the form I/N", found="I and N are whole numbers", hint=_EXAMPLE)
    index, count = int(match[1]), int(match[2])
    if not 1 <= index <= count:
        found = f"I goes from 1 to N = {count}" if count else "N must be at least 1"
        raise BadUsage(f"--shard {text} is out of range", found=found, hint=_EXAMPLE)
    return Shard(index, count)


def freeze(layout: RunLayout, stage: str, set_name: str, asked: Shard | ArrayTask) -> Shard:
    """The shard to compute. The first array task to come freezes the division; everybody later agrees with it."""
    path = layout.shards_file(stage, set_name)
    if isinstance(asked, ArrayTask):
        if not path.exists():
            first = _first_division(asked)
            create_once(path, sealed_bytes({"schema_version": SCHEMA_VERSION, **asdict(first)}))
        return _shard_of_task(layout, stage, set_name, asked)
    if path.exists():
        frozen = _read(layout, stage, set_name)
        if frozen.count != asked.count:
            same = Shard(min(asked.index, frozen.count), frozen.count)
            raise BadUsage(
                f"{layout.label(stage, set_name)} is divided into {frozen.count} shards, not {asked.count}",
                found=f"asked for --shard {asked}",
                hint=f"run `{layout.command(stage, set_name, '--shard', str(same))}`; {_anew(path)}",
            )
    return asked


def frozen_count(layout: RunLayout, stage: str, set_name: str) -> int | None:
    """The number of shards that an array froze for a set; None if none did."""
    if not layout.shards_file(stage, set_name).exists():
        return None
    return _read(layout, stage, set_name).count


def blocks_of(shard: Shard, n_blocks: int) -> range:
    """The blocks of a shard: every N-th one, so that a stretch of hard rows is shared by all.

    The shards of one N are disjoint, cover all blocks, and differ in size by at most one; some may be empty.
    """
    return range(shard.index - 1, n_blocks, shard.count)


def missing_shards(done: Collection[int], count: int, n_blocks: int) -> list[int]:
    """Which of `count` shards have blocks that are not done, by number. Takes no longer for many blocks."""
    n_done = Counter(block % count + 1 for block in done)
    some = (Shard(index, count) for index in range(1, min(count, n_blocks) + 1))
    return [shard.index for shard in some if n_done[shard.index] < len(blocks_of(shard, n_blocks))]


def _array_task(environ: Mapping[str, str]) -> ArrayTask:
    numbers = []
    for name in _SLURM_VARIABLES:
        text = environ.get(name, "")
        if not re.fullmatch(r"\d{1,9}", text, re.ASCII):
            raise BadUsage(
                "--shard auto works inside a SLURM array job only",
                found=f"{name} is {text!r}" if text else f"{name} is not set",
                hint="submit with `sbatch --array=1-8 …`, or write `--shard 3/8`",
            )
        numbers.append(int(text))
    return ArrayTask(*numbers)


def _first_division(task: ArrayTask) -> _Frozen:
    is_contiguous = task.max - task.min + 1 == task.count
    if is_contiguous and task.min in (0, 1):
        return _Frozen(task.min, task.count)
    raise BadUsage(
        "the first array of a set must be whole, and start at 0 or 1",
        found=f"this one has {task.count} tasks, from {task.min} to {task.max}",
        hint=f"submit with `{_Frozen(1, task.count).array}`; parts of it can be submitted again later",
    )


def _shard_of_task(layout: RunLayout, stage: str, set_name: str, task: ArrayTask) -> Shard:
    frozen = _read(layout, stage, set_name)
    index = task.id - frozen.first + 1
    if 1 <= index <= frozen.count:
        return Shard(index, frozen.count)
    raise BadUsage(
        f"{layout.label(stage, set_name)} is divided into {frozen.count} shards",
        found=f"array task {task.id} is none of them",
        hint=f"submit with `{frozen.array}`; {_anew(layout.shards_file(stage, set_name))}",
    )


def _anew(path: Path) -> str:
    # Blocks do not depend on how they were shared out, so that nothing is lost.
    return f"to divide it anew, delete {path}"


def _read(layout: RunLayout, stage: str, set_name: str) -> _Frozen:
    path = layout.shards_file(stage, set_name)
    found = read_object(path, newest=SCHEMA_VERSION)
    seal = found.pop(SEAL, None)
    first, count = found.get("first"), found.get("count")
    if not is_count(first) or first > 1 or not is_count(count) or not 0 < count <= _MOST_SHARDS:
        raise BadArtifact(f"{path} is damaged", found=f"first is {first!r}, count is {count!r}", hint=repair_hint(path))
    problem = broken_seal(found, seal) if found["schema_version"] >= _SEALED_SINCE else None
    if problem:
        raise BadArtifact(f"{path} is damaged", found=problem, hint=repair_hint(path))
    return _Frozen(first, count)
