"""A Gaussian mixture, fitted by EM; the validation rows choose how many components, and which covariances."""

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np

from bayesnde_cli.evaluation.baselines.fitted import Fitted, some_rows
from bayesnde_cli.evaluation.baselines.gaussian import RIDGE, gaussian
from bayesnde_cli.rng import derive_seed

COMPONENTS = (1, 2, 3, 5, 8, 12, 20, 32, 50)
COVARIANCES = ("full", "diag")
# More components are no longer tried after so many in a row that were no better.
_PATIENCE = 2
# As a competitor it has more to choose from, and all rows, which may take a quarter of an hour.
MORE_COMPONENTS, MANY_ROWS = (*COMPONENTS, 80, 128, 200), 100_000
# Rows for each component, at least.
_LEAST_ROWS = 5
# EM passes all training rows again and again: more of them are not used.
MOST_ROWS = 10_000


def gaussian_mixture(
    train: np.ndarray, validation: np.ndarray, seed: int,
    *, components: Sequence[int] = COMPONENTS, most_rows: int | None = None,
) -> Fitted:  # fmt: skip
    """The mixture of the highest mean log-density on the validation rows; of a single training row, a Gaussian."""
    if len(train) < 2:
        return gaussian(train, validation, seed)
    fitted_rows = some_rows(train, most_rows or MOST_ROWS, seed)
    best: Any = None
    best_score = -np.inf
    for covariance in COVARIANCES:
        own_best, n_misses = -np.inf, 0
        for n_components in components:
            if n_misses >= _PATIENCE or n_components > max(1, len(fitted_rows) // _LEAST_ROWS):
                break
            mixture = _mixture(fitted_rows, n_components, covariance, seed)
            score = float(np.mean(mixture.score_samples(validation)))
            n_misses = 0 if score > own_best else n_misses + 1
            own_best = max(score, own_best)
            if best is None or score > best_score:
                best, best_score = mixture, score
    chosen = {
        "components": int(best.n_components),
        "covariance": str(best.covariance_type),
        "n_fit_rows": len(fitted_rows),
    }
    return Fitted(best.score_samples, chosen)


def _mixture(rows: np.ndarray, n_components: int, covariance: str, seed: int) -> Any:
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.mixture import GaussianMixture
    from threadpoolctl import threadpool_limits

    mixture = GaussianMixture(
        n_components,
        covariance_type=covariance,
        reg_covar=RIDGE,
        random_state=derive_seed(seed, "mixture", covariance, n_components) % 2**32,
    )
    # One thread: the products are small, and two threads took six times as long for them.
    with warnings.catch_warnings(), threadpool_limits(1):
        # Stopped early, or fewer distinct rows than components: the validation rows judge it.
        warnings.simplefilter("ignore", ConvergenceWarning)
        return mixture.fit(rows)
