"""Correlated normal rows, whose density is known, for neural densities."""

import numpy as np

from bayesnde_cli.evaluation.baselines import Part

COVARIANCE = np.array([[1.0, 0.8], [0.8, 1.0]])
# A share of the steps that is enough to differ from the initial weights.
FEW = 0.005


def normal(n: int, seed: int) -> Part:
    """So many rows."""
    return Part(np.random.default_rng(seed).multivariate_normal([0.0, 0.0], COVARIANCE, n))
