"""`outliers`: the rows of lowest density with their own columns.

A row with missing cells has the density of the other cells, which cannot be compared with that of a complete row. So
only rows with the same number of observed cells are ranked, by default complete ones.
"""

import math
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bayesnde_cli.answers import join_columns
from bayesnde_cli.errors import BadInput
from bayesnde_cli.formatting import Report, counted
from bayesnde_cli.runs.layout import TEST_SET, RunLayout
from bayesnde_cli.runs.manifest import require
from bayesnde_cli.runs.parquet_files import iter_batches, read_table
from bayesnde_cli.settings.stage_settings import DensitySettings
from bayesnde_cli.stages.loading import EngineFactory
from bayesnde_cli.stages.score import DENSITY_SCHEMA, score
from bayesnde_cli.stages.scoring_job import Asked, Job, make_job
from bayesnde_cli.tables.columns import pixel_columns
from bayesnde_cli.tables.model_rows import ROWS_SCHEMA, cell_type, raw_fields, read_schema
from bayesnde_cli.tables.schema import Schema
from bayesnde_cli.tables.sources import open_sources

_FIGURES = ["row_id", "log_density", "mc_se", "verdict"]


@dataclass(frozen=True)
class Wanted:
    """The number of rows to list, or their share of the ranked rows."""

    top: int | None = 10
    quantile: float | None = None
    n_observed: int | None = None  # observed cells of the ranked rows; None: all cells

    def n_rows(self, n_ranked: int) -> int:
        if self.quantile is None:
            return min(self.top or 0, n_ranked)
        return math.ceil(round(self.quantile * n_ranked, 9)) or 1  # 0.07 * 100 is slightly more than 7


@dataclass(frozen=True)
class Outliers:
    """Rank, row_id, log_density, mc_se and verdict of the rows of lowest density, and their own columns."""

    table: pa.Table
    set_name: str
    n_rows: int
    n_ranked: int

    def as_dict(self) -> dict[str, Any]:
        rows = self.table.to_pylist()
        for row in rows:  # JSON has neither NaN nor infinity
            row |= {key: None for key, value in row.items() if isinstance(value, float) and not math.isfinite(value)}
        return {"set_name": self.set_name, "n_rows": self.n_rows, "n_ranked": self.n_ranked, "outliers": rows}

    def __str__(self) -> str:
        n_doubtful = self.table.num_rows - pc.sum(pc.equal(self.table["verdict"], "reliable")).as_py()
        doubtful = f", {n_doubtful:,} of them not reliable" if n_doubtful else ""
        rows = counted(self.n_ranked, "row")
        return f"{self.set_name}: the {self.table.num_rows:,} of lowest density among {rows}{doubtful}"


def run_outliers(
    layout: RunLayout, asked: Asked, config: DensitySettings, report: Report, wanted: Wanted, *, factory: EngineFactory
) -> Outliers:
    """The rows of lowest density of a data set; rows without densities are scored first."""
    job = make_job(layout, asked, config)
    path, schema = layout.density_file(job.set_name), read_schema(layout)
    is_scored = layout.manifest_file("density", job.set_name).exists()
    if is_scored and config.identity() == DensitySettings().identity():  # default settings accept any densities
        require(layout, "density", job.set_name, reading=[path.name])
    else:
        score(job, asked, report, factory=factory)
    scores = read_table(path, DENSITY_SCHEMA, ["log_density", "n_observed"])
    log_density, n_observed = scores["log_density"].to_numpy(), scores["n_observed"].to_numpy()
    ranked = _rank(log_density, n_observed, wanted.n_observed or len(schema.features), report)
    chosen = ranked[: wanted.n_rows(len(ranked))]
    ranks = pa.table({"rank": pa.array(np.arange(1, len(chosen) + 1))})
    figures = take_rows(iter_batches(path, DENSITY_SCHEMA, _FIGURES), chosen)
    table = join_columns(join_columns(ranks, figures), _read_own_columns(job, schema, chosen))
    return Outliers(table, job.set_name, len(log_density), len(ranked))


def _rank(log_density: np.ndarray, n_observed: np.ndarray, n_wanted: int, report: Report) -> np.ndarray:
    """Positions of the comparable rows, lowest density first."""
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


def _read_own_columns(job: Job, schema: Schema, chosen: np.ndarray) -> pa.Table:
    """The user's columns of these rows: those in use for test rows, all columns of a file."""
    if job.set_name == TEST_SET:
        names = [*(field.name for field in raw_fields(schema)), *schema.roles.labels]
        rows = take_rows(iter_batches(job.layout.split_file(TEST_SET), ROWS_SCHEMA, names), chosen)
        return rows if schema.image is None else pixel_columns(rows, schema.image)
    table = open_sources(job.sources, job.text)
    types = {feature.name: cell_type(feature) for feature in schema.features}

    def batches() -> Iterator[pa.RecordBatch]:
        for batch in table.batches(as_text=schema.text_columns() & set(table.names)):
            columns = zip(batch.schema.names, batch.columns, strict=True)
            yield pa.RecordBatch.from_pydict(
                {name: pc.cast(column, types.get(name, column.type)) for name, column in columns}
            )

    return take_rows(batches(), chosen)


def take_rows(batches: Iterable[pa.RecordBatch], positions: np.ndarray) -> pa.Table:
    """The rows at these positions (n,), at least one, in this order; batches are read one by one."""
    order = np.argsort(positions, kind="stable")
    rising = positions[order]
    pieces, first = [], 0
    for batch in batches:
        here = rising[np.searchsorted(rising, first) : np.searchsorted(rising, first + batch.num_rows)]
        if len(here):
            pieces.append(batch.take(pa.array(here - first)))
        first += batch.num_rows
    return pa.Table.from_batches(pieces).take(pa.array(np.argsort(order)))
