"""The marginal log-density of rows by importance sampling: the estimator that needs no chains.

Validation checks, the class screen, typicality and quick densities use it. It works from any start for the latent, and
in expectation it is a lower bound of log p(x). The proposal is a mixture of three parts,

    q(z) = s_1 t(z; mode, P^-1, 6) + s_2 N(z; mean, (1.2 sd)^2) + s_3 N(z; 0, I),

with the mode of the latent posterior and its precision P, the proposal of the encoder, and the prior. What one part
misses another covers, and no weight exceeds p(x | z) / s_3."""

import math
from collections.abc import Callable

import tensorflow as tf

from bayesnde_cli import stopping
from bayesnde_cli.inference.modes import Mode, find_mode
from bayesnde_cli.inference.proposal import log_det, log_t
from bayesnde_cli.model import backend
from bayesnde_cli.model.coders import Proposal, decoder_of, encoder_of
from bayesnde_cli.model.layers import Parameters
from bayesnde_cli.model.likelihood import DecoderLike, Target, log_prior
from bayesnde_cli.model.networks import NetworkSpec

# Share of the draws from the prior; of the others, half are around the mode and half from the proposal.
_PRIOR_SHARE = 0.05
# Factor on the s.d. of the proposal: the evidence lower bound makes proposals narrower than the posterior.
_WIDENING = 1.2
# Degrees of freedom of the t around the mode. Even, as XLA has no gamma random numbers.
_FREEDOM = 6

# (parameters, x, y, seed) -> estimated log p(x) of each row, (rows,) float64
Scorer = Callable[[Parameters, tf.Tensor, "tf.Tensor | None", tf.Tensor], tf.Tensor]


def log_marginal(
    decoder: DecoderLike, target: Target, proposal: Proposal, *, n_draws: int, seed: tf.Tensor
) -> tf.Tensor:
    """Estimate log p(x) of each row from a normal proposal of any quality. -> (rows,) float64."""
    log_weights, _ = log_marginal_weights(decoder, target, proposal, n_draws=n_draws, seed=seed)
    return tf.reduce_logsumexp(log_weights, axis=1) - math.log(n_draws)


def log_marginal_weights(
    decoder: DecoderLike, target: Target, proposal: Proposal, *, n_draws: int, seed: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor]:
    """Logarithms of weights whose mean is p(x), (rows, n_draws) float64, and the number of Newton steps (int32).

    Each draw is weighted by the density of the whole mixture q.
    """
    mode = find_mode(decoder, target, proposal.mean)
    wide = Proposal(proposal.mean[:, None, :], _WIDENING * proposal.sd[:, None, :])
    counts = _counts(n_draws)
    noise = backend.normal([target.x.shape[0], n_draws, mode.z.shape[1]], seed)
    around_mode, from_proposal, from_prior = tf.split(noise, counts, axis=1)
    chi_seed = tf.random.experimental.stateless_fold_in(seed, 1)
    z = tf.concat([_draw_t(mode, around_mode, chi_seed), wide.draw(from_proposal), from_prior], axis=1)
    parts = [_log_t(mode, z), wide.log_prob(z, dtype=tf.float64), log_prior(z, dtype=tf.float64)]
    shares = [math.log(count / n_draws) for count in counts]
    log_proposal = tf.reduce_logsumexp([part + share for part, share in zip(parts, shares, strict=True)], axis=0)
    return target.log_joint(decoder, z) - log_proposal, mode.n_steps


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


def _counts(n_draws: int) -> list[int]:
    """Number of draws from each part of the mixture."""
    prior = max(1, round(_PRIOR_SHARE * n_draws))
    mode = (n_draws - prior + 1) // 2
    return [mode, n_draws - prior - mode, prior]


def _draw_t(mode: Mode, noise: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
    """Draw from the multivariate t around the mode. noise (rows, draws, d) ~ N(0, I)."""
    uniform = backend.uniform([*noise.shape[:2], _FREEDOM // 2], seed, minval=1e-30)
    chi_square = -2.0 * tf.reduce_sum(tf.math.log(uniform), axis=2)  # (rows, draws)
    scaled = noise * tf.sqrt(_FREEDOM / chi_square)[:, :, None]
    return mode.z[:, None, :] + tf.matmul(scaled, mode.inverse)  # covariance L'^-1 L^-1, the inverse of P


def _log_t(mode: Mode, z: tf.Tensor) -> tf.Tensor:
    """The log-density of that t. (rows, draws, d) -> (rows, draws) float64."""
    standard = tf.matmul(z - mode.z[:, None, :], mode.factor)  # rows of (z - z0)' L
    square = tf.reduce_sum(tf.square(tf.cast(standard, tf.float64)), axis=2)
    return log_t(square, -log_det(tf.cast(mode.factor, tf.float64))[:, None], freedom=_FREEDOM, d=z.shape[2])
