"""Columns that travel with a row but are not modelled: identity, class, outlier label, truth."""

import re
from collections.abc import Collection

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bayesnde_cli.data.kinds import MAX_CATEGORIES, sorted_words
from bayesnde_cli.data.roles import listed
from bayesnde_cli.data.schema import Schema
from bayesnde_cli.errors import BadInput

# One spelling per number, and one that int64 holds: 01 and 1 stay two classes.
_WHOLE = re.compile(r"0|-?[1-9][0-9]{0,16}", re.ASCII)
_OUTLIER_WORDS = {"0": 0, "0.0": 0, "false": 0, "no": 0, "1": 1, "1.0": 1, "true": 1, "yes": 1}


def class_list(words: Collection[str], column: str) -> tuple[tuple[str, ...], bool]:
    """The classes of a condition in order, and whether they are whole numbers."""
    if len(words) < 2 or len(words) > MAX_CATEGORIES:
        raise BadInput(
            f"condition '{column}' has {'one class only' if len(words) < 2 else 'too many classes'}",
            found=f"classes: {listed(sorted_words(words), 5)}",
            hint="a condition is a label with a few values; leave --condition out to model p(x)",
        )
    classes = sorted_words(words)
    return classes, all(_is_whole(name) for name in classes)


def class_codes(labels: pa.Array, classes: Collection[str], column: str, row_ids: np.ndarray) -> np.ndarray:
    """The position of each row's class, (rows,) int64."""
    codes = pc.index_in(labels, value_set=pa.array(list(classes), pa.string()))
    unseen = codes.is_null().to_numpy(zero_copy_only=False)
    if unseen.any():
        index = int(np.flatnonzero(unseen)[0])
        raise BadInput(
            f"condition '{column}' has an unseen class in row {row_ids[index] + 1:,}",
            found=[f"cell: {labels[index].as_py()!r}", f"classes: {listed(list(classes))}"],
            hint="correct or remove the row",
        )
    return codes.to_numpy(zero_copy_only=False).astype(np.int64)


def label_columns(batch: pa.RecordBatch, schema: Schema, row_ids: np.ndarray) -> dict[str, pa.Array]:
    """The label columns of a batch as they are stored: row names as text, classes as found, 0 or 1, and the truth."""
    roles = schema.roles
    stored: dict[str, pa.Array] = {}
    if roles.id:
        stored[roles.id] = batch.column(roles.id)
    if roles.condition:
        labels = batch.column(roles.condition)
        class_codes(labels, schema.classes, roles.condition, row_ids)
        stored[roles.condition] = pc.cast(labels, pa.int64()) if schema.classes_are_whole else labels
    if roles.outlier_label:
        stored[roles.outlier_label] = outlier_codes(batch.column(roles.outlier_label), roles.outlier_label, row_ids)
    if roles.truth:
        stored[roles.truth] = truth(batch.column(roles.truth), roles.truth)
    return stored


def label_fields(schema: Schema) -> list[pa.Field]:
    """The Arrow fields of `label_columns`, in its order."""
    roles = schema.roles
    kinds = {
        roles.id: pa.string(),
        roles.condition: pa.int64() if schema.classes_are_whole else pa.string(),
        roles.outlier_label: pa.int64(),
        roles.truth: pa.float64(),
    }
    return [pa.field(name, kinds[name]) for name in roles.labels]


def truth(column: pa.Array, name: str) -> pa.Array:
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
    words = pc.utf8_lower(labels)
    codes = pc.index_in(words, value_set=pa.array(list(_OUTLIER_WORDS), pa.string()))
    unknown = codes.is_null().to_numpy(zero_copy_only=False)
    if unknown.any():
        index = int(np.flatnonzero(unknown)[0])
        raise BadInput(
            f"outlier label '{name}' is neither 0 nor 1 in row {row_ids[index] + 1:,}",
            found=f"cell: {labels[index].as_py()!r}",
            hint="1 means outlier, 0 means inlier; true/false and yes/no are understood, too",
        )
    return pc.take(pa.array(list(_OUTLIER_WORDS.values()), pa.int64()), codes)


def _is_whole(word: str) -> bool:
    return _WHOLE.fullmatch(word) is not None
