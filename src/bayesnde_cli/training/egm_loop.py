"""The warm start of the paper (appendix S2): decoder and encoder against two discriminators.

    L_EGM = sum over terms of weight * term          minimised over decoder G and encoder E
    L_D   = the discriminators' least-squares loss   minimised over D_x and D_z

One step is one step of the discriminators, then one of decoder and encoder, each on a batch of its own. A round is
many steps in one compiled call. As in `bound_loop`, the state is tensors in dictionaries and nothing else, and seeds
are addresses (run, round, step): a round that is run again from its state gives the same state.
"""

from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import NamedTuple

import tensorflow as tf

from bayesnde_cli.model import discriminator, random_numbers
from bayesnde_cli.model.decoder import Decoder
from bayesnde_cli.model.discriminator import DiscriminatorSpec
from bayesnde_cli.model.encoder import Encoder
from bayesnde_cli.model.image_layers import Statistics
from bayesnde_cli.model.networks import NetworkSpec
from bayesnde_cli.model.parameters import Parameters, global_norm
from bayesnde_cli.training.joint_parameters import (
    decoder_of,
    encoder_of,
    initial_autoencoder,
    joined,
    no_statistics,
    part_of,
    with_statistics,
)
from bayesnde_cli.training.losses import (
    adversarial_loss,
    correlation_loss,
    discriminator_loss,
    log_variance_loss,
    reconstruction_loss,
    squared_variance_loss,
)
from bayesnde_cli.training.mmd import joint_mmd, marginal_mmd
from bayesnde_cli.training.optimizers import AdamState, adam_start, adam_step, averaged
from bayesnde_cli.training.sliced_wasserstein import sliced_wasserstein, slicing_directions

# Adam's guard against division by zero (Kingma and Ba 2015); the paper names none.
ADAM_EPSILON = 1e-8


@dataclass(frozen=True)
class EgmWeights:
    """The lambdas of L_EGM; a term of weight 0 is not computed.

    Defaults: what the paper's five real data sets share. Where it sets a weight for each data set (correlation, log
    variance), the value of those that use the term.
    """

    adversarial_x: float = 1.0
    adversarial_z: float = 1.0
    reconstruction_x: float = 3.0
    reconstruction_z: float = 1.0
    correlation: float = 0.3
    marginal_mmd: float = 0.0
    joint_mmd: float = 0.0
    sliced_wasserstein: float = 0.0
    log_variance: float = 0.01
    squared_variance: float = 0.0  # alpha of the paper's table

    def __post_init__(self) -> None:
        if min(asdict(self).values()) < 0.0 or not self.in_use:
            raise ValueError(f"expected weights of at least 0, and one above it, got {self}")

    @property
    def in_use(self) -> dict[str, float]:
        """The weights that are not 0."""
        return {name: weight for name, weight in asdict(self).items() if weight != 0.0}


@dataclass(frozen=True)
class EgmSettings:
    """How a round is run. Optimizer and batch are the paper's."""

    weights: EgmWeights
    batch_rows: int = 256
    steps_per_round: int = 100
    learning_rate: float = 1e-3
    beta_1: float = 0.5
    beta_2: float = 0.9
    average_steps: float = 0.0  # memory of the running mean of the weights; 0: the mean is the weights themselves
    slicing_seed: int = field(kw_only=True)  # of the directions of the sliced Wasserstein term, fixed for a whole run


class EgmState(NamedTuple):
    """Everything that a round changes."""

    parameters: dict[str, tf.Tensor]  # under `decoder/` and `encoder/`
    discriminators: dict[str, tf.Tensor]  # under `discriminator_x/` and `discriminator_z/`
    optimizer: AdamState
    discriminator_optimizer: AdamState
    average: dict[str, tf.Tensor]  # running mean of the parameters of decoder and encoder
    round: tf.Tensor  # int32 scalar, rounds done


RoundRunner = Callable[[EgmState, tf.Tensor, "tf.Tensor | None", tf.Tensor], "tuple[EgmState, dict[str, tf.Tensor]]"]


def start(
    decoder: NetworkSpec,
    encoder: NetworkSpec,
    discriminator_x: DiscriminatorSpec,
    discriminator_z: DiscriminatorSpec,
    seed: int,
    parameters: Parameters | None = None,
) -> EgmState:
    """The state before the first round; from given weights of decoder and encoder, or from those of the seed."""
    parameters = dict(parameters) if parameters else initial_autoencoder(decoder, encoder, seed)
    specs = {"discriminator_x": discriminator_x, "discriminator_z": discriminator_z}
    both = joined({name: discriminator.initial_parameters(spec, seed, name) for name, spec in specs.items()})
    return EgmState(
        parameters, both, adam_start(parameters), adam_start(both), dict(parameters), tf.constant(0, tf.int32)
    )


def round_runner(
    decoder: NetworkSpec,
    encoder: NetworkSpec,
    discriminator_x: DiscriminatorSpec,
    discriminator_z: DiscriminatorSpec,
    settings: EgmSettings,
) -> RoundRunner:
    """A compiled function (state, x, y, seed) -> (state, losses): `steps_per_round` steps on random batches.

    x (rows, p) float32, y one-hot (rows, classes) or None, seed int32 scalar. The losses are float32 scalars by name,
    each a mean over the steps: `discriminator_x` and `discriminator_z`, every term of the weights in use without its
    weight, and `loss`, the weighted total. A discriminator whose adversarial term has weight 0 rests, and has no loss.

    `first_bad_step` (int32) is the index of the first step whose loss, the discriminators' or the total, was not
    finite, else -1. The round ends with that step, so the losses that are not finite are those that failed first; the
    state is then of no use. Weights that are not finite after the last step count as a failure of that step.
    """
    weights = settings.weights.in_use
    spaces = [space for space in ("x", "z") if f"adversarial_{space}" in weights]
    decay = 1.0 - 1.0 / max(1.0, settings.average_steps)

    def batch_of(
        state: EgmState, seen: dict[str, Statistics], x: tf.Tensor, y: tf.Tensor | None, seed: tf.Tensor
    ) -> _Batch:
        parameters_x, parameters_z = (part_of(state.discriminators, f"discriminator_{space}") for space in "xz")
        return _Batch(
            decoder_of(decoder, state.parameters, seen["decoder"]),
            encoder_of(encoder, state.parameters, seen["encoder"]),
            lambda rows: discriminator.apply(discriminator_x, parameters_x, rows, y),
            lambda latents: discriminator.apply(
                discriminator_z, parameters_z, latents, y if discriminator_z.n_classes else None
            ),
            x, y, seed,
        )  # fmt: skip

    def adam(gradients: Parameters, optimizer: AdamState, parameters: Parameters):  # type: ignore[no-untyped-def]
        return adam_step(
            gradients, optimizer, parameters,
            learning_rate=settings.learning_rate, beta_1=settings.beta_1, beta_2=settings.beta_2, epsilon=ADAM_EPSILON,
        )  # fmt: skip

    def discriminator_step(state: EgmState, *batch: tf.Tensor) -> tuple[EgmState, dict[str, tf.Tensor]]:
        if not spaces:
            return state, {}
        with tf.GradientTape() as tape:
            tape.watch(state.discriminators)
            terms = _discriminator_terms(batch_of(state, no_statistics(), *batch))
            losses = {f"discriminator_{space}": terms[space]() for space in spaces}
            total = tf.add_n(list(losses.values()))
        gradients = _gradients(tape, total, state.discriminators)
        moved, optimizer = adam(gradients, state.discriminator_optimizer, state.discriminators)
        return state._replace(discriminators=moved, discriminator_optimizer=optimizer), losses

    def autoencoder_step(state: EgmState, *batch: tf.Tensor) -> tuple[EgmState, dict[str, tf.Tensor]]:
        seen = no_statistics()
        with tf.GradientTape() as tape:
            tape.watch(state.parameters)
            terms = _terms(batch_of(state, seen, *batch), settings.slicing_seed)
            losses = {name: terms[name]() for name in weights}
            total = tf.add_n([weight * losses[name] for name, weight in weights.items()])
        gradients = _gradients(tape, total, state.parameters)
        moved, optimizer = adam(gradients, state.optimizer, state.parameters)
        moved = with_statistics(moved, state.parameters, joined(seen))
        average = averaged(state.average, moved, decay=decay) if decay else moved
        return state._replace(parameters=moved, optimizer=optimizer, average=average), losses | {"loss": total}

    # Nothing here is for AutoGraph to translate: the loops are written as tensors' own.
    @tf.function(jit_compile=True, autograph=False)
    def run(
        state: EgmState, x: tf.Tensor, y: tf.Tensor | None, seed: tf.Tensor
    ) -> tuple[EgmState, dict[str, tf.Tensor]]:
        n_batches = 2 * settings.steps_per_round
        row_seed, noise_seed = tf.unstack(tf.random.split(tf.stack([seed, state.round]), 2))
        batches = row_batches(x.shape[0], settings.batch_rows, n_batches=n_batches, seed=row_seed)
        seeds = tf.random.split(noise_seed, n_batches)

        def batch(index: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor | None, tf.Tensor]:
            rows = tf.gather(batches, index)
            return tf.gather(x, rows), None if y is None else tf.gather(y, rows), tf.gather(seeds, index)

        def step(index, state, totals, first_bad):  # type: ignore[no-untyped-def]
            state, first = discriminator_step(state, *batch(2 * index))
            state, second = autoencoder_step(state, *batch(2 * index + 1))
            losses = first | second
            is_bad = ~tf.reduce_all(tf.math.is_finite(list(losses.values())))
            totals = {name: totals[name] + loss for name, loss in losses.items()}
            return index + 1, state, totals, tf.where(is_bad, index, first_bad)

        names = [*(f"discriminator_{space}" for space in spaces), *weights, "loss"]
        n_done, state, totals, first_bad = tf.while_loop(
            lambda index, state, totals, first_bad: (index < settings.steps_per_round) & (first_bad < 0),
            step,
            (tf.constant(0), state, dict.fromkeys(names, tf.constant(0.0)), tf.constant(-1)),
        )
        is_sound = tf.math.is_finite(global_norm(state.parameters) + global_norm(state.discriminators))
        first_bad = tf.where(is_sound | (first_bad >= 0), first_bad, n_done - 1)
        losses = {name: total / tf.cast(n_done, tf.float32) for name, total in totals.items()}
        return state._replace(round=state.round + 1), losses | {"first_bad_step": first_bad}

    return run


def row_batches(n_rows: int, batch_rows: int, *, n_batches: int, seed: tf.Tensor) -> tf.Tensor:
    """The row indices of each batch: the rows are shuffled, cut into whole batches, shuffled anew, and so on.

    No row comes twice in a batch. (n_batches or a few more, batch) int32.
    """
    batch = min(batch_rows, n_rows)
    n_whole = n_rows // batch
    n_shuffles = -(-n_batches // n_whole)
    order = tf.argsort(random_numbers.uniform([n_shuffles, n_rows], seed), axis=1)
    return tf.reshape(order[:, : n_whole * batch], [n_shuffles * n_whole, batch])


# Compared by identity, as the networks in it are.
@dataclass(frozen=True, eq=False)
class _Batch:
    """A batch and what the networks make of it: each part when a term first asks for it, and then once."""

    decoder: Decoder
    encoder: Encoder
    score_x: Callable[[tf.Tensor], tf.Tensor]
    score_z: Callable[[tf.Tensor], tf.Tensor]
    x: tf.Tensor  # (batch, p)
    y: tf.Tensor | None  # (batch, classes)
    seed: tf.Tensor  # this batch's alone

    @cached_property
    def noise(self) -> list[tf.Tensor]:
        """N(0, I) for the prior, for G(z) and for G(E(x)): one draw, as each would be a generator to compile."""
        d, p = self.decoder.spec.n_in, self.decoder.spec.n_out
        return tf.split(random_numbers.normal([self.x.shape[0], d + 2 * p], self.seed), [d, p, p], axis=1)

    @cached_property
    def z(self) -> tf.Tensor:
        """Draws of the prior N(0, I). (batch, d)."""
        return self.noise[0]

    @cached_property
    def fake_moments(self) -> tuple[tf.Tensor, tf.Tensor]:
        """Mean and variance of the decoder at the draws of the prior, under the conditions of the batch. (batch, p)."""
        mean, variance, *_ = self.decoder(self.z, self.y)
        return mean, variance

    @cached_property
    def fake(self) -> tf.Tensor:
        """G(z). (batch, p)."""
        return _drawn(*self.fake_moments, self.noise[1])

    @cached_property
    def code(self) -> tf.Tensor:
        """E(x): the encoder's mean, its s.d. has no part in the warm start. (batch, d)."""
        return self.encoder(self.x, self.y).mean

    @cached_property
    def rebuilt(self) -> tf.Tensor:
        """G(E(x)). (batch, p)."""
        mean, variance, *_ = self.decoder(self.code, self.y)
        return _drawn(mean, variance, self.noise[2])

    @cached_property
    def recoded(self) -> tf.Tensor:
        """E(G(z)). (batch, d)."""
        return self.encoder(self.fake, self.y).mean


def _drawn(mean: tf.Tensor, variance: tf.Tensor, noise: tf.Tensor) -> tf.Tensor:
    """The paper's stochastic generator, mean + sd * noise."""
    return mean + tf.sqrt(variance) * noise


def _discriminator_terms(batch: _Batch) -> dict[str, Callable[[], tf.Tensor]]:
    """The two halves of L_D, by the space that a discriminator looks at."""
    return {
        "x": lambda: discriminator_loss(batch.score_x(batch.x), batch.score_x(batch.fake)),
        "z": lambda: discriminator_loss(batch.score_z(batch.z), batch.score_z(batch.code)),
    }


def _terms(batch: _Batch, slicing_seed: int) -> dict[str, Callable[[], tf.Tensor]]:
    """The terms of L_EGM by the names of their weights."""
    p = batch.x.shape[1]
    return {
        "adversarial_x": lambda: adversarial_loss(batch.score_x(batch.fake)),
        "adversarial_z": lambda: adversarial_loss(batch.score_z(batch.code)),
        "reconstruction_x": lambda: reconstruction_loss(batch.x, batch.rebuilt, n_columns=p),
        "reconstruction_z": lambda: reconstruction_loss(batch.z, batch.recoded, n_columns=p),
        "correlation": lambda: correlation_loss(batch.x, batch.rebuilt),
        "marginal_mmd": lambda: marginal_mmd(batch.x, batch.fake),
        "joint_mmd": lambda: joint_mmd(batch.x, batch.fake),
        "sliced_wasserstein": lambda: sliced_wasserstein(batch.x, batch.fake, slicing_directions(p, seed=slicing_seed)),
        "log_variance": lambda: log_variance_loss(batch.fake_moments[1]),
        "squared_variance": lambda: squared_variance_loss(batch.fake_moments[1]),
    }


def _gradients(tape: tf.GradientTape, loss: tf.Tensor, parameters: Parameters) -> dict[str, tf.Tensor]:
    """The gradient of every parameter: 0 for those that the loss does not depend on, as the encoder's s.d. head."""
    return tape.gradient(loss, parameters, unconnected_gradients=tf.UnconnectedGradients.ZERO)
