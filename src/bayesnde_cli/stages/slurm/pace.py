"""How long an array will take: from blocks that are done, or from a probe of two blocks on this machine."""

import heapq
import os
import statistics
import time
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from bayesnde_cli.artifacts.layout import RunLayout
from bayesnde_cli.artifacts.plan import Plan
from bayesnde_cli.artifacts.shards import Shard, blocks_of
from bayesnde_cli.stages.block_progress import seconds_each
from bayesnde_cli.stages.reporting import Report, counted
from bayesnde_cli.stages.scoring import Planned
from bayesnde_cli.stages.scoring.engine import EngineFactory, LazyEngine
from bayesnde_cli.stages.scoring.job import Job
from bayesnde_cli.stages.scoring.work import DensityWork, PosteriorWork

# Files whose time is looked at: the first blocks of some shards.
_MOST_SHARDS, _MOST_BLOCKS = 40, 50
# Blocks one after the other in a shard before their times are believed.
_LEAST_BLOCKS = 3
# Until a task computes its first block, where no probe has measured it.
_START_SECONDS = 15.0


@dataclass(frozen=True)
class Pace:
    """How fast one task works, and how that is known."""

    block_seconds: float
    start_seconds: float  # until a task is at its pace
    rows_per_second: float
    known_from: str


def pace_of_done(layout: RunLayout, plan: Plan, done: Collection[int], n_shards: int) -> Pace | None:
    """The pace of those who made the blocks that are done, one process for each of `n_shards`; None if it is not known.

    Within a shard blocks are made one after the other: the time between two is that of one block.
    """
    each = []
    for index in range(1, min(n_shards, _MOST_SHARDS) + 1):
        blocks = [block for block in blocks_of(Shard(index, n_shards), plan.n_blocks) if block in done][:_MOST_BLOCKS]
        if len(blocks) >= _LEAST_BLOCKS:
            times = sorted(os.stat(layout.block_file(plan.stage, plan.set_name, block)).st_mtime for block in blocks)
            each.append(seconds_each(times) or 0.0)
    block_seconds = statistics.median(each) if each else 0.0
    if block_seconds <= 0.0:  # nothing to go by, or files that were copied all at once
        return None
    known_from = f"{counted(len(done), 'block')} that are there"
    return Pace(block_seconds, _START_SECONDS, plan.block_rows / block_seconds, known_from)


def probe(job: Job, planned: Planned, blocks: Collection[int], factory: EngineFactory, report: Report) -> Pace:
    """The pace of this machine, from two of the blocks. They are not kept: its digits may not be those of the cluster.

    The first one is slow, as programs are compiled; the second tells the pace.
    """
    first, *rest = sorted(blocks)
    engine, rows = LazyEngine(job, factory), planned.rows
    draws = PosteriorWork(job.of_draws(), job.of_draws().plan(rows.n_rows), rows, engine, report)
    work = DensityWork(job, planned.plan, rows, engine, report, draws, draws.store.is_of_plan(report))
    with report.progress("probe", 2, "blocks") as advance:
        seconds = []
        for block in (first, rest[0] if rest else first):
            begun = time.perf_counter()
            work.table(block)
            seconds.append(time.perf_counter() - begun)
            advance(1)
    start, stop = planned.plan.rows(block)
    start_seconds = max(0.0, seconds[0] - seconds[1])
    return Pace(seconds[1], start_seconds, (stop - start) / seconds[1], f"a probe here, on {work.device}")


def array_seconds(task_seconds: Iterable[float], limit: int | None) -> float:
    """The time from the first task's start to the last one's end, `limit` at a time (None: all), each when it can."""
    tasks = list(task_seconds)
    ends = [0.0] * min(limit or len(tasks), len(tasks))
    for seconds in tasks:
        heapq.heappush(ends, heapq.heappop(ends) + seconds)
    return max(ends, default=0.0)
