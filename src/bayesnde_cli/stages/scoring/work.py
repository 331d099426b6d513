"""What the two scoring stages do with a block, and what all blocks of one make together."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import zip_longest
from pathlib import Path
from typing import ClassVar

import pyarrow as pa

from bayesnde_cli.artifacts.blocks import iter_blocks, publish_block
from bayesnde_cli.artifacts.layout import RunLayout, repair_hint
from bayesnde_cli.artifacts.plan import Plan
from bayesnde_cli.errors import BadArtifact, MissingArtifact
from bayesnde_cli.inference.block import Draws
from bayesnde_cli.rng import derive_seed
from bayesnde_cli.stages.reporting import Report
from bayesnde_cli.stages.scoring.density_table import DENSITY_SCHEMA, DENSITY_VERSION, density_columns, density_table
from bayesnde_cli.stages.scoring.draws import DIAGNOSTICS_SCHEMA, DIAGNOSTICS_VERSION, DrawStore, repeated
from bayesnde_cli.stages.scoring.engine import LazyEngine
from bayesnde_cli.stages.scoring.job import Job
from bayesnde_cli.stages.scoring.rows import BlockRows, SetRows
from bayesnde_cli.stages.scoring.summaries import ChainSummary, DensitySummary


@dataclass
class Work(ABC):
    """The blocks of one stage and data set."""

    job: Job
    plan: Plan
    rows: SetRows
    opened: LazyEngine
    report: Report
    schema_name: ClassVar[str]  # of the table of all blocks
    schema_version: ClassVar[int]

    @property
    def device(self) -> str:
        return self.opened.device

    def seed(self, block: int) -> int:
        """The seed of a block: its address. The set has no part in it: equal rows give equal bits in any file."""
        return derive_seed(self.plan.seed, self.plan.stage, block)

    @property
    @abstractmethod
    def file(self) -> Path:
        """Where the table of all blocks goes."""

    @abstractmethod
    def compute(self, block: int) -> None:
        """Make and publish a block."""

    @abstractmethod
    def tables(self) -> Iterator[pa.Table]:
        """The table of each block, in order, once all are there."""

    @abstractmethod
    def summary(self) -> ChainSummary | DensitySummary:
        """Gathers what the manifest tells of all rows."""


@dataclass
class PosteriorWork(Work):
    """Draws from the latent posterior of every row."""

    schema_name = DIAGNOSTICS_SCHEMA
    schema_version = DIAGNOSTICS_VERSION

    @cached_property
    def store(self) -> DrawStore:
        return DrawStore(self.job.layout, self.plan)

    @property
    def file(self) -> Path:
        return self.job.layout.diagnostics_file(self.job.set_name)

    def compute(self, block: int) -> None:
        rows = self.rows.block(*self.plan.rows(block))
        draws = self.draws(block, rows)
        self.store.write(block, rows.row_ids, draws, self.opened.engine.diagnostics(draws))

    def draws(self, block: int, rows: BlockRows) -> Draws:
        """The draws of a block, made now."""
        return self.opened.engine.sample(rows.padded(self.plan.block_rows), self.seed(block))

    def tables(self) -> Iterator[pa.Table]:
        return (self.store.diagnostics(block) for block in range(self.plan.n_blocks))

    def summary(self) -> ChainSummary:
        return ChainSummary()


@dataclass
class DensityWork(Work):
    """The log-density of every row, from draws that are there or are made."""

    posterior: PosteriorWork
    is_reading_draws: bool  # those on disk belong to the same settings
    schema_name = DENSITY_SCHEMA
    schema_version = DENSITY_VERSION

    @property
    def file(self) -> Path:
        return self.job.layout.density_file(self.job.set_name)

    @cached_property
    def columns(self) -> pa.Schema:
        return density_columns(self.rows.label_fields)

    def compute(self, block: int) -> None:
        publish_block(self.job.layout, self.plan, block, self.table(block))

    def table(self, block: int) -> pa.Table:
        """The rows of a block with their figures, computed now."""
        rows = self.rows.block(*self.plan.rows(block))
        n_real, n_rows = len(rows.row_ids), self.plan.block_rows
        draws = repeated(self._draws(block, rows), n_real, n_rows)
        figures = self.opened.engine.score(rows.padded(n_rows), draws, self.seed(block), n_real=n_real)
        return density_table(rows, figures, self.columns)

    def _draws(self, block: int, rows: BlockRows) -> Draws:
        """The draws of a block: those that are there, or the same ones made now."""
        if self.is_reading_draws and self.posterior.store.has(block):
            try:
                return self.posterior.store.read(block)
            except (BadArtifact, MissingArtifact) as error:
                self.is_reading_draws = self.posterior.store.is_of_plan(self.report)  # until `posterior --restart`
                if self.is_reading_draws:
                    self.report.warn(f"{error.what}: its draws are made again here; to repair it, {error.hint}")
        return self.posterior.draws(block, rows)

    def tables(self) -> Iterator[pa.Table]:
        for block, table in enumerate(iter_blocks(self.job.layout, self.plan)):
            yield checked_block(self.job.layout, self.plan, block, table, self.columns)

    def summary(self) -> DensitySummary:
        return DensitySummary(self.rows.n_features)


def checked_block(layout: RunLayout, plan: Plan, block: int, table: pa.Table, columns: pa.Schema) -> pa.Table:
    """The table of a block itself, if it has the rows and columns that it must have; `BadArtifact` if not."""
    start, stop = plan.rows(block)
    wrong = [f"{table.num_rows:,} rows instead of {stop - start:,}"] if table.num_rows != stop - start else []
    wrong += [f"column {found}, expected {wanted}" for found, wanted in _differing(table.schema, columns)][:3]
    if wrong:
        path = layout.block_file(plan.stage, plan.set_name, block)
        raise BadArtifact(f"{path} is damaged", found=wrong, hint=repair_hint(path))
    return table


def _differing(found: pa.Schema, wanted: pa.Schema) -> list[tuple[str, str]]:
    """The columns in which two tables differ, as `name type`."""
    pairs = zip_longest(*([f"{field.name!r} {field.type}" for field in schema] for schema in (found, wanted)))
    return [(str(one), str(other)) for one, other in pairs if one != other]
