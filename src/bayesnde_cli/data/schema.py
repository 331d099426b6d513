"""All that is needed to bring rows of a file into the model's space, now or years later: `schema.json`."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bayesnde_cli.data.image import IMAGE_COLUMN, ImageShape, stored_pixels
from bayesnde_cli.data.kinds import Kind
from bayesnde_cli.data.roles import Roles, listed
from bayesnde_cli.data.scaling import CategoricalMarginal, ColumnMap, Logit, map_from_json
from bayesnde_cli.data.scaling.logit import HIGHEST, LOWEST
from bayesnde_cli.data.scaling.value_cells import noise_inside, value_cells
from bayesnde_cli.errors import BadInput
from bayesnde_cli.rng import derive_seed, uniform_at

SCHEMA_VERSION = 1

# The share of a cell, at both ends, in which rounding to float32 is looked at.
_EDGE = 1e-3
# Beside an edge at 0 the next number is so small that processors may take it for 0.
_LEAST_STEP = np.float32(1e-12)
# The log-Jacobian is stored on this grid (nats): the last bits of one machine's exp and log never reach the file.
_JACOBIAN_DECIMALS = 9


def noise_fractions(column: str, row_ids: np.ndarray, seed: int) -> np.ndarray:
    """The dequantisation noise of rows as uniform numbers, (rows,): it belongs to the column and the row's position."""
    return uniform_at(derive_seed(seed, "prepare", "dequantize", column), row_ids)


def _refuse_beyond_float32(u: np.ndarray, values: np.ndarray, row_ids: np.ndarray, column: str) -> None:
    too_large = np.abs(u) > np.finfo(np.float32).max
    if too_large.any():
        index = int(np.flatnonzero(too_large)[0])
        raise BadInput(
            f"column '{column}' is too large for the model in row {row_ids[index] + 1:,}",
            found=f"value: {values[index]:g}, scaled: {u[index]:g}, largest of float32: {np.finfo(np.float32).max:g}",
            hint="use --scale marginal, which keeps any value in range",
        )


@dataclass(frozen=True)
class Feature:
    """One modelled column: its kind, its categories if it has any, and its map into the model's space."""

    name: str
    kind: Kind
    categories: tuple[str, ...]
    map: ColumnMap

    def encode(self, column: pa.Array, row_ids: np.ndarray) -> np.ndarray:
        """The column as numbers: categories by their position, missing cells as NaN. (rows,), float64."""
        if self.kind is Kind.CATEGORICAL:
            codes = pc.index_in(column, value_set=pa.array(self.categories, pa.string()), skip_nulls=True)
            unseen = pc.and_(pc.is_null(codes), pc.is_valid(column)).to_numpy(zero_copy_only=False)
            self._refuse(unseen, column, row_ids, "an unseen category", f"categories: {listed(self.categories)}")
            return pc.cast(codes, pa.float64()).to_numpy(zero_copy_only=False)
        if not pa.types.is_floating(column.type):
            some = next((str(cell) for cell in column if cell.is_valid), "")
            raise BadInput(
                f"column '{self.name}' holds text, but the model knows it as numbers",
                found=f"for instance: {some!r}",
                hint="check that the column means what it meant when the model was fitted",
            )
        values = column.to_numpy(zero_copy_only=False)
        self._refuse(np.isinf(values), column, row_ids, "an infinity", "")
        if self.kind is Kind.LATTICE:
            off = np.isfinite(values) & (values != np.rint(values))
            self._refuse(off, column, row_ids, "a number off the lattice", "the model knows whole numbers only")
        if isinstance(self.map, Logit):
            off = (values < LOWEST) | (values > HIGHEST)
            self._refuse(off, column, row_ids, "a number out of range", "--scale logit knows 0 to 255 only")
        return values

    def scale(self, values: np.ndarray, row_ids: np.ndarray, seed: int) -> tuple[np.ndarray, np.ndarray]:
        """The column in the model's space and the log-slope there, both (rows,); noise is addressed by row."""
        if self.map.noise is None:
            return self.map.forward(values)
        fraction = noise_fractions(self.name, row_ids, seed)
        u, log_slope = self.map.forward(values, fraction)
        at_edge = np.flatnonzero(np.minimum(fraction, 1.0 - fraction) < _EDGE)
        if len(at_edge) and (isinstance(self.map, Logit) or noise_inside(self.map) is not None):
            # The model finds a value's cell by where it lies: float32 must not round it into the next one.
            lower, upper = (edge.astype(np.float32) for edge in self.cells(values[at_edge]))
            first = np.maximum(np.nextafter(lower, np.float32(np.inf)), lower + _LEAST_STEP)
            last = np.minimum(np.nextafter(upper, np.float32(-np.inf)), upper - _LEAST_STEP)
            u[at_edge] = np.where(first <= last, np.clip(u[at_edge], first, last), u[at_edge])
        return u, log_slope

    def cells(self, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The ends of the cell of each value, of a column with noise, in the model's space. (n,) each."""
        lower, upper = value_cells(self.map, values)
        if self.kind is Kind.CATEGORICAL:  # beyond the ends there are no values
            lower[values == 0.0] = -np.inf
            upper[values == len(self.categories) - 1.0] = np.inf
        return lower, upper

    def noisy(self, values: np.ndarray, row_ids: np.ndarray, seed: int) -> np.ndarray:
        """The quantity whose density is reported: the column with its noise, in the units of the file. (rows,)."""
        noise = self.map.noise
        return values if noise is None else noise.add(values, noise_fractions(self.name, row_ids, seed))

    def _refuse(self, bad: np.ndarray, column: pa.Array, row_ids: np.ndarray, what: str, found: str) -> None:
        if bad.any():
            index = int(np.flatnonzero(bad)[0])
            raise BadInput(
                f"column '{self.name}' has {what} in row {row_ids[index] + 1:,}",
                found=[f"cell: {column[index].as_py()!r}", *([found] if found else [])],
                hint="correct or remove the row",
            )


@dataclass(frozen=True)
class Schema:
    """The columns of a run, in order, with the seed of their noise."""

    roles: Roles
    features: tuple[Feature, ...]
    classes: tuple[str, ...]  # of the condition, in order; empty without one
    classes_are_whole: bool  # class labels are whole numbers and stored as such
    seed: int
    image: ImageShape | None = None  # where rows are images: all pixels are features, in order

    def encode(self, batch: pa.RecordBatch, row_ids: np.ndarray) -> np.ndarray:
        """The features of a batch as numbers, (rows, p) float64; `row_ids` are for messages.

        Images come as one column of all pixels, as `prepare` writes them, or as a column for each pixel.
        """
        if self.image is not None and IMAGE_COLUMN in batch.schema.names:
            return stored_pixels(batch.column(IMAGE_COLUMN)).astype(np.float64)
        columns = [feature.encode(batch.column(feature.name), row_ids) for feature in self.features]
        return np.stack(columns, axis=1)

    def scale(self, values: np.ndarray, row_ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Rows in the model's space, (rows, p) float32, and their log-Jacobian, (rows,) float64.

        log p(row, units of the file) = log p(row, model's space) + log-Jacobian.

        A missing cell (NaN) stays one, and the log-Jacobian is that of the cells that are there.
        """
        scaled = np.full(values.shape, np.nan, np.float32)
        log_jacobian = np.zeros(len(values))
        for position, feature in enumerate(self.features):
            is_there = ~np.isnan(values[:, position])
            there, ids = values[is_there, position], row_ids[is_there]
            u, log_slope = feature.scale(there, ids, self.seed)
            _refuse_beyond_float32(u, there, ids, feature.name)
            scaled[is_there, position] = u
            log_jacobian[is_there] += log_slope  # column by column: one order of summation on every machine
        return scaled, np.round(log_jacobian, _JACOBIAN_DECIMALS)

    def noisy(self, values: np.ndarray, row_ids: np.ndarray) -> np.ndarray:
        """Rows with their noise, in the units of the file, (rows, p) float64; a missing cell (NaN) stays one."""
        columns = zip(self.features, values.T, strict=True)
        return np.stack([feature.noisy(column, row_ids, self.seed) for feature, column in columns], axis=1)

    def text_columns(self) -> set[str]:
        """Columns that must be read as words, whatever they look like."""
        words = {feature.name for feature in self.features if feature.kind is Kind.CATEGORICAL}
        return words | {name for name in (self.roles.id, self.roles.condition, self.roles.outlier_label) if name}

    def one_hot(self, labels: Sequence[Any]) -> np.ndarray:
        """Class labels as unit vectors, (rows, classes) float32."""
        position = {name: index for index, name in enumerate(self.classes)}
        result = np.zeros((len(labels), len(self.classes)), np.float32)
        result[np.arange(len(labels)), [position[str(label)] for label in labels]] = 1.0
        return result

    def to_json(self) -> dict[str, Any]:
        roles = self.roles
        return {
            "schema_version": SCHEMA_VERSION,
            "seed": self.seed,
            "features": [
                {
                    "name": feature.name,
                    "kind": str(feature.kind),
                    "categories": list(feature.categories),
                    "map": feature.map.to_json(),
                }
                for feature in self.features
            ],
            "condition": roles.condition,
            "classes": list(self.classes),
            "classes_are_whole": self.classes_are_whole,
            "outlier_label": roles.outlier_label,
            "truth": roles.truth,
            "id": roles.id,
            "split_column": roles.split,
            **({} if self.image is None else {"image": self.image.to_json()}),
        }

    @classmethod
    def from_json(cls, document: dict[str, Any]) -> "Schema":
        """The schema that `to_json` described; ValueError, TypeError or KeyError if it is none."""
        features = tuple(
            Feature(_text(item["name"]), Kind(item["kind"]), _texts(item["categories"]), map_from_json(item["map"]))
            for item in document["features"]
        )
        names = [feature.name for feature in features]
        if not names or len(set(names)) < len(names):
            raise ValueError(f"{len(names)} features of {len(set(names))} names")
        for feature in features:
            _check_categories(feature)
        condition, outlier_label, truth, row_name, split = (
            None if document[name] is None else _text(document[name])
            for name in ("condition", "outlier_label", "truth", "id", "split_column")
        )
        classes, are_whole, seed = _texts(document["classes"]), document["classes_are_whole"], document["seed"]
        if bool(classes) != (condition is not None) or not isinstance(are_whole, bool):
            raise ValueError(
                f"{len(classes)} classes of the condition {condition!r}, classes_are_whole is {are_whole!r}"
            )
        if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
            raise ValueError(f"seed is {seed!r}")
        image = None if document.get("image") is None else ImageShape.from_json(document["image"])
        if image is not None:
            _check_pixels(image, features)
        roles = Roles(
            features=tuple(names),
            condition=condition,
            outlier_label=outlier_label,
            truth=truth,
            id=row_name,
            split=split,
        )
        return cls(roles, features, classes, are_whole, seed, image)


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is no text")
    return value


def _texts(values: Any) -> tuple[str, ...]:
    if not isinstance(values, list) or len(set(map(_text, values))) < len(values):
        raise TypeError(f"{values!r} is no list of different texts")
    return tuple(values)


def _check_pixels(image: ImageShape, features: Sequence[Feature]) -> None:
    is_pixel = [feature.kind is Kind.LATTICE and isinstance(feature.map, Logit) for feature in features]
    if len(features) != image.n_pixels or not all(is_pixel):
        raise ValueError(f"{len(features)} features of which {sum(is_pixel)} are pixels, of images of {image}")


def _check_categories(feature: Feature) -> None:
    n_codes = len(feature.map.counts) if isinstance(feature.map, CategoricalMarginal) else len(feature.categories)
    if bool(feature.categories) != (feature.kind is Kind.CATEGORICAL) or n_codes != len(feature.categories):
        raise ValueError(f"column {feature.name!r} is {feature.kind} with {len(feature.categories)} categories")
