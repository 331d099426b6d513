"""Columns of a table: their roles, their types, and the pixels of images."""

import fnmatch
import math
import re
import shlex
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from itertools import product
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa

from bayesnde_cli.errors import BadInput, BadUsage, escaped, nearest_hint, one_line
from bayesnde_cli.settings.stage_settings import PrepareSettings

if TYPE_CHECKING:  # SciPy is not imported to read a file
    from bayesnde_cli.scaling.column_map import Noise

# `simulate` writes the exact log-density under this name.
TRUTH_NAME = "true_log_density"
# Columns that bayesnde writes next to the user's.
RESERVED_NAMES = (
    *(
        "row_id",
        "x_scaled",
        "log_jacobian",
        "log_density",
        "log_density_scaled",
        "mc_se",
        "method",
        "pareto_k",
        "log_density_is",
    ),
    *("mc_se_is", "overlap", "ess_min", "rhat_max", "missed_mass", "acceptance", "divergences", "bridge_iterations"),
    *(
        "converged",
        "reliable",
        "verdict",
        "n_observed",
        "n_gradients",
        "n_likelihoods",
        "audit_log_density",
        "audit_mc_se",
    ),
)
_LONGEST_SHOWN = 60


@dataclass(frozen=True)
class Roles:
    """The columns that are used, each with one role."""

    features: tuple[str, ...]
    condition: str | None = None
    outlier_label: str | None = None
    truth: str | None = None
    id: str | None = None
    split: str | None = None
    ignored: tuple[str, ...] = ()

    @property
    def labels(self) -> tuple[str, ...]:
        """Columns that travel with a row but are not features, in a fixed order."""
        return tuple(name for name in (self.id, self.condition, self.outlier_label, self.truth) if name is not None)

    @property
    def words(self) -> set[str]:
        """Label columns that are read as text, even if they look like numbers."""
        return {name for name in (self.id, self.condition, self.outlier_label, self.split) if name}

    @property
    def used(self) -> tuple[str, ...]:
        """All columns to be read."""
        return (*self.features, *self.labels, *((self.split,) if self.split else ()))

    def of(self, name: str) -> str:
        """The role of a used column, for people."""
        roles = ("condition", "outlier_label", "truth", "id", "split")
        return next((role.replace("_", " ") for role in roles if getattr(self, role) == name), "feature")


def assign_roles(names: Sequence[str], config: PrepareSettings) -> Roles:
    """The role of every column, by the options; 'true_log_density' is the truth unless an option says otherwise."""
    single = {
        "condition": config.condition,
        "outlier_label": config.outlier_label,
        "truth": config.truth,
        "id": config.id,
        "split": config.split_column,
    }
    for role, name in single.items():
        if name is not None:
            _require_column(name, names, option=_option(role))
    dropped = match_columns(config.drop, names, option="--drop")
    named = {name for name in (*single.values(), *dropped) if name is not None}
    features = tuple(
        name
        for name in match_columns(config.features, names, option="--features")
        # A pattern yields to a role by name: --features '*' --condition y means all but y.
        if name not in named or _is_named(name, config.features)
    )
    if single["truth"] is None and TRUTH_NAME in names and not _is_named(TRUTH_NAME, (*config.features, *named)):
        single["truth"] = TRUTH_NAME
        features = tuple(name for name in features if name != TRUTH_NAME)

    claims = [*((name, "--features") for name in features), *((name, "--drop") for name in dropped)]
    claims += [(name, _option(role)) for role, name in single.items() if name is not None]
    options: dict[str, str] = {}
    for name, option in claims:
        if name in options:
            raise BadUsage(
                f"column '{name}' has two roles",
                found=f"options: {options[name]} and {option}",
                hint="a column has one role; take it out of one of the two options",
            )
        options[name] = option
    chosen = features or tuple(name for name in names if name not in options)
    if not chosen:
        raise BadUsage(
            "no column is left to model",
            found=f"columns: {listed(names)}",
            hint="leave at least one column without a role, or name features with --features",
        )
    used = {*chosen, *(name for name in single.values() if name is not None)}
    reserved = next((name for name in names if name in used and name in RESERVED_NAMES), None)
    if reserved is not None:
        raise BadInput(
            f"column '{reserved}' has a name that bayesnde writes itself",
            found=f"reserved: {', '.join(RESERVED_NAMES)}",
            hint=f"rename it in the file, or leave it out with --drop {quoted(reserved)}",
        )
    return Roles(features=chosen, ignored=tuple(name for name in names if name not in used), **single)


def match_columns(wanted: Sequence[str], names: Sequence[str], *, option: str, what: str = "column") -> tuple[str, ...]:
    """The columns that match a list of names, comma-separated names and patterns, in the file's order."""
    matched: set[str] = set()
    for item in wanted:
        for piece in [item] if item in names else [piece.strip() for piece in item.split(",")]:
            hits = [piece] if piece in names else fnmatch.filter(names, piece)
            if not hits:
                _require_column(piece, names, option=option, what=what)
            matched.update(hits)
    return tuple(name for name in names if name in matched)


def _require_column(name: str, names: Sequence[str], *, option: str, what: str = "column") -> None:
    if name not in names:
        raise BadUsage(
            f"{option}: there is no {what} '{name}'",
            found=f"{what}s: {listed(names)}",
            hint=nearest_hint(name, names, f"use one of the {what}s"),
        )


def _is_named(name: str, items: Collection[str]) -> bool:
    """Whether a column is named in full, alone or in a list."""
    return any(name == item or name in (piece.strip() for piece in item.split(",")) for item in items)


def _option(role: str) -> str:
    return "--split-column" if role == "split" else "--" + role.replace("_", "-")


# Columns and cells in messages.


def quoted(name: str) -> str:
    """A column's name as it is typed in a shell."""
    return shlex.quote(escaped(name))


def listed(items: Sequence[str], most: int = 12) -> str:
    """A list for a message, cut when it is long; no item can begin a line of its own."""
    shown = ", ".join(one_line(item, _LONGEST_SHOWN) for item in items[:most])
    return shown if len(items) <= most else f"{shown}, … ({len(items)} in all)"


def refuse_cells(
    column: pa.Array, is_bad: np.ndarray, row_ids: np.ndarray, *message: str, hint: str = "correct or remove the row"
) -> None:
    """Refuse the first bad cell, if there is one. `message` is the problem, then further lines of what was found."""
    if is_bad.any():
        index = int(np.argmax(is_bad))
        found = [f"cell: {column[index].as_py()!r}", *message[1:]]
        raise BadInput(f"{message[0]} in row {row_ids[index] + 1:,}", found=found, hint=hint)


# Types of features.

# A text column with more words than this is a name or a sentence, not a category.
MAX_CATEGORIES = 1000
# Up to this many words are categories, however few rows there are.
_FEW_CATEGORIES = 20
_NEARLY_ALL = 0.9
# Characters that people write around digits: separators, percent, currencies, signs, brackets, exponents.
_ORNAMENTS = re.compile(r"[\s.,'’%$€£¥()+\-−\u00a0\u202f]|(?<=\d)[eEdD](?=[+\-\d])")
# Beyond 2**53 float64 no longer holds every integer.
LARGEST_EXACT_INTEGER = 2.0**53


class Kind(StrEnum):
    """The types of columns that can be modelled."""

    CONTINUOUS = "continuous"
    LATTICE = "lattice"
    CATEGORICAL = "categorical"


@dataclass(frozen=True)
class ColumnFacts:
    """The type of a feature, the range of its values, and its noise."""

    name: str
    kind: Kind
    n_distinct: int
    minimum: float
    maximum: float
    categories: tuple[str, ...] = ()
    top_value: float = 0.0  # the most frequent value of a continuous column, and its share of the rows
    top_share: float = 0.0
    noise: "Noise | None" = None  # dequantisation noise, by the user's rules


def parse_types(rules: Sequence[str], names: Sequence[str]) -> dict[str, Kind]:
    """The types that the user set by `--type COL=TYPE`, for the features `names`."""
    kinds: dict[str, Kind] = {}
    for rule in rules:
        column, sign, word = rule.rpartition("=")
        if word not in list(Kind) or not sign:
            otherwise = "use one of the types" if sign else f"write for instance --type {rule}=categorical"
            raise BadUsage(
                f"--type {rule}: there is no type '{word}'" if sign else f"--type {rule} names no type",
                found=f"types: {', '.join(Kind)}",
                hint=nearest_hint(word, list(Kind), otherwise) if sign else otherwise,
            )
        kinds |= dict.fromkeys(match_columns([column], names, option="--type", what="feature"), Kind(word))
    return kinds


def numeric_facts(name: str, values: np.ndarray, asked: Kind | None = None) -> ColumnFacts:
    """The facts of a column of numbers (without missing cells): whole numbers only make it a lattice."""
    distinct, counts = np.unique(values, return_counts=True)
    is_whole = bool(np.all(distinct == np.rint(distinct)) and np.all(np.abs(distinct) <= LARGEST_EXACT_INTEGER))
    kind = asked or (Kind.LATTICE if is_whole else Kind.CONTINUOUS)
    if kind is Kind.LATTICE and not is_whole:
        raise BadInput(
            f"column '{name}' is not an integer lattice",
            found=f"for instance: {values[np.argmax(values != np.rint(values))]:g}",
            hint=f"use --type {quoted(name)}=continuous or --type {quoted(name)}=categorical",
        )
    top = int(np.argmax(counts))
    top_value, top_share = float(distinct[top]), float(counts[top] / len(values))
    return ColumnFacts(name, kind, len(distinct), float(distinct[0]), float(distinct[-1]), (), top_value, top_share)


def text_facts(name: str, words: Collection[str], n_rows: int, asked: Kind | None = None) -> ColumnFacts:
    """The facts of a column of words, from its distinct words: categories in sorted order.

    Numbers in an odd spelling and words that hardly recur need an explicit `--type COL=categorical`.
    """
    column = quoted(name)
    if asked in (Kind.CONTINUOUS, Kind.LATTICE):
        raise BadInput(
            f"column '{name}' holds words, not numbers",
            found=f"words: {listed(sorted(words), 5)}",
            hint=f"use --type {column}=categorical, or leave it out with --drop {column}",
        )
    refuse_too_many(name, words)
    categories = sort_words(words)
    some = f"for instance: {', '.join(repr(word) for word in categories[:3])}"
    # Without separators, units, signs and brackets, a number is digits: `2,288.71`, `12 %`, `(5)`.
    n_numbers = sum(_ORNAMENTS.sub("", word).isdecimal() for word in categories)
    if asked is None and n_numbers > _NEARLY_ALL * len(categories):
        raise BadInput(
            f"column '{name}' holds numbers in an unknown format",
            found=some,
            hint=f"write plain numbers, without separators of thousands, signs or units; "
            f"or use --type {column}=categorical or --drop {column}",
        )
    if asked is None and len(categories) > max(_FEW_CATEGORIES, n_rows // 2):
        raise BadInput(
            f"column '{name}' has {len(categories):,} different words in {n_rows:,} rows",
            found=some,
            hint=f"for names, dates or free text use --id {column} or --drop {column}; "
            f"for categories use --type {column}=categorical",
        )
    return ColumnFacts(name, Kind.CATEGORICAL, len(categories), 0.0, float(len(categories) - 1), categories)


def refuse_too_many(name: str, words: Collection[str]) -> None:
    """Refuse a column with more words than a categorical column may have."""
    if len(words) > MAX_CATEGORIES:
        raise BadInput(
            f"column '{name}' has more than {MAX_CATEGORIES:,} categories",
            found=f"for instance: {', '.join(repr(word) for word in sorted(words)[:5])}",
            hint=f"for names or free text use --id {quoted(name)} or --drop {quoted(name)}",
        )


def sort_words(words: Collection[str]) -> tuple[str, ...]:
    """Words in order: by value where all are finite numbers (so that 10 follows 9), else alphabetically."""
    try:
        values = {word: float(word) for word in words}
    except ValueError:
        return tuple(sorted(words))
    if not all(math.isfinite(value) for value in values.values()):
        return tuple(sorted(words))
    return tuple(sorted(words, key=lambda word: (values[word], word)))


# Images.

# In tables of images: all pixels of a row in one cell.
IMAGE_COLUMN = "image"
# A pixel is one byte.
N_LEVELS = 256


class ImageShape(NamedTuple):
    """The size of an image; a row holds its pixels row by row, the channel last and fastest."""

    height: int
    width: int
    channels: int = 1

    @property
    def n_pixels(self) -> int:
        """The number of features: every channel of every pixel."""
        return self.height * self.width * self.channels

    @lru_cache(maxsize=4)  # noqa: B019 (a shape is a value)
    def pixel_names(self) -> tuple[str, ...]:
        """px_row_column, from 1, or px_row_column_channel; in the order of the pixels. (n_pixels,)"""
        sizes = self if self.channels > 1 else self[:2]
        places = product(*(range(1, size + 1) for size in sizes))
        return tuple("_".join(["px", *map(str, place)]) for place in places)

    def __str__(self) -> str:
        return " x ".join(str(size) for size in (self if self.channels > 1 else self[:2]))


def shape_of_array(shape: tuple[int, ...], dtype: np.dtype) -> ImageShape | None:
    """The size of the images in an array of (n, h, w) or (n, h, w, channels) bytes; None for other arrays."""
    is_image = len(shape) in (3, 4) and dtype == np.dtype(np.uint8) and math.prod(shape[1:]) > 0
    return ImageShape(*shape[1:]) if is_image else None


def image_column(pixels: np.ndarray) -> pa.FixedSizeListArray:
    """Pixels (rows, n_pixels) uint8 as a column of bytes, an image in a cell."""
    return pa.FixedSizeListArray.from_arrays(pa.array(pixels.reshape(-1)), pixels.shape[1])


def stored_pixels(column: pa.Array | pa.ChunkedArray) -> np.ndarray:
    """The pixels of a column of images, (rows, n_pixels) uint8."""
    whole = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    return whole.flatten().to_numpy().reshape(len(whole), whole.type.list_size)


def pixel_columns(table: pa.Table, image: ImageShape) -> pa.Table:
    """The table with a column for each pixel, as files have them, in place of the column of images."""
    pixels = stored_pixels(table[IMAGE_COLUMN]).astype(np.int64)
    columns: dict[str, Any] = dict(zip(image.pixel_names(), pixels.T, strict=True))
    return pa.table({**columns, **{name: table[name] for name in table.column_names if name != IMAGE_COLUMN}})
