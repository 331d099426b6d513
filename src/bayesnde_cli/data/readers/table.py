"""What every reader gives: named columns, and their cells in record batches of bounded size."""

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping, Sequence
from difflib import get_close_matches
from typing import Literal

import pyarrow as pa

from bayesnde_cli.data.image import ImageShape
from bayesnde_cli.errors import BadInput

MAX_BATCH_ROWS = 65_536
SHOWN_CHARACTERS = 60
SHOWN_NAMES = 12
# The column of classes that stand beside an array, in a vector or as folders.
LABEL = "label"

Kind = Literal["number", "text"]
ARROW_TYPES: dict[Kind, pa.DataType] = {"number": pa.float64(), "text": pa.string()}


class Table(ABC):
    """Columns of a user's file: `float64` (a missing cell and NaN are null) or `string`."""

    names: tuple[str, ...]
    description: str
    # False where c1, c2, ... were made up here: such columns are matched by position, not by name.
    has_own_names: bool = True
    # Where rows are images: their size. All pixels are columns, by the names that the size gives them.
    image: ImageShape | None = None

    def batches(
        self, columns: Sequence[str] | None = None, *, as_text: Collection[str] = ()
    ) -> Iterator[pa.RecordBatch]:
        """Record batches of the chosen columns, in the chosen order; each call reads from the start.

        Cells of other columns are never looked at. Columns in `as_text` come as strings whatever they hold.
        """
        chosen = self.names if columns is None else tuple(columns)
        if not chosen:
            raise ValueError("a table is read by at least one column")
        known = frozenset(self.names)
        for name in (*chosen, *as_text):
            if name not in known:
                raise self._no_column(name)
        found = self.kinds([name for name in chosen if name not in as_text])
        # a column without any cell is a column of missing numbers
        return self.batches_as({name: found.get(name, "text") or "number" for name in chosen})

    @abstractmethod
    def kinds(self, columns: Sequence[str]) -> dict[str, Kind | None]:
        """What the columns hold; None where every cell is missing."""

    @abstractmethod
    def batches_as(self, kinds: Mapping[str, Kind]) -> Iterator[pa.RecordBatch]:
        """Record batches of the columns of `kinds`, in its order, delivered as the kind says."""

    def _no_column(self, name: str) -> BadInput:
        near = get_close_matches(name, self.names, n=1)
        hint = f"did you mean {shown(near[0])}?" if near else "use one of these names"
        return BadInput(f"there is no column {shown(name)}", found=f"columns: {listed(self.names)}", hint=hint)


def schema_of(kinds: Mapping[str, Kind]) -> pa.Schema:
    """The Arrow schema of the batches that `batches_as(kinds)` gives."""
    return pa.schema([(name, ARROW_TYPES[kind]) for name, kind in kinds.items()])


def slices(batch: pa.RecordBatch, n_rows: int = MAX_BATCH_ROWS) -> Iterator[pa.RecordBatch]:
    """The batch in pieces of at most `n_rows` rows."""
    for start in range(0, batch.num_rows, n_rows):
        yield batch.slice(start, n_rows)


def made_up_names(n_columns: int) -> tuple[str, ...]:
    """c1, c2, ...: names of columns whose source has none."""
    return tuple(f"c{index}" for index in range(1, n_columns + 1))


def duplicates(names: Sequence[str]) -> list[str]:
    """The names that occur more than once, each one time."""
    seen: set[str] = set()
    again: dict[str, None] = {}
    for name in names:
        if name in seen:
            again[name] = None
        seen.add(name)
    return list(again)


def shown(text: str) -> str:
    """The text in quotes, cut to a line's length, control characters and terminal escapes spelled out."""
    cut = text if len(text) <= SHOWN_CHARACTERS else text[: SHOWN_CHARACTERS - 3] + "..."
    return repr(cut)


def listed(names: Sequence[str]) -> str:
    """The names for a message, the first dozen of them."""
    more = len(names) - SHOWN_NAMES
    return ", ".join(shown(name) for name in names[:SHOWN_NAMES]) + (f" and {more} more" if more > 0 else "")
