"""Measures of a density: from arrays of log-densities, and from rows that the fitted model generates.

Measures are dictionaries as JSON holds them: numbers, or None where there is no number.
"""

import math
import operator
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import combinations
from typing import Any, NamedTuple

import numpy as np
from scipy.stats import ks_2samp, rankdata

from bayesnde_cli.errors import BadUsage, RequirementNotMet, escaped, nearest
from bayesnde_cli.inference.two_columns import PairSums, cell_probability
from bayesnde_cli.report import plots
from bayesnde_cli.report.collect import ModelFigures, read_scored
from bayesnde_cli.report.plots import Column, PairMap
from bayesnde_cli.rng import derive_seed, generator
from bayesnde_cli.rows import Rows
from bayesnde_cli.runs.layout import RunLayout
from bayesnde_cli.runs.manifest import Manifest
from bayesnde_cli.scaling.column_map import HIGHEST, LOWEST, Logit
from bayesnde_cli.settings.stage_settings import EvaluateSettings
from bayesnde_cli.stages.loading import Model
from bayesnde_cli.tables.columns import Kind
from bayesnde_cli.tables.model_rows import read_schema, read_split, to_file_units
from bayesnde_cli.tables.schema import Feature, Schema

Figures = dict[str, Any]


def figure(value: float) -> float | None:
    """A finite number as it is; None for any other."""
    return float(value) if math.isfinite(value) else None


def mean_figures(values: np.ndarray) -> tuple[float | None, float | None]:
    """The mean of finite values and its standard error s / sqrt(n); None where there are too few values."""
    n = len(values)
    if n == 0:
        return None, None
    return figure(math.fsum(values) / n), figure(np.std(values, ddof=1) / math.sqrt(n)) if n > 1 else None


# Log-densities


def log_density_figures(log_density: np.ndarray, log_density_scaled: np.ndarray, mc_se: np.ndarray) -> Figures:
    """The mean over the rows where it is finite, all (rows,).

    `mean_log_density_se`, s / sqrt(n), includes the Monte-Carlo error of the rows; `mean_log_density_mc_se` is that
    part alone, sqrt(sum of mc_se^2) / n.
    """
    finite = np.isfinite(log_density)
    mean, se = mean_figures(log_density[finite])
    mean_scaled, se_scaled = mean_figures(log_density_scaled[finite])
    n = int(finite.sum())
    return {
        "mean_log_density": mean,
        "mean_log_density_se": se,
        "mean_log_density_mc_se": figure(math.sqrt(np.sum(mc_se[finite] ** 2)) / n) if n else None,
        "mean_log_density_scaled": mean_scaled,
        "mean_log_density_scaled_se": se_scaled,
    }


def bits_figures(mean: Figures, n_dimensions: int) -> Figures:
    """Bits per dimension, -mean / (n log 2), and their standard error over rows.

    For bytes with noise U(0, 1) they are, in expectation, an upper bound of the bits per dimension of the bytes under
    the same model: log P(x) = log E[p(x + noise)] >= E[log p(x + noise)] (Theis, van den Oord and Bethge 2016).
    """
    nats_per_bit = n_dimensions * math.log(2.0)
    value, se = mean["mean_log_density"], mean["mean_log_density_se"]
    return {
        "bits_per_dimension": None if value is None else -value / nats_per_bit,
        "bits_per_dimension_se": None if se is None else se / nats_per_bit,
    }


def gain_figures(log_density: np.ndarray, other: np.ndarray) -> Figures:
    """The mean difference of two log-densities of the same rows, where both are finite.

    The error is that of the paired differences: what is hard for both does not count.
    """
    with np.errstate(invalid="ignore"):  # infinity minus infinity
        difference = log_density - other
    gain, se = mean_figures(difference[np.isfinite(difference)])
    return {"gain": gain, "gain_se": se}


def baseline_figures(other: np.ndarray, log_density: np.ndarray) -> Figures:
    """The log-density of a baseline, and how much better ours is; means are over rows where both are finite."""
    both = np.isfinite(other) & np.isfinite(log_density)
    mean, se = mean_figures(other[both])
    return {
        "n": int(both.sum()),
        "mean_log_density": mean,
        "mean_log_density_se": se,
        "n_not_finite": int((~np.isfinite(other)).sum()),
        **gain_figures(log_density[both], other[both]),
    }


def truth_figures(log_density: np.ndarray, truth: np.ndarray) -> Figures:
    """Agreement over the rows where both are finite. (rows,) each; `mean_difference` is estimated minus true."""
    both = np.isfinite(log_density) & np.isfinite(truth)
    x, y = log_density[both], truth[both]
    n = len(x)
    return {
        "n": n,
        "spearman": _correlation(rankdata(x), rankdata(y)),
        "pearson": _correlation(x, y),
        "rmse": figure(np.sqrt(np.mean((x - y) ** 2))) if n else None,
        "mean_difference": figure(np.mean(x - y)) if n else None,
    }


def _correlation(x: np.ndarray, y: np.ndarray) -> float | None:
    """Pearson's correlation; None if one of the two is constant."""
    if len(x) < 2 or np.ptp(x) == 0 or np.ptp(y) == 0:
        return None
    return figure(np.corrcoef(x, y)[0, 1])


# Outliers, in PyOD's orientation: the larger the score, the more outlying the row.


def outlier_score(log_density: np.ndarray) -> np.ndarray:
    """Minus the log-density; infinite for a row without a number."""
    return np.where(np.isnan(log_density), np.inf, -log_density)


def outlier_figures(score: np.ndarray, is_outlier: np.ndarray) -> Figures:
    """Precision at k, k the number of outliers, AUROC and average precision; None if all rows are outliers, or none.

    Scores may be infinite. Tied rows count as they would on average over their orders.
    """
    n_outliers = int(is_outlier.sum())
    figures: Figures = {"n": len(is_outlier), "n_outliers": n_outliers}
    figures |= {"precision_at_k": None, "auroc": None, "average_precision": None}
    if 0 < n_outliers < len(is_outlier):
        from sklearn.metrics import average_precision_score, roc_auc_score

        ranks = rankdata(score)
        figures["precision_at_k"] = precision_at_k(score, is_outlier, n_outliers)
        figures["auroc"] = float(roc_auc_score(is_outlier, ranks))
        figures["average_precision"] = float(average_precision_score(is_outlier, ranks))
    return figures


def precision_at_k(score: np.ndarray, is_outlier: np.ndarray, k: int) -> float:
    """The share of outliers among the k rows with the largest scores."""
    last = np.sort(score)[-k]
    above, tied = score > last, score == last
    share = is_outlier[tied].mean()  # of the tied rows, which fill the remaining places
    return float((is_outlier[above].sum() + share * (k - above.sum())) / k)


# Classes


def accuracy_figures(
    log_density: np.ndarray, mc_se: np.ndarray, true_class: np.ndarray, names: Sequence[str]
) -> Figures:
    """Accuracy of arg max_y p(x | y). log_density and mc_se (rows, classes), true_class (rows,) positions in `names`.

    A row is wrong if it has no number under some class, or two likeliest classes; it is in no column of the confusion
    matrix, whose rows are true classes. `n_close` counts the rows whose two likeliest classes differ by less than two
    Monte-Carlo errors of the difference.
    """
    highest = log_density.max(axis=1, keepdims=True)  # NaN if one of them is
    has_class = np.isfinite(highest[:, 0]) & ((log_density == highest).sum(axis=1) == 1)
    n = len(true_class)
    counts = np.zeros((len(names), len(names)), np.int64)
    np.add.at(counts, (true_class[has_class], log_density[has_class].argmax(axis=1)), 1)
    accuracy = float(np.trace(counts) / n)
    best = np.argsort(-log_density[has_class], axis=1)[:, :2]
    value, se = (np.take_along_axis(part[has_class], best, axis=1) for part in (log_density, mc_se))
    is_clear = value[:, 0] - value[:, 1] >= 2.0 * np.hypot(se[:, 0], se[:, 1])
    return {
        "accuracy": accuracy,
        # A quarter of Wilson's interval of two standard errors: not 0 where the share is 0 or 1.
        "accuracy_se": float(np.sqrt(accuracy * (1.0 - accuracy) / n + 1.0 / n**2) / (1.0 + 4.0 / n)),
        "confusion_matrix": {
            "classes": list(names),
            "counts": counts.tolist(),
            "n": n,
            "n_without_class": int((~has_class).sum()),
            "n_close": int(np.sum(~is_clear)),
        },
    }


# Generated rows: do they look like the data?


def generation_figures(model: Model, rows: Rows, config: EvaluateSettings, class_names: Sequence[str]) -> Figures:
    """The paper's eight diagnostics (S4) of generated rows; with classes, within each and their weighted mean.

    `of_itself` compares generated rows with as many rows of the model as there are data rows: the values of a perfect
    model.
    """
    from bayesnde_cli.training.selection import class_weighted, diagnose, diagnose_by_class, labels_like

    seed = _seed(config, "generation")
    real = rows.sample(config.generated_rows, seed)
    y = labels_like(real.y, config.generated_rows)
    generated = model.simulate(config.generated_rows if y is None else len(y), y, seed)
    own = model.simulate(len(real), real.y, derive_seed(seed, "of itself"))
    counts = {"n_rows": len(real), "n_generated": len(generated)}
    if real.y is None or y is None:
        whole, of_itself = (_finite(diagnose(x, generated, seed=seed)) for x in (real.x, own))
        return counts | whole | {"of_itself": of_itself}
    classes, generated_class = real.y.argmax(axis=1), y.argmax(axis=1)
    by_class = [
        diagnose_by_class(x, generated, real_class=classes, generated_class=generated_class, seed=seed)
        for x in (real.x, own)
    ]
    whole, of_itself = (_finite(class_weighted(each, classes)) for each in by_class)
    named = {class_names[index]: _finite(each) for index, each in by_class[0].items()}
    return counts | whole | {"of_itself": of_itself, "classes": named}


def _seed(config: EvaluateSettings, purpose: str) -> int:
    assert config.seed is not None
    return derive_seed(config.seed, "evaluate", purpose)


def _finite(diagnostics: Mapping[str, float]) -> Figures:
    return {name: figure(value) for name, value in diagnostics.items()}


# Typicality: are data rows as likely under the model as the model's own rows?
#
# If a model is right, log p(x) of held-out rows and of generated rows have one distribution. Held-out rows of lower
# density mean that the model puts its mass too narrowly, or elsewhere; of higher density, too widely.
#
# The Kolmogorov-Smirnov test compares the middle of the two distributions. The lower tail, where outliers are, has
# its own test: how many of n rows are less likely than all m generated ones. If the distributions are the same, all
# orders of the n + m log-densities are equally likely, and
#
#     P(k or more) = P(the k lowest are all rows) = prod_{i < k} (n - i) / (n + m - i),    n / (m + 1) on average.

LEAST_P_VALUE = 0.01
_QUANTILES = (5, 25, 50, 75, 95)  # per cent
TYPICAL = "no difference found"
_LOWER = "rows have lower density than the model's own rows: it is too narrow, or they come from another source"
_HIGHER = "rows have higher density than the model's own rows: it spreads its mass too widely"
_TAIL = "too many rows are less likely than any of the model's own rows: it has too little mass in the tails"
_OTHER = "densities of rows are spread differently from those of the model's own rows"


def own_density_figures(model: Model, rows: Rows, config: EvaluateSettings) -> Figures:
    """The typicality of rows, by importance-sampling estimates in the model's space."""
    from bayesnde_cli.training.selection import labels_like

    seed = _seed(config, "typicality")
    some = rows.sample(config.typicality_rows, seed)
    y = labels_like(some.y, config.typicality_rows)
    simulated = model.simulate(config.typicality_rows if y is None else len(y), y, seed)
    # One call for both: a second one could compile a second program.
    x, given = np.concatenate([some.x, simulated]), None if y is None or some.y is None else np.concatenate([some.y, y])
    log_density = model.log_density(x, given, derive_seed(seed, "log-density"))
    return typicality_figures(log_density[: len(some)], log_density[len(some) :])


def typicality_figures(log_density: np.ndarray, simulated: np.ndarray) -> Figures:
    """Summaries of two samples of log-densities, and both tests; numbers that are not finite are only counted."""
    kept = [values[np.isfinite(values)] for values in (log_density, simulated)]
    figures: Figures = {"rows": _summary(log_density, kept[0]), "simulated": _summary(simulated, kept[1])}
    n, m = map(len, kept)
    if min(n, m) < 2:
        names = ("mean_difference", "ks", "ks_p_value", "n_below_all", "n_below_all_p_value")
        return figures | dict.fromkeys(names) | {"verdict": "too few rows to tell"}
    test = ks_2samp(*kept, method="asymp")
    n_below = int((kept[0] < kept[1].min()).sum())
    p_below = math.prod((n - i) / (n + m - i) for i in range(n_below))
    verdict = _TAIL if p_below < LEAST_P_VALUE else TYPICAL
    if test.pvalue < LEAST_P_VALUE:
        lower, higher = (ks_2samp(*kept, alternative=side, method="asymp").statistic for side in ("greater", "less"))
        is_one_sided = max(lower, higher) >= 2.0 * min(lower, higher)
        verdict = (_LOWER if lower > higher else _HIGHER) if is_one_sided else _OTHER
    return figures | {
        "mean_difference": figure(kept[0].mean() - kept[1].mean()),
        "ks": float(test.statistic),
        "ks_p_value": float(test.pvalue),
        "n_below_all": n_below,
        "n_below_all_p_value": p_below,
        "verdict": verdict,
    }


def _summary(values: np.ndarray, kept: np.ndarray) -> Figures:
    quantiles = np.quantile(kept, np.array(_QUANTILES) / 100) if len(kept) else [np.nan] * len(_QUANTILES)
    return {
        "n": len(kept),
        "n_not_finite": len(values) - len(kept),
        "mean": figure(kept.mean()) if len(kept) else None,
        "sd": figure(kept.std(ddof=1)) if len(kept) > 1 else None,
        "quantiles": {str(q): figure(value) for q, value in zip(_QUANTILES, quantiles, strict=True)},
    }


# What the report shows of the model

# Columns in the plots: all of a narrow table, or those in which generated rows differ most from real ones.
_MAX_COLUMNS = 6
_N_GENERATED = 5000
# Latents that the density of two columns is averaged over, and how many are decoded at once.
_N_LATENTS, _LATENTS_AT_ONCE = 2**16, 2**12
# Cells along each side of a density map: of a single pair, and of one among several.
_FINE_CELLS, _COARSE_CELLS = 96, 40
# Training and validation rows that are scored for comparison.
_N_SEEN_ROWS = 512


def model_figures(model: Model, layout: RunLayout, set_name: str) -> ModelFigures:
    """Everything that a report about this set needs from the model. The seed is that of the densities."""
    schema = read_schema(layout)
    seed = derive_seed(Manifest.read(layout.manifest_file("density", set_name)).seed, "report")
    splits = {name: read_split(layout, name) for name in ("train", "validation")}
    seen = _score_seen(model, splits, seed)
    if schema.image is not None:
        return ModelFigures(model.latent_dim, seen, images=_generate_images(model, schema, seed))
    real = to_file_units(schema, read_scored(layout, set_name, schema)[1])
    columns = _generate_columns(model, schema, real, y_train=splits["train"].y, seed=seed)
    maps = _map_pairs(model, schema, columns, y_train=splits["train"].y, seed=seed)
    return ModelFigures(model.latent_dim, seen, columns, maps)


def _score_seen(model: Model, splits: dict[str, Rows], seed: int) -> dict[str, np.ndarray]:
    """Log-densities of some training and validation rows by importance sampling, in the units of the file."""
    parts = [rows.sample(_N_SEEN_ROWS, derive_seed(seed, name)) for name, rows in splits.items()]
    rows = Rows.concatenate(parts)  # one call for both: a second one would compile a second program
    log_density = model.log_density(rows.x, rows.y, derive_seed(seed, "seen")) + rows.log_jacobian
    return dict(zip(splits, np.split(log_density, [len(parts[0])]), strict=True))


def _generate_images(model: Model, schema: Schema, seed: int) -> np.ndarray:
    """Generated rows for the sheets in the model's space, class by class, (rows, p) float32."""
    from bayesnde_cli.report.sheets import MAX_IMAGE_CLASSES, N_IMAGE_ROWS, N_RANDOM_IMAGES

    n_rows, y = N_IMAGE_ROWS * N_RANDOM_IMAGES, None
    if schema.classes:
        index = np.repeat(np.arange(len(schema.classes[:MAX_IMAGE_CLASSES])), N_RANDOM_IMAGES)
        n_rows, y = len(index), np.eye(len(schema.classes), dtype=np.float32)[index]
    return model.simulate(n_rows, y, derive_seed(seed, "images"))


def _generate_columns(
    model: Model, schema: Schema, real: np.ndarray, *, y_train: np.ndarray | None, seed: int
) -> tuple[Column, ...]:
    """The columns to plot, of real rows (rows, p) and of generated ones; class frequencies are those of training."""
    from bayesnde_cli.training.selection import column_distances, labels_like

    y = labels_like(y_train, _N_GENERATED)
    x = model.simulate(_N_GENERATED if y is None else len(y), y, derive_seed(seed, "generated"))
    generated = to_file_units(schema, x)
    chosen = list(range(len(schema.features)))
    complete = real[~np.isnan(real).any(axis=1)]
    if len(chosen) > _MAX_COLUMNS and len(complete):  # those with the largest Kolmogorov-Smirnov distance
        _, distance = column_distances(complete, generated)
        chosen = sorted(np.argsort(-distance, kind="stable")[:_MAX_COLUMNS].tolist())
    columns = []
    for index in chosen[:_MAX_COLUMNS]:
        feature = schema.features[index]
        is_whole = feature.kind is Kind.LATTICE
        columns.append(Column(feature.name, real[:, index], generated[:, index], feature.categories, is_whole))
    return tuple(columns)


def _map_pairs(
    model: Model, schema: Schema, columns: Sequence[Column], *, y_train: np.ndarray | None, seed: int
) -> tuple[PairMap, ...]:
    """The density of each pair of columns, averaged over grid cells.

    Scaling is increasing in every column, so a cell of the file is a cell of the model's space, whose probability is
    exact given a latent: neither a Jacobian nor a very fine grid is needed.
    """
    from bayesnde_cli.training.selection import labels_like

    names = [feature.name for feature in schema.features]
    position = [names.index(column.name) for column in columns]
    features = [schema.features[index] for index in position]
    n_cells = _FINE_CELLS if len(columns) == 2 else _COARSE_CELLS
    edges = [_cell_edges(column, feature, n_cells) for column, feature in zip(columns, features, strict=True)]
    scaled = [scale_edges(feature, own) for feature, own in zip(features, edges, strict=True)]
    sums = {(i, j): PairSums(len(edges[i]) - 1, len(edges[j]) - 1) for i, j in combinations(range(len(columns)), 2)}
    labels = labels_like(y_train, _N_LATENTS)
    n_latents = _N_LATENTS if labels is None else len(labels)
    z = generator(seed, "latents").standard_normal((n_latents, model.latent_dim), np.float32)
    for start in range(0, n_latents, _LATENTS_AT_ONCE):
        piece = slice(start, start + _LATENTS_AT_ONCE)
        mean, variance = model.decode(z[piece], None if labels is None else labels[piece])
        sd = np.sqrt(variance, dtype=np.float64)
        inside = [
            cell_probability(own[:-1], own[1:], mean[:, at].astype(np.float64), sd[:, at])  # (latents, cells)
            for own, at in zip(scaled, position, strict=True)
        ]
        for (i, j), own_sums in sums.items():
            own_sums.add(inside[i], inside[j])
    return tuple(
        PairMap(i, j, edges[i], edges[j], own_sums.density.T / np.outer(np.diff(edges[j]), np.diff(edges[i])))
        for (i, j), own_sums in sums.items()
    )


def _cell_edges(column: Column, feature: Feature, n_cells: int) -> np.ndarray:
    """Edges of grid cells that cover nearly all values of a column."""
    if column.categories:
        return np.arange(len(column.categories) + 1) - 0.5
    low, high = plots.column_range(column.real, column.generated)
    if feature.map.noise is not None:
        return plots.integer_edges(low, high, n_cells)
    return np.linspace(*plots.widen(low, high, by=0.03), n_cells + 1)


def scale_edges(feature: Feature, edges: np.ndarray) -> np.ndarray:
    """Cell edges in the model's space. Edges halfway between whole numbers are those of the numbers' noise."""
    if feature.map.noise is None:
        scaled = feature.map.forward(edges)[0]
        if feature.kind is Kind.CATEGORICAL:  # there is nothing beyond the first and the last category
            scaled[0], scaled[-1] = -np.inf, np.inf
        return scaled
    values = np.append(edges[:-1] + 0.5, edges[-1] - 0.5)  # the first value of each cell, and the last value of all
    if isinstance(feature.map, Logit):
        values = np.clip(values, LOWEST, HIGHEST)
    lower, upper = feature.cells(values)
    return np.append(lower[:-1], upper[-1])


# Requirements: limits for values in metrics.json, as in `truth.spearman>=0.97`.

_SIGNS: dict[str, Callable[[float, float], bool]] = {
    ">=": operator.ge,
    "<=": operator.le,
    "==": operator.eq,
    ">": operator.gt,
    "<": operator.lt,
}
# The last sign counts: a class may be called a>b. A name that ends in another sign, as in a=>3, is a mistake.
_FORM = re.compile(r"\s*(?P<name>.*?[^=!<>~\s])\s*(?P<sign>>=|<=|==|>|<)\s*(?P<value>[^<>=]+?)\s*", re.DOTALL)
# The names in sections that a set of rows may lack; other names depend on the run.
_SECTIONS = {
    "truth": ("n", "spearman", "pearson", "rmse", "mean_difference"),
    "outliers": ("n", "n_outliers", "precision_at_k", "auroc", "average_precision"),
}


class Requirement(NamedTuple):
    """A limit for the value of this name."""

    name: str
    sign: str
    value: float

    def miss(self, found: float | None) -> str | None:
        """What is wrong with a value, in one line; None if nothing is."""
        if found is None:
            return f"{self.name} has no value here, wanted {self.sign} {self.value:g}"
        if _SIGNS[self.sign](found, self.value):
            return None
        gap = abs(found - self.value)
        return f"{self.name} is {found:.6g}, wanted {self.sign} {self.value:g}: missed by {gap:.3g}"


def parse_requirement(text: str) -> Requirement:
    """The requirement in the user's text."""
    match = _FORM.fullmatch(text)
    try:
        value = float(match["value"]) if match else math.nan
    except ValueError:
        value = math.nan
    if match is None or math.isnan(value):
        raise BadUsage(
            f"--require {escaped(text)} is not of the form NAME OP VALUE",
            found=f"OP is one of {' '.join(_SIGNS)}, VALUE a number",
            hint="for instance --require 'mean_log_density>=-4.1'",
        )
    return Requirement(match["name"], match["sign"], value)


def check_requirements(requirements: Sequence[Requirement], metrics: Mapping[str, Any]) -> None:
    """Nothing, if all are met; `BadUsage` for an unknown name, else `RequirementNotMet`."""
    figures = dict(_flatten(metrics))
    for section in _SECTIONS.keys() & figures.keys():  # None, and not a mapping
        del figures[section]
        figures |= {f"{section}.{name}": None for name in _SECTIONS[section]}
    for name in (requirement.name for requirement in requirements):
        parts = name.split(".")
        is_section_missing = any(figures.get(".".join(parts[:n]), 0.0) is None for n in range(1, len(parts)))
        if name not in figures and not is_section_missing:
            match = nearest(name, list(figures))
            raise BadUsage(
                f"--require: there is no figure '{escaped(name)}'",
                found=f"figures: {', '.join(figures)}",
                hint=f"did you mean '{match}'?" if match else "use one of the figures above",
            )
    missed = [line for item in requirements if (line := item.miss(figures.get(item.name)))]
    if missed:
        what = f"{len(missed)} of {len(requirements)} requirements {'is' if len(missed) == 1 else 'are'} not met"
        raise RequirementNotMet(
            what if len(requirements) > 1 else "the requirement is not met",
            found=missed,
            hint="see all figures with --json",
        )


def _flatten(metrics: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, float | None]]:
    """The dotted name of every number, and of every missing one (None)."""
    for key, value in metrics.items():
        if isinstance(value, Mapping):
            yield from _flatten(value, f"{prefix}{key}.")
        elif value is None or (isinstance(value, int | float) and not isinstance(value, bool)):
            yield f"{prefix}{key}", value
