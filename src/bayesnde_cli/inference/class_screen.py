"""Cheap estimates of log p(x | y) under every class, which rule out most classes before the engine scores the others.

Importance sampling around the mode of each class's latent posterior, as in the validation checks of training. Classes
share their start points: a latent is a style rather than a class, so for each class the encoder's points under all of
them are tried, and Newton steps begin at the likeliest. For images, classes with a hopeless start point stay there."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from bayesnde_cli import stopping
from bayesnde_cli.inference.fitted_model import FittedModel, Program
from bayesnde_cli.inference.importance import log_marginal_weights
from bayesnde_cli.model.coders import Encoder, Proposal
from bayesnde_cli.model.likelihood import Target, log_joint
from bayesnde_cli.rng import derive_seed

# Draws of each row under each class; rows in a block, and cells in a block, at most.
_N_DRAWS = 64
_ROWS, _CELLS = 32, 30_000
# A class is ruled out if it is this many nats, and this many standard errors, below the best one. Importance sampling
# errs to the low side, and beyond this standard error its own error is not known: then it must be farther below. The
# probability of such a class is below 0.001, too.
_MARGIN, _ERRORS = 7.0, 4.0
POOR_SE, _POOR_MARGIN = 0.5, 20.0
# Classes of an image of MNIST's size or less stay at their start point if it is this many nats below the best one; for
# larger images, as many nats per pixel. Of 512 validation images of MNIST, the likeliest class started at most 150
# nats below, and one that was not ruled out 300. That leaves 4 or 5 of 10 classes. In tables no class stays: where
# columns are functions of others, a good class may start anywhere.
_HOPELESS, _HOPELESS_PIXELS = 400.0, 784
_LOWEST = -1e30


class FirstFigures(NamedTuple):
    """The estimates of a screen; for classes that stay at their start point, log p(x, z) there, with an error of 0."""

    log_density: np.ndarray  # (rows, classes) float64, in the model's space
    se: np.ndarray  # (rows, classes) their Monte-Carlo standard errors
    n_gradients: np.ndarray  # (rows,) int64, under all classes


# (x, seed, prior, known) -> estimates: see `ClassScreen.__call__`
FirstLook = Callable[[np.ndarray, int, np.ndarray, np.ndarray | None], FirstFigures]


class ClassScreen:
    """The screen of a fitted model; equal arguments give equal bits."""

    def __init__(self, model: FittedModel) -> None:
        assert isinstance(model.encoder, Encoder)
        self._model, self._encoder = model, model.encoder
        self._n_rows = model.limit(_ROWS, _CELLS)
        is_image, size = self._encoder.spec.image is not None, max(1.0, model.n_columns / _HOPELESS_PIXELS)
        self._hopeless = _HOPELESS * size if is_image else np.inf
        self._find_starts, self._weigh = Program(self._start_points), Program(self._log_weights)

    def __call__(self, x: np.ndarray, seed: int, prior: np.ndarray, known: np.ndarray | None = None) -> FirstFigures:
        """Estimates for rows x (rows, p), all cells observed, and classes of this `prior` (classes,).

        The class that a row came with, `known` (rows,), never stays at its start point.
        """
        with np.errstate(divide="ignore"):
            log_prior = np.log(prior)
        is_known = np.zeros((len(x), len(prior)), bool) if known is None else np.eye(len(prior), dtype=bool)[known]
        blocks = []
        for block, start in enumerate(range(0, len(x), self._n_rows)):
            rows = slice(start, start + self._n_rows)
            blocks.append(self._screen(x[rows], derive_seed(seed, "block", block), log_prior, is_known[rows]))
        return FirstFigures(*(np.concatenate(part) for part in zip(*blocks, strict=True)))

    def _screen(self, x: np.ndarray, seed: int, log_prior: np.ndarray, is_known: np.ndarray) -> FirstFigures:
        """The estimates of a block; classes where `is_known` (rows, classes) never stay at their start point."""
        n_rows = self._n_rows
        start, sd, height = (
            part.numpy()[: len(x)] for part in self._find_starts(tf.constant(np.resize(x, (n_rows, x.shape[1]))))
        )
        stopping.check()
        with np.errstate(invalid="ignore"):
            joint = height + log_prior  # -inf for classes of probability 0
            best = np.where(np.isfinite(joint), joint, -np.inf).max(axis=1, keepdims=True)
            is_hopeless = joint < best - self._hopeless  # False for NaN and for the best one
        of_row, of_class = np.nonzero(~is_hopeless | is_known)
        log_density, se, n_gradients = height.astype(np.float64), np.zeros(height.shape), np.zeros(len(x), np.int64)
        for index, first in enumerate(range(0, len(of_row), n_rows)):
            pairs = of_row[first : first + n_rows], of_class[first : first + n_rows]
            rows, classes = (np.resize(part, n_rows) for part in pairs)
            y = np.eye(self._model.n_classes, dtype=np.float32)[classes]
            given = (tf.constant(part) for part in (x[rows], y, start[rows, classes], sd[rows, classes]))
            log_weights, n_steps = self._weigh(*given, tf.constant([seed % 2**31, index], tf.int32))
            stopping.check()
            log_density[pairs], se[pairs] = _estimates(log_weights.numpy()[: len(pairs[0])])
            # A Newton step takes a gradient, and a derivative along every latent.
            np.add.at(n_gradients, pairs[0], (int(n_steps) + 1) * (1 + self._model.latent_dim))
        return FirstFigures(log_density, se, n_gradients)

    def _start_points(self, x: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Start point and s.d. of the proposal of every class, (rows, classes, d), and log p(x, z) at the start."""
        n_classes, d = self._model.n_classes, self._model.latent_dim
        proposal = self._encoder(tf.repeat(x, n_classes, axis=0), tf.tile(tf.eye(n_classes), [x.shape[0], 1]))
        mean = tf.where(tf.math.is_finite(proposal.mean), tf.clip_by_value(proposal.mean, -10.0, 10.0), 0.0)
        mean, sd = (tf.reshape(part, [x.shape[0], n_classes, d]) for part in (mean, proposal.sd))

        def likeliest_start(index: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            y = tf.repeat(tf.one_hot([index], n_classes), x.shape[0], axis=0)
            height = log_joint(mean, x[:, None, :], self._model.decoder, y=y[:, None, :])  # (rows, classes)
            height = tf.where(tf.math.is_finite(height), height, _LOWEST)
            likeliest = tf.argmax(height, axis=1)
            return tf.gather(mean, likeliest, batch_dims=1), tf.gather(height, likeliest, batch_dims=1)

        start, height = tf.map_fn(likeliest_start, tf.range(n_classes), fn_output_signature=(tf.float32, tf.float32))
        height = tf.where(height > _LOWEST, height, np.nan)
        return tf.transpose(start, [1, 0, 2]), sd, tf.transpose(height)

    def _log_weights(
        self, x: tf.Tensor, y: tf.Tensor, start: tf.Tensor, sd: tf.Tensor, seed: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Log importance weights of rows with a class each, (rows, draws), and the number of Newton steps."""
        target, proposal = Target(x, None, y), Proposal(start, sd)
        return log_marginal_weights(self._model.decoder, target, proposal, n_draws=_N_DRAWS, seed=seed)


def in_the_running(first: FirstFigures, prior: np.ndarray) -> np.ndarray:
    """Which classes may still be the likeliest, (rows, classes) bool; the best of them always is.

    A class without a finite estimate is not ruled out.
    """
    with np.errstate(divide="ignore"):
        joint = first.log_density + np.log(prior)
    is_known = np.isfinite(first.log_density) & np.isfinite(first.se)
    lower = np.where(is_known, joint - _ERRORS * first.se, -np.inf).max(axis=1, keepdims=True)
    margin = np.where(first.se > POOR_SE, _POOR_MARGIN, _MARGIN)
    return (~is_known | (joint + _ERRORS * first.se + margin >= lower)) & (prior > 0)


def _estimates(log_weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The logarithm of the mean weight of each row, and its standard error. (rows, draws) -> (rows,) twice."""
    with np.errstate(invalid="ignore", over="ignore"):
        largest = log_weights.max(axis=1)
        weights = np.exp(log_weights - largest[:, None])
        mean = weights.mean(axis=1)
        return largest + np.log(mean), weights.std(axis=1) / mean / np.sqrt(log_weights.shape[1])
