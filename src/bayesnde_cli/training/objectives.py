"""Objectives: what a training step minimises, and how it moves the weights. Here are those of the default training.

evidence     log p(x|z) - KL(q(z|x) || p(z)), one draw of z per row
importance   log of the mean weight of several draws (Burda et al. 2016), with the gradients of Tucker et al. (2019)
columns      rows whose cells are drawn independently, with latent j for column j

The paper's own objectives are in `adversarial` and `latents`."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
from scipy.special import ndtri

from bayesnde_cli.model import backend
from bayesnde_cli.model.coders import Networks, decoder_of, encoder_of, merge, no_statistics, with_statistics
from bayesnde_cli.model.layers import Parameters, global_norm
from bayesnde_cli.model.likelihood import log_likelihood
from bayesnde_cli.settings.stage_settings import RefineSettings, TrainingSettings, WarmstartSettings

Losses = dict[str, tf.Tensor]
# What a round reads: features (rows, p) float32 with one-hot classes (rows, classes) or None; or an objective's own.
Data = Any

# Adam's guard against division by zero (Kingma and Ba 2015).
_EPSILON = 1e-8
# Largest norm of a gradient: a rare batch with an outlier must not undo an epoch.
MAX_NORM = 10.0
# Noise in the latents of the column start: where a column jumps between two modes, the decoder must be able to follow.
_COLUMN_BLUR = 0.2
# Steps in the running mean of the weights of the column start, and their largest share of all its steps.
_COLUMN_AVERAGE_STEPS, _COLUMN_AVERAGE_SHARE = 100.0, 0.1


class AdamState(NamedTuple):
    """Number of steps, and the running means of the gradients and of their squares."""

    step: tf.Tensor  # int32 scalar, or (rows, 1) for latents (rows, d), whose rows are visited unequally often
    first: dict[str, tf.Tensor]
    second: dict[str, tf.Tensor]


class State(NamedTuple):
    """Everything that a round changes."""

    parameters: dict[str, tf.Tensor]  # of decoder and encoder, under `decoder/` and `encoder/`
    optimizer: AdamState
    average: dict[str, tf.Tensor]  # running mean of the parameters: the weights that are checked and kept
    round: tf.Tensor  # int32 scalar, finished rounds
    extra: Any = ()  # tensors that only one objective needs


class Optimizer(NamedTuple):
    """Adam with clipped gradients and a running mean of the weights; AdamW with weight decay."""

    average_steps: float = 1.0  # memory of the running mean
    betas: tuple[float, float] = (0.9, 0.99)
    weight_decay: float = 0.0
    max_norm: float | None = MAX_NORM  # of all gradients together; None: unlimited

    def adam(
        self, parameters: Parameters, gradients: Parameters, state: AdamState, learning_rate: tf.Tensor | float
    ) -> tuple[dict[str, tf.Tensor], AdamState]:
        """The parameters and the state after one step (Kingma and Ba 2015, algorithm 1; Loshchilov and Hutter 2019)."""
        if self.max_norm is not None:
            factor = self.max_norm / tf.maximum(global_norm(gradients), self.max_norm)
            gradients = {name: factor * gradient for name, gradient in gradients.items()}
        step = state.step + 1
        beta_1, beta_2 = self.betas
        first, second, moved = {}, {}, {}
        for name, value in parameters.items():
            gradient = gradients[name]
            first[name] = beta_1 * state.first[name] + (1.0 - beta_1) * gradient
            second[name] = beta_2 * state.second[name] + (1.0 - beta_2) * tf.square(gradient)
            # 1 - beta^step, without the cancellation that costs float32 half its digits in the first steps.
            corrections = [-tf.math.expm1(tf.cast(step, value.dtype) * math.log(beta)) for beta in self.betas]
            root = tf.sqrt(second[name] / corrections[1])
            mean = first[name] / corrections[0]
            moved[name] = value - learning_rate * (mean / (root + _EPSILON) + self.weight_decay * value)
        return moved, AdamState(step, first, second)

    def move(
        self, state: State, gradients: Parameters, learning_rate: tf.Tensor | float, seen: Parameters | None = None
    ) -> State:
        """The state after one step; `seen` are the statistics of the batch for batch normalisation."""
        moved, adam = self.adam(state.parameters, gradients, state.optimizer, learning_rate)
        moved = with_statistics(moved, state.parameters, seen or {})
        decay = 1.0 - 1.0 / max(1.0, self.average_steps)
        average = {name: value + decay * (state.average[name] - value) for name, value in moved.items()}
        return state._replace(parameters=moved, optimizer=adam, average=average)


def start_adam(parameters: Parameters) -> AdamState:
    """The state of Adam before the first step."""
    zeros = {name: tf.zeros_like(value) for name, value in parameters.items()}
    return AdamState(tf.constant(0, tf.int32), zeros, dict(zeros))


def start_state(parameters: Parameters, _data: Data = None) -> State:
    """The state before the first round, from given weights."""
    return State(dict(parameters), start_adam(parameters), dict(parameters), tf.constant(0, tf.int32))


def schedule_factor(schedule: str, t: tf.Tensor, n_total: tf.Tensor | float) -> tf.Tensor:
    """The factor on the learning rate at time t of n_total, counted from 0.

    decay   (1 + t/10)^-0.6, the paper's for p <= 10 with t in epochs (S3)
    cosine  (1 + cos(pi t / n_total)) / 2: from 1 to 0 at the end, and 0 after it
    """
    t = tf.cast(t, tf.float32)
    if schedule == "decay":
        return tf.pow(1.0 + t / 10.0, -0.6)
    if schedule == "cosine":
        return 0.5 * (1.0 + tf.cos(math.pi * tf.clip_by_value(t / n_total, 0.0, 1.0)))
    return tf.ones_like(t)


def gradients_of(tape: tf.GradientTape, loss: tf.Tensor, parameters: Parameters) -> dict[str, tf.Tensor]:
    """The gradient of every parameter; 0 where the loss does not depend on it, as for statistics of batches."""
    return tape.gradient(loss, parameters, unconnected_gradients=tf.UnconnectedGradients.ZERO)


class Pace(NamedTuple):
    """Number of rows, steps and rounds of a phase."""

    n_rows: int
    batch_rows: int
    steps_per_round: int
    n_rounds: int
    rounds_per_epoch: int | None = None  # None: rounds are not parts of epochs
    step_operations: float = 0.0  # floating-point operations, about

    @property
    def operations(self) -> float:
        return self.n_steps * self.step_operations

    @property
    def n_steps(self) -> int:
        return self.n_rounds * self.steps_per_round

    @property
    def n_epochs(self) -> int:
        return self.n_rounds // (self.rounds_per_epoch or 1)

    @property
    def steps_per_epoch(self) -> int:
        """Optimizer steps in an epoch; rows beyond them wait for the shuffle of another epoch."""
        return self.steps_per_round * (self.rounds_per_epoch or 1)


@dataclass(frozen=True)
class Objective:
    """The functions of one objective. All but `start` and `settle` are traced into one compiled round."""

    loss_names: Sequence[str]
    # (state, data, seed) -> the state as the steps carry it, and the batches with all that is drawn before the steps.
    open_round: Callable[[State, Data, tf.Tensor], tuple[State, Any]]
    # (state, batches, index of the step in the round) -> the next state, and scalar losses by name.
    step: Callable[[State, Any, tf.Tensor], tuple[State, Losses]]
    # (state after the steps, state before the round, batches) -> the state as it is kept between rounds.
    close_round: Callable[[State, State, Any], State] = lambda state, _before, _batches: state
    start: Callable[[Parameters, Data], State] = start_state
    settle: Callable[[State, Data, tf.Tensor], State] | None = None  # before the first round


# Lower bounds of log p(x), with the encoder's Gaussian proposal q(z|x) = N(mean, diag sd^2).


def gaussian_kl(mean: tf.Tensor, log_sd: tf.Tensor) -> tf.Tensor:
    """KL(N(mean, diag sd^2) || N(0, I)) = sum_j (sd_j^2 + mean_j^2 - 1)/2 - log sd_j. (rows, d) twice -> (rows,)."""
    return tf.reduce_sum(0.5 * (tf.exp(2.0 * log_sd) + tf.square(mean) - 1.0) - log_sd, axis=-1)


def log_importance_weights(log_likelihood: tf.Tensor, z: tf.Tensor, mean: tf.Tensor, log_sd: tf.Tensor) -> tf.Tensor:
    """log p(x|z) + log N(z; 0, I) - log q(z|x) of each draw. (rows, draws), (rows, draws, d), (rows, d) twice.

    -> (rows, draws). The factors (2 pi)^(-d/2) of prior and proposal cancel.
    """
    mean, log_sd = mean[:, None, :], log_sd[:, None, :]
    standard = (z - mean) * tf.exp(-log_sd)  # (rows, draws, d)
    return log_likelihood + tf.reduce_sum(0.5 * (tf.square(standard) - tf.square(z)) + log_sd, axis=-1)


def doubly_reparameterised_loss(
    z: tf.Tensor, log_weight: Callable[[tf.Tensor], tf.Tensor]
) -> tuple[tf.Tensor, tf.Tensor]:
    """Minus the mean importance-weighted bound, log mean_k w_k, with the gradients of Tucker et al. (2019), "DReG".

    With w_k the weight of draw k of a row and v_k = w_k / sum_l w_l, the gradients of the bound are

        decoder:  sum_k v_k   d log w_k / d theta                       (that of Burda et al.)
        encoder:  sum_k v_k^2 (d log w_k / d z_k) (d z_k / d phi)       (unbiased too, with less noise)

    The second holds when phi enters log w_k through z_k only. `z` (rows, draws, d) must therefore depend on the
    encoder, z = mean + sd * noise, while `log_weight` maps z to log w (rows, draws) with a *detached* mean and sd. The
    value is exact, the first derivatives are those above. -> loss, log w.
    """
    draws = tf.stop_gradient(z)
    with tf.GradientTape() as tape:
        tape.watch(draws)
        log_w = log_weight(draws)
        share = tf.stop_gradient(tf.nn.softmax(log_w, axis=1))  # v, (rows, draws)
        # The gradient for theta; the one for z below needs the same backward pass, which XLA does once.
        decoder_part = -tf.reduce_mean(tf.reduce_sum(share * log_w, axis=1))
    pull = tf.stop_gradient(tape.gradient(decoder_part, draws))  # -v_k d log w_k / d z_k / rows, (rows, draws, d)
    encoder_part = tf.reduce_sum(share[:, :, None] * pull * z)
    surrogate = decoder_part + encoder_part
    bound = tf.reduce_mean(tf.reduce_logsumexp(log_w, axis=1) - math.log(log_w.shape[1]))
    return tf.stop_gradient(-bound - surrogate) + surrogate, log_w


def kl_warm_up_epochs(settings: WarmstartSettings, pace: Pace) -> int:
    """Epochs over which the weight of the KL rises to 1."""
    return round(settings.kl_warm_up * pace.n_epochs)


def evidence_objective(networks: Networks, settings: WarmstartSettings, pace: Pace) -> Objective:
    """The evidence lower bound. Losses: `loss`, and its parts `negative_log_likelihood` and `kl`.

    Batch normalisation uses the statistics of the batch. The weight of the KL rises from 0 to 1 over the first epochs.
    """
    warm_up = float(max(kl_warm_up_epochs(settings, pace), 1))

    def losses_of(state: State, data: Data, noise: tf.Tensor, epoch: tf.Tensor) -> tuple[Losses, Parameters]:
        (x, y), seen = data, no_statistics()
        decoder = decoder_of(networks.decoder, state.parameters, seen["decoder"])
        proposal = encoder_of(networks.encoder, state.parameters, seen["encoder"])(x, y)
        likelihood = log_likelihood(x, *decoder(proposal.draw(noise[:, 0]), y))
        kl = gaussian_kl(proposal.mean, tf.math.log(proposal.sd))
        kl_weight = tf.minimum(1.0, tf.cast(epoch + 1, tf.float32) / warm_up)
        losses = {
            "loss": -tf.reduce_mean(likelihood - kl_weight * kl),
            "negative_log_likelihood": -tf.reduce_mean(likelihood),
            "kl": tf.reduce_mean(kl),
        }
        return losses, merge(seen)

    functions = _bound_functions(settings, pace, losses_of, (1, networks.encoder.n_out))
    return Objective(("loss", "negative_log_likelihood", "kl"), *functions, start=start_of(pace))


def importance_objective(networks: Networks, settings: RefineSettings, pace: Pace) -> Objective:
    """The importance-weighted bound of `draws` draws. Losses: `loss` and `effective_draws`.

    Batch normalisation uses the frozen statistics of the warm start.
    """

    assert settings.draws is not None

    def losses_of(state: State, data: Data, noise: tf.Tensor, _epoch: tf.Tensor) -> tuple[Losses, Parameters]:
        (x, y), decoder = data, decoder_of(networks.decoder, state.parameters)
        mean, sd = encoder_of(networks.encoder, state.parameters)(x, y)
        z = mean[:, None, :] + sd[:, None, :] * noise  # (batch, draws, d)
        fixed = tf.stop_gradient(mean), tf.stop_gradient(tf.math.log(sd))

        def log_weight(draws: tf.Tensor) -> tf.Tensor:
            likelihood = log_likelihood(x[:, None, :], *decoder(draws, None if y is None else y[:, None, :]))
            return log_importance_weights(likelihood, draws, *fixed)

        loss, log_w = doubly_reparameterised_loss(z, log_weight)
        share = tf.nn.softmax(tf.stop_gradient(log_w), axis=1)
        # (sum w)^2 / sum w^2, the mean over rows
        return {"loss": loss, "effective_draws": tf.reduce_mean(1.0 / tf.reduce_sum(tf.square(share), axis=1))}, {}

    functions = _bound_functions(settings, pace, losses_of, (settings.draws, networks.encoder.n_out))
    return Objective(("loss", "effective_draws"), *functions, start=start_of(pace))


def take_rows(data: Data, rows: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor | None]:
    """Features and classes of some rows, given their indices."""
    x, y = data
    return tf.gather(x, rows), None if y is None else tf.gather(y, rows)


class _Epoch(NamedTuple):
    """An epoch's batches, and where the round stands in them."""

    data: Data
    rows: tf.Tensor  # (steps of the epoch, batch) int32, row indices
    address: tf.Tensor  # seed of the epoch
    number: tf.Tensor
    first_step: tf.Tensor  # of this round in the epoch


def _bound_functions(
    settings: TrainingSettings,
    pace: Pace,
    losses_of: Callable[[State, Data, tf.Tensor, tf.Tensor], tuple[Losses, Parameters]],
    noise_shape: tuple[int, int],
) -> tuple[Callable, Callable]:
    """`open_round` and `step` of a lower bound, whose rounds are epochs or equal parts of them.

    `losses_of` (state, batch, noise (batch, draws, d), epoch) -> losses, and statistics of the batch.
    """
    optimizer = Optimizer(settings.average_epochs * pace.steps_per_epoch, weight_decay=settings.weight_decay or 0.0)
    rounds_per_epoch = pace.rounds_per_epoch or 1

    def open_round(state: State, data: Data, seed: tf.Tensor) -> tuple[State, _Epoch]:
        number, part = state.round // rounds_per_epoch, state.round % rounds_per_epoch
        address = tf.stack([seed, number])
        order = tf.argsort(backend.uniform([pace.n_rows], address))[: pace.steps_per_epoch * pace.batch_rows]
        rows = tf.reshape(order, [pace.steps_per_epoch, pace.batch_rows])
        return state, _Epoch(data, rows, address, number, part * pace.steps_per_round)

    def step(state: State, epoch: _Epoch, index: tf.Tensor) -> tuple[State, Losses]:
        step_in_epoch = epoch.first_step + index
        # A gather, not a slice: XLA would treat the position as a constant and compile every round again.
        rows = tf.gather(epoch.rows, step_in_epoch)
        noise_seed = tf.random.experimental.stateless_fold_in(epoch.address, step_in_epoch + 1)
        noise = backend.normal([pace.batch_rows, *noise_shape], noise_seed)
        with tf.GradientTape() as tape:
            tape.watch(state.parameters)
            losses, seen = losses_of(state, take_rows(epoch.data, rows), noise, epoch.number)
        gradients = gradients_of(tape, losses["loss"], state.parameters)
        time = tf.cast(epoch.number, tf.float32) + tf.cast(step_in_epoch, tf.float32) / float(pace.steps_per_epoch)
        rate = settings.learning_rate * schedule_factor(settings.schedule, time, state.extra[0])
        return optimizer.move(state, gradients, rate, seen), losses

    return open_round, step


def start_of(pace: Pace) -> Callable[[Parameters, Data], State]:
    """The start of a lower bound. The number of epochs is in the state, so phases of any length share one program."""
    return lambda parameters, data: start_state(parameters, data)._replace(extra=(tf.constant(float(pace.n_epochs)),))


# The column start: a first model that knows the distribution of each column and no dependence. From random weights the
# lower bounds rotate the latents in any direction, and a table with many modes is cut at odd angles for good:
# independent mixtures in 5 dimensions end a nat lower.


class Cells(NamedTuple):
    """The training cells, sorted by class, so that a class is a range of rows."""

    x: tf.Tensor  # (rows, p) float32
    scores: tf.Tensor  # (rows, p) float32, normal scores of x by column and class
    row_class: tf.Tensor  # (rows,)
    first_row: tf.Tensor  # (classes,)
    n_rows: tf.Tensor  # (classes,)


def sort_cells(x: np.ndarray, y: np.ndarray | None) -> Cells:
    """The cells of rows (rows, p) with one-hot classes (rows, classes), if any, to draw from."""
    row_class = np.zeros(len(x), np.int32) if y is None else y.argmax(axis=1)
    order = np.argsort(row_class, kind="stable")
    n_rows = np.bincount(row_class, minlength=1 if y is None else y.shape[1])
    first_row = np.cumsum(n_rows) - n_rows
    scores = np.concatenate([_normal_scores(part) for part in np.split(x[order], first_row[1:])])
    floats = (tf.constant(part, tf.float32) for part in (x[order], scores))
    return Cells(*floats, *(tf.constant(part, tf.int32) for part in (row_class[order], first_row, n_rows)))


def _normal_scores(x: np.ndarray) -> np.ndarray:
    """Quantiles of N(0, 1) at the ranks of each column; ties are ranked in the order of their rows."""
    ranks = np.argsort(np.argsort(x, axis=0, kind="stable"), axis=0, kind="stable")
    return ndtri((ranks + 0.5) / max(len(x), 1))


def column_objective(networks: Networks, settings: WarmstartSettings, pace: Pace) -> Objective:
    """Maximum likelihood of independent columns with known latents, one for each column; it reads `Cells`.

    Losses: `negative_log_likelihood` -log p(x|z), `encoder_negative_log_likelihood` -log q(z|x), `loss` their sum. The
    learning rate falls to 0 over the phase.
    """
    decoder, encoder = networks.decoder, networks.encoder
    n_steps = pace.n_rounds * pace.steps_per_round
    optimizer = Optimizer(min(_COLUMN_AVERAGE_STEPS, _COLUMN_AVERAGE_SHARE * n_steps))

    def open_round(state: State, cells: Cells, seed: tf.Tensor) -> tuple[State, tuple[Cells, tf.Tensor]]:
        return state, (cells, tf.stack([seed, state.round]))

    def step(state: State, batches: tuple[Cells, tf.Tensor], index: tf.Tensor) -> tuple[State, Losses]:
        cells, address = batches
        seed = tf.random.experimental.stateless_fold_in(address, index)
        x, y, z = draw_cells(cells, pace.batch_rows, decoder.n_classes, seed)
        with tf.GradientTape() as tape:
            tape.watch(state.parameters)
            likelihood = log_likelihood(x, *decoder_of(decoder, state.parameters)(z, y)[:2])
            mean, sd = encoder_of(encoder, state.parameters)(x, y)
            losses = {
                "negative_log_likelihood": -tf.reduce_mean(likelihood),
                "encoder_negative_log_likelihood": -tf.reduce_mean(log_likelihood(z, mean, tf.square(sd))),
            }
            losses["loss"] = tf.add_n(list(losses.values()))
        time = tf.cast(state.round, tf.float32) + tf.cast(index, tf.float32) / float(pace.steps_per_round)
        rate = settings.learning_rate * schedule_factor("cosine", time, float(pace.n_rounds))
        return optimizer.move(state, gradients_of(tape, losses["loss"], state.parameters), rate), losses

    return Objective(("loss", "negative_log_likelihood", "encoder_negative_log_likelihood"), open_round, step)


def draw_cells(
    cells: Cells, n_rows: int, n_classes: int, seed: tf.Tensor, *, blur: float = _COLUMN_BLUR
) -> tuple[tf.Tensor, tf.Tensor | None, tf.Tensor]:
    """Rows whose cells are drawn from any rows of one class, their one-hot classes, and their latents.

    A latent is the blurred normal score of its cell. There are as many such rows as needed, so none is memorised.
    """
    n_cells, n_columns = cells.x.shape
    seeds = tf.random.split(seed, 3)
    row_class = tf.gather(cells.row_class, backend.uniform([n_rows], seeds[0], maxval=n_cells, dtype=tf.int32))
    share = backend.uniform([n_rows, n_columns], seeds[1])
    first, n = tf.gather(cells.first_row, row_class)[:, None], tf.gather(cells.n_rows, row_class)[:, None]
    offset = tf.minimum(tf.cast(share * tf.cast(n, tf.float32), tf.int32), n - 1)
    position = (first + offset) * n_columns + tf.range(n_columns)[None, :]
    x, scores = (tf.gather(tf.reshape(part, [-1]), position) for part in (cells.x, cells.scores))
    noise = backend.normal([n_rows, n_columns], seeds[2])
    z = (1.0 - blur**2) ** 0.5 * scores + blur * noise
    return x, tf.one_hot(row_class, n_classes) if n_classes else None, z
