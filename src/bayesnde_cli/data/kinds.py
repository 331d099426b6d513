"""What kind of numbers a column holds: continuous, integer lattice, or categories."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from bayesnde_cli.config import nearest_hint
from bayesnde_cli.data.roles import listed, match_columns
from bayesnde_cli.errors import BadInput, BadUsage

# A text column with more words than this is a name or a sentence, not a category.
MAX_CATEGORIES = 1000
# Beyond 2**53 float64 no longer holds every integer.
_LARGEST_EXACT_INTEGER = 2.0**53


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

    @property
    def is_constant(self) -> bool:
        return self.n_distinct <= 1


def asked_kinds(rules: Sequence[str], names: Sequence[str]) -> dict[str, Kind]:
    """The kinds that the user set by `--type COL=KIND`."""
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
        for name in match_columns([column], names, option="--type"):
            kinds[name] = Kind(word)
    return kinds


def numeric_facts(name: str, values: np.ndarray, asked: Kind | None = None) -> ColumnFacts:
    """The facts of a column of numbers (without missing cells): whole numbers only make it a lattice."""
    distinct = np.unique(values)
    is_whole = bool(np.all(distinct == np.rint(distinct)) and np.all(np.abs(distinct) <= _LARGEST_EXACT_INTEGER))
    kind = asked or (Kind.LATTICE if is_whole else Kind.CONTINUOUS)
    if kind is Kind.LATTICE and not is_whole:
        bad = values[np.flatnonzero(values != np.rint(values))[0]]
        raise BadInput(
            f"column '{name}' is no integer lattice",
            found=f"for instance: {bad:g}",
            hint=f"use --type {name}=continuous or --type {name}=categorical",
        )
    return ColumnFacts(name, kind, len(distinct), float(distinct[0]), float(distinct[-1]))


def text_facts(name: str, words: Collection[str], asked: Kind | None = None) -> ColumnFacts:
    """The facts of a column of words, from its distinct words: categories in sorted order."""
    if asked in (Kind.CONTINUOUS, Kind.LATTICE):
        raise BadInput(
            f"column '{name}' holds words, not numbers",
            found=f"words: {listed(sorted(words), 5)}",
            hint=f"use --type {name}=categorical, or leave it out with --drop {name}",
        )
    refuse_too_many(name, words)
    categories = sorted_words(words)
    return ColumnFacts(name, Kind.CATEGORICAL, len(categories), 0.0, float(len(categories) - 1), categories)


def sorted_words(words: Collection[str]) -> tuple[str, ...]:
    """Words in order: by value where all are numbers (so that 10 follows 9), else alphabetically."""
    try:
        return tuple(sorted(words, key=lambda word: (float(word), word)))
    except ValueError:
        return tuple(sorted(words))


def refuse_too_many(name: str, words: Collection[str]) -> None:
    """Refuse a column of words that are no categories."""
    if len(words) > MAX_CATEGORIES:
        some = ", ".join(repr(word) for word in sorted(words)[:5])
        raise BadInput(
            f"column '{name}' has more than {MAX_CATEGORIES:,} categories",
            found=f"for instance: {some}",
            hint=f"a name or free text is no category: use --id {name} or --drop {name}",
        )
