"""Roundtrip (Liu et al. 2021): a generator with noise of one size, and its density by importance sampling.

    z ~ N(0, I_d),  x | z ~ N(G(z), sigma^2 I)
    p(x) = mean over draws z_k ~ q(. | x) of N(x; G(z_k), sigma^2 I) N(z_k; 0, I) / q(z_k | x)

q is a multivariate t around the encoder's E(x), with one scale for all rows. We score it as we draw it. The authors'
code draws it in the same way but scores it as a product of univariate t's, a different distribution for d > 1.
Validation rows choose sigma, the scale and the degrees of freedom: one, as in the paper, has heavier tails; five waste
fewer draws where the encoder is right.

Networks and training are those of `warmstart --objective egm`, not the authors': the comparison is between the models.
G is the mean of the decoder.
"""

import math
from collections.abc import Callable, Mapping
from functools import lru_cache, partial
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from bayesnde_cli import stopping
from bayesnde_cli.competitors.plain import Fit, Fitted, Keeper, KeptState
from bayesnde_cli.errors import NumericalFailure
from bayesnde_cli.inference.proposal import log_t
from bayesnde_cli.model import backend
from bayesnde_cli.model.coders import Networks, decoder_of, encoder_of
from bayesnde_cli.model.layers import Parameters
from bayesnde_cli.model.likelihood import LOG_TWO_PI, log_prior
from bayesnde_cli.rng import derive_seed
from bayesnde_cli.rows import Rows, some_rows
from bayesnde_cli.settings.stage_settings import WarmstartSettings
from bayesnde_cli.training.loop import Phase
from bayesnde_cli.training.recipes import first_weights, fresh_networks, phases_of
from bayesnde_cli.training.training_rows import as_tensors

# 6,000 steps of the warm start, and six validation checks.
SETTINGS = WarmstartSettings(objective="egm", checks=6)
DRAWS = 10_000  # per row; the paper has 40,000 from a proposal that is not tuned
# Of the short fit that chooses the scaling.
TRIAL: Mapping[str, Any] = {"settings": SETTINGS.model_copy(update={"egm_steps": 1000, "checks": 1}), "n_draws": 1_000}
# Sizes of the noise, in standardised units: from 1/256 to 2, so close that the best of them costs under 0.002 nats a
# column. They are compared on the same draws, so that many cost little.
SIGMAS = tuple(2.0 ** (k / 8) for k in range(-64, 9))
SCALES = tuple(2.0**k for k in range(-7, 1))
FREEDOMS = (1, 5)
# Validation rows that choose; draws for each scale; draws for sigma at the best scale.
MOST_CHOOSING_ROWS = 256
SCALE_DRAWS = 128
CHOOSING_DRAWS = 1_000
# Rows and draws that the generator takes at once: about 8 MB for each of its layers.
_BLOCK_ROWS, _CHUNK_DRAWS = 64, 128
# A float32 normal number is exactly 0 once in about ten million; no other square is below this.
_LEAST_CHI_SQUARE = 1e-20


# The estimator


class Pair(NamedTuple):
    """Generator and encoder: z (…, d) -> mean (…, p), and x (rows, p) -> z (rows, d), float32.

    With classes both also take y, one-hot, with the axes of the first argument.
    """

    decode: Callable[..., tf.Tensor]
    encode: Callable[..., tf.Tensor]


class Choice(NamedTuple):
    """Sizes of the noise, and scale and degrees of freedom of the proposal."""

    sigmas: Any  # (sigmas,)
    scale: Any
    freedom: int


class Estimate(NamedTuple):
    """Log-densities and their Monte-Carlo errors (delta method). (sigmas, rows) each, float64.

    The error is 1 / sqrt(effective draws), at most 1. Above about 0.3, a few draws carry all the weight: then the
    log-density is too low, by an unknown amount.
    """

    log_density: np.ndarray
    mc_se: np.ndarray


def draw(centre: tf.Tensor, scale: tf.Tensor, n: int, seed: tf.Tensor, *, freedom: int) -> tf.Tensor:
    """n draws of the multivariate t around each centre: one chi-square for all coordinates. (rows, n, d) float32."""
    n_rows, d = centre.shape
    # One call for all random numbers, because every call takes long to compile.
    numbers = tf.cast(backend.normal([n_rows, n, d + freedom], seed), tf.float64)
    chi_square = tf.reduce_sum(tf.square(numbers[:, :, d:]), axis=2, keepdims=True)
    noise = numbers[:, :, :d] * tf.sqrt(freedom / tf.maximum(chi_square, _LEAST_CHI_SQUARE))
    return tf.cast(tf.cast(centre, tf.float64)[:, None, :] + scale * noise, tf.float32)


def log_prob(centre: tf.Tensor, scale: tf.Tensor, z: tf.Tensor, *, freedom: int) -> tf.Tensor:
    """The log-density of the same multivariate t. z (rows, n, d) -> (rows, n) float64."""
    distance = (tf.cast(z, tf.float64) - tf.cast(centre, tf.float64)[:, None, :]) / scale
    d = z.shape[2]
    return log_t(tf.reduce_sum(tf.square(distance), axis=2), d * tf.math.log(scale), freedom=freedom, d=d)


class Estimator:
    """Log-densities by importance sampling. The weights are arguments of the compiled program, not part of it.

    Memory does not grow with the number of draws.
    """

    def __init__(self, pair_of: Callable[[Parameters], Pair]) -> None:
        self._pair_of = pair_of
        self._block = tf.function(self._estimate_block, jit_compile=True, autograph=False)

    def choose(self, weights: Parameters, rows: Rows, *, seed: int) -> tuple[Choice, float]:
        """The choice with the highest mean log-density over at most 256 of the rows, and that mean.

        As E log(mean) is below log E(mean), a proposal that misses the posterior never looks better for it.
        """
        rows = rows.take(some_rows(len(rows), MOST_CHOOSING_ROWS, seed))

        def means(choice: Choice, n_draws: int) -> np.ndarray:
            mean = self.estimate(weights, choice, rows, n_draws=n_draws, seed=seed).log_density.mean(axis=1)
            return np.where(np.isnan(mean), -np.inf, mean)  # (sigmas,)

        choices = [Choice(SIGMAS, scale, freedom) for freedom in FREEDOMS for scale in SCALES]
        best = choices[int(np.argmax([means(choice, SCALE_DRAWS).max() for choice in choices]))]
        by_sigma = means(best, CHOOSING_DRAWS)
        index = int(np.argmax(by_sigma))
        return best._replace(sigmas=(SIGMAS[index],)), float(by_sigma[index])

    def estimate(self, weights: Parameters, choice: Choice, rows: Rows, *, n_draws: int, seed: int) -> Estimate:
        """The log-density of every row (rows, p) float64 for each sigma, and its error."""
        found = np.empty((2, len(choice.sigmas), len(rows)))
        tensors = Choice(tf.constant(choice.sigmas, tf.float64), tf.constant(choice.scale, tf.float64), choice.freedom)
        root = derive_seed(seed, "roundtrip") % 2**31
        for block, start in enumerate(range(0, len(rows), _BLOCK_ROWS)):
            # The last row fills the last block, so that every block runs the same program.
            index = np.minimum(np.arange(start, start + _BLOCK_ROWS), len(rows) - 1)
            y = None if rows.y is None else tf.constant(rows.y[index], tf.float32)
            data = tf.constant(rows.x[index], tf.float64), y
            address = tf.constant([root, block], tf.int32)
            estimates = self._block(weights, tensors, data, tf.constant(n_draws), address)
            stopping.check()
            found[:, :, start : start + _BLOCK_ROWS] = estimates.numpy()[:, :, : len(rows) - start]
        return Estimate(*found)

    def _estimate_block(
        self,
        weights: Parameters,
        choice: Choice,
        data: tuple[tf.Tensor, tf.Tensor | None],
        n_draws: tf.Tensor,
        seed: tf.Tensor,
    ) -> tf.Tensor:
        """Log-densities and errors of a block of rows. (2, sigmas, rows)."""
        sigmas, scale, freedom = choice
        x, y = data
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
        """The sums with more weights, (sigmas, rows, chunk)."""
        top = tf.maximum(self.top, tf.reduce_max(log_weights, axis=2))
        unit = tf.where(tf.math.is_inf(top), tf.zeros_like(top), top)  # as long as all weights are 0
        shares, shrunk = tf.exp(log_weights - unit[:, :, None]), tf.exp(self.top - unit)
        return _Sums(
            top,
            self.first * shrunk + tf.reduce_sum(shares, axis=2),
            self.second * tf.square(shrunk) + tf.reduce_sum(tf.square(shares), axis=2),
        )


# The fit


def roundtrip_fit(settings: WarmstartSettings = SETTINGS, *, n_draws: int = DRAWS, keeper: Keeper | None = None) -> Fit:
    """The fit of roundtrip, conditional on the class where rows have one; `settings` are those of the networks.

    A row of a class without training rows is scored NaN. `chosen` has the Monte-Carlo errors of the rows scored last.
    """

    def fit(train: Rows, validation: Rows, seed: int) -> Fitted:
        own = settings.model_copy(update={"seed": derive_seed(seed, "roundtrip") % 2**32}).with_defaults(len(train))
        networks = fresh_networks(own, train.x.shape[1], train.n_classes)
        rows = Rows(train.x.astype(np.float32), y=train.y)
        (phase,) = phases_of(own, networks, rows)
        estimator = _estimator(networks)
        known = validation.take(_has_known_class(validation, train))
        check_seed = derive_seed(seed, "validation")
        check = partial(estimator.choose, rows=known, seed=check_seed)
        kept = KeptState(keeper, ("roundtrip", own, seed), train, validation)
        best = train_roundtrip(phase, own, first_weights(own, networks), rows, check=check, kept=kept)
        choice = Choice((best.sigma,), best.scale, best.freedom)
        chosen = {
            "sigma": best.sigma,
            "scale": best.scale,
            "degrees_of_freedom": best.freedom,
            "steps": best.n_steps,
            "validation_log_density": best.mean if math.isfinite(best.mean) else None,
            "latent_dim": networks.decoder.n_in,
            "draws": n_draws,
            "fit": "conditional" if train.n_classes else "all rows",
            "n_fit_rows": len(train),
        }

        def score(rows: Rows) -> np.ndarray:
            score_seed = derive_seed(seed, "score")
            found = estimator.estimate(best.weights, choice, rows, n_draws=n_draws, seed=score_seed)
            is_known = _has_known_class(rows, train)
            log_density, mc_se = (np.where(is_known, numbers[0], np.nan) for numbers in found)
            # Where the proposal misses, the density is too low and the error too small; a large share reveals it.
            mean = float(np.nanmean(mc_se))
            chosen["mean_mc_se"] = mean if math.isfinite(mean) else None
            chosen["share_above_0.3"] = float(np.mean(mc_se > 0.3))
            return log_density

        return Fitted(score, chosen)

    return fit


class Best(NamedTuple):
    """The best validation check so far: the weights, and what the validation rows chose."""

    weights: Parameters
    n_steps: int  # 0: there was no check yet
    sigma: float
    scale: float
    freedom: int
    mean: float


def train_roundtrip(
    phase: Phase,
    settings: WarmstartSettings,
    weights: Parameters,
    rows: Rows,
    *,
    check: Callable[[Parameters], tuple[Choice, float]],
    kept: KeptState,
) -> Best:
    """The best validation check of the adversarial warm start; training that diverges keeps the checks before."""
    assert settings.seed is not None
    seed = tf.constant(derive_seed(settings.seed, "rounds") % 2**31, tf.int32)
    data, pace = as_tensors(rows), phase.pace
    state = phase.objective.start(weights, data)
    n_rounds, state, best = _restore(kept, (0, state, Best(state.average, 0, 0.0, 0.0, 0, -math.inf)))
    while n_rounds < pace.n_rounds:
        n_rounds += 1
        state, losses = phase.run(state, data, seed)
        stopping.check()
        n_steps = n_rounds * pace.steps_per_round
        if int(losses["first_bad_step"]) >= 0 or not math.isfinite(float(losses["loss"])):
            if best.n_steps:
                break
            raise NumericalFailure(
                f"the training of roundtrip diverged within its first {n_steps:,} steps",
                found=f"a loss that is not finite, on {len(rows):,} training rows",
                hint="evaluate without --baseline roundtrip",
            )
        if phase.is_check_due(n_rounds, settings.checks):
            choice, mean = check(state.average)
            if not best.n_steps or mean > best.mean:
                best = Best(state.average, n_steps, choice.sigmas[0], choice.scale, choice.freedom, mean)
        kept.write(partial(_arrays, (n_rounds, state, best)), is_last=n_rounds == pace.n_rounds)
    return best


def _arrays(progress: Any) -> dict[str, np.ndarray]:
    """The tensors and numbers of a training, named by their position."""
    return {f"{index:05d}": np.asarray(leaf) for index, leaf in enumerate(tf.nest.flatten(progress))}


def _restore(kept: KeptState, first: Any) -> Any:
    """The saved training, in the structure of its beginning; without any, that beginning."""
    arrays = kept.read()
    if arrays is None:
        return first
    leaves = zip(tf.nest.flatten(first), [arrays[name] for name in sorted(arrays)], strict=True)
    return tf.nest.pack_sequence_as(
        first, [tf.constant(array) if tf.is_tensor(leaf) else array.item() for leaf, array in leaves]
    )


# Fits in several spaces have the same networks, and then the same programs.
@lru_cache(maxsize=2)
def _estimator(networks: Networks) -> Estimator:
    def pair_of(weights: Parameters) -> Pair:
        decoder, encoder = decoder_of(networks.decoder, weights), encoder_of(networks.encoder, weights)
        return Pair(lambda z, y=None: decoder(z, y)[0], lambda x, y=None: encoder(x, y).mean)

    return Estimator(pair_of)


def _has_known_class(rows: Rows, train: Rows) -> np.ndarray:
    """Which rows have a class that a training row has. (rows,) bool."""
    if rows.classes is None or train.classes is None:
        return np.ones(len(rows), bool)
    return np.isin(rows.classes, train.classes)
