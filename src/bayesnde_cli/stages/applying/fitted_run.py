"""A run whose model is fitted: its columns, its classes, and how often each of them was seen in training."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bayesnde_cli.artifacts.layout import RunLayout
from bayesnde_cli.artifacts.tables import iter_batches
from bayesnde_cli.artifacts.upstream import require
from bayesnde_cli.config import DensityConfig, nearest_hint
from bayesnde_cli.data.roles import listed
from bayesnde_cli.data.schema import Schema
from bayesnde_cli.errors import BadUsage
from bayesnde_cli.rng import generator
from bayesnde_cli.stages.prepare.writing import ROWS_SCHEMA, ROWS_SCHEMA_VERSION
from bayesnde_cli.stages.reading import read_schema
from bayesnde_cli.stages.scoring.sizes import settled

# The outputs of `refine` that a fitted run is read from.
_MODEL = ("weights/model.npz", "latents.parquet")
# In place of a class.
ALL_CLASSES = "all"


@dataclass(frozen=True)
class FittedRun:
    """What is known of a fitted run without its weights, and the settings that it is applied with."""

    layout: RunLayout
    schema: Schema
    config: DensityConfig  # with a seed, nothing left open

    @property
    def seed(self) -> int:
        """The root of all that is drawn from the run."""
        assert self.config.seed is not None
        return self.config.seed

    @property
    def block_rows(self) -> int:
        """Rows that go through the engine together."""
        assert self.config.block_rows is not None
        return self.config.block_rows

    @property
    def classes(self) -> tuple[str, ...]:
        """Those of the condition; none without one."""
        return self.schema.classes

    @cached_property
    def class_shares(self) -> np.ndarray:
        """The share of each class among the training rows, (classes,) float64."""
        assert self.schema.roles.condition is not None
        words, counts = pa.array(self.classes, pa.string()), np.zeros(len(self.classes))
        for batch in self.training_rows([self.schema.roles.condition]):
            index = pc.index_in(pc.cast(batch.column(0), pa.string()), value_set=words)
            counts += np.bincount(index.to_numpy(zero_copy_only=False), minlength=len(counts))
        return np.asarray(counts / counts.sum())

    def training_rows(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Some columns of the training rows, batch by batch."""
        path = self.layout.split_file("train")
        require(self.layout, "prepare", reading=[path.name])
        return iter_batches(path, ROWS_SCHEMA, columns, schema_version=ROWS_SCHEMA_VERSION)

    def class_index(self, name: str) -> int:
        """The position of the class that `--condition` names."""
        if not self.classes:
            raise BadUsage(
                "--condition needs a model of p(x | y)",
                found="the run was prepared without a condition",
                hint="leave --condition out, or begin a run with `bayesnde prepare DATA --condition COL`",
            )
        if name not in self.classes:
            raise BadUsage(
                f"--condition: there is no class '{name}'",
                found=f"classes: {listed(self.classes)}",
                hint=nearest_hint(name, self.classes, "use one of the classes"),
            )
        return self.classes.index(name)

    def chosen_classes(self, name: str | None) -> tuple[int, ...]:
        """The positions of the classes that `--condition` names, none without it; `all` unless a class is called so."""
        if name == ALL_CLASSES and len(self.classes) > 1 and name not in self.classes:
            return tuple(range(len(self.classes)))
        return () if name is None else (self.class_index(name),)

    def drawn_classes(self, n: int, *address: str | int) -> np.ndarray:
        """Positions of n classes, at random, each as often as in training. (n,) int64."""
        uniform = generator(self.seed, *address, "classes").random(n)
        index = np.searchsorted(np.cumsum(self.class_shares), uniform, side="right")
        return np.minimum(index, len(self.classes) - 1)  # the sum of the shares may be a little less than 1

    def one_hot(self, index: np.ndarray) -> np.ndarray:
        """Positions of classes as unit vectors, (n, classes) float32."""
        return np.eye(len(self.classes), dtype=np.float32)[index]

    def class_cells(self, index: np.ndarray) -> pa.Array:
        """Classes by their positions, (n,), as cells of the file."""
        words = pa.array(self.classes, pa.string()).take(pa.array(index))
        return pc.cast(words, self.class_type)

    @property
    def class_type(self) -> pa.DataType:
        return pa.int64() if self.schema.classes_are_whole else pa.string()


def fitted_run(layout: RunLayout, config: DensityConfig) -> FittedRun:
    """The run, if `prepare` and `refine` are complete and fresh; the seed is the run's if the config has none."""
    prepared = require(layout, "prepare", reading=[layout.schema_file().name])
    require(layout, "refine", reading=_MODEL)
    seed = prepared.seed if config.seed is None else config.seed
    schema = read_schema(layout)
    return FittedRun(layout, schema, settled(replace(config, seed=seed), schema))
