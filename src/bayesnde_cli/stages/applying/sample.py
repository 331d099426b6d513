"""`sample`: new rows of the fitted model, in the units and types of the file, block by block.

A block is made whole even if only its first rows are wanted, so that a longer sample begins with the shorter one.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import pyarrow as pa

from bayesnde_cli.data.made_rows import MadeColumn, cell_type, cells, made_column, scaled_again
from bayesnde_cli.inference.block import Rows
from bayesnde_cli.rng import derive_seed
from bayesnde_cli.stages.applying.fitted_run import FittedRun
from bayesnde_cli.stages.applying.opening import Prior
from bayesnde_cli.stages.scoring.engine import Engine

# Rows of a block of the sample.
BLOCK_ROWS = 1024
_FIGURES = {"log_density": pa.float64(), "mc_se": pa.float64(), "reliable": pa.bool_()}


class Sample(Protocol):
    """A sample of any length."""

    @property
    def columns(self) -> pa.Schema: ...

    def batches(self, n_rows: int) -> Iterator[pa.RecordBatch]:
        """The first so many rows."""


@dataclass(frozen=True)
class MadeRows:
    """Rows that were made: their columns, and the position of each one's class."""

    columns: list[MadeColumn]
    class_index: np.ndarray | None

    def rows(self, start: int, stop: int) -> "MadeRows":
        """Some of the rows."""
        index = None if self.class_index is None else self.class_index[start:stop]
        return MadeRows([column.rows(start, stop) for column in self.columns], index)


@dataclass(frozen=True)
class RowMaker:
    """Rows of a fitted run: of classes in turn, given by their positions, or with classes as often as in training."""

    run: FittedRun
    prior: Prior  # in blocks of BLOCK_ROWS
    chosen_classes: tuple[int, ...] = ()

    @property
    def columns(self) -> pa.Schema:
        """The features, then the condition."""
        fields = [pa.field(feature.name, cell_type(feature)) for feature in self.run.schema.features]
        condition = self.run.schema.roles.condition
        return pa.schema([*fields, *([pa.field(condition, self.run.class_type)] if condition else [])])

    def batches(self, n_rows: int) -> Iterator[pa.RecordBatch]:
        for made, n_wanted in self.blocks(n_rows):
            yield self.batch(made).slice(0, n_wanted)

    def blocks(self, n_rows: int) -> Iterator[tuple[MadeRows, int]]:
        """Whole blocks, and how many rows of each are wanted."""
        for block in range(-(-n_rows // BLOCK_ROWS)):
            yield self._block(block), min(BLOCK_ROWS, n_rows - block * BLOCK_ROWS)

    def batch(self, made: MadeRows) -> pa.RecordBatch:
        """Rows as the file has them."""
        columns = zip(self.run.schema.features, made.columns, strict=True)
        arrays = [cells(feature, column) for feature, column in columns]
        if made.class_index is not None:
            arrays.append(self.run.class_cells(made.class_index))
        return pa.RecordBatch.from_arrays(arrays, schema=self.columns)

    def _block(self, block: int) -> MadeRows:
        index = None
        if self.run.classes:
            index = self._in_turn(block) if self.chosen_classes else self.run.drawn_classes(BLOCK_ROWS, "sample", block)
        y = None if index is None else self.run.one_hot(index)
        x = self.prior.rows(derive_seed(self.run.seed, "sample", block), y)  # (rows, p)
        columns = zip(self.run.schema.features, x.T, strict=True)
        return MadeRows([made_column(feature, u) for feature, u in columns], index)

    def _in_turn(self, block: int) -> np.ndarray:
        place = block * BLOCK_ROWS + np.arange(BLOCK_ROWS)
        return np.array(self.chosen_classes)[place % len(self.chosen_classes)]


@dataclass(frozen=True)
class ScoredSample:
    """A sample with the density of every row; `block_rows` go through the engine together."""

    maker: RowMaker
    engine: Engine
    block_rows: int

    @property
    def columns(self) -> pa.Schema:
        return pa.schema([*self.maker.columns, *(pa.field(name, kind) for name, kind in _FIGURES.items())])

    def batches(self, n_rows: int) -> Iterator[pa.RecordBatch]:
        for block, (made, n_wanted) in enumerate(self.maker.blocks(n_rows)):
            for start in range(0, n_wanted, self.block_rows):
                some = made.rows(start, start + self.block_rows)
                seed = derive_seed(self.maker.run.seed, "sample", block, "density", start)
                arrays = [*self.maker.batch(some).columns, *self._figures(some, seed)]
                yield pa.RecordBatch.from_arrays(arrays, schema=self.columns).slice(0, n_wanted - start)

    def _figures(self, made: MadeRows, seed: int) -> list[pa.Array]:
        """Log-density in the units of the file, its error, and whether it can be relied on."""
        run = self.maker.run
        x, log_jacobian = scaled_again(run.schema, made.columns)
        filled = np.minimum(np.arange(self.block_rows), len(x) - 1)  # the last row is repeated
        y = None if made.class_index is None else run.one_hot(made.class_index)[filled]
        rows = Rows(x[filled], None, y)
        figures = self.engine.score(rows, self.engine.sample(rows, seed), seed, n_real=len(x))
        found = {name: np.array(values[: len(x)]) for name, values in figures.items()}
        found["log_density"] = found["log_density_scaled"] + log_jacobian
        return [pa.array(found[name], kind) for name, kind in _FIGURES.items()]


def by_density(batches: Iterable[pa.RecordBatch]) -> list[pa.RecordBatch]:
    """The rows of all batches, one at least, highest density first; those without a density come last."""
    table = pa.Table.from_batches(list(batches))
    order = np.argsort(-table["log_density"].to_numpy(), kind="stable")  # NaN last
    return list(table.take(pa.array(order)).to_batches())
