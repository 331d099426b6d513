"""Rows and densities of the fitted model: compared with data rows for metrics.json, and as the report shows them."""

from collections.abc import Sequence
from itertools import combinations

import numpy as np

from bayesnde_cli.inference.two_columns import PairSums, cell_probability
from bayesnde_cli.report import plots
from bayesnde_cli.report.collect import ModelFigures, read_scored
from bayesnde_cli.report.plots import Column, PairMap
from bayesnde_cli.report.sheets import MAX_IMAGE_CLASSES, N_IMAGE_ROWS, N_RANDOM_IMAGES
from bayesnde_cli.rng import derive_seed, generator
from bayesnde_cli.rows import Rows
from bayesnde_cli.runs.layout import RunLayout
from bayesnde_cli.runs.manifest import Manifest
from bayesnde_cli.scaling.column_map import HIGHEST, LOWEST, Logit
from bayesnde_cli.stages.loading import Model
from bayesnde_cli.stages.measures import Figures, figure, typicality_figures
from bayesnde_cli.tables.columns import Kind
from bayesnde_cli.tables.model_rows import read_schema, read_split, to_file_units
from bayesnde_cli.tables.schema import Feature, Schema
from bayesnde_cli.training.generated_rows import column_distances, diagnose_by_class, labels_like

# Columns in the plots: all of a narrow table, or those in which generated rows differ most from real ones.
_MAX_COLUMNS = 6
_N_GENERATED = 5000
# Latents that the density of two columns is averaged over, and how many are decoded at once.
_N_LATENTS, _LATENTS_AT_ONCE = 2**16, 2**12
# Cells along each side of a density map: of a single pair, and of one among several.
_FINE_CELLS, _COARSE_CELLS = 96, 40
# Training and validation rows that are scored for comparison.
_N_SEEN_ROWS = 512


def _simulate(model: Model, y: np.ndarray | None, n_rows: int, seed: int) -> tuple[np.ndarray, np.ndarray | None]:
    """About n_rows rows of the model with the class shares of y, and their classes."""
    y = labels_like(y, n_rows)
    return model.simulate(n_rows if y is None else len(y), y, seed), y


# For metrics.json


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


# For the report


def for_report(model: Model, layout: RunLayout, set_name: str) -> ModelFigures:
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
