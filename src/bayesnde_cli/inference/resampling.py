"""Draws of a proposal turned into draws of its target."""

import numpy as np


def resampled(z: np.ndarray, log_ratios: np.ndarray, n: int) -> np.ndarray:
    """n of each row's draws, taken by their weight pi / q. z (rows, m, d), log_ratios (rows, m) -> (rows, n, d).

    A draw is taken as often as its share of the weights says, up or down to a whole number, and repeats stand together.
    No weight counts for more than sqrt(m) times their mean (Ionides 2008): a few draws that the proposal hardly makes
    must not stand for all. A row without any finite weight gets NaN, which is no draw.
    """
    n_rows, m, _ = z.shape
    log_ratios = np.where(np.isfinite(log_ratios), log_ratios, -np.inf)
    top = log_ratios.max(axis=1, keepdims=True)
    has_none = ~np.isfinite(top[:, 0])
    weights = np.exp(log_ratios - np.where(has_none[:, None], 0.0, top))
    weights[has_none] = 1.0
    weights = np.minimum(weights, weights.mean(axis=1, keepdims=True) * np.sqrt(m))
    shares = np.cumsum(weights, axis=1)
    reached = np.floor(n * shares / shares[:, -1:] + 0.5).astype(np.int64)  # draws that are taken so far
    times = np.diff(reached, axis=1, prepend=0)
    index = np.repeat(np.tile(np.arange(m), n_rows), times.ravel()).reshape(n_rows, n)
    taken = np.take_along_axis(z, index[:, :, None], axis=1)
    taken[has_none] = np.nan
    return taken
