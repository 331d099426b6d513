"""The rows of a split as the networks take them."""

from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import tensorflow as tf

from bayesnde_cli.artifacts.layout import RunLayout
from bayesnde_cli.artifacts.tables import read_table
from bayesnde_cli.data.image import ImageShape
from bayesnde_cli.rng import bits_at
from bayesnde_cli.stages.prepare.writing import ROWS_SCHEMA, ROWS_SCHEMA_VERSION, rows_schema
from bayesnde_cli.stages.reading import odd_rows_refused, read_schema, refuse_gaps


@dataclass(frozen=True)
class Rows:
    """Rows in the model's space."""

    row_ids: np.ndarray  # (rows,) int64
    x: np.ndarray  # (rows, p) float32
    log_jacobian: np.ndarray  # (rows,) float64
    y: np.ndarray | None  # (rows, classes) float32, one-hot
    image: ImageShape | None = None  # of which the columns are the pixels

    @property
    def n_classes(self) -> int:
        return 0 if self.y is None else self.y.shape[1]

    def sample(self, n_rows: int, seed: int) -> "Rows":
        """So many rows, chosen by each row's own random number (a file may be sorted), in the order of the file."""
        chosen = np.sort(np.argsort(bits_at(seed, self.row_ids), kind="stable")[:n_rows])
        return replace(self, row_ids=self.row_ids[chosen], x=self.x[chosen], log_jacobian=self.log_jacobian[chosen],
                       y=None if self.y is None else self.y[chosen])  # fmt: skip

    def tensors(self) -> tuple[tf.Tensor, tf.Tensor | None]:
        """The features and the one-hot condition."""
        return tf.constant(self.x), None if self.y is None else tf.constant(self.y)


def read_rows(layout: RunLayout, split: str) -> Rows:
    """The rows of a split of a prepared run."""
    schema = read_schema(layout)
    condition = schema.roles.condition
    names = ["row_id", "x_scaled", "log_jacobian", *([condition] if condition else [])]
    columns = pa.schema([rows_schema(schema).field(name) for name in names])
    path = layout.split_file(split)
    table = read_table(path, ROWS_SCHEMA, columns, schema_version=ROWS_SCHEMA_VERSION)
    with odd_rows_refused(path):
        refuse_gaps(table, names)
        flat = table["x_scaled"].combine_chunks().flatten().to_numpy()
        return Rows(
            row_ids=table["row_id"].to_numpy(),
            x=flat.reshape(table.num_rows, len(schema.features)),
            log_jacobian=table["log_jacobian"].to_numpy(),
            y=schema.one_hot(table[condition].to_pylist()) if condition else None,
            image=schema.image,
        )


def labels_like(y: np.ndarray | None, n: int) -> np.ndarray | None:
    """About n one-hot labels, each class as often as in y, and once at least."""
    if y is None:
        return None
    counts = y.sum(axis=0)
    repeats = np.where(counts > 0, np.maximum(1, np.round(n * counts / len(y))), 0).astype(int)
    return np.repeat(np.eye(y.shape[1], dtype=np.float32), repeats, axis=0)
