"""Arrays and data frames on their way into a file that the stages read, and back."""

import contextlib
import tempfile
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from sklearn.utils.validation import check_array, column_or_1d, validate_data

from bayesnde_cli.data.readers.cells import words
from bayesnde_cli.data.readers.table import made_up_names


def checked(estimator: Any, X: Any, *, names: Sequence[str] | None, allows_missing: bool, min_rows: int) -> pa.Table:
    """The rows, checked as scikit-learn does: an array of numbers, or a data frame, which may hold words.

    New rows must have the columns of the fitted ones, `names`, which an array has by position, and a data frame too if
    it has none of these names. Without `names` the columns of an array are c1, c2, ...
    """
    is_first = names is None
    if hasattr(X, "columns"):
        validate_data(estimator, X, reset=is_first, skip_check_array=True)
        table = _arrow(X)
        return table if names is None or set(names) & set(table.column_names) else table.rename_columns(list(names))
    array = validate_data(
        estimator, X, reset=is_first, dtype=np.float64, ensure_min_samples=min_rows,
        ensure_all_finite="allow-nan" if allows_missing else True,
    )  # fmt: skip
    columns = zip(names or made_up_names(array.shape[1]), array.T, strict=True)
    return pa.table({name: np.ascontiguousarray(column) for name, column in columns})


def with_classes(rows: pa.Table, y: Any, column: str) -> pa.Table:
    """The rows with their classes in a column."""
    if column in rows.column_names:
        raise ValueError(f"a column of X is called '{column}', which is where the classes go: rename or remove it")
    classes = column_or_1d(check_array(y, ensure_2d=False, dtype=None, ensure_all_finite=False))
    if len(classes) != rows.num_rows:
        raise ValueError(f"X has {rows.num_rows} rows, y has {len(classes)} classes")
    return rows.append_column(column, pa.array(classes))


def class_word(condition: Any) -> str:
    """A class as the stages spell it when it comes in a column: True is `true`, 1.0 is `1`."""
    return str(words(pa.array(np.array([condition])).cast(pa.string()))[0])


@contextlib.contextmanager
def written(rows: pa.Table) -> Iterator[Path]:
    """A file with the rows, as long as it is needed."""
    with tempfile.TemporaryDirectory(prefix="bayesnde-") as folder:
        file = Path(folder) / "rows.parquet"
        pq.write_table(rows, file)
        yield file


def frame_kind(X: Any) -> str | None:
    """The package that a data frame is of, `pandas`, `polars` or `pyarrow`; None: an array."""
    return type(X).__module__.partition(".")[0] if hasattr(X, "columns") else None


def as_kind(table: pa.Table, kind: str | None) -> Any:
    """A table as a data frame of a package, or as an array of numbers; as it is if pandas is wanted and not there."""
    if kind is None:
        return np.stack([column.to_numpy() for column in table.columns], axis=1).astype(np.float64)
    if kind == "polars":
        import polars

        return polars.from_arrow(table)
    return table.to_pandas() if kind == "pandas" and find_spec("pandas") else table


def _arrow(frame: Any) -> pa.Table:
    if isinstance(frame, pa.Table):
        return frame
    if hasattr(frame, "to_arrow"):  # polars
        return frame.to_arrow()
    return pa.Table.from_pandas(frame, preserve_index=False).replace_schema_metadata(None)
