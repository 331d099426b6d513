"""The marginal log-density of rows by importance sampling, with a proposal adapted to each row.

A figure to choose checkpoints by: it needs no trained proposal (any start for the latent will do), and it is a lower
bound of log p(x) in expectation.
"""

import math
from collections.abc import Callable

import tensorflow as tf

from bayesnde_cli.model import random_numbers
from bayesnde_cli.model.encoder import Proposal
from bayesnde_cli.model.latent_mode import Mode, find_mode
from bayesnde_cli.model.likelihood import DecoderLike, log_joint, log_prior
from bayesnde_cli.model.networks import NetworkSpec
from bayesnde_cli.model.parameters import Parameters
from bayesnde_cli.model.student_t import log_t
from bayesnde_cli.training.joint_parameters import decoder_of, encoder_of

# The share of draws from the prior; the others are half around the mode, half from the proposal.
_PRIOR_SHARE = 0.05
# The proposal's s.d. is widened: an evidence lower bound leaves proposals narrower than the posterior.
_WIDENING = 1.2
# Degrees of freedom of the part around the mode: tails that no posterior outgrows. Even, as XLA draws no gammas.
_FREEDOM = 6


def log_marginal(
    decoder: DecoderLike, x: tf.Tensor, y: tf.Tensor | None, proposal: Proposal, *, n_draws: int, seed: tf.Tensor
) -> tf.Tensor:
    """An estimate of log p(x) of each row from a normal proposal of any quality. x (rows, p) -> (rows,) float64."""
    log_weights, _ = log_marginal_weights(decoder, x, y, proposal, n_draws=n_draws, seed=seed)
    return tf.reduce_logsumexp(log_weights, axis=1) - math.log(n_draws)


def log_marginal_weights(
    decoder: DecoderLike, x: tf.Tensor, y: tf.Tensor | None, proposal: Proposal, *, n_draws: int, seed: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor]:
    """Logarithms of weights whose mean is p(x), (rows, n_draws) float64, and how many steps the climb to a mode took.

    Draws come from a mixture of a multivariate t around the mode, the proposal and the prior, and are weighted by the
    density of the whole mixture: what one part misses another has, and no weight exceeds p(x | z) over the prior's
    share.
    """
    mode = find_mode(decoder, x, y, proposal.mean)
    wide = Proposal(proposal.mean[:, None, :], _WIDENING * proposal.sd[:, None, :])
    counts = _counts(n_draws)
    noise = random_numbers.normal([x.shape[0], n_draws, mode.z.shape[1]], seed)
    around_mode, from_proposal, from_prior = tf.split(noise, counts, axis=1)
    chi_seed = tf.random.experimental.stateless_fold_in(seed, 1)
    z = tf.concat([_draw_t(mode, around_mode, chi_seed), wide.draw(from_proposal), from_prior], axis=1)
    parts = [_log_t(mode, z), wide.log_prob(z, dtype=tf.float64), log_prior(z, dtype=tf.float64)]
    shares = [math.log(count / n_draws) for count in counts]
    log_proposal = tf.reduce_logsumexp([part + share for part, share in zip(parts, shares, strict=True)], axis=0)
    joint = log_joint(z, x[:, None, :], decoder, y=None if y is None else y[:, None, :], dtype=tf.float64)
    return joint - log_proposal, mode.n_climbs


def marginal_scorer(
    decoder: NetworkSpec, encoder: NetworkSpec, *, n_draws: int, block_rows: int = 64
) -> Callable[[Parameters, tf.Tensor, "tf.Tensor | None", tf.Tensor], tf.Tensor]:
    """A compiled function (parameters, x, y, seed) -> estimated log p(x) of each row, (rows,) float64.

    The proposal is the encoder's; rows go through in blocks.
    """

    @tf.function(jit_compile=True, autograph=False)
    def block(parameters: Parameters, x: tf.Tensor, y: tf.Tensor | None, seed: tf.Tensor) -> tf.Tensor:
        proposal = encoder_of(encoder, parameters)(x, y)
        return log_marginal(decoder_of(decoder, parameters), x, y, proposal, n_draws=n_draws, seed=seed)

    def score(parameters: Parameters, x: tf.Tensor, y: tf.Tensor | None, seed: tf.Tensor) -> tf.Tensor:
        n_rows = x.shape[0]
        scores = []
        for index in range(-(-n_rows // block_rows)):
            # The last block reaches back, so that every block is the same compiled program.
            start_row = max(min(index * block_rows, n_rows - block_rows), 0)
            rows = slice(start_row, start_row + block_rows)
            found = block(parameters, x[rows], None if y is None else y[rows], tf.stack([seed, index]))
            scores.append(found[index * block_rows - start_row :])
        return tf.concat(scores, axis=0)

    return score


def _counts(n_draws: int) -> list[int]:
    """How many draws each part of the mixture gives."""
    prior = max(1, round(_PRIOR_SHARE * n_draws))
    mode = (n_draws - prior + 1) // 2
    return [mode, n_draws - prior - mode, prior]


def _draw_t(mode: Mode, noise: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
    """Draws of the multivariate t of location z and precision L L'. noise ~ N(0, I), (rows, draws, d)."""
    uniform = random_numbers.uniform([*noise.shape[:2], _FREEDOM // 2], seed, minval=1e-30)
    chi_square = -2.0 * tf.reduce_sum(tf.math.log(uniform), axis=2)  # (rows, draws)
    scaled = noise * tf.sqrt(_FREEDOM / chi_square)[:, :, None]
    return mode.z[:, None, :] + tf.matmul(scaled, mode.inverse)  # covariance L'^-1 L^-1, the inverse of P


def _log_t(mode: Mode, z: tf.Tensor) -> tf.Tensor:
    """The log-density of the multivariate t. (rows, draws, d) -> (rows, draws) float64."""
    standard = tf.matmul(z - mode.z[:, None, :], mode.factor)  # rows of (z - z0)' L
    square = tf.reduce_sum(tf.square(tf.cast(standard, tf.float64)), axis=2)
    log_det = tf.reduce_sum(tf.math.log(tf.cast(tf.linalg.diag_part(mode.factor), tf.float64)), axis=1)
    return log_t(square, -log_det[:, None], freedom=_FREEDOM, d=z.shape[2])
