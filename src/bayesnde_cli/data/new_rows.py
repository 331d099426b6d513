"""Rows of any file in the model's space of a prepared run: columns by name, order free."""

from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from bayesnde_cli.data.image import ImageShape
from bayesnde_cli.data.labels import label_columns
from bayesnde_cli.data.readers import Table
from bayesnde_cli.data.roles import Roles, listed
from bayesnde_cli.data.schema import Schema
from bayesnde_cli.errors import BadInput


class ModelRows(NamedTuple):
    """A batch of rows as the model sees them."""

    row_ids: np.ndarray  # (rows,) int64, position in the input
    x_scaled: np.ndarray  # (rows, p) float32, NaN where a cell is missing
    log_jacobian: np.ndarray  # (rows,) float64, of the cells that are there
    labels: dict[str, pa.Array]  # label columns that the file has, by name
    values: np.ndarray  # (rows, p) float64, the features as numbers in the units of the file, NaN where missing


def match_table(table: Table, schema: Schema) -> tuple[Schema, tuple[str, ...]]:
    """The schema restricted to the label columns that the file has, and the file's columns that are ignored.

    Features and the condition must be there; identity, outlier label and truth may be.
    """
    if schema.image is not None and table.image not in (None, schema.image):
        raise _other_size(table.image, schema.image)
    required = [*schema.roles.features, *([schema.roles.condition] if schema.roles.condition else [])]
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
    roles = schema.roles
    present = Roles(
        features=roles.features,
        condition=roles.condition,
        outlier_label=roles.outlier_label if roles.outlier_label in table.names else None,
        truth=roles.truth if roles.truth in table.names else None,
        id=roles.id if roles.id in table.names else None,
    )
    used = set(present.used)
    ignored = tuple(name for name in table.names if name not in used)
    return replace(schema, roles=present), ignored


def _other_size(found: ImageShape | None, wanted: ImageShape) -> BadInput:
    return BadInput(
        "the images are not of the model's size",
        found=[f"images of {found}", f"the model's: {wanted}"],
        hint="bring the images to the model's size, or prepare a run of their own",
    )


def model_rows(table: Table, schema: Schema) -> Iterator[ModelRows]:
    """The rows of a table in the model's space, batch by batch; `schema` comes from `match_table`."""
    first_row = 0
    for batch in table.batches(schema.roles.used, as_text=schema.text_columns()):
        row_ids = np.arange(first_row, first_row + batch.num_rows)
        values = schema.encode(batch, row_ids)
        x_scaled, log_jacobian = schema.scale(values, row_ids)
        yield ModelRows(row_ids, x_scaled, log_jacobian, label_columns(batch, schema, row_ids), values)
        first_row += len(values)
