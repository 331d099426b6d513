"""The rows of a data set as the model sees them, a block at a time.

The test rows are there since `prepare`. Any other table is read once and put down in the model's space, so that every
process can go straight to its blocks.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from bayesnde_cli.artifacts.fingerprint import sha256_json
from bayesnde_cli.artifacts.layout import TEST_SET
from bayesnde_cli.artifacts.row_ranges import RowRanges, column_names
from bayesnde_cli.artifacts.tables import Stamp, writing_table
from bayesnde_cli.data.labels import label_fields
from bayesnde_cli.data.new_rows import ModelRows, match_table, model_rows
from bayesnde_cli.data.readers import open_sources
from bayesnde_cli.data.roles import listed
from bayesnde_cli.data.schema import Schema
from bayesnde_cli.errors import BadArtifact, BadInput, MissingArtifact
from bayesnde_cli.inference.block import Rows
from bayesnde_cli.stages.prepare.writing import ROWS_SCHEMA, ROWS_SCHEMA_VERSION
from bayesnde_cli.stages.reading import odd_rows_refused, read_schema, refuse_gaps
from bayesnde_cli.stages.reporting import Report
from bayesnde_cli.stages.scoring.job import Job
from bayesnde_cli.stages.scoring.sharing import alone

STAGED_SCHEMA, STAGED_SCHEMA_VERSION = "model-rows", 1


def model_fields(n_features: int) -> list[pa.Field]:
    """What the model needs of every row."""
    return [
        pa.field("row_id", pa.int64()),
        pa.field("x_scaled", pa.list_(pa.float32(), n_features)),
        pa.field("log_jacobian", pa.float64()),
    ]


class BlockRows(NamedTuple):
    """The rows of one block."""

    row_ids: np.ndarray  # (rows,) int64
    x: np.ndarray  # (rows, p) float32, 0 where a cell is missing
    observed: np.ndarray  # (rows, p) bool
    y: np.ndarray | None  # (rows, classes) float32, one-hot
    log_jacobian: np.ndarray  # (rows,) float64, of the cells that are there
    labels: pa.Table

    def padded(self, n_rows: int) -> Rows:
        """As many rows as the compiled programs take: the last one is repeated."""
        index = np.minimum(np.arange(n_rows), len(self.row_ids) - 1)
        observed = None if self.observed.all() else self.observed[index]
        return Rows(self.x[index], observed, None if self.y is None else self.y[index])


class SetRows:
    """The rows of a data set."""

    def __init__(self, path: Path, stamp: Stamp, schema: Schema) -> None:
        there = [*column_names(path, stamp), schema.roles.condition]  # the model cannot do without its condition
        self._path, self._schema = path, schema
        self._labels = [name for name in schema.roles.labels if name in there]
        self._ranges = RowRanges(path, stamp, pa.schema([*model_fields(len(schema.features)), *self.label_fields]))

    @property
    def n_rows(self) -> int:
        return self._ranges.n_rows

    @property
    def n_features(self) -> int:
        return len(self._schema.features)

    @property
    def label_fields(self) -> list[pa.Field]:
        """The label columns that came with the rows."""
        return [field for field in label_fields(self._schema) if field.name in self._labels]

    def block(self, start: int, stop: int) -> BlockRows:
        """The rows from `start` up to `stop`."""
        table = self._ranges.read(start, stop)
        with odd_rows_refused(self._path):
            return self._block(table)

    def _block(self, table: pa.Table) -> BlockRows:
        condition = self._schema.roles.condition
        needed = [field.name for field in model_fields(self.n_features)]
        refuse_gaps(table, [*needed, condition] if condition else needed)
        cells = table["x_scaled"].combine_chunks().flatten().to_numpy().reshape(table.num_rows, -1)
        observed = ~np.isnan(cells)
        return BlockRows(
            row_ids=table["row_id"].to_numpy(),
            x=np.where(observed, cells, np.float32(0.0)),
            observed=observed,
            y=self._schema.one_hot(table[condition].to_pylist()) if condition else None,
            log_jacobian=table["log_jacobian"].to_numpy(),
            labels=table.select(self._labels),
        )


def open_rows(job: Job, report: Report) -> SetRows:
    """The rows of the job's data set; the user's table is read if that has not been done, by one process."""
    schema = read_schema(job.layout)
    if job.set_name == TEST_SET:
        stamp = Stamp(ROWS_SCHEMA, ROWS_SCHEMA_VERSION, job.run_id)
        return SetRows(job.layout.split_file(TEST_SET), stamp, schema)
    path = job.layout.rows_file(job.stage, job.set_name)
    stamp = staged_stamp(job.run_id, job.hashes)
    rows = _staged(path, stamp, schema, report)
    if rows is None:
        with alone(job.layout, job.stage, job.set_name, report):
            # Another process may have put them down meanwhile.
            rows = _staged(path, stamp, schema) or stage_rows(job, path, stamp, schema, report)
    return rows


def staged_stamp(run_id: str, hashes: Mapping[str, str]) -> Stamp:
    """The stamp of rows that were put down, by the hashes of what a stage reads: they are those of the user's files."""
    made_from = {name: hashes[name] for name in hashes if name.startswith("data-") or name == "prepare/schema.json"}
    return Stamp(STAGED_SCHEMA, STAGED_SCHEMA_VERSION, run_id, sha256_json(made_from))


def _staged(path: Path, stamp: Stamp, schema: Schema, report: Report | None = None) -> SetRows | None:
    """The rows that were put down; None if there are none, or damaged ones, or those of an earlier `prepare`."""
    try:
        return SetRows(path, stamp, schema)
    except MissingArtifact:
        return None
    except BadArtifact as error:
        if report is not None:
            report.warn(f"{error.what} ({'; '.join(error.found)}): the rows are read again")
        return None


def stage_rows(job: Job, path: Path, stamp: Stamp, schema: Schema, report: Report) -> SetRows:
    """Read the user's table and put its rows down in a file."""
    table = open_sources(job.sources, job.text)
    report.note(f"read as: {table.description}")
    matched, ignored = match_table(table, schema)
    if ignored:
        report.note(f"not used: {listed(ignored)}")
    columns = pa.schema(
        [
            pa.field("row_id", pa.int64()),
            *label_fields(matched),
            pa.field("x_scaled", pa.list_(pa.float32(), len(schema.features))),
            pa.field("log_jacobian", pa.float64()),
        ]
    )
    n_rows = 0
    with report.progress("reading", None, "rows") as advance, writing_table(path, columns, stamp) as writer:
        for batch in model_rows(table, matched):
            writer.write(_record_batch(batch, columns))
            n_rows += len(batch.row_ids)
            advance(len(batch.row_ids))
        if n_rows == 0:
            raise BadInput(
                "the input has no rows", found=f"read as: {table.description}", hint="give a table with rows"
            )
    return SetRows(path, stamp, schema)


def _record_batch(rows: ModelRows, columns: pa.Schema) -> pa.RecordBatch:
    arrays = {
        "row_id": pa.array(rows.row_ids, pa.int64()),
        **rows.labels,
        "x_scaled": pa.FixedSizeListArray.from_arrays(pa.array(rows.x_scaled.ravel()), rows.x_scaled.shape[1]),
        "log_jacobian": pa.array(rows.log_jacobian),
    }
    return pa.RecordBatch.from_arrays([arrays[name] for name in columns.names], schema=columns)
