"""Draws of Markov chains, their convergence and their effective sample size (Vehtari et al. 2021).

Every chain is split into halves, so that a drifting chain disagrees with itself; the middle draw of an odd number is
dropped. R-hat compares the variance between halves with the variance within. The effective sample size is the number of
draws N over the autocorrelation time, summed up to where noise takes over (Geyer 1992). For coordinates, both use
normal scores of the ranks instead of the draws, so that heavy tails do no harm.

The numbers are those of ArviZ, except for chains that carry no information:

    chains                                                 R-hat    effective sample size
    a value is NaN, infinite or beyond 1e300               inf      0
    too few draws: below 4 for R-hat, 10 for the size      inf      0
    one of them (or all) never moved                       inf      1

A chain that stands still among moving ones needs this rule: in their midst the formula would count its draws like
theirs. A single chain is compared with itself, by its halves."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from scipy.fft import irfft, next_fast_len, rfft
from scipy.special import ndtri

# Two in each half: with fewer, a half has no variance.
_MIN_DRAWS_RHAT = 4
# Five in each half: with fewer, Geyer's sequence ends before its second pair, and ArviZ reports its upper bound for any
# draws.
MIN_DRAWS_ESS = 10
# The difference of larger values may overflow, so they count as infinite.
_LARGEST_VALUE = 1e300
# Ranks and Fourier transforms take some ten arrays of this many float64, 2 MB each, for a block of any size. Larger
# pieces leave the cache and are slower.
N_VALUES_AT_ONCE = 2**18


class Draws(NamedTuple):
    """Draws from the latent posterior of every row of a block, and what the sampler reports about them."""

    z: np.ndarray  # (rows, chains, draws, d) float32, in order of time
    acceptance: np.ndarray  # (rows,) float32: of the trajectories after the warm-up
    divergences: np.ndarray  # (rows,) int32
    step_size: np.ndarray  # (rows,) float32
    n_gradients: np.ndarray  # (rows,) int64: spent on these draws
    missed_mass: np.ndarray  # (rows,) float32: see `modes.ModeSearch`; NaN if there was no search for modes
    modes: np.ndarray  # (rows, modes, d) float32: places of the modes, NaN for modes of negligible weight


def summarise(draws: Draws) -> dict[str, np.ndarray]:
    """The worst effective sample size and R-hat over the coordinates of each row."""
    return {"ess_min": bulk_ess(draws.z).min(axis=1), "rhat_max": rhat(draws.z).max(axis=1)}


def rhat(draws: np.ndarray) -> np.ndarray:
    """Rank-normalised split R-hat of every coordinate of every row. (rows, chains, draws, d) -> (rows, d).

    The larger R-hat of two: of the draws, which detects chains in different places, and of their distances from the
    median, which detects chains of different widths (section 4.1). Below 1.01 the chains agree.
    """

    def larger_ratio(halves: np.ndarray) -> np.ndarray:
        distance = np.abs(halves - np.median(halves, axis=(-2, -1), keepdims=True))
        # Equal distances have the R-hat NaN; fmax then takes that of the draws.
        return np.fmax(_variance_ratio(_normal_scores(halves)), _variance_ratio(_normal_scores(distance)))

    return _by_halves(larger_ratio, np.moveaxis(draws, 3, 1), _MIN_DRAWS_RHAT, otherwise=(np.inf, np.inf))


def bulk_ess(draws: np.ndarray) -> np.ndarray:
    """Rank-normalised split effective sample size of every coordinate. (rows, chains, draws, d) -> (rows, d).

    At most N log10 N (section 4.1).
    """
    chains = np.moveaxis(draws, 3, 1)
    return _by_halves(lambda halves: _ess(_normal_scores(halves)), chains, MIN_DRAWS_ESS, otherwise=(0.0, 1.0))


def mean_ess(values: np.ndarray) -> np.ndarray:
    """Split effective sample size of the values themselves, not of their ranks. (rows, chains, draws) -> (rows,).

    The variance of their mean is their variance over this number. It does not depend on the unit of the values; ArviZ
    treats values that differ by less than 1e-15 as equal.
    """
    return _by_halves(_ess, values, MIN_DRAWS_ESS, otherwise=(0.0, 1.0))


def _by_halves(
    measure: Callable[[np.ndarray], np.ndarray], chains: np.ndarray, min_draws: int, *, otherwise: tuple[float, float]
) -> np.ndarray:
    """The measure of the halves of (rows, ..., chains, draws), in float64 and a few rows at a time to bound the memory.

    `otherwise` are the results for values that are not finite (or too few) and for chains that stand still.
    """
    not_finite, stands_still = otherwise
    result, n = np.full(chains.shape[:-2], not_finite), chains.shape[-1] // 2
    if chains.shape[-1] < min_draws:
        return result
    n_rows_at_once = max(1, N_VALUES_AT_ONCE * len(chains) // max(1, chains.size))
    for start in range(0, len(chains), n_rows_at_once):
        rows = slice(start, start + n_rows_at_once)
        piece = chains[rows].astype(np.float64, order="C")
        is_finite = np.all(np.abs(piece) <= _LARGEST_VALUE, axis=(-2, -1))
        piece = np.concatenate([piece[..., :n], piece[..., -n:]], axis=-1)
        piece = np.where(is_finite[..., None, None], piece, 0.0)
        is_still = np.any(np.ptp(piece, axis=-1) == 0.0, axis=-1)
        found = measure(piece.reshape(*piece.shape[:-2], 2 * piece.shape[-2], n))
        result[rows] = np.where(is_finite, np.where(is_still, stands_still, found), not_finite)
    return result


def _normal_scores(halves: np.ndarray) -> np.ndarray:
    """Phi^-1((rank - 3/8) / (N + 1/4)) (section 4.1), with the mean rank for ties. (..., m, n), ranked over both."""
    from scipy.stats import rankdata  # takes half a second to import

    pooled = halves.reshape(*halves.shape[:-2], halves.shape[-2] * halves.shape[-1])  # (..., N)
    return ndtri((rankdata(pooled, axis=-1) - 0.375) / (pooled.shape[-1] + 0.25)).reshape(halves.shape)


def _variance_ratio(halves: np.ndarray) -> np.ndarray:
    """R-hat = sqrt(((n - 1) W / n + B / n) / W) (section 3.1). (..., m, n) -> (...); NaN if all are the same."""
    n = halves.shape[-1]
    within = np.mean(_variance(halves), axis=-1)
    between = n * _variance(np.mean(halves, axis=-1))
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.sqrt((between / within + n - 1) / n)


def _variance(values: np.ndarray) -> np.ndarray:
    """The variance along the last axis, exactly zero for equal values: rounding must not look like movement."""
    return np.var(values - values[..., :1], axis=-1, ddof=1)


def _ess(halves: np.ndarray) -> np.ndarray:
    """N over the autocorrelation time. (..., m, n) -> (...).

    With the autocorrelations rho_t (section 3.2) in pairs P_k = rho_2k + rho_2k+1, and K the first pair that is not
    positive (or the last one), the autocorrelation time is -1 + 2 sum_{k<K} min(P_0, ..., P_k) + rho_2K: Geyer's
    initial monotone sequence and, as in ArviZ and Stan, half a pair more for antithetic chains, unless both it and its
    pair are negative.
    """
    n_total = halves.shape[-2] * halves.shape[-1]
    lowest = np.min(halves, axis=(-2, -1), keepdims=True)
    spread = np.max(halves, axis=(-2, -1), keepdims=True) - lowest
    # Scale to [0, 1], as squares of tiny values would underflow.
    rho = _autocorrelation((halves - lowest) / np.where(spread > 0.0, spread, 1.0))  # (..., n)

    n_pairs = (rho.shape[-1] - 1) // 2
    even, odd = rho[..., 0 : 2 * n_pairs : 2], rho[..., 1 : 2 * n_pairs : 2]
    pairs = even + odd  # (..., n_pairs)
    is_end = pairs <= 0.0
    is_end[..., -1] = True
    end = np.argmax(is_end, axis=-1)[..., None]  # K, (..., 1)
    before_end = np.where(np.arange(n_pairs) < end, np.minimum.accumulate(pairs, axis=-1), 0.0)
    even_at_end = np.take_along_axis(even, end, axis=-1)[..., 0]
    has_even = (even_at_end > 0.0) | (np.take_along_axis(pairs, end, axis=-1)[..., 0] >= 0.0)
    time = -1.0 + 2.0 * np.sum(before_end, axis=-1) + np.where(has_even, even_at_end, 0.0)
    # The sum of noisy terms may be zero or negative: the size is at most N log10 N.
    return n_total / np.maximum(time, 1.0 / np.log10(n_total))


def _autocorrelation(halves: np.ndarray) -> np.ndarray:
    """rho_t = 1 - (W - C_t) / var+ at every lag t (section 3.2). (..., m, n) -> (..., n).

    C_t is the mean autocovariance of the halves, W = C_0 n / (n - 1) and var+ = C_0 + the variance of their means.
    """
    n = halves.shape[-1]
    mean = np.mean(halves, axis=-1, keepdims=True)
    n_padded = next_fast_len(2 * n, real=True)  # padded with zeros, so that the end does not wrap around
    spectrum = rfft(halves - mean, n=n_padded, axis=-1)
    power = np.mean(spectrum.real**2 + spectrum.imag**2, axis=-2)
    autocovariance = irfft(power, n=n_padded, axis=-1)[..., :n] / n  # C_t
    variance = autocovariance[..., :1]
    total = variance + _variance(mean[..., 0])[..., None]  # var+
    rho = 1.0 - (variance * n / (n - 1) - autocovariance) / np.where(total > 0.0, total, 1.0)
    rho[..., 0] = 1.0
    return rho
