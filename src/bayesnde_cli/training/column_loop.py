"""A first model that knows each column and no dependence: latent j stands for column j.

Its rows are made up. Each cell is drawn from its own column, whatever row it stands in (of the same class, if there
are classes), so there are as many rows as one likes and nothing to learn by heart. The latent of a cell is its normal
score, blurred: where a column jumps from one mode to the next, the decoder must be able to follow.

From random weights the lower bounds turn the latents any way they please, and a table with many modes is then cut up
at odd angles, for good: independent mixtures in 5 dimensions end a nat lower.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import tensorflow as tf
from scipy.special import ndtri

from bayesnde_cli.model import random_numbers
from bayesnde_cli.model.likelihood import log_likelihood
from bayesnde_cli.model.networks import NetworkSpec
from bayesnde_cli.model.parameters import global_norm
from bayesnde_cli.training.autoencoder_state import AutoencoderState
from bayesnde_cli.training.joint_parameters import decoder_of, encoder_of
from bayesnde_cli.training.optimizers import SCHEDULES, adam_step, averaged, clipped


@dataclass(frozen=True)
class ColumnSettings:
    """How a round is run."""

    batch_rows: int = 256
    steps_per_round: int = 100
    n_rounds: int = 20  # the learning rate falls to 0 over them
    learning_rate: float = 1e-3
    blur: float = 0.2  # z = sqrt(1 - blur^2) * score + blur * noise
    max_norm: float = 10.0  # of the gradient
    average_steps: float = 100.0


class Cells(NamedTuple):
    """The training cells, sorted by class, so that a class is a range of rows."""

    x: tf.Tensor  # (rows, p) float32
    scores: tf.Tensor  # (rows, p) float32: the normal scores of x, column by column, within the class
    row_class: tf.Tensor  # (rows,) int32
    first_row: tf.Tensor  # (classes,) int32
    n_rows: tf.Tensor  # (classes,) int32


Losses = dict[str, tf.Tensor]
RoundRunner = Callable[[AutoencoderState, Cells, tf.Tensor], tuple[AutoencoderState, Losses]]


def cells_of(x: np.ndarray, y: np.ndarray | None) -> Cells:
    """Training rows (rows, p) and their one-hot classes (rows, classes), if any, as cells to draw from."""
    row_class = np.zeros(len(x), np.int32) if y is None else y.argmax(axis=1).astype(np.int32)
    order = np.argsort(row_class, kind="stable")
    n_rows = np.bincount(row_class, minlength=1 if y is None else y.shape[1])
    first_row = np.cumsum(n_rows) - n_rows
    x = x[order]
    scores = np.concatenate(
        [_normal_scores(x[first : first + n]) for first, n in zip(first_row, n_rows, strict=True) if n]
    )
    return Cells(
        tf.constant(x, tf.float32),
        tf.constant(scores, tf.float32),
        tf.constant(row_class[order]),
        tf.constant(first_row, tf.int32),
        tf.constant(n_rows, tf.int32),
    )


def _normal_scores(x: np.ndarray) -> np.ndarray:
    """Each column's ranks at the quantiles of N(0, 1); equal values in the order of their rows."""
    ranks = np.argsort(np.argsort(x, axis=0, kind="stable"), axis=0, kind="stable")
    return ndtri((ranks + 0.5) / len(x))


def round_runner(decoder: NetworkSpec, encoder: NetworkSpec, settings: ColumnSettings) -> RoundRunner:
    """A compiled function (state, cells, seed) -> (state, losses), for networks with a latent for each column.

    Losses are means over the steps of the round, which ends with the first one whose loss is not finite:

        loss                               the sum of the next two
        negative_log_likelihood            -log p(x|z)
        encoder_negative_log_likelihood    -log q(z|x)
        first_bad_step                     int32: the step whose loss or weights are not finite, -1 if there is none
    """
    if decoder.n_in != decoder.n_out:
        raise ValueError(f"{decoder.n_in} latents for {decoder.n_out} columns: each column needs its own")
    names = ("loss", "negative_log_likelihood", "encoder_negative_log_likelihood")
    # Of few steps, the mean forgets where they began.
    memory = min(settings.average_steps, 0.1 * settings.n_rounds * settings.steps_per_round)
    decay = 1.0 - 1.0 / max(1.0, memory)

    @tf.function(jit_compile=True, autograph=False)
    def run(state: AutoencoderState, cells: Cells, seed: tf.Tensor) -> tuple[AutoencoderState, Losses]:
        address = tf.stack([seed, state.round])

        def step(index, parameters, optimizer, average, totals, _):  # type: ignore[no-untyped-def]
            step_seed = tf.random.experimental.stateless_fold_in(address, index)
            x, y, z = _drawn(cells, decoder.n_classes, settings, step_seed)
            with tf.GradientTape() as tape:
                tape.watch(parameters)
                likelihood = log_likelihood(x, *decoder_of(decoder, parameters)(z, y)[:2])
                mean, sd = encoder_of(encoder, parameters)(x, y)
                terms = {
                    "negative_log_likelihood": -tf.reduce_mean(likelihood),
                    "encoder_negative_log_likelihood": -tf.reduce_mean(log_likelihood(z, mean, tf.square(sd))),
                }
                terms["loss"] = tf.add_n(list(terms.values()))
            gradients, _ = clipped(tape.gradient(terms["loss"], parameters), max_norm=settings.max_norm)
            time = tf.cast(state.round, tf.float32) + tf.cast(index, tf.float32) / float(settings.steps_per_round)
            parameters, optimizer = adam_step(
                gradients, optimizer, parameters,
                learning_rate=settings.learning_rate * SCHEDULES["cosine"](time, float(settings.n_rounds)),
                beta_1=0.9, beta_2=0.99, epsilon=1e-8,
            )  # fmt: skip
            average = averaged(average, parameters, decay=decay)
            totals = {name: totals[name] + term for name, term in terms.items()}
            bad_step = tf.where(tf.math.is_finite(terms["loss"]), -1, index)
            return index + 1, parameters, optimizer, average, totals, bad_step

        totals = dict.fromkeys(names, tf.constant(0.0))
        n_done, parameters, optimizer, average, totals, bad_step = tf.while_loop(
            lambda index, *rest: (index < settings.steps_per_round) & (rest[-1] < 0),
            step,
            (tf.constant(0), state.parameters, state.optimizer, state.average, totals, tf.constant(-1)),
        )
        is_sound = tf.math.is_finite(global_norm(parameters))
        bad_step = tf.where(is_sound | (bad_step >= 0), bad_step, n_done - 1)
        losses = {name: total / tf.cast(n_done, tf.float32) for name, total in totals.items()}
        return AutoencoderState(parameters, optimizer, average, state.round + 1), losses | {"first_bad_step": bad_step}

    return run


def _drawn(
    cells: Cells, n_classes: int, settings: ColumnSettings, seed: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor | None, tf.Tensor]:
    """Rows whose cells come from anywhere in their columns, of one class each, their classes, and their latents."""
    n_rows, n_columns = cells.x.shape
    seeds = tf.random.split(seed, 3)
    row = random_numbers.uniform([settings.batch_rows], seeds[0], maxval=n_rows, dtype=tf.int32)
    row_class = tf.gather(cells.row_class, row)
    share = random_numbers.uniform([settings.batch_rows, n_columns], seeds[1])
    first, n = tf.gather(cells.first_row, row_class)[:, None], tf.gather(cells.n_rows, row_class)[:, None]
    offset = tf.minimum(tf.cast(share * tf.cast(n, tf.float32), tf.int32), n - 1)
    place = (first + offset) * n_columns + tf.range(n_columns)[None, :]
    x = tf.gather(tf.reshape(cells.x, [-1]), place)
    scores = tf.gather(tf.reshape(cells.scores, [-1]), place)
    noise = random_numbers.normal([settings.batch_rows, n_columns], seeds[2])
    z = (1.0 - settings.blur**2) ** 0.5 * scores + settings.blur * noise
    return x, tf.one_hot(row_class, n_classes) if n_classes else None, z
