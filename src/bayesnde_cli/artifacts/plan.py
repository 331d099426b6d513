"""The plan of a data set: which rows make which block. Made once, by whoever comes first, and joined by the rest."""

import os
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, fields
from functools import cached_property
from pathlib import Path
from typing import Any

from bayesnde_cli.artifacts.atomic import create_once
from bayesnde_cli.artifacts.canonical import is_count, read_object
from bayesnde_cli.artifacts.differences import compare, settings_differ
from bayesnde_cli.artifacts.fingerprint import sha256_json
from bayesnde_cli.artifacts.layout import RunLayout, block_indexes, misplaced, repair_hint
from bayesnde_cli.artifacts.sealed import SEAL, broken_seal, sealed_bytes
from bayesnde_cli.errors import BadArtifact, BadUsage

SCHEMA_VERSION = 2  # 2: sealed
_SEALED_SINCE = 2
# Files that no folder can hold.
_MOST_BLOCKS = 100_000_000


@dataclass(frozen=True)
class Plan:
    """What decides every block of a data set in one stage. `inputs` maps a role to the SHA-256 of its content."""

    stage: str
    set_name: str
    run_id: str
    n_rows: int
    block_rows: int
    seed: int
    inputs: dict[str, str] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)
    packages: dict[str, str] = field(default_factory=dict, compare=False)  # of the process that made the plan
    schema_version: int = SCHEMA_VERSION

    def __post_init__(self) -> None:
        if self.n_rows < 0 or self.block_rows < 1:
            raise ValueError(f"a plan of {self.n_rows} rows in blocks of {self.block_rows}")

    @property
    def n_blocks(self) -> int:
        return -(-self.n_rows // self.block_rows)

    def rows(self, block: int) -> tuple[int, int]:
        """The first row of a block and the one after its last; only the last block may be short."""
        if not 0 <= block < self.n_blocks:
            raise IndexError(f"block {block} of {self.n_blocks}")
        start = block * self.block_rows
        return start, min(start + self.block_rows, self.n_rows)

    @property
    def identity(self) -> dict[str, Any]:
        """What decides the blocks: all but the versions, which are recorded and refuse nobody."""
        return {name: value for name, value in asdict(self).items() if name != "packages"}

    @cached_property
    def plan_hash(self) -> str:
        """The SHA-256 of the plan's identity, which every block carries."""
        return sha256_json(self.identity)


def create_or_join(layout: RunLayout, plan: Plan) -> Plan:
    """The plan that is on disk afterwards, equal to the one given; `SettingsDiffer` if another one is there."""
    if found := _too_many(asdict(plan)):
        raise BadUsage("no folder holds so many blocks", found=found, hint="make larger ones, with --block-rows")
    if create_once(layout.plan_file(plan.stage, plan.set_name), sealed_bytes(asdict(plan))):
        return plan
    return join(layout, plan)


def join(layout: RunLayout, plan: Plan) -> Plan:
    """The plan on disk, equal to the one given; `SettingsDiffer` if another one is there, `MissingArtifact` if none."""
    found = read(layout.plan_file(plan.stage, plan.set_name))
    differences = compare(found.identity, plan.identity)
    if differences:
        raise settings_differ(layout, plan.stage, plan.set_name, differences)
    return found


def read(path: Path) -> Plan:
    """The plan in a file."""
    found = {"packages": {}, **read_object(path, newest=SCHEMA_VERSION)}  # the first plans had none
    seal = found.pop(SEAL, None)
    problem = _problem(found) or misplaced(path, found["stage"], found["set_name"]) or _too_many(found)
    if problem is None and found["schema_version"] >= _SEALED_SINCE:
        problem = broken_seal(found, seal)
    if problem:
        raise BadArtifact(f"{path} is damaged", found=problem, hint=repair_hint(path))
    return Plan(**found)


def blocks_done(layout: RunLayout, plan: Plan) -> set[int]:
    """The blocks that are published. One listing of the folder, and no look inside: what has the name is whole."""
    try:
        names = os.listdir(layout.stage_dir(plan.stage, plan.set_name))
    except FileNotFoundError:
        return set()
    return blocks_among(names, plan)


def blocks_among(names: Iterable[str], plan: Plan) -> set[int]:
    """The blocks of a plan among the names of files."""
    n_blocks = plan.n_blocks
    return {index for index in block_indexes(names) if index < n_blocks}


def missing_blocks(layout: RunLayout, plan: Plan) -> list[int]:
    """The blocks that are still to be computed, in order."""
    done = blocks_done(layout, plan)
    return [block for block in range(plan.n_blocks) if block not in done]


def _problem(found: dict[str, Any]) -> str | None:
    """What is wrong with a plan read from disk, if anything."""
    names = {entry.name for entry in fields(Plan)}
    for name in sorted(names ^ found.keys()):
        return f"{name} is {'not there' if name in names else 'unknown'}"
    for name in ("n_rows", "block_rows", "seed"):
        if not is_count(found[name]):
            return f"{name} is {found[name]!r}"
    for name in ("stage", "set_name", "run_id"):
        if not isinstance(found[name], str):
            return f"{name} is {found[name]!r}"
    for name in ("inputs", "settings", "packages"):
        if not isinstance(found[name], dict):
            return f"{name} is {found[name]!r}"
    return "block_rows is 0" if found["block_rows"] == 0 else None


def _too_many(found: dict[str, Any]) -> str | None:
    if found["n_rows"] <= _MOST_BLOCKS * found["block_rows"]:
        return None
    return f"{found['n_rows']} rows in blocks of {found['block_rows']}: too many blocks"
