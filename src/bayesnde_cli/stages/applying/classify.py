"""`classify`: p(y | x) of every class for every row, by Bayes' rule from the densities p(x | y).

    p(y | x) = prior(y) p(x | y) / sum over y' of prior(y') p(x | y')

Missing cells are no obstacle: x is then the cells that are there.
"""

import contextlib
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bayesnde_cli.artifacts.layout import TEST_SET
from bayesnde_cli.artifacts.tables import Stamp
from bayesnde_cli.data.readers import open_sources
from bayesnde_cli.data.schema import Schema
from bayesnde_cli.errors import BadUsage, one_line
from bayesnde_cli.rng import derive_seed
from bayesnde_cli.stages.applying.fitted_run import FittedRun
from bayesnde_cli.stages.applying.rows_at import beside
from bayesnde_cli.stages.reporting import Report, counted
from bayesnde_cli.stages.scoring import rows as scoring_rows
from bayesnde_cli.stages.scoring.by_class import Effort, rows_at_once, score_classes
from bayesnde_cli.stages.scoring.engine import Opened
from bayesnde_cli.stages.scoring.job import Job
from bayesnde_cli.stages.scoring.rows import BlockRows, SetRows

# A verdict on a class of a smaller probability is no verdict on the row.
_NEGLIGIBLE = 1e-3


def require_classes(run: FittedRun) -> None:
    """Refuse a run without a condition."""
    if not run.classes:
        raise BadUsage(
            "classify needs a model of p(x | y)",
            found="the run was prepared without a condition",
            hint="begin a run with `bayesnde prepare DATA --condition COL`",
        )


@contextlib.contextmanager
def rows_to_classify(job: Job, schema: Schema, report: Report) -> Iterator[SetRows]:
    """The rows of a job; those of the user's file are put down in a temporary one. They need no class."""
    if job.set_name == TEST_SET:
        yield scoring_rows.open_rows(job, report)
        return
    stamp = Stamp(scoring_rows.STAGED_SCHEMA, scoring_rows.STAGED_SCHEMA_VERSION, job.run_id)
    with tempfile.TemporaryDirectory(prefix="bayesnde-") as folder:
        wanted = _with_known_classes(job, schema, report)
        yield scoring_rows.stage_rows(job, Path(folder) / "rows.parquet", stamp, wanted, report)


def _with_known_classes(job: Job, schema: Schema, report: Report) -> Schema:
    """The schema, without its condition if the file has none, or not the class of every row."""
    name, table = schema.roles.condition, open_sources(job.sources, job.text)
    assert name is not None
    if name in table.names:
        known = pa.array(schema.classes, pa.string())
        if all(pc.all(pc.is_in(batch.column(0), known)).as_py() for batch in table.batches([name], as_text=[name])):
            return schema
        report.note(f"column '{name}' does not hold a class of the model in every row, and is not used")
    return replace(schema, roles=replace(schema.roles, condition=None))


@dataclass(frozen=True)
class Classifier:
    """Classifies blocks of rows; `prior` (classes,) is the probability of each class before a row is seen."""

    run: FittedRun
    opened: Opened
    prior: np.ndarray
    effort: Effort = Effort.USUAL

    def batches(self, rows: SetRows) -> Iterator[pa.RecordBatch]:
        """Probabilities, the most probable class with its density, and the labels of each row."""
        size = rows_at_once(self.run.block_rows)
        for block, start in enumerate(range(0, rows.n_rows, size)):
            yield self._batch(rows.block(start, min(start + size, rows.n_rows)), block)

    def columns(self, rows: SetRows) -> pa.Schema:
        """The columns of the batches."""
        own = pa.schema(
            [
                ("row_id", pa.int64()),
                ("predicted", self.run.class_type),
                *((f"p_{name}", pa.float64()) for name in self.run.classes),
                ("log_density", pa.float64()),
                ("mc_se", pa.float64()),
                ("reliable", pa.bool_()),
                ("n_gradients", pa.int64()),
            ]
        )
        labels = pa.schema(rows.label_fields).empty_table()
        return beside(own.empty_table(), labels).schema

    def truth_column(self, rows: SetRows) -> str | None:
        """The column of the batches with the class that a row came with; None if it came with none."""
        labels = [field.name for field in rows.label_fields]
        condition = self.run.schema.roles.condition
        return self.columns(rows).names[labels.index(condition) - len(labels)] if condition in labels else None

    def _batch(self, rows: BlockRows, block: int) -> pa.RecordBatch:
        n_rows, seed = len(rows.row_ids), derive_seed(self.run.seed, "classify", block)
        found = score_classes(
            self.opened, rows.padded(n_rows), self.prior, seed, block_rows=self.run.block_rows, effort=self.effort
        )
        p = probabilities(found.log_density, self.prior)
        best = np.argmax(p, axis=1)
        at_best = np.arange(n_rows), best
        is_known, nobody = ~np.isnan(p).any(axis=1), pa.scalar(None, self.run.class_type)
        own = {
            "row_id": pa.array(rows.row_ids),
            "predicted": pc.if_else(pa.array(is_known), self.run.class_cells(best), nobody),
            **{f"p_{name}": pa.array(column) for name, column in zip(self.run.classes, p.T, strict=True)},
            "log_density": pa.array(found.log_density[at_best] + rows.log_jacobian),
            "mc_se": pa.array(found.mc_se[at_best]),
            "reliable": pa.array(is_known & (found.reliable | (p < _NEGLIGIBLE)).all(axis=1)),
            "n_gradients": pa.array(found.n_gradients),
        }
        return beside(pa.table(own), rows.labels).combine_chunks().to_batches()[0]


def probabilities(log_density: np.ndarray, prior: np.ndarray) -> np.ndarray:
    """p(y | x), (rows, classes), from log p(x | y) and the prior (classes,); NaN where a density is not known."""
    with np.errstate(divide="ignore", invalid="ignore"):
        log_joint = np.where(prior > 0, log_density + np.log(prior), -np.inf)
        weight = np.exp(log_joint - log_joint.max(axis=1, keepdims=True))
        return np.asarray(weight / weight.sum(axis=1, keepdims=True))


@dataclass(frozen=True)
class Classified:
    """What `classify` found; the accuracy is that of rows that came with their class."""

    set_name: str
    n_rows: int
    n_reliable: int
    classes: dict[str, int]  # rows by predicted class
    accuracy: float | None
    n_gradients: float  # of a row, on average

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    def __str__(self) -> str:
        shares = one_line(", ".join(f"{name} {n:,}" for name, n in self.classes.items()))
        accuracy = "" if self.accuracy is None else f", {100 * self.accuracy:.1f} % right"
        rows = f"{counted(self.n_rows, 'row')} ({shares}){accuracy}, {self.n_reliable:,} reliable"
        return f"{self.set_name}: {rows}, {self.n_gradients:,.0f} gradients a row"


class ClassCounts:
    """Counts batches on their way to the user."""

    def __init__(self, classes: Sequence[str], truth_column: str | None) -> None:
        self._classes, self._truth_column = classes, truth_column
        self._n_rows = self._n_reliable = self._n_right = self._n_gradients = 0
        self._predicted: Counter[str] = Counter()

    def add(self, batch: pa.RecordBatch) -> None:
        self._n_rows += batch.num_rows
        self._n_reliable += pc.sum(batch.column("reliable")).as_py()
        self._n_gradients += pc.sum(batch.column("n_gradients")).as_py()
        self._predicted.update(str(name) for name in batch.column("predicted").to_pylist() if name is not None)
        if self._truth_column is not None:
            is_right = pc.equal(batch.column("predicted"), batch.column(self._truth_column))
            self._n_right += pc.sum(is_right).as_py() or 0

    def result(self, set_name: str) -> Classified:
        counts = {name: self._predicted[name] for name in self._classes}
        accuracy = None if self._truth_column is None else self._n_right / self._n_rows
        n_gradients = self._n_gradients / max(1, self._n_rows)
        return Classified(set_name, self._n_rows, self._n_reliable, counts, accuracy, n_gradients)
