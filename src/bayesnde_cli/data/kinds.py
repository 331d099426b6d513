"""What kind of numbers a column holds: continuous, integer lattice, or categories."""

import math
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from bayesnde_cli.config import nearest_hint
from bayesnde_cli.data.roles import listed, match_columns, quoted
from bayesnde_cli.errors import BadInput, BadUsage

# A text column with more words than this is a name or a sentence, not a category.
MAX_CATEGORIES = 1000
# Up to so many words are categories however few rows there are.
_FEW_CATEGORIES = 20
_NEARLY_ALL = 0.9
# What people write around digits: separators, percent, currencies, signs, brackets, exponents.
_ORNAMENTS = re.compile(r"[\s.,'’%$€£¥()+\-−\u00a0\u202f]|(?<=\d)[eEdD](?=[+\-\d])")
# Beyond 2**53 float64 no longer holds every integer.
LARGEST_EXACT_INTEGER = 2.0**53


class Kind(StrEnum):
    """The kinds of columns that can be modelled."""

    CONTINUOUS = "continuous"
    LATTICE = "lattice"
    CATEGORICAL = "categorical"


@dataclass(frozen=True)
class ColumnFacts:
    """What was found in a feature column."""

    name: str
    kind: Kind
    n_distinct: int
    minimum: float
    maximum: float
    categories: tuple[str, ...] = ()
    top_value: float = 0.0  # the most frequent value of a continuous column, and its share of the rows
    top_share: float = 0.0

    @property
    def is_constant(self) -> bool:
        return self.n_distinct <= 1


def asked_kinds(rules: Sequence[str], names: Sequence[str]) -> dict[str, Kind]:
    """The kinds that the user set by `--type COL=KIND`, for the features `names`."""
    kinds: dict[str, Kind] = {}
    for rule in rules:
        column, sign, word = rule.rpartition("=")
        if not sign:
            raise BadUsage(
                f"--type {rule} names no type",
                found=f"types: {', '.join(Kind)}",
                hint=f"write for instance --type {rule}=categorical",
            )
        if word not in list(Kind):
            raise BadUsage(
                f"--type {rule}: there is no type '{word}'",
                found=f"types: {', '.join(Kind)}",
                hint=nearest_hint(word, list(Kind), "use one of the types"),
            )
        for name in match_columns([column], names, option="--type", what="feature"):
            kinds[name] = Kind(word)
    return kinds


def numeric_facts(name: str, values: np.ndarray, asked: Kind | None = None) -> ColumnFacts:
    """The facts of a column of numbers (without missing cells): whole numbers only make it a lattice."""
    distinct, counts = np.unique(values, return_counts=True)
    is_whole = bool(np.all(distinct == np.rint(distinct)) and np.all(np.abs(distinct) <= LARGEST_EXACT_INTEGER))
    kind = asked or (Kind.LATTICE if is_whole else Kind.CONTINUOUS)
    if kind is Kind.LATTICE and not is_whole:
        bad = values[np.flatnonzero(values != np.rint(values))[0]]
        raise BadInput(
            f"column '{name}' is no integer lattice",
            found=f"for instance: {bad:g}",
            hint=f"use --type {quoted(name)}=continuous or --type {quoted(name)}=categorical",
        )
    top = int(np.argmax(counts))
    return ColumnFacts(
        name,
        kind,
        len(distinct),
        float(distinct[0]),
        float(distinct[-1]),
        top_value=float(distinct[top]),
        top_share=float(counts[top] / len(values)),
    )


def text_facts(name: str, words: Collection[str], n_rows: int, asked: Kind | None = None) -> ColumnFacts:
    """The facts of a column of words, from its distinct words: categories in sorted order.

    Without `--type COL=categorical`, numbers in an odd spelling and words that hardly recur are no categories.
    """
    if asked in (Kind.CONTINUOUS, Kind.LATTICE):
        raise BadInput(
            f"column '{name}' holds words, not numbers",
            found=f"words: {listed(sorted(words), 5)}",
            hint=f"use --type {quoted(name)}=categorical, or leave it out with --drop {quoted(name)}",
        )
    refuse_too_many(name, words)
    categories = sorted_words(words)
    if asked is None and sum(_is_like_number(word) for word in categories) > _NEARLY_ALL * len(categories):
        raise BadInput(
            f"column '{name}' holds numbers in a spelling that is not understood",
            found=f"for instance: {', '.join(repr(word) for word in categories[:3])}",
            hint=f"write plain numbers, without separators of thousands, signs or units; "
            f"or use --type {quoted(name)}=categorical or --drop {quoted(name)}",
        )
    if asked is None and len(categories) > max(_FEW_CATEGORIES, n_rows // 2):
        raise BadInput(
            f"column '{name}' has {len(categories):,} different words in {n_rows:,} rows",
            found=f"for instance: {', '.join(repr(word) for word in categories[:3])}",
            hint=f"a name, a date or free text is no category: use --id {quoted(name)} or --drop {quoted(name)}; "
            f"if it is one, --type {quoted(name)}=categorical",
        )
    return ColumnFacts(name, Kind.CATEGORICAL, len(categories), 0.0, float(len(categories) - 1), categories)


def sorted_words(words: Collection[str]) -> tuple[str, ...]:
    """Words in order: by value where all are finite numbers (so that 10 follows 9), else alphabetically."""
    try:
        values = {word: float(word) for word in words}
    except ValueError:
        return tuple(sorted(words))
    if not all(math.isfinite(value) for value in values.values()):
        return tuple(sorted(words))
    return tuple(sorted(words, key=lambda word: (values[word], word)))


def _is_like_number(word: str) -> bool:
    """Whether what is left without separators, units, signs and brackets is digits: `2,288.71`, `12 %`, `(5)`."""
    return _ORNAMENTS.sub("", word).isdecimal()


def refuse_too_many(name: str, words: Collection[str]) -> None:
    """Refuse a column of words that are no categories."""
    if len(words) > MAX_CATEGORIES:
        some = ", ".join(repr(word) for word in sorted(words)[:5])
        raise BadInput(
            f"column '{name}' has more than {MAX_CATEGORIES:,} categories",
            found=f"for instance: {some}",
            hint=f"a name or free text is no category: use --id {quoted(name)} or --drop {quoted(name)}",
        )
