"""Where a run stands: every stage's state, blocks and shards done, and what to type next."""

import contextlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

from bayesnde_cli.artifacts import manifest as manifests
from bayesnde_cli.artifacts.claims import holder, holders_among
from bayesnde_cli.artifacts.fingerprint import sha256_file
from bayesnde_cli.artifacts.layout import STAGES, TEST_SET, RunLayout, Stage, stage_named
from bayesnde_cli.artifacts.manifest import Manifest
from bayesnde_cli.artifacts.upstream import stale_inputs
from bayesnde_cli.errors import BayesndeError
from bayesnde_cli.stages.block_progress import BlockProgress, block_progress
from bayesnde_cli.stages.parts import check_checkpoint, check_division, check_parts
from bayesnde_cli.stages.reporting import counted
from bayesnde_cli.stages.slurm.array_status import ArrayStatus, array_statuses

# `status` reads the user's files again up to this size, to see whether they have changed.
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


@dataclass(frozen=True)
class RunStatus:
    """The state of a whole run."""

    run: str
    stages: tuple[StageStatus, ...]
    next_command: str | None
    arrays: tuple[ArrayStatus, ...] = ()  # of the data sets that are not complete

    @property
    def is_sound(self) -> bool:
        """The first stage is there or under way, and nothing that is there is stale or damaged."""
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


def run_status(layout: RunLayout, commands: Sequence[str], *, is_verifying: bool = False) -> RunStatus:
    """The state of every stage of a run; `commands` are the stages that can be run, for the advice.

    With `is_verifying` every output is read and compared with its hash, and not by its size alone.
    """
    statuses: list[StageStatus] = []
    for stage in STAGES:
        set_names = sorted({TEST_SET, *layout.sets(stage.name)}) if stage.is_per_set else [None]
        statuses += [_stage_status(layout, stage, set_name, is_verifying) for set_name in set_names]
    arrays = {array.set_name: array for array in array_statuses(layout, _missing_shards(statuses))}
    statuses = [_queued(status, arrays) for status in statuses]
    following = _next_command(layout, statuses, commands, arrays)
    return RunStatus(str(layout.root), tuple(statuses), following, tuple(arrays.values()))


def _missing_shards(statuses: Sequence[StageStatus]) -> dict[str, tuple[int, ...]]:
    """The shards that are missing of each data set that a cluster may be at work on."""
    return {
        status.set_name: status.progress.shards_missing or ()
        for status in statuses
        if status.stage == "density" and status.set_name is not None and status.progress is not None
        and status.state in (State.RUNNING, State.INTERRUPTED)
    }  # fmt: skip


def _queued(status: StageStatus, arrays: Mapping[str, ArrayStatus]) -> StageStatus:
    """The same, or that SLURM has it in its queue."""
    array = _array_of(status, arrays)
    if array is None or not array.is_queued or status.state is not State.INTERRUPTED:
        return status
    return replace(status, state=State.QUEUED, detail="in SLURM's queue")


def _array_of(status: StageStatus, arrays: Mapping[str, ArrayStatus]) -> ArrayStatus | None:
    return arrays.get(status.set_name or "") if status.stage == "density" else None


def _stage_status(layout: RunLayout, stage: Stage, set_name: str | None, is_verifying: bool) -> StageStatus:
    folder = layout.stage_dir(stage.name, set_name)
    names = os.listdir(folder) if folder.is_dir() else []  # one look at a folder that may hold 100,000 blocks
    state, detail = _state(layout, stage, set_name, names, is_verifying)
    progress = None
    if set_name is not None:
        progress = block_progress(layout, stage.name, set_name, names, is_running=state is State.RUNNING)
    return StageStatus(stage.name, set_name, state, detail, progress)


def _state(
    layout: RunLayout, stage: Stage, set_name: str | None, names: Sequence[str], is_verifying: bool
) -> tuple[State, str]:
    """The state of a stage, with what there is to say of it; `names` are those of its folder's files."""
    manifest_file = layout.manifest_file(stage.name, set_name)
    folder = manifest_file.parent
    who = holder(layout.claim_file(stage.name, set_name))
    if who is not None and who.is_alive:
        return State.RUNNING, str(who)
    try:
        _check_parts(layout, stage, set_name, names, is_verifying)
    except BayesndeError as error:
        return State.DAMAGED, f"{error.what}: {'; '.join(error.found)}"
    if manifest_file.name not in names:
        at_work = {(other.host, other.pid) for other in holders_among(folder, names).values() if other.is_alive}
        if at_work:
            return State.RUNNING, counted(len(at_work), "process", "processes")
        return (State.INTERRUPTED, "run it again to go on") if names else (State.MISSING, "")
    try:
        manifest = manifests.read(manifest_file)
        manifests.check_outputs(manifest, folder, deep=manifest.outputs if is_verifying else ())
        # A data set is named after its content: a file that has changed is another set.
        changed = [] if stage.is_per_set else _changed_data(manifest)
        stale = [*stale_inputs(layout, manifest), *changed]
    except BayesndeError as error:
        return State.DAMAGED, f"{error.what}: {'; '.join(error.found)}"
    return (State.STALE, "; ".join(stale)) if stale else (State.DONE, manifest.ended)


def _check_parts(
    layout: RunLayout, stage: Stage, set_name: str | None, names: Sequence[str], is_verifying: bool
) -> None:
    """Raise `BadArtifact` if a file is damaged of which no manifest tells, and which is still of use."""
    is_complete = layout.manifest_file(stage.name, set_name).name in names
    if set_name is None:
        if is_verifying and not is_complete:
            check_checkpoint(layout, stage.name)
    elif is_verifying or not is_complete:
        plan = check_division(layout, stage.name, set_name, names)
        # The blocks of a complete `density` are in its table; those of `posterior` are the draws themselves.
        if plan is not None and is_verifying and (not is_complete or stage.is_optional):
            check_parts(layout, plan, names)


def _changed_data(manifest: Manifest) -> list[str]:
    """The user's files that have changed since they were read; one that is gone, or not for us to see, is no news."""
    changed = []
    for recorded in manifest.inputs.values():
        path = Path(recorded.get("path", "-"))
        with contextlib.suppress(OSError):
            if path.is_absolute() and path.is_file() and not _is_same(path, recorded):
                changed.append(f"{path} has changed")
    return changed


def _is_same(path: Path, recorded: Mapping[str, Any]) -> bool:
    n_bytes = path.stat().st_size
    if n_bytes != recorded["bytes"]:
        return False
    return n_bytes > _HASHED_BYTES or sha256_file(path) == recorded["sha256"]  # a large file is judged by its size


def _next_command(
    layout: RunLayout, statuses: Sequence[StageStatus], commands: Sequence[str], arrays: Mapping[str, ArrayStatus]
) -> str | None:
    for status in statuses:
        if status.state in (State.RUNNING, State.QUEUED):
            return f"wait for {layout.label(status.stage, status.set_name)}"
        is_left_out = status.state is State.MISSING and stage_named(status.stage).is_optional
        if status.stage in commands and status.state is not State.DONE and not is_left_out:
            array = _array_of(status, arrays)
            if array is not None and array.commands:
                return array.commands[0]
            options = ["--restart"] if status.state in (State.STALE, State.DAMAGED) else []
            return layout.command(status.stage, status.set_name, *options)
    return None
