"""The run on disk: the one object that owns every file name below the run directory."""

import re
import shlex
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from bayesnde_cli.errors import BadUsage

DEFAULT_ROOT = Path("run")
TEST_SET = "test"


class Stage(NamedTuple):
    """A stage: its name, the stages whose files it reads, and whether it works once per data set."""

    name: str
    upstream: tuple[str, ...]
    is_per_set: bool
    is_optional: bool = False  # a later stage makes what it needs of it


STAGES = (
    Stage("prepare", (), False),
    Stage("warmstart", ("prepare",), False),
    Stage("refine", ("prepare", "warmstart"), False),
    Stage("posterior", ("prepare", "refine"), True, is_optional=True),
    Stage("density", ("prepare", "refine", "posterior"), True),
    Stage("evaluate", ("prepare", "refine", "density"), True),
)
_STAGE_BY_NAME = {stage.name: stage for stage in STAGES}

# The first character is neither a dot (hidden, or "..") nor a dash (an option); no separators anywhere.
_SET_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,79}", re.ASCII)
# One spelling per number: block-000012 is not a second block 12.
_NUMBER = r"(\d{5}|[1-9]\d{5,})"
_BLOCK_NAME = re.compile(rf"block-{_NUMBER}\.parquet", re.ASCII)
_DIAGNOSTICS_NAME = re.compile(rf"diagnostics-{_NUMBER}\.parquet", re.ASCII)
_CLAIM_NAME = re.compile(rf"\.claim-{_NUMBER}", re.ASCII)
_ARRAY_RECORD = "array.json"
# A claim on a stage or a block, or on the taking over of such a claim.
_ANY_CLAIM = re.compile(rf"(\.running|\.claim-{_NUMBER})(\.taking)*", re.ASCII)


def stage_named(name: str) -> Stage:
    """The stage of that name."""
    return _STAGE_BY_NAME[name]


def is_set_name(name: str) -> bool:
    """Whether a data set can be called so."""
    return _SET_NAME.fullmatch(name) is not None


def check_set_name(name: str) -> str:
    """The name itself, if it can be a folder's name and stays inside the run."""
    if not is_set_name(name):
        raise BadUsage(
            f"{name!r} cannot be the name of a data set",
            found="a name has letters, digits, `-`, `_` and `.`, and starts with a letter, a digit or `_`",
            hint="see the names of this run's data sets with `bayesnde status`",
        )
    return name


def block_indexes(file_names: Iterable[str]) -> list[int]:
    """The numbers of the blocks that files of these names hold; other files are passed over."""
    return _indexes_in(_BLOCK_NAME, file_names)


def claim_name(index: int) -> str:
    """The name of the file that claims a block."""
    return f".claim-{index:05d}"


def claim_indexes(file_names: Iterable[str]) -> list[int]:
    """The numbers of the blocks that files of these names claim; other files are passed over."""
    return _indexes_in(_CLAIM_NAME, file_names)


def claim_names(file_names: Iterable[str]) -> list[str]:
    """Those of the names that files have which claim a stage, a block, or the taking over of a claim."""
    return [name for name in file_names if _ANY_CLAIM.fullmatch(name)]


def _indexes_in(pattern: re.Pattern[str], file_names: Iterable[str]) -> list[int]:
    return [int(match[1]) for match in map(pattern.fullmatch, file_names) if match]


@dataclass(frozen=True)
class RunLayout:
    """Every path of one run. Nothing here touches the disk except `sets`."""

    root: Path

    def stage_dir(self, stage: str, set_name: str | None = None) -> Path:
        """The folder of a stage; a stage that works per data set needs the set's name, the others take none."""
        if stage_named(stage).is_per_set != (set_name is not None):
            raise ValueError(f"stage {stage!r} with set {set_name!r}")
        folder = self.root / stage
        return folder if set_name is None else folder / check_set_name(set_name)

    def manifest_file(self, stage: str, set_name: str | None = None) -> Path:
        return self.stage_dir(stage, set_name) / "manifest.json"

    def split_file(self, split: str) -> Path:
        """The rows of `train`, `validation` or `test`."""
        return self.stage_dir("prepare") / f"{split}.parquet"

    def schema_file(self) -> Path:
        return self.stage_dir("prepare") / "schema.json"

    def history_file(self, stage: str) -> Path:
        return self.stage_dir(stage) / "history.parquet"

    def selection_file(self, stage: str) -> Path:
        return self.stage_dir(stage) / "selection.parquet"

    def latents_file(self) -> Path:
        return self.stage_dir("refine") / "latents.parquet"

    def checkpoint_dir(self, stage: str) -> Path:
        return self.stage_dir(stage) / "checkpoint"

    def checkpoint_file(self, stage: str) -> Path:
        """The state that a training stage goes on from."""
        return self.checkpoint_dir(stage) / "state.npz"

    def look_file(self, stage: str, look: int) -> Path:
        """The weights at a look at the validation rows."""
        return self.checkpoint_dir(stage) / f"look-{look:05d}.npz"

    def weights_dir(self, stage: str) -> Path:
        return self.stage_dir(stage) / "weights"

    def plan_file(self, stage: str, set_name: str) -> Path:
        return self.stage_dir(stage, set_name) / "plan.json"

    def shards_file(self, stage: str, set_name: str) -> Path:
        return self.stage_dir(stage, set_name) / "shards.json"

    def block_file(self, stage: str, set_name: str, index: int) -> Path:
        return self.stage_dir(stage, set_name) / f"block-{index:05d}.parquet"

    def diagnostics_file(self, set_name: str, index: int | None = None) -> Path:
        """What is known of the chains of every row: of one block, or of the whole set if no block is given."""
        name = "diagnostics" if index is None else f"diagnostics-{index:05d}"
        return self.stage_dir("posterior", set_name) / f"{name}.parquet"

    def exported_draws_file(self, set_name: str) -> Path:
        """All draws of a set for other programs: made from the blocks, and nothing is made from it."""
        return self.stage_dir("posterior", set_name) / "draws.nc"

    def rows_file(self, stage: str, set_name: str) -> Path:
        """The rows of the user's file as the model sees them, for a set that is no split of `prepare`."""
        return self.stage_dir(stage, set_name) / "rows.parquet"

    def claim_file(self, stage: str, set_name: str | None = None, index: int | None = None) -> Path:
        """The file by which a process claims a block, or the whole stage if no block is given."""
        name = ".running" if index is None else claim_name(index)
        return self.stage_dir(stage, set_name) / name

    def density_file(self, set_name: str) -> Path:
        return self.stage_dir("density", set_name) / "density.parquet"

    def metrics_file(self, set_name: str) -> Path:
        return self.stage_dir("evaluate", set_name) / "metrics.json"

    def report_file(self, set_name: str) -> Path:
        return self.stage_dir("evaluate", set_name) / "report.html"

    def plots_dir(self, set_name: str) -> Path:
        return self.stage_dir("evaluate", set_name) / "plots"

    def slurm_dir(self, set_name: str) -> Path:
        """The jobs that have a cluster score a data set. Beside the stages: a restart of `density` leaves it alone."""
        return self.root / "slurm" / check_set_name(set_name)

    def array_script(self, set_name: str) -> Path:
        return self.slurm_dir(set_name) / "array.sbatch"

    def gather_script(self, set_name: str) -> Path:
        return self.slurm_dir(set_name) / "gather.sbatch"

    def array_record_file(self, set_name: str) -> Path:
        return self.slurm_dir(set_name) / _ARRAY_RECORD

    def job_log(self, set_name: str, job: str) -> Path:
        """The log of a job; its number may be one of SLURM's patterns."""
        return self.slurm_dir(set_name) / "log" / f"{job}.log"

    def sets(self, stage: str) -> list[str]:
        """The data sets that a stage has a folder for, in order of name."""
        folder = self.root / stage
        if not folder.is_dir():
            return []
        return sorted(entry.name for entry in folder.iterdir() if is_set_name(entry.name) and entry.is_dir())

    def label(self, stage: str, set_name: str | None = None) -> str:
        """A stage as messages call it: `prepare`, `density/test`."""
        return stage if set_name is None else f"{stage}/{set_name}"

    def command(self, stage: str, set_name: str | None = None, *options: str) -> str:
        """What the user types to run a stage on this run: `bayesnde density --run results --restart`."""
        needs_data = stage == "prepare" or set_name not in (None, TEST_SET)
        data = ["DATA"] if needs_data else []
        run = [] if self.root == DEFAULT_ROOT else ["--run", shlex.quote(str(self.root))]
        return " ".join(["bayesnde", stage, *data, *run, *options])


def locate(path: Path) -> tuple[RunLayout, str, str | None] | None:
    """The run, stage and data set that a file lies in, judged by its path alone; None outside of a run."""
    for folder in path.parents:  # from the inside out
        stage = _STAGE_BY_NAME.get(folder.name)
        if stage is None:
            continue
        below = path.relative_to(folder).parts
        if not stage.is_per_set:
            return RunLayout(folder.parent), stage.name, None
        if len(below) > 1:
            return RunLayout(folder.parent), stage.name, below[0]
    return None


def misplaced(path: Path, stage: str, set_name: str | None) -> str | None:
    """Whose a document is, if it does not belong to the stage and data set in whose folder it lies."""
    place = locate(path)
    if place is None or (stage, set_name) == place[1:]:
        return None
    return f"it belongs to {stage}" + (f"/{set_name}" if set_name else "")


def missing_hint(path: Path) -> str:
    """What to do about a file of a run that is not there, as the last part of a message."""
    place = locate(path)
    if place is None:
        return f"make {path} first"
    layout, stage, set_name = place
    options = ["--restart"] if _is_part(path) and layout.manifest_file(stage, set_name).exists() else []
    return f"run `{layout.command(stage, set_name, *options)}`"


def repair_hint(path: Path) -> str:
    """What to do about a damaged file of a run, as the last part of a message."""
    place = locate(path)
    if place is None and path.name == _ARRAY_RECORD and len(path.parents) > 2:
        return f"run `{RunLayout(path.parents[2]).command('slurm', path.parent.name)}`"
    if place is None:
        return f"make {path} again"
    layout, stage, set_name = place
    # A stage that is complete makes no part of it again, unless it is told to make them all.
    is_complete = layout.manifest_file(stage, set_name).exists()
    if path.name in ("shards.json", "rows.parquet") or (_is_part(path) and not is_complete):
        what = "that file and the block of its number" if _DIAGNOSTICS_NAME.fullmatch(path.name) else "that file"
        return f"delete {what} and run `{layout.command(stage, set_name)}`; finished blocks are kept"
    return f"run `{layout.command(stage, set_name, '--restart')}`"


def _is_part(path: Path) -> bool:
    """Whether a file is that of one block."""
    return any(pattern.fullmatch(path.name) for pattern in (_BLOCK_NAME, _DIAGNOSTICS_NAME))
