"""Which class makes each row likeliest: the engine's log p(x | y) for every y."""

from dataclasses import replace

import numpy as np

from bayesnde_cli.evaluation.classes import accuracy_figures
from bayesnde_cli.evaluation.figures import Figures
from bayesnde_cli.inference.block import Rows
from bayesnde_cli.rng import bits_at, derive_seed
from bayesnde_cli.stages.evaluate.job import EvaluateJob
from bayesnde_cli.stages.evaluate.rows import TableRows
from bayesnde_cli.stages.reporting import Report
from bayesnde_cli.stages.scoring.by_class import rows_at_once, score_classes
from bayesnde_cli.stages.scoring.engine import EngineFactory


def class_accuracy(
    job: EvaluateJob, rows: TableRows, class_names: tuple[str, ...], factory: EngineFactory, report: Report
) -> Figures:
    """Accuracy and confusion matrix of rows with classes, with the settings that the densities were made with.

    Of a large table some rows, chosen by their own random numbers.
    """
    # Classes are nats apart, and a row under a wrong class may never reach the target: there are no further tries.
    config = replace(job.density, escalations=0, device=job.config.device, threads=job.config.threads)
    seed = derive_seed(job.seed, "evaluate", "classes")
    some = np.sort(np.argsort(bits_at(seed, rows.row_ids), kind="stable")[: job.config.accuracy_rows])
    assert config.block_rows is not None
    cells, size = rows.x[some], rows_at_once(config.block_rows)
    opened = factory(job.layout, config)
    prior = np.full(len(class_names), 1.0 / len(class_names))
    found = []
    with report.progress("classes", len(cells), "rows") as advance:
        for index, start in enumerate(range(0, len(cells), size)):
            own, address = _rows(cells[start : start + size]), derive_seed(seed, index)
            found.append(score_classes(opened, own, prior, address, block_rows=config.block_rows))
            advance(len(own.x))
    log_density, mc_se = (np.concatenate([getattr(part, name) for part in found]) for name in ("log_density", "mc_se"))
    assert rows.classes is not None
    return accuracy_figures(log_density, mc_se, rows.classes[some], class_names)


def _rows(cells: np.ndarray) -> Rows:
    """Cells, NaN where missing, as the engine takes them."""
    observed = ~np.isnan(cells)
    return Rows(np.where(observed, cells, np.float32(0.0)), None if observed.all() else observed, None)
