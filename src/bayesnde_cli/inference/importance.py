"""The log-density of rows by importance sampling: the estimator that needs no chains.

Scoring tries it first; validation checks, the class screen and typicality use nothing else. Draws come from

    q(z) = sum over k of w_k (s_1 N(z; mode_k, P_k^-1) + s_2 t(z; mode_k, P_k^-1, 4))
           + s_3 N(z; mean, (1.2 sd)^2) + s_4 N(z; 0, I):

the modes of the latent posterior with their precisions P_k, the encoder's proposal, and the prior. What one part misses
another covers: with many latents the t alone would leave few draws where a normal posterior is, and the normal alone
would miss its tails. No weight p(x, z) / q(z) exceeds p(x | z) / s_4. The mean weight is p(x) in expectation.

The largest weights decide the error. `estimate` fits a generalised Pareto distribution to them and replaces them by its
quantiles (Vehtari, Simpson, Gelman, Yao and Gabry 2024); its shape k says whether the error can be trusted."""

import functools
import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from bayesnde_cli import stopping
from bayesnde_cli.inference import modes
from bayesnde_cli.inference.mode_search import find_mode
from bayesnde_cli.inference.modes import Modes
from bayesnde_cli.model import backend
from bayesnde_cli.model.coders import Proposal, decoder_of, encoder_of
from bayesnde_cli.model.layers import Parameters
from bayesnde_cli.model.likelihood import DecoderLike, Target, log_prior
from bayesnde_cli.model.networks import NetworkSpec

# Shares of the draws from the prior and from the encoder's proposal; the others are around the modes, and of these a
# share is normal. On rows of three tables with 14 to 17 latents, more draws from the encoder instead of the t lowered
# the largest variances of the weights by a quarter, and those of the median row by a sixth on two of the tables.
_PRIOR_SHARE, _ENCODER_SHARE, _NORMAL_SHARE = 0.05, 0.27, 0.85
# Factor on the s.d. of the proposal: the evidence lower bound makes proposals narrower than the posterior.
_WIDENING = 1.2
# The tail of the weights: at most this share, and at most this many times the root of their number.
_TAIL_SHARE, _TAIL_ROOTS = 0.2, 3.0
# The prior of the shape k: as much as ten observations of 1/2.
_PRIOR_SHAPE, _PRIOR_COUNT = 0.5, 10.0
# Weights that differ by less, relatively, have no tail.
_LEAST_SPREAD = 1e-9
# With a larger k no number of draws makes the error reliable (Vehtari et al. 2024).
MOST_K = 0.7
# Two halves of the draws may differ by this many standard errors of their difference.
_MOST_ERRORS_APART = 4.0

# (parameters, x, y, seed) -> estimated log p(x) of each row, (rows,) float64
Scorer = Callable[[Parameters, tf.Tensor, "tf.Tensor | None", tf.Tensor], tf.Tensor]


# Draws and their weights, compiled


class _Counts(NamedTuple):
    """How many draws come from every part of q."""

    normal: int
    heavy: int
    encoder: int
    prior: int


def _count(n_draws: int, *, has_encoder: bool) -> _Counts:
    n_prior = max(1, round(_PRIOR_SHARE * n_draws))
    n_encoder = max(1, round(_ENCODER_SHARE * n_draws)) if has_encoder else 0
    n_around = n_draws - n_encoder - n_prior
    n_normal = min(round(_NORMAL_SHARE * n_around), n_around - 1)
    return _Counts(n_normal, n_around - n_normal, n_encoder, n_prior)


def _widen(proposal: Proposal) -> Proposal:
    return Proposal(proposal.mean[:, None, :], _WIDENING * proposal.sd[:, None, :])


def draw(places: Modes, proposal: Proposal | None, n_draws: int, seed: tf.Tensor) -> tf.Tensor:
    """Draws from q, (rows, n_draws, d): every part has its share of them, up to one."""
    n_rows, _, d = places.z.shape
    counts = _count(n_draws, has_encoder=proposal is not None)
    n_around = counts.normal + counts.heavy
    numbers = backend.normal([n_rows, n_draws, d + modes.FREEDOM], seed)
    noise, freedom_noise = numbers[:, :, :d], numbers[:, counts.normal : n_around, d:]
    normal, heavy, encoded, from_prior = tf.split(noise, counts, axis=1)
    drawn = []
    for around, freedom in ((normal, None), (heavy, freedom_noise)):
        # Every mode gets its share of the draws, up to one.
        share = (tf.range(around.shape[1], dtype=tf.float32) + 0.5) / around.shape[1]
        drawn.append(modes.draw_jump(places, around, freedom, tf.broadcast_to(share, around.shape[:2])))
    if proposal is not None:
        drawn.append(_widen(proposal).draw(encoded))
    return tf.concat([*drawn, from_prior], axis=1)


def log_prob(places: Modes, proposal: Proposal | None, n_draws: int, z: tf.Tensor) -> tf.Tensor:
    """log q(z) of the q that `draw` takes n_draws from. z (rows, n, d) -> (rows, n) float64."""
    counts = _count(n_draws, has_encoder=proposal is not None)
    n_around = counts.normal + counts.heavy
    parts = [(n_around, modes.log_jump(places, z, counts.normal / n_around))]
    if proposal is not None:
        parts.append((counts.encoder, _widen(proposal).log_prob(z, dtype=tf.float64)))
    parts.append((counts.prior, log_prior(z, dtype=tf.float64)))
    return tf.reduce_logsumexp([math.log(count / n_draws) + part for count, part in parts], axis=0)


def propose(places: Modes, proposal: Proposal | None, n_draws: int, seed: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Draws from q (rows, n_draws, d), and log q(z) there (rows, n_draws) float64."""
    z = draw(places, proposal, n_draws, seed)
    return z, log_prob(places, proposal, n_draws, z)


def log_marginal_weights(
    decoder: DecoderLike, target: Target, proposal: Proposal, *, n_draws: int, seed: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor]:
    """The log-weights around the mode that the proposal's mean leads to, and the number of Newton steps (int32)."""
    mode = find_mode(decoder, target, proposal.mean)
    one = tf.zeros([target.x.shape[0], 1], tf.float64)
    places = Modes(mode.z[:, None], mode.factor[:, None], mode.inverse[:, None], one)
    z, log_q = propose(places, proposal, n_draws, seed)
    return target.log_joint(decoder, z) - log_q, mode.n_steps


def log_marginal(
    decoder: DecoderLike, target: Target, proposal: Proposal, *, n_draws: int, seed: tf.Tensor
) -> tf.Tensor:
    """Estimate log p(x) of each row from a normal proposal of any quality. -> (rows,) float64."""
    log_weights, _ = log_marginal_weights(decoder, target, proposal, n_draws=n_draws, seed=seed)
    return tf.reduce_logsumexp(log_weights, axis=1) - math.log(n_draws)


@functools.cache  # the weights are arguments: both stages of training share the compiled program
def marginal_scorer(decoder: NetworkSpec, encoder: NetworkSpec, *, n_draws: int, block_rows: int = 64) -> Scorer:
    """A function of joint parameters that estimates log p(x) of rows, in compiled blocks, from the encoder."""

    @tf.function(jit_compile=True, autograph=False)
    def score_block(parameters: Parameters, x: tf.Tensor, y: tf.Tensor | None, seed: tf.Tensor) -> tf.Tensor:
        proposal = encoder_of(encoder, parameters)(x, y)
        model = decoder_of(decoder, parameters)
        return log_marginal(model, Target(x, None, y), proposal, n_draws=n_draws, seed=seed)

    def score(parameters: Parameters, x: tf.Tensor, y: tf.Tensor | None, seed: tf.Tensor) -> tf.Tensor:
        n_rows = x.shape[0]
        scores = []
        for index in range(-(-n_rows // block_rows)):
            # The last block overlaps the one before, so that all blocks run the same compiled program.
            start = max(min(index * block_rows, n_rows - block_rows), 0)
            rows = slice(start, start + block_rows)
            block = score_block(parameters, x[rows], None if y is None else y[rows], tf.stack([seed, index]))
            scores.append(block[index * block_rows - start :])
            stopping.check()
        return tf.concat(scores, axis=0)

    return score


# From weights to an estimate with an error


class Estimate(NamedTuple):
    """The estimates of each row, (rows,) each."""

    log_z: np.ndarray
    se: np.ndarray
    pareto_k: np.ndarray  # shape of the largest weights; infinite where a weight is not a number
    halves_apart: np.ndarray  # difference of the estimates from two halves of the draws, in standard errors

    def is_sound(self, n_draws: int) -> np.ndarray:
        """Whether the error can be trusted: k is small enough for this number of draws, and the halves agree."""
        most_k = min(1.0 - 1.0 / math.log10(n_draws), MOST_K)
        return (self.pareto_k < most_k) & (self.halves_apart < _MOST_ERRORS_APART) & np.isfinite(self.log_z)


def estimate(log_weights: np.ndarray) -> Estimate:
    """Estimates from log-weights (rows, n) in an order in which every other draw makes a fair half."""
    n = log_weights.shape[1]
    is_bad = np.isnan(log_weights).any(axis=1) | (log_weights == np.inf).any(axis=1)
    is_bad |= (log_weights == -np.inf).all(axis=1)
    top = np.where(is_bad, 0.0, log_weights.max(axis=1))
    with np.errstate(invalid="ignore", over="ignore"):
        weights = np.where(is_bad[:, None], 1.0, np.exp(log_weights - top[:, None]))
    smooth, pareto_k = smooth_tail(weights)
    mean = smooth.mean(axis=1)
    # The larger of two: a single draw that has found another mode stands out of the tail, and smoothing removes it.
    se = np.maximum(*(part.std(axis=1, ddof=1) / part.mean(axis=1) for part in (smooth, weights))) / math.sqrt(n)
    halves = [smooth[:, first::2].mean(axis=1) for first in (0, 1)]
    # Each half has the s.e. times sqrt 2, and their difference twice the s.e.
    apart = np.abs(halves[0] - halves[1]) / mean / np.maximum(2.0 * se, _LEAST_SPREAD)
    bad = np.where(is_bad, np.nan, 0.0)
    return Estimate(top + np.log(mean) + bad, se + bad, np.where(is_bad, np.inf, pareto_k), apart)


def smooth_tail(weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The weights (rows, n), the largest at 1, with a smoothed tail, and the shape k of the tail of each row.

    Exceedances over the largest weight outside the tail follow a generalised Pareto distribution,
    P(e > y) = (1 + k y / sigma)^(-1 / k). The fit is that of Zhang and Stephens (2009): the mean of b = -k / sigma over
    its profile likelihood on a grid.
    """
    n = weights.shape[1]
    n_tail = math.ceil(min(_TAIL_SHARE * n, _TAIL_ROOTS * math.sqrt(n)))
    order = np.argsort(weights, axis=1, kind="stable")
    rising = np.take_along_axis(weights, order, axis=1)
    cutoff, tail = rising[:, -n_tail - 1 : -n_tail], rising[:, -n_tail:]
    excess = tail - cutoff
    has_tail = excess[:, -1] > _LEAST_SPREAD
    excess = np.where(has_tail[:, None], np.maximum(excess, 1e-300), 1.0 + np.arange(n_tail) / n_tail)

    n_grid = 30 + math.isqrt(n_tail)
    grid = 1.0 - np.sqrt(n_grid / (np.arange(n_grid) + 0.5))
    quartile = excess[:, math.floor(n_tail / 4 + 0.5) - 1]
    b = grid / (3.0 * np.maximum(quartile, 1e-300)[:, None]) + 1.0 / excess[:, -1:]
    shape = np.stack([np.log1p(-column[:, None] * excess).mean(axis=1) for column in b.T], axis=1)
    with np.errstate(divide="ignore", invalid="ignore"):
        profile = n_tail * (np.log(-b / shape) - shape - 1.0)
    profile = np.where(np.isfinite(profile), profile, -np.inf)
    share = np.exp(profile - profile.max(axis=1, keepdims=True))
    b_mean = (b * share).sum(axis=1, keepdims=True) / share.sum(axis=1, keepdims=True)
    raw = np.log1p(-b_mean * excess).mean(axis=1)
    k = (n_tail * raw + _PRIOR_COUNT * _PRIOR_SHAPE) / (n_tail + _PRIOR_COUNT)

    sigma = -raw / b_mean[:, 0]
    level = (np.arange(n_tail) + 0.5) / n_tail
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        quantiles = sigma[:, None] * np.expm1(-k[:, None] * np.log1p(-level)) / k[:, None]
    smoothed = np.minimum(cutoff + quantiles, rising[:, -1:])  # no more than the largest weight
    is_usable = has_tail & np.isfinite(smoothed).all(axis=1)
    smoothed = np.where(is_usable[:, None], smoothed, tail)
    result = weights.copy()
    np.put_along_axis(result, order[:, -n_tail:], smoothed, axis=1)
    return result, np.where(has_tail, k, -_PRIOR_SHAPE)
