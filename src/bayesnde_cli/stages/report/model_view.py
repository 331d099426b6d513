"""What a report shows of the fitted model: rows it generates, densities of pairs of columns, rows that it has seen."""

from collections.abc import Iterator, Sequence

import numpy as np

from bayesnde_cli.artifacts.layout import RunLayout
from bayesnde_cli.data.kinds import Kind
from bayesnde_cli.data.schema import Feature, Schema
from bayesnde_cli.report.binning import shown_range, whole_edges, widened
from bayesnde_cli.report.report_data import Column, PairMap
from bayesnde_cli.rng import derive_seed, generator
from bayesnde_cli.stages.evaluate.model import Model
from bayesnde_cli.stages.report.cells import edges_with_noise, file_cells, scaled_places
from bayesnde_cli.stages.report.pair_density import pair_shares
from bayesnde_cli.stages.training.rows import labels_like, read_rows
from bayesnde_cli.training.diagnostics import column_distances

_MOST_COLUMNS = 6
_N_GENERATED = 5000
# Latents that a density of two columns is averaged over, and how many at once.
_N_LATENTS, _LATENTS_AT_ONCE = 2**16, 2**12
# Cells of a map along each side: of the only pair, and of one among several.
_FINE, _COARSE = 96, 40
# Rows of a split that are scored, to be compared with those of the set.
_SEEN_ROWS = 512
_MARGIN = 0.03


class ModelView:
    """A fitted model, looked at from the outside. Its chance is that of a seed."""

    def __init__(self, model: Model, layout: RunLayout, schema: Schema, *, seed: int) -> None:
        self._model, self._schema = model, schema
        self._seed = derive_seed(seed, "report")
        self._splits = {name: read_rows(layout, name) for name in ("train", "validation")}

    @property
    def x_train(self) -> np.ndarray:
        """The training rows in the model's space, (rows, p) float32."""
        return self._splits["train"].x

    @property
    def n_train_by_class(self) -> list[int]:
        """The training rows of each class; without a condition there is none."""
        y = self._splits["train"].y
        return [] if y is None else [int(n) for n in y.sum(axis=0, dtype=np.float64)]

    @property
    def latent_dim(self) -> int:
        return self._model.latent_dim

    def columns(self, x_scaled: np.ndarray) -> tuple[Column, ...]:
        """The columns to show: all, or those in which generated rows differ most from these. (rows, p)."""
        real, generated = (file_cells(self._schema, rows) for rows in (x_scaled, self._generated()))
        return tuple(
            Column(
                name=self._schema.features[index].name,
                real=real[:, index],
                generated=generated[:, index],
                categories=self._schema.features[index].categories,
                is_whole=self._schema.features[index].kind is Kind.LATTICE,
            )
            for index in _most_different(real, generated)
        )

    def pair_maps(self, columns: Sequence[Column]) -> tuple[PairMap, ...]:
        """The density of each pair of columns."""
        position = {feature.name: index for index, feature in enumerate(self._schema.features)}
        chosen = [position[column.name] for column in columns]
        features = [self._schema.features[index] for index in chosen]
        n_cells = _FINE if len(columns) == 2 else _COARSE
        edges = [_edges(column, feature, n_cells) for column, feature in zip(columns, features, strict=True)]
        places = [_scaled_edges(feature, at) for feature, at in zip(features, edges, strict=True)]
        return tuple(
            PairMap(i, j, edges[i], edges[j], share.T / np.outer(np.diff(edges[j]), np.diff(edges[i])))
            for (i, j), share in pair_shares(self._conditionals(chosen), places).items()
        )

    def seen_log_density(self) -> dict[str, np.ndarray]:
        """Log-densities of some training and validation rows, by importance sampling, in the units of the file."""
        parts = [split.sample(_SEEN_ROWS, derive_seed(self._seed, name)) for name, split in self._splits.items()]
        y = None if parts[0].y is None else np.concatenate([part.y for part in parts if part.y is not None])
        # All in one call: a call for each would be compiled for each.
        scaled = self._model.log_density(np.concatenate([part.x for part in parts]), y, derive_seed(self._seed, "seen"))
        found = scaled + np.concatenate([part.log_jacobian for part in parts])
        return dict(zip(self._splits, np.split(found, [len(parts[0].x)]), strict=True))

    def generated_images(self, n_rows: int, y: np.ndarray | None) -> np.ndarray:
        """So many rows of the model, of these classes, in its space. (rows, p) float32."""
        return self._model.simulate(n_rows, y, derive_seed(self._seed, "images"))

    def _generated(self) -> np.ndarray:
        """Rows of the model, classes as often as in training. (rows, p) float32."""
        y = labels_like(self._splits["train"].y, _N_GENERATED)
        return self._model.simulate(_N_GENERATED if y is None else len(y), y, derive_seed(self._seed, "generated"))

    def _conditionals(self, chosen: Sequence[int]) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Mean and standard deviation of the chosen columns given latents from the prior, in pieces."""
        labels = labels_like(self._splits["train"].y, _N_LATENTS)
        n_latents = _N_LATENTS if labels is None else len(labels)
        z = generator(self._seed, "latents").standard_normal((n_latents, self._model.latent_dim), np.float32)
        for start in range(0, n_latents, _LATENTS_AT_ONCE):
            piece = slice(start, start + _LATENTS_AT_ONCE)
            mean, variance = self._model.decode(z[piece], None if labels is None else labels[piece])
            yield mean[:, chosen].astype(np.float64), np.sqrt(variance[:, chosen], dtype=np.float64)


def _most_different(real: np.ndarray, generated: np.ndarray) -> list[int]:
    """Positions of columns, in order: all, or those with the largest Kolmogorov-Smirnov distance."""
    if real.shape[1] <= _MOST_COLUMNS:
        return list(range(real.shape[1]))
    whole = real[~np.isnan(real).any(axis=1)]
    if not len(whole):
        return list(range(_MOST_COLUMNS))
    _, distance = column_distances(whole, generated)
    return sorted(np.argsort(-distance, kind="stable")[:_MOST_COLUMNS].tolist())


def _scaled_edges(feature: Feature, edges: np.ndarray) -> np.ndarray:
    """Edges in the model's space; beyond the first and the last category there is nothing else."""
    places = scaled_places(feature.map, edges_with_noise(feature, edges))
    if feature.kind is Kind.CATEGORICAL:
        places[0], places[-1] = -np.inf, np.inf
    return places


def _edges(column: Column, feature: Feature, n_cells: int) -> np.ndarray:
    """Edges of cells that hold nearly all of a column; those of a lattice are of whole numbers."""
    if column.categories:
        return np.arange(len(column.categories) + 1) - 0.5
    low, high = shown_range(column.real, column.generated)
    if column.is_whole and feature.map.noise is not None:
        return whole_edges(low, high, n_cells)
    low, high = widened(low, high, by=_MARGIN)
    return np.linspace(low, high, n_cells + 1)
