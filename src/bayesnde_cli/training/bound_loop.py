"""Maximum likelihood by lower bounds of log p(x): the evidence lower bound, then the importance-weighted bound.

A whole epoch is one compiled call: rows are shuffled, batches drawn, steps made and losses averaged without Python.
The loop's state is tensors in dictionaries and nothing else; seeds are addresses (run, epoch, step), so an epoch that
is run again from its state gives the same state.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import tensorflow as tf

from bayesnde_cli.model import networks
from bayesnde_cli.model.decoder import Decoder
from bayesnde_cli.model.encoder import Encoder
from bayesnde_cli.model.likelihood import log_likelihood
from bayesnde_cli.model.networks import NetworkSpec
from bayesnde_cli.model.parameters import Parameters
from bayesnde_cli.training.bounds import (
    doubly_reparameterised_loss,
    elbo,
    gaussian_kl,
    importance_weighted_bound,
    log_importance_weights,
)
from bayesnde_cli.training.optimizers import AdamState, adam_start, adam_step, averaged, clipped

_DECODER, _ENCODER = "decoder/", "encoder/"


@dataclass(frozen=True)
class BoundSettings:
    """How an epoch is run. One draw is the evidence lower bound, more the importance-weighted bound."""

    batch_rows: int = 256
    n_draws: int = 1
    learning_rate: float = 1e-3
    kl_warm_up_epochs: int = 0  # the weight of the KL rises from 0 to 1 over these epochs
    max_norm: float = 10.0  # of the gradient: a rare batch with an outlier must not undo an epoch
    average_epochs: float = 2.0  # memory of the running mean of the weights, which is what is scored


class BoundState(NamedTuple):
    """Everything that an epoch changes."""

    parameters: dict[str, tf.Tensor]  # of decoder and encoder, under `decoder/` and `encoder/`
    optimizer: AdamState
    average: dict[str, tf.Tensor]  # running mean of the parameters
    epoch: tf.Tensor  # int32 scalar, epochs done


EpochRunner = Callable[[BoundState, tf.Tensor, "tf.Tensor | None", tf.Tensor], "tuple[BoundState, tf.Tensor]"]


def start(decoder: NetworkSpec, encoder: NetworkSpec, seed: int) -> BoundState:
    """The state before the first epoch."""
    parameters = _joined(
        networks.initial_parameters(decoder, seed, "decoder"), networks.initial_parameters(encoder, seed, "encoder")
    )
    return restart_from(parameters)


def restart_from(parameters: Parameters) -> BoundState:
    """The state before the first epoch from given weights."""
    return BoundState(dict(parameters), adam_start(parameters), dict(parameters), tf.constant(0, tf.int32))


def decoder_of(spec: NetworkSpec, parameters: Parameters) -> Decoder:
    """The decoder inside joint parameters."""
    return Decoder(spec, _part(parameters, _DECODER))


def encoder_of(spec: NetworkSpec, parameters: Parameters) -> Encoder:
    """The encoder inside joint parameters."""
    return Encoder(spec, _part(parameters, _ENCODER))


def epoch_runner(decoder: NetworkSpec, encoder: NetworkSpec, settings: BoundSettings) -> EpochRunner:
    """A compiled function (state, x, y, seed) -> (state, mean loss): one pass over the rows in random batches.

    x (rows, p) float32, y one-hot (rows, classes) or None, seed int32 scalar. Rows beyond a whole number of batches
    wait for another epoch's shuffle.
    """

    def loss_of(parameters: Parameters, x: tf.Tensor, y: tf.Tensor | None, kl_weight: tf.Tensor, noise: tf.Tensor):  # type: ignore[no-untyped-def]
        mean, sd = encoder_of(encoder, parameters)(x, y)
        z = mean[:, None, :] + sd[:, None, :] * noise  # (batch, draws, d)
        model = decoder_of(decoder, parameters)
        y_draws = None if y is None else y[:, None, :]

        def likelihood(draws: tf.Tensor) -> tf.Tensor:
            return log_likelihood(x[:, None, :], *model(draws, y_draws))  # (batch, draws)

        if settings.n_draws == 1:
            return -tf.reduce_mean(elbo(likelihood(z)[:, 0], gaussian_kl(mean, tf.math.log(sd)), kl_weight))
        fixed = tf.stop_gradient(mean), tf.stop_gradient(tf.math.log(sd))
        return doubly_reparameterised_loss(z, lambda draws: log_importance_weights(likelihood(draws), draws, *fixed))

    @tf.function(jit_compile=True)
    def run(state: BoundState, x: tf.Tensor, y: tf.Tensor | None, seed: tf.Tensor) -> tuple[BoundState, tf.Tensor]:
        n_rows, batch = x.shape[0], min(settings.batch_rows, x.shape[0])
        n_steps = n_rows // batch
        decay = 1.0 - 1.0 / max(1.0, settings.average_epochs * n_steps)
        address = tf.stack([seed, state.epoch])
        order = tf.argsort(tf.random.stateless_uniform([n_rows], address))
        kl_weight = tf.minimum(1.0, tf.cast(state.epoch + 1, tf.float32) / float(max(settings.kl_warm_up_epochs, 1)))

        def step(index, parameters, optimizer, average, total):  # type: ignore[no-untyped-def]
            rows = tf.slice(order, [index * batch], [batch])
            noise_seed = tf.random.experimental.stateless_fold_in(address, index + 1)
            noise = tf.random.stateless_normal([batch, settings.n_draws, encoder.n_out], noise_seed)
            with tf.GradientTape() as tape:
                tape.watch(parameters)
                loss = loss_of(
                    parameters, tf.gather(x, rows), None if y is None else tf.gather(y, rows), kl_weight, noise
                )
            gradients, _ = clipped(tape.gradient(loss, parameters), max_norm=settings.max_norm)
            parameters, optimizer = adam_step(
                gradients, optimizer, parameters,
                learning_rate=settings.learning_rate, beta_1=0.9, beta_2=0.99, epsilon=1e-8,
            )  # fmt: skip
            average = averaged(average, parameters, decay=decay)
            return index + 1, parameters, optimizer, average, total + loss

        _, parameters, optimizer, average, total = tf.while_loop(
            lambda index, *_: index < n_steps,
            step,
            (tf.constant(0), state.parameters, state.optimizer, state.average, tf.constant(0.0)),
        )
        return BoundState(parameters, optimizer, average, state.epoch + 1), total / float(n_steps)

    return run


def marginal_scorer(
    decoder: NetworkSpec, encoder: NetworkSpec, *, n_draws: int, block_rows: int = 256
) -> Callable[[Parameters, tf.Tensor, "tf.Tensor | None", tf.Tensor], tf.Tensor]:
    """A compiled function (parameters, x, y, seed) -> estimated log p(x) of each row, (rows,) float64.

    Importance sampling from the encoder's proposal, its s.d. widened so that the weights are bounded where the
    posterior's tails are heavier than the proposal's. Biased downwards where the proposal misses a part of the
    posterior: a figure to choose checkpoints by, not one to report.
    """
    widening = 1.2

    @tf.function(jit_compile=True)
    def block(parameters: Parameters, x: tf.Tensor, y: tf.Tensor | None, seed: tf.Tensor) -> tf.Tensor:
        mean, sd = encoder_of(encoder, parameters)(x, y)
        log_sd = tf.math.log(widening * sd)
        z = mean[:, None, :] + tf.exp(log_sd)[:, None, :] * tf.random.stateless_normal(
            [x.shape[0], n_draws, encoder.n_out], seed
        )
        y_draws = None if y is None else y[:, None, :]
        mean_x, variance_x = decoder_of(decoder, parameters)(z, y_draws)
        log_weights = log_importance_weights(log_likelihood(x[:, None, :], mean_x, variance_x), z, mean, log_sd)
        return importance_weighted_bound(tf.cast(log_weights, tf.float64))

    def score(parameters: Parameters, x: tf.Tensor, y: tf.Tensor | None, seed: tf.Tensor) -> tf.Tensor:
        n_rows = x.shape[0]
        n_blocks = -(-n_rows // block_rows)
        scores = []
        for index in range(n_blocks):
            # The last block reaches back, so that every block is the same compiled program.
            start_row = max(min(index * block_rows, n_rows - block_rows), 0)
            rows = slice(start_row, start_row + block_rows)
            found = block(parameters, x[rows], None if y is None else y[rows], tf.stack([seed, index]))
            scores.append(found[index * block_rows - start_row :])
        return tf.concat(scores, axis=0)

    return score


def _joined(decoder: Parameters, encoder: Parameters) -> dict[str, tf.Tensor]:
    return {_DECODER + name: value for name, value in decoder.items()} | {
        _ENCODER + name: value for name, value in encoder.items()
    }


def _part(parameters: Parameters, prefix: str) -> dict[str, tf.Tensor]:
    return {name.removeprefix(prefix): value for name, value in parameters.items() if name.startswith(prefix)}
