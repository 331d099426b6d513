"""Roundtrip (Liu et al. 2021): a generator with noise of one size, its density by importance sampling.

    z ~ N(0, I_d),  x | z ~ N(G(z), sigma^2 I)
    p(x) = mean over draws z_k ~ q(. | x) of N(x; G(z_k), sigma^2 I) N(z_k; 0, I) / q(z_k | x)

q is a multivariate t around the encoder's E(x), of one scale for all rows. It is scored as it is drawn; the authors'
code draws it so, too, but scores it as a product of univariate t's, which is another distribution for d > 1. Validation
rows choose sigma, the scale, and the degrees of freedom: one, as in the paper, has the heavier tails; five waste fewer
draws where the encoder is right.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from bayesnde_cli.evaluation.baselines.fitted import some_rows
from bayesnde_cli.model import random_numbers
from bayesnde_cli.model.likelihood import LOG_TWO_PI, log_prior
from bayesnde_cli.model.parameters import Parameters
from bayesnde_cli.model.student_t import log_t
from bayesnde_cli.rng import derive_seed

# The paper's number of draws.
DRAWS = 40_000
# Sizes of the noise, in standardised units: from 1/256 to 2, so close that the best of them costs under 0.002 nats a
# column. They are compared on the same draws, so that many cost little.
SIGMAS = tuple(2.0 ** (k / 8) for k in range(-64, 9))
SCALES = tuple(2.0**k for k in range(-7, 1))
FREEDOMS = (1, 5)
# Rows that choose; draws for each scale; draws for sigma at the best scale, whose mean log-density is the figure.
MOST_CHOOSING_ROWS = 256
SCALE_DRAWS = 128
CHOOSING_DRAWS = 1_000
# Points that the generator is asked for at once: some 8 MB for each of its layers.
_BLOCK_ROWS, _CHUNK_DRAWS = 64, 128
# A float32 normal number is exactly 0 once in some ten million; no other square is below this.
_LEAST_CHI_SQUARE = 1e-20


class Pair(NamedTuple):
    """Generator and encoder: z (…, d) -> mean (…, p), and x (rows, p) -> z (rows, d), float32.

    With classes both take y as well, one-hot with the axes of the first argument.
    """

    decode: Callable[..., tf.Tensor]
    encode: Callable[..., tf.Tensor]


class Choice(NamedTuple):
    """What the validation rows have chosen, and their mean log-density under it."""

    sigma: float
    scale: float
    freedom: int
    log_density: float


class Estimate(NamedTuple):
    """Log-densities and their Monte-Carlo errors (delta method). (rows,) each, float64.

    The error is 1 / sqrt(effective draws), so it is at most 1: where it is above some 0.3, a few draws carry all the
    weight, and the log-density is known to be too low rather than known to be off by so much.
    """

    log_density: np.ndarray
    mc_se: np.ndarray


def draw(centre: tf.Tensor, scale: tf.Tensor, n: int, seed: tf.Tensor, *, freedom: int) -> tf.Tensor:
    """n draws of the multivariate t around each centre: one chi-square for all coordinates. (rows, n, d) float32."""
    n_rows, d = centre.shape
    # One call for all, as every call for random numbers takes long to compile.
    numbers = tf.cast(random_numbers.normal([n_rows, n, d + freedom], seed), tf.float64)
    chi_square = tf.reduce_sum(tf.square(numbers[:, :, d:]), axis=2, keepdims=True)
    noise = numbers[:, :, :d] * tf.sqrt(freedom / tf.maximum(chi_square, _LEAST_CHI_SQUARE))
    return tf.cast(tf.cast(centre, tf.float64)[:, None, :] + scale * noise, tf.float32)


def log_prob(centre: tf.Tensor, scale: tf.Tensor, z: tf.Tensor, *, freedom: int) -> tf.Tensor:
    """The log-density of the same multivariate t. z (rows, n, d) -> (rows, n) float64."""
    distance = (tf.cast(z, tf.float64) - tf.cast(centre, tf.float64)[:, None, :]) / scale
    d = z.shape[2]
    return log_t(tf.reduce_sum(tf.square(distance), axis=2), d * tf.math.log(scale), freedom=freedom, d=d)


class Roundtrip:
    """The estimator on a pair that is made of weights, inside of what is compiled: other weights, same program.

    Rows are (rows, p) float64, y one-hot (rows, classes) float32 or None. Memory does not grow with the draws.
    """

    def __init__(self, pair_of: Callable[[Parameters], Pair]) -> None:
        self._pair_of = pair_of
        self._block = tf.function(self._sums, jit_compile=True, autograph=False)

    def choose(self, weights: Parameters, x: np.ndarray, y: np.ndarray | None, *, seed: int) -> Choice:
        """Sigma, scale and degrees of freedom of the highest mean log-density over at most 256 of the rows.

        As E log(mean) is below log E(mean), a proposal that misses the posterior is never the better for it.
        """
        kept = some_rows(np.arange(len(x)), MOST_CHOOSING_ROWS, seed)
        x, y = x[kept], None if y is None else y[kept]

        def means(scale: float, freedom: int, n_draws: int) -> np.ndarray:
            choice = Choice(math.nan, scale, freedom, math.nan)
            found = self._estimates(weights, choice, (x, y), np.array(SIGMAS), n_draws=n_draws, seed=seed)
            mean = found.log_density.mean(axis=1)  # (sigmas,)
            return np.where(np.isnan(mean), -np.inf, mean)

        proposals = [(scale, freedom) for freedom in FREEDOMS for scale in SCALES]
        best = proposals[int(np.argmax([means(*proposal, SCALE_DRAWS).max() for proposal in proposals]))]
        of_sigma = means(*best, CHOOSING_DRAWS)
        index = int(np.argmax(of_sigma))
        return Choice(SIGMAS[index], *best, float(of_sigma[index]))

    def estimate(
        self, weights: Parameters, choice: Choice, x: np.ndarray, y: np.ndarray | None, *, n_draws: int, seed: int
    ) -> Estimate:
        """The log-density of every row, and its error."""
        found = self._estimates(weights, choice, (x, y), np.array([choice.sigma]), n_draws=n_draws, seed=seed)
        return Estimate(found.log_density[0], found.mc_se[0])

    def _estimates(
        self,
        weights: Parameters,
        choice: Choice,
        rows: tuple[np.ndarray, np.ndarray | None],
        sigmas: np.ndarray,
        *,
        n_draws: int,
        seed: int,
    ) -> Estimate:
        """The same for every sigma. (sigmas, rows) each."""
        x, y = rows
        found = np.empty((2, len(sigmas), len(x)))
        scale, root = tf.constant(choice.scale, tf.float64), derive_seed(seed, "roundtrip") % 2**31
        for start in range(0, len(x), _BLOCK_ROWS):
            # The last row fills the last block, so that every block is the same program.
            index = np.minimum(np.arange(start, start + _BLOCK_ROWS), len(x) - 1)
            some = tf.constant(x[index], tf.float64), None if y is None else tf.constant(y[index], tf.float32)
            address = tf.constant([root, start // _BLOCK_ROWS], tf.int32)
            sums = self._block(
                weights, *some, tf.constant(sigmas), scale, tf.constant(n_draws), address, freedom=choice.freedom
            )
            found[:, :, start : start + _BLOCK_ROWS] = sums.numpy()[:, :, : len(x) - start]
        return Estimate(*found)

    def _sums(
        self,
        weights: Parameters,
        x: tf.Tensor,
        y: tf.Tensor | None,
        sigmas: tf.Tensor,
        scale: tf.Tensor,
        n_draws: tf.Tensor,
        seed: tf.Tensor,
        *,
        freedom: int,
    ) -> tf.Tensor:
        """Log-densities and errors of a block of rows. (2, sigmas, rows)."""
        pair = self._pair_of(weights)
        given = () if y is None else (y,)
        centre = pair.encode(tf.cast(x, tf.float32), *given)  # (rows, d)
        constant = x.shape[1] * (tf.math.log(sigmas) + 0.5 * LOG_TWO_PI)  # (sigmas,)

        def step(index: tf.Tensor, sums: _Sums) -> tuple[tf.Tensor, _Sums]:
            own_seed = tf.random.experimental.stateless_fold_in(seed, index)
            z = draw(centre, scale, _CHUNK_DRAWS, own_seed, freedom=freedom)  # (rows, chunk, d)
            mean = tf.cast(pair.decode(z, *(part[:, None, :] for part in given)), tf.float64)
            square = tf.reduce_sum(tf.square(x[:, None, :] - mean), axis=2)  # (rows, chunk)
            rest = log_prior(tf.cast(z, tf.float64)) - log_prob(centre, scale, z, freedom=freedom)
            is_wanted = index * _CHUNK_DRAWS + tf.range(_CHUNK_DRAWS) < n_draws
            rest = tf.where(is_wanted, rest, tf.constant(-math.inf, tf.float64))
            log_weights = rest - constant[:, None, None] - 0.5 * square / tf.square(sigmas)[:, None, None]
            return index + 1, sums.plus(log_weights)

        none = tf.zeros([sigmas.shape[0], x.shape[0]], tf.float64)
        n_chunks = -(-n_draws // _CHUNK_DRAWS)
        _, sums = tf.while_loop(
            lambda index, _: index < n_chunks, step, (tf.constant(0), _Sums(none - math.inf, none, none))
        )
        n = tf.cast(n_draws, tf.float64)
        log_density = sums.top + tf.math.log(sums.first) - tf.math.log(n)
        # var(w) / (n mean(w)^2), with n - 1 in the variance.
        relative = (sums.second / tf.square(sums.first) - 1.0 / n) * n / (n - 1.0)
        return tf.stack([log_density, tf.sqrt(tf.maximum(relative, 0.0))])


class _Sums(NamedTuple):
    """Sums of weights and of their squares, in units of the largest weight so far. (sigmas, rows) each."""

    top: tf.Tensor  # the logarithm of that weight
    first: tf.Tensor
    second: tf.Tensor

    def plus(self, log_weights: tf.Tensor) -> "_Sums":
        """With more weights, (sigmas, rows, chunk)."""
        top = tf.maximum(self.top, tf.reduce_max(log_weights, axis=2))
        unit = tf.where(tf.math.is_inf(top), tf.zeros_like(top), top)  # as long as all weights are 0
        shares, shrunk = tf.exp(log_weights - unit[:, :, None]), tf.exp(self.top - unit)
        return _Sums(
            top,
            self.first * shrunk + tf.reduce_sum(shares, axis=2),
            self.second * tf.square(shrunk) + tf.reduce_sum(tf.square(shares), axis=2),
        )
