"""What a baseline is once it is fitted."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from bayesnde_cli.evaluation.baselines.parts import Part
from bayesnde_cli.evaluation.figures import Figures
from bayesnde_cli.rng import derive_seed, generator


class Fitted(NamedTuple):
    """A fitted baseline: rows (n, p) to scores (n,), larger for more usual rows; and what was chosen on the way."""

    score: Callable[[np.ndarray], np.ndarray]
    chosen: Figures


# (training rows, validation rows, seed) -> the fitted baseline. Rows are (n, p) float64, columns standardised.
Fit = Callable[[np.ndarray, np.ndarray, int], Fitted]


class FittedParts(NamedTuple):
    """A fitted baseline that knows of classes: rows with their classes to scores (n,), and what was chosen."""

    score: Callable[[Part], np.ndarray]
    chosen: Figures


# The same for rows with their classes, if there are any.
FitParts = Callable[[Part, Part, int], FittedParts]


def by_class(fit: Fit) -> FitParts:
    """The fit of all rows; with classes one expert for each. `chosen["classes"]` is then by the class's position."""

    def fit_parts(train: Part, validation: Part, seed: int) -> FittedParts:
        if train.classes is None:
            fitted = fit(train.cells, validation.cells, seed)
            return FittedParts(lambda part: _scored(fitted, part.cells), _chosen(fitted, train.cells))
        experts = {
            index: fit(train.of_class(index), validation.of_class(index), derive_seed(seed, index))
            for index in np.unique(train.classes).tolist()
        }

        def score(part: Part) -> np.ndarray:
            found = np.full(len(part.cells), np.nan)  # a class without training rows has no density
            for index, fitted in experts.items():
                if np.any(part.classes == index):
                    found[part.classes == index] = _scored(fitted, part.of_class(index))
            return found

        chosen = {index: _chosen(fitted, train.of_class(index)) for index, fitted in experts.items()}
        return FittedParts(score, {"fit": "experts", "classes": chosen})

    return fit_parts


def some_rows(rows: np.ndarray, most: int, seed: int) -> np.ndarray:
    """All rows, or `most` of them drawn without replacement, in their order."""
    if len(rows) <= most:
        return rows
    return rows[np.sort(generator(seed, "baseline rows").choice(len(rows), most, replace=False))]


def _chosen(fitted: Fitted, train: np.ndarray) -> Figures:
    """What was chosen, and of how many training rows the `n_fit_rows` are."""
    return fitted.chosen | {"n_train_rows": len(train)}


def _scored(fitted: Fitted, rows: np.ndarray) -> np.ndarray:
    with np.errstate(over="ignore", invalid="ignore"):  # rows beyond all measure have no finite density
        return fitted.score(rows)
