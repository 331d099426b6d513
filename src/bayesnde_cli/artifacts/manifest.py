"""Manifests: what a stage was made from, with what, and what it made. Written last, so present means complete.

A manifest records; it asserts nothing. Inputs inside the run are named by their path below the run directory
(`prepare/train.parquet`), inputs of the user by their role (`data`). Outputs are named by their path below the
stage's folder.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from enum import Enum
from pathlib import Path, PurePosixPath
from typing import Any

from bayesnde_cli.artifacts import atomic, environment
from bayesnde_cli.artifacts.canonical import is_count, read_object
from bayesnde_cli.artifacts.differences import compare, settings_differ
from bayesnde_cli.artifacts.fingerprint import sha256_file, sha256_json
from bayesnde_cli.artifacts.layout import RunLayout, misplaced, repair_hint
from bayesnde_cli.artifacts.sealed import SEAL, broken_seal, sealed_bytes
from bayesnde_cli.errors import BadArtifact

SCHEMA_VERSION = 2  # 2: sealed
_SEALED_SINCE = 2
_RUN_ID_DIGITS = 16


@dataclass(frozen=True)
class Manifest:
    """The record of one finished stage. `identity` is what decides the result: settings, seed, hashes of inputs."""

    stage: str
    set_name: str | None
    run_id: str
    identity: dict[str, Any]
    config: dict[str, Any]
    seed: int
    inputs: dict[str, dict[str, Any]]
    outputs: dict[str, dict[str, Any]]
    device: str
    started: str
    result: dict[str, Any] = field(default_factory=dict)  # what a stage has chosen, in a few words for a reader
    ended: str = field(default_factory=environment.utc_now)
    packages: dict[str, str] = field(default_factory=environment.package_versions)
    python: str = field(default_factory=environment.python_version)
    platform: str = field(default_factory=environment.platform_name)
    schema_version: int = SCHEMA_VERSION

    @property
    def identity_hash(self) -> str:
        return sha256_json(self.identity)


class StageState(Enum):
    """Whether a stage is still to be made."""

    FRESH = "fresh"
    UP_TO_DATE = "up to date"


def derive_run_id(identity: Mapping[str, Any]) -> str:
    """The run's name for itself, from what `prepare` was asked to do.

    Derived and not drawn: the same run made in two folders has byte-equal tables.
    """
    return sha256_json(identity)[:_RUN_ID_DIGITS]


def write(path: Path, manifest: Manifest) -> None:
    """Puts the manifest in place: from here on the stage counts as complete."""
    for name in manifest.outputs:
        if not _stays_inside(name):
            raise ValueError(f"output {name!r} is outside of the stage's folder")
    atomic.write_bytes(path, sealed_bytes(asdict(manifest)))


def read(path: Path) -> Manifest:
    """The manifest in a file; `BadArtifact` if it is damaged or of a newer version."""
    found = {"result": {}, **read_object(path, newest=SCHEMA_VERSION)}  # the first manifests had no result
    seal = found.pop(SEAL, None)
    problem = _problem(found) or misplaced(path, found["stage"], found["set_name"])
    if problem is None and found["schema_version"] >= _SEALED_SINCE:
        problem = broken_seal(found, seal)
    if problem:
        raise BadArtifact(f"{path} is damaged", found=problem, hint=repair_hint(path))
    return Manifest(**found)


def stage_state(layout: RunLayout, stage: str, identity: Mapping[str, Any], set_name: str | None = None) -> StageState:
    """Whether a stage has been made with this identity; `SettingsDiffer` if it was made with another one.

    Its outputs must be there and be what was written, to the last bit.
    """
    path = layout.manifest_file(stage, set_name)
    if not path.exists():
        return StageState.FRESH
    found = read(path)
    differences = compare(found.identity, identity)
    if differences:
        raise settings_differ(layout, stage, set_name, differences)
    check_outputs(found, path.parent, deep=found.outputs)
    return StageState.UP_TO_DATE


def result_of(layout: RunLayout, manifest: Manifest, kinds: Mapping[str, type | tuple[type, ...]]) -> dict[str, Any]:
    """What a stage says that it has found; `BadArtifact` if something is not there, or not of its kind.

    Counts and dictionaries may be absent: the first manifests did not have all of them.
    """
    found = {name: manifest.result.get(name, kind() if kind in (int, dict) else ...) for name, kind in kinds.items()}
    for name, value in found.items():
        if not isinstance(value, kinds[name]):
            path = layout.manifest_file(manifest.stage, manifest.set_name)
            said = "not there" if value is ... else repr(value)
            raise BadArtifact(f"{path} is damaged", found=f"result.{name} is {said}", hint=repair_hint(path))
    return found


def describe_input(path: Path, *, given: str | None = None) -> dict[str, Any]:
    """An input as a manifest records it, under the path that the user gave."""
    return {**_describe(path), "path": str(path) if given is None else given}


def describe_folder(folder: Path, files: Sequence[Path], *, given: str) -> dict[str, Any]:
    """A folder that is an input: the hash is that of its files' names and hashes, in their order."""
    names = [path.as_posix().encode("utf-8", "backslashreplace").decode() for path in files]
    entries = [_describe(folder / path) for path in files]
    digest = sha256_json([[name, entry["sha256"]] for name, entry in zip(names, entries, strict=True)])
    return {"sha256": digest, "bytes": sum(entry["bytes"] for entry in entries), "path": given}


def describe_outputs(folder: Path, paths: Iterable[Path]) -> dict[str, dict[str, Any]]:
    """The outputs below a stage's folder as a manifest records them."""
    return {path.relative_to(folder).as_posix(): _describe(path) for path in paths}


def check_outputs(manifest: Manifest, folder: Path, *, deep: Collection[str] = ()) -> None:
    """Raises `BadArtifact` if an output is missing or has changed: its size always, its content if it is in `deep`."""
    own = folder / "manifest.json"
    for name in deep:
        if name not in manifest.outputs:
            found = f"{name} is not among the outputs"
            raise BadArtifact(f"{own} is damaged", found=found, hint=repair_hint(own))
    for name, recorded in manifest.outputs.items():
        path = folder / name
        change = _change(path, recorded, is_deep=name in deep)
        if change is None and not path.resolve().is_relative_to(folder.resolve()):
            change = f"it is a link to {path.resolve()}, outside of the stage's folder"
        if change:
            raise BadArtifact(f"{path} is not what {manifest.stage} wrote", found=change, hint=repair_hint(own))


def _describe(path: Path) -> dict[str, Any]:
    return {"sha256": sha256_file(path), "bytes": path.stat().st_size}


def _change(path: Path, recorded: Mapping[str, Any], *, is_deep: bool) -> str | None:
    try:
        if not path.is_file():
            return "it is missing"
        n_bytes = path.stat().st_size
        if n_bytes != recorded["bytes"]:
            return f"{n_bytes} bytes instead of {recorded['bytes']}"
        if is_deep and sha256_file(path) != recorded["sha256"]:
            return "same size, other content"
    except OSError as error:
        return f"it cannot be read: {error.strerror}"
    return None


def _stays_inside(name: str) -> bool:
    parts = PurePosixPath(name).parts
    is_below = bool(parts) and not PurePosixPath(name).is_absolute() and ".." not in parts
    return is_below and not {"\\", "\0"} & set(name)


def _problem(found: Mapping[str, Any]) -> str | None:
    """What is wrong with a manifest read from disk, if anything."""
    names = {entry.name for entry in fields(Manifest)}
    for name in sorted(names ^ found.keys()):
        return f"{name} is {'not there' if name in names else 'unknown'}"
    for name in ("identity", "config", "inputs", "outputs", "packages", "result"):
        if not isinstance(found[name], dict):
            return f"{name} is {found[name]!r}"
    for name in ("stage", "run_id", "started", "ended", "device", "python", "platform"):
        if not isinstance(found[name], str):
            return f"{name} is {found[name]!r}"
    if not is_count(found["seed"]):
        return f"seed is {found['seed']!r}"
    for kind, whole in (("inputs", "run"), ("outputs", "stage's folder")):
        for name, entry in found[kind].items():
            if not _stays_inside(name):
                return f"{kind.removesuffix('s')} {name!r} is outside of the {whole}"
            if not (isinstance(entry, dict) and isinstance(entry.get("sha256"), str) and is_count(entry.get("bytes"))):
                return f"{kind}: {name} has no SHA-256 and size"
            if not isinstance(entry.get("path", ""), str):
                return f"{kind}: {name} has the path {entry['path']!r}"
    return None
