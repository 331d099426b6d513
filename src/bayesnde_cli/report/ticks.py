"""Places on an axis that are easy to read."""

import math

# A tick is a multiple of one of these, times a power of ten.
_STEPS = (1, 2, 5, 10)


def nice_ticks(low: float, high: float, n_ticks: int = 5) -> list[float]:
    """Round numbers from `low` to `high`, about so many.

    >>> nice_ticks(0, 10)
    [0.0, 2.0, 4.0, 6.0, 8.0, 10.0]
    """
    step = nice_step(low, high, n_ticks)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [index * step for index in range(first, last + 1)]


def nice_step(low: float, high: float, n_ticks: int = 5) -> float:
    """The round number nearest above the distance of so many ticks."""
    rough = (high - low) / n_ticks
    power = 10.0 ** math.floor(math.log10(rough))
    return next(step * power for step in _STEPS if step * power >= rough * (1 - 1e-9))


def tick_labels(ticks: list[float]) -> list[str]:
    """The ticks of one axis, all with as many decimals as the finest needs.

    Powers of ten are for what is large, or small; a fine step between plain numbers is plain, too: `0.99912`.
    """
    largest = max(map(abs, ticks), default=0.0)
    step = ticks[1] - ticks[0] if len(ticks) > 1 else largest or 1.0
    if largest >= 1e6 or (step < 1e-4 and not 1e-3 <= largest <= 1e4):
        return ["0" if tick == 0 else _power(tick, step) for tick in ticks]
    decimals = max(0, -math.floor(math.log10(step) + 1e-9))
    return [f"{0.0 if abs(tick) < step / 2 else tick:,.{decimals}f}" for tick in ticks]


def log_ticks(low: float, high: float, n_ticks: int = 6) -> list[float]:
    """Powers of ten between two exponents; with the multiples 2 and 5 where there are few, thinned where many."""
    first, last = math.floor(low), math.ceil(high)
    every = max(1, math.ceil((last - first) / n_ticks))
    factors = (1, 2, 5) if high - low < 2 else (1,)
    candidates = [math.log10(factor) + power for power in range(first, last + 1, every) for factor in factors]
    return [exponent for exponent in candidates if low - 1e-9 <= exponent <= high + 1e-9]


def log_labels(exponents: list[float]) -> list[str]:
    """The numbers at these exponents: `0.01`, `20`, `1e6`."""
    return [f"{10.0**exponent:.1g}".replace("e-0", "e-").replace("e+0", "e") if not -4 <= exponent < 4
            else f"{10.0**exponent:,.{max(0, -math.floor(exponent + 1e-9))}f}" for exponent in exponents]  # fmt: skip


def _power(tick: float, step: float) -> str:
    digits = max(0, math.floor(math.log10(abs(tick)) + 1e-9) - math.floor(math.log10(step) + 1e-9))
    return f"{tick:.{digits}e}".replace("e-0", "e-").replace("e+0", "e")
