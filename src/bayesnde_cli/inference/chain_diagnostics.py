"""Convergence and effective sample size of Markov chains: Vehtari, Gelman, Simpson, Carpenter and Bürkner (2021).

Every chain is cut into its two halves, so that one that drifts disagrees with itself; the middle draw of an odd number
belongs to neither. R-hat compares the variance between the halves with the variance within them; the effective sample
size divides the number of draws N by the autocorrelation time, summed up to where noise takes over (Geyer 1992). For
coordinates both look at normal scores of the ranks instead of the draws, which heavy tails do not disturb.

The numbers are those of ArviZ, but chains that say nothing get neither NaN nor praise:

    the chains                                             R-hat    effective sample size
    a value is NaN, infinite or beyond 1e300               inf      0
    too few draws: below 4 for R-hat, 10 for the size      inf      0
    one of them (or all) never moved                       inf      1

One chain that stands still among others that move is not left to the formula: in their midst it would pass for as many
good draws as any of them. A single chain is compared with itself: it has two halves.
"""

from collections.abc import Callable

import numpy as np
from scipy.fft import irfft, next_fast_len, rfft
from scipy.special import ndtri

# Two in each half: below, a half has no variance.
MIN_DRAWS_RHAT = 4
# Five in each half: below, Geyer's sequence ends before its second pair, and ArviZ reports its upper bound for whatever
# the draws may be.
MIN_DRAWS_ESS = 10
# Beyond, the difference of two values may overflow: as good as infinite.
LARGEST_VALUE = 1e300
# Ranks and Fourier transforms need some ten arrays of this many float64, 2 MB each, however large the block. Larger
# pieces are slower, too: they leave the cache.
N_VALUES_AT_ONCE = 2**18

Measure = Callable[[np.ndarray], np.ndarray]


def rhat(draws: np.ndarray) -> np.ndarray:
    """Rank-normalised split R-hat of every coordinate of every row. (rows, chains, draws, d) -> (rows, d).

    The larger one of R-hat of the draws, which sees chains in different places, and of their distances from the median,
    which sees chains of different widths (section 4.1). Below 1.01 the chains agree.
    """
    return _in_pieces(_rhat, np.moveaxis(draws, 3, 1))


def bulk_ess(draws: np.ndarray) -> np.ndarray:
    """How many independent draws tell as much of the bulk of every coordinate. (rows, chains, draws, d) -> (rows, d).

    The rank-normalised split effective sample size (section 4.1), at most N log10 N.
    """
    return _in_pieces(_bulk_ess, np.moveaxis(draws, 3, 1))


def mean_ess(values: np.ndarray) -> np.ndarray:
    """How many independent draws give as exact a mean of these values. (rows, chains, draws) -> (rows,).

    The split effective sample size of the values themselves, not of their ranks: the variance of their mean is their
    variance over this number. It is the same in any unit; ArviZ takes values that differ by less than 1e-15 for equal.
    """
    return _in_pieces(_mean_ess, values)


def _in_pieces(measure: Measure, chains: np.ndarray) -> np.ndarray:
    """`measure` of (rows, ..., chains, draws), float64, on a few rows at a time: this bounds the memory."""
    result = np.empty(chains.shape[:-2])
    n_rows_at_once = max(1, N_VALUES_AT_ONCE * len(chains) // max(1, chains.size))
    for start in range(0, len(chains), n_rows_at_once):
        piece = slice(start, start + n_rows_at_once)
        result[piece] = measure(chains[piece].astype(np.float64, order="C"))
    return result


def _rhat(chains: np.ndarray) -> np.ndarray:
    """R-hat of (..., chains, draws)."""
    if chains.shape[-1] < MIN_DRAWS_RHAT:
        return np.full(chains.shape[:-2], np.inf)
    chains = _without_middle(_finite_or_still(chains))
    halves = _halves(chains)
    distance = np.abs(halves - np.median(halves, axis=(-2, -1), keepdims=True))
    # Distances that are all the same have no R-hat, NaN: fmax then takes the one of the draws.
    larger = np.fmax(_variance_ratio(_normal_scores(halves)), _variance_ratio(_normal_scores(distance)))
    return np.where(_stands_still(chains), np.inf, larger)


def _bulk_ess(chains: np.ndarray) -> np.ndarray:
    """The effective sample size of the normal scores of (..., chains, draws)."""
    return _ess_of_scores(chains, _normal_scores)


def _mean_ess(chains: np.ndarray) -> np.ndarray:
    """The effective sample size of the values of (..., chains, draws) as they are."""
    return _ess_of_scores(chains, lambda halves: halves)


def _ess_of_scores(chains: np.ndarray, score: Measure) -> np.ndarray:
    """The effective sample size of what `score` makes of the halves of (..., chains, draws)."""
    if chains.shape[-1] < MIN_DRAWS_ESS:
        return np.zeros(chains.shape[:-2])
    is_finite = _is_finite(chains)
    chains = _without_middle(_finite_or_still(chains))
    size = np.where(_stands_still(chains), 1.0, _ess(score(_halves(chains))))
    return np.where(is_finite, size, 0.0)


def _is_finite(chains: np.ndarray) -> np.ndarray:
    """Whether every value of every chain can be computed with. (..., chains, draws) -> (...)."""
    return np.all(np.abs(chains) <= LARGEST_VALUE, axis=(-2, -1))


def _finite_or_still(chains: np.ndarray) -> np.ndarray:
    """The chains, but zero for ever where one value of (..., chains, draws) is not finite."""
    return np.where(_is_finite(chains)[..., None, None], chains, 0.0)


def _without_middle(chains: np.ndarray) -> np.ndarray:
    """The chains of an even number of draws. (..., chains, draws) -> (..., chains, 2n)."""
    n = chains.shape[-1] // 2
    return np.concatenate([chains[..., :n], chains[..., -n:]], axis=-1)


def _halves(chains: np.ndarray) -> np.ndarray:
    """The halves of every chain as chains of their own. (..., chains, 2n) -> (..., m, n), m twice as many."""
    return chains.reshape(*chains.shape[:-2], 2 * chains.shape[-2], chains.shape[-1] // 2)


def _stands_still(chains: np.ndarray) -> np.ndarray:
    """Whether one of the chains never moved. (..., chains, 2n) -> (...)."""
    return np.any(np.ptp(chains, axis=-1) == 0.0, axis=-1)


def _normal_scores(halves: np.ndarray) -> np.ndarray:
    """Phi^-1((rank - 3/8) / (N + 1/4)) (section 4.1), with the mean rank for ties. (..., m, n), ranked over both.

    Twice the speed of scipy's `rankdata` and `ndtri`, which give the same: any sort will do, and a rank is one of few.
    """
    pooled = halves.reshape(*halves.shape[:-2], halves.shape[-2] * halves.shape[-1])  # (..., N)
    n_total = pooled.shape[-1]
    order = np.argsort(pooled, axis=-1)
    ordered = np.take_along_axis(pooled, order, axis=-1)
    is_step = ordered[..., 1:] != ordered[..., :-1]  # whether a run of ties ends here and the next begins
    first, last = np.zeros_like(order), np.full_like(order, n_total - 1)  # of the run, counted from zero
    first[..., 1:] = np.where(is_step, np.arange(1, n_total), 0)
    last[..., :-1] = np.where(is_step, np.arange(n_total - 1), n_total - 1)
    first = np.maximum.accumulate(first, axis=-1)
    last = np.minimum.accumulate(last[..., ::-1], axis=-1)[..., ::-1]
    mean_ranks = 1.0 + 0.5 * np.arange(2 * n_total - 1)  # by first + last
    scores = np.empty(pooled.shape)
    np.put_along_axis(scores, order, ndtri((mean_ranks - 0.375) / (n_total + 0.25))[first + last], axis=-1)
    return scores.reshape(halves.shape)


def _variance_ratio(halves: np.ndarray) -> np.ndarray:
    """R-hat = sqrt(((n - 1) W / n + B / n) / W) (section 3.1). (..., m, n) -> (...); NaN if all are the same."""
    n = halves.shape[-1]
    within = np.mean(_variance(halves), axis=-1)
    between = n * _variance(np.mean(halves, axis=-1))
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.sqrt((between / within + n - 1) / n)


def _variance(values: np.ndarray) -> np.ndarray:
    """The variance along the last axis; that of equal values is zero exactly, as rounding would pass for movement."""
    return np.var(values - values[..., :1], axis=-1, ddof=1)


def _ess(halves: np.ndarray) -> np.ndarray:
    """N over the autocorrelation time. (..., m, n) -> (...).

    With the autocorrelations rho_t (section 3.2) in pairs P_k = rho_2k + rho_2k+1, and K the first pair that is not
    positive (or the last there is), the autocorrelation time is -1 + 2 sum_{k<K} min(P_0, ..., P_k) + rho_2K: Geyer's
    initial monotone sequence and, as in ArviZ and Stan, half a pair more for the sake of antithetic chains, unless both
    it and its pair are negative.
    """
    n_total = halves.shape[-2] * halves.shape[-1]
    lowest = np.min(halves, axis=(-2, -1), keepdims=True)
    spread = np.max(halves, axis=(-2, -1), keepdims=True) - lowest
    # To [0, 1], as squares of very small values would be zero.
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
    # The sum of noisy terms may come out as zero or less: no chain is taken for better than N log10 N.
    return n_total / np.maximum(time, 1.0 / np.log10(n_total))


def _autocorrelation(halves: np.ndarray) -> np.ndarray:
    """rho_t = 1 - (W - C_t) / var+ at every lag t (section 3.2). (..., m, n) -> (..., n).

    C_t is the mean autocovariance of the halves, W = C_0 n / (n - 1) and var+ = C_0 + the variance of their means.
    """
    n = halves.shape[-1]
    mean = np.mean(halves, axis=-1, keepdims=True)
    n_padded = next_fast_len(2 * n, real=True)  # with room for zeros, so that the end does not meet the beginning
    spectrum = rfft(halves - mean, n=n_padded, axis=-1)
    power = np.mean(spectrum.real**2 + spectrum.imag**2, axis=-2)
    autocovariance = irfft(power, n=n_padded, axis=-1)[..., :n] / n  # C_t
    variance = autocovariance[..., :1]
    total = variance + _variance(mean[..., 0])[..., None]  # var+
    rho = 1.0 - (variance * n / (n - 1) - autocovariance) / np.where(total > 0.0, total, 1.0)
    rho[..., 0] = 1.0
    return rho
