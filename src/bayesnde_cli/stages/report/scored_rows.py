"""The scored rows that a report shows: a sample for the plots, and the ten of lowest density."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from bayesnde_cli.artifacts.layout import TEST_SET, RunLayout
from bayesnde_cli.artifacts.tables import iter_batches
from bayesnde_cli.data.kinds import Kind
from bayesnde_cli.data.schema import Schema
from bayesnde_cli.report.numerals import nats
from bayesnde_cli.report.report_data import ScoredRows, TextTable
from bayesnde_cli.rng import bits_at
from bayesnde_cli.stages.prepare.writing import ROWS_SCHEMA, ROWS_SCHEMA_VERSION
from bayesnde_cli.stages.report.cells import file_cells
from bayesnde_cli.stages.reporting import counted
from bayesnde_cli.stages.scoring.density_table import DENSITY_SCHEMA, DENSITY_VERSION
from bayesnde_cli.stages.scoring.rows import STAGED_SCHEMA, STAGED_SCHEMA_VERSION

# Tables by their schema, and the newest version of it that is known here.
_Kind = tuple[str, int]
_DENSITY: _Kind = (DENSITY_SCHEMA, DENSITY_VERSION)
# Rows in the plots.
_MOST_ROWS = 5000
_N_LOWEST = 10
# Columns of the table of lowest rows, beside ours.
_MOST_COLUMNS = 40
_FIGURES = ("log_density", "mc_se", "rhat_max", "ess_min", "verdict", "n_observed")


class Scored(NamedTuple):
    """Rows with their figures, and as the model sees them."""

    rows: ScoredRows
    x_scaled: np.ndarray  # (rows, p) float32, NaN where a cell is missing


def read_scored(layout: RunLayout, set_name: str, schema: Schema) -> Scored:
    """The rows of a scored set; of a large one those that their own random numbers choose, in the order of the file."""
    row_ids = _column(layout.density_file(set_name), "row_id")
    chosen = np.sort(np.argsort(bits_at(0, row_ids), kind="stable")[:_MOST_ROWS])
    labels = [name for name in (schema.roles.truth, schema.roles.outlier_label) if name]
    path = layout.density_file(set_name)
    present = [name for name in labels if name in _names(path)]
    table = _take(path, _DENSITY, [*_FIGURES, *present], chosen)
    figures = {name: table[name].to_numpy() for name in table.column_names}
    is_outlier = figures.get(schema.roles.outlier_label or "")
    rows = ScoredRows(
        log_density=np.where(figures["n_observed"] == len(schema.features), figures["log_density"], np.nan),
        mc_se=figures["mc_se"],
        rhat=figures["rhat_max"],
        ess=figures["ess_min"],
        verdict=figures["verdict"],
        truth=figures.get(schema.roles.truth or ""),
        is_outlier=None if is_outlier is None else is_outlier == 1,
    )
    return Scored(rows, model_rows(layout, set_name, schema, chosen))


def lowest_rows(layout: RunLayout, set_name: str, schema: Schema) -> TextTable:
    """The whole rows of lowest density, lowest first, with their own columns as they were read."""
    path = layout.density_file(set_name)
    is_whole = _column(path, "n_observed") == len(schema.features)
    log_density = np.where(is_whole, _column(path, "log_density"), np.nan)
    order = np.argsort(log_density, kind="stable")  # NaN last
    order = order[~np.isnan(log_density[order])][:_N_LOWEST]
    position = np.sort(order)
    back = np.argsort(np.argsort(order, kind="stable"), kind="stable")  # from the order of the file to that of density
    labels = [name for name in schema.roles.labels if name in _names(path)]
    found = _take(path, _DENSITY, ["row_id", "log_density", "mc_se", "verdict", *labels], position).take(back)
    names = [] if schema.image else [feature.name for feature in schema.features][:_MOST_COLUMNS]
    cells = _user_cells(layout, set_name, schema, position)[back][:, : len(names)] if names else [()] * len(order)
    rows = [
        (str(row["row_id"] + 1), nats(row["log_density"]), nats(row["mc_se"]), str(row["verdict"]),
         *(_cell(row[name]) for name in labels), *(_cell(cell) for cell in own))
        for row, own in zip(found.to_pylist(), cells, strict=True)
    ]  # fmt: skip
    n_left = len(schema.features) - len(names)
    notes = [f"The first {len(names)} of {len(schema.features)} features."] if names and n_left else []
    notes += [f"Images of {schema.image}: `bayesnde outliers` has their pixels."] if schema.image else []
    if n_gaps := int((~is_whole).sum()):
        notes.append(f"Left out for missing cells, as their density is another quantity: {counted(n_gaps, 'row')}.")
    return TextTable(("row", "log-density", "± se", "verdict", *labels, *names), tuple(rows), " ".join(notes))


def _user_cells(layout: RunLayout, set_name: str, schema: Schema, position: np.ndarray) -> np.ndarray:
    """The features of rows as the file has them, (rows, p) of any type: as stored, or else brought back by the maps."""
    if set_name == TEST_SET:
        names = [feature.name for feature in schema.features]
        table = _take(*_rows_place(layout, set_name), names, position)
        return np.array([table[name].to_pylist() for name in names], object).T.reshape(len(position), len(names))
    values = file_cells(schema, model_rows(layout, set_name, schema, position)).astype(object)
    for index, feature in enumerate(schema.features):
        if feature.kind is not Kind.CONTINUOUS:
            values[:, index] = [_discrete(value, feature.categories) for value in values[:, index]]
    return values


def _discrete(value: float, categories: Sequence[str]) -> Any:
    if np.isnan(value):
        return None
    return categories[int(value)] if categories else int(value)


def model_rows(layout: RunLayout, set_name: str, schema: Schema, position: np.ndarray) -> np.ndarray:
    table = _take(*_rows_place(layout, set_name), ["x_scaled"], position)
    flat = table["x_scaled"].combine_chunks().flatten().to_numpy(zero_copy_only=False)
    return flat.reshape(len(position), len(schema.features))


def _rows_place(layout: RunLayout, set_name: str) -> tuple[Path, _Kind]:
    """The table of a set's rows, and of what kind it is. Its rows are in the order of the density table."""
    if set_name == TEST_SET:
        return layout.split_file(TEST_SET), (ROWS_SCHEMA, ROWS_SCHEMA_VERSION)
    return layout.rows_file("density", set_name), (STAGED_SCHEMA, STAGED_SCHEMA_VERSION)


def _column(path: Path, name: str) -> np.ndarray:
    return np.concatenate([batch.column(0).to_numpy() for batch in _batches(path, _DENSITY, [name])])


def _names(path: Path) -> list[str]:
    return list(next(_batches(path, _DENSITY)).schema.names)


def _batches(path: Path, kind: _Kind, columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
    schema_name, version = kind
    return iter_batches(path, schema_name, columns, schema_version=version)


def _take(path: Path, kind: _Kind, columns: Sequence[str], position: np.ndarray) -> pa.Table:
    """The rows at ascending positions; one batch is in memory at a time."""
    taken, first = [], 0
    for batch in _batches(path, kind, columns):
        here = position[(position >= first) & (position < first + batch.num_rows)] - first
        taken.append(batch.take(pa.array(here)))
        first += batch.num_rows
    return pa.Table.from_batches(taken).combine_chunks()


def _cell(value: Any) -> str:
    if value is None or value != value:
        return "–"
    return f"{value:.5g}" if isinstance(value, float) else str(value)
