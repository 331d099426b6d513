"""Rows in the model's space: from the user's files, in the tables of a run, and back to the user's columns."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bayesnde_cli.errors import BadInput
from bayesnde_cli.rows import Rows
from bayesnde_cli.runs.files import read_object
from bayesnde_cli.runs.layout import RunLayout
from bayesnde_cli.runs.parquet_files import read_table
from bayesnde_cli.tables.columns import IMAGE_COLUMN, LARGEST_EXACT_INTEGER, Kind, listed
from bayesnde_cli.tables.schema import Feature, Schema, label_columns, label_fields
from bayesnde_cli.tables.sources import Table, TextFormat

# How the text of the user's files is read.

# A tab is hard to type in a shell.
_DELIMITER_WORDS = {"\\t": "\t", "tab": "\t"}


def text_format(settings: Mapping[str, Any]) -> TextFormat:
    """How delimited text is spelled, by the settings of `prepare`: later files are read as the first one was."""
    return TextFormat(
        delimiter=_DELIMITER_WORDS.get(settings["delimiter"] or "", settings["delimiter"]),
        quote=settings["quote"],
        header={"auto": None, "yes": True, "no": False}[settings["header"]],
        decimal=settings["decimal"],
        encoding=settings["encoding"],
        missing=tuple(settings["missing_token"]),
    )


# Tables of the run: the splits of `prepare`, with the columns of the user, and the rows of other files without them.

ROWS_SCHEMA = "rows"
_ROW_ID = pa.field("row_id", pa.int64())
_CELL_TYPES = {Kind.CONTINUOUS: pa.float64(), Kind.LATTICE: pa.int64(), Kind.CATEGORICAL: pa.string()}


def cell_type(feature: Feature) -> pa.DataType:
    """The Arrow type of a feature's column in the units of the file."""
    return _CELL_TYPES[feature.kind]


def raw_fields(schema: Schema) -> list[pa.Field]:
    """The columns of the features as they were read; the pixels of images are one column."""
    if schema.image is not None:
        return [pa.field(IMAGE_COLUMN, pa.list_(pa.uint8(), schema.image.n_pixels))]
    return [pa.field(feature.name, cell_type(feature)) for feature in schema.features]


def model_schema(schema: Schema) -> pa.Schema:
    """The columns of a split that the model needs: row number, the user's labels, the row in the model's space."""
    x_scaled = pa.field("x_scaled", pa.list_(pa.float32(), len(schema.features)))
    return pa.schema([_ROW_ID, *label_fields(schema), x_scaled, pa.field("log_jacobian", pa.float64())])


def rows_schema(schema: Schema) -> pa.Schema:
    """All columns of a split: those of `model_schema`, and the features in the units of the file."""
    return pa.schema([_ROW_ID, *raw_fields(schema), *list(model_schema(schema))[1:]])


def read_schema(layout: RunLayout) -> Schema:
    """The columns of a prepared run."""
    return Schema.from_json(read_object(layout.schema_file()))


def read_split(layout: RunLayout, split: str, *, with_values: bool = False) -> Rows:
    """The rows of `train`, `validation` or `test`, with their labels; their values in the file's units on request."""
    schema = read_schema(layout)
    columns = split_columns(schema, with_values=with_values)
    return read_table_rows(
        read_table(layout.split_file(split), ROWS_SCHEMA, columns.names), schema, with_values=with_values
    )


def split_columns(schema: Schema, *, with_values: bool) -> pa.Schema:
    """The columns of a split that `read_table_rows` needs."""
    return rows_schema(schema) if with_values else model_schema(schema)


def read_table_rows(table: pa.Table, schema: Schema, *, with_values: bool) -> Rows:
    """The rows of a split's table, with their values in the file's units on request."""
    rows = rows_from_table(table, schema)
    return replace(rows, values=stored_values(table, schema)) if with_values else rows


def rows_from_table(table: pa.Table, schema: Schema) -> Rows:
    """The rows in a table with the columns `model_schema`; label columns may be missing, except the condition."""
    condition = schema.roles.condition
    cells = table["x_scaled"].combine_chunks().flatten().to_numpy().reshape(table.num_rows, len(schema.features))
    return Rows(
        **_mask_missing(cells),
        y=schema.one_hot(table[condition].to_pylist()) if condition else None,
        row_ids=table["row_id"].to_numpy(),
        log_jacobian=table["log_jacobian"].to_numpy(),
        labels={name: table[name] for name in schema.roles.labels if name in table.column_names},
    )


def rows_to_batch(rows: Rows, columns: pa.Schema) -> pa.RecordBatch:
    """The inverse of `rows_from_table`."""
    cells = rows.x if rows.observed is None else np.where(rows.observed, rows.x, np.float32(np.nan))
    arrays = {
        **rows.labels,
        "row_id": pa.array(rows.row_ids),
        "x_scaled": pa.FixedSizeListArray.from_arrays(pa.array(cells.ravel()), cells.shape[1]),
        "log_jacobian": pa.array(rows.log_jacobian),
    }
    return pa.RecordBatch.from_arrays([arrays[name] for name in columns.names], schema=columns)


def stored_values(table: pa.Table, schema: Schema) -> np.ndarray:
    """The features of a split's table as numbers, (rows, p) float64, as they were read."""
    cells = {}
    for column in raw_fields(schema):
        cell = table[column.name].combine_chunks()
        cells[column.name] = pc.cast(cell, pa.float64()) if pa.types.is_integer(cell.type) else cell
    return schema.encode(pa.RecordBatch.from_pydict(cells), table["row_id"].to_numpy())


def _mask_missing(cells: np.ndarray) -> dict[str, Any]:
    """`x` and `observed` of cells with NaN where they are missing."""
    observed = ~np.isnan(cells)
    return {"x": cells} if observed.all() else {"x": np.where(observed, cells, np.float32(0.0)), "observed": observed}


# Any file in the model's space of a prepared run: columns are matched by name, in any order.


def match_table(table: Table, schema: Schema) -> tuple[Schema, tuple[str, ...]]:
    """The schema restricted to the label columns that the file has, and the file's columns that are ignored.

    Features and the condition are required; row name, outlier label and truth are optional.
    """
    if schema.image is not None and table.image not in (None, schema.image):
        raise BadInput(
            "the images are not of the model's size",
            found=[f"images of {table.image}", f"the model's: {schema.image}"],
            hint="bring the images to the model's size, or prepare a run of their own",
        )
    required = [*schema.roles.features, *([schema.condition] if schema.condition else [])]
    there = set(table.names)
    lacking = [name for name in required if name not in there]
    if lacking:
        raise BadInput(
            f"the file lacks {len(lacking)} of the model's {len(required)} columns",
            found=[f"missing: {listed(lacking)}", f"columns: {listed(table.names)}"],
            hint=f"the model is one of images of {schema.image}: give such images, or columns of these names"
            if schema.image is not None and lacking[0] in schema.roles.features
            else "columns are matched by name; rename them in the file, or give a header",
        )
    absent: dict[str, Any] = dict.fromkeys(
        name for name in ("outlier_label", "truth", "id") if getattr(schema, name) not in there
    )
    schema = replace(schema, split_column=None, **absent)
    used = set(schema.roles.used)
    return schema, tuple(name for name in table.names if name not in used)


def scale_table(table: Table, schema: Schema) -> Iterator[Rows]:
    """The rows of a table in the model's space, batch by batch; `schema` comes from `match_table`."""
    first_row = 0
    for batch in table.batches(schema.roles.used, as_text=schema.text_columns()):
        yield scale_batch(batch, schema, np.arange(first_row, first_row + batch.num_rows))
        first_row += batch.num_rows


def scale_batch(batch: pa.RecordBatch, schema: Schema, row_ids: np.ndarray) -> Rows:
    """The rows of a batch in the model's space, with their labels and their values in the units of the file."""
    values = schema.encode(batch, row_ids)
    cells, log_jacobian = schema.scale(values, row_ids)
    labels = label_columns(batch, schema, row_ids)
    return Rows(**_mask_missing(cells), row_ids=row_ids, log_jacobian=log_jacobian, labels=labels, values=values)


# Generated rows as the user's columns. A lattice or categorical cell is generated with its noise, then rounded.

# The noise stays away from the ends of its range, as it does in `prepare`.
_LEAST_FRACTION = 2.0**-53


class GeneratedColumn(NamedTuple):
    """A column in the units of the file."""

    value: np.ndarray  # (rows,) float64: numbers, or positions among the categories
    fraction: np.ndarray | None  # (rows,) position of the noise in its range, from 0 to 1; None without noise

    def slice(self, start: int, stop: int) -> "GeneratedColumn":
        return GeneratedColumn(self.value[start:stop], None if self.fraction is None else self.fraction[start:stop])


def invert_scaling(feature: Feature, u: np.ndarray) -> GeneratedColumn:
    """The column behind its values u (rows,) in the model's space."""
    y = feature.map.inverse(u.astype(np.float64))
    value = feature.map.to_value(y)
    if feature.kind is Kind.CATEGORICAL:
        value = np.clip(np.rint(value), 0.0, len(feature.categories) - 1.0)
    elif feature.kind is Kind.LATTICE:
        value = np.clip(np.rint(value), -LARGEST_EXACT_INTEGER, LARGEST_EXACT_INTEGER)
    noise = feature.map.noise
    if noise is None:
        return GeneratedColumn(value, None)
    fraction = (y - value - noise.low) / noise.width
    return GeneratedColumn(value, np.clip(fraction, _LEAST_FRACTION, 1.0 - _LEAST_FRACTION))


def to_file_units(schema: Schema, x_scaled: np.ndarray) -> np.ndarray:
    """Rows in the units of the file, categories by position, without noise. (rows, p) float64, NaN kept."""
    values = np.full(x_scaled.shape, np.nan)
    for index, feature in enumerate(schema.features):
        is_there = ~np.isnan(x_scaled[:, index])
        values[is_there, index] = invert_scaling(feature, x_scaled[is_there, index]).value
    return values


def format_cells(feature: Feature, column: GeneratedColumn) -> pa.Array:
    """The column as a file holds it: category names, integers of a lattice, or numbers."""
    if feature.kind is Kind.CATEGORICAL:
        return pa.array(feature.categories, pa.string()).take(pa.array(column.value.astype(np.int64)))
    return pa.array(column.value.astype(np.int64) if feature.kind is Kind.LATTICE else column.value)


def scale_columns(schema: Schema, columns: Sequence[GeneratedColumn]) -> tuple[np.ndarray, np.ndarray]:
    """Generated rows in the model's space, (rows, p) float32, after rounding, and their log-Jacobian (rows,)."""
    pairs = zip(schema.features, columns, strict=True)
    scaled = [feature.map.forward(column.value, column.fraction) for feature, column in pairs]
    x = np.stack([u for u, _ in scaled], axis=1).astype(np.float32)
    return x, np.sum([log_slope for _, log_slope in scaled], axis=0)
