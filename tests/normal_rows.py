"""Correlated normal rows, whose density is known, for competitors."""

import numpy as np

from bayesnde_cli.rows import Rows

COVARIANCE = np.array([[1.0, 0.8], [0.8, 1.0]])
# A share of the steps that is enough to differ from the initial weights.
FEW = 0.005


def normal(n: int, seed: int) -> Rows:
    """Standardised rows with a correlation of 0.8."""
    return Rows(np.random.default_rng(seed).multivariate_normal([0.0, 0.0], COVARIANCE, n))


def with_classes(x: np.ndarray, classes: np.ndarray, n_classes: int = 2) -> Rows:
    """Rows with these class indices."""
    return Rows(x, y=np.eye(n_classes, dtype=np.float32)[classes])
