"""A Gaussian: mean and covariance of the training rows."""

import math

import numpy as np
from scipy.linalg import solve_triangular

from bayesnde_cli.evaluation.baselines.fitted import Fitted

# Added to the diagonal of covariances, in standardised units: columns that depend on each other stay apart.
RIDGE = 1e-6


def gaussian(train: np.ndarray, validation: np.ndarray, seed: int) -> Fitted:
    """The Gaussian of highest likelihood; there is nothing to choose."""
    p = train.shape[1]
    mean = train.mean(axis=0)
    covariance = (train - mean).T @ (train - mean) / len(train) + RIDGE * np.eye(p)
    factor = np.linalg.cholesky(covariance)
    constant = -0.5 * p * math.log(2.0 * math.pi) - np.log(np.diag(factor)).sum()

    def score(rows: np.ndarray) -> np.ndarray:
        standard = solve_triangular(factor, (rows - mean).T, lower=True)  # (p, rows)
        return constant - 0.5 * np.sum(standard**2, axis=0)

    return Fitted(score, {"n_fit_rows": len(train)})
