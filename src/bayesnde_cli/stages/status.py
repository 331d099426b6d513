"""`status`: the state of every stage of a run, the blocks and shards that are done, and the next command."""

import contextlib
import os
import random
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from enum import StrEnum
from itertools import pairwise
from pathlib import Path
from typing import Any

from bayesnde_cli.cluster import ArrayStatus, array_statuses, read_array_record
from bayesnde_cli.errors import BayesndeError
from bayesnde_cli.formatting import counted, duration
from bayesnde_cli.runs import blocks
from bayesnde_cli.runs.files import block_holders, holder, read_arrays, sha256_file
from bayesnde_cli.runs.layout import STAGES, TEST_SET, RunLayout, Stage, stage_named
from bayesnde_cli.runs.manifest import Manifest, stale_inputs

# Block files whose time is read, however many there are: `status` answers at once, on a network disk too.
_MOST_TIMES = 2000
# The newest of these give the current pace.
_N_NEWEST = 200
# A gap between blocks of this many seconds, and this many times longer than any other: no process was running.
_PAUSE_SECONDS, _PAUSE_FACTOR = 600.0, 5.0
# `status` hashes the user's files again up to this size, to see whether they have changed.
_HASHED_BYTES = 16 * 2**20


class State(StrEnum):
    """The states of a stage."""

    MISSING = "missing"
    QUEUED = "queued"
    RUNNING = "running"
    INTERRUPTED = "interrupted"
    DONE = "done"
    STALE = "stale"
    DAMAGED = "damaged"


@dataclass(frozen=True)
class BlockProgress:
    """Finished blocks, rows and shards of a stage, and the time that the rest takes at the current pace."""

    blocks_done: int
    blocks: int
    rows_done: int
    rows: int
    shards_done: int | None = None
    shards: int | None = None
    shards_missing: tuple[int, ...] | None = None  # by number
    seconds_left: float | None = None  # None: no process is running, or the pace is not known yet


@dataclass(frozen=True)
class StageStatus:
    """One line of `status`."""

    stage: str
    set_name: str | None
    state: State
    detail: str = ""
    progress: BlockProgress | None = None  # of a stage that works in blocks

    def as_dict(self) -> dict[str, Any]:
        flat = {**asdict(self), "state": str(self.state)}
        progress = flat.pop("progress") or dict.fromkeys(item.name for item in fields(BlockProgress))
        return flat | progress

    def table_row(self) -> list[str]:
        """Stage, state, blocks, shards and detail."""
        name = self.stage if self.set_name is None else f"{self.stage}/{self.set_name}"
        done, shards, details = "", "", [self.detail]
        if progress := self.progress:
            done = f"{progress.blocks_done:,} of {progress.blocks:,}"
            if progress.shards is not None:
                shards = f"{progress.shards_done:,} of {progress.shards:,}"
            if self.state is State.RUNNING:
                details.append(f"{progress.rows_done:,} of {progress.rows:,} rows")
            elif self.state is State.INTERRUPTED and progress.blocks_done == progress.blocks:
                details.append("the blocks are not combined yet")
            if progress.seconds_left is not None:
                details.append(f"about {duration(progress.seconds_left)} left")
        return [name, str(self.state), done, shards, ", ".join(details)]


@dataclass(frozen=True)
class RunStatus:
    """The state of a whole run."""

    run: str
    stages: tuple[StageStatus, ...]
    next_command: str | None
    arrays: tuple[ArrayStatus, ...] = ()  # of data sets that are not complete

    @property
    def is_sound(self) -> bool:
        """Whether the first stage is done or running, and no stage is stale or damaged."""
        states = {status.state for status in self.stages}
        return self.stages[0].state in (State.DONE, State.RUNNING) and not states & {State.STALE, State.DAMAGED}

    def as_dict(self) -> dict[str, Any]:
        return {
            "run": self.run,
            "is_sound": self.is_sound,
            "stages": [status.as_dict() for status in self.stages],
            "arrays": [array.as_dict() for array in self.arrays],
            "next": self.next_command,
        }


def run_status(layout: RunLayout, *, is_verifying: bool = False) -> RunStatus:
    """The state of every stage of a run. With `is_verifying` every output is hashed, not just its size compared."""
    statuses: list[StageStatus] = []
    for stage in STAGES:
        set_names = sorted({TEST_SET, *layout.sets(stage.name)}) if stage.is_per_set else [None]
        statuses += [_stage_status(layout, stage, set_name, is_verifying) for set_name in set_names]
    begun = [item for item in statuses if item.stage == "density" and item.state in (State.RUNNING, State.INTERRUPTED)]
    missing = {item.set_name: item.progress.shards_missing or () for item in begun if item.set_name and item.progress}
    arrays = {array.set_name: array for array in array_statuses(layout, missing)}
    queued = [item for item in begun if item.set_name in arrays and arrays[item.set_name].is_queued]
    statuses = [
        replace(item, state=State.QUEUED, detail="in SLURM's queue")
        if item in queued and item.state is State.INTERRUPTED
        else item
        for item in statuses
    ]
    return RunStatus(str(layout.root), tuple(statuses), _next_command(layout, statuses, arrays), tuple(arrays.values()))


def block_progress(
    layout: RunLayout, stage: str, set_name: str, names: Collection[str], *, is_running: bool
) -> BlockProgress | None:
    """The progress of a stage on a data set from the names of its files; None without a sound plan."""
    try:
        plan = blocks.Plan.read(layout.plan_file(stage, set_name))
        count = blocks.frozen_count(layout, stage, set_name)
    except BayesndeError:
        return None
    if count is None and stage == "density":
        with contextlib.suppress(BayesndeError):  # `array_statuses` reports it
            record = read_array_record(layout, set_name)
            count = None if record is None else record.shards
    done = blocks.blocks_among(names, plan)
    missing = None if count is None else tuple(blocks.missing_shards(done, count, plan.n_blocks))
    rows_done = sum(stop - start for start, stop in map(plan.rows, done))
    return BlockProgress(
        blocks_done=len(done),
        blocks=plan.n_blocks,
        rows_done=rows_done,
        rows=plan.n_rows,
        shards_done=None if count is None or missing is None else count - len(missing),
        shards=count,
        shards_missing=missing,
        seconds_left=_seconds_left(layout, plan, done) if is_running else None,
    )


def _seconds_left(layout: RunLayout, plan: blocks.Plan, done: Collection[int]) -> float | None:
    # At random: every n-th block could be the blocks of one shard.
    some = random.Random(0).sample(sorted(done), min(len(done), _MOST_TIMES))
    times = []
    for block in some:
        with contextlib.suppress(OSError):  # removed since
            times.append(os.stat(layout.block_file(plan.stage, plan.set_name, block)).st_mtime)
    each = seconds_each(sorted(times)[-_N_NEWEST:])
    # The times of a tenth of the blocks are ten times as far apart.
    return None if each is None else each * len(times) / len(done) * (plan.n_blocks - len(done))


def seconds_each(times: Sequence[float]) -> float | None:
    """The mean time between two blocks, from the sorted times at which they were finished, without one long pause.

    The mean, not the median: processes that keep step finish many blocks at once, and then none for a while.
    """
    gaps = sorted(later - earlier for earlier, later in pairwise(times))
    if len(gaps) > 1 and gaps[-1] > max(_PAUSE_SECONDS, _PAUSE_FACTOR * gaps[-2]):
        gaps.pop()
    return sum(gaps) / len(gaps) if gaps else None


def _stage_status(layout: RunLayout, stage: Stage, set_name: str | None, is_verifying: bool) -> StageStatus:
    folder = layout.stage_dir(stage.name, set_name)
    names = os.listdir(folder) if folder.is_dir() else []  # listed once: it may hold 100,000 blocks
    who = holder(layout.claim_file(stage.name, set_name))
    if who is not None and who.is_alive:
        state, detail = State.RUNNING, str(who)
    else:
        try:
            state, detail = _idle_state(layout, stage, set_name, names, is_verifying)
        except BayesndeError as error:
            state, detail = State.DAMAGED, f"{error.what}: {'; '.join(error.found)}"
    progress = None
    if set_name is not None:
        progress = block_progress(layout, stage.name, set_name, names, is_running=state is State.RUNNING)
    return StageStatus(stage.name, set_name, state, detail, progress)


def _idle_state(
    layout: RunLayout, stage: Stage, set_name: str | None, names: Sequence[str], is_verifying: bool
) -> tuple[State, str]:
    """State and detail of a stage that no process has claimed as a whole; a damaged file raises."""
    manifest_file = layout.manifest_file(stage.name, set_name)
    is_complete = manifest_file.name in names
    # The blocks of a complete `density` are in its table; those of `posterior` are the draws themselves.
    if not is_complete or (is_verifying and stage.is_optional):
        _check_parts(layout, stage, set_name, names, is_verifying=is_verifying)
    if not is_complete:
        holders = block_holders(manifest_file.parent, names).values()
        workers = {(who.host, who.pid) for who in holders if who.is_alive}
        if workers:
            return State.RUNNING, counted(len(workers), "process", "processes")
        return (State.INTERRUPTED, "run it again to resume") if names else (State.MISSING, "")
    manifest = Manifest.read(manifest_file)
    manifest.check_outputs(manifest_file.parent, hashed=manifest.outputs if is_verifying else ())
    # A data set is named after its content: a file that has changed is another set.
    stale = [*stale_inputs(layout, manifest), *([] if stage.is_per_set else _changed_data(manifest))]
    return (State.STALE, "; ".join(stale)) if stale else (State.DONE, manifest.ended)


def _check_parts(
    layout: RunLayout, stage: Stage, set_name: str | None, names: Sequence[str], *, is_verifying: bool
) -> None:
    """Raise `BadArtifact` if a file that no manifest lists, and that is still of use, is damaged."""
    if set_name is None:
        for path in sorted(layout.checkpoint_dir(stage.name).glob("*.npz")) if is_verifying else ():
            read_arrays(path)
    elif layout.plan_file(stage.name, set_name).name in names:
        plan = blocks.Plan.read(layout.plan_file(stage.name, set_name))
        blocks.frozen_count(layout, stage.name, set_name)
        if is_verifying:
            from bayesnde_cli.runs.parquet_files import check_table

            for block in sorted(blocks.blocks_among(names, plan)):
                check_table(layout.block_file(plan.stage, set_name, block), blocks.block_stamp(plan, block))
                if stage.is_optional:
                    stamp = blocks.block_stamp(plan, block, name="diagnostics")
                    check_table(layout.diagnostics_file(set_name, block), stamp)


def _changed_data(manifest: Manifest) -> list[str]:
    """The user's files that have changed since they were read; a file that is gone or unreadable is not reported."""
    changed = []
    for recorded in manifest.inputs.values():
        path = Path(recorded.get("path", "-"))
        with contextlib.suppress(OSError):
            if not path.is_absolute() or not path.is_file():
                continue
            is_same = path.stat().st_size == recorded["bytes"]
            if is_same and recorded["bytes"] <= _HASHED_BYTES:  # a large file is judged by its size
                is_same = sha256_file(path) == recorded["sha256"]
            if not is_same:
                changed.append(f"{path} has changed")
    return changed


def _next_command(layout: RunLayout, statuses: Sequence[StageStatus], arrays: Mapping[str, ArrayStatus]) -> str | None:
    for status in statuses:
        if status.state in (State.RUNNING, State.QUEUED):
            return f"wait for {layout.label(status.stage, status.set_name)}"
        is_left_out = status.state is State.MISSING and stage_named(status.stage).is_optional
        if status.state is not State.DONE and not is_left_out:
            array = arrays.get(status.set_name or "") if status.stage == "density" else None
            if array is not None and array.commands:
                return array.commands[0]
            options = ["--restart"] if status.state in (State.STALE, State.DAMAGED) else []
            return layout.command(status.stage, status.set_name, *options)
    return None
