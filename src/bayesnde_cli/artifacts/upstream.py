"""What a stage builds on: complete, unchanged, and not older than what it was itself made from."""

from collections.abc import Collection, Sequence
from pathlib import PurePosixPath

from bayesnde_cli.artifacts import manifest as manifests
from bayesnde_cli.artifacts.layout import STAGES, RunLayout, is_set_name
from bayesnde_cli.artifacts.manifest import Manifest
from bayesnde_cli.errors import MissingArtifact, StaleArtifact

_PER_SET = {stage.name: stage.is_per_set for stage in STAGES}


def require(layout: RunLayout, stage: str, set_name: str | None = None, *, reading: Collection[str] = ()) -> Manifest:
    """The manifest of a finished stage; `MissingArtifact` or `StaleArtifact`, with the command to run, if it is not.

    Of the outputs, those that the caller is `reading` are compared with their hashes, the others by their sizes.
    """
    path = layout.manifest_file(stage, set_name)
    label = layout.label(stage, set_name)
    if not path.exists():
        raise MissingArtifact(
            f"{label} is not there, or not complete",
            found=f"no {path}",
            hint=f"run {_missing_commands(layout, stage, set_name)}",
        )
    found = manifests.read(path)
    manifests.check_outputs(found, path.parent, deep=reading)
    refuse_stale(layout, stage, set_name, stale_inputs(layout, found))
    return found


def _missing_commands(layout: RunLayout, stage: str, set_name: str | None) -> str:
    """The commands that make a stage, those right before it that are not there first."""
    once = [name for name, is_per_set in _PER_SET.items() if not is_per_set]
    before = once[: once.index(stage)] if stage in once else once
    commands = [layout.command(stage, set_name)]
    for name in reversed(before):
        if layout.manifest_file(name).exists():
            break
        commands.insert(0, layout.command(name))
    return ", then ".join(f"`{command}`" for command in commands)


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

    Manifests are compared with manifests: no file is hashed, so `status` can afford it.
    """
    lines: set[str] = set()
    seen: set[tuple[str, str | None]] = set()
    waiting = [found]
    while waiting:
        reader = waiting.pop()
        for name, recorded in reader.inputs.items():
            source = _source(name)
            if source is None:
                continue  # the user's own file; it may be gone by now
            stage, set_name, output = source
            path = layout.manifest_file(stage, set_name)
            if not path.exists():
                lines.add(f"{layout.label(stage, set_name)} is gone")
                continue
            upstream = manifests.read(path)
            if upstream.outputs.get(output, {}).get("sha256") != recorded["sha256"]:
                lines.add(f"{name} is not the one that {layout.label(reader.stage, reader.set_name)} read")
            if (stage, set_name) not in seen:
                seen.add((stage, set_name))
                waiting.append(upstream)
    return sorted(lines)


def _source(name: str) -> tuple[str, str | None, str] | None:
    """The stage, data set and output behind an input's name; None if it did not come from the run."""
    stage, *rest = PurePosixPath(name).parts or ("",)
    if stage not in _PER_SET:
        return None
    n_folders = 1 if _PER_SET[stage] else 0
    if len(rest) <= n_folders or (n_folders and not is_set_name(rest[0])):
        return None
    return stage, rest[0] if n_folders else None, "/".join(rest[n_folders:])
