"""The stages as victims run them: what each begins with, its command line, and what an undisturbed process leaves."""

import json
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from victims import STAND_INS, Ended, WarmParent

# All that may differ between two runs that are otherwise the same, named once:
# in a manifest, when the stage was made, on what (a process that only combines blocks computes on nothing), and the
# hash of the report, which tells both;
_OF_MANIFEST = ("started", "ended", "device")
_OF_OUTPUTS = ("report.html",)
# in the report, the same two facts.
_OF_REPORT = re.compile(r"<th>(Time|Device)</th>\s*<td>.*?</td>")

_BLOCKS = ["--block-rows", "4", "--draws", "4", "--chains", "2"]
_TRAINED = {"epochs": 5, "checks": 5, "patience": 0, "validation_draws": 4, "generated_rows": 50}
_NETWORKS = {"width": 4, "depth": 1}
_EVALUATED = {"generated_rows": 50, "typicality_rows": 50, "accuracy_rows": 8}


def _options(settings: Mapping[str, object]) -> list[str]:
    return [word for name, value in settings.items() for word in (f"--{name.replace('_', '-')}", str(value))]


def _assignments(stage: str, settings: Mapping[str, object]) -> list[str]:
    return [word for name, value in settings.items() for word in ("--set", f"{stage}.{name}={value}")]


@dataclass(frozen=True)
class Scene:
    """A command, what is there before it, and the stage that it makes. DATA and NEW stand for the user's files."""

    name: str
    before: str | None  # the scene whose outcome it begins with
    command: tuple[str, ...]
    stage: str


_WARMSTART = ["warmstart", *_options(_TRAINED | _NETWORKS | {"column_steps": 4})]
_REFINE = ["refine", *_options(_TRAINED | {"draws": 2})]
_PREPARE = ["prepare", "DATA", "--condition", "k", "--scale", "standard"]
_EVALUATE = ["evaluate", "--no-baselines", *_options(_EVALUATED)]
_FIT = [
    "fit",
    "DATA",
    "--condition",
    "k",
    "--scale",
    "standard",
    *_assignments("warmstart", _TRAINED | _NETWORKS | {"column_steps": 4}),
    *_assignments("refine", _TRAINED | {"draws": 2}),
    *_assignments("density", {"block_rows": 4, "draws": 4, "chains": 2}),
    *_assignments("evaluate", _EVALUATED | {"baselines": "false"}),
]

SCENES = {
    scene.name: scene
    for scene in (
        Scene("prepare", None, tuple(_PREPARE), "prepare"),
        Scene("warmstart", "prepare", tuple(_WARMSTART), "warmstart"),
        Scene("refine", "warmstart", tuple(_REFINE), "refine"),
        Scene("density", "refine", ("density", "NEW", *_BLOCKS), "density"),
        Scene("density of draws", "refine", ("density", *_BLOCKS, "--keep-draws"), "density"),
        Scene("evaluate", "density of draws", tuple(_EVALUATE), "evaluate"),
        Scene("fit", None, tuple(_FIT), "fit"),
        Scene("warmstart again", "warmstart", (*_WARMSTART, "--seed", "5", "--restart"), "warmstart"),
        Scene("density again", "density", ("density", "NEW", *_BLOCKS, "--seed", "5", "--restart"), "density"),
    )
}


class Theatre:
    """Makes and keeps what scenes begin with and how they end when nobody disturbs them."""

    def __init__(
        self,
        folder: Path,
        parent: WarmParent,
        stand_ins: Mapping[str, dict[str, Any]] = STAND_INS,
        begun: "Theatre | None" = None,
    ) -> None:
        self.folder, self.parent, self.stand_ins = folder, parent, stand_ins
        self._begun = begun or self  # the theatre that knows what scenes begin with
        self._ends: dict[str, Ended] = {}
        folder.mkdir(parents=True, exist_ok=True)
        rng = np.random.default_rng(0)
        for name, n_rows in (("data", 240), ("new", 30)):
            k = rng.integers(0, 2, n_rows)
            cells = zip(
                rng.normal(size=n_rows) + k, rng.gamma(2.0, size=n_rows), rng.poisson(4, n_rows), k, strict=True
            )
            lines = [f"{a:.6f},{b:.6f},{n},{'uv'[c]}" for a, b, n, c in cells]
            (folder / f"{name}.csv").write_text("\n".join(["a,b,n,k", *lines]) + "\n")

    def command(self, scene: Scene) -> list[str]:
        files = {"DATA": str(self.folder / "data.csv"), "NEW": str(self.folder / "new.csv")}
        return [files.get(word, word) for word in scene.command]

    def set_stage(self, scene: Scene, folder: Path) -> None:
        """Put down in a folder what is there before a scene."""
        folder.mkdir()
        if scene.before is not None:
            self._begun.calm_end(SCENES[scene.before])
            shutil.copytree(self._begun._calm(scene.before) / "run", folder / "run")

    def calm_end(self, scene: Scene) -> Ended:
        """How the scene ends undisturbed; its run directory is kept."""
        if scene.name not in self._ends:
            self.set_stage(scene, self._calm(scene.name))
            ended = self.parent.run(self._calm(scene.name), self.command(scene), stand_ins=self.stand_ins)
            assert ended.code == 0, ended.err
            self._ends[scene.name] = ended
        return self._ends[scene.name]

    def calm_files(self, scene: Scene) -> dict[str, bytes]:
        self.calm_end(scene)
        return files_of(self._calm(scene.name) / "run")

    def _calm(self, name: str) -> Path:
        return self.folder / f"calm {name}"


def files_of(run: Path) -> dict[str, bytes]:
    """Every file and empty folder of a run, what may differ taken out."""
    found = {}
    for path in sorted(run.rglob("*")):
        name = path.relative_to(run).as_posix()
        if path.is_dir():
            if not any(path.iterdir()):
                found[f"{name}/"] = b""
        elif path.name == "manifest.json":
            found[name] = _without_times(json.loads(path.read_bytes()))
        elif path.name == "report.html":
            found[name] = _OF_REPORT.sub("", path.read_text()).encode()
        else:
            found[name] = path.read_bytes()
    return found


def _without_times(manifest: dict[str, Any]) -> bytes:
    kept = {name: value for name, value in manifest.items() if name not in _OF_MANIFEST}
    kept["outputs"] = {name: entry for name, entry in manifest["outputs"].items() if name not in _OF_OUTPUTS}
    return json.dumps(kept, sort_keys=True).encode()


def differing(found: Mapping[str, bytes], expected: Mapping[str, bytes]) -> list[str]:
    """The names of files that are missing, too many, or not the same."""
    return sorted(name for name in found.keys() | expected.keys() if found.get(name) != expected.get(name))
