"""How many components a column's mixture has: sizes in increasing order, as long as unseen rows gain.

Parameters are fitted to training rows alone. The size is chosen by the mean log-density of rows that the fit did
not see: the validation rows and, in small tables, whose validation rows are too few to tell, also the training
rows by five-fold cross-validation. Measured at 45 to 600 rows, that choice loses half as much as validation
rows alone would.

A size is taken if it gains more than `1/n` nats a row over the best one so far, that is one nat over all the n
rows that judge; after two sizes in a row without such a gain the search ends. The margin is far above rounding
error, so every machine chooses the same.
"""

import numpy as np

from bayesnde_cli.data.scaling.column_map import Array, as_float
from bayesnde_cli.data.scaling.mixture import Mixture
from bayesnde_cli.data.scaling.mixture_em import atoms_of, fit_atoms
from bayesnde_cli.rng import bits_at

SIZES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)
_MAX_JUDGES = 5_000
_MIN_ROWS_PER_COMPONENT = 8
_FEW_ROWS = 2_000  # with fewer training rows than this they judge too
_N_FOLDS = 5
_MAX_MISSES = 2


def fitted_mixture(train: Array, validation: Array) -> Mixture:
    """The mixture fitted to `train`, of the size that suits rows it has not seen."""
    train, validation = as_float(train), as_float(validation)
    if not len(train):
        raise ValueError("expected at least 1 training row, got 0")
    judges = [(atoms_of(train), _spread_out(validation, _MAX_JUDGES))]
    if len(train) < _FEW_ROWS:
        fold = _folds(len(train))
        judges += [(atoms_of(train[fold != k]), train[fold == k]) for k in np.unique(fold) if (fold != k).any()]
    n_judges = sum(len(rows) for _, rows in judges)
    best, best_score, n_misses = None, -np.inf, 0
    for size in SIZES:
        if best is not None and (n_judges == 0 or size * _MIN_ROWS_PER_COMPONENT > len(train)):
            break
        fits = [fit_atoms(atoms, size) for atoms, _ in judges]
        score = sum(float(np.sum(fit.log_density(rows))) for fit, (_, rows) in zip(fits, judges, strict=True))
        if best is None or score > best_score + 1.0:
            best, best_score, n_misses = fits[0], score, 0
        else:
            n_misses += 1
        if n_misses == _MAX_MISSES:
            break
    assert best is not None
    return best


def _spread_out(rows: Array, n_most: int) -> Array:
    """At most `n_most` of the rows, evenly spaced."""
    if len(rows) <= n_most:
        return rows
    return rows[(np.arange(n_most) * len(rows)) // n_most]


def _folds(n_rows: int) -> np.ndarray:
    """A fold for each row, by hashing its position: neighbours in a sorted file part ways. Shape (n,)."""
    return (bits_at(0, np.arange(n_rows)) % np.uint64(_N_FOLDS)).astype(np.int64)
