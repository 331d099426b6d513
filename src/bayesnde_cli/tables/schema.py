"""The schema of a run: everything needed to map rows of a file into the model's space, stored as `schema.json`."""

import re
from collections.abc import Collection, Sequence
from functools import cached_property
from typing import Annotated, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import ConfigDict, Field, TypeAdapter
from pydantic.dataclasses import dataclass

from bayesnde_cli.errors import BadInput
from bayesnde_cli.rng import derive_seed, uniform_at
from bayesnde_cli.scaling.column_map import HIGHEST, LOWEST, Affine, Logit
from bayesnde_cli.scaling.discrete import CategoricalMarginal, LatticeMarginal, noise_inside
from bayesnde_cli.scaling.mixture import MixtureMarginal
from bayesnde_cli.tables import columns

# The field `kind` of a stored map says which of these it is.
StoredMap = Annotated[
    Affine | Logit | MixtureMarginal | LatticeMarginal | CategoricalMarginal, Field(discriminator="kind")
]
# The part of a cell, at both ends, where rounding to float32 may leave the cell.
_EDGE = 1e-3
# Next to an edge at 0 the neighbouring float32 is so small that processors may flush it to 0.
_LEAST_STEP = np.float32(1e-12)
_LARGEST_FLOAT32 = float(np.finfo(np.float32).max)


def noise_fractions(column: str, row_ids: np.ndarray, seed: int) -> np.ndarray:
    """The dequantisation noise of rows as uniform numbers, (rows,): it belongs to the column and the row's position."""
    return uniform_at(derive_seed(seed, "prepare", "dequantize", column), row_ids)


@dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class Feature:
    """One modelled column: its type, its categories if it has any, and its map into the model's space."""

    name: str
    kind: columns.Kind
    categories: tuple[str, ...]
    map: StoredMap

    def encode(self, column: pa.Array, row_ids: np.ndarray) -> np.ndarray:
        """The column as numbers: categories by their position, missing cells as NaN. (rows,), float64."""
        has = f"column '{self.name}' has"
        if self.kind is columns.Kind.CATEGORICAL:
            codes = pc.index_in(column, value_set=pa.array(self.categories, pa.string()), skip_nulls=True)
            unseen = pc.and_(pc.is_null(codes), pc.is_valid(column)).to_numpy(zero_copy_only=False)
            known = f"categories: {columns.listed(self.categories)}"
            columns.refuse_cells(column, unseen, row_ids, f"{has} an unseen category", known)
            return pc.cast(codes, pa.float64()).to_numpy(zero_copy_only=False)
        if not pa.types.is_floating(column.type):
            some = next((str(cell) for cell in column if cell.is_valid), "")
            raise BadInput(
                f"column '{self.name}' holds text, but the model was fitted to numbers",
                found=f"for instance: {some!r}",
                hint="check that the column means what it meant when the model was fitted",
            )
        values = column.to_numpy(zero_copy_only=False)
        columns.refuse_cells(column, np.isinf(values), row_ids, f"{has} an infinity")
        if self.kind is columns.Kind.LATTICE:
            off = np.isfinite(values) & (values != np.rint(values))
            known = "the model was fitted to whole numbers"
            columns.refuse_cells(column, off, row_ids, f"{has} a number off the lattice", known)
        if isinstance(self.map, Logit):
            off = (values < LOWEST) | (values > HIGHEST)
            known = "--scale logit takes 0 to 255 only"
            columns.refuse_cells(column, off, row_ids, f"{has} a number out of range", known)
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
        """The ends of the cell of each value, of a column with noise, in the model's space. (n,) each.

        Marginals of a lattice have nothing between their cells; the others are cut halfway between the values.
        """
        assert self.map.noise is not None
        is_marginal = isinstance(self.map, CategoricalMarginal | LatticeMarginal)
        half = 0.5 if is_marginal else 0.5 / self.map.noise.width
        with np.errstate(divide="ignore"):  # the outer ends of bytes under a logit are infinite, as they should be
            lower, upper = (self.map.forward(values, np.full(len(values), 0.5 + s * half))[0] for s in (-1, 1))
        if self.kind is columns.Kind.CATEGORICAL:  # beyond the ends there are no values
            lower[values == 0.0] = -np.inf
            upper[values == len(self.categories) - 1.0] = np.inf
        return lower, upper


@dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class Schema:
    """The columns of a run, in order, with the seed of their noise."""

    features: tuple[Feature, ...]
    seed: int
    condition: str | None = None
    classes: tuple[str, ...] = ()  # of the condition, in order
    classes_are_whole: bool = False  # class labels are whole numbers and stored as such
    outlier_label: str | None = None
    truth: str | None = None
    id: str | None = None
    split_column: str | None = None
    image: columns.ImageShape | None = None  # where rows are images: all pixels are features, in order
    schema_version: int = 1

    @cached_property
    def roles(self) -> columns.Roles:
        """The columns by their roles."""
        names = tuple(feature.name for feature in self.features)
        return columns.Roles(names, self.condition, self.outlier_label, self.truth, self.id, self.split_column)

    def text_columns(self) -> set[str]:
        """Columns that are read as text, even if they look like numbers."""
        return self.roles.words | {item.name for item in self.features if item.kind is columns.Kind.CATEGORICAL}

    def encode(self, batch: pa.RecordBatch, row_ids: np.ndarray) -> np.ndarray:
        """The features of a batch as numbers, (rows, p) float64; `row_ids` are for messages.

        Images come as one column of all pixels, as `prepare` writes them, or as a column for each pixel.
        """
        if self.image is not None and columns.IMAGE_COLUMN in batch.schema.names:
            return columns.stored_pixels(batch.column(columns.IMAGE_COLUMN)).astype(np.float64)
        values = [feature.encode(batch.column(feature.name), row_ids) for feature in self.features]
        return np.stack(values, axis=1)

    def scale(self, values: np.ndarray, row_ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Rows in the model's space, (rows, p) float32, and their log-Jacobian, (rows,) float64.

        log p(row, units of the file) = log p(row, model's space) + log-Jacobian.

        A missing cell stays NaN; the log-Jacobian is that of the observed cells.
        """
        scaled = np.full(values.shape, np.nan, np.float32)
        log_jacobian = np.zeros(len(values))
        for position, feature in enumerate(self.features):
            is_there = ~np.isnan(values[:, position])
            there, ids = values[is_there, position], row_ids[is_there]
            u, log_slope = feature.scale(there, ids, self.seed)
            if len(u) and np.max(np.abs(u)) > _LARGEST_FLOAT32:
                worst = int(np.argmax(np.abs(u)))
                raise BadInput(
                    f"column '{feature.name}' is too large for the model in row {ids[worst] + 1:,}",
                    found=f"value: {there[worst]:g}, scaled: {u[worst]:g}, largest of float32: {_LARGEST_FLOAT32:g}",
                    hint="use --scale marginal, which keeps any value in range",
                )
            scaled[is_there, position] = u
            log_jacobian[is_there] += log_slope
        return scaled, log_jacobian

    def noisy(self, values: np.ndarray, row_ids: np.ndarray) -> np.ndarray:
        """Rows whose density is reported: with their noise, in the units of the file. (rows, p) float64."""
        result = values.copy()
        for position, feature in enumerate(self.features):
            if feature.map.noise is not None:
                fraction = noise_fractions(feature.name, row_ids, self.seed)
                result[:, position] = feature.map.noise.add(values[:, position], fraction)
        return result

    def one_hot(self, labels: Sequence[Any]) -> np.ndarray:
        """Class labels as unit vectors, (rows, classes) float32."""
        position = {name: index for index, name in enumerate(self.classes)}
        result = np.zeros((len(labels), len(self.classes)), np.float32)
        result[np.arange(len(labels)), [position[str(label)] for label in labels]] = 1.0
        return result

    def to_json(self) -> dict[str, Any]:
        """The schema as it is stored."""
        stored: dict[str, Any] = _STORED.dump_python(self, mode="json")
        if self.image is None:
            del stored["image"]
        return stored

    @classmethod
    def from_json(cls, document: dict[str, Any]) -> "Schema":
        """The schema that `to_json` described."""
        return _STORED.validate_python(document)


_STORED = TypeAdapter(Schema)


# Columns that travel with a row but are not modelled: row name, class, outlier label, truth.

# One spelling per number, and one that int64 holds: 01 and 1 stay two classes.
_WHOLE = re.compile(r"0|-?[1-9][0-9]{0,16}", re.ASCII)
_OUTLIER_WORDS = {"0": 0, "0.0": 0, "false": 0, "no": 0, "1": 1, "1.0": 1, "true": 1, "yes": 1}


def class_list(words: Collection[str], column: str) -> tuple[tuple[str, ...], bool]:
    """The classes of a condition in order, and whether they are whole numbers."""
    classes = columns.sort_words(words)
    if len(classes) < 2 or len(classes) > columns.MAX_CATEGORIES:
        raise BadInput(
            f"condition '{column}' has {'one class only' if len(classes) < 2 else 'too many classes'}",
            found=f"classes: {columns.listed(classes, 5)}",
            hint="a condition is a label with a few values; leave --condition out to model p(x)",
        )
    return classes, all(_WHOLE.fullmatch(name) for name in classes)


def label_columns(batch: pa.RecordBatch, schema: Schema, row_ids: np.ndarray) -> dict[str, pa.Array]:
    """The label columns of a batch as they are stored: row names as text, classes as found, 0 or 1, and the truth."""
    roles = schema.roles
    stored: dict[str, pa.Array] = {}
    if roles.id:
        stored[roles.id] = batch.column(roles.id)
    if roles.condition:
        labels = batch.column(roles.condition)
        unseen = pc.invert(pc.is_in(labels, value_set=pa.array(schema.classes, pa.string())))
        what, known = f"condition '{roles.condition}' has an unseen class", f"classes: {columns.listed(schema.classes)}"
        columns.refuse_cells(labels, unseen.to_numpy(zero_copy_only=False), row_ids, what, known)
        stored[roles.condition] = pc.cast(labels, pa.int64()) if schema.classes_are_whole else labels
    if roles.outlier_label:
        stored[roles.outlier_label] = outlier_codes(batch.column(roles.outlier_label), roles.outlier_label, row_ids)
    if roles.truth:
        stored[roles.truth] = check_truth(batch.column(roles.truth), roles.truth)
    return stored


def label_fields(schema: Schema) -> list[pa.Field]:
    """The Arrow fields of `label_columns`, in its order."""
    roles = schema.roles
    types = {
        roles.id: pa.string(),
        roles.condition: pa.int64() if schema.classes_are_whole else pa.string(),
        roles.outlier_label: pa.int64(),
        roles.truth: pa.float64(),
    }
    return [pa.field(name, types[name]) for name in roles.labels]


def check_truth(column: pa.Array, name: str) -> pa.Array:
    """True log-densities, checked to be numbers."""
    if not pa.types.is_floating(column.type):
        raise BadInput(
            f"column '{name}' should hold true log-densities but holds text",
            found=f"for instance: {column[0].as_py()!r}",
            hint="name another column with --truth, or leave it out with --drop",
        )
    return column


def outlier_codes(labels: pa.Array, name: str, row_ids: np.ndarray) -> pa.Array:
    """Outlier labels as 0 and 1, int64."""
    codes = pc.index_in(pc.utf8_lower(labels), value_set=pa.array(list(_OUTLIER_WORDS), pa.string()))
    unknown = codes.is_null().to_numpy(zero_copy_only=False)
    hint = "1 means outlier, 0 means inlier; true/false and yes/no are accepted, too"
    columns.refuse_cells(labels, unknown, row_ids, f"outlier label '{name}' is neither 0 nor 1", hint=hint)
    return pc.take(pa.array(list(_OUTLIER_WORDS.values()), pa.int64()), codes)
