"""Density maps of the experiments with two columns: log-densities on a grid, the same for every arm.

The grid spans the box of the training rows, a little widened. Its points are never trained on, nor do they choose.
"""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa

from bayesnde_cli.artifacts.experiments_layout import ArmLayout
from bayesnde_cli.artifacts.fingerprint import sha256_bytes
from bayesnde_cli.artifacts.tables import read_table, write_table
from bayesnde_cli.config import EvaluateConfig
from bayesnde_cli.data.schema import Schema
from bayesnde_cli.data.simulators import make_simulator
from bayesnde_cli.data.simulators.simulator import Simulator
from bayesnde_cli.errors import BadArtifact
from bayesnde_cli.evaluation.baselines import Competitor
from bayesnde_cli.rng import derive_seed
from bayesnde_cli.stages import evaluate
from bayesnde_cli.stages.evaluate.comparing import Tables
from bayesnde_cli.stages.evaluate.rows import TableRows, split_rows
from bayesnde_cli.stages.reading import read_schema
from bayesnde_cli.stages.reproduce.density_map import DensityMap, grid_points
from bayesnde_cli.stages.reproduce.experiments import Experiment

MAP_SCHEMA, MAP_VERSION = "density_map", 1
COLUMNS = ("x1", "x2", "log_density")
N_SIDE = 50
_MARGIN = 0.05
# Importance-sampling draws of a point of ours. On the involute they leave 0.06 nats between it and the average over the
# prior that `grid` takes, where that is reliable: no colour shows it.
_N_DRAWS = 512


def simulator_of(experiment: Experiment) -> Simulator | None:
    """What made the rows of an experiment that has maps: two columns whose true density is known."""
    if experiment.simulator is None:
        return None
    simulator = make_simulator(experiment.simulator, dim=experiment.dim, latent_dim=None, rotate=False)
    return simulator if len(simulator.names) == 2 else None


def sides(train: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The sides of the grid around training rows (rows, 2)."""
    low, high = train.min(axis=0), train.max(axis=0)
    margin = _MARGIN * (high - low)
    first, second = np.linspace(low - margin, high + margin, N_SIDE).T
    return first, second


def write_own_map(arm: ArmLayout, config: EvaluateConfig) -> None:
    """The map of a fitted model of ours, by importance sampling.

    It counts in the corners, too, where an average over the prior is a matter of chance.
    """
    schema = read_schema(arm.run)
    x1, x2 = sides(split_rows(arm.run, schema, "train").values)
    rows = _rows(schema, x1, x2)
    model = evaluate.open_model(arm.run, replace(config, typicality_draws=_N_DRAWS))
    found = model.log_density(rows.x, None, derive_seed(config.seed or 0, "map"))
    _write(arm.map_file, x1, x2, found + rows.log_jacobian)


def write_competitor_map(arm: ArmLayout, schema: Schema, tables: Tables, found: Competitor) -> None:
    """The map of a fitted competitor. Its points are scored by themselves: the test rows and their time stay alone."""
    x1, x2 = sides(tables.train.values)
    spaces = tables._replace(evaluated=_rows(schema, x1, x2)).spaces(schema)
    _write(arm.map_file, x1, x2, found.log_density_of(spaces))


def read_map(path: Path) -> DensityMap:
    """The map of an arm."""
    table = read_table(path, MAP_SCHEMA, COLUMNS, schema_version=MAP_VERSION)
    first, second, log_density = (table[name].to_numpy() for name in COLUMNS)
    x1, x2 = np.unique(first), np.unique(second)
    if not np.array_equal(grid_points(x1, x2), np.stack([first, second], axis=1)):
        raise BadArtifact(
            f"{path} is no map", found=f"{len(first):,} points that are no grid",
            hint="remove it and run the experiment again",
        )  # fmt: skip
    return DensityMap(x1, x2, log_density.reshape(len(x1), len(x2)).astype(np.float64))


def write_map(path: Path, found: DensityMap) -> None:
    """A map as a table; its log-densities keep their type."""
    digest = sha256_bytes(np.ascontiguousarray(found.points, "<f8").tobytes())
    table = pa.table(dict(zip(COLUMNS, (*found.points.T.copy(), found.log_density.ravel()), strict=True)))
    write_table(path, table, schema_name=MAP_SCHEMA, schema_version=MAP_VERSION, run_id=digest[:16])


def true_map(simulator: Simulator, beside: DensityMap) -> DensityMap:
    """The true log-density on the grid of another map."""
    return replace(beside, log_density=simulator.log_density(beside.points).reshape(beside.log_density.shape))


def _rows(schema: Schema, x1: np.ndarray, x2: np.ndarray) -> TableRows:
    values = grid_points(x1, x2)
    row_ids = np.arange(len(values))
    return TableRows(row_ids, values, *schema.scale(values, row_ids))


def _write(path: Path, x1: np.ndarray, x2: np.ndarray, log_density: np.ndarray) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_map(path, DensityMap(x1, x2, log_density.astype(np.float64).reshape(len(x1), len(x2))))
