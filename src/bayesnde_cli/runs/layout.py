"""The run on disk: `RunLayout` owns every file name below a run directory, `ExperimentsLayout` those of `reproduce`."""

import re
import shlex
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

DEFAULT_ROOT = Path("run")
TEST_SET = "test"


class Stage(NamedTuple):
    """A stage, and whether it runs once per data set."""

    name: str
    is_per_set: bool
    is_optional: bool = False  # a later stage makes what it needs of it


STAGES = (
    Stage("prepare", False),
    Stage("warmstart", False),
    Stage("refine", False),
    Stage("posterior", True, is_optional=True),
    Stage("density", True),
    Stage("evaluate", True),
)
_STAGE_BY_NAME = {stage.name: stage for stage in STAGES}

# Outputs below the folder of their stage that other stages read.
WEIGHTS = "weights/model.npz"
LATENTS = "latents.parquet"
SCHEMA = "schema.json"
MANIFEST = "manifest.json"

# At least five digits, so that names sort by number.
BLOCK_NAME = re.compile(r"block-(\d{5,})\.parquet", re.ASCII)
CLAIM_NAME = re.compile(r"\.claim-(\d{5,})", re.ASCII)
# Files that an unfinished stage makes again when they are gone.
_REPLACEABLE = ("block-", "rows.", "plan.", "shards.")


def stage_named(name: str) -> Stage:
    """The stage of that name."""
    return _STAGE_BY_NAME[name]


def split_name(split: str) -> str:
    """The output of `prepare` with the rows of `train`, `validation` or `test`."""
    return f"{split}.parquet"


def numbers(pattern: re.Pattern[str], file_names: Iterable[str]) -> list[int]:
    """The numbers of the blocks (`BLOCK_NAME`) or claimed blocks (`CLAIM_NAME`) among file names."""
    return [int(match[1]) for match in map(pattern.fullmatch, file_names) if match]


def is_claim(file_name: str) -> bool:
    """Whether a file claims a stage or a block, or the takeover of such a claim."""
    return file_name.startswith((".running", ".claim-"))


@dataclass(frozen=True)
class RunLayout:
    """Every path of one run. Only `sets` touches the disk."""

    root: Path

    def stage_dir(self, stage: str, set_name: str | None = None) -> Path:
        """The folder of a stage, of one data set if the stage runs per data set."""
        folder = self.root / stage
        return folder if set_name is None else folder / set_name

    def manifest_file(self, stage: str, set_name: str | None = None) -> Path:
        return self.stage_dir(stage, set_name) / MANIFEST

    def split_file(self, split: str) -> Path:
        """The rows of `train`, `validation` or `test`."""
        return self.stage_dir("prepare") / split_name(split)

    def schema_file(self) -> Path:
        return self.stage_dir("prepare") / SCHEMA

    def history_file(self, stage: str) -> Path:
        return self.stage_dir(stage) / "history.parquet"

    def selection_file(self, stage: str) -> Path:
        return self.stage_dir(stage) / "selection.parquet"

    def latents_file(self) -> Path:
        return self.stage_dir("refine") / LATENTS

    def recipe_file(self) -> Path:
        """The recipes that `warmstart` tried."""
        return self.stage_dir("warmstart") / "recipe.parquet"

    def checkpoint_dir(self, stage: str) -> Path:
        return self.stage_dir(stage) / "checkpoint"

    def checkpoint_file(self, stage: str) -> Path:
        """The state from which a training stage resumes."""
        return self.checkpoint_dir(stage) / "state.npz"

    def choice_file(self, stage: str) -> Path:
        """The recipes that were tried, until the stage is complete."""
        return self.checkpoint_dir(stage) / "choice.json"

    def trial_file(self, stage: str, name: str) -> Path:
        return self.checkpoint_dir(stage) / f"trial-{name}.npz"

    def check_file(self, stage: str, check: int) -> Path:
        """The weights at a validation check."""
        return self.checkpoint_dir(stage) / f"check-{check:05d}.npz"

    def weights_file(self, stage: str) -> Path:
        return self.stage_dir(stage) / WEIGHTS

    def plan_file(self, stage: str, set_name: str) -> Path:
        return self.stage_dir(stage, set_name) / "plan.json"

    def shards_file(self, stage: str, set_name: str) -> Path:
        return self.stage_dir(stage, set_name) / "shards.json"

    def draws_file(self, set_name: str) -> Path:
        """Whether the densities of a set are computed from draws on disk."""
        return self.stage_dir("density", set_name) / "draws.json"

    def block_file(self, stage: str, set_name: str, index: int) -> Path:
        return self.stage_dir(stage, set_name) / f"block-{index:05d}.parquet"

    def diagnostics_file(self, set_name: str, index: int | None = None) -> Path:
        """The chain diagnostics of every row: of one block, or of the whole set if no block is given."""
        name = "diagnostics" if index is None else f"diagnostics-{index:05d}"
        return self.stage_dir("posterior", set_name) / f"{name}.parquet"

    def exported_draws_file(self, set_name: str) -> Path:
        """All draws of a set, for other programs; no stage reads it."""
        return self.stage_dir("posterior", set_name) / "draws.nc"

    def rows_file(self, stage: str, set_name: str) -> Path:
        """The rows of the user's file as the model sees them, for a set that is not a split of `prepare`."""
        return self.stage_dir(stage, set_name) / "rows.parquet"

    def claim_file(self, stage: str, set_name: str | None = None, index: int | None = None) -> Path:
        """The file by which a process claims a block, or the whole stage if no block is given."""
        name = ".running" if index is None else f".claim-{index:05d}"
        return self.stage_dir(stage, set_name) / name

    def density_file(self, set_name: str) -> Path:
        return self.stage_dir("density", set_name) / "density.parquet"

    def metrics_file(self, set_name: str) -> Path:
        return self.stage_dir("evaluate", set_name) / "metrics.json"

    def report_file(self, set_name: str) -> Path:
        return self.stage_dir("evaluate", set_name) / "report.html"

    def slurm_dir(self, set_name: str) -> Path:
        """The SLURM jobs of a data set. Outside of the stages, so that a restart of `density` leaves it alone."""
        return self.root / "slurm" / set_name

    def array_script(self, set_name: str) -> Path:
        return self.slurm_dir(set_name) / "array.sbatch"

    def gather_script(self, set_name: str) -> Path:
        return self.slurm_dir(set_name) / "gather.sbatch"

    def array_record_file(self, set_name: str) -> Path:
        return self.slurm_dir(set_name) / "array.json"

    def job_log(self, set_name: str, job: str) -> Path:
        """The log of a job; its number may be one of SLURM's patterns."""
        return self.slurm_dir(set_name) / "log" / f"{job}.log"

    def sets(self, stage: str) -> list[str]:
        """The data sets that a stage has a folder for, in order of name."""
        return sorted(path.name for path in (self.root / stage).glob("[!.]*/"))

    def label(self, stage: str, set_name: str | None = None) -> str:
        """The name of a stage in messages: `prepare`, `density/test`."""
        return stage if set_name is None else f"{stage}/{set_name}"

    def command(self, stage: str, set_name: str | None = None, *options: str) -> str:
        """What the user types to run a stage on this run: `bayesnde density --run results --restart`."""
        needs_data = stage == "prepare" or set_name not in (None, TEST_SET)
        data = ["DATA"] if needs_data else []
        run = [] if self.root == DEFAULT_ROOT else ["--run", shlex.quote(str(self.root))]
        return " ".join(["bayesnde", stage, *data, *run, *options])


@dataclass(frozen=True)
class ArmLayout:
    """One arm of an experiment: one method, one seed. Its folder is a run directory if the method is bayesnde."""

    root: Path

    @property
    def run(self) -> RunLayout:
        return RunLayout(self.root)

    @property
    def result_file(self) -> Path:
        return self.root / "result.json"

    @property
    def scores_file(self) -> Path:
        """A competitor's log-density, or score, of every test row."""
        return self.root / "scores.parquet"

    @property
    def classes_dir(self) -> Path:
        """The densities of test images under every class, in blocks."""
        return self.root / "classes"

    def classes_file(self, block: int) -> Path:
        return self.classes_dir / f"block-{block:05d}.npz"

    def fit_file(self, digest: str) -> Path:
        """The state of a competitor's fit, until there is a result."""
        return self.root / f"fit-{digest[:16]}.npz"

    def fit_files(self) -> Iterator[Path]:
        return self.root.glob("fit-*.npz")

    @property
    def map_file(self) -> Path:
        """The log-density on a grid, if the experiment has two columns."""
        return self.root / "map.parquet"


@dataclass(frozen=True)
class ExperimentsLayout:
    """Every path of `reproduce`: each experiment has a folder, and each arm of it a folder of its own."""

    root: Path

    @property
    def folder(self) -> Path:
        return self.root / "reproduce"

    def simulated_file(self, experiment: str) -> Path:
        """The rows of an experiment with simulated data."""
        return self.folder / experiment / "data.parquet"

    def prepared(self, experiment: str, scaling: str, test_rows: int | None) -> RunLayout:
        """A run directory with the prepared rows of an experiment and nothing else, for the competitors."""
        return RunLayout(self.folder / experiment / f"rows-{scaling}-{test_rows or 'all'}")

    def arm(self, experiment: str, method: str, seed: int) -> ArmLayout:
        return ArmLayout(self.folder / experiment / f"{method}-seed{seed}")

    def results(self) -> Iterator[ArmLayout]:
        """The arms that have a result, in order of name."""
        for path in sorted(self.folder.glob("*/*/result.json")):
            yield ArmLayout(path.parent)


def repair_hint(path: Path) -> str:
    """What to do about a damaged or missing file of a run: the last part of a message."""
    folder = next((folder for folder in path.parents if folder.name in _STAGE_BY_NAME), None)
    if folder is None:
        return f"make {path} again"
    stage, layout = folder.name, RunLayout(folder.parent)
    set_name = path.relative_to(folder).parts[0] if stage_named(stage).is_per_set else None
    # A complete stage makes none of its files again unless it is restarted.
    is_complete = layout.manifest_file(stage, set_name).exists()
    if is_complete or (path.exists() and not path.name.startswith(_REPLACEABLE)):
        return f"run `{layout.command(stage, set_name, '--restart')}`"
    again = f"run `{layout.command(stage, set_name)}`"
    return f"delete that file and {again}; finished blocks are kept" if path.exists() else again
