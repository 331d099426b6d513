"""Figures as JSON holds them: numbers, or None where there is no number."""

import math
from typing import Any

import numpy as np

Figures = dict[str, Any]


def figure(value: float) -> float | None:
    """A finite number as it is; None for any other."""
    return float(value) if math.isfinite(value) else None


def mean_figures(values: np.ndarray) -> tuple[float | None, float | None]:
    """The mean of finite values and its standard error, s / sqrt(n); None for what too few values do not tell."""
    n = len(values)
    if n == 0:
        return None, None
    mean = math.fsum(values) / n
    return figure(mean), figure(np.std(values, ddof=1) / math.sqrt(n)) if n > 1 else None
