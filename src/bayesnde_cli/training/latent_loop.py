"""The paper's refinement (appendix S3): every row has a latent of its own, updated in turns with the generator.

For each batch B, the latents first, then one step of the generator on

    J = -(1/|B|) sum over i in B of log p(x_i | z_i) + the weighted regularisers.

`map` is the paper's latent update: one step of Adam on -log p(x_i | z_i) - log p(z_i). Maximising over latents and
weights together is not maximum likelihood: latents that fit too well let the variance shrink. `posterior` draws z_i
from p(z | x_i) instead, by a Markov chain that each row keeps over all epochs; the same generator step then follows
the gradient of log p(x) (Fisher's identity), as far as the chains keep up with the decoder.

A round, an epoch or an equal part of one, is one compiled call, as in `bound_loop`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import tensorflow as tf

from bayesnde_cli.model import random_numbers
from bayesnde_cli.model.decoder import Decoder
from bayesnde_cli.model.likelihood import log_joint, log_likelihood
from bayesnde_cli.model.networks import NetworkSpec
from bayesnde_cli.model.parameters import Parameters, global_norm
from bayesnde_cli.training.joint_parameters import decoder_of, encoder_of, joined, part_of, with_statistics
from bayesnde_cli.training.losses import correlation_loss, log_variance_loss
from bayesnde_cli.training.mmd import marginal_mmd
from bayesnde_cli.training.optimizers import SCHEDULES, AdamState, adam_start, adam_step, averaged, clipped

UPDATES = ("map", "posterior")

_EPSILON = 1e-8
_ROWS_AT_ONCE = 8192

# The first step size of a chain. Too large is mended faster than too small: a refused proposal shrinks the step size
# three times as much as an accepted one lets it grow.
_FIRST_STEP = 0.1
# The rate of adaptation is (1 + visits)^-1/2 but never less than this, as the decoder never stands still.
_LEAST_RATE = 0.05
# Step sizes vary by up to this share from transition to transition: trajectories of one length can come back to their
# start again and again (Neal 2011, section 5.4.2.2).
_STEP_JITTER = 0.2


@dataclass(frozen=True)
class LatentSettings:
    """How a round is run. The defaults are the paper's for p >= 15, without regularisers."""

    update: str  # of the latents: one of UPDATES
    batch_rows: int = 256
    learning_rate: float = 5e-3  # of the generator
    latent_learning_rate: float = 5e-3  # `map` only; no schedule
    weight_decay: float = 0.0  # of the generator: 0 is Adam, more AdamW
    beta_1: float = 0.9
    beta_2: float = 0.99
    schedule: str = "constant"  # of the generator's learning rate, over epochs
    n_epochs: int = 2000  # where the schedule ends
    # A regulariser of weight 0 is not computed.
    mmd_weight: float = 0.0
    correlation_weight: float = 0.0
    log_variance_weight: float = 0.0
    max_norm: float = 10.0  # of the generator's gradient; 0 = not clipped, as in the paper
    average_epochs: float = 0.0  # memory of the running mean of the weights; 0 = none
    rounds_per_epoch: int = 1
    # `posterior` only
    n_transitions: int = 2  # at each visit of a row
    n_leapfrog: int = 5
    target_acceptance: float = 0.75

    def __post_init__(self) -> None:
        for value, choices in ((self.update, UPDATES), (self.schedule, tuple(SCHEDULES))):
            if value not in choices:
                raise ValueError(f"expected one of {', '.join(choices)}, got {value!r}")


class LatentState(NamedTuple):
    """Everything that a round changes."""

    parameters: dict[str, tf.Tensor]  # under `decoder/` and `encoder/`; the encoder's never change
    optimizer: AdamState  # of the decoder's parameters
    average: dict[str, tf.Tensor]  # running mean of the parameters
    latents: tf.Tensor  # (rows, d)
    latent_moments: tuple[tf.Tensor, tf.Tensor]  # Adam's means of gradients and of their squares, (rows, d) each
    visits: tf.Tensor  # (rows,) int32: how often the latent of a row was updated
    log_step: tf.Tensor  # (rows,) log step size of a row's chain
    round: tf.Tensor  # int32 scalar, rounds done


LogDensity = Callable[[tf.Tensor], tf.Tensor]


class Transition(Protocol):
    """One transition of a Markov chain in every row, such as `inference.hmc.transition`."""

    def __call__(
        self, log_density: LogDensity, z: tf.Tensor, step_size: tf.Tensor, seed: tf.Tensor, *, n_leapfrog: int
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """-> the chains (rows, d) and their probabilities of acceptance (rows,)."""


Losses = dict[str, tf.Tensor]
LatentRunner = Callable[[LatentState, tf.Tensor, "tf.Tensor | None", tf.Tensor], tuple[LatentState, Losses]]


class _Rows(NamedTuple):
    """What the state holds of each row: of all of them, or of those in a batch."""

    latents: tf.Tensor
    latent_moments: tuple[tf.Tensor, tf.Tensor]
    visits: tf.Tensor
    log_step: tf.Tensor


# (rows of a batch, their log p(x, z), seeds) -> the rows after a visit, and what to report of it.
_LatentUpdate = Callable[[_Rows, LogDensity, tf.Tensor], tuple[_Rows, Losses]]


def start(encoder: NetworkSpec, parameters: Parameters, x: tf.Tensor, y: tf.Tensor | None) -> LatentState:
    """The state before the first round from given weights of decoder and encoder: z_i = E(x_i), the encoder's mean."""
    network = encoder_of(encoder, parameters)
    pieces = [slice(first, first + _ROWS_AT_ONCE) for first in range(0, x.shape[0], _ROWS_AT_ONCE)]
    latents = tf.concat([network(x[piece], None if y is None else y[piece]).mean for piece in pieces], axis=0)
    return LatentState(
        parameters=dict(parameters),
        optimizer=adam_start(part_of(parameters, "decoder")),
        average=dict(parameters),
        latents=latents,
        latent_moments=(tf.zeros_like(latents), tf.zeros_like(latents)),
        visits=tf.zeros([x.shape[0]], tf.int32),
        log_step=tf.fill([x.shape[0]], tf.math.log(_FIRST_STEP)),
        round=tf.constant(0, tf.int32),
    )


def round_runner(decoder: NetworkSpec, settings: LatentSettings, transition: Transition | None = None) -> LatentRunner:
    """A compiled function (state, x, y, seed) -> (state, losses): the next part of an epoch over the rows.

    x (rows, p) float32, y one-hot (rows, classes) or None, seed int32 scalar. Rows beyond a whole number of batches
    and rounds wait for another epoch's shuffle. `transition` is needed for `posterior`. Losses are means over steps;
    the round ends with the first one whose loss is not finite:

        loss                            J
        negative_log_likelihood         its first part
        mmd, correlation, log_variance  the regularisers without their weight, where it is not 0
        latent_norm                     `map`: mean of |z_i|^2 / d, 1 for latents that fill the prior
        acceptance, lag                 `posterior`: see `burn_in_runner`
        first_bad_step                  no mean but an int32: the first step whose loss is not finite, -1 if none is
    """
    if settings.update == "map":
        update = _map_update(settings)
    elif transition is not None:
        update = _posterior_update(settings, transition)
    else:
        raise ValueError("expected a transition for the update 'posterior', got None")

    # AutoGraph has nothing to translate here, and takes its time to find out.
    @tf.function(jit_compile=True, autograph=False)
    def run(state: LatentState, x: tf.Tensor, y: tf.Tensor | None, seed: tf.Tensor) -> tuple[LatentState, Losses]:
        n_rows, batch = x.shape[0], min(settings.batch_rows, x.shape[0])
        n_steps = n_rows // batch // settings.rounds_per_epoch
        decay = 1.0 - 1.0 / max(1.0, settings.average_epochs * n_steps * settings.rounds_per_epoch)
        epoch, part = state.round // settings.rounds_per_epoch, state.round % settings.rounds_per_epoch
        step_seeds = _seeds(tf.stack([seed, state.round]), n_steps, settings)
        # One shuffle for all rounds of an epoch, at an address that no round has.
        order = tf.argsort(random_numbers.uniform([n_rows], tf.stack([tf.bitwise.invert(seed), epoch])))
        order = tf.roll(order, -part * n_steps * batch, axis=0)
        visited, waiting = tf.split(order, [n_steps * batch, n_rows - n_steps * batch])
        batches = _in_batches((x, y, _rows_of(state)), visited, batch)
        factor = SCHEDULES[settings.schedule](state.round / settings.rounds_per_epoch, float(settings.n_epochs))

        def step(index, weights, optimizer, average, rows, totals, _):  # type: ignore[no-untyped-def]
            seeds = step_seeds[index]
            x_batch, y_batch, rows_batch = _at(index, batches)
            log_density = _log_density(Decoder(decoder, weights), x_batch, y_batch)
            rows_batch, watched = update(rows_batch, log_density, seeds[1:])
            with tf.GradientTape() as tape:
                tape.watch(weights)
                model = Decoder(decoder, weights)
                terms = _generator_terms(model, settings, x_batch, y_batch, rows_batch.latents, seeds[0])
            gradients = tape.gradient(terms["loss"], weights, unconnected_gradients=tf.UnconnectedGradients.ZERO)
            if settings.max_norm:
                gradients, _ = clipped(gradients, max_norm=settings.max_norm)
            moved, optimizer = adam_step(
                gradients, optimizer, weights,
                learning_rate=factor * settings.learning_rate, beta_1=settings.beta_1, beta_2=settings.beta_2,
                epsilon=_EPSILON, weight_decay=settings.weight_decay,
            )  # fmt: skip
            weights = with_statistics(moved, weights, {})  # those of batch normalisation stay as they are
            average = averaged(average, weights, decay=decay)
            bad_step = tf.where(tf.math.is_finite(terms["loss"]), -1, index)
            totals = tf.nest.map_structure(tf.add, totals, terms | watched)
            return index + 1, weights, optimizer, average, _written(rows, index, rows_batch), totals, bad_step

        totals = {name: tf.constant(0.0) for name in _loss_names(settings)}
        weights, average = part_of(state.parameters, "decoder"), part_of(state.average, "decoder")
        n_done, weights, optimizer, average, rows, totals, bad_step = tf.while_loop(
            lambda index, *rest: (index < n_steps) & (rest[-1] < 0),
            step,
            (tf.constant(0), weights, state.optimizer, average, _unwritten(batches[2]), totals, tf.constant(-1)),
        )
        state = LatentState(
            parameters=state.parameters | joined({"decoder": weights}),
            optimizer=optimizer,
            average=state.average | joined({"decoder": average}),
            round=state.round + 1,
            **_in_place(rows, _rows_of(state), order, waiting)._asdict(),
        )
        is_sound = tf.math.is_finite(global_norm(weights))
        bad_step = tf.where(is_sound | (bad_step >= 0), bad_step, n_done - 1)
        losses = {name: total / tf.cast(n_done, tf.float32) for name, total in totals.items()}
        return state, losses | {"first_bad_step": bad_step}

    return run


def burn_in_runner(decoder: NetworkSpec, settings: LatentSettings, transition: Transition) -> LatentRunner:
    """A compiled function (state, x, y, seed) -> (state, diagnostics): every chain moves on, the decoder stays.

    For `posterior`, several times before the first epoch: from the encoder's mean, chains must first spread out. Every
    call draws anew, also under one seed. Means over rows:

        acceptance  of the transitions
        lag         of log p(x, z before) - log p(x, z after), both with the decoder of now: in nats

    Draws from the posterior stay such draws, and the lag is 0 but for sampling error (about sqrt(d / rows) in an
    epoch). It is negative where chains lag behind: a decoder has moved, the latents have become improbable under it,
    and the transitions bring them back. It is positive where latents are more probable than draws would be: those of a
    start at the mode, or those that a fast decoder was bent to. Chains that hardly move have no lag either: read it
    beside an acceptance near its target.
    """
    update = _posterior_update(settings, transition)

    @tf.function(jit_compile=True, autograph=False)
    def run(state: LatentState, x: tf.Tensor, y: tf.Tensor | None, seed: tf.Tensor) -> tuple[LatentState, Losses]:
        n_rows, batch = x.shape[0], min(settings.batch_rows, x.shape[0])
        n_batches = -(-n_rows // batch)
        # Each sweep has an address of its own; the last batch is filled up with copies of the first rows.
        batch_seeds = _seeds(tf.stack([seed, -1 - tf.reduce_max(state.visits)]), n_batches, settings)
        order = tf.range(n_batches * batch) % n_rows
        batches = _in_batches((x, y, _rows_of(state)), order, batch)
        model = decoder_of(decoder, state.parameters)

        def sweep(index, rows, totals):  # type: ignore[no-untyped-def]
            x_batch, y_batch, rows_batch = _at(index, batches)
            log_density = _log_density(model, x_batch, y_batch)
            rows_batch, watched = update(rows_batch, log_density, batch_seeds[index, 1:])
            return index + 1, _written(rows, index, rows_batch), tf.nest.map_structure(tf.add, totals, watched)

        totals = {name: tf.constant(0.0) for name in ("acceptance", "lag")}
        _, rows, totals = tf.while_loop(
            lambda index, *_: index < n_batches, sweep, (tf.constant(0), _unwritten(batches[2]), totals)
        )
        moved = tf.nest.map_structure(lambda array: array.concat()[:n_rows], rows)
        return state._replace(**moved._asdict()), {name: total / float(n_batches) for name, total in totals.items()}

    return run


def _map_update(settings: LatentSettings) -> _LatentUpdate:
    """One step of Adam on -log p(x, z). Moments and their correction belong to the row, not to its place in a batch."""

    def update(rows: _Rows, log_density: LogDensity, seeds: tf.Tensor) -> tuple[_Rows, Losses]:
        with tf.GradientTape() as tape:
            tape.watch(rows.latents)
            # A sum, so that a row's gradient is that of its own term: Adam would undo the paper's division by |B|.
            energy = -tf.reduce_sum(log_density(rows.latents))
        first, second = rows.latent_moments
        moved, adam = adam_step(
            {"z": tape.gradient(energy, rows.latents)},
            AdamState(rows.visits[:, None], {"z": first}, {"z": second}),
            {"z": rows.latents},
            learning_rate=settings.latent_learning_rate, beta_1=settings.beta_1, beta_2=settings.beta_2,
            epsilon=_EPSILON,
        )  # fmt: skip
        z = moved["z"]
        rows = rows._replace(latents=z, latent_moments=(adam.first["z"], adam.second["z"]), visits=rows.visits + 1)
        return rows, {"latent_norm": tf.reduce_mean(tf.square(z))}

    return update


def _posterior_update(settings: LatentSettings, transition: Transition) -> _LatentUpdate:
    """Some transitions of the chains, each followed by a Robbins-Monro step of log step sizes to their target."""

    def update(rows: _Rows, log_density: LogDensity, seeds: tf.Tensor) -> tuple[_Rows, Losses]:
        jitter = random_numbers.uniform(
            [settings.n_transitions, *rows.log_step.shape],
            seeds[0],
            minval=1.0 - _STEP_JITTER,
            maxval=1.0 + _STEP_JITTER,
        )
        rate = tf.maximum(tf.math.rsqrt(1.0 + tf.cast(rows.visits, tf.float32)), _LEAST_RATE)

        def move(index, z, log_step, total):  # type: ignore[no-untyped-def]
            step_size = jitter[index] * tf.exp(log_step)
            z, acceptance = transition(log_density, z, step_size, seeds[1 + index], n_leapfrog=settings.n_leapfrog)
            log_step += rate * (acceptance - settings.target_acceptance)
            return index + 1, z, log_step, total + tf.reduce_mean(acceptance)

        _, z, log_step, total = tf.while_loop(
            lambda index, *_: index < settings.n_transitions,
            move,
            (tf.constant(0), rows.latents, rows.log_step, tf.constant(0.0)),
        )
        lag = tf.cast(tf.reduce_mean(log_density(rows.latents) - log_density(z)), tf.float32)
        rows = rows._replace(latents=z, log_step=log_step, visits=rows.visits + 1)
        return rows, {"acceptance": total / float(settings.n_transitions), "lag": lag}

    return update


def _log_density(model: Decoder, x: tf.Tensor, y: tf.Tensor | None) -> LogDensity:
    """z -> log p(x, z) of each row, added up in float64: its differences decide about acceptance."""
    return lambda z: log_joint(z, x, model, y=y, dtype=tf.float64)


def _generator_terms(
    model: Decoder, settings: LatentSettings, x: tf.Tensor, y: tf.Tensor | None, z: tf.Tensor, seed: tf.Tensor
) -> Losses:
    """The loss of the generator and its terms; generated rows are draws of x, not means."""
    (n_rows, d), p = z.shape, x.shape[1]
    noise = random_numbers.normal([n_rows, d + 2 * p], seed)
    prior, fresh_noise, rebuilt_noise = tf.split(noise, [d, p, p], axis=1)
    mean, variance, *cells = model(z, y)
    terms = {"negative_log_likelihood": -tf.reduce_mean(log_likelihood(x, mean, variance, *cells))}
    loss = terms["negative_log_likelihood"]
    if settings.mmd_weight or settings.log_variance_weight:
        prior_mean, prior_variance, *_ = model(prior, y)
    if settings.mmd_weight:
        terms["mmd"] = marginal_mmd(x, prior_mean + tf.sqrt(prior_variance) * fresh_noise)
        loss += settings.mmd_weight * terms["mmd"]
    if settings.correlation_weight:
        terms["correlation"] = correlation_loss(x, mean + tf.sqrt(variance) * rebuilt_noise)
        loss += settings.correlation_weight * terms["correlation"]
    if settings.log_variance_weight:
        terms["log_variance"] = log_variance_loss(prior_variance)
        loss += settings.log_variance_weight * terms["log_variance"]
    return terms | {"loss": loss}


def _seeds(address: tf.Tensor, n_batches: int, settings: LatentSettings) -> tf.Tensor:
    """The seeds of each batch: for the generator, for the step sizes, for each transition.

    (batches, 2 + n_transitions, 2). All come from one call, as every call for random numbers takes XLA a third of a
    second to compile.
    """
    n_each = 2 + settings.n_transitions
    seeds = tf.random.experimental.stateless_split(address, n_batches * n_each)
    return tf.reshape(seeds, [n_batches, n_each, 2])


def _loss_names(settings: LatentSettings) -> list[str]:
    regularisers = {
        "mmd": settings.mmd_weight,
        "correlation": settings.correlation_weight,
        "log_variance": settings.log_variance_weight,
    }
    watched = ["latent_norm"] if settings.update == "map" else ["acceptance", "lag"]
    return ["loss", "negative_log_likelihood", *(name for name, weight in regularisers.items() if weight), *watched]


def _rows_of(state: LatentState) -> _Rows:
    return _Rows(state.latents, state.latent_moments, state.visits, state.log_step)


# The arrays of a loop over batches, whatever their nesting: cut up before it, read and written inside, joined after it.


def _in_batches(arrays: Any, order: tf.Tensor, batch: int) -> Any:
    """Rows in this order, in batches: (rows, …) -> (batches, batch, …)."""

    def cut(array: tf.Tensor | None) -> tf.Tensor | None:
        return None if array is None else tf.reshape(tf.gather(array, order), [-1, batch, *array.shape[1:]])

    return tf.nest.map_structure(cut, arrays)


def _at(index: tf.Tensor, batches: Any) -> Any:
    return tf.nest.map_structure(lambda array: None if array is None else array[index], batches)


def _unwritten(batches: _Rows) -> _Rows:
    return tf.nest.map_structure(
        lambda array: tf.TensorArray(array.dtype, array.shape[0], element_shape=array.shape[1:]), batches
    )


def _written(arrays: _Rows, index: tf.Tensor, values: _Rows) -> _Rows:
    return tf.nest.map_structure(lambda array, value: array.write(index, value), arrays, values)


def _in_place(visited: _Rows, before: _Rows, order: tf.Tensor, waiting: tf.Tensor) -> _Rows:
    """All rows where they stood before the shuffle: the visited ones, and those that wait as they were."""
    position = tf.argsort(order)

    def back(array: tf.TensorArray, old: tf.Tensor) -> tf.Tensor:
        return tf.gather(tf.concat([array.concat(), tf.gather(old, waiting)], axis=0), position)

    return tf.nest.map_structure(back, visited, before)
