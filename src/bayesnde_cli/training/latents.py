"""The paper's refinement (appendix S3): every row keeps a latent of its own, updated in turns with the decoder.

For each batch B, first the latents, then one step of the decoder on

    J = -(1/|B|) sum over i in B of log p(x_i | z_i) + the weighted regularisers.

`map` is the paper's latent update: one step of Adam on -log p(x_i | z_i) - log p(z_i). Latents that fit too well then
let the variance shrink. `posterior` draws z_i from p(z | x_i) instead, with a Markov chain that each row keeps over all
epochs. The same decoder step then follows the gradient of log p(x), as far as the chains keep up with the decoder."""

from collections.abc import Callable
from typing import Any, NamedTuple

import tensorflow as tf

from bayesnde_cli import stopping
from bayesnde_cli.inference import hmc
from bayesnde_cli.model import backend, coders
from bayesnde_cli.model.coders import Decoder, Networks, part_of
from bayesnde_cli.model.layers import Parameters
from bayesnde_cli.model.likelihood import LogDensity, log_joint, log_likelihood
from bayesnde_cli.model.networks import NetworkSpec
from bayesnde_cli.settings.stage_settings import RefineSettings
from bayesnde_cli.training import losses, objectives
from bayesnde_cli.training.objectives import AdamState, Data, Losses, Objective, Optimizer, Pace, State

_ENCODER_ROWS = 8192  # rows that the encoder takes at once
_TARGET_ACCEPTANCE = 0.75
# The first step size of a chain. Too large is corrected faster than too small: a rejected proposal shrinks the step
# size three times as much as an accepted one lets it grow.
_FIRST_STEP = 0.1
# The rate of adaptation is (1 + visits)^-1/2 but never less than this, as the decoder never stands still.
_LEAST_RATE = 0.05
# Step sizes vary by up to this share between transitions: trajectories of one length can return to their start again
# and again (Neal 2011, section 5.4.2.2).
_STEP_JITTER = 0.2


class Latents(NamedTuple):
    """The latents of all rows or of a batch, and the state of their optimizer and chains."""

    z: tf.Tensor  # (rows, d)
    moments: tuple[tf.Tensor, tf.Tensor]  # Adam's means of gradients and of their squares, (rows, d) each
    visits: tf.Tensor  # (rows,) int32, number of updates
    log_step: tf.Tensor  # (rows,) log step size of the chain


class _Batches(NamedTuple):
    rows: tuple[Data, Latents]  # (steps, batch, …)
    seeds: tf.Tensor  # (steps, 2 + transitions, 2)
    order: tf.Tensor  # (rows,) shuffled row indices, those of the round first
    waiting: tf.Tensor  # row indices that this round does not visit
    rate_factor: tf.Tensor  # on the learning rate


# (latents of a batch, their log p(x, z), seeds) -> the updated latents, and diagnostics of the update.
_Update = Callable[[Latents, LogDensity, tf.Tensor], tuple[Latents, Losses]]


def latent_objective(networks: Networks, settings: RefineSettings, pace: Pace) -> Objective:
    """J with the latent update `map` or `posterior`. The encoder gives the first latents and does not change.

    loss                            J
    negative_log_likelihood         its first part
    mmd, correlation, log_variance  the regularisers without their weights, where these are not 0
    latent_norm                     `map`: mean of |z_i|^2 / d, 1 for latents that fill the prior
    acceptance, lag                 `posterior`: see `compile_burn_in`
    """
    is_map = settings.latent_update == "map"
    update = _map_update(settings) if is_map else _posterior_update(settings)
    rounds_per_epoch = pace.rounds_per_epoch or 1
    optimizer = Optimizer(
        settings.average_epochs * pace.steps_per_epoch,
        weight_decay=settings.weight_decay or 0.0,
        max_norm=None if is_map else objectives.MAX_NORM,  # the paper does not clip
    )

    def start(parameters: Parameters, data: Data) -> State:
        adam = objectives.start_adam(part_of(parameters, "decoder"))
        latents = first_latents(networks.encoder, parameters, data)
        return objectives.start_state(parameters)._replace(optimizer=adam, extra=latents)

    def open_round(state: State, data: Data, seed: tf.Tensor) -> tuple[State, _Batches]:
        n_rows, n_visited = data[0].shape[0], pace.steps_per_round * pace.batch_rows
        epoch, part = state.round // rounds_per_epoch, state.round % rounds_per_epoch
        seeds = _batch_seeds(tf.stack([seed, state.round]), pace.steps_per_round, settings)
        # One shuffle for all rounds of an epoch, at an address that no round has.
        order = tf.argsort(backend.uniform([n_rows], tf.stack([tf.bitwise.invert(seed), epoch])))
        order = tf.roll(order, -part * n_visited, axis=0)
        visited, waiting = tf.split(order, [n_visited, n_rows - n_visited])
        rows = _cut((data, state.extra), visited, pace.batch_rows)
        factor = objectives.schedule_factor(settings.schedule, state.round / rounds_per_epoch, float(pace.n_epochs))
        return state._replace(extra=_empty_arrays(rows[1])), _Batches(rows, seeds, order, waiting, factor)

    def step(state: State, batches: _Batches, index: tf.Tensor) -> tuple[State, Losses]:
        seeds, (data, latents) = batches.seeds[index], _at(index, batches.rows)
        weights = part_of(state.parameters, "decoder")
        decoder = Decoder(networks.decoder, weights)
        latents, diagnostics = update(latents, _log_density(decoder, data), seeds[1:])
        with tf.GradientTape() as tape:
            tape.watch(weights)
            terms = _decoder_losses(decoder, settings, data, latents.z, seeds[0])
        gradients = objectives.gradients_of(tape, terms["loss"], weights)
        # The decoder alone moves, without new statistics of batch normalisation.
        decoder_state = state._replace(parameters=weights, average=part_of(state.average, "decoder"))
        moved = optimizer.move(decoder_state, gradients, batches.rate_factor * settings.learning_rate)
        state = moved._replace(
            parameters=state.parameters | coders.merge({"decoder": moved.parameters}),
            average=state.average | coders.merge({"decoder": moved.average}),
            extra=_write(state.extra, index, latents),
        )
        return state, terms | diagnostics

    def close_round(state: State, before: State, batches: _Batches) -> State:
        """Put all rows in their places before the shuffle, those that were not visited included."""
        position = tf.argsort(batches.order)

        def unshuffle(array: tf.TensorArray, old: tf.Tensor) -> tf.Tensor:
            return tf.gather(tf.concat([array.concat(), tf.gather(old, batches.waiting)], axis=0), position)

        return state._replace(extra=tf.nest.map_structure(unshuffle, state.extra, before.extra))

    def settle(state: State, data: Data, seed: tf.Tensor) -> State:
        burn_in = compile_burn_in(networks.decoder, settings, pace.batch_rows)
        for _ in range(settings.burn_in):
            stopping.check()
            state, _ = burn_in(state, data, seed)
        return state

    regularisers = [name for name in ("mmd", "correlation", "log_variance") if getattr(settings, f"{name}_weight")]
    diagnostics = ["latent_norm"] if is_map else ["acceptance", "lag"]
    loss_names = ["loss", "negative_log_likelihood", *regularisers, *diagnostics]
    return Objective(loss_names, open_round, step, close_round, start, None if is_map else settle)


def first_latents(encoder: NetworkSpec, parameters: Parameters, data: Data) -> Latents:
    """The latents before the first round: z_i = E(x_i), the encoder's mean."""
    n_rows, network = data[0].shape[0], coders.encoder_of(encoder, parameters)
    pieces = [tf.range(first, min(first + _ENCODER_ROWS, n_rows)) for first in range(0, n_rows, _ENCODER_ROWS)]
    z = tf.concat([network(*objectives.take_rows(data, piece)).mean for piece in pieces], axis=0)
    moments = tf.zeros_like(z), tf.zeros_like(z)
    return Latents(z, moments, tf.zeros([n_rows], tf.int32), tf.fill([n_rows], tf.math.log(_FIRST_STEP)))


def compile_burn_in(
    decoder: NetworkSpec, settings: RefineSettings, batch_rows: int
) -> Callable[[State, Data, tf.Tensor], tuple[State, Losses]]:
    """A compiled function (state, data, seed) -> (state, diagnostics) that moves every chain and keeps the decoder.

    For `posterior`, before the first epoch: from the encoder's mean, chains must first spread out. Every call draws new
    random numbers, also under one seed. Means over rows:

        acceptance  of the transitions
        lag         log p(x, z before) - log p(x, z after), both with the current decoder, in nats

    For draws from the posterior the lag is 0 but for sampling error (about sqrt(d / rows) in an epoch). It is negative
    where the decoder has moved and the chains lag behind, and positive where latents are more probable than draws: at a
    start at the mode, or after a fast decoder was bent to them. Chains that hardly move have no lag either, so read it
    together with the acceptance.
    """
    update = _posterior_update(settings)

    @tf.function(jit_compile=True, autograph=False)
    def run(state: State, data: Data, seed: tf.Tensor) -> tuple[State, Losses]:
        n_rows = data[0].shape[0]
        n_batches = -(-n_rows // batch_rows)
        # Each sweep has an address of its own; the last batch is filled up with copies of the first rows.
        seeds = _batch_seeds(tf.stack([seed, -1 - tf.reduce_max(state.extra.visits)]), n_batches, settings)
        batches = _cut((data, state.extra), tf.range(n_batches * batch_rows) % n_rows, batch_rows)
        model = coders.decoder_of(decoder, state.parameters)

        def sweep(index, written, totals):  # type: ignore[no-untyped-def]
            own, latents = _at(index, batches)
            latents, diagnostics = update(latents, _log_density(model, own), seeds[index, 1:])
            return index + 1, _write(written, index, latents), tf.nest.map_structure(tf.add, totals, diagnostics)

        totals = dict.fromkeys(("acceptance", "lag"), tf.constant(0.0))
        _, written, totals = tf.while_loop(
            lambda index, *_: index < n_batches, sweep, (tf.constant(0), _empty_arrays(batches[1]), totals)
        )
        moved = tf.nest.map_structure(lambda array: array.concat()[:n_rows], written)
        return state._replace(extra=moved), {name: total / float(n_batches) for name, total in totals.items()}

    return run


def _map_update(settings: RefineSettings) -> _Update:
    """One step of Adam on -log p(x, z). Moments and bias correction belong to the row, not to its place in a batch."""

    def update(latents: Latents, log_density: LogDensity, seeds: tf.Tensor) -> tuple[Latents, Losses]:
        with tf.GradientTape() as tape:
            tape.watch(latents.z)
            # A sum, so that a row's gradient is that of its own term: Adam would undo the paper's division by |B|.
            energy = -tf.reduce_sum(log_density(latents.z))
        first, second = latents.moments
        state = AdamState(latents.visits[:, None], {"z": first}, {"z": second})
        gradients = {"z": tape.gradient(energy, latents.z)}
        moved, adam = Optimizer(max_norm=None).adam({"z": latents.z}, gradients, state, settings.latent_learning_rate)
        z = moved["z"]
        latents = latents._replace(z=z, moments=(adam.first["z"], adam.second["z"]), visits=latents.visits + 1)
        return latents, {"latent_norm": tf.reduce_mean(tf.square(z))}

    return update


def _posterior_update(settings: RefineSettings) -> _Update:
    """Transitions of the chains, each followed by a Robbins-Monro step of the log step sizes."""

    def update(latents: Latents, log_density: LogDensity, seeds: tf.Tensor) -> tuple[Latents, Losses]:
        shape = [settings.transitions, *latents.log_step.shape]
        jitter = backend.uniform(shape, seeds[0], minval=1.0 - _STEP_JITTER, maxval=1.0 + _STEP_JITTER)
        rate = tf.maximum(tf.math.rsqrt(1.0 + tf.cast(latents.visits, tf.float32)), _LEAST_RATE)

        def move(index, z, log_step, total):  # type: ignore[no-untyped-def]
            step_size = jitter[index] * tf.exp(log_step)
            z, acceptance = hmc.transition(log_density, z, step_size, seeds[1 + index], n_leapfrog=settings.leapfrogs)
            log_step += rate * (acceptance - _TARGET_ACCEPTANCE)
            return index + 1, z, log_step, total + tf.reduce_mean(acceptance)

        _, z, log_step, total = tf.while_loop(
            lambda index, *_: index < settings.transitions,
            move,
            (tf.constant(0), latents.z, latents.log_step, tf.constant(0.0)),
        )
        lag = tf.cast(tf.reduce_mean(log_density(latents.z) - log_density(z)), tf.float32)
        latents = latents._replace(z=z, log_step=log_step, visits=latents.visits + 1)
        return latents, {"acceptance": total / float(settings.transitions), "lag": lag}

    return update


def _log_density(model: Decoder, data: Data) -> LogDensity:
    """z -> log p(x, z) of each row, summed in float64: its differences decide about acceptance."""
    x, y = data
    return lambda z: log_joint(z, x, model, y=y, dtype=tf.float64)


def _decoder_losses(model: Decoder, settings: RefineSettings, data: Data, z: tf.Tensor, seed: tf.Tensor) -> Losses:
    """J and its terms; generated rows are draws of x, not means."""
    (x, y), (n_rows, d), p = data, z.shape, data[0].shape[1]
    noise = backend.normal([n_rows, d + 2 * p], seed)
    prior, fresh_noise, rebuilt_noise = tf.split(noise, [d, p, p], axis=1)
    mean, variance, *cells = model(z, y)
    terms = {"negative_log_likelihood": -tf.reduce_mean(log_likelihood(x, mean, variance, *cells))}
    if settings.mmd_weight or settings.log_variance_weight:
        prior_mean, prior_variance, *_ = model(prior, y)
    if settings.mmd_weight:
        terms["mmd"] = losses.marginal_mmd(x, prior_mean + tf.sqrt(prior_variance) * fresh_noise)
    if settings.correlation_weight:
        terms["correlation"] = losses.correlation_loss(x, mean + tf.sqrt(variance) * rebuilt_noise)
    if settings.log_variance_weight:
        terms["log_variance"] = losses.log_variance_loss(prior_variance)
    loss, *_ = terms.values()
    for name in list(terms)[1:]:
        loss += getattr(settings, f"{name}_weight") * terms[name]
    return terms | {"loss": loss}


def _batch_seeds(address: tf.Tensor, n_batches: int, settings: RefineSettings) -> tf.Tensor:
    """Seeds of each batch: for the decoder, for the step sizes, for each transition. (batches, 2 + transitions, 2)."""
    n_each = 2 + settings.transitions  # in one call, as each takes XLA a third of a second to compile
    seeds = tf.random.experimental.stateless_split(address, n_batches * n_each)
    return tf.reshape(seeds, [n_batches, n_each, 2])


# Nested arrays of rows in a loop over batches: cut before it, read and written inside, put back after it. Scattering
# single rows inside the loop would be slow.


def _cut(arrays: Any, order: tf.Tensor, batch: int) -> Any:
    """The rows in this order, in batches: (rows, …) -> (batches, batch, …)."""

    def cut(array: tf.Tensor | None) -> tf.Tensor | None:
        return None if array is None else tf.reshape(tf.gather(array, order), [-1, batch, *array.shape[1:]])

    return tf.nest.map_structure(cut, arrays)


def _at(index: tf.Tensor, batches: Any) -> Any:
    return tf.nest.map_structure(lambda array: None if array is None else array[index], batches)


def _write(arrays: Latents, index: tf.Tensor, latents: Latents) -> Latents:
    return tf.nest.map_structure(lambda array, value: array.write(index, value), arrays, latents)


def _empty_arrays(batches: Latents) -> Latents:
    return tf.nest.map_structure(
        lambda array: tf.TensorArray(array.dtype, array.shape[0], element_shape=array.shape[1:]), batches
    )
