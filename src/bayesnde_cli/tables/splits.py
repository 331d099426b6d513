"""Training, validation and test rows: every row is in one split at most."""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bayesnde_cli.errors import BadInput
from bayesnde_cli.rng import bits_at, derive_seed
from bayesnde_cli.tables.columns import listed, refuse_cells

SPLITS = ("train", "validation", "test")
TRAIN, VALIDATION, TEST = 0, 1, 2
# The code of rows that no stage uses.
LEFT_OUT = -1

# With fewer rows, a split would get none.
MIN_ROWS = 50
MIN_CLASS_ROWS = 10

# Copies of a row that are more than this share of all rows are not copied by mistake.
_FREQUENT_SHARE = 0.01

_SPLIT_WORDS = {"train": TRAIN, "training": TRAIN, "test": TEST, "testing": TEST}
_SPLIT_WORDS |= dict.fromkeys(("validation", "valid", "val", "dev"), VALIDATION)


def split_by_address(
    row_ids: np.ndarray,
    shares: Sequence[float],
    seed: int,
    strata: np.ndarray | None = None,
    copies: np.ndarray | None = None,
) -> np.ndarray:
    """The split of each row by a seeded permutation in which a row's place is drawn from its own `row_id`. (rows,)

    Within each stratum the rows are ordered by the random bits at `(seed, row_id)`; the first share trains. With the
    positions of rows' first copies, (rows,), copies have one place: a test row that was seen in training says nothing
    about other rows. Frequent rows have places of their own, as their number says something.
    """
    if copies is None:
        copies = np.arange(len(row_ids))
    is_frequent = np.bincount(copies, minlength=len(row_ids))[copies] > max(_FREQUENT_SHARE * len(row_ids), 2.0)
    copies = np.where(is_frequent, np.arange(len(row_ids)), copies)
    bits = bits_at(derive_seed(seed, "prepare", "split"), row_ids[copies])
    split = np.empty(len(row_ids), np.int8)
    strata = np.zeros(len(row_ids)) if strata is None else strata
    for stratum in (np.flatnonzero(strata == code) for code in np.unique(strata)):
        order = stratum[np.argsort(bits[stratum], kind="stable")]
        split[order] = _keep_together(split_by_order(len(order), shares), copies[order])
    return split


def _keep_together(split: np.ndarray, copies: np.ndarray) -> np.ndarray:
    """The split of ordered rows, where copies that a boundary parts follow the first, unless that empties a split."""
    for first in np.flatnonzero(np.diff(split)) + 1:
        moved = np.where(copies == copies[first], split[np.argmax(copies == copies[first])], split)
        if set(moved) == set(split):
            split = moved
    return split


def split_by_tail(n_rows: int, shares: Sequence[float], seed: int) -> np.ndarray:
    """The paper's split: shuffle with `RandomState(seed)`; the last rows test, the last of the rest validate. (rows,)

    `shuffle(arange(n))` and `permutation(n)` of a `RandomState` give the same order, so this is both conventions.
    """
    order = np.random.RandomState(seed).permutation(n_rows)
    train, validation, test = shares
    n_test = _floor(n_rows * test)
    n_validation = _floor((n_rows - n_test) * validation / (train + validation))
    split = np.full(n_rows, TRAIN, np.int8)
    split[order[n_rows - n_test :]] = TEST
    split[order[n_rows - n_test - n_validation : n_rows - n_test]] = VALIDATION
    return split


def split_by_order(n_rows: int, shares: Sequence[float]) -> np.ndarray:
    """The order of the file, for data that come with test rows: the last rows test, those before validate. (rows,)"""
    return np.repeat(np.arange(3, dtype=np.int8), share_sizes(n_rows, shares))


def split_by_train_test_split(
    n_rows: int, shares: Sequence[float], seeds: Sequence[int], strata: np.ndarray | None = None
) -> np.ndarray:
    """The paper's conditional split: scikit-learn's `train_test_split` twice, stratified, with two seeds. (rows,)"""
    from sklearn.model_selection import train_test_split

    train, validation, test = shares
    try:
        rest, tested = train_test_split(np.arange(n_rows), test_size=test, random_state=seeds[0], stratify=strata)
        _, validated = train_test_split(
            rest,
            # Rounded: 0.09 / 0.9 must be exactly 0.1; anything above would cost a row.
            test_size=round(validation / (train + validation), 12),
            random_state=seeds[1],
            stratify=None if strata is None else strata[rest],
        )
    except ValueError as error:  # a share too small for a row, or for a row of each class
        raise BadInput(
            "the rows cannot be split in these shares",
            found=f"reason: {error}",
            hint="give more rows, or other shares with --split",
        ) from None
    split = np.full(n_rows, TRAIN, np.int8)
    split[tested] = TEST
    split[validated] = VALIDATION
    return split


def split_by_words(words: pa.Array, row_ids: np.ndarray, column: str) -> np.ndarray:
    """The split that a column of words asks for. (rows,)"""
    codes = pc.index_in(pc.utf8_lower(pc.utf8_trim_whitespace(words)), value_set=pa.array(list(_SPLIT_WORDS)))
    unknown = codes.is_null().to_numpy(zero_copy_only=False)
    hint = "each row must say train, validation or test"
    refuse_cells(words, unknown, row_ids, f"column '{column}' names no split", hint=hint)
    return np.array(list(_SPLIT_WORDS.values()), np.int8)[codes.to_numpy()]


def limit_rows(split: np.ndarray, row_ids: np.ndarray, code: int, most: int, seed: int | None) -> np.ndarray:
    """The splits with at most `most` rows of one split: the first ones, or with a seed a random choice. (rows,)"""
    own = np.flatnonzero(split == code)
    if seed is not None:
        bits = bits_at(derive_seed(seed, "prepare", f"{SPLITS[code]} rows"), row_ids[own])
        own = own[np.argsort(bits, kind="stable")]
    result = split.copy()
    result[own[most:]] = LEFT_OUT
    return result


def check_classes(split: np.ndarray, strata: np.ndarray, classes: Sequence[str], column: str) -> None:
    """Refuse splits that lack a class, which could then be neither learnt nor evaluated."""
    for code, name in enumerate(SPLITS):
        counts = np.bincount(strata[split == code], minlength=len(classes))
        lacking = [word for word, count in zip(classes, counts, strict=True) if count == 0]
        if lacking:
            raise BadInput(
                f"condition '{column}' has no {name} rows of {len(lacking)} of its {len(classes)} classes",
                found=f"classes: {listed(lacking)}",
                hint="choose another split (--split, --split-method, --split-column, more --test-rows), or leave these "
                "classes out",
            )


def check_splits(split: np.ndarray) -> None:
    """Refuse an empty split."""
    for code, name in enumerate(SPLITS):
        if not np.any(split == code):
            raise BadInput(
                f"no row is left for the {name} split",
                found=f"rows: {', '.join(f'{other} {int(np.sum(split == c))}' for c, other in enumerate(SPLITS))}",
                hint="give more rows, or other shares with --split",
            )


def check_strata(strata: np.ndarray, classes: Sequence[str], column: str) -> None:
    """Refuse a condition with a class that is too small for three splits."""
    counts = np.bincount(strata, minlength=len(classes))
    small = [f"{name} ({count})" for name, count in zip(classes, counts, strict=True) if count < MIN_CLASS_ROWS]
    if small:
        raise BadInput(
            f"condition '{column}' has {'a class' if len(small) == 1 else 'classes'} too small to split",
            found=f"classes with fewer than {MIN_CLASS_ROWS} rows: {listed(small)}",
            hint="merge or leave out these rows, or model the table without --condition",
        )


def share_sizes(n_rows: int, shares: Sequence[float]) -> tuple[int, int, int]:
    """Whole numbers of rows closest to the shares; they sum to `n_rows`, and none is 0 from 3 rows on."""
    n_test = min(max(1, round(n_rows * shares[TEST])), n_rows - 2)
    n_validation = min(max(1, round(n_rows * shares[VALIDATION])), n_rows - n_test - 1)
    return n_rows - n_test - n_validation, n_validation, n_test


def _floor(value: float) -> int:
    # 40690 * 0.09 / 0.9 is 4068.9999…: a share that is whole up to rounding counts as whole.
    return int(np.floor(value + 1e-9))
