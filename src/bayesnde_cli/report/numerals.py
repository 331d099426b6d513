"""Numbers as people read them."""

import math

from bayesnde_cli.report.markup import NO_BREAK

# From here on, and below that, a number is written with a power of ten.
_LARGE, _SMALL = 1e6, 1e-4


def numeral(value: float | None, digits: int = 4) -> str:
    """A number with so many significant digits: `-4.352`, `12,300`, `3.2e-07`; `–` if there is none."""
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


def nats(value: float | None, decimals: int = 3) -> str:
    """A log-density: always so many decimals, so that columns of them can be compared; unless it is very large."""
    if value is None or not abs(value) < _LARGE:
        return numeral(value)
    return f"{value:,.{decimals}f}"


def with_error(value: float | None, se: float | None) -> str:
    """A mean with two standard errors: `-4.352 ± 0.412`."""
    return nats(value) if se is None or not math.isfinite(se) else f"{nats(value)} ±{NO_BREAK}{nats(2 * se)}"


def share(part: float, whole: float) -> str:
    """A part as a percentage that never rounds to all or nothing: `99.9 %`, `100 %`."""
    if whole == 0:
        return "–"
    percent = 100 * part / whole
    text = f"{percent:.3g}" if percent < 99 else f"{min(percent, 99.99):.4g}"
    return f"{'100' if part == whole else text}{NO_BREAK}%"
