"""Bridge sampling (Meng and Wong 1996): log Z of many rows from draws of the posterior and draws of a proposal.

With l = pi(z) / q(z), pi = Z p the posterior before it is normalised, and shares s_p + s_q = 1, the estimate solves

    Z = mean over q of [l / (s_p l + s_q Z)]  /  mean over p of [1 / (s_p l + s_q Z)].

With a = log l - log Z + log(s_p / s_q) and the logistic function sigma this is

    F(log Z) = log(s_q mean over q of sigma(a)) - log(s_p mean over p of sigma(-a)) = 0.

F falls as log Z grows, so the root is unique. The paper's fixed point is log Z <- log Z + F(log Z); here each step is
Newton's, kept inside a bracket that shrinks, so that it cannot fail to arrive. All in float64, on the log scale.
"""

from typing import NamedTuple

import numpy as np
from scipy.special import expit, log_expit, logsumexp

from bayesnde_cli.inference.chain_diagnostics import mean_ess

TOLERANCE = 1e-8
MOST_ITERATIONS = 200


class Bridge(NamedTuple):
    """An estimate of each row, (rows,) each."""

    log_z: np.ndarray
    se: np.ndarray  # of log_z, by the draws of both kinds, the autocorrelation of the chains included
    log_z_is: np.ndarray  # importance sampling alone, by the proposal's draws
    se_is: np.ndarray
    se_is_by_chains: (
        np.ndarray
    )  # the same by other draws: with w = p / q, the variance of w is E_q[w^2] - 1 = E_p[w] - 1
    unseen: np.ndarray  # share of the proposal's weight where its weights are above all that the chains have seen
    overlap: np.ndarray  # Theorem 2: integral of p q / (s_p p + s_q q), 1 if and only if q = p
    n_iterations: np.ndarray
    is_converged: np.ndarray

    @property
    def larger_se_is(self) -> np.ndarray:
        """Of importance sampling, the larger one of both errors: chains may know of a place that its draws do not."""
        return np.maximum(self.se_is, self.se_is_by_chains)


def bridge(chain_ratios: np.ndarray, proposal_ratios: np.ndarray, n_effective: np.ndarray) -> Bridge:
    """The estimates from log l at the draws of the chains (rows, chains, draws) and of the proposal (rows, draws).

    `n_effective` (rows,): how many independent draws the chains are worth; it sets s_p.
    """
    n_rows, n_proposed = proposal_ratios.shape
    held = chain_ratios.reshape(n_rows, -1)
    is_sound = np.isfinite(held).all(axis=1) & ~np.isnan(proposal_ratios).any(axis=1)
    is_sound &= np.isfinite(proposal_ratios).any(axis=1) & (proposal_ratios < np.inf).all(axis=1)
    held = np.where(is_sound[:, None], held, 0.0)
    proposed = np.where(is_sound[:, None], proposal_ratios, 0.0)
    n_effective = np.clip(np.nan_to_num(n_effective), 1.0, None)
    log_odds = np.log(n_effective / n_proposed)[:, None]  # of s_p against s_q

    log_z_is = logsumexp(proposed, axis=1) - np.log(n_proposed)
    log_z, n_iterations, is_converged = _root(held + log_odds, proposed + log_odds, log_odds[:, 0], log_z_is)

    # s_q q / (s_p p + s_q q) at draws of p and s_p p / (s_p p + s_q q) at draws of q, each over its mean.
    of_p, _ = _over_mean(log_expit(-(held + log_odds - log_z[:, None])))
    of_q, log_mean_q = _over_mean(log_expit(proposed + log_odds - log_z[:, None]))
    variance_q = np.var(of_q, axis=1, ddof=1) / n_proposed
    variance_p = np.var(of_p, axis=1, ddof=1) / np.maximum(mean_ess(of_p.reshape(chain_ratios.shape)), 1.0)
    s_p = n_effective / (n_effective + n_proposed)
    overlap = np.exp(log_mean_q) / s_p
    weights, _ = _over_mean(proposed)
    with np.errstate(over="ignore"):  # an error without bound
        mean_weight_of_p = np.mean(np.exp(held - log_z[:, None]), axis=1)
    bad = np.where(is_sound, 0.0, np.nan)
    return Bridge(
        log_z=log_z + bad,
        se=np.sqrt(variance_p + variance_q) + bad,
        log_z_is=log_z_is + bad,
        se_is=np.sqrt(np.var(weights, axis=1, ddof=1) / n_proposed) + bad,
        se_is_by_chains=np.sqrt(np.maximum(mean_weight_of_p - 1.0, 0.0) / n_proposed) + bad,
        unseen=np.mean(weights * (proposed > held.max(axis=1)[:, None]), axis=1) + bad,
        overlap=np.minimum(overlap, 1.0) + bad,
        n_iterations=n_iterations,
        is_converged=is_converged & is_sound,
    )


def _over_mean(logs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Values over the mean of their row, and its logarithm, from their logarithms: none is too small for that."""
    log_mean = logsumexp(logs, axis=1) - np.log(logs.shape[1])
    return np.exp(logs - log_mean[:, None]), log_mean


def _root(
    held: np.ndarray, proposed: np.ndarray, log_odds: np.ndarray, start: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """log Z of each row, the iterations it took, and whether it arrived. `held` and `proposed` are a + log Z."""
    # Outside of all ratios F has one sign; inside is the root.
    is_finite = np.isfinite(proposed)  # a draw where the decoder overflows is -inf, and lowers the mean
    n_finite = np.maximum(np.sum(is_finite, axis=1), 1)
    low = np.minimum(held.min(axis=1), np.where(is_finite, proposed, np.inf).min(axis=1)) - 2.0
    low -= np.log(proposed.shape[1] / n_finite)
    high = np.maximum(held.max(axis=1), proposed.max(axis=1)) + 2.0
    low, high = low - np.abs(log_odds), high + np.abs(log_odds)
    log_z, n_iterations = np.clip(start, low, high), np.zeros(len(start), np.int32)
    active = np.arange(len(start))
    for _ in range(MOST_ITERATIONS):
        here = log_z[active, None]
        value, slope = _balance(held[active] - here, proposed[active] - here, log_odds[active])
        n_iterations[active] += 1
        low[active] = np.where(value > 0, here[:, 0], low[active])
        high[active] = np.where(value <= 0, here[:, 0], high[active])
        there = here[:, 0] + value / slope
        is_inside = (there >= low[active]) & (there <= high[active])
        there = np.where(is_inside, there, 0.5 * (low[active] + high[active]))
        log_z[active] = there
        active = active[np.abs(there - here[:, 0]) > TOLERANCE]
        if not len(active):
            break
    is_converged = np.ones(len(start), bool)
    is_converged[active] = False
    return log_z, n_iterations, is_converged


def _balance(held: np.ndarray, proposed: np.ndarray, log_odds: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """F and minus its slope, from a at the draws of p and of q. 1 is the slope of a proposal that fits."""
    log_of_q, log_of_p = log_expit(proposed), log_expit(-held)
    mean_q = logsumexp(log_of_q, axis=1) - np.log(proposed.shape[1])
    mean_p = logsumexp(log_of_p, axis=1) - np.log(held.shape[1])
    share_q = np.exp(log_of_q - mean_q[:, None]) * expit(-proposed)
    share_p = np.exp(log_of_p - mean_p[:, None]) * expit(held)
    slope = share_q.mean(axis=1) + share_p.mean(axis=1)
    return mean_q - mean_p - log_odds, np.maximum(slope, 1e-12)
