"""Density maps of the experiments with two columns, and the pictures of the results page, as SVG.

A map has log-densities on a grid, the same for every arm. It spans the box of the training rows, slightly widened. Its
points serve neither training nor selection.
"""

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from scipy.stats import rankdata

from bayesnde_cli.competitors import Competitor, Tables, make_spaces
from bayesnde_cli.errors import one_line
from bayesnde_cli.report.plots import COLOURS, add_colour_bar, file_svg, new_figure, styled, widen
from bayesnde_cli.reproduce import experiments
from bayesnde_cli.reproduce.experiments import DIMENSIONS, EXPERIMENTS, PAPER, Experiment, Key, Result
from bayesnde_cli.rng import derive_seed
from bayesnde_cli.rows import Rows
from bayesnde_cli.runs.files import sha256_bytes
from bayesnde_cli.runs.layout import ArmLayout
from bayesnde_cli.runs.parquet_files import Stamp, read_table, write_table
from bayesnde_cli.settings.stage_settings import EvaluateSettings
from bayesnde_cli.stages import loading
from bayesnde_cli.tables.model_rows import read_schema, read_split
from bayesnde_cli.tables.schema import Schema
from bayesnde_cli.tables.simulator_catalogue import Simulator, make_simulator

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MAP_SCHEMA = "density_map"
_COLUMNS = ("x1", "x2", "log_density")
_N_SIDE, _MARGIN = 50, 0.05
# Log-densities above this are spikes beyond all colours; the bound prevents overflow.
_LARGEST = 300.0
# Importance-sampling draws per point of our maps. On the involute they differ by 0.06 nats from the average over the
# prior that `grid` computes, where that is reliable; no colour shows this.
_N_DRAWS = 512
# SVG units: the width of the text of a page.
_WIDTH = 900
# True densities above this quantile share the brightest colour of a map.
_BRIGHTEST = 0.99
_OURS, _IMPORTANCE = COLOURS["bad"], COLOURS["s1"]
# Lines of other methods: Tol's muted scheme without its rose, which is too close to our red, and its pale colours.
_OTHERS = ("#332288", "#44aa99", "#117733", "#999933", "#882255", "#6699cc", "#aa4499", "#997700", "#555555", "#33bbee")


@dataclass(frozen=True)
class DensityMap:
    """A log-density at every pair of two columns' values, in the units of the file."""

    x1: np.ndarray  # (n1,), ascending, equally spaced
    x2: np.ndarray  # (n2,)
    log_density: np.ndarray  # (n1, n2)

    @property
    def points(self) -> np.ndarray:
        """The points of the grid, the second column fastest. (n1 * n2, 2)."""
        return np.stack(np.meshgrid(self.x1, self.x2, indexing="ij"), axis=-1).reshape(-1, 2)

    @property
    def density(self) -> np.ndarray:
        """The density at every point, 0 where it is unknown. (n1, n2)."""
        return np.nan_to_num(np.exp(np.minimum(self.log_density, _LARGEST)), nan=0.0)

    def has_points_of(self, other: "DensityMap") -> bool:
        """Whether both maps have the same points."""
        return np.array_equal(self.x1, other.x1) and np.array_equal(self.x2, other.x2)

    def with_values(self, log_density: np.ndarray) -> "DensityMap":
        """Other log-densities at the same points, given point by point or as a grid."""
        return replace(self, log_density=log_density.reshape(len(self.x1), len(self.x2)))

    def spearman(self, other: "DensityMap") -> float | None:
        """The rank correlation with another map of the same points; None if one of them has no ranks.

        A density of 0 has the lowest rank and counts, as in the picture; NaN does not count.
        """
        both = ~(np.isnan(self.log_density) | np.isnan(other.log_density))
        ranks = [rankdata(found.log_density[both]) for found in (self, other)]
        if any(len(rank) < 2 or rank.min() == rank.max() for rank in ranks):
            return None
        return float(np.corrcoef(*ranks)[0, 1])


def map_simulator(experiment: Experiment) -> Simulator | None:
    """The simulator of an experiment that has maps: two columns whose true density is known."""
    if experiment.simulator is None:
        return None
    simulator = make_simulator(experiment.simulator, dim=experiment.dim, latent_dim=None, rotate=False)
    return simulator if len(simulator.names) == 2 else None


def write_own_map(arm: ArmLayout, config: EvaluateSettings) -> None:
    """The map of our fitted model, by importance sampling.

    It is accurate in the corners, too, where an average over the prior depends on chance.
    """
    schema = read_schema(arm.run)
    grid, rows = _grid_rows(schema, read_split(arm.run, "train", with_values=True))
    model = loading.open_model(arm.run, config.model_copy(update={"typicality_draws": _N_DRAWS}))
    found = model.log_density(rows.x, None, derive_seed(config.seed or 0, "map"))
    write_map(arm.map_file, grid.with_values((found + rows.log_jacobian).astype(np.float64)))


def write_competitor_map(arm: ArmLayout, schema: Schema, tables: Tables, found: Competitor) -> None:
    """The map of a fitted competitor; its points are scored apart from the test rows, which a batch could change."""
    grid, rows = _grid_rows(schema, tables.train)
    log_density = found.log_density_of(make_spaces(tables._replace(evaluated=rows), schema))
    write_map(arm.map_file, grid.with_values(log_density.astype(np.float64)))


def _grid_rows(schema: Schema, train: Rows) -> tuple[DensityMap, Rows]:
    """An empty map around training rows, and its points as rows."""
    assert train.values is not None
    low, high = train.values.min(axis=0), train.values.max(axis=0)
    margin = _MARGIN * (high - low)
    x1, x2 = np.linspace(low - margin, high + margin, _N_SIDE).T
    grid = DensityMap(x1, x2, np.zeros((_N_SIDE, _N_SIDE)))
    row_ids = np.arange(_N_SIDE**2)
    x, log_jacobian = schema.scale(grid.points, row_ids)
    return grid, Rows(x, row_ids=row_ids, log_jacobian=log_jacobian, values=grid.points)


def read_map(path: Path) -> DensityMap:
    """The map in a file."""
    table = read_table(path, MAP_SCHEMA, _COLUMNS)
    first, second, log_density = (table[name].to_numpy() for name in _COLUMNS)
    x1, x2 = np.unique(first), np.unique(second)
    return DensityMap(x1, x2, log_density.astype(np.float64).reshape(len(x1), len(x2)))


def write_map(path: Path, found: DensityMap) -> None:
    """Write a map as a table; its log-densities keep their type."""
    digest = sha256_bytes(np.ascontiguousarray(found.points, "<f8").tobytes())
    table = pa.table(dict(zip(_COLUMNS, (*found.points.T.copy(), found.log_density.ravel()), strict=True)))
    write_table(path, table, Stamp(MAP_SCHEMA, digest[:16]))


# Pictures


def draw_experiment(experiment: Experiment, maps: Mapping[Key, DensityMap]) -> bytes | None:
    """The true density of an experiment and the maps of its methods, ours first; None without maps.

    The first seed of a method is shown. An arm that was fitted to other rows has another grid, and is left out.
    """
    simulator = map_simulator(experiment)
    shown: dict[str, DensityMap] = {}
    for method in experiment.all_methods:
        arms = sorted(key for key in maps if key[:2] == (experiment.folder_name, method))
        if arms and (not shown or maps[arms[0]].has_points_of(next(iter(shown.values())))):
            shown[experiment.method_name(method)] = maps[arms[0]]
    if not shown or simulator is None:
        return None
    first = next(iter(shown.values()))
    truth = first.with_values(simulator.log_density(first.points))
    return draw_maps(experiment.map_title, {"true density": truth} | shown)


@styled
def draw_maps(title: str, maps: Mapping[str, DensityMap]) -> bytes:
    """Maps by name, side by side on one colour scale; the first is the true density, and all share its grid.

    Colours follow the density: a logarithm would show mostly the empty corners. The brightest colour is at a quantile
    of the true density, so that no spike leaves everything else dark.
    """
    truth = next(iter(maps.values()))
    top = float(np.quantile(truth.density, _BRIGHTEST)) or 1.0
    n_columns = min((4, 5), key=lambda count: (-(-len(maps) // count), -len(maps) % count))  # few rows, then few gaps
    n_rows = -(-len(maps) // n_columns)
    figure = _new_picture(130 + n_rows * (_WIDTH / n_columns + 40), title)
    panels = figure.subplots(n_rows, n_columns, squeeze=False)
    for axes, (name, found) in zip(panels.flat, maps.items(), strict=False):
        image = axes.imshow(found.density.T, vmin=0.0, vmax=top)
        axes.set_title(one_line(name, 28), loc="left", fontsize=13, fontweight="bold")
        if found is not truth:
            correlation = found.spearman(truth)
            axes.set_xlabel(f"Spearman {'–' if correlation is None else f'{correlation:.3f}'}", loc="left")
    for axes in panels.flat:
        axes.set(xticks=[], yticks=[], visible=bool(axes.images))
    add_colour_bar(figure, panels, image, "density", extend="max", location="bottom", aspect=40, shrink=0.5)
    x1, x2 = (f"from {values[0]:.1f} to {values[-1]:.1f}" for values in (truth.x1, truth.x2))
    note = "All maps have one colour scale, by density and not by its logarithm.\n"
    note += f"x1 {x1} to the right, x2 {x2} upwards: {truth.log_density.size:,} points. "
    _add_note(figure, note + "Spearman: rank correlation with the true density over these points.")
    return file_svg(figure, title)


def _new_picture(height: float, title: str) -> "Figure":
    figure = new_figure(_WIDTH, height)
    figure.suptitle(title, x=0.01, ha="left", fontsize=16, fontweight="bold")
    return figure


def _add_note(figure: "Figure", text: str) -> None:
    figure.supxlabel(text, x=0.01, ha="left", fontsize=12, color=COLOURS["soft"])


@styled
def draw_dimensions(results: Sequence[Result]) -> bytes | None:
    """Spearman's correlation with the true density against the number of columns, a line per method; None if empty."""
    shown = [EXPERIMENTS[f"gmm-{dim}"] for dim in DIMENSIONS]
    first = shown[0]
    means = {
        method: [mean_over_seeds(_read_figures(results, e.folder_name, method))[0] for e in shown]
        for method in first.all_methods
    }
    means = {method: values for method, values in means.items() if any(map(math.isfinite, values))}
    if not means:
        return None
    title = "Gaussian mixture: agreement with the true density, by the number of columns"
    figure = _new_picture(500, title)
    axes = figure.add_subplot(xlabel="columns", ylabel="Spearman correlation")
    colours = itertools.cycle(_OTHERS)
    for method, values in means.items():
        look: dict[str, Any] = {"color": _OURS, "linewidth": 3.6, "markersize": 8, "zorder": 3}
        if method not in first.recipes:
            look = {"color": next(colours), "linewidth": 1.6, "markersize": 5}
        style = "--o" if method == PAPER else "-o"
        axes.plot(DIMENSIONS, values, style, label=first.method_name(method), **look)
    printed = [e.paper.get(PAPER, math.nan) for e in shown]
    look = {"color": COLOURS["ink"], "markersize": 9, "markerfacecolor": "white", "markeredgewidth": 2, "zorder": 4}
    axes.plot(DIMENSIONS, printed, "D", label="in the paper", **look)
    axes.set_xticks(DIMENSIONS, [str(dim) for dim in DIMENSIONS])
    low = min(float(np.nanmin([*means.values(), printed])), 0.9)
    axes.set(xlim=widen(DIMENSIONS[0], DIMENSIONS[-1], by=0.04), ylim=(low - 0.03, 1.01))
    axes.grid(axis="y")
    _name_lines(axes, "center left", bbox_to_anchor=(1.0, 0.5), labelspacing=0.8)
    return file_svg(figure, title)


@styled
def draw_budgets(results: Sequence[Result]) -> bytes | None:
    """Spearman's correlation of both estimators against the number of draws, and the reported error; None if empty."""
    from matplotlib.ticker import NullLocator

    points = {}  # (bridge, importance sampling, reported error), each a mean with its standard error
    for budget in experiments.BUDGETS:
        arm = EXPERIMENTS["budget-sweep"].folder_name, f"budget-{budget}"
        found = [
            _read_figures(results, *arm),
            _read_figures(results, *arm, part="importance"),
            _read_figures(results, *arm, figure="mean_mc_se"),
        ]
        if all(found):
            points[budget] = [mean_over_seeds(values) for values in found]
    if not points:
        return None
    n_draws = np.array(list(points), np.float64)
    bridge, importance, errors = (np.array(part) for part in zip(*points.values(), strict=True))  # (budgets, 2)
    title = "Number of draws per row, 15 columns"
    figure = _new_picture(440, title)
    left, right = figure.subplots(1, 2, width_ratios=(580, 304))
    panels = {
        left: ("Agreement with the true density", "Spearman correlation"),
        right: ("Mean Monte-Carlo error", "s.e. of the bridge, nats"),
    }
    for axes, (name, label) in panels.items():
        axes.set_title(name, loc="left", fontsize=13, fontweight="bold")
        limits = (0.83 * n_draws[0], 1.2 * n_draws[-1])
        axes.set(xscale="log", xlabel="draws per row", ylabel=label, xlim=limits)
        axes.set_xticks(n_draws, [f"{budget:,}" for budget in points])
        axes.xaxis.set_minor_locator(NullLocator())
        axes.grid(axis="y")
    # Slightly apart, so that error bars at the same number of draws do not overlap.
    _draw_curve(left, 0.975 * n_draws, bridge, color=_OURS, label="bridge")
    _draw_curve(left, 1.025 * n_draws, importance, color=_IMPORTANCE, label="importance sampling")
    _name_lines(left, "best")
    _draw_curve(right, n_draws, errors, color=_OURS)
    right.set_ylim(bottom=0.0)
    _add_note(figure, "Error bars: ± 2 s.e. over seeds of the draws; the model and the test rows are the same.")
    return file_svg(figure, title)


def _read_figures(
    results: Iterable[Result], folder: str, method: str, *, part: str | None = None, figure: str = experiments.SPEARMAN
) -> list[float]:
    """A figure of all seeds of a method."""
    found = [r.figures if part is None else r.figures.get(part, {}) for r in results if r.key[:2] == (folder, method)]
    return [value for figures in found if (value := figures.get(figure)) is not None]


def mean_over_seeds(values: Sequence[float]) -> tuple[float, float]:
    """The mean and its standard error; NaN for what too few values do not tell."""
    if not values:
        return math.nan, math.nan
    return fmean(values), stdev(values) / math.sqrt(len(values)) if len(values) > 1 else math.nan


def _draw_curve(axes: "Axes", x: np.ndarray, means: np.ndarray, **look: Any) -> None:
    """Draw means (points, 2) with bars of two standard errors where these are known."""
    value, se = means.T
    known = np.isfinite(se)
    axes.errorbar(x[known], value[known], 2 * se[known], fmt="none", ecolor=look["color"], elinewidth=1.6)
    axes.plot(x, value, "o-", markersize=7, linewidth=2.4, **look)


def _name_lines(axes: "Axes", place: str, **look: Any) -> None:
    """Add a legend of the lines, in the order of their ends."""
    handles, names = axes.get_legend_handles_labels()
    ends = [line.get_ydata()[np.isfinite(line.get_ydata())][-1] for line in handles]
    order = np.argsort(np.negative(ends), kind="stable")
    axes.legend([handles[index] for index in order], [names[index] for index in order], loc=place, **look)
