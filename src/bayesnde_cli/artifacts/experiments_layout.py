"""The files of `reproduce`: every experiment has a folder, every arm of it a run directory of its own."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from bayesnde_cli.artifacts.layout import RunLayout


@dataclass(frozen=True)
class ArmLayout:
    """An arm: one method, one seed. Its folder is a run directory, if the method is ours."""

    root: Path

    @property
    def run(self) -> RunLayout:
        return RunLayout(self.root)

    @property
    def result_file(self) -> Path:
        return self.root / "result.json"

    @property
    def scores_file(self) -> Path:
        """The log-density, or score, of every test row by a competitor."""
        return self.root / "scores.parquet"

    @property
    def classes_dir(self) -> Path:
        """What is known of test images under every class, block by block."""
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
    """Every path of the experiments of one run directory."""

    root: Path

    @property
    def folder(self) -> Path:
        return self.root / "reproduce"

    def simulated_file(self, experiment: str) -> Path:
        """The rows of an experiment with simulated data."""
        return self.folder / experiment / "data.parquet"

    def prepared(self, experiment: str, scaling: str, test_rows: int | None) -> RunLayout:
        """A run directory with the rows of an experiment and nothing else, for those who are not ours."""
        return RunLayout(self.folder / experiment / f"rows-{scaling}-{test_rows or 'all'}")

    def arm(self, experiment: str, method: str, seed: int) -> ArmLayout:
        return ArmLayout(self.folder / experiment / f"{method}-seed{seed}")

    def results(self) -> Iterator[ArmLayout]:
        """The arms that have a result, in order of name."""
        for path in sorted(self.folder.glob("*/*/result.json")):
            yield ArmLayout(path.parent)
