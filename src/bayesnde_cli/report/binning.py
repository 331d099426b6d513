"""Rows brought down to what a plot can show: bins, ranges and thinned points. All of it without chance."""

import math
from collections.abc import Sequence

import numpy as np

MOST_BINS = 40
_LEAST_BINS = 8
# A range reaches this many interquartile ranges beyond the quartiles; what lies outside goes into the last bins.
_REACH = 4.0


def n_bins(n_rows: int) -> int:
    """Bins for so many rows, by Rice's rule: twice the cube root."""
    return min(MOST_BINS, max(_LEAST_BINS, math.ceil(2 * n_rows ** (1 / 3))))


def robust_range(values: np.ndarray) -> tuple[float, float]:
    """Where nearly all of the values lie, so that one wild row does not make a plot of a single bar."""
    finite = values[np.isfinite(values)]
    if not len(finite):
        return 0.0, 1.0
    lower, upper = np.quantile(finite, [0.25, 0.75])
    reach = _REACH * (upper - lower)
    inside = finite[(finite >= lower - reach) & (finite <= upper + reach)]
    return widened(float(inside.min()), float(inside.max()))


def widened(low: float, high: float, by: float = 0.0) -> tuple[float, float]:
    """The range with a margin on both sides, and never empty."""
    if high <= low:
        half = 0.5 * abs(low) * 1e-3 or 0.5
        low, high = low - half, high + half
    margin = by * (high - low)
    return low - margin, high + margin


def shown_range(real: np.ndarray, generated: np.ndarray) -> tuple[float, float]:
    """Where a column is shown: nearly all of the real values, and of the generated ones all but a half per cent."""
    low, high = robust_range(real)
    finite = generated[np.isfinite(generated)]
    if not len(finite):
        return low, high
    tails = np.quantile(finite, [0.0025, 0.9975])
    return widened(min(low, float(tails[0])), max(high, float(tails[1])))


def bin_shares(values: np.ndarray, edges: np.ndarray) -> np.ndarray:
    """The share of finite values in each bin, (bins,); values beyond the edges are counted in the end bins."""
    finite = values[np.isfinite(values)]
    counts, _ = np.histogram(np.clip(finite, edges[0], edges[-1]), edges)
    return np.asarray(counts / max(len(finite), 1))


def common_edges(samples: Sequence[np.ndarray], span: tuple[float, float] | None = None) -> np.ndarray:
    """Edges of bins that several samples are counted in: their common range, and bins for the smallest of them."""
    low, high = span or robust_range(np.concatenate(samples))
    return np.linspace(low, high, n_bins(min(len(sample) for sample in samples)) + 1)


def edges_through(limit: float, low: float, high: float, n: int) -> np.ndarray:
    """Edges of about n equal bins over a range, one of them at a limit within it: no bar lies on both of its sides."""
    width = (high - low) / n
    n_below, n_above = math.ceil((limit - low) / width), math.ceil((high - limit) / width)
    return np.asarray(limit + width * np.arange(-n_below, n_above + 1))


def whole_edges(low: float, high: float, most: int) -> np.ndarray:
    """Edges of at most so many bins of whole numbers, each with as many of them: other bins would make teeth."""
    first, last = math.floor(low), math.ceil(high)
    width = math.ceil((last - first + 1) / most)
    n = math.ceil((last - first + 1) / width)
    return first - 0.5 + width * np.arange(n + 1)


def thinned(n_rows: int, most: int) -> np.ndarray:
    """At most so many row positions, evenly spread over all."""
    if n_rows <= most:
        return np.arange(n_rows)
    return np.linspace(0, n_rows - 1, most).round().astype(np.int64)
