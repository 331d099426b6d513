"""`classify`: p(y | x) of every class for every row, by Bayes' rule from the densities p(x | y).

    p(y | x) = prior(y) p(x | y) / sum over y' of prior(y') p(x | y')

Of rows with missing cells, x is the observed cells.
"""

import contextlib
import math
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bayesnde_cli.answers import FittedRun, join_columns
from bayesnde_cli.errors import BadUsage, one_line
from bayesnde_cli.formatting import Report, counted
from bayesnde_cli.rng import derive_seed
from bayesnde_cli.rows import Rows
from bayesnde_cli.runs.layout import TEST_SET
from bayesnde_cli.runs.parquet_files import Stamp
from bayesnde_cli.stages import scoring_job
from bayesnde_cli.stages.loading import Effort, Opened, rows_at_once, score_classes
from bayesnde_cli.stages.scoring_job import Job, SetRows
from bayesnde_cli.tables.columns import listed
from bayesnde_cli.tables.schema import Schema
from bayesnde_cli.tables.sources import open_sources

# The verdict on a class of smaller probability does not matter for the row.
_NEGLIGIBLE = 1e-3
_PRIOR_HINT = "give training, uniform, or a weight for every class: NAME=VALUE,NAME=VALUE,…"


def class_prior(run: FittedRun, text: str) -> np.ndarray:
    """The prior of each class, (classes,), from `--prior`: training, uniform, or a weight for each class."""
    if not run.classes:
        raise BadUsage(
            "classify needs a model of p(x | y)",
            found="the run was prepared without a condition",
            hint="begin a run with `bayesnde prepare DATA --condition COL`",
        )
    if text == "training":
        return run.class_shares
    if text == "uniform":
        return np.full(len(run.classes), 1.0 / len(run.classes))
    weights: dict[str, float] = {}
    for part in text.split(","):
        name, sign, number = (piece.strip() for piece in part.rpartition("="))
        if not sign:
            raise BadUsage(f"--prior cannot be '{text}'", found=f"'{part}' is not NAME=VALUE", hint=_PRIOR_HINT)
        run.class_index(name, "--prior")
        if name in weights:
            raise BadUsage(f"--prior names class '{name}' twice", found=f"--prior {text}", hint="name it once")
        with contextlib.suppress(ValueError):
            weights[name] = float(number)
        if not 0 <= weights.get(name, math.nan) < math.inf:
            what = f"--prior: '{number}' is not a weight of class '{name}'"
            raise BadUsage(what, found="a weight is a number, 0 or more", hint=_PRIOR_HINT)
    missing = [name for name in run.classes if name not in weights]
    if missing:
        raise BadUsage(
            f"--prior names {len(weights)} of {len(run.classes)} classes",
            found=f"missing: {listed(missing)}",
            hint="give every class a weight; 0 rules a class out",
        )
    total = math.fsum(weights.values())
    if not total > 0:
        raise BadUsage("--prior rules every class out", found=f"--prior {text}", hint="give one class a weight")
    return np.array([weights[name] for name in run.classes]) / total


@contextlib.contextmanager
def rows_to_classify(job: Job, schema: Schema, report: Report) -> Iterator[SetRows]:
    """The rows of a job, which need no class; those of a user's file are stored in a temporary file."""
    if job.set_name == TEST_SET:
        yield scoring_job.open_rows(job, report)
        return
    name, table = schema.condition, open_sources(job.sources, job.text)
    assert name is not None
    has_classes = name in table.names
    if has_classes:
        known = pa.array(schema.classes, pa.string())
        batches = table.batches([name], as_text=[name])
        has_classes = all(pc.all(pc.is_in(batch.column(0), known)).as_py() for batch in batches)
        if not has_classes:
            report.note(f"column '{name}' is ignored: some rows have no class of the model")
    if not has_classes:
        schema = replace(schema, condition=None)
    stamp = Stamp(scoring_job.STORED_ROWS, job.run_id)
    with tempfile.TemporaryDirectory(prefix="bayesnde-") as folder:
        yield scoring_job.store_rows(job, Path(folder) / "rows.parquet", stamp, schema, report)


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
            yield self._classify(rows.block(start, min(start + size, rows.n_rows)), block)

    def columns(self, rows: SetRows) -> pa.Schema:
        """The columns of the batches."""
        own = [
            ("row_id", pa.int64()),
            ("predicted", self.run.class_type),
            *((f"p_{name}", pa.float64()) for name in self.run.classes),
            ("log_density", pa.float64()),
            ("mc_se", pa.float64()),
            ("reliable", pa.bool_()),
            ("n_gradients", pa.int64()),
        ]
        return join_columns(pa.schema(own).empty_table(), pa.schema(rows.label_fields).empty_table()).schema

    def truth_column(self, rows: SetRows) -> str | None:
        """The column of the batches with the class in the user's file; None if it has none."""
        labels = [label.name for label in rows.label_fields]
        condition = self.run.schema.condition
        return self.columns(rows).names[labels.index(condition) - len(labels)] if condition in labels else None

    def _classify(self, rows: Rows, block: int) -> pa.RecordBatch:
        seed = derive_seed(self.run.seed, "classify", block)
        found = score_classes(self.opened, rows, self.prior, seed, block_rows=self.run.block_rows, effort=self.effort)
        p = probabilities(found.log_density, self.prior)
        best = np.argmax(p, axis=1)
        at_best = np.arange(len(rows)), best
        is_known = ~np.isnan(p).any(axis=1)
        no_class = pa.scalar(None, self.run.class_type)
        own = {
            "row_id": pa.array(rows.row_ids),
            "predicted": pc.if_else(pa.array(is_known), self.run.class_cells(best), no_class),
            **{f"p_{name}": pa.array(column) for name, column in zip(self.run.classes, p.T, strict=True)},
            "log_density": pa.array(found.log_density[at_best] + rows.log_jacobian),
            "mc_se": pa.array(found.mc_se[at_best]),
            "reliable": pa.array(is_known & (found.reliable | (p < _NEGLIGIBLE)).all(axis=1)),
            "n_gradients": pa.array(found.n_gradients),
        }
        return join_columns(pa.table(own), pa.table(rows.labels)).combine_chunks().to_batches()[0]


def probabilities(log_density: np.ndarray, prior: np.ndarray) -> np.ndarray:
    """p(y | x), (rows, classes), from log p(x | y) and the prior (classes,); NaN where a density is unknown."""
    with np.errstate(divide="ignore", invalid="ignore"):
        log_joint = np.where(prior > 0, log_density + np.log(prior), -np.inf)
        weight = np.exp(log_joint - log_joint.max(axis=1, keepdims=True))
        return np.asarray(weight / weight.sum(axis=1, keepdims=True))


@dataclass
class Classified:
    """Counts over the batches that were written; the accuracy is that of rows with a class in the user's file."""

    set_name: str
    classes: tuple[str, ...]
    truth_column: str | None
    n_rows: int = 0
    n_reliable: int = 0
    n_right: int = 0
    n_gradients: int = 0
    predicted: Counter[str] = field(default_factory=Counter)

    def add(self, batch: pa.RecordBatch) -> None:
        self.n_rows += batch.num_rows
        self.n_reliable += pc.sum(batch.column("reliable")).as_py()
        self.n_gradients += pc.sum(batch.column("n_gradients")).as_py()
        self.predicted.update(str(name) for name in batch.column("predicted").to_pylist() if name is not None)
        if self.truth_column is not None:
            is_right = pc.equal(batch.column("predicted"), batch.column(self.truth_column))
            self.n_right += pc.sum(is_right).as_py() or 0

    def as_dict(self) -> dict[str, Any]:
        return {
            "set_name": self.set_name,
            "n_rows": self.n_rows,
            "n_reliable": self.n_reliable,
            "classes": {name: self.predicted[name] for name in self.classes},
            "accuracy": None if self.truth_column is None else self.n_right / self.n_rows,
            "n_gradients": self.n_gradients / max(1, self.n_rows),
        }

    def __str__(self) -> str:
        found = self.as_dict()
        counts = one_line(", ".join(f"{name} {n:,}" for name, n in found["classes"].items()))
        accuracy = "" if found["accuracy"] is None else f", {100 * found['accuracy']:.1f} % right"
        rows = f"{counted(self.n_rows, 'row')} ({counts}){accuracy}, {self.n_reliable:,} reliable"
        return f"{self.set_name}: {rows}, {found['n_gradients']:,.0f} gradients a row"
