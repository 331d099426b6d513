"""A kernel density: a round Gaussian on every training row; the validation rows choose its width.

log p(x) = log mean_i exp(-|x - x_i|^2 / (2 h^2)) - p log h - (p / 2) log(2 pi)

Computed here and not by scikit-learn: the distances are found once for all widths.
"""

import math
from collections.abc import Sequence

import numpy as np

from bayesnde_cli.evaluation.baselines.fitted import Fitted, some_rows

# Widths in standardised units: from 1/256 to 4, a factor of sqrt 2 apart.
BANDWIDTHS = tuple(2.0 ** (k / 2) for k in range(-16, 5))
# Every row is compared with every training row: more of them are not used, nor of the rows that choose.
MOST_ROWS = 10_000
MOST_CHOOSING_ROWS = 1_000
_ROWS_AT_ONCE = 256
# The preset's blur of models in which outliers are looked for.
OUTLIERS_BLUR = 0.5


def kernel_density(train: np.ndarray, validation: np.ndarray, seed: int) -> Fitted:
    """The kernel density whose width gives the highest mean log-density on the validation rows."""
    kernels = some_rows(train, MOST_ROWS, seed)
    judged = log_kernel_density(some_rows(validation, MOST_CHOOSING_ROWS, seed), kernels, BANDWIDTHS)
    width = BANDWIDTHS[int(np.argmax(judged.mean(axis=1)))]
    chosen = {"bandwidth": width, "n_fit_rows": len(kernels)}
    return Fitted(lambda rows: log_kernel_density(rows, kernels, [width])[0], chosen)


def blurred_kernels(train: np.ndarray, validation: np.ndarray, seed: int, *, blur: float = OUTLIERS_BLUR) -> Fitted:
    """A kernel density as wide as `density --blur` makes a model: sqrt(2 p) times the blur, that of `outliers`."""
    kernels = some_rows(train, MOST_ROWS, seed)
    width = blur * math.sqrt(2.0 * train.shape[1])
    chosen = {"bandwidth": width, "n_fit_rows": len(kernels)}
    return Fitted(lambda rows: log_kernel_density(rows, kernels, [width])[0], chosen)


def log_kernel_density(rows: np.ndarray, kernels: np.ndarray, bandwidths: Sequence[float]) -> np.ndarray:
    """The log-density of rows (n, p) around kernels (m, p) for each bandwidth. (bandwidths, n)."""
    p = rows.shape[1]
    found = np.empty((len(bandwidths), len(rows)))
    squares = np.sum(kernels**2, axis=1)
    for start in range(0, len(rows), _ROWS_AT_ONCE):
        some = rows[start : start + _ROWS_AT_ONCE]
        distance = np.maximum(np.sum(some**2, axis=1)[:, None] - 2.0 * some @ kernels.T + squares, 0.0)  # (some, m)
        nearest = distance.min(axis=1)
        for index, h in enumerate(bandwidths):
            # The nearest kernel counts 1, so that the sum is never 0.
            shares = np.exp((nearest[:, None] - distance) * (0.5 / h**2)).sum(axis=1)
            found[index, start : start + len(some)] = np.log(shares) - nearest * (0.5 / h**2) - p * math.log(h)
    return found - math.log(len(kernels)) - 0.5 * p * math.log(2.0 * math.pi)
