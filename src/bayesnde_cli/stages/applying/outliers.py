"""`outliers`: the rows of lowest density, joined to their own columns.

Only densities of equally many cells can be compared: rows with missing cells have the density of the others, which is
another quantity. So rows are ranked among those with the same number of observed cells, by default all.
"""

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bayesnde_cli.artifacts.layout import TEST_SET, RunLayout
from bayesnde_cli.artifacts.tables import iter_batches
from bayesnde_cli.artifacts.upstream import require
from bayesnde_cli.config import DensityConfig
from bayesnde_cli.data.image import pixel_columns
from bayesnde_cli.data.made_rows import cell_type
from bayesnde_cli.data.readers import open_sources
from bayesnde_cli.data.schema import Schema
from bayesnde_cli.errors import BadInput
from bayesnde_cli.stages.applying.rows_at import beside, rows_at
from bayesnde_cli.stages.prepare.writing import ROWS_SCHEMA, ROWS_SCHEMA_VERSION, raw_fields
from bayesnde_cli.stages.reading import read_schema
from bayesnde_cli.stages.reporting import Report, counted
from bayesnde_cli.stages.scoring import score
from bayesnde_cli.stages.scoring.density_table import DENSITY_SCHEMA, DENSITY_VERSION
from bayesnde_cli.stages.scoring.engine import EngineFactory
from bayesnde_cli.stages.scoring.job import Asked, Job, make_job

_FIGURES = ["row_id", "log_density", "mc_se", "verdict"]


@dataclass(frozen=True)
class Wanted:
    """How many rows: so many, or a share of those that are ranked."""

    top: int | None = 10
    quantile: float | None = None
    n_observed: int | None = None  # of the rows that are ranked; None: all cells

    def n_rows(self, n_ranked: int) -> int:
        if self.quantile is None:
            return min(self.top or 0, n_ranked)
        return math.ceil(round(self.quantile * n_ranked, 9)) or 1  # 0.07 * 100 is a little more than 7


@dataclass(frozen=True)
class Outliers:
    """What `outliers` found: rank, row_id, log_density, mc_se, verdict, and the row's own columns."""

    table: pa.Table
    set_name: str
    n_rows: int
    n_ranked: int

    def as_dict(self) -> dict[str, Any]:
        counts = {"set_name": self.set_name, "n_rows": self.n_rows, "n_ranked": self.n_ranked}
        return {**counts, "outliers": [_without_nan(row) for row in self.table.to_pylist()]}

    def __str__(self) -> str:
        n_doubtful = self.table.num_rows - pc.sum(pc.equal(self.table["verdict"], "reliable")).as_py()
        doubtful = f", {n_doubtful:,} of them not reliable" if n_doubtful else ""
        rows = counted(self.n_ranked, "row")
        return f"{self.set_name}: the {self.table.num_rows:,} of lowest density among {rows}{doubtful}"


def run_outliers(
    layout: RunLayout, asked: Asked, config: DensityConfig, report: Report, wanted: Wanted, *, factory: EngineFactory
) -> Outliers:
    """The rows of lowest density of a data set, which is scored if that has not been done."""
    job = make_job(layout, asked, config)
    schema = read_schema(layout)
    _have_scored(job, asked, config, report, factory)
    log_density, n_observed = _columns(job, "log_density", "n_observed")
    ranked = _ranked(log_density, n_observed, wanted.n_observed or len(schema.features), report)
    chosen = ranked[: wanted.n_rows(len(ranked))]
    figures = rows_at(_density_batches(job, _FIGURES), chosen)
    ranks = pa.table({"rank": pa.array(np.arange(1, len(chosen) + 1))})
    table = beside(beside(ranks, figures), _own_rows(job, schema, chosen))
    return Outliers(table, job.set_name, len(log_density), len(ranked))


def _have_scored(job: Job, asked: Asked, config: DensityConfig, report: Report, factory: EngineFactory) -> None:
    """Score the rows, unless they are; what is there is taken as it is if no settings were asked for."""
    is_there = job.layout.manifest_file("density", job.set_name).exists()
    if is_there and config.identity() == DensityConfig().identity():
        require(job.layout, "density", job.set_name, reading=[job.layout.density_file(job.set_name).name])
    else:
        score(job, asked, report, factory=factory)


def _ranked(log_density: np.ndarray, n_observed: np.ndarray, n_wanted: int, report: Report) -> np.ndarray:
    """Positions of the rows that can be compared, lowest density first."""
    is_wanted, is_finite = n_observed == n_wanted, np.isfinite(log_density)
    n_lost, n_others = int((is_wanted & ~is_finite).sum()), int((~is_wanted).sum())
    if n_others:
        report.warn(
            f"{counted(n_others, 'row')} with another number of observed cells than {n_wanted} not ranked: "
            "densities of different cells cannot be compared (--observed N ranks rows with N cells)"
        )
    if n_lost:
        report.warn(f"{counted(n_lost, 'row')} not ranked: the log-density is not finite")
    positions = np.flatnonzero(is_wanted & is_finite)
    if not len(positions):
        counts = Counter(n_observed.tolist())
        raise BadInput(
            f"there is no row with {counted(n_wanted, 'observed cell')} to rank",
            found="rows by observed cells: " + ", ".join(f"{n}: {counts[n]:,}" for n in sorted(counts)),
            hint=f"rank those with --observed {counts.most_common(1)[0][0]}",
        )
    return positions[np.argsort(log_density[positions], kind="stable")]


def _columns(job: Job, *names: str) -> list[np.ndarray]:
    """Whole columns of the density table, (rows,) each."""
    batches = list(_density_batches(job, list(names)))
    return [np.concatenate([batch.column(name).to_numpy() for batch in batches]) for name in names]


def _density_batches(job: Job, columns: list[str]) -> Iterator[pa.RecordBatch]:
    path = job.layout.density_file(job.set_name)
    return iter_batches(path, DENSITY_SCHEMA, columns, schema_version=DENSITY_VERSION)


def _own_rows(job: Job, schema: Schema, chosen: np.ndarray) -> pa.Table:
    """Rows with the columns that the user knows: of the test rows those in use, of a file all that it has."""
    if job.set_name == TEST_SET:
        names = [*(field.name for field in raw_fields(schema)), *schema.roles.labels]
        path = job.layout.split_file(TEST_SET)
        rows = rows_at(iter_batches(path, ROWS_SCHEMA, names, schema_version=ROWS_SCHEMA_VERSION), chosen)
        return rows if schema.image is None else pixel_columns(rows, schema.image)
    table = open_sources(job.sources, job.text)
    types = {feature.name: cell_type(feature) for feature in schema.features}
    batches = table.batches(as_text=schema.text_columns() & set(table.names))
    return rows_at((_cast(batch, types) for batch in batches), chosen)


def _cast(batch: pa.RecordBatch, types: dict[str, pa.DataType]) -> pa.RecordBatch:
    arrays = {
        name: pc.cast(column, types.get(name, column.type))
        for name, column in zip(batch.schema.names, batch.columns, strict=True)
    }
    return pa.RecordBatch.from_pydict(arrays)


def _without_nan(row: dict[str, Any]) -> dict[str, Any]:
    return {
        name: None if isinstance(value, float) and not math.isfinite(value) else value for name, value in row.items()
    }
