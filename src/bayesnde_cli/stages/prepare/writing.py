"""The rows of each split as a table: as they were read, and as the model sees them."""

from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bayesnde_cli.artifacts.tables import Stamp, writing_table
from bayesnde_cli.data.image import IMAGE_COLUMN, image_type
from bayesnde_cli.data.kinds import Kind
from bayesnde_cli.data.labels import label_columns, label_fields
from bayesnde_cli.data.schema import Schema
from bayesnde_cli.data.splits import LEFT_OUT, SPLITS
from bayesnde_cli.stages.prepare.staging import StagedTable
from bayesnde_cli.stages.reporting import Report

# The schema name and version of a split's table.
ROWS_SCHEMA, ROWS_SCHEMA_VERSION = "rows", 1

_RAW_TYPES = {Kind.CONTINUOUS: pa.float64(), Kind.LATTICE: pa.int64(), Kind.CATEGORICAL: pa.string()}


def rows_schema(schema: Schema) -> pa.Schema:
    """The columns of a split's table: identity, the user's columns under their own names, the model's view.

    The pixels of images are one column.
    """
    return pa.schema(
        [
            pa.field("row_id", pa.int64()),
            *raw_fields(schema),
            *label_fields(schema),
            pa.field("x_scaled", pa.list_(pa.float32(), len(schema.features))),
            pa.field("log_jacobian", pa.float64()),
        ]
    )


def raw_fields(schema: Schema) -> list[pa.Field]:
    """The columns of the features as they were read."""
    if schema.image is not None:
        return [pa.field(IMAGE_COLUMN, image_type(schema.image))]
    return [pa.field(feature.name, _RAW_TYPES[feature.kind]) for feature in schema.features]


def stored_values(table: pa.Table, schema: Schema) -> np.ndarray:
    """The features of a split's table as numbers, (rows, p) float64, as they were read."""
    cells = {field.name: _as_read(table[field.name]) for field in raw_fields(schema)}
    return schema.encode(pa.RecordBatch.from_pydict(cells), table["row_id"].to_numpy())


def write_splits(
    files: Mapping[str, Path], staged: StagedTable, schema: Schema, row_ids: np.ndarray, split: np.ndarray,
    *, run_id: str, report: Report,
) -> None:  # fmt: skip
    """Write the table of every split, rows in the order of the file, a batch in memory at a time."""
    columns = rows_schema(schema)
    split_of_row = np.full(staged.n_rows, LEFT_OUT, np.int8)
    split_of_row[row_ids] = split
    stamp = Stamp(ROWS_SCHEMA, ROWS_SCHEMA_VERSION, run_id)
    with ExitStack() as stack, report.progress("writing", staged.n_rows, "rows") as advance:
        writers = [stack.enter_context(writing_table(files[name], columns, stamp)) for name in SPLITS]
        for first_row, batch in staged.batches():
            here = split_of_row[first_row : first_row + batch.num_rows]
            kept = np.flatnonzero(here != LEFT_OUT)
            if len(kept) < batch.num_rows:
                batch = batch.take(pa.array(kept))
            rows = _rows(batch, schema, first_row + kept, columns)
            for code, writer in enumerate(writers):
                writer.write(rows.filter(pa.array(here[kept] == code)))
            advance(len(here))


def _rows(batch: pa.RecordBatch, schema: Schema, row_ids: np.ndarray, columns: pa.Schema) -> pa.RecordBatch:
    values = schema.encode(batch, row_ids)  # (rows, p)
    x_scaled, log_jacobian = schema.scale(values, row_ids)
    raw = [pc.cast(batch.column(field.name), field.type) for field in raw_fields(schema)]
    labels = label_columns(batch, schema, row_ids)
    arrays = [
        pa.array(row_ids, pa.int64()),
        *raw,
        *(labels[field.name] for field in label_fields(schema)),
        pa.FixedSizeListArray.from_arrays(pa.array(x_scaled.ravel()), x_scaled.shape[1]),
        pa.array(log_jacobian),
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=columns)


def _as_read(column: pa.ChunkedArray) -> pa.Array:
    """A column in the type that it was read in: numbers are float64."""
    whole = column.combine_chunks()
    return pc.cast(whole, pa.float64()) if pa.types.is_integer(whole.type) else whole
