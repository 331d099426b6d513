"""How far a stage that works in blocks has come: from the names in its folder, and the times of some of its files."""

import os
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from bayesnde_cli.artifacts import array_record, shards
from bayesnde_cli.artifacts import plan as plans
from bayesnde_cli.artifacts.layout import RunLayout
from bayesnde_cli.artifacts.plan import Plan
from bayesnde_cli.errors import BayesndeError

# Files whose time is looked at, however many blocks there are: `status` answers at once, on a network disk, too.
_MOST_TIMES = 2000
# Of these the newest tell how fast it goes now.
_N_NEWEST = 200
# A time without a block so many seconds long, and so many times longer than any other: nobody was at work.
_PAUSE_SECONDS, _PAUSE_FACTOR = 600.0, 5.0


@dataclass(frozen=True)
class BlockProgress:
    """Blocks, rows and shards done of a stage, and the time that the rest takes at the pace of the last blocks."""

    blocks_done: int
    blocks: int
    rows_done: int
    rows: int
    shards_done: int | None = None
    shards: int | None = None
    shards_missing: tuple[int, ...] | None = None  # by number
    seconds_left: float | None = None  # None: nobody is at work, or the pace is not known yet


def block_progress(
    layout: RunLayout, stage: str, set_name: str, names: Collection[str], *, is_running: bool
) -> BlockProgress | None:
    """The progress of a stage on a data set, `names` being those of its folder's files; None without a sound plan."""
    try:
        plan = plans.read(layout.plan_file(stage, set_name))
        count = shards.frozen_count(layout, stage, set_name) or _count_of_array(layout, stage, set_name)
    except BayesndeError:
        return None
    done = plans.blocks_among(names, plan)
    missing = None if count is None else tuple(shards.missing_shards(done, count, plan.n_blocks))
    return BlockProgress(
        blocks_done=len(done),
        blocks=plan.n_blocks,
        rows_done=_rows_done(plan, done),
        rows=plan.n_rows,
        shards_done=None if count is None or missing is None else count - len(missing),
        shards=count,
        shards_missing=missing,
        seconds_left=_seconds_left(layout, plan, done) if is_running else None,
    )


def _count_of_array(layout: RunLayout, stage: str, set_name: str) -> int | None:
    """The shards of the array that was written for a data set; `density` alone has such."""
    if stage != "density":
        return None
    try:
        record = array_record.read(layout, set_name)
    except BayesndeError:  # `status` names it
        return None
    return None if record is None else record.shards


def _rows_done(plan: Plan, done: Collection[int]) -> int:
    n_rows = len(done) * plan.block_rows
    return n_rows - (plan.n_blocks * plan.block_rows - plan.n_rows) if plan.n_blocks - 1 in done else n_rows


def _seconds_left(layout: RunLayout, plan: Plan, done: Collection[int]) -> float | None:
    import random  # of no use to a `status` of finished stages

    # At random: every n-th block could be the blocks of one shard.
    some = random.Random(0).sample(sorted(done), min(len(done), _MOST_TIMES))
    times = [_time(layout.block_file(plan.stage, plan.set_name, block)) for block in some]
    known = sorted(time for time in times if time is not None)
    each = seconds_each(known[-_N_NEWEST:])
    # The times of a tenth of the blocks are ten times as far apart.
    return None if each is None else each * len(known) / len(done) * (plan.n_blocks - len(done))


def _time(path: Path) -> float | None:
    try:
        return os.stat(path).st_mtime
    except OSError:  # removed since
        return None


def seconds_each(times: Sequence[float]) -> float | None:
    """The mean time from one block to the next, from when blocks were finished, in order; one long pause is left out.

    The mean and not the median: processes that keep step finish many blocks at once, and then none for a while.
    """
    gaps = sorted(later - earlier for earlier, later in pairwise(times))
    if len(gaps) > 1 and gaps[-1] > max(_PAUSE_SECONDS, _PAUSE_FACTOR * gaps[-2]):
        gaps.pop()
    return sum(gaps) / len(gaps) if gaps else None
