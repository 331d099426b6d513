"""Questions to a fitted run, and the run as all of them see it: schema, classes, settings and training rows."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bayesnde_cli.errors import BadUsage, nearest_hint
from bayesnde_cli.rng import generator
from bayesnde_cli.runs.layout import LATENTS, SCHEMA, WEIGHTS, RunLayout
from bayesnde_cli.runs.manifest import require
from bayesnde_cli.runs.parquet_files import iter_batches
from bayesnde_cli.settings.stage_settings import DensitySettings
from bayesnde_cli.tables.columns import listed
from bayesnde_cli.tables.model_rows import ROWS_SCHEMA, read_schema
from bayesnde_cli.tables.schema import Schema

# `--condition all`
_ALL_CLASSES = "all"


@dataclass(frozen=True)
class FittedRun:
    """A run whose model is fitted, and the settings of the question."""

    layout: RunLayout
    schema: Schema
    config: DensitySettings  # complete, with a seed

    @property
    def seed(self) -> int:
        assert self.config.seed is not None
        return self.config.seed

    @property
    def block_rows(self) -> int:
        """Rows that go through the engine together."""
        assert self.config.block_rows is not None
        return self.config.block_rows

    @property
    def classes(self) -> tuple[str, ...]:
        return self.schema.classes

    @property
    def class_type(self) -> pa.DataType:
        return pa.int64() if self.schema.classes_are_whole else pa.string()

    @cached_property
    def class_shares(self) -> np.ndarray:
        """The share of each class among the training rows, (classes,) float64."""
        assert self.schema.condition is not None
        words, counts = pa.array(self.classes, pa.string()), np.zeros(len(self.classes))
        for batch in self.training_rows([self.schema.condition]):
            index = pc.index_in(pc.cast(batch.column(0), pa.string()), value_set=words)
            counts += np.bincount(index.to_numpy(zero_copy_only=False), minlength=len(counts))
        return np.asarray(counts / counts.sum())

    def training_rows(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Some columns of the training rows, batch by batch."""
        path = self.layout.split_file("train")
        require(self.layout, "prepare", reading=[path.name])
        return iter_batches(path, ROWS_SCHEMA, columns)

    def class_index(self, name: str, option: str = "--condition") -> int:
        """The position of the class that an option names."""
        if not self.classes:
            raise BadUsage(
                f"{option} needs a model of p(x | y)",
                found="the run was prepared without a condition",
                hint=f"leave {option} out, or begin a run with `bayesnde prepare DATA --condition COL`",
            )
        if name not in self.classes:
            raise BadUsage(
                f"{option}: there is no class '{name}'",
                found=f"classes: {listed(self.classes)}",
                hint=nearest_hint(name, self.classes, "use one of the classes"),
            )
        return self.classes.index(name)

    def class_positions(self, name: str | None) -> tuple[int, ...]:
        """The positions of the classes that `--condition` names, none without it."""
        if name == _ALL_CLASSES and len(self.classes) > 1 and name not in self.classes:
            return tuple(range(len(self.classes)))
        return () if name is None else (self.class_index(name),)

    def draw_classes(self, n: int, *address: str | int) -> np.ndarray:
        """Positions of n random classes, as frequent as in training. (n,) int64"""
        uniform = generator(self.seed, *address, "classes").random(n)
        index = np.searchsorted(np.cumsum(self.class_shares), uniform, side="right")
        return np.minimum(index, len(self.classes) - 1)  # the sum of the shares may be slightly less than 1

    def one_hot(self, index: np.ndarray) -> np.ndarray:
        """Positions of classes as unit vectors, (n, classes) float32."""
        return np.eye(len(self.classes), dtype=np.float32)[index]

    def class_cells(self, index: np.ndarray) -> pa.Array:
        """Classes by their positions, (n,), as cells of the file."""
        return pc.cast(pa.array(self.classes, pa.string()).take(pa.array(index)), self.class_type)


def fitted_run(layout: RunLayout, config: DensitySettings) -> FittedRun:
    """The run, if `prepare` and `refine` are complete and up to date; its seed is the default."""
    prepared = require(layout, "prepare", reading=[SCHEMA])
    require(layout, "refine", reading=(WEIGHTS, LATENTS))
    schema = read_schema(layout)
    complete = config.fill_in({"seed": prepared.seed}).with_defaults(are_images=schema.image is not None)
    return FittedRun(layout, schema, complete)


def join_columns(own: pa.Table, other: pa.Table) -> pa.Table:
    """Two tables side by side; a column of the second whose name exists already gets an underscore."""
    for name, column in zip(other.column_names, other.columns, strict=True):
        while name in own.column_names:
            name += "_"
        own = own.append_column(name, column)
    return own
