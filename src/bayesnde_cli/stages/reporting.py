"""How a stage speaks while it works: it reports, somebody else decides what to show."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Protocol

Advance = Callable[[int], None]


class Report(Protocol):
    """Receives notes, warnings, tables and progress from a stage."""

    def note(self, text: str) -> None:
        """Something worth knowing."""

    def warn(self, text: str) -> None:
        """Something that may make the numbers misleading."""

    def table(self, title: str, header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        """A small table."""

    def progress(self, label: str, total: int | None, unit: str) -> AbstractContextManager[Advance]:
        """A piece of work of `total` units; call the result with the units just done."""


def counted(number: int, singular: str, plural: str | None = None) -> str:
    """A count with its noun: `1 row`, `1,234 rows`."""
    return f"{number:,} {singular if number == 1 else plural or singular + 's'}"
