"""How stages report their progress, and how numbers, times, tables and commands are written for people."""

import math
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

from bayesnde_cli.errors import escaped

# A space at which browsers and terminals do not break the line.
NO_BREAK = "\u00a0"
# Numbers outside this range are written with a power of ten.
_LARGE, _SMALL = 1e6, 1e-4
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


def format_number(value: float | None, digits: int = 4) -> str:
    """A number with this many significant digits: `-4.352`, `12,300`, `3.2e-7`; `–` if it is missing."""
    if value is None or math.isnan(value):
        return "–"
    if math.isinf(value):
        return "infinite" if value > 0 else "-infinite"
    if value == 0:
        return "0"
    if not _SMALL <= abs(value) < _LARGE:
        return f"{value:.{digits - 1}e}".replace("e-0", "e-").replace("e+0", "e+")
    decimals = max(0, digits - 1 - math.floor(math.log10(abs(value))))
    return f"{value:,.{decimals}f}"


def format_nats(value: float | None, decimals: int = 3) -> str:
    """A log-density with a fixed number of decimals, so that columns line up, unless it is very large."""
    if value is None or not abs(value) < _LARGE:
        return format_number(value)
    return f"{value:,.{decimals}f}"


def format_with_error(value: float | None, se: float | None) -> str:
    """A mean ± two standard errors: `-4.352 ± 0.412`."""
    if se is None or not math.isfinite(se):
        return format_nats(value)
    return f"{format_nats(value)} ±{NO_BREAK}{format_nats(2 * se)}"


def format_share(part: float, whole: float) -> str:
    """A percentage that never rounds to all or nothing: `99.9 %`, `100 %`."""
    if whole == 0:
        return "–"
    percent = 100 * part / whole
    text = f"{percent:.3g}" if percent < 99 else f"{min(percent, 99.99):.4g}"
    return f"{'100' if part == whole else text}{NO_BREAK}%"


def counted(number: int, singular: str, plural: str | None = None) -> str:
    """A count with its noun: `1 row`, `1,234 rows`."""
    return f"{number:,} {singular if number == 1 else plural or singular + 's'}"


def duration(seconds: float) -> str:
    """A time span: `42 s`, `3 min 20 s`, `2 h 5 min`."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def aligned(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table as text: columns padded to their widest cell, numbers aligned to the right."""
    cells = [[escaped(cell) for cell in row] for row in (header, *rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    is_right = [all(map(is_number, column[1:])) for column in zip(*cells, strict=True)]
    lines = []
    for row in cells:
        columns = zip(row, widths, is_right, strict=True)
        padded = [cell.rjust(width) if right else cell.ljust(width) for cell, width, right in columns]
        lines.append("  ".join(padded).rstrip())
    return "\n".join(lines)


def is_number(cell: str) -> bool:
    """Whether a cell of a table holds a number, or nothing."""
    return cell in ("", "–") or _NUMBER.fullmatch(cell) is not None


def shell_options(settings: Mapping[str, Any]) -> list[str]:
    """Settings as options of their own command: `--split 0.5,0.25,0.25`, `--drop a`, `--no-baselines`.

    A setting that is None keeps its default and is left out.
    """
    options = []
    for name, value in settings.items():
        option = name.replace("_", "-")
        if isinstance(value, bool):
            options.append(f"--{option}" if value else f"--no-{option}")
        elif value is not None:
            options += [f"--{option} {shlex.quote(word)}" for word in _words(value)]
    return options


def shell_assignments(stage: str, settings: Mapping[str, Any]) -> list[str]:
    """Settings of a stage as options of `fit`: `--set refine.epochs=50`."""
    return [f"--set {shlex.quote(f'{stage}.{name}={_word(value)}')}" for name, value in settings.items()]


def _words(value: Any) -> list[str]:
    """The values of an option, one for each time it is given: names are repeated, numbers joined by commas."""
    if not isinstance(value, list | tuple):
        return [_word(value)]
    return list(value) if all(isinstance(part, str) for part in value) else [",".join(map(_word, value))]


def _word(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
