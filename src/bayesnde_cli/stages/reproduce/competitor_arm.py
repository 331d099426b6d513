"""An arm of a competitor: the same rows train it, the same choose, and the same are scored."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa

from bayesnde_cli.artifacts.arrays import read_arrays, write_arrays
from bayesnde_cli.artifacts.atomic import cannot_write, sweep
from bayesnde_cli.artifacts.experiments_layout import ArmLayout, ExperimentsLayout
from bayesnde_cli.artifacts.tables import write_table
from bayesnde_cli.errors import BadArtifact, MissingArtifact
from bayesnde_cli.evaluation.baselines import competitor
from bayesnde_cli.stages.evaluate.comparing import METHODS, methods
from bayesnde_cli.stages.reporting import Report
from bayesnde_cli.stages.reproduce.experiments import Experiment
from bayesnde_cli.stages.reproduce.maps import simulator_of, write_competitor_map
from bayesnde_cli.stages.reproduce.own_arm import Outcome, density_figures
from bayesnde_cli.stages.reproduce.rows import competitors_tables, rows_sha256
from bayesnde_cli.stages.reproduce.scores import SCORES_SCHEMA, SCORES_VERSION


class _Fits:
    """The states of an arm's fits, in its folder: a `Keeper`."""

    def __init__(self, arm: ArmLayout) -> None:
        self._arm = arm

    def read(self, digest: str) -> dict[str, np.ndarray] | None:
        sweep(self._arm.root)
        try:
            arrays, facts = read_arrays(self._arm.fit_file(digest))
        except (MissingArtifact, BadArtifact):  # a damaged state is no more than lost time
            return None
        return arrays if facts.get("fit") == digest else None

    def write(self, digest: str, arrays: Mapping[str, np.ndarray]) -> None:
        with cannot_write(self._arm.root):
            self._arm.root.mkdir(parents=True, exist_ok=True)
        write_arrays(self._arm.fit_file(digest), arrays, {"fit": digest})


def forget_fits(arm: ArmLayout) -> None:
    """Remove the states of fits, which a result has no need of."""
    with cannot_write(arm.root):
        for file in arm.fit_files():
            file.unlink(missing_ok=True)


def run_competitor(
    layout: ExperimentsLayout, experiment: Experiment, arm: ArmLayout, name: str, files: Sequence[Path],
    report: Report, *, seed: int, test_rows: int | None,
) -> Outcome:  # fmt: skip
    """Fit the competitor and score the test rows; an experiment with maps has one of it."""
    schema, tables = competitors_tables(layout, experiment, files, test_rows, report)
    rows = tables.evaluated
    report.note(f"fitting {name}")
    found = competitor(name, tables.spaces(schema), seed=seed, methods=methods(_Fits(arm)))
    digest = rows_sha256(schema, tables)
    scores = pa.table({"row_id": rows.row_ids, "log_density": found.log_density})
    with cannot_write(arm.root):
        arm.root.mkdir(parents=True, exist_ok=True)
    write_table(arm.scores_file, scores, schema_name=SCORES_SCHEMA, schema_version=SCORES_VERSION, run_id=digest[:16])
    if simulator_of(experiment) is not None:
        write_competitor_map(arm, schema, tables, found)
    figures = density_figures(found.log_density, rows.truth, rows.is_outlier)
    if found.validation is None:  # a detector's score is no density
        figures |= {"mean_log_density": None, "mean_log_density_se": None}
    return Outcome(
        figures,
        found.chosen,
        digest,
        found.seconds_fit,
        found.seconds_score,
        "cpu" if name == "roundtrip" else "cpu, 1 thread",
    )


def map_competitor(
    layout: ExperimentsLayout, experiment: Experiment, arm: ArmLayout, name: str, files: Sequence[Path],
    report: Report, *, seed: int, test_rows: int | None,
) -> None:  # fmt: skip
    """The map of an arm that was finished without one: the same fit once more, as no fit is kept."""
    schema, tables = competitors_tables(layout, experiment, files, test_rows, report)
    report.note(f"fitting {name} again, for its map")
    write_competitor_map(arm, schema, tables, competitor(name, tables.spaces(schema), seed=seed, methods=METHODS))
