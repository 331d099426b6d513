"""`grid`: the joint density of two columns on a grid; other columns are integrated out, or held at a value.

At a point of a continuous column there is a density. A value of a whole-number or categorical column stands for a cell
of the model's space and has a probability. Summed over values and integrated over points, the grid adds up to 1.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from scipy.special import ndtr

from bayesnde_cli.answers import FittedRun
from bayesnde_cli.errors import BadUsage, nearest_hint, one_line
from bayesnde_cli.formatting import Report
from bayesnde_cli.inference.two_columns import PairSums, cell_probability, point_density
from bayesnde_cli.rng import derive_seed
from bayesnde_cli.scaling.column_map import HIGHEST, LOWEST, Logit
from bayesnde_cli.stages.loading import Prior
from bayesnde_cli.tables.columns import Kind, listed, match_columns
from bayesnde_cli.tables.model_rows import GeneratedColumn, format_cells
from bayesnde_cli.tables.schema import Feature

# Latents in one call of the decoder.
BLOCK_LATENTS = 8192
# With fewer effective latents near the values of --at, their average depends on chance.
_FEW_LATENTS = 400
# Points of an axis; a grid of 25 million points fits into memory.
_MOST_POINTS = 5000
# The default range of an axis leaves out this share of the training rows at either end, and adds a margin.
_LEFT_OUT, _MARGIN = 0.005, 0.1


@dataclass(frozen=True)
class Axis:
    """Points of one column. In the model's space a point of a continuous column has low = high, and a log-slope."""

    feature: Feature
    places: np.ndarray  # (points,) float64, categories by position
    low: np.ndarray  # (points,) in the model's space
    high: np.ndarray
    log_slope: np.ndarray | None = None  # (points,); None: cells

    @property
    def cells(self) -> pa.Array:
        """The points as cells of the file."""
        return format_cells(self.feature, GeneratedColumn(self.places, None))

    @property
    def step(self) -> float:
        """The distance between points."""
        return float(self.places[1] - self.places[0]) if len(self.places) > 1 else 1.0

    def density(self, mean: np.ndarray, sd: np.ndarray) -> np.ndarray:
        """The density at each point given each latent, in the units of the file. (latents,) -> (latents, points)"""
        if self.log_slope is None:
            return cell_probability(self.low, self.high, mean, sd)
        return point_density(self.low, self.log_slope, mean, sd)

    def peak(self, sd: float) -> np.ndarray:
        """The highest density at each point that a latent with this standard deviation can give. (points,)"""
        if self.log_slope is None:
            return np.asarray(2.0 * ndtr((self.high - self.low) / (2.0 * sd)) - 1.0)
        return np.asarray(np.exp(self.log_slope) / (math.sqrt(2.0 * math.pi) * sd))


def axis_at(feature: Feature, places: np.ndarray) -> Axis:
    """The axis of a column with these points."""
    if feature.map.noise is not None:
        return Axis(feature, places, *feature.cells(places))
    u, log_slope = feature.map.forward(places)
    return Axis(feature, places, u, u, log_slope)


def axis_between(feature: Feature, low: float, high: float, n_points: int) -> Axis:
    """An axis of about this many points: all categories, or whole numbers where the column holds them."""
    if feature.kind is Kind.CATEGORICAL:
        return axis_at(feature, np.arange(float(len(feature.categories))))
    if feature.kind is Kind.CONTINUOUS:
        return axis_at(feature, np.linspace(low, high, n_points))
    first, last = np.ceil(low), np.floor(high)
    if isinstance(feature.map, Logit):
        first, last = max(first, LOWEST), min(last, HIGHEST)
    if last < first:
        raise BadUsage(
            f"--range: there is no whole number between {low:g} and {high:g}",
            found=f"column '{feature.name}' holds whole numbers{_bounds(feature)}",
            hint="give a wider range",
        )
    step = max(1.0, np.ceil((last - first) / (n_points - 1)))
    return axis_at(feature, np.arange(first, last + 1.0, step))


def _bounds(feature: Feature) -> str:
    """The range of a column of whole numbers in words, if it has one."""
    return " from 0 to 255" if isinstance(feature.map, Logit) else ""


@dataclass(frozen=True)
class Question:
    """Two columns, others held at one value each, a class by its position, and the number of latents to average."""

    first: Axis
    second: Axis
    held: Sequence[Axis] = ()
    chosen_class: int | None = None
    n_draws: int = 2**19


@dataclass(frozen=True)
class Grid:
    """The density on a grid in the units of the file, (first, second) each."""

    axes: tuple[Axis, Axis]
    log_density: np.ndarray
    mc_se: np.ndarray
    reliable: np.ndarray
    title: str  # log p(a, b | y = u, c = 3)

    @property
    def share(self) -> float:
        """The probability that lies on the grid, approximated by the sum over its points."""
        return float(np.exp(self.log_density).sum() * self.axes[0].step * self.axes[1].step)

    def table(self) -> pa.Table:
        """One row per point; the second column runs fastest."""
        index = np.indices(self.log_density.shape).reshape(2, -1)
        columns = {axis.feature.name: axis.cells.take(pa.array(at)) for axis, at in zip(self.axes, index, strict=True)}
        figures = {name: pa.array(getattr(self, name).ravel()) for name in ("log_density", "mc_se", "reliable")}
        return pa.table(columns | figures)

    def picture(self, *, is_png: bool) -> bytes:
        """A PNG of the map alone, or an SVG with axes, title and colour scale."""
        from bayesnde_cli.report import plots

        if is_png:
            return plots.grid_png(self.log_density)
        ends = [(axis.places[0] - 0.5 * axis.step, axis.places[-1] + 0.5 * axis.step) for axis in self.axes]
        names, categories = zip(*((axis.feature.name, axis.feature.categories) for axis in self.axes), strict=True)
        return plots.grid_svg(
            self.log_density, (*ends[0], *ends[1]), names=names, categories=categories, title=self.title
        )

    def as_dict(self) -> dict[str, Any]:
        n_first, n_second = self.log_density.shape
        sizes = {"n_first": n_first, "n_second": n_second}
        return {"title": self.title, **sizes, "n_reliable": int(self.reliable.sum()), "share": self.share}

    def __str__(self) -> str:
        sizes = "{n_first:,} by {n_second:,} points, {n_reliable:,} reliable".format(**self.as_dict())
        return f"{one_line(self.title)}: {sizes}, about {100 * self.share:.1f} % of the probability"


def run_grid(run: FittedRun, prior: Prior, question: Question, report: Report) -> Grid:
    """The density of two columns; `prior` draws BLOCK_LATENTS at a time."""
    axes = [question.first, question.second, *question.held]
    given = [f"{axis.feature.name} = {axis.cells[0].as_py()}" for axis in question.held]
    names = [feature.name for feature in run.schema.features]
    positions = [names.index(axis.feature.name) for axis in axes]
    sums, inverse_sd = PairSums(len(question.first.places), len(question.second.places)), np.zeros(len(axes))
    with report.progress("averaging", question.n_draws, "latents") as advance:
        for mean, sd in _moments(run, prior, question):
            columns = zip(axes, positions, strict=True)
            first, second, *held = (axis.density(mean[:, at], sd[:, at]) for axis, at in columns)
            sums.add(first, second, np.prod(held, axis=0)[:, 0] if held else None)
            inverse_sd += (1.0 / sd[:, positions]).sum(axis=0)
            advance(len(mean))
    if sums.n_effective == 0.0:
        what = "the model has no density at the values of --at"
        raise BadUsage(what, found=", ".join(given), hint="give values in the range of the data")
    if question.held and sums.n_effective < _FEW_LATENTS:
        report.warn(
            f"the values of --at are rare: {sums.n_effective:,.0f} of {question.n_draws:,} latents are near them; "
            "give more --draws, or hold fewer columns"
        )
    log_density, se = sums.estimate()
    unseen = _unseen_density(axes, question.n_draws / inverse_sd, question.n_draws) / sums.mean_weight
    with np.errstate(divide="ignore"):
        possible_gain = np.logaddexp(log_density, np.log(unseen)) - log_density
    mc_se = np.hypot(se, possible_gain)
    if question.chosen_class is not None:
        given.insert(0, f"{run.schema.condition} = {run.classes[question.chosen_class]}")
    title = ", ".join(axis.feature.name for axis in axes[:2]) + (f" | {', '.join(given)}" if given else "")
    return Grid((question.first, question.second), log_density, mc_se, mc_se <= run.config.target_se, f"log p({title})")


def _moments(run: FittedRun, prior: Prior, question: Question) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Mean and standard deviation of every column given latents from the prior, (latents, p) float64, in blocks."""
    for block in range(-(-question.n_draws // BLOCK_LATENTS)):
        y = None
        if run.classes:
            index = run.draw_classes(BLOCK_LATENTS, "grid", block)
            y = run.one_hot(index if question.chosen_class is None else np.full(BLOCK_LATENTS, question.chosen_class))
        moments = prior.moments(derive_seed(run.seed, "grid", block), y)
        n = min(BLOCK_LATENTS, question.n_draws - block * BLOCK_LATENTS)
        mean, variance = (part[:n].astype(np.float64) for part in moments)
        yield mean, np.sqrt(variance)


def _unseen_density(axes: Sequence[Axis], sds: np.ndarray, n_draws: int) -> np.ndarray:
    """The density that latents which were never drawn may add, (first, second); it matters in the far tails.

    With 95 % certainty their share of the prior is below 3 / n_draws. Each adds at most the peak of a latent with the
    usual standard deviation, `sds` of each axis.
    """
    first, second, *held = (axis.peak(float(sd)) for axis, sd in zip(axes, sds, strict=True))
    return np.asarray(3.0 / n_draws * np.prod([peak[0] for peak in held]) * np.outer(first, second))


# From the options of the command to the axes


def grid_axes(run: FittedRun, names: Sequence[str], n_points: int, between: str | None) -> tuple[Axis, Axis]:
    """The axes of two columns; `between` is `low,high,low,high`."""
    first, second = features = [_find_feature(run, name, "a grid") for name in names]
    if first.name == second.name:
        raise BadUsage("a grid needs two columns", found=f"'{first.name}' twice", hint="name another column")
    if not 2 <= n_points <= _MOST_POINTS:
        limits = f"at least 2 and at most {_MOST_POINTS:,}"
        raise BadUsage(f"--points must be {limits}", found=f"--points {n_points}", hint="the default is 100")
    if between is None:
        ranges = [_default_range(run, feature) for feature in features]
    else:
        ranges = _parse_ranges(between)
        for name in (feature.name for feature in features if feature.kind is Kind.CATEGORICAL):
            what = f"--range: column '{name}' has categories, and all of them are shown"
            raise BadUsage(what, found=f"--range {between}", hint="leave --range out")
    return axis_between(first, *ranges[0], n_points), axis_between(second, *ranges[1], n_points)


def held_columns(run: FittedRun, rules: Sequence[str], grid: Sequence[Axis]) -> list[Axis]:
    """The columns that `--at COL=VALUE` holds at a value, each as an axis of one point."""
    held: list[Axis] = []
    for rule in rules:
        # Names and values may contain a = themselves: the longest existing column counts.
        splits = [(rule[:at].strip(), rule[at + 1 :].strip()) for at, char in enumerate(rule) if char == "="]
        if not splits:
            raise BadUsage(f"--at {rule} names no value", found="no =", hint=f"write for instance --at {rule}=1")
        known = [split for split in splits if split[0] in run.schema.roles.features]
        name, word = known[-1] if known else splits[0]
        feature = _find_feature(run, name, "--at")
        if name in [axis.feature.name for axis in (*grid, *held)]:
            what = f"--at: column '{name}' is already on the grid or held"
            raise BadUsage(what, found=f"--at {rule}", hint="hold another column")
        held.append(axis_at(feature, np.array([_parse_value(feature, word)])))
    return held


def _find_feature(run: FittedRun, name: str, where: str) -> Feature:
    if name == run.schema.condition:
        what = f"{where}: '{name}' is the condition, not a feature"
        raise BadUsage(what, found=f"classes: {listed(run.classes)}", hint="choose a class with --condition CLASS")
    features = {feature.name: feature for feature in run.schema.features}
    if name not in features:
        match_columns([name], list(features), option=where, what="feature")
    return features[name]


def _parse_value(feature: Feature, word: str) -> float:
    """The value of `--at` on the axis of its column."""
    if feature.kind is Kind.CATEGORICAL:
        if word not in feature.categories:
            raise BadUsage(
                f"--at: column '{feature.name}' has no category '{word}'",
                found=f"categories: {listed(feature.categories)}",
                hint=nearest_hint(word, feature.categories, "use one of the categories"),
            )
        return float(feature.categories.index(word))
    (value,) = _to_numbers(word)
    is_valid = math.isfinite(value) and (feature.kind is Kind.CONTINUOUS or value == round(value))
    if isinstance(feature.map, Logit):
        is_valid = is_valid and LOWEST <= value <= HIGHEST
    if not is_valid:
        kind = f"a whole number{_bounds(feature)}" if feature.kind is Kind.LATTICE else "a number"
        what = f"--at: column '{feature.name}' takes {kind}"
        raise BadUsage(what, found=f"value: '{word}'", hint="correct the value")
    return value


def _parse_ranges(text: str) -> list[tuple[float, float]]:
    numbers = _to_numbers(*text.split(","))
    if len(numbers) != 4 or not np.isfinite(numbers).all() or not (numbers[0] < numbers[1] and numbers[2] < numbers[3]):
        raise BadUsage(
            f"--range cannot be '{text}'",
            found="a range is LOW,HIGH of the first column, then LOW,HIGH of the second",
            hint="for instance --range 0,10,-1,1",
        )
    return [(numbers[0], numbers[1]), (numbers[2], numbers[3])]


def _to_numbers(*words: str) -> list[float]:
    try:
        return [float(word) for word in words]
    except ValueError:
        return [math.nan]


def _default_range(run: FittedRun, feature: Feature) -> tuple[float, float]:
    """The range of nearly all training rows."""
    if feature.kind is Kind.CATEGORICAL:
        return 0.0, len(feature.categories) - 1.0
    if isinstance(feature.map, Logit):
        return LOWEST, HIGHEST
    batches = [batch.column(0).to_numpy() for batch in run.training_rows([feature.name])]
    low, high = np.quantile(np.concatenate(batches), [_LEFT_OUT, 1.0 - _LEFT_OUT])
    margin = _MARGIN * (high - low) or 1.0
    return float(low - margin), float(high + margin)
