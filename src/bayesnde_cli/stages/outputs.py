"""How a stage puts its outputs in place: made in a folder of its own, published together, the manifest last."""

import contextlib
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bayesnde_cli.artifacts import manifest as manifests
from bayesnde_cli.artifacts.atomic import cannot_write, sweep, temporary_beside
from bayesnde_cli.artifacts.claims import Claim, running, sweep_claims
from bayesnde_cli.artifacts.environment import utc_now
from bayesnde_cli.artifacts.held_signals import signals_held
from bayesnde_cli.artifacts.layout import RunLayout
from bayesnde_cli.artifacts.manifest import Manifest
from bayesnde_cli.artifacts.publish import publish
from bayesnde_cli.config import StageConfig
from bayesnde_cli.errors import CannotWrite


@dataclass(frozen=True)
class Workplace:
    """Where a stage works: a folder for what is not finished, and the claim that keeps other processes out."""

    layout: RunLayout
    stage: str
    set_name: str | None
    folder: Path
    claim: Claim
    started: str

    def finish(
        self, outputs: Sequence[str], config: StageConfig, *, seed: int, identity: Mapping[str, Any],
        inputs: Mapping[str, dict[str, Any]], run_id: str, device: str = "cpu",
        result: Mapping[str, Any] | None = None,
    ) -> Manifest:  # fmt: skip
        """Publish the outputs that are in the folder, and the manifest that describes them."""
        manifest = Manifest(
            stage=self.stage,
            set_name=self.set_name,
            run_id=run_id,
            identity=dict(identity),
            config=config.as_dict(),
            seed=seed,
            inputs=dict(inputs),
            outputs=manifests.describe_outputs(self.folder, [self.folder / name for name in outputs]),
            device=device,
            started=self.started,
            result=dict(result or {}),
        )
        place = self.layout.manifest_file(self.stage, self.set_name)
        manifests.write(self.folder / place.name, manifest)
        publish(self.folder, place.parent, outputs, place.name, self.claim)
        return manifest


@contextlib.contextmanager
def workplace(
    layout: RunLayout, stage: str, set_name: str | None = None, *, started: str | None = None
) -> Iterator[Workplace]:
    """A stage's workplace; folder and claim go at the end, and so do folders that were made for nothing."""
    started = started or utc_now()
    folder = layout.stage_dir(stage, set_name)
    with no_empty_folders(folder), running(layout, stage, set_name) as claim:
        sweep(folder)
        sweep_claims(folder)
        staging = temporary_beside(folder / "staging")
        with cannot_write(folder):
            staging.mkdir()
        try:
            yield Workplace(layout, stage, set_name, staging, claim, started)
        finally:
            with signals_held():
                shutil.rmtree(staging, ignore_errors=True)


def tidy(layout: RunLayout, stage: str, set_name: str | None = None) -> None:
    """Remove what a process has left that was killed when its stage was complete. What may not be removed stays."""
    folder = layout.stage_dir(stage, set_name)
    with contextlib.suppress(CannotWrite):
        sweep(folder)
        sweep_claims(folder)


@contextlib.contextmanager
def no_empty_folders(folder: Path) -> Iterator[None]:
    """Remove, at the end, a folder and those above it if they were made in here and nothing was put in them."""
    made_here = [path for path in (folder, *folder.parents) if not path.exists()]
    try:
        yield
    finally:
        for path in made_here:  # bad input leaves no empty run directory behind
            with contextlib.suppress(OSError):
                path.rmdir()
