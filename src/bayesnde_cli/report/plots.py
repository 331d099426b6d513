"""Plots, drawn by matplotlib from arrays as SVG text.

A plot is drawn once, in the colours of a light page. Inside a page these colours become CSS variables, so that one
drawing serves light and dark pages. Equal arrays give equal text.
"""

import functools
import io
import math
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, ParamSpec, TypeVar
from xml.etree import ElementTree

import numpy as np

from bayesnde_cli.errors import escaped, one_line

if TYPE_CHECKING:  # matplotlib takes a second to import
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# SVG units (points): the size of one plot, which a phone shows slightly smaller.
WIDTH, HEIGHT, MAP_HEIGHT = 380, 250, 320
# Colours of a light page, by the names of the CSS variables that replace them.
COLOURS = {
    "ink": "#1c2128",
    "soft": "#5a6472",
    "rule": "#d9dee5",
    "s1": "#2166ac",
    "s2": "#d6651a",
    "s3": "#2e8b57",
    "bad": "#c0272d",
}
_DASHES: dict[str, Any] = {"color": COLOURS["soft"], "linestyle": (0, (5, 4)), "linewidth": 1}
_XLINK_HREF = "{http://www.w3.org/1999/xlink}href"
_FONTS = "system-ui, -apple-system, 'Segoe UI', Roboto, Helvetica, Arial, sans-serif"
# Cells of a density map above this quantile share the brightest colour, so that a spike does not darken the rest.
_BRIGHTEST = 0.995
# Points that are coloured by a number, in groups: one SVG path for each.
_N_SHADES, _MAX_COLOURED_POINTS = 24, 3000
_MAX_MATRIX_POINTS, _N_MATRIX_BINS, _MATRIX_SIDE = 300, 20, 116
# A grid's colours span this many nats below the highest density, a factor of 400.
_GRID_DEPTH = 6.0
_LEAST_GRID_PIXELS = 600
_MAX_CATEGORY_TICKS = 12

P = ParamSpec("P")
T = TypeVar("T")


class Plot(NamedTuple):
    """A drawn plot, and the names of its colours."""

    title: str
    svg: str
    legend: Sequence[tuple[str, str]] = ()  # name, colour


@dataclass(frozen=True)
class Training:
    """Losses and validation checks of a training stage. Steps are numbered through all phases."""

    stage: str
    losses: Mapping[str, tuple[np.ndarray, np.ndarray]]  # phase -> step and loss, (records,) each, model's space
    step: np.ndarray  # (checks,)
    log_density: np.ndarray  # (checks,) mean over validation rows, units of the file
    se: np.ndarray  # (checks,)
    selected: int  # the check whose weights were kept
    selected_by: str = "marginal"
    n_epochs: int | None = None  # of the last phase


@dataclass(frozen=True)
class Column:
    """One feature in the units of the file; categories by position."""

    name: str
    real: np.ndarray  # (rows,) the scored rows, in order
    generated: np.ndarray  # (generated rows,)
    categories: tuple[str, ...] = ()
    is_whole: bool = False  # a lattice of whole numbers


class PairMap(NamedTuple):
    """The estimated density of two of the columns, averaged over grid cells, with the others integrated out."""

    x_index: int  # position among the columns
    y_index: int
    x_edges: np.ndarray  # (nx + 1,)
    y_edges: np.ndarray  # (ny + 1,)
    density: np.ndarray  # (ny, nx)


# Ranges and bins


def robust_range(values: np.ndarray) -> tuple[float, float]:
    """The range of nearly all values: up to four interquartile ranges beyond the quartiles."""
    finite = values[np.isfinite(values)]
    if not len(finite):
        return 0.0, 1.0
    lower, upper = np.quantile(finite, [0.25, 0.75])
    reach = 4.0 * (upper - lower)
    inside = finite[(finite >= lower - reach) & (finite <= upper + reach)]
    return widen(float(inside.min()), float(inside.max()))


def widen(low: float, high: float, by: float = 0.0) -> tuple[float, float]:
    """The range with this relative margin on both sides; never empty."""
    if high <= low:
        half = 0.5 * abs(low) * 1e-3 or 0.5
        low, high = low - half, high + half
    margin = by * (high - low)
    return low - margin, high + margin


def column_range(real: np.ndarray, generated: np.ndarray) -> tuple[float, float]:
    """The range in which a column is plotted: nearly all real values, and all generated ones but half a per cent."""
    low, high = robust_range(real)
    finite = generated[np.isfinite(generated)]
    if not len(finite):
        return low, high
    tails = np.quantile(finite, [0.0025, 0.9975])
    return widen(min(low, float(tails[0])), max(high, float(tails[1])))


def count_bins(n_rows: int) -> int:
    """Rice's rule, twice the cube root of the number of rows, between 8 and 40."""
    return min(40, max(8, math.ceil(2 * n_rows ** (1 / 3))))


def common_edges(samples: Sequence[np.ndarray], span: tuple[float, float] | None = None) -> np.ndarray:
    """Bin edges for several samples: their common range, and bins for the smallest sample."""
    low, high = span or robust_range(np.concatenate(samples))
    return np.linspace(low, high, count_bins(min(len(sample) for sample in samples)) + 1)


def edges_through(limit: float, low: float, high: float, n_bins: int) -> np.ndarray:
    """Edges of about this many equal bins, one of them at the limit: no bar lies on both of its sides."""
    width = (high - low) / n_bins
    n_below, n_above = math.ceil((limit - low) / width), math.ceil((high - limit) / width)
    return np.asarray(limit + width * np.arange(-n_below, n_above + 1))


def integer_edges(low: float, high: float, max_bins: int) -> np.ndarray:
    """Edges of bins that hold equally many whole numbers; unequal bins would show a comb that is not in the data."""
    first, last = math.floor(low), math.ceil(high)
    width = math.ceil((last - first + 1) / max_bins)
    n_bins = math.ceil((last - first + 1) / width)
    return first - 0.5 + width * np.arange(n_bins + 1)


def bin_shares(values: np.ndarray, edges: np.ndarray) -> np.ndarray:
    """The share of finite values in each bin, (bins,); values beyond the edges count in the end bins."""
    finite = values[np.isfinite(values)]
    counts, _ = np.histogram(np.clip(finite, edges[0], edges[-1]), edges)
    return np.asarray(counts / max(len(finite), 1))


def thin(n_rows: int, n_kept: int) -> np.ndarray:
    """At most this many row positions, evenly spread."""
    return np.linspace(0, n_rows - 1, min(n_rows, n_kept)).round().astype(np.int64)


# Figures and SVG


def styled(draw: Callable[P, T]) -> Callable[P, T]:
    """The drawing function with the settings of `plots.mplstyle`, whatever those of the user are."""

    @functools.wraps(draw)
    def draw_styled(*args: P.args, **kwargs: P.kwargs) -> T:
        import logging

        logging.getLogger("matplotlib").setLevel(logging.ERROR)  # silent about its font cache
        import matplotlib

        with warnings.catch_warnings(), matplotlib.rc_context():
            warnings.simplefilter("ignore", UserWarning)  # the viewer's fonts have glyphs that ours lacks
            matplotlib.rc_file(Path(__file__).with_suffix(".mplstyle"))
            return draw(*args, **kwargs)

    return draw_styled


def new_figure(width: float = WIDTH, height: float = HEIGHT) -> "Figure":
    """An empty figure of this size in SVG units; its parts never overlap."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width / 72, height / 72), dpi=72, layout="constrained")


def _new_axes(x_label: str, y_label: str, height: float = HEIGHT) -> "Axes":
    """Axes of a new figure, with horizontal grid lines and ticks at multiples of 1, 2 and 5."""
    axes = new_figure(height=height).add_subplot(xlabel=x_label, ylabel=y_label)
    axes.locator_params(steps=[1, 2, 5, 10])
    axes.grid(axis="y")
    return axes


def _page_plot(figure: "Figure", title: str, css_class: str = "plot", legend: Sequence[tuple[str, str]] = ()) -> Plot:
    """The figure as an SVG element of a page, in the page's colours and fonts."""
    root = _svg_tree(figure, title)
    del root.attrib["width"], root.attrib["height"]
    root.attrib |= {"role": "img", "class": css_class}
    text = ElementTree.tostring(root, "unicode")
    for name, colour in COLOURS.items():
        text = text.replace(f": {colour}", f": var(--{name})")
    return Plot(title, text, legend)


def file_svg(figure: "Figure", title: str) -> bytes:
    """The figure as an SVG file on white paper."""
    figure.get_layout_engine().set(w_pad=0.1, h_pad=0.1)  # inches: no page around it leaves a margin
    root = _svg_tree(figure, title)
    root.attrib |= {"xmlns": "http://www.w3.org/2000/svg", "font-family": _FONTS}
    paper = {"width": root.attrib["width"], "height": root.attrib["height"], "fill": "#ffffff"}
    root.insert(1, ElementTree.Element("rect", paper))
    return ElementTree.tostring(root, "utf-8") + b"\n"


def _svg_tree(figure: "Figure", title: str) -> ElementTree.Element:
    """The figure as a compact SVG tree without namespaces, fonts and unused ids."""
    import matplotlib

    matplotlib.rcParams["svg.hashsalt"] = title  # ids are unique among the plots of a page, and always the same
    file = io.BytesIO()
    figure.savefig(file, format="svg", metadata=dict.fromkeys(("Creator", "Date", "Format", "Type")))
    root = ElementTree.fromstring(file.getvalue())
    used = set(re.findall(rb'(?:url\(|href=")#(\w+)', file.getvalue()))
    for element in root.iter():
        element.tag = element.tag.partition("}")[2]
        element.tail = None
        if element.tag != "text":
            element.text = None
        _tidy(element.attrib, used)
    root.remove(root[0])  # its style sheet would apply to the whole page
    sizes = {name: root.attrib[name].removesuffix("pt") for name in ("viewBox", "width", "height")}
    root.attrib = {**sizes, "style": "stroke-linejoin: round; stroke-linecap: butt"}
    root.insert(0, ElementTree.Element("title"))
    root[0].text = escaped(title)
    return root


def _tidy(attributes: dict[str, str], used_ids: set[bytes]) -> None:
    """Shorten the attributes of an SVG element."""
    if attributes.get("id", "").encode() not in used_ids:
        attributes.pop("id", None)
    if _XLINK_HREF in attributes:
        attributes["href"] = attributes.pop(_XLINK_HREF).replace("\n", "")
    if attributes.get("transform", "").startswith("rotate(-0 "):
        del attributes["transform"]
    if "style" in attributes:
        attributes["style"] = re.sub(r"font-family: [^;]*;? ?", "", attributes["style"])
    for name in {"d", "x", "y"} & attributes.keys():
        attributes[name] = re.sub(r"-?\d+\.\d+", lambda number: f"{float(number[0]):.1f}", attributes[name])
    if "d" in attributes:
        path = re.sub(r" ?([A-Za-z]) ?", r"\1", " ".join(attributes["d"].split()))
        attributes["d"] = re.sub(r"M([\d. -]+)L\1(?=M|$)", r"M\1h0", path)  # dots


def _draw_dots(axes: "Axes", x: np.ndarray, y: np.ndarray, **look: Any) -> None:
    """Dots as one SVG path: a line of no length with round ends is a dot. Dots beyond the axes lie on their edge."""
    from matplotlib import patches, path

    is_finite = np.isfinite(x) & np.isfinite(y)
    places = np.stack([np.clip(x, *axes.get_xlim()), np.clip(y, *axes.get_ylim())], axis=1)[is_finite]
    if len(places):
        codes = np.tile([path.Path.MOVETO, path.Path.LINETO], len(places))
        dots = path.Path(places.repeat(2, axis=0), codes)
        axes.add_patch(patches.PathPatch(dots, fill=False, capstyle="round", **look))


def _set_log_scale(axes: "Axes", axis: Any, low: float, high: float) -> None:
    """A logarithmic axis with plain numbers; narrow ranges also have ticks at 2 and 5."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    axes.set(**{f"{axis.axis_name}scale": "log"})
    axis.set_major_locator(LogLocator(subs=(1, 2, 5) if high / low < 100 else (1,), numticks=8))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))


def _set_categories(axis: Any, names: Sequence[str], max_letters: int = 10) -> None:
    """Ticks with the names of categories, which are at 0, 1, 2, …; every second or third one if there are many."""
    every = -(-len(names) // _MAX_CATEGORY_TICKS)
    axis.set_ticks(range(0, len(names), every), [one_line(name, max_letters) for name in names[::every]])


def add_colour_bar(figure: "Figure", axes: Any, shown: Any, label: str, **look: Any) -> None:
    """Add a colour scale next to the axes."""
    bar = figure.colorbar(shown, ax=axes, label=label, **({"aspect": 24, "pad": 0.02} | look))
    bar.solids.set_rasterized(True)  # one image instead of 256 rectangles
    bar.outline.set_visible(False)


# Plots of the page


class HistogramAxis(NamedTuple):
    """The axes of a histogram: a label, a limit to mark, the names of categories at 0, 1, 2, …"""

    label: str = ""
    limit: float | None = None
    categories: Sequence[str] = ()
    is_log: bool = False
    y_label: str = "% of rows"


@styled
def plot_histograms(
    samples: Sequence[tuple[str, np.ndarray, str]],
    edges: np.ndarray,
    axis: HistogramAxis,
    *,
    title: str,
    height: float = HEIGHT,
) -> Plot:
    """Histograms of samples (name, values, colour): the first is filled, the others are outlines; a limit is dashed."""
    axes = _new_axes(axis.label, axis.y_label, height)
    heights = [100 * bin_shares(values, edges) for _, values, _ in samples]
    for index, (_, _, colour) in enumerate(samples):
        if index == 0:
            axes.stairs(heights[0], edges, fill=True, color=COLOURS[colour], alpha=0.35)
        axes.stairs(heights[index], edges, color=COLOURS[colour], linewidth=1 if index == 0 else 2)
    if axis.limit is not None:
        axes.axvline(axis.limit, **_DASHES)
    if axis.is_log:
        _set_log_scale(axes, axes.xaxis, float(edges[0]), float(edges[-1]))
    if axis.categories:
        _set_categories(axes.xaxis, axis.categories)
    axes.set(xlim=(edges[0], edges[-1]), ylim=(0.0, 1.05 * float(np.max(heights)) or 1.0))
    return _page_plot(axes.figure, title, legend=[(name, colour) for name, _, colour in samples if name])


@styled
def plot_means(ranked: Sequence[Mapping[str, Any]]) -> Plot:
    """Mean log-densities of estimators with error bars, one line for each, the first on top."""
    means = np.array([own["mean_log_density"] for own in ranked], np.float64)
    half_widths = np.array([2 * (own.get("mean_log_density_se") or 0.0) for own in ranked])
    axes = _new_axes("log-density, nats per row", "", 64 + 26 * len(ranked))
    for index, (own, mean, half) in enumerate(zip(ranked, means, half_widths, strict=True)):
        colour = COLOURS["s1" if own["is_ours"] else "s2"]
        axes.plot([mean - half, mean + half], [index, index], color=colour, linewidth=2)
        axes.plot(mean, index, "o", color=colour, markersize=7)
    axes.set_yticks(range(len(ranked)), [one_line(own["name"], 28) for own in ranked])
    axes.set(xlim=widen(float((means - half_widths).min()), float((means + half_widths).max()), by=0.05))
    axes.set_ylim(len(ranked) - 0.5, -0.5)
    return _page_plot(axes.figure, "Mean log-density, ± 2 s.e.")


@styled
def plot_confusion(matrix: Mapping[str, Any]) -> Plot:
    """Shares of classes found (columns) for each true class (rows, the first on top)."""
    counts = np.array(matrix["counts"], np.float64)
    figure = new_figure(height=WIDTH)
    axes = figure.add_subplot(xlabel="class found", ylabel="true class")
    image = axes.imshow(counts / np.maximum(counts.sum(axis=1, keepdims=True), 1.0), vmin=0.0, vmax=1.0, origin="upper")
    for axis in (axes.xaxis, axes.yaxis):
        _set_categories(axis, matrix["classes"], max_letters=6)
    add_colour_bar(figure, axes, image, "share of the true class")
    return _page_plot(figure, "Share of each true class by the class found")


@styled
def plot_validation(training: Training, *, reference: float | None) -> Plot:
    """Validation log-density ± 2 s.e. by training step: the selected check has a ring, a reference is dashed."""
    step, log_density, se, selected = training.step, training.log_density, training.se, training.selected
    axes = _new_axes("step", "log-density, nats")
    ends = np.concatenate([log_density - 2 * se, log_density + 2 * se, [] if reference is None else [reference]])
    blue, orange = COLOURS["s1"], COLOURS["s2"]
    axes.errorbar(step, log_density, 2 * se, fmt="none", ecolor=blue, elinewidth=1, alpha=0.5)
    axes.plot(step, log_density, "o-", color=blue, linewidth=2, markersize=5)
    axes.plot(step[selected], log_density[selected], "o", mfc="none", mec=orange, mew=2, markersize=13)
    if reference is not None:
        axes.axhline(reference, **_DASHES)
    axes.set(xlim=widen(float(step.min()), float(step.max()), by=0.04), ylim=widen(*robust_range(ends), by=0.05))
    return _page_plot(axes.figure, f"{training.stage}: validation rows")


@styled
def plot_loss(training: Training, phase: str) -> Plot:
    """The loss of one phase by training step; the selected step is dashed. The range leaves out the wildest losses."""
    step, loss = training.losses[phase]
    selected_step = training.step[training.selected]
    axes = _new_axes("step", "loss, model's space")
    axes.plot(step, loss, color=COLOURS["s1"], linewidth=2)
    if step[0] <= selected_step <= step[-1]:
        axes.axvline(selected_step, **_DASHES)
    finite = loss[np.isfinite(loss)]
    low, high = np.quantile(finite, [0.02, 0.98]).tolist() if len(finite) else (0.0, 1.0)
    axes.set(xlim=widen(float(step.min()), float(step.max())), ylim=widen(low, high, by=0.1))
    return _page_plot(axes.figure, f"{training.stage}: loss ({phase})")


@styled
def plot_against_truth(truth: np.ndarray, estimate: np.ndarray) -> Plot:
    """Estimated against true log-densities, with the diagonal."""
    axes = _new_axes("true log-density, nats", "estimated, nats", MAP_HEIGHT)
    span = widen(*robust_range(np.concatenate([truth, estimate])), by=0.03)
    axes.set(xlim=span, ylim=span)
    axes.plot(span, span, **_DASHES)
    _draw_dots(axes, truth, estimate, color=COLOURS["s1"], linewidth=3.5, alpha=0.6)
    return _page_plot(axes.figure, "Estimated against true")


@styled
def plot_errors(
    log_density: np.ndarray,
    mc_se: np.ndarray,
    groups: Mapping[str, tuple[np.ndarray, str]],
    *,
    target: float,
) -> Plot:
    """Monte-Carlo errors against log-densities; groups are named row positions with a colour, the target is dashed."""
    axes = _new_axes("log-density, nats", "s.e., nats")
    positive = mc_se[np.isfinite(mc_se) & (mc_se > 0)]
    ends = np.clip([*positive, target], 1e-6, 1e6)
    low, high = 0.8 * float(ends.min()), 1.25 * float(ends.max())
    _set_log_scale(axes, axes.yaxis, low, high)
    axes.set(xlim=widen(*robust_range(log_density), by=0.03), ylim=(low, high))
    axes.axhline(target, **_DASHES)
    for rows, colour in groups.values():
        _draw_dots(axes, log_density[rows], mc_se[rows], color=COLOURS[colour], linewidth=4, alpha=0.85)
    legend = [(name, colour) for name, (_, colour) in groups.items()]
    return _page_plot(axes.figure, "Monte-Carlo error against log-density", legend=legend)


@styled
def plot_density_map(cells: PairMap, columns: Sequence[Column], *, rows: np.ndarray | None = None) -> Plot:
    """The density of two columns as a colour map; `rows` are positions of rows to show as dots."""
    axes = _map_axes(cells, columns)
    image = _draw_density(axes, cells.density, (*axes.get_xlim(), *axes.get_ylim()))
    add_colour_bar(axes.figure, axes, image, "density", extend="max")
    if rows is not None:
        _draw_dots(axes, columns[0].real[rows], columns[1].real[rows], color="white", linewidth=2.5, alpha=0.75)
    return _page_plot(axes.figure, "Estimated density" if rows is None else "Estimated density, with the rows")


@styled
def plot_row_map(
    cells: PairMap, columns: Sequence[Column], values: np.ndarray, *, span: tuple[float, float], title: str
) -> Plot:
    """Rows of two columns, coloured by their log-density over this span."""
    from matplotlib import colormaps
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import Normalize

    axes = _map_axes(cells, columns)
    norm = Normalize(*span)
    rows = thin(len(values), _MAX_COLOURED_POINTS)
    shade = np.clip(np.nan_to_num(norm(values[rows])) * _N_SHADES, 0, _N_SHADES - 1).astype(int)
    for index in np.unique(shade).tolist():
        here = rows[shade == index]
        colour = colormaps["viridis"]((index + 0.5) / _N_SHADES)
        _draw_dots(axes, columns[0].real[here], columns[1].real[here], color=colour, linewidth=4)
    add_colour_bar(axes.figure, axes, ScalarMappable(norm, "viridis"), "log-density, nats", extend="both")
    return _page_plot(axes.figure, title)


@styled
def plot_pairs(columns: Sequence[Column], maps: Sequence[PairMap]) -> Plot:
    """All pairs of columns: rows below the diagonal, densities above it, histograms on it."""
    edges = {cells.x_index: cells.x_edges for cells in maps} | {cells.y_index: cells.y_edges for cells in maps}
    spans = [(edges[index][0], edges[index][-1]) for index in range(len(columns))]
    densities = {(cells.x_index, cells.y_index): cells.density for cells in maps}
    n = len(columns)
    figure = new_figure(n * _MATRIX_SIDE + 20, n * _MATRIX_SIDE + 20)
    for (i, j), axes in np.ndenumerate(figure.subplots(n, n)):
        axes.set(xticks=[], yticks=[], xlim=spans[j], ylim=spans[i])
        for spine in axes.spines.values():
            spine.set(visible=True, color=COLOURS["rule"])
        if i == j:
            _draw_marginals(axes, columns[i], spans[i])
        elif i > j:
            rows = thin(len(columns[i].real), _MAX_MATRIX_POINTS)
            look: dict[str, Any] = {"color": COLOURS["s1"], "linewidth": 2.5, "alpha": 0.6}
            _draw_dots(axes, columns[j].real[rows], columns[i].real[rows], **look)
        else:  # stored with the first column across, here the later column is across
            _draw_density(axes, densities[i, j].T, (*spans[j], *spans[i]))
        if j == 0:
            axes.set_ylabel(one_line(columns[i].name, 16), fontsize=11)
        if i == n - 1:
            axes.set_xlabel(one_line(columns[j].name, 16), fontsize=11)
    return _page_plot(figure, "Pairs of features", "matrix")


def _draw_marginals(axes: "Axes", column: Column, span: tuple[float, float]) -> None:
    """Histograms of one column: bars for real rows, a line for generated rows."""
    bins = np.linspace(*span, (len(column.categories) or _N_MATRIX_BINS) + 1)
    if column.is_whole:
        bins = integer_edges(span[0] + 0.5, span[1] - 0.5, _N_MATRIX_BINS)  # spans end halfway between numbers
    real, generated = (bin_shares(values, bins) for values in (column.real, column.generated))
    axes.stairs(real, bins, fill=True, color=COLOURS["s1"], alpha=0.35)
    axes.stairs(generated, bins, color=COLOURS["s2"], linewidth=2)
    axes.set_ylim(0.0, 1.1 * max(float(real.max()), float(generated.max())) or 1.0)


def _draw_density(axes: "Axes", density: np.ndarray, extent: tuple[float, float, float, float]) -> Any:
    """A density (ny, nx) as an image. Colours follow its square root, so that low parts show."""
    from matplotlib.colors import PowerNorm

    positive = density[density > 0]
    top = float(np.quantile(positive, _BRIGHTEST)) if len(positive) else 1.0
    return axes.imshow(density, norm=PowerNorm(0.5, vmin=0.0, vmax=top), extent=extent, aspect="auto")


def _map_axes(cells: PairMap, columns: Sequence[Column]) -> "Axes":
    """Axes of two columns in a new figure, with the ranges of their map."""
    figure = new_figure(height=MAP_HEIGHT)
    axes = figure.add_subplot(xlabel=one_line(columns[0].name, 60), ylabel=one_line(columns[1].name, 40))
    axes.set(xlim=widen(*cells.x_edges[[0, -1]].tolist()), ylim=widen(*cells.y_edges[[0, -1]].tolist()))
    for axis, column in zip((axes.xaxis, axes.yaxis), columns, strict=True):
        if column.categories:
            _set_categories(axis, column.categories)
    return axes


# Pictures of `grid`


@styled
def grid_svg(
    log_density: np.ndarray,
    extent: tuple[float, float, float, float],
    *,
    names: Sequence[str],
    categories: Sequence[Sequence[str]],
    title: str,
) -> bytes:
    """Log-densities on a grid of two columns, (first, second), as an SVG file with axes, title and colour scale."""
    figure = new_figure(640, 520)
    axes = figure.add_subplot(xlabel=one_line(names[0], 60), ylabel=one_line(names[1], 50))
    axes.set_title(one_line(title, 80), loc="left", fontsize=15)
    values, norm = _grid_colours(log_density)
    image = axes.imshow(values, extent=extent, norm=norm, aspect="auto")
    for axis, own in zip((axes.xaxis, axes.yaxis), categories, strict=True):
        if own:
            _set_categories(axis, own, max_letters=12)
    add_colour_bar(figure, axes, image, "log-density, nats", extend="min")
    return file_svg(figure, title)


def grid_png(log_density: np.ndarray) -> bytes:
    """Log-densities on a grid as a PNG of the map alone, the second column upwards."""
    from matplotlib.cm import ScalarMappable

    from bayesnde_cli.report.sheets import png_bytes

    values, norm = _grid_colours(log_density)
    pixels = ScalarMappable(norm, "viridis").to_rgba(values[::-1], bytes=True)[..., :3]
    for side in (0, 1):  # each point is a block of pixels, so that viewers do not blur it
        pixels = np.repeat(pixels, -(-_LEAST_GRID_PIXELS // pixels.shape[side]), axis=side)
    return png_bytes(pixels)


def _grid_colours(log_density: np.ndarray) -> tuple[np.ndarray, Any]:
    """The rows of the map, the lowest first, without gaps, and their colour scale."""
    from matplotlib.colors import Normalize

    high = float(np.max(log_density, where=np.isfinite(log_density), initial=-np.inf))
    high = high if math.isfinite(high) else 0.0
    low = high - _GRID_DEPTH
    return np.nan_to_num(log_density.T, nan=low, neginf=low), Normalize(low, high)
