"""Parameters of maps as they are read back: numbers, finite, in their range; ValueError if they are anything else."""

from typing import Any

import numpy as np

from bayesnde_cli.data.scaling.column_map import Array, Noise


def number(value: Any, name: str, *, above: float = -np.inf, most: float = np.inf) -> float:
    """A stored number, larger than `above` and no larger than `most`."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not np.isfinite(float(value)):
        raise ValueError(f"{name} is {value!r}, not a finite number")
    if not above < value <= most:
        raise ValueError(f"{name} is {value!r}, out of range")
    return float(value)


def numbers(values: Any, name: str, *, least: float = -np.inf) -> Array:
    """A stored list of numbers, one at least, none smaller than `least`. Shape (K,)."""
    if not isinstance(values, list) or not values:
        raise ValueError(f"{name} is {values!r}, not a list of numbers")
    found = np.array([number(value, name) for value in values], np.float64)
    if np.min(found) < least:
        raise ValueError(f"{name} has {np.min(found):g}, out of range")
    return found


def noise(stored: Any) -> Noise:
    """Stored noise: its two ends."""
    low, high = numbers(stored, "noise").tolist()
    if low >= high:
        raise ValueError(f"noise goes from {low:g} to {high:g}")
    return Noise(low, high)
