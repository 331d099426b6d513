"""The paper's appendix S2, transcribed with loops: one number at a time, no tricks."""

from collections.abc import Callable

import numpy as np


def discriminator(real_score: np.ndarray, fake_score: np.ndarray) -> float:
    real = np.mean([(0.9 - score) ** 2 for score in real_score.ravel()])
    fake = np.mean([(0.1 - score) ** 2 for score in fake_score.ravel()])
    return 0.5 * (real + fake)


def reconstruction(original: np.ndarray, rebuilt: np.ndarray, p: int) -> float:
    return np.mean([np.linalg.norm(a - b) ** 2 / p for a, b in zip(original, rebuilt, strict=True)])


def correlation(real: np.ndarray, rebuilt: np.ndarray) -> float:
    p = real.shape[1]
    total = 0.0
    for i in range(p):
        for j in range(p):
            total += (_corr(rebuilt[:, i], rebuilt[:, j]) - _corr(real[:, i], real[:, j])) ** 2
    return total / p**2


def _corr(a: np.ndarray, b: np.ndarray) -> float:
    return np.mean((a - a.mean()) * (b - b.mean())) / (a.std() * b.std())


def marginal_mmd(real: np.ndarray, generated: np.ndarray) -> float:
    p = real.shape[1]
    total = 0.0
    for h in (0.05, 0.1, 0.2, 0.5, 1.0):
        for j in range(p):
            total += _discrepancy(real[:, j], generated[:, j], lambda u, v, h=h: np.exp(-((u - v) ** 2) / (2 * h**2)))
    return total / (5 * p)


def joint_mmd(real: np.ndarray, generated: np.ndarray) -> float:
    x, y = pooled_standardised(real, generated)
    p = real.shape[1]
    total = 0.0
    for s in (0.5, 1.0, 2.0):
        total += _discrepancy(x, y, lambda u, v, s=s: np.exp(-np.sum((u - v) ** 2) / (2 * s * p)))
    return max(0.0, total / 3)


def _discrepancy(x: np.ndarray, y: np.ndarray, kernel: Callable) -> float:
    def mean_kernel(a: np.ndarray, b: np.ndarray) -> float:
        return np.mean([kernel(u, v) for u in a for v in b])

    return mean_kernel(x, x) + mean_kernel(y, y) - 2 * mean_kernel(x, y)


def pooled_standardised(real: np.ndarray, generated: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    pooled = np.concatenate([real, generated])
    m, v = pooled.mean(axis=0), pooled.var(axis=0)
    return (real - m) / np.sqrt(v + 1e-6), (generated - m) / np.sqrt(v + 1e-6)


def sliced_wasserstein(real: np.ndarray, generated: np.ndarray, directions: np.ndarray) -> float:
    x, y = pooled_standardised(real, generated)
    n, n_directions = len(real), directions.shape[1]
    total = 0.0
    for omega in directions.T:
        for u, v in zip(sorted(x @ omega), sorted(y @ omega), strict=True):
            total += (u - v) ** 2
    return total / (n * n_directions)


def log_variance(variance: np.ndarray) -> float:
    return np.mean([np.mean((np.log(row + 1e-8) - np.log(0.01)) ** 2) for row in variance])
