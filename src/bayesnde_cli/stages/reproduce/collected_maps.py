"""The density maps that lie beside the results page, one for each arm: later runs add to them as to the results.

Their log-densities are float32, 11 kB a map. Those of a run directory are rounded before they are drawn, so that the
picture is the same when they are read again.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TypeAlias

import numpy as np

from bayesnde_cli.artifacts.atomic import cannot_write
from bayesnde_cli.artifacts.experiments_layout import ExperimentsLayout
from bayesnde_cli.stages.reproduce.density_map import DensityMap
from bayesnde_cli.stages.reproduce.experiments import EXPERIMENTS
from bayesnde_cli.stages.reproduce.maps import read_map, simulator_of, write_map
from bayesnde_cli.stages.reproduce.result import Result

Key: TypeAlias = tuple[str, str, int]  # an arm: experiment, method, seed
_FOLDER = "results-maps"


def run_maps(layout: ExperimentsLayout, results: Iterable[Result]) -> dict[Key, DensityMap]:
    """The maps in a run directory of these results, by arm, rounded as they are stored."""
    files = {result.key: layout.arm(*result.key).map_file for result in results if _is_shown(result)}
    return {key: _rounded(read_map(path)) for key, path in files.items() if path.exists()}


def stored_maps(folder: Path, results: Iterable[Result]) -> dict[Key, DensityMap]:
    """The maps that lie beside the page in this folder of these results, by arm."""
    files = {result.key: map_path(folder, result.key) for result in results if _is_shown(result)}
    return {key: read_map(path) for key, path in files.items() if path.exists()}


def store_maps(folder: Path, maps: Mapping[Key, DensityMap]) -> None:
    """Write maps beside the page; those that are not named stay as they are."""
    for key, found in maps.items():
        path = map_path(folder, key)
        with cannot_write(path.parent):
            path.parent.mkdir(exist_ok=True)
        write_map(path, replace(found, log_density=found.log_density.astype(np.float32)))


def forget_maps(folder: Path, results: Iterable[Result]) -> None:
    """Remove the maps of earlier fits of these arms."""
    for result in results:
        path = map_path(folder, result.key)
        with cannot_write(path):
            path.unlink(missing_ok=True)


def map_path(folder: Path, key: Key) -> Path:
    """Where the map of an arm is kept, beside the page in this folder."""
    experiment, method, seed = key
    return folder / _FOLDER / f"{experiment}-{method}-seed{seed}.parquet"


def _is_shown(result: Result) -> bool:
    """Whether there is a picture with the map of this arm."""
    experiment = EXPERIMENTS.get(result.experiment)
    return (
        experiment is not None
        and result.method in (*experiment.recipes, *experiment.methods)
        and simulator_of(experiment) is not None
    )


def _rounded(found: DensityMap) -> DensityMap:
    with np.errstate(over="ignore"):  # what is below all float32 has a density of 0 in any case
        return replace(found, log_density=found.log_density.astype(np.float32).astype(np.float64))
