"""The pictures of the results page, from what the arms have left."""

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import fmean, stdev

from bayesnde_cli.artifacts import atomic
from bayesnde_cli.stages.reproduce.collected_maps import Key
from bayesnde_cli.stages.reproduce.density_map import DensityMap
from bayesnde_cli.stages.reproduce.experiments import (
    BUDGETS,
    DIMENSIONS,
    EXPERIMENTS,
    PAPER,
    SPEARMAN,
    Experiment,
)
from bayesnde_cli.stages.reproduce.maps import simulator_of, true_map
from bayesnde_cli.stages.reproduce.method_names import method_name
from bayesnde_cli.stages.reproduce.pictures import (
    BudgetPoint,
    Mean,
    Role,
    Series,
    budget_curve,
    density_maps,
    spearman_by_dimension,
)
from bayesnde_cli.stages.reproduce.result import Result

_MAPS = {"involute": "Involute: the density of two columns", "gmm-2": "Gaussian mixture: the density of two columns"}


def draw_all(maps: Mapping[Key, DensityMap], results: Sequence[Result], folder: Path) -> list[Path]:
    """Write the pictures that there are numbers for; of the others an older one, if any, is kept."""
    pictures = {name: _maps_picture(EXPERIMENTS[name], title, maps) for name, title in _MAPS.items()}
    series = dimension_series(results)
    pictures["dimensions"] = spearman_by_dimension(series) if series else None
    budgets = budget_points(results)
    pictures["budget"] = budget_curve(budgets) if budgets else None
    written = []
    for name, picture in pictures.items():
        if picture is not None:
            path = folder / f"results-{name}.svg"
            atomic.write_bytes(path, picture)
            written.append(path)
    return written


def _maps_picture(experiment: Experiment, title: str, maps: Mapping[Key, DensityMap]) -> bytes | None:
    shown = shown_maps(experiment, maps)
    simulator = simulator_of(experiment)
    if not shown or simulator is None:
        return None
    return density_maps(title, {"true density": true_map(simulator, next(iter(shown.values())))} | shown)


def shown_maps(experiment: Experiment, maps: Mapping[Key, DensityMap]) -> dict[str, DensityMap]:
    """The maps of an experiment's arms by the methods' names, ours first; of several seeds the first one.

    An arm that was fitted to other rows has another grid, and is left out.
    """
    shown: dict[str, DensityMap] = {}
    for method in (*experiment.recipes, *experiment.methods):
        arms = sorted(key for key in maps if key[:2] == (experiment.folder_name, method))
        if arms and (not shown or maps[arms[0]].is_beside(next(iter(shown.values())))):
            shown[method_name(method, is_own=method in experiment.recipes)] = maps[arms[0]]
    return shown


def dimension_series(results: Sequence[Result]) -> list[Series]:
    """Spearman of every method against the number of columns, and what the paper has; none without results."""
    experiments = [EXPERIMENTS[f"gmm-{dim}"] for dim in DIMENSIONS]
    first = experiments[0]
    series = []
    for method in (*first.recipes, *first.methods):
        is_own = method in first.recipes
        means = [_mean(_figures(results, e.folder_name, method)).value for e in experiments]
        if any(map(math.isfinite, means)):
            role = Role.OURS if is_own else Role.OTHER
            series.append(Series(method_name(method, is_own=is_own), DIMENSIONS, means, role))
    if series:
        printed = [e.paper.get(PAPER, math.nan) for e in experiments]
        series.append(Series("in the paper", DIMENSIONS, printed, Role.PRINTED))
    return series


def budget_points(results: Sequence[Result]) -> list[BudgetPoint]:
    """What each number of draws gives, over the seeds."""
    folder = EXPERIMENTS["budget-sweep"].folder_name
    points = []
    for budget in BUDGETS:
        method = f"budget-{budget}"
        bridge = _figures(results, folder, method)
        importance = _figures(results, folder, method, "importance")
        errors = _figures(results, folder, method, figure="mean_mc_se")
        if bridge and importance and errors:
            points.append(BudgetPoint(budget, _mean(bridge), _mean(importance), _mean(errors)))
    return points


def _figures(
    results: Iterable[Result], folder: str, method: str, part: str | None = None, figure: str = SPEARMAN
) -> list[float]:
    """A figure of all seeds of a method."""
    found = [r.figures if part is None else r.figures.get(part, {}) for r in results if r.key[:2] == (folder, method)]
    return [value for figures in found if (value := figures.get(figure)) is not None]


def _mean(values: Sequence[float]) -> Mean:
    """The mean over seeds, and its standard error if there are two at least."""
    if not values:
        return Mean(math.nan)
    return Mean(fmean(values), stdev(values) / math.sqrt(len(values)) if len(values) > 1 else math.nan)
