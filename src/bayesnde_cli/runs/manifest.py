"""Manifests: what a stage was made from, with what, and what it made; and how a stage's folder is made and removed.

A manifest is written last, so present means complete. Inputs inside the run are named by their path below the run
directory (`prepare/train.parquet`), the user's files as `data-0`, `data-1` and so on. Outputs are named by their path
below the stage's folder. A stage checks the SHA-256 of what it reads once, against the manifest of the stage that wrote
it.
"""

import contextlib
import functools
import json
import os
import shutil
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NotRequired

from pydantic import Field
from typing_extensions import TypedDict

from bayesnde_cli.errors import BadArtifact, CannotWrite, MissingArtifact, SettingsDiffer, StageBusy, StaleArtifact
from bayesnde_cli.runs import files
from bayesnde_cli.runs.layout import MANIFEST, STAGES, RunLayout, repair_hint, stage_named
from bayesnde_cli.settings.declare import StageSettings

RECORDED_PACKAGES = ("bayesnde", "numpy", "scipy", "scikit-learn", "pyarrow", "tensorflow")
# The packages that compute draws and log-densities: another version may change the last digits.
COMPUTING_PACKAGES = ("bayesnde", "numpy", "scipy", "tensorflow")
_RUN_ID_DIGITS = 16


# What a stage ran on


@functools.cache
def package_versions() -> dict[str, str]:
    """The installed version of each package that can change a number."""
    from importlib import metadata  # 15 ms that `status` does not need

    versions = {}
    for name in RECORDED_PACKAGES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            versions[name] = metadata.version(name)
    return versions


def computing_versions() -> str:
    """The versions that decide the bits of a block, in one line: `numpy 2.4.6, tensorflow 2.21.0`."""
    versions = package_versions()
    return ", ".join(f"{name} {versions[name]}" for name in sorted(COMPUTING_PACKAGES) if name in versions)


# The document


class FileRecord(TypedDict):
    """A file as a manifest records it; the path is the one that the user gave, or that below the run."""

    sha256: str
    bytes: int
    path: NotRequired[str]


class Manifest(files.Document):
    """The record of one finished stage. `identity` is what decides the result: settings, seed, hashes of inputs."""

    stage: str
    set_name: str | None
    run_id: str
    identity: dict[str, Any]
    config: dict[str, Any]
    seed: int
    inputs: dict[str, FileRecord]
    outputs: dict[str, FileRecord]
    started: str
    device: str = "cpu"
    result: dict[str, Any] = Field(default_factory=dict)  # figures of the stage, for a reader
    ended: str = Field(default_factory=files.utc_now)
    packages: dict[str, str] = Field(default_factory=package_versions)
    python: str = Field(default_factory=lambda: sys.version.split()[0])
    platform: str = Field(default_factory=lambda: "{0.sysname}-{0.release}-{0.machine}".format(os.uname()))

    def write(self, path: Path) -> None:
        """Put the manifest in place: from here on the stage counts as complete."""
        files.write_json(path, self.model_dump())

    def check_outputs(self, folder: Path, *, hashed: Collection[str] = ()) -> None:
        """Raise `BadArtifact` if an output is missing or has changed: in size, or in its hash if it is in `hashed`."""
        for name, recorded in self.outputs.items():
            path, change = folder / name, None
            n_bytes = path.stat().st_size if path.is_file() else None
            if n_bytes is None:
                change = "it is missing"
            elif n_bytes != recorded["bytes"]:
                change = f"{n_bytes} bytes instead of {recorded['bytes']}"
            elif name in hashed and files.sha256_file(path) != recorded["sha256"]:
                change = "same size, other content"
            if change is not None:
                hint = repair_hint(folder / MANIFEST)
                raise BadArtifact(f"{path} is not what {self.stage} wrote", found=change, hint=hint)


def derive_run_id(identity: Mapping[str, Any]) -> str:
    """The id of a run, derived from the identity of `prepare`: the same run in two folders has byte-equal tables."""
    return files.sha256_json(identity)[:_RUN_ID_DIGITS]


def describe_file(path: Path) -> FileRecord:
    """A file as a manifest records it."""
    return {"sha256": files.sha256_file(path), "bytes": path.stat().st_size}


def describe_folder(folder: Path, paths: Sequence[Path]) -> FileRecord:
    """A folder as a manifest records it: the hash covers the names and hashes of its files, in order."""
    names = [path.as_posix().encode("utf-8", "backslashreplace").decode() for path in paths]
    entries = [describe_file(folder / path) for path in paths]
    digest = files.sha256_json([[name, entry["sha256"]] for name, entry in zip(names, entries, strict=True)])
    return {"sha256": digest, "bytes": sum(entry["bytes"] for entry in entries)}


def describe_outputs(folder: Path, paths: Iterable[Path]) -> dict[str, FileRecord]:
    """The outputs below a stage's folder as a manifest records them."""
    return {path.relative_to(folder).as_posix(): describe_file(path) for path in paths}


# Is a stage up to date?


def is_stage_done(layout: RunLayout, stage: str, identity: Mapping[str, Any], set_name: str | None = None) -> bool:
    """Whether a stage has been made with this identity, its outputs intact; `SettingsDiffer` for another identity."""
    path = layout.manifest_file(stage, set_name)
    if not path.exists():
        return False
    found = Manifest.read(path)
    if differences := compare(found.identity, identity):
        raise settings_differ(layout, stage, set_name, differences)
    found.check_outputs(path.parent, hashed=found.outputs)
    return True


def compare(old: Mapping[str, Any], new: Mapping[str, Any], prefix: str = "") -> list[str]:
    """One line for each value that differs, as `scale: 'marginal' -> 'standard'`; nested keys are dotted.

    Both are compared as JSON keeps them: a tuple equals a list, and `1`, `1.0` and `true` are three values. A setting
    that is absent equals None.
    """
    lines = []
    for key in sorted(old.keys() | new.keys()):
        before, after = old.get(key), new.get(key)
        if isinstance(before, dict) and isinstance(after, dict):
            lines += compare(before, after, f"{prefix}{key}.")
        elif files.json_bytes(before) != files.json_bytes(after):
            lines.append(f"{prefix}{key}: {_show(before)} -> {_show(after)}")
    return lines


def settings_differ(layout: RunLayout, stage: str, set_name: str | None, differences: Sequence[str]) -> SettingsDiffer:
    """The error for a stage that was made, or started, with another identity."""
    return SettingsDiffer(
        f"{layout.label(stage, set_name)} was made with other settings or data",
        found=differences,
        hint=f"run `{layout.command(stage, set_name, '--restart')}` with the same options to make it again, "
        "or keep it and use another run directory with `--run OTHER`",
    )


def _show(value: Any) -> str:
    if value is None:
        return "(none)"
    if isinstance(value, str) and len(value) == 64 and set(value) <= set("0123456789abcdef"):
        return f"{value[:12]}…"  # a SHA-256
    return repr(json.loads(files.json_bytes(value)))


# What a stage builds on: complete, intact, and newer than what it was made from


def require(layout: RunLayout, stage: str, set_name: str | None = None, *, reading: Collection[str] = ()) -> Manifest:
    """The manifest of a finished stage; `MissingArtifact` or `StaleArtifact`, with the command to run, if it is not.

    The outputs that the caller is `reading` are checked against their hashes, the others against their sizes.
    """
    path = layout.manifest_file(stage, set_name)
    if not path.exists():
        commands = ", then ".join(f"`{command}`" for command in _missing_commands(layout, stage, set_name))
        raise MissingArtifact(
            f"{layout.label(stage, set_name)} is missing or incomplete", found=f"no {path}", hint=f"run {commands}"
        )
    found = Manifest.read(path)
    found.check_outputs(path.parent, hashed=reading)
    refuse_stale(layout, stage, set_name, stale_inputs(layout, found))
    return found


def refuse_stale(layout: RunLayout, stage: str, set_name: str | None, stale: Sequence[str]) -> None:
    """Raise `StaleArtifact` if a stage has stale inputs."""
    if stale:
        raise StaleArtifact(
            f"{layout.label(stage, set_name)} was made from files that have changed since",
            found=stale,
            hint=f"run `{layout.command(stage, set_name, '--restart')}`",
        )


def stale_inputs(layout: RunLayout, found: Manifest) -> list[str]:
    """One line for each file of the run that changed after a stage, or a stage above it, read it.

    Manifests are compared with manifests: no file is hashed, so that `status` is fast.
    """
    lines: set[str] = set()
    upstream: dict[Path, Manifest] = {}
    for name, recorded in found.inputs.items():
        stage, *rest = name.split("/")
        if not any(stage == known.name for known in STAGES):
            continue  # the user's own file; it may be gone by now
        set_name = rest.pop(0) if stage_named(stage).is_per_set else None
        path = layout.manifest_file(stage, set_name)
        if not path.exists():
            lines.add(f"{layout.label(stage, set_name)} is missing")
            continue
        if path not in upstream:
            upstream[path] = Manifest.read(path)
            lines.update(stale_inputs(layout, upstream[path]))
        output = upstream[path].outputs.get("/".join(rest))
        if output is None or output["sha256"] != recorded["sha256"]:
            lines.add(f"{name} is not the one that {layout.label(found.stage, found.set_name)} read")
    return sorted(lines)


def _missing_commands(layout: RunLayout, stage: str, set_name: str | None) -> list[str]:
    """The commands that make a stage, preceded by those of the missing stages right before it."""
    commands = [layout.command(stage, set_name)]
    once = [known.name for known in STAGES if not known.is_per_set]
    for name in reversed(once[: once.index(stage)] if stage in once else once):
        if layout.manifest_file(name).exists():
            break
        commands.insert(0, layout.command(name))
    return commands


# A stage's folder while the stage is made: claimed, staged, published with the manifest last, or discarded


@dataclass(frozen=True)
class Workplace:
    """Where a stage works: a staging folder for unfinished files, and the claim that keeps other processes out."""

    layout: RunLayout
    stage: str
    set_name: str | None
    folder: Path
    claim: files.Claim
    started: str

    def finish(self, outputs: Sequence[str], config: StageSettings, **facts: Any) -> Manifest:
        """Publish the outputs in the staging folder, and then the manifest that describes them, by renames only.

        `facts` are the other fields of the manifest. An older manifest is removed first: until the new one is in place
        the stage counts as interrupted. Names are flushed to disk before the manifest gets its own, so that not even a
        power cut leaves it without its outputs.
        """
        manifest = Manifest(
            stage=self.stage,
            set_name=self.set_name,
            config=config.as_dict(),
            outputs=describe_outputs(self.folder, [self.folder / name for name in outputs]),
            started=self.started,
            **facts,
        )
        manifest.write(self.folder / MANIFEST)
        folder = self.layout.stage_dir(self.stage, self.set_name)
        with files.cannot_write(folder):
            if not self.claim.refresh():
                raise StageBusy(
                    f"{folder} was taken over by another process",
                    found="this process was silent for too long, and its result was not published",
                    hint="run the same command again",
                )
            (folder / MANIFEST).unlink(missing_ok=True)
            for output in manifest.outputs:
                (folder / output).parent.mkdir(exist_ok=True)
                os.replace(self.folder / output, folder / output)
            for parent in {folder, *((folder / output).parent for output in manifest.outputs)}:
                files.flush_folder(parent)
            os.replace(self.folder / MANIFEST, folder / MANIFEST)
            files.flush_folder(folder)
        return manifest


@contextlib.contextmanager
def workplace(
    layout: RunLayout, stage: str, set_name: str | None = None, *, started: str | None = None
) -> Iterator[Workplace]:
    """The workplace of a stage; the staging folder and the claim are removed at the end, and so are empty folders."""
    started = started or files.utc_now()
    folder = layout.stage_dir(stage, set_name)
    with no_empty_folders(folder), files.running(layout, stage, set_name) as claim:
        tidy(layout, stage, set_name)
        staging = files.temporary_beside(folder / "staging")
        with files.cannot_write(folder):
            staging.mkdir()
        try:
            yield Workplace(layout, stage, set_name, staging, claim, started)
        finally:
            shutil.rmtree(staging, ignore_errors=True)


def tidy(layout: RunLayout, stage: str, set_name: str | None = None) -> None:
    """Remove what a process left that was killed after it completed the stage, if it may be removed."""
    folder = layout.stage_dir(stage, set_name)
    with contextlib.suppress(CannotWrite):
        files.sweep(folder)
        files.sweep_claims(folder)


@contextlib.contextmanager
def no_empty_folders(folder: Path) -> Iterator[None]:
    """Remove, at the end, a folder and its parents if they were made inside the block and are empty."""
    made_here = [path for path in (folder, *folder.parents) if not path.exists()]
    try:
        yield
    finally:
        for path in made_here:  # bad input leaves no empty run directory behind
            with contextlib.suppress(OSError):
                path.rmdir()


def discard(
    layout: RunLayout, stage: str, set_name: str | None = None, *, is_wanted: Callable[[], bool] = lambda: True
) -> None:
    """Remove the stage's folder, in one step, so that half a stage never looks complete.

    `StageBusy` if a live process is working in it. We claim the stage first and then check the blocks; a process that
    computes a block claims it first and then checks the stage: at least one sees the other. `is_wanted` is asked last,
    as the stage may have been removed and started again meanwhile.
    """
    folder, path = layout.stage_dir(stage, set_name), layout.claim_file(stage, set_name)
    if not folder.is_dir():
        return
    # Renamed to a temporary name first: if this process is killed half-way, the next run of the stage sweeps it.
    aside = files.temporary_beside(folder)
    with files.holding(path) as ours:
        busy = [str(who) for who in files.block_holders(folder, os.listdir(folder)).values() if who.is_alive]
        if ours is None:
            busy.insert(0, str(files.holder(path) or "a process that has just ended"))
        if busy:
            raise StageBusy(
                f"{layout.label(stage, set_name)} cannot be removed: it is being made",
                found=busy,
                hint="wait for it or stop it, then run the same command again",
            )
        if not is_wanted():
            return
        with files.cannot_write(folder), contextlib.suppress(FileNotFoundError):  # removed by another process
            os.rename(folder, aside)
    shutil.rmtree(aside, ignore_errors=True)


# Checkpoints of a training stage that is complete: its selected weights are an output by then


def forget_checkpoint(layout: RunLayout, stage: str) -> None:
    """Remove the checkpoint of a stage; the state goes first, as it names the other files."""
    with contextlib.suppress(OSError):
        layout.checkpoint_file(stage).unlink(missing_ok=True)
        layout.choice_file(stage).unlink(missing_ok=True)
        for pattern in ("check-*.npz", "trial-*.npz"):
            for path in layout.checkpoint_dir(stage).glob(pattern):
                path.unlink(missing_ok=True)


def forget_leftover(layout: RunLayout, stage: str, identity: Mapping[str, Any]) -> None:
    """Remove a checkpoint that a process was killed before it could remove; that of an unfinished restart stays."""
    if not any(layout.checkpoint_dir(stage).glob("*")):
        return
    state = layout.checkpoint_file(stage)
    with contextlib.suppress(CannotWrite, BadArtifact), files.holding(layout.claim_file(stage)) as ours:
        if ours is not None and (not state.exists() or not compare(files.read_arrays(state)[1]["identity"], identity)):
            forget_checkpoint(layout, stage)
