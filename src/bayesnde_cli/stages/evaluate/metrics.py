"""All figures of `evaluate` in one document, `metrics.json`.

A section that these rows do not have is None, and `reasons` says why.
"""

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from bayesnde_cli.data.schema import Schema
from bayesnde_cli.evaluation.figures import Figures
from bayesnde_cli.evaluation.outliers import outlier_figures, outlier_score
from bayesnde_cli.evaluation.scores import bits_figures, log_density_figures
from bayesnde_cli.evaluation.truth import truth_figures
from bayesnde_cli.inference.verdicts import ERROR_ABOVE_TARGET, VERDICTS
from bayesnde_cli.rng import derive_seed
from bayesnde_cli.stages.evaluate.accuracy import class_accuracy
from bayesnde_cli.stages.evaluate.comparing import (
    Tables,
    competitor_figures,
    plain_figures,
    why_no_baselines,
    why_no_mixtures,
)
from bayesnde_cli.stages.evaluate.job import EvaluateJob
from bayesnde_cli.stages.evaluate.model import Model
from bayesnde_cli.stages.evaluate.rows import Scores, TableRows, read_scores, set_rows, split_rows
from bayesnde_cli.stages.reading import read_schema
from bayesnde_cli.stages.reporting import Report
from bayesnde_cli.stages.scoring.engine import EngineFactory

METRICS_SCHEMA, METRICS_VERSION = "metrics", 1
_ALL_GAPS = "every row has missing cells"
_BLURRED = "the model is blurred: its density is not that of the rows"
# An error with which a log-density says little, in nats.
_VERY_WIDE = 1.0


def make_metrics(job: EvaluateJob, model: Model, factory: EngineFactory, report: Report) -> dict[str, Any]:
    """The document."""
    schema = read_schema(job.layout)
    found = _Evaluation(job, schema, set_rows(job.scoring, schema), read_scores(job.scoring), report)
    return {
        "schema": METRICS_SCHEMA,
        "schema_version": METRICS_VERSION,
        "run_id": job.scoring.run_id,
        "blur": job.density.blur,
        "rows": found.counts(),
        **found.mean_of_all(),
        **found.bits_per_dimension(),
        "classes": found.by_class(),
        "truth": found.truth(),
        "outliers": found.outliers(),
        **found.accuracy(factory),
        **found.own_rows(model),
        "baselines": found.baselines(),
        "reasons": found.reasons,
    }


@dataclass(frozen=True)
class _Evaluation:
    """The rows of a data set with their densities, and what there is to say of them."""

    job: EvaluateJob
    schema: Schema
    rows: TableRows
    scores: Scores
    report: Report
    reasons: dict[str, str] = field(default_factory=dict)  # why a section is not there

    def __post_init__(self) -> None:
        if not np.array_equal(self.rows.row_ids, self.scores.row_id):
            raise AssertionError(f"{self.job.set_name}: rows and densities do not belong together")

    def counts(self) -> Figures:
        scores = self.scores
        is_wide = (scores.verdict == ERROR_ABOVE_TARGET) & (scores.mc_se > _VERY_WIDE)
        return {
            "set": self.job.set_name,
            "n": len(scores.row_id),
            "n_reliable": int(scores.reliable.sum()),
            "n_not_finite": int((~np.isfinite(scores.log_density)).sum()),
            "n_incomplete": int((~self.rows.is_complete).sum()),
            "n_in_mean": int(self.in_mean.sum()),
            "n_above_1_nat": int(is_wide.sum()),
            "verdicts": {**dict.fromkeys(VERDICTS, 0), **Counter(scores.verdict.tolist())},
            "sha256": self.rows.sha256(),
        }

    @property
    def in_mean(self) -> np.ndarray:
        """Rows of the mean: whole ones, as densities of other cells are other quantities, with a finite log-density."""
        return self.rows.is_complete & np.isfinite(self.scores.log_density)

    def mean(self, chosen: np.ndarray) -> Figures:
        """The mean log-density of some rows."""
        scores, chosen = self.scores, chosen & self.in_mean
        return log_density_figures(scores.log_density[chosen], scores.log_density_scaled[chosen], scores.mc_se[chosen])

    def mean_of_all(self) -> Figures:
        if not self.rows.is_complete.any():
            self.reasons["mean_log_density"] = _ALL_GAPS
        return self.mean(np.ones(len(self.scores.row_id), bool))

    def bits_per_dimension(self) -> Figures:
        image = self.schema.image
        if image is None or self.job.density.blur:
            self.reasons["bits_per_dimension"] = "the rows are no images" if image is None else _BLURRED
            return dict.fromkeys(("bits_per_dimension", "bits_per_dimension_se"))
        return bits_figures(self.mean(np.ones(len(self.scores.row_id), bool)), image.n_pixels)

    def by_class(self) -> Figures | None:
        classes = self.rows.classes
        if classes is None:
            self.reasons["classes"] = "the model has no condition"
            return None
        return {
            name: {"n": int((self.in_mean & (classes == index)).sum()), **self.mean(classes == index)}
            for index, name in enumerate(self.schema.classes)
        }

    def truth(self) -> Figures | None:
        if self.rows.truth is None or self.job.density.blur:
            self.reasons["truth"] = "the rows have no true log-density" if self.rows.truth is None else _BLURRED
            return None
        kept = self.rows.is_complete
        return truth_figures(self.scores.log_density[kept], self.rows.truth[kept])

    def outliers(self) -> Figures | None:
        if self.rows.is_outlier is None:
            self.reasons["outliers"] = "the rows have no outlier label"
            return None
        kept = self.rows.is_complete
        return outlier_figures(outlier_score(self.scores.log_density[kept]), self.rows.is_outlier[kept])

    def accuracy(self, factory: EngineFactory) -> Figures:
        if self.rows.classes is not None and self.job.config.accuracy_rows:
            return class_accuracy(self.job, self.rows, self.schema.classes, factory, self.report)
        self.reasons["accuracy"] = "the model has no condition" if self.rows.classes is None else "not asked for"
        return dict.fromkeys(("accuracy", "accuracy_se", "confusion_matrix"))

    def own_rows(self, model: Model) -> Figures:
        """Diagnostics that need all cells of a row: rows with missing ones are left out."""
        from bayesnde_cli.stages.evaluate.own_rows import generation_figures, own_density_figures
        from bayesnde_cli.stages.training.rows import Rows

        rows, kept, names = self.rows, self.rows.is_complete, self.schema.classes
        if not kept.any():
            sections = ("generation", "typicality")
            self.reasons.update(dict.fromkeys(sections, _ALL_GAPS))
            return dict.fromkeys(sections)
        y = None if rows.classes is None else np.eye(len(names), dtype=np.float32)[rows.classes[kept]]
        complete = Rows(rows.row_ids[kept], rows.x[kept], rows.log_jacobian[kept], y)
        return {
            "generation": generation_figures(model, complete, self.job.config, names),
            "typicality": own_density_figures(model, complete, self.job.config),
        }

    def baselines(self) -> Figures | None:
        job, schema, kept = self.job, self.schema, self.rows.is_complete
        reason = why_no_baselines(schema) if kept.any() else _ALL_GAPS
        names = list(dict.fromkeys(job.config.baseline))
        reason = reason if job.config.baselines or names else "not asked for"
        if reason:
            self.reasons["baselines"] = reason
            return None
        train, validation = (split_rows(job.layout, schema, split) for split in ("train", "validation"))
        seed = derive_seed(job.seed, "evaluate", "baselines")
        tables = Tables(train, validation, self.rows.of(kept))
        # A blurred density is not that of the rows: nothing is said of who is better.
        log_density = np.full(kept.sum(), np.nan) if job.density.blur else self.scores.log_density[kept]
        figures: Figures = {}
        if job.config.baselines:
            if reason := why_no_mixtures(schema):
                self.reasons["gaussian_mixture"] = reason
            figures |= plain_figures(schema, tables, log_density, seed=seed, report=self.report)
        if names:
            figures |= competitor_figures(schema, tables, log_density, names, seed=seed, report=self.report)
        return figures
