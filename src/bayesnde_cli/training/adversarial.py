"""The paper's warm start (appendix S2): decoder and encoder against two discriminators.

    L_EGM = sum over terms of weight * term          minimised over decoder G and encoder E
    L_D   = the discriminators' least-squares loss   minimised over D_x and D_z

One step moves the discriminators, then decoder and encoder, each on a batch of its own."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import tensorflow as tf

from bayesnde_cli.model import backend, coders
from bayesnde_cli.model.coders import Decoder, Encoder, Networks
from bayesnde_cli.model.layers import Parameters, Statistics
from bayesnde_cli.model.networks import DiscriminatorSpec
from bayesnde_cli.rng import derive_seed
from bayesnde_cli.settings.stage_settings import WarmstartSettings
from bayesnde_cli.training import losses as terms
from bayesnde_cli.training import objectives
from bayesnde_cli.training.objectives import AdamState, Data, Losses, Objective, Pace, State

_BETAS = (0.5, 0.9)  # of Adam, the paper's


class Critics(NamedTuple):
    """The discriminators of rows and of latents."""

    x: DiscriminatorSpec
    z: DiscriminatorSpec


class CriticState(NamedTuple):
    """Weights of the discriminators, under `discriminator_x/` and `discriminator_z/`, and their optimizer."""

    parameters: dict[str, tf.Tensor]
    optimizer: AdamState


class _Batches(NamedTuple):
    data: Data
    rows: tf.Tensor  # (two for each step, batch) int32, row indices
    seeds: tf.Tensor  # (two for each step, 2)


def critics_for(networks: Networks) -> Critics:
    """The paper's discriminators for these networks."""
    decoder, encoder = networks.decoder, networks.encoder
    if decoder.image is not None:
        return Critics(coders.of_images(decoder.image, decoder.n_classes), coders.of_latents_of_images(encoder.n_out))
    return Critics(*(DiscriminatorSpec(spec.n_out, spec.n_classes) for spec in (decoder, encoder)))


def adversarial_objective(
    networks: Networks, settings: WarmstartSettings, pace: Pace, critics: Critics | None = None
) -> Objective:
    """L_EGM. Losses: every term of weight above 0 without its weight, `loss`, `discriminator_x`, `discriminator_z`.

    A term of weight 0 is not computed. A discriminator whose adversarial term has weight 0 rests, and has no loss.
    """
    critics = critics or critics_for(networks)
    weights = {name: getattr(settings, f"{name}_weight") for name in TERMS}
    weights = {name: weight for name, weight in weights.items() if weight}
    spaces = [space for space in ("x", "z") if f"adversarial_{space}" in weights]
    average_steps = settings.average_epochs * pace.n_rows / pace.batch_rows
    optimizer = objectives.Optimizer(average_steps, _BETAS, max_norm=None)
    seed = settings.seed
    assert seed is not None
    slicing_seed = derive_seed(seed, settings.stage, "slicing")

    def start(parameters: Parameters, data: Data) -> State:
        critic_seed = derive_seed(seed, settings.stage, "discriminators")
        named = {"discriminator_x": critics.x, "discriminator_z": critics.z}
        both = coders.merge({name: coders.initial_parameters(spec, critic_seed, name) for name, spec in named.items()})
        return objectives.start_state(parameters)._replace(extra=CriticState(both, objectives.start_adam(both)))

    def open_round(state: State, data: Data, seed: tf.Tensor) -> tuple[State, _Batches]:
        n_batches = 2 * pace.steps_per_round
        row_seed, noise_seed = tf.unstack(tf.random.split(tf.stack([seed, state.round]), 2))
        rows = row_batches(data[0].shape[0], pace.batch_rows, n_batches=n_batches, seed=row_seed)
        return state, _Batches(data, rows, tf.random.split(noise_seed, n_batches))

    def batch_of(state: State, batches: _Batches, index: tf.Tensor, seen: dict[str, Statistics]) -> _Batch:
        x, y = objectives.take_rows(batches.data, tf.gather(batches.rows, index))
        judges = {space: coders.part_of(state.extra.parameters, f"discriminator_{space}") for space in "xz"}
        return _Batch(
            coders.decoder_of(networks.decoder, state.parameters, seen["decoder"]),
            coders.encoder_of(networks.encoder, state.parameters, seen["encoder"]),
            lambda rows: coders.discriminate(critics.x, judges["x"], rows, y),
            lambda latents: coders.discriminate(critics.z, judges["z"], latents, y if critics.z.n_classes else None),
            x,
            y,
            tf.gather(batches.seeds, index),
            slicing_seed,
        )

    def move_critics(state: State, batches: _Batches, index: tf.Tensor) -> tuple[State, Losses]:
        if not spaces:
            return state, {}
        before, adam = state.extra
        with tf.GradientTape() as tape:
            tape.watch(before)
            batch = batch_of(state, batches, index, coders.no_statistics())
            losses = {f"discriminator_{space}": _CRITIC_TERMS[space](batch) for space in spaces}
            total = tf.add_n(list(losses.values()))
        moved = optimizer.adam(before, objectives.gradients_of(tape, total, before), adam, settings.learning_rate)
        return state._replace(extra=CriticState(*moved)), losses

    def move_autoencoder(state: State, batches: _Batches, index: tf.Tensor) -> tuple[State, Losses]:
        seen = coders.no_statistics()
        with tf.GradientTape() as tape:
            tape.watch(state.parameters)
            batch = batch_of(state, batches, index, seen)
            losses = {name: TERMS[name](batch) for name in weights}
            total = tf.add_n([weight * losses[name] for name, weight in weights.items()])
        gradients = objectives.gradients_of(tape, total, state.parameters)
        moved = optimizer.move(state, gradients, settings.learning_rate, coders.merge(seen))
        return moved, losses | {"loss": total}

    def step(state: State, batches: _Batches, index: tf.Tensor) -> tuple[State, Losses]:
        state, critic_losses = move_critics(state, batches, 2 * index)
        state, losses = move_autoencoder(state, batches, 2 * index + 1)
        return state, critic_losses | losses

    loss_names = [*(f"discriminator_{space}" for space in spaces), *weights, "loss"]
    return Objective(loss_names, open_round, step, start=start)


def row_batches(n_rows: int, batch_rows: int, *, n_batches: int, seed: tf.Tensor) -> tf.Tensor:
    """Row indices of each batch: the rows are shuffled, cut into whole batches, shuffled again, and so on.

    A batch has no row twice. (n_batches or a few more, batch) int32.
    """
    n_whole = n_rows // batch_rows
    n_shuffles = -(-n_batches // n_whole)
    order = tf.argsort(backend.uniform([n_shuffles, n_rows], seed), axis=1)
    return tf.reshape(order[:, : n_whole * batch_rows], [n_shuffles * n_whole, batch_rows])


# Compared by identity, as the networks in it are.
@dataclass(frozen=True, eq=False)
class _Batch:
    """A batch and what the networks make of it; each part is computed once, when a term first needs it."""

    decoder: Decoder
    encoder: Encoder
    score_x: Callable[[tf.Tensor], tf.Tensor]
    score_z: Callable[[tf.Tensor], tf.Tensor]
    x: tf.Tensor  # (batch, p)
    y: tf.Tensor | None  # (batch, classes)
    seed: tf.Tensor
    slicing_seed: int

    @cached_property
    def noise(self) -> list[tf.Tensor]:
        """N(0, I) for the prior, for G(z) and for G(E(x)), in one draw: each would be a generator to compile."""
        d, p = self.decoder.spec.n_in, self.decoder.spec.n_out
        return tf.split(backend.normal([self.x.shape[0], d + 2 * p], self.seed), [d, p, p], axis=1)

    @property
    def z(self) -> tf.Tensor:
        """Draws from the prior N(0, I). (batch, d)."""
        return self.noise[0]

    @cached_property
    def fake_moments(self) -> tuple[tf.Tensor, ...]:
        """Mean and variance of the decoder at the draws from the prior, under the classes of the batch. (batch, p)."""
        return self.decoder(self.z, self.y)

    @cached_property
    def fake(self) -> tf.Tensor:
        """G(z). (batch, p)."""
        return _draw(self.fake_moments, self.noise[1])

    @cached_property
    def code(self) -> tf.Tensor:
        """E(x): the encoder's mean; its s.d. has no part in the warm start. (batch, d)."""
        return self.encoder(self.x, self.y).mean

    @cached_property
    def rebuilt(self) -> tf.Tensor:
        """G(E(x)). (batch, p)."""
        return _draw(self.decoder(self.code, self.y), self.noise[2])


def _draw(moments: tuple[tf.Tensor, ...], noise: tf.Tensor) -> tf.Tensor:
    mean, variance, *_ = moments
    return mean + tf.sqrt(variance) * noise


_Term = Callable[[_Batch], tf.Tensor]

# The two halves of L_D by space, and the terms of L_EGM by name.
_CRITIC_TERMS: dict[str, _Term] = {
    "x": lambda batch: terms.discriminator_loss(batch.score_x(batch.x), batch.score_x(batch.fake)),
    "z": lambda batch: terms.discriminator_loss(batch.score_z(batch.z), batch.score_z(batch.code)),
}
TERMS: dict[str, _Term] = {
    "adversarial_x": lambda batch: terms.adversarial_loss(batch.score_x(batch.fake)),
    "adversarial_z": lambda batch: terms.adversarial_loss(batch.score_z(batch.code)),
    "reconstruction_x": lambda batch: terms.reconstruction_loss(batch.x, batch.rebuilt, n_columns=batch.x.shape[1]),
    "reconstruction_z": lambda batch: terms.reconstruction_loss(
        batch.z, batch.encoder(batch.fake, batch.y).mean, n_columns=batch.x.shape[1]
    ),
    "correlation": lambda batch: terms.correlation_loss(batch.x, batch.rebuilt),
    "marginal_mmd": lambda batch: terms.marginal_mmd(batch.x, batch.fake),
    "joint_mmd": lambda batch: terms.joint_mmd(batch.x, batch.fake),
    "sliced_wasserstein": lambda batch: terms.sliced_wasserstein(
        batch.x, batch.fake, terms.slicing_directions(batch.x.shape[1], seed=batch.slicing_seed)
    ),
    "log_variance": lambda batch: terms.log_variance_loss(batch.fake_moments[1]),
    "squared_variance": lambda batch: terms.squared_variance_loss(batch.fake_moments[1]),
}
