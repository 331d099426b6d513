"""The rows of an experiment: found or simulated, prepared by its protocol, and the same for every method."""

import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TypeVar

import numpy as np
import pyarrow as pa

from bayesnde_cli.artifacts.atomic import cannot_write, writing
from bayesnde_cli.artifacts.experiments_layout import ExperimentsLayout
from bayesnde_cli.artifacts.fingerprint import sha256_bytes
from bayesnde_cli.artifacts.layout import TEST_SET, RunLayout
from bayesnde_cli.artifacts.tables import read_table
from bayesnde_cli.config import PrepareConfig
from bayesnde_cli.data.readers import sources_of
from bayesnde_cli.data.roles import TRUTH_NAME
from bayesnde_cli.data.schema import Schema
from bayesnde_cli.data.simulators import make_simulator, simulate_rows
from bayesnde_cli.errors import SettingsDiffer, StageBusy
from bayesnde_cli.stages import prepare
from bayesnde_cli.stages.evaluate.comparing import Tables
from bayesnde_cli.stages.evaluate.rows import split_rows
from bayesnde_cli.stages.prepare.writing import ROWS_SCHEMA, ROWS_SCHEMA_VERSION
from bayesnde_cli.stages.reading import describe_sources, read_schema
from bayesnde_cli.stages.reporting import Report
from bayesnde_cli.stages.reproduce.experiments import SIMULATED_ROWS, SIMULATED_SEED, Experiment
from bayesnde_cli.stages.reproduce.raw_files import found_files
from bayesnde_cli.stages.reproduce.settings import prepare_settings

_WAIT_SECONDS = 0.5
Made = TypeVar("Made")


def data_files(layout: ExperimentsLayout, experiment: Experiment, data_dir: Path) -> list[Path]:
    """The raw rows of an experiment."""
    if experiment.simulator is None:
        return found_files(data_dir, experiment.files)
    path = layout.simulated_file(experiment.folder_name)
    if not path.exists():
        _simulate(path, experiment)
    return [path]


def _simulate(path: Path, experiment: Experiment) -> None:
    assert experiment.simulator is not None
    simulator = make_simulator(experiment.simulator, dim=experiment.dim, latent_dim=None, rotate=False)
    names = [*simulator.names, TRUTH_NAME]
    chunks = [np.column_stack(chunk) for chunk in simulate_rows(simulator, SIMULATED_ROWS, SIMULATED_SEED)]
    table = pa.table(dict(zip(names, np.concatenate(chunks).T.copy(), strict=True)))
    with cannot_write(path.parent):
        path.parent.mkdir(parents=True, exist_ok=True)
    import pyarrow.parquet as pq

    with writing(path) as draft:
        pq.write_table(table, draft)


def prepare_rows(layout: RunLayout, files: Sequence[Path], config: PrepareConfig, report: Report) -> None:
    """The stage `prepare` of a run directory."""
    sources = sources_of(files, stdin=None)
    prepare.run_on(layout, sources, describe_sources(sources, files), config, report, is_restart=False)


def _shared_rows(layout: RunLayout, files: Sequence[Path], config: PrepareConfig, report: Report) -> None:
    """Rows that several arms read. --restart is of one arm, and leaves them; of an earlier bayesnde they may differ."""
    try:
        waiting(partial(prepare_rows, layout, files, config, report))
    except SettingsDiffer as error:
        raise SettingsDiffer(
            error.what, found=error.found, hint=f"remove the folder {layout.root} and run the same command again"
        ) from error


def waiting(make: Callable[[], Made]) -> Made:
    """What all shards need: whoever comes first makes it, the others wait."""
    while True:
        try:
            return make()
        except StageBusy:  # by a process that lives: a dead one's claim is no claim
            time.sleep(_WAIT_SECONDS)


def competitors_tables(
    layout: ExperimentsLayout, experiment: Experiment, files: Sequence[Path], test_rows: int | None, report: Report
) -> tuple[Schema, Tables]:
    """Training, validation and test rows, in the units of the file and through the columns' own distributions."""
    run = layout.prepared(experiment.folder_name, "marginal", test_rows)
    config = prepare_settings(experiment, test_rows, ("prepare.scale=marginal", "prepare.scale_on=train"))
    _shared_rows(run, files, config, report)
    schema = read_schema(run)
    return schema, read_tables(run, schema)


def unit_interval_shift(
    layout: ExperimentsLayout, experiment: Experiment, files: Sequence[Path], test_rows: int | None, report: Report
) -> float:
    """What takes a log-density in the units of the file to that of the rows scaled to [0, 1]; 0 where neither is."""
    if not experiment.is_unit_interval:
        return 0.0
    run = layout.prepared(experiment.folder_name, "protocol", test_rows)
    _shared_rows(run, files, prepare_settings(experiment, test_rows, ()), report)
    table = read_table(run.split_file(TEST_SET), ROWS_SCHEMA, ["log_jacobian"], schema_version=ROWS_SCHEMA_VERSION)
    return -float(table["log_jacobian"][0].as_py())  # the same for all rows: the scaling is linear


def rows_sha256(schema: Schema, tables: Tables) -> str:
    """The hash of all that a method is given and judged by: training, validation and evaluated rows.

    Of each the cells in the units of the file, with their noise, row by row; then row ids, classes, true log-densities
    and outlier labels, where there are any. All as little-endian float64.
    """
    pieces = []
    for rows in tables:
        known = (rows.row_ids, rows.classes, rows.truth, rows.is_outlier)
        arrays = [schema.noisy(rows.values, rows.row_ids), *(array for array in known if array is not None)]
        pieces += [np.ascontiguousarray(array, "<f8").tobytes() for array in arrays]
    return sha256_bytes(b"".join(pieces))


def read_tables(run: RunLayout, schema: Schema) -> Tables:
    """Training, validation and test rows of a run directory."""
    return Tables(*(split_rows(run, schema, split) for split in ("train", "validation", TEST_SET)))
