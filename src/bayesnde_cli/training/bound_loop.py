"""Maximum likelihood by lower bounds of log p(x): the evidence lower bound, then the importance-weighted bound.

A round, an epoch or an equal part of one, is one compiled call: rows are shuffled, batches drawn, steps made and losses
averaged without Python. The loop's state is tensors in dictionaries and nothing else; seeds are addresses (run, epoch,
step), so a round that is run again from its state gives the same state.
"""

from collections.abc import Callable
from dataclasses import dataclass

import tensorflow as tf

from bayesnde_cli.model import random_numbers
from bayesnde_cli.model.decoder import Decoder
from bayesnde_cli.model.encoder import Encoder
from bayesnde_cli.model.likelihood import log_likelihood
from bayesnde_cli.model.networks import NetworkSpec
from bayesnde_cli.model.parameters import global_norm
from bayesnde_cli.training.autoencoder_state import AutoencoderState
from bayesnde_cli.training.bounds import (
    doubly_reparameterised_loss,
    elbo,
    gaussian_kl,
    log_importance_weights,
)
from bayesnde_cli.training.joint_parameters import decoder_of, encoder_of, joined, no_statistics, with_statistics
from bayesnde_cli.training.optimizers import SCHEDULES, adam_step, averaged, clipped


@dataclass(frozen=True)
class BoundSettings:
    """How a round is run. One draw is the evidence lower bound, more the importance-weighted bound."""

    batch_rows: int = 256
    n_draws: int = 1
    learning_rate: float = 1e-3
    schedule: str = "constant"  # of the learning rate, over `n_epochs`
    n_epochs: int = 1
    weight_decay: float = 0.0
    kl_warm_up_epochs: int = 0  # the weight of the KL rises from 0 to 1 over these epochs
    max_norm: float = 10.0  # of the gradient: a rare batch with an outlier must not undo an epoch
    average_epochs: float = 2.0  # memory of the running mean of the weights, which is what is scored
    rounds_per_epoch: int = 1
    # Batch normalisation by the batch at hand, as in the warm start; else by frozen statistics, as in refinement.
    has_batch_statistics: bool = False


Losses = dict[str, tf.Tensor]
RoundRunner = Callable[[AutoencoderState, tf.Tensor, "tf.Tensor | None", tf.Tensor], tuple[AutoencoderState, Losses]]


def round_runner(decoder: NetworkSpec, encoder: NetworkSpec, settings: BoundSettings) -> RoundRunner:
    """A compiled function (state, x, y, seed) -> (state, losses): the next part of an epoch over the rows.

    x (rows, p) float32, y one-hot (rows, classes) or None, seed int32 scalar. Rows beyond a whole number of batches
    and rounds wait for another epoch's shuffle. Losses are means over the steps of the round, which ends with the first
    one whose loss is not finite:

        loss                               minus the bound
        negative_log_likelihood, kl        the parts of the evidence lower bound
        effective_draws                    of the importance-weighted bound: (sum w)^2 / sum w^2, the mean over rows
        first_bad_step                     int32: the step whose loss or weights are not finite, -1 if there is none
    """
    terms_of = _evidence_terms if settings.n_draws == 1 else _weighted_terms

    @tf.function(jit_compile=True, autograph=False)
    def run(
        state: AutoencoderState, x: tf.Tensor, y: tf.Tensor | None, seed: tf.Tensor
    ) -> tuple[AutoencoderState, Losses]:
        n_rows, batch = x.shape[0], min(settings.batch_rows, x.shape[0])
        n_steps = n_rows // batch // settings.rounds_per_epoch
        steps_per_epoch = n_steps * settings.rounds_per_epoch
        decay = 1.0 - 1.0 / max(1.0, settings.average_epochs * steps_per_epoch)
        epoch, part = state.round // settings.rounds_per_epoch, state.round % settings.rounds_per_epoch
        address = tf.stack([seed, epoch])
        order = tf.argsort(random_numbers.uniform([n_rows], address))[: steps_per_epoch * batch]
        batches = tf.reshape(order, [steps_per_epoch, batch])
        kl_weight = tf.minimum(1.0, tf.cast(epoch + 1, tf.float32) / float(max(settings.kl_warm_up_epochs, 1)))

        def step(index, parameters, optimizer, average, totals, _):  # type: ignore[no-untyped-def]
            index_in_epoch = part * n_steps + index
            # Not a slice: XLA would take its place for a constant, and compile every round anew.
            rows = tf.gather(batches, index_in_epoch)
            noise_seed = tf.random.experimental.stateless_fold_in(address, index_in_epoch + 1)
            noise = random_numbers.normal([batch, settings.n_draws, encoder.n_out], noise_seed)
            with tf.GradientTape() as tape:
                tape.watch(parameters)
                seen = no_statistics()
                learning = seen if settings.has_batch_statistics else {}
                model = decoder_of(decoder, parameters, learning.get("decoder"))
                proposer = encoder_of(encoder, parameters, learning.get("encoder"))
                x_batch, y_batch = tf.gather(x, rows), None if y is None else tf.gather(y, rows)
                terms = terms_of(model, proposer, x_batch, y_batch, noise, kl_weight)
            # Statistics of batches have no gradient.
            gradients = tape.gradient(terms["loss"], parameters, unconnected_gradients=tf.UnconnectedGradients.ZERO)
            gradients, _ = clipped(gradients, max_norm=settings.max_norm)
            time = tf.cast(epoch, tf.float32) + tf.cast(index_in_epoch, tf.float32) / float(steps_per_epoch)
            rate = settings.learning_rate * SCHEDULES[settings.schedule](time, float(settings.n_epochs))
            moved, optimizer = adam_step(
                gradients, optimizer, parameters,
                learning_rate=rate, beta_1=0.9, beta_2=0.99, epsilon=1e-8, weight_decay=settings.weight_decay,
            )  # fmt: skip
            parameters = with_statistics(moved, parameters, joined(seen))
            average = averaged(average, parameters, decay=decay)
            totals = {name: totals[name] + term for name, term in terms.items()}
            bad_step = tf.where(tf.math.is_finite(terms["loss"]), -1, index)
            return index + 1, parameters, optimizer, average, totals, bad_step

        totals = dict.fromkeys(_TERMS[terms_of], tf.constant(0.0))
        n_done, parameters, optimizer, average, totals, bad_step = tf.while_loop(
            lambda index, *rest: (index < n_steps) & (rest[-1] < 0),
            step,
            (tf.constant(0), state.parameters, state.optimizer, state.average, totals, tf.constant(-1)),
        )
        is_sound = tf.math.is_finite(global_norm(parameters))
        bad_step = tf.where(is_sound | (bad_step >= 0), bad_step, n_done - 1)
        losses = {name: total / tf.cast(n_done, tf.float32) for name, total in totals.items()}
        state = AutoencoderState(parameters, optimizer, average, state.round + 1)
        return state, losses | {"first_bad_step": bad_step}

    return run


def _evidence_terms(
    decoder: Decoder, encoder: Encoder, x: tf.Tensor, y: tf.Tensor | None, noise: tf.Tensor, kl_weight: tf.Tensor
) -> Losses:
    proposal = encoder(x, y)
    likelihood = log_likelihood(x, *decoder(proposal.draw(noise[:, 0]), y))
    kl = gaussian_kl(proposal.mean, tf.math.log(proposal.sd))
    return {
        "loss": -tf.reduce_mean(elbo(likelihood, kl, kl_weight)),
        "negative_log_likelihood": -tf.reduce_mean(likelihood),
        "kl": tf.reduce_mean(kl),
    }


def _weighted_terms(
    decoder: Decoder, encoder: Encoder, x: tf.Tensor, y: tf.Tensor | None, noise: tf.Tensor, kl_weight: tf.Tensor
) -> Losses:
    mean, sd = encoder(x, y)
    z = mean[:, None, :] + sd[:, None, :] * noise  # (batch, draws, d)
    fixed = tf.stop_gradient(mean), tf.stop_gradient(tf.math.log(sd))
    y_draws = None if y is None else y[:, None, :]
    seen = []

    def log_weight(draws: tf.Tensor) -> tf.Tensor:
        likelihood = log_likelihood(x[:, None, :], *decoder(draws, y_draws))  # (batch, draws)
        seen.append(log_importance_weights(likelihood, draws, *fixed))
        return seen[-1]

    loss = doubly_reparameterised_loss(z, log_weight)
    share = tf.nn.softmax(tf.stop_gradient(seen[0]), axis=1)
    return {"loss": loss, "effective_draws": tf.reduce_mean(1.0 / tf.reduce_sum(tf.square(share), axis=1))}


_TERMS = {
    _evidence_terms: ("loss", "negative_log_likelihood", "kl"),
    _weighted_terms: ("loss", "effective_draws"),
}
