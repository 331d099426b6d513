"""Bridge sampling (Meng and Wong 1996): log Z of many rows from draws of the posterior p and of a proposal q.

With l = pi(z) / q(z), the unnormalised posterior pi = Z p, and shares s_p + s_q = 1, the estimate solves

    Z = mean over q of [l / (s_p l + s_q Z)]  /  mean over p of [1 / (s_p l + s_q Z)].

With a = log l - log Z + log(s_p / s_q) and the logistic function sigma this is

    F(log Z) = log(s_q mean over q of sigma(a)) - log(s_p mean over p of sigma(-a)) = 0.

F decreases in log Z, so the root is unique. The paper iterates log Z <- log Z + F(log Z). We take Newton steps inside a
shrinking bracket, which always converge. All in float64, on the log scale.

The verdict on each row, in words, follows from its estimate and its chains."""

from typing import NamedTuple

import numpy as np
from scipy.special import expit, log_expit, logsumexp

from bayesnde_cli.inference.diagnostics import mean_ess

_TOLERANCE, _MOST_ITERATIONS = 1e-8, 200

VERDICTS = (
    RELIABLE := "reliable",
    ERROR_ABOVE_TARGET := "error above target",
    CHAINS_DISAGREE := "chains disagree",
    MODES_MAY_BE_MISSING := "modes may be missing",
    ESTIMATES_DISAGREE := "estimates disagree",
    BRIDGE_DID_NOT_CONVERGE := "bridge did not converge",
    NOT_FINITE := "not finite",
    # A row without cells: its density is the integral of the prior, exactly 1.
    NO_CELLS := "no cells",
)

# How a row was scored, from the cheapest method to the most expensive one.
METHODS = (IMPORTANCE := "importance", REFIT := "refit", BRIDGE := "bridge")

# Chains agree and mix within these limits. Where importance sampling alone is exact and the chains only confirm it, the
# second pair applies.
MOST_RHAT, LEAST_ESS = 1.05, 40.0
MOST_RHAT_OF_WITNESSES, LEAST_ESS_OF_WITNESSES = 1.2, 20.0
_MOST_SE_OF_EXACT = 0.05  # or the target, if smaller
# Posterior mass in modes that may not have been found, at most.
MOST_MISSED_MASS = 0.05
# Posterior mass that the proposal sees but the chains do not, at most, and the probability of seeing more by chance.
MOST_UNSEEN, _CHANCE = 0.05, 1e-3
# The s.e. of importance sampling from the chains, at most: beyond, they visit places that the proposal never reaches.
_MOST_SE_BY_CHAINS = 1.0
# Standard errors by which two estimates may differ, in addition to the target.
_MOST_DISAGREEMENT = 5.0


class Bridge(NamedTuple):
    """The estimates of each row, (rows,) each."""

    log_z: np.ndarray
    se: np.ndarray  # of log_z, from both kinds of draws, with the autocorrelation of the chains
    log_z_is: np.ndarray  # importance sampling alone, with the draws of the proposal
    se_is: np.ndarray
    # The same s.e. from the chains: with w = p / q, the variance of w is E_q[w^2] - 1 = E_p[w] - 1.
    se_is_by_chains: np.ndarray
    unseen: np.ndarray  # share of the importance weights that exceed every weight at the draws of the chains
    overlap: np.ndarray  # Theorem 2: integral of p q / (s_p p + s_q q), which is 1 if and only if q = p
    n_iterations: np.ndarray
    is_converged: np.ndarray

    @property
    def larger_se_is(self) -> np.ndarray:
        """The larger of both s.e. of importance sampling: chains may know places that its draws have missed."""
        return np.maximum(self.se_is, self.se_is_by_chains)


def bridge(chain_ratios: np.ndarray, proposal_ratios: np.ndarray, n_effective: np.ndarray) -> Bridge:
    """The estimates from log l at the draws of the chains (rows, chains, draws) and of the proposal (rows, draws).

    `n_effective` (rows,) is the effective sample size of the chains; it sets s_p.
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
    with np.errstate(over="ignore"):  # an infinite s.e.
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
    """Values over the mean of their row, and the log of that mean, from their logarithms, without underflow."""
    log_mean = logsumexp(logs, axis=1) - np.log(logs.shape[1])
    return np.exp(logs - log_mean[:, None]), log_mean


def _root(
    held: np.ndarray, proposed: np.ndarray, log_odds: np.ndarray, start: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """log Z of each row, its number of iterations, and whether it converged. `held` and `proposed` are a + log Z."""
    # F has one sign on each side of all ratios, so the root lies among them.
    is_finite = np.isfinite(proposed)  # -inf where the decoder overflows, which lowers the mean
    n_finite = np.maximum(np.sum(is_finite, axis=1), 1)
    low = np.minimum(held.min(axis=1), np.where(is_finite, proposed, np.inf).min(axis=1)) - 2.0
    low -= np.log(proposed.shape[1] / n_finite)
    high = np.maximum(held.max(axis=1), proposed.max(axis=1)) + 2.0
    low, high = low - np.abs(log_odds), high + np.abs(log_odds)
    log_z, n_iterations = np.clip(start, low, high), np.zeros(len(start), np.int32)
    active = np.arange(len(start))
    for _ in range(_MOST_ITERATIONS):
        here = log_z[active, None]
        value, slope = _balance(held[active] - here, proposed[active] - here, log_odds[active])
        n_iterations[active] += 1
        low[active] = np.where(value > 0, here[:, 0], low[active])
        high[active] = np.where(value <= 0, here[:, 0], high[active])
        there = here[:, 0] + value / slope
        is_inside = (there >= low[active]) & (there <= high[active])
        there = np.where(is_inside, there, 0.5 * (low[active] + high[active]))
        log_z[active] = there
        active = active[np.abs(there - here[:, 0]) > _TOLERANCE]
        if not len(active):
            break
    is_converged = np.ones(len(start), bool)
    is_converged[active] = False
    return log_z, n_iterations, is_converged


def _balance(held: np.ndarray, proposed: np.ndarray, log_odds: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """F and minus its derivative, from a at the draws of p and of q. The derivative is -1 if q = p."""
    log_of_q, log_of_p = log_expit(proposed), log_expit(-held)
    mean_q = logsumexp(log_of_q, axis=1) - np.log(proposed.shape[1])
    mean_p = logsumexp(log_of_p, axis=1) - np.log(held.shape[1])
    share_q = np.exp(log_of_q - mean_q[:, None]) * expit(-proposed)
    share_p = np.exp(log_of_p - mean_p[:, None]) * expit(held)
    slope = share_q.mean(axis=1) + share_p.mean(axis=1)
    return mean_q - mean_p - log_odds, np.maximum(slope, 1e-12)


def judge(estimate: Bridge, chains: dict[str, np.ndarray], target_se: float | np.ndarray) -> np.ndarray:
    """The first problem of each row, in words. chains: `ess_min`, `rhat_max` and `missed_mass`."""
    gap = np.abs(estimate.log_z - estimate.log_z_is)
    is_apart = gap > _MOST_DISAGREEMENT * np.hypot(estimate.se, estimate.se_is) + target_se
    # Half of the draws are held out: this much mass could escape that many independent draws by chance.
    by_chance = -np.expm1(np.log(_CHANCE) / (0.5 * np.maximum(chains["ess_min"], LEAST_ESS)))
    is_unseen = estimate.unseen > np.maximum(MOST_UNSEEN, by_chance)
    is_unseen |= estimate.se_is_by_chains > _MOST_SE_BY_CHAINS
    # By its own draws and by those of the chains, and after a search for modes.
    is_exact = estimate.larger_se_is <= np.minimum(target_se, _MOST_SE_OF_EXACT)
    is_exact &= np.isfinite(chains["missed_mass"])
    most_rhat = np.where(is_exact, MOST_RHAT_OF_WITNESSES, MOST_RHAT)
    least_ess = np.where(is_exact, LEAST_ESS_OF_WITNESSES, LEAST_ESS)
    problems = [
        (~(np.isfinite(estimate.log_z) & np.isfinite(estimate.se)), NOT_FINITE),
        (~estimate.is_converged, BRIDGE_DID_NOT_CONVERGE),
        ((chains["rhat_max"] > most_rhat) | (chains["ess_min"] < least_ess) | is_unseen, CHAINS_DISAGREE),
        (chains["missed_mass"] > MOST_MISSED_MASS, MODES_MAY_BE_MISSING),
        (is_apart, ESTIMATES_DISAGREE),
        (estimate.se > target_se, ERROR_ABOVE_TARGET),
    ]
    return np.select([problem for problem, _ in problems], [name for _, name in problems], RELIABLE).astype(object)
