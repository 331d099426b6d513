"""An arm of ours on images: the fitted model tells the classes of test images apart.

A density by the bridge of every image would take hours without a GPU, and the class of most images is plain after a
first look: rows are classified as by `classify`, and what is known of them under each class is kept block by block.
"""

import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from bayesnde_cli.artifacts import manifest as manifests
from bayesnde_cli.artifacts.arrays import read_arrays, write_arrays
from bayesnde_cli.artifacts.atomic import cannot_write
from bayesnde_cli.artifacts.experiments_layout import ArmLayout
from bayesnde_cli.artifacts.fingerprint import sha256_json
from bayesnde_cli.artifacts.layout import TEST_SET
from bayesnde_cli.evaluation.classes import accuracy_figures
from bayesnde_cli.evaluation.figures import mean_figures
from bayesnde_cli.evaluation.scores import bits_figures
from bayesnde_cli.inference.block import Rows
from bayesnde_cli.model.backend import load_tensorflow
from bayesnde_cli.rng import derive_seed
from bayesnde_cli.stages.applying.fitted_run import fitted_run
from bayesnde_cli.stages.fit import FitSettings
from bayesnde_cli.stages.reporting import Report
from bayesnde_cli.stages.reproduce.own_arm import FITTING, Outcome, fit_model, seconds_of
from bayesnde_cli.stages.scoring import open_engine
from bayesnde_cli.stages.scoring.by_class import score_classes
from bayesnde_cli.stages.scoring.engine import LazyOpened

# Images that are classified, and kept, together.
BLOCK_ROWS = 32
# Blocks of another way of looking are made again.
_LOOK = 2
_SPLITS = ("train", "validation", TEST_SET)


def run_images(arm: ArmLayout, files: Sequence[Path], settings: FitSettings, report: Report) -> Outcome:
    """Fit the model and classify the test images, all classes alike beforehand; what is done is not done again."""
    run = arm.run
    fit_model(run, files, settings, report)
    stages = {stage: manifests.read(run.manifest_file(stage)) for stage in FITTING}
    fitted = fitted_run(run, settings.density)
    load_tensorflow(device=fitted.config.device, threads=fitted.config.threads)  # quietly, before others import it
    from bayesnde_cli.stages.training.rows import read_rows

    rows = read_rows(run, TEST_SET)
    assert rows.y is not None
    n_classes = len(fitted.classes)
    prior = np.full(n_classes, 1.0 / n_classes)
    model = stages["refine"].outputs["weights/model.npz"]
    identity = sha256_json({"model": model, "config": fitted.config.identity(), "look": _LOOK})
    opened = LazyOpened(run, fitted.config, open_engine)
    with cannot_write(arm.classes_dir):
        arm.classes_dir.mkdir(parents=True, exist_ok=True)
    blocks, seconds = [], 0.0
    with report.progress("classifying", len(rows.x), "images") as advance:
        for block, start in enumerate(range(0, len(rows.x), BLOCK_ROWS)):
            path, x = arm.classes_file(block), rows.x[start : start + BLOCK_ROWS]
            if path.exists() and (found := read_arrays(path))[1].get("identity") == identity:
                arrays, facts = found
            else:
                began = time.perf_counter()
                seed = derive_seed(fitted.seed, "reproduce", "classes", block)
                own = Rows(x, None, None)
                known = rows.y[start : start + BLOCK_ROWS].argmax(axis=1)
                scored = score_classes(opened.opened, own, prior, seed, block_rows=fitted.block_rows, known=known)
                arrays = dict(zip(scored._fields, scored, strict=True))
                facts = {"identity": identity, "seconds": time.perf_counter() - began}
                write_arrays(path, arrays, facts)
            blocks.append(arrays)
            seconds += facts["seconds"]
            advance(len(x))
    log_density, mc_se, n_gradients = (
        np.concatenate([arrays[name] for arrays in blocks]) for name in ("log_density", "mc_se", "n_gradients")
    )
    classes = rows.y.argmax(axis=1)
    of_own = log_density[np.arange(len(classes)), classes] + rows.log_jacobian
    mean, se = mean_figures(of_own[np.isfinite(of_own)])
    density = {"mean_log_density": mean, "mean_log_density_se": se}
    accuracy = accuracy_figures(log_density, mc_se, classes, fitted.classes)
    return Outcome(
        figures={
            "n": len(classes),
            "n_not_finite": int((~np.isfinite(of_own)).sum()),
            "accuracy": accuracy["accuracy"],
            "accuracy_se": accuracy["accuracy_se"],
            **density,
            **bits_figures(density, rows.x.shape[1]),
            "n_gradients": float(n_gradients.mean()),
        },
        chosen={stage: stages[stage].result["chosen"] for stage in ("warmstart", "refine")},
        rows_sha256=sha256_json([stages["prepare"].outputs[f"{name}.parquet"]["sha256"] for name in _SPLITS]),
        seconds_fit=sum(seconds_of(stages[stage]) for stage in FITTING),
        seconds_score=seconds,
        device=stages["refine"].device,
    )
