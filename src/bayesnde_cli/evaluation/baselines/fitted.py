"""What a baseline is once it is fitted."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from bayesnde_cli.evaluation.figures import Figures
from bayesnde_cli.rng import generator


class Fitted(NamedTuple):
    """A fitted baseline: rows (n, p) to scores (n,), larger for more usual rows; and what was chosen on the way."""

    score: Callable[[np.ndarray], np.ndarray]
    chosen: Figures


# (training rows, validation rows, seed) -> the fitted baseline. Rows are (n, p) float64, columns standardised.
Fit = Callable[[np.ndarray, np.ndarray, int], Fitted]


def some_rows(rows: np.ndarray, most: int, seed: int) -> np.ndarray:
    """All rows, or `most` of them drawn without replacement, in their order."""
    if len(rows) <= most:
        return rows
    return rows[np.sort(generator(seed, "baseline rows").choice(len(rows), most, replace=False))]
