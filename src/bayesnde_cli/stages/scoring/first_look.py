"""A first look at rows under every class: cheap estimates, by which most classes are out of the running.

Importance sampling around the mode of each class's latent posterior, as training has it. The classes share their
starts: a latent is a style rather than a class, so for each class the encoder's points under all of them are tried, and
the climb begins at the likeliest.
"""

from typing import NamedTuple, Protocol

import numpy as np
import tensorflow as tf

from bayesnde_cli.inference.engine import FittedModel
from bayesnde_cli.model.encoder import Encoder, Proposal
from bayesnde_cli.model.likelihood import log_joint
from bayesnde_cli.training.marginal import log_marginal_weights

# Draws of each row under each class, and rows that go together, or as many as have so many cells.
_N_DRAWS = 64
_ROWS, _CELLS = 32, 30_000
# A class is out of the running if it is this many nats, and this many standard errors, below the best one. Importance
# sampling errs to the low side, and beyond this standard error its own error is not known: then it must be farther.
# Its probability is then below 0.001, too.
_MARGIN, _ERRORS = 7.0, 4.0
_POOR_SE, _POOR_MARGIN = 0.5, 20.0


class FirstFigures(NamedTuple):
    """What a first look finds."""

    log_density: np.ndarray  # (rows, classes) float64, in the model's space
    se: np.ndarray  # (rows, classes) their Monte-Carlo standard errors
    n_gradients: int  # of each row, under all classes


class FirstLook(Protocol):
    """A first look at rows x (rows, p), all cells observed."""

    def __call__(self, x: np.ndarray, seed: int) -> FirstFigures: ...


class ClassScreen:
    """A first look by a fitted model; equal arguments give equal bits."""

    def __init__(self, model: FittedModel) -> None:
        assert isinstance(model.encoder, Encoder)
        self._model, self._encoder = model, model.encoder
        self._n_rows = max(1, min(_ROWS, _CELLS // model.n_columns))
        self._starts = tf.function(self._started, jit_compile=True, autograph=False)
        self._weigh = tf.function(self._weights, jit_compile=True, autograph=False)

    def __call__(self, x: np.ndarray, seed: int) -> FirstFigures:
        found: list[tuple[np.ndarray, np.ndarray]] = []
        n_climbs = 0
        n_classes, n_rows = self._model.n_classes, self._n_rows
        for block, start in enumerate(range(0, len(x), n_rows)):
            n_real = min(n_rows, len(x) - start)
            rows = tf.constant(np.resize(x[start : start + n_real], (n_rows, x.shape[1])))
            mean, sd = self._starts(rows)
            made = []
            for index in range(n_classes):
                address = tf.constant([seed % 2**31, block * n_classes + index], tf.int32)
                log_weights, climbs = self._weigh(rows, tf.constant(index), mean, sd[:, index], address)
                made.append(_estimates(log_weights.numpy()[:n_real]))
                n_climbs = max(n_climbs, int(climbs))
            found.append(tuple(np.stack(part, axis=1) for part in zip(*made, strict=True)))  # type: ignore[arg-type]
        log_density, se = (np.concatenate(part) for part in zip(*found, strict=True))
        # A climb is a gradient, and a slope along every latent.
        n_gradients = n_classes * (n_climbs + 1) * (1 + self._model.latent_dim)
        return FirstFigures(log_density, se, n_gradients)

    def _started(self, x: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """The encoder's proposals under every class, (rows, classes, d) twice."""
        n_classes = self._model.n_classes
        every = tf.repeat(x, n_classes, axis=0)
        proposal = self._encoder(every, tf.tile(tf.eye(n_classes), [x.shape[0], 1]))
        shape = [x.shape[0], n_classes, self._model.latent_dim]
        mean = tf.where(tf.math.is_finite(proposal.mean), tf.clip_by_value(proposal.mean, -10.0, 10.0), 0.0)
        return tf.reshape(mean, shape), tf.reshape(proposal.sd, shape)

    def _weights(
        self, x: tf.Tensor, index: tf.Tensor, mean: tf.Tensor, sd: tf.Tensor, seed: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Logarithms of importance weights under a class, (rows, draws), and the steps of the climb."""
        decoder = self._model.decoder
        y = tf.repeat(tf.one_hot([index], self._model.n_classes), x.shape[0], axis=0)
        height = log_joint(mean, x[:, None, :], decoder, y=y[:, None, :])  # (rows, classes): of each class's start
        height = tf.where(tf.math.is_finite(height), height, -1e30)
        start = tf.gather(mean, tf.argmax(height, axis=1), batch_dims=1)
        return log_marginal_weights(decoder, x, y, Proposal(start, sd), n_draws=_N_DRAWS, seed=seed)


def in_the_running(first: FirstFigures, prior: np.ndarray) -> np.ndarray:
    """Which classes may still be the likeliest, (rows, classes) bool; the best of them always is.

    A class without a finite estimate stays in.
    """
    with np.errstate(divide="ignore"):
        joint = first.log_density + np.log(prior)
    is_known = np.isfinite(first.log_density) & np.isfinite(first.se)
    lower = np.where(is_known, joint - _ERRORS * first.se, -np.inf).max(axis=1, keepdims=True)
    margin = np.where(first.se > _POOR_SE, _POOR_MARGIN, _MARGIN)
    return (~is_known | (joint + _ERRORS * first.se + margin >= lower)) & (prior > 0)


def _estimates(log_weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The logarithm of the mean weight of each row, and its standard error. (rows, draws) -> (rows,) twice."""
    with np.errstate(invalid="ignore", over="ignore"):
        largest = log_weights.max(axis=1)
        weights = np.exp(log_weights - largest[:, None])
        mean = weights.mean(axis=1)
        return largest + np.log(mean), weights.std(axis=1) / mean / np.sqrt(log_weights.shape[1])
