"""An arm of ours: the stages of a run directory, and the figures of its test rows."""

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np

from bayesnde_cli.artifacts import manifest as manifests
from bayesnde_cli.artifacts.atomic import cannot_write, sweep, temporary_beside
from bayesnde_cli.artifacts.discard import discard
from bayesnde_cli.artifacts.experiments_layout import ArmLayout
from bayesnde_cli.artifacts.layout import TEST_SET, RunLayout
from bayesnde_cli.artifacts.tables import read_table
from bayesnde_cli.evaluation.figures import Figures, figure, mean_figures
from bayesnde_cli.evaluation.outliers import outlier_figures, outlier_score
from bayesnde_cli.evaluation.truth import truth_figures
from bayesnde_cli.stages.evaluate import run_evaluate
from bayesnde_cli.stages.fit import FitSettings
from bayesnde_cli.stages.reading import read_schema
from bayesnde_cli.stages.reporting import Report
from bayesnde_cli.stages.reproduce.rows import prepare_rows, read_tables, rows_sha256
from bayesnde_cli.stages.scoring import Asked, open_engine, run_density
from bayesnde_cli.stages.scoring.density_table import DENSITY_SCHEMA, DENSITY_VERSION
from bayesnde_cli.stages.training import run_refine, run_warmstart

FITTING = ("prepare", "warmstart", "refine")


@dataclass(frozen=True)
class Outcome:
    """What a method makes of the test rows."""

    figures: Figures
    chosen: Figures
    rows_sha256: str
    seconds_fit: float
    seconds_score: float
    device: str


def run_own(
    arm: ArmLayout, files: Sequence[Path], settings: FitSettings, report: Report, *, base: ArmLayout | None = None
) -> Outcome:
    """Run the stages that are not done; with a `base`, on a copy of its fitted model."""
    run = arm.run
    if base is not None:
        _copy_model(base.run, run)
    else:
        fit_model(run, files, settings, report)
    report.note(str(run_density(run, Asked(), settings.density, report, factory=open_engine)))
    metrics = run_evaluate(run, Asked(), settings.evaluate, report).metrics
    schema = read_schema(run)
    tables = read_tables(run, schema)
    rows = tables.evaluated
    stages = {stage: manifests.read(run.manifest_file(stage)) for stage in FITTING}
    scored = manifests.read(run.manifest_file("density", TEST_SET))
    return Outcome(
        figures=own_figures(run, metrics, rows.truth, rows.is_outlier, None if base is None else base.run),
        chosen={
            "latent_dim": stages["warmstart"].config["latent_dim"] or "by the number of columns",
            "scale": stages["prepare"].config["scale"],
            **{stage: stages[stage].result["chosen"] for stage in ("warmstart", "refine")},
        },
        rows_sha256=rows_sha256(schema, tables),
        seconds_fit=sum(seconds_of(stages[stage]) for stage in FITTING),
        seconds_score=seconds_of(scored),
        device=scored.device if "none" not in scored.device else stages["refine"].device,
    )


def fit_model(run: RunLayout, files: Sequence[Path], settings: FitSettings, report: Report) -> None:
    """The stages up to `refine`, those that are not done."""
    prepare_rows(run, files, settings.prepare, report)
    report.note(str(run_warmstart(run, settings.warmstart, report, is_restart=False, is_verbose=False)))
    report.note(str(run_refine(run, settings.refine, report, is_restart=False, is_verbose=False)))


def forget_arm(arm: ArmLayout) -> None:
    """Remove what an arm has made. Its result goes first: what is left of a half removed arm is no answer."""
    with cannot_write(arm.root):
        for file in (arm.result_file, arm.map_file, arm.scores_file, *arm.classes_dir.glob("*"), *arm.fit_files()):
            file.unlink(missing_ok=True)
    for stage in ("evaluate", "density", "posterior"):
        discard(arm.run, stage, TEST_SET)
    for stage in reversed(FITTING):
        discard(arm.run, stage)


def own_figures(
    run: RunLayout, metrics: dict[str, Any], truth: np.ndarray | None, is_outlier: np.ndarray | None,
    base: RunLayout | None = None,
) -> Figures:  # fmt: skip
    """The figures of the test rows; `importance` has those of importance sampling from the same proposals.

    With a `base` of the same model, also how far both are from its log-densities: `error`, root mean square.
    """
    bridge, importance, mc_se = _scores(run)
    figures = {
        **density_figures(bridge, truth, is_outlier),
        "mean_mc_se": mean_figures(mc_se[np.isfinite(mc_se)])[0],
        "n_reliable": metrics["rows"]["n_reliable"],
        "importance": density_figures(importance, truth, is_outlier),
    }
    if base is not None:
        known = _scores(base)[0]
        figures["error"] = _distance(bridge, known)
        figures["importance"]["error"] = _distance(importance, known)
    return figures


def _distance(log_density: np.ndarray, known: np.ndarray) -> float | None:
    """The root mean square of the differences, of rows where both are finite."""
    difference = (log_density - known)[np.isfinite(log_density) & np.isfinite(known)]
    return figure(float(np.sqrt(np.mean(difference**2)))) if len(difference) else None


def _scores(run: RunLayout) -> list[np.ndarray]:
    """Log-densities by the bridge and by importance sampling, and the error of the first."""
    names = ["log_density", "log_density_is", "mc_se"]
    table = read_table(run.density_file(TEST_SET), DENSITY_SCHEMA, names, schema_version=DENSITY_VERSION)
    return [table[name].to_numpy() for name in names]


def density_figures(log_density: np.ndarray, truth: np.ndarray | None, is_outlier: np.ndarray | None) -> Figures:
    """Mean log-density, agreement with the truth, and how well low densities find outliers."""
    finite = np.isfinite(log_density)
    mean, se = mean_figures(log_density[finite])
    figures: Figures = {"n": len(log_density), "n_not_finite": int((~finite).sum())}
    figures |= {"mean_log_density": mean, "mean_log_density_se": se}
    if truth is not None:
        agreement = truth_figures(log_density, truth)
        figures |= {name: agreement[name] for name in ("spearman", "rmse", "mean_difference")}
    if is_outlier is not None:
        found = outlier_figures(outlier_score(log_density), is_outlier)
        figures |= {name: found[name] for name in ("precision_at_k", "auroc", "n_outliers")}
    return figures


def _copy_model(base: RunLayout, run: RunLayout) -> None:
    """The fitted model of another arm, stage by stage; a copy of the same one is kept."""
    sweep(run.root)
    for stage in FITTING:
        copied, original = run.manifest_file(stage), base.manifest_file(stage)
        if copied.exists() and copied.read_bytes() == original.read_bytes():
            continue
        discard(run, stage)  # of another model, or half a copy
        folder = run.stage_dir(stage)
        with cannot_write(folder):
            folder.parent.mkdir(parents=True, exist_ok=True)
            draft = temporary_beside(folder)
            shutil.copytree(base.stage_dir(stage), draft)
            draft.rename(folder)


def seconds_of(manifest: manifests.Manifest) -> float:
    """How long a stage took, by the clock; of one that was interrupted, its last part."""
    return (datetime.fromisoformat(manifest.ended) - datetime.fromisoformat(manifest.started)).total_seconds()
