"""The rows that `evaluate` looks at: as they are in the file, as the model sees them, and what is known of them."""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, fields, replace

import numpy as np
import pyarrow as pa

from bayesnde_cli.artifacts.layout import TEST_SET, RunLayout
from bayesnde_cli.artifacts.tables import read_table
from bayesnde_cli.data.new_rows import ModelRows, match_table, model_rows
from bayesnde_cli.data.readers import open_sources
from bayesnde_cli.data.schema import Schema
from bayesnde_cli.stages.prepare.writing import ROWS_SCHEMA, ROWS_SCHEMA_VERSION, rows_schema, stored_values
from bayesnde_cli.stages.reading import odd_rows_refused, refuse_gaps
from bayesnde_cli.stages.scoring.density_table import DENSITY_SCHEMA, DENSITY_VERSION
from bayesnde_cli.stages.scoring.job import Job


@dataclass(frozen=True)
class TableRows:
    """Rows with all that is known of them."""

    row_ids: np.ndarray  # (rows,) int64
    values: np.ndarray  # (rows, p) float64, as in the file, categories by position, NaN where a cell is missing
    x: np.ndarray  # (rows, p) float32, in the model's space, NaN where a cell is missing
    log_jacobian: np.ndarray  # (rows,) float64
    classes: np.ndarray | None = None  # (rows,) int64, positions among the schema's classes
    truth: np.ndarray | None = None  # (rows,) float64, true log-densities
    is_outlier: np.ndarray | None = None  # (rows,) bool

    @property
    def is_complete(self) -> np.ndarray:
        """Which rows have all their cells, (rows,) bool."""
        return ~np.isnan(self.values).any(axis=1)

    def of(self, kept: np.ndarray) -> "TableRows":
        """Some of the rows, (rows,) bool."""
        arrays = {name: array[kept] for name, array in vars(self).items() if array is not None}
        return replace(self, **arrays)

    def sha256(self) -> str:
        """The hash of the cells as in the file, row by row, each a little-endian float64."""
        return hashlib.sha256(np.ascontiguousarray(self.values, "<f8").tobytes()).hexdigest()


@dataclass(frozen=True)
class Scores:
    """What `density` found of them, column by column, (rows,) each."""

    row_id: np.ndarray
    log_density: np.ndarray
    log_density_scaled: np.ndarray
    mc_se: np.ndarray
    reliable: np.ndarray
    verdict: np.ndarray


def read_scores(job: Job) -> Scores:
    """The densities of a data set."""
    names = [item.name for item in fields(Scores)]
    table = read_table(
        job.layout.density_file(job.set_name), DENSITY_SCHEMA, names, schema_version=DENSITY_VERSION, run_id=job.run_id
    )
    return Scores(**{name: table[name].to_numpy() for name in names})


def split_rows(layout: RunLayout, schema: Schema, split: str) -> TableRows:
    """The rows of a split of `prepare`."""
    path = layout.split_file(split)
    table = read_table(path, ROWS_SCHEMA, rows_schema(schema), schema_version=ROWS_SCHEMA_VERSION)
    row_ids = table["row_id"].to_numpy()
    with odd_rows_refused(path):
        refuse_gaps(table, ["row_id", "x_scaled", "log_jacobian"])
        return _table_rows(
            schema,
            row_ids=row_ids,
            values=stored_values(table, schema),
            x=table["x_scaled"].combine_chunks().flatten().to_numpy().reshape(len(row_ids), -1),
            log_jacobian=table["log_jacobian"].to_numpy(),
            labels={name: table[name] for name in schema.roles.labels},
        )


def set_rows(job: Job, schema: Schema) -> TableRows:
    """The rows of a data set: the test rows, or those of the user's files, which are read again."""
    if job.set_name == TEST_SET:
        return split_rows(job.layout, schema, TEST_SET)
    table = open_sources(job.sources, job.text)
    matched, _ = match_table(table, schema)
    batches = list(model_rows(table, matched))
    return _table_rows(
        matched,
        row_ids=_joined(batch.row_ids for batch in batches),
        values=_joined(batch.values for batch in batches),
        x=_joined(batch.x_scaled for batch in batches),
        log_jacobian=_joined(batch.log_jacobian for batch in batches),
        labels=_labels(batches, matched.roles.labels),
    )


def _labels(batches: list[ModelRows], names: Iterable[str]) -> dict[str, pa.ChunkedArray]:
    return {name: pa.chunked_array([batch.labels[name] for batch in batches]) for name in names}


def _joined(parts: Iterable[np.ndarray]) -> np.ndarray:
    return np.concatenate(list(parts))


def _table_rows(schema: Schema, *, labels: dict[str, pa.ChunkedArray], **arrays: np.ndarray) -> TableRows:
    roles = schema.roles
    return TableRows(
        **arrays,
        classes=schema.one_hot(labels[roles.condition].to_pylist()).argmax(axis=1) if roles.condition else None,
        truth=labels[roles.truth].to_numpy().astype(np.float64) if roles.truth else None,
        is_outlier=labels[roles.outlier_label].to_numpy() == 1 if roles.outlier_label else None,
    )
