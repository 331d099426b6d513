"""How a stage speaks while it works: it reports, somebody else decides what to show."""

import re
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Protocol

from bayesnde_cli.errors import escaped

_NUMBER = re.compile(r"[+-]?[\d,]+(\.\d+)?(e[+-]?\d+)?")

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


def aligned(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table as text: columns padded to their widest cell, numbers to the right."""
    cells = [[escaped(cell) for cell in row] for row in (header, *rows)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(header))]
    to_right = [all(_is_number(row[i]) for row in cells[1:]) for i in range(len(header))]
    lines = [
        "  ".join(
            cell.rjust(width) if right else cell.ljust(width)
            for cell, width, right in zip(row, widths, to_right, strict=True)
        ).rstrip()
        for row in cells
    ]
    return "\n".join(lines)


def _is_number(cell: str) -> bool:
    return cell in ("", "–") or _NUMBER.fullmatch(cell) is not None


def duration(seconds: float) -> str:
    """A time span for people: `42 s`, `3 min 20 s`, `2 h 5 min`."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"
