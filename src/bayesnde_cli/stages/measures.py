"""Measures of a density, from arrays of log-densities and from rows of the model, and what the report shows of it.

Measures are dictionaries as JSON holds them: numbers, or None where a number is missing.
"""

import math
from collections.abc import Sequence
from itertools import combinations
from typing import Any

import numpy as np
from scipy.stats import ks_2samp, rankdata

from bayesnde_cli.inference.two_columns import PairSums, cell_probability
from bayesnde_cli.report import plots
from bayesnde_cli.report.collect import ModelFigures, read_scored
from bayesnde_cli.report.plots import Column, PairMap
from bayesnde_cli.rng import derive_seed, generator
from bayesnde_cli.rows import Rows
from bayesnde_cli.runs.layout import RunLayout
from bayesnde_cli.runs.manifest import Manifest
from bayesnde_cli.scaling.column_map import HIGHEST, LOWEST, Logit
from bayesnde_cli.stages.loading import Model
from bayesnde_cli.tables.columns import Kind
from bayesnde_cli.tables.model_rows import read_schema, read_split, to_file_units
from bayesnde_cli.tables.schema import Feature, Schema
from bayesnde_cli.training.generated_rows import column_distances, diagnose_by_class, labels_like

Figures = dict[str, Any]

# Columns in the plots: all of a narrow table, or those in which generated rows differ most from real ones.
_MAX_COLUMNS = 6
_N_GENERATED = 5000
# Latents that the density of two columns is averaged over, and how many are decoded at once.
_N_LATENTS, _LATENTS_AT_ONCE = 2**16, 2**12
# Cells along each side of a density map: of a single pair, and of one among several.
_FINE_CELLS, _COARSE_CELLS = 96, 40
# Training and validation rows that are scored for comparison.
_N_SEEN_ROWS = 512


def figure(value: float) -> float | None:
    """A finite number as it is; None for any other."""
    return float(value) if math.isfinite(value) else None


def mean_figures(values: np.ndarray) -> tuple[float | None, float | None]:
    """The mean of finite values and its standard error s / sqrt(n); None where there are too few values."""
    n = len(values)
    if n == 0:
        return None, None
    return figure(math.fsum(values) / n), figure(np.std(values, ddof=1) / math.sqrt(n)) if n > 1 else None


def named_mean(name: str, values: np.ndarray) -> Figures:
    """The mean of finite values under this name, and its standard error."""
    return dict(zip((name, f"{name}_se"), mean_figures(values), strict=True))


# Log-densities


def log_density_figures(log_density: np.ndarray, log_density_scaled: np.ndarray, mc_se: np.ndarray) -> Figures:
    """The mean over the rows where it is finite, all (rows,).

    `mean_log_density_se`, s / sqrt(n), includes the Monte-Carlo error of the rows; `mean_log_density_mc_se` is that
    part alone, sqrt(sum of mc_se^2) / n.
    """
    finite = np.isfinite(log_density)
    n = int(finite.sum())
    return {
        **named_mean("mean_log_density", log_density[finite]),
        "mean_log_density_mc_se": figure(math.sqrt(np.sum(mc_se[finite] ** 2)) / n) if n else None,
        **named_mean("mean_log_density_scaled", log_density_scaled[finite]),
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
    both = np.isfinite(log_density) & np.isfinite(other)
    return named_mean("gain", log_density[both] - other[both])


def baseline_figures(other: np.ndarray, log_density: np.ndarray) -> Figures:
    """The log-density of a baseline, and how much better ours is; means are over rows where both are finite."""
    both = np.isfinite(other) & np.isfinite(log_density)
    figures = {"n": int(both.sum()), "n_not_finite": int((~np.isfinite(other)).sum())}
    return figures | named_mean("mean_log_density", other[both]) | gain_figures(log_density, other)


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
_PERCENTILES = (5, 25, 50, 75, 95)
TYPICAL = "no difference found"
_LOWER = "rows have lower density than the model's own rows: it is too narrow, or they come from another source"
_HIGHER = "rows have higher density than the model's own rows: it spreads its mass too widely"
_TAIL = "too many rows are less likely than any of the model's own rows: it has too little mass in the tails"
_OTHER = "densities of rows are spread differently from those of the model's own rows"


def typicality_figures(log_density: np.ndarray, simulated: np.ndarray) -> Figures:
    """Summaries of two samples of log-densities, and both tests; numbers that are not finite are only counted."""
    samples = [values[np.isfinite(values)] for values in (log_density, simulated)]
    figures: Figures = {
        "rows": _summary(samples[0], len(log_density)),
        "simulated": _summary(samples[1], len(simulated)),
    }
    own, other = samples
    n, m = len(own), len(other)
    if min(n, m) < 2:
        names = ("mean_difference", "ks", "ks_p_value", "n_below_all", "n_below_all_p_value")
        return figures | dict.fromkeys(names) | {"verdict": "too few rows to tell"}
    test = ks_2samp(own, other, method="asymp")
    n_below = int((own < other.min()).sum())
    p_below = math.prod((n - i) / (n + m - i) for i in range(n_below))
    verdict = _TAIL if p_below < LEAST_P_VALUE else TYPICAL
    if test.pvalue < LEAST_P_VALUE:
        lower, higher = (ks_2samp(own, other, side, method="asymp").statistic for side in ("greater", "less"))
        is_one_sided = max(lower, higher) >= 2.0 * min(lower, higher)
        verdict = (_LOWER if lower > higher else _HIGHER) if is_one_sided else _OTHER
    return figures | {
        "mean_difference": figure(own.mean() - other.mean()),
        "ks": float(test.statistic),
        "ks_p_value": float(test.pvalue),
        "n_below_all": n_below,
        "n_below_all_p_value": p_below,
        "verdict": verdict,
    }


def _summary(finite: np.ndarray, n_values: int) -> Figures:
    n = len(finite)
    return {
        "n": n,
        "n_not_finite": n_values - n,
        "mean": figure(finite.mean()) if n else None,
        "sd": figure(finite.std(ddof=1)) if n > 1 else None,
        "quantiles": {str(q): figure(np.percentile(finite, q)) if n else None for q in _PERCENTILES},
    }


# Rows of the model


def _simulate(model: Model, y: np.ndarray | None, n_rows: int, seed: int) -> tuple[np.ndarray, np.ndarray | None]:
    """About n_rows rows of the model with the class shares of y, and their classes."""
    y = labels_like(y, n_rows)
    return model.simulate(n_rows if y is None else len(y), y, seed), y


def generation(model: Model, rows: Rows, n_rows: int, seed: int, class_names: Sequence[str]) -> Figures:
    """The paper's eight diagnostics (S4) of generated rows; with classes, within each and their weighted mean.

    `of_itself` compares generated rows with as many rows of the model as there are data rows: the values of a perfect
    model.
    """
    real = rows.sample(n_rows, seed)
    generated, y = _simulate(model, real.y, n_rows, seed)
    own = model.simulate(len(real), real.y, derive_seed(seed, "of itself"))
    whole, by_class = diagnose_by_class(real.x, generated, real.y, y, seed=seed)
    of_itself, _ = diagnose_by_class(own, generated, real.y, y, seed=seed)
    figures: Figures = {"n_rows": len(real), "n_generated": len(generated), **_finite(whole)}
    if by_class:
        figures["classes"] = {class_names[index]: _finite(each) for index, each in by_class.items()}
    return figures | {"of_itself": _finite(of_itself)}


def _finite(diagnostics: dict[str, float]) -> Figures:
    return {name: figure(value) for name, value in diagnostics.items()}


def typicality(model: Model, rows: Rows, n_rows: int, seed: int) -> Figures:
    """The typicality of rows, by importance-sampling estimates in the model's space."""
    some = rows.sample(n_rows, seed)
    simulated, y = _simulate(model, some.y, n_rows, seed)
    # One call for both: a second one could compile a second program.
    x, given = np.concatenate([some.x, simulated]), None if y is None or some.y is None else np.concatenate([some.y, y])
    log_density = model.log_density(x, given, derive_seed(seed, "log-density"))
    return typicality_figures(log_density[: len(some)], log_density[len(some) :])


# What the report shows of the model


def model_figures(model: Model, layout: RunLayout, set_name: str) -> ModelFigures:
    """Everything that a report about this set needs from the model. The seed is that of the densities."""
    schema = read_schema(layout)
    seed = derive_seed(Manifest.read(layout.manifest_file("density", set_name)).seed, "report")
    splits = {name: read_split(layout, name) for name in ("train", "validation")}
    seen = _score_seen(model, splits, seed)
    if schema.image is not None:
        return ModelFigures(model.latent_dim, seen, images=_generate_images(model, schema, seed))
    y_train = splits["train"].y  # class frequencies are those of training
    x_generated, _ = _simulate(model, y_train, _N_GENERATED, derive_seed(seed, "generated"))
    real = to_file_units(schema, read_scored(layout, set_name, schema)[1])
    chosen, columns = _choose_columns(schema, real, to_file_units(schema, x_generated))
    return ModelFigures(model.latent_dim, seen, columns, _map_pairs(model, chosen, columns, y_train, seed))


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


def _choose_columns(
    schema: Schema, real: np.ndarray, generated: np.ndarray
) -> tuple[dict[int, Feature], tuple[Column, ...]]:
    """The features to plot by their positions, and their columns in real and generated rows (rows, p)."""
    chosen = list(range(len(schema.features)))[:_MAX_COLUMNS]
    complete = real[~np.isnan(real).any(axis=1)]
    if len(schema.features) > _MAX_COLUMNS and len(complete):
        _, distance = column_distances(complete, generated)  # Kolmogorov-Smirnov
        chosen = sorted(np.argsort(-distance, kind="stable")[:_MAX_COLUMNS].tolist())
    features = {index: schema.features[index] for index in chosen}
    return features, tuple(
        Column(own.name, real[:, index], generated[:, index], own.categories, own.kind is Kind.LATTICE)
        for index, own in features.items()
    )


def _map_pairs(
    model: Model, features: dict[int, Feature], columns: Sequence[Column], y_train: np.ndarray | None, seed: int
) -> tuple[PairMap, ...]:
    """The density of each pair of columns, averaged over grid cells.

    Scaling is increasing in every column, so a cell of the file is a cell of the model's space, whose probability is
    exact given a latent: neither a Jacobian nor a very fine grid is needed.
    """
    n_cells = _FINE_CELLS if len(columns) == 2 else _COARSE_CELLS
    edges = [_cell_edges(column, own, n_cells) for column, own in zip(columns, features.values(), strict=True)]
    scaled = [scale_edges(feature, own) for feature, own in zip(features.values(), edges, strict=True)]
    sums = {(i, j): PairSums(len(edges[i]) - 1, len(edges[j]) - 1) for i, j in combinations(range(len(columns)), 2)}
    prior, labels = model.prior(_LATENTS_AT_ONCE), labels_like(y_train, _N_LATENTS)
    if labels is not None:  # all classes in every block
        labels = labels[np.resize(generator(seed, "labels").permutation(len(labels)), _N_LATENTS)]
    for block in range(_N_LATENTS // _LATENTS_AT_ONCE):
        y = None if labels is None else labels[block * _LATENTS_AT_ONCE : (block + 1) * _LATENTS_AT_ONCE]
        mean, variance = prior.moments(derive_seed(seed, "latents", block), y)
        sd = np.sqrt(variance, dtype=np.float64)
        inside = [
            cell_probability(own[:-1], own[1:], mean[:, at].astype(np.float64), sd[:, at])  # (latents, cells)
            for own, at in zip(scaled, features, strict=True)
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
