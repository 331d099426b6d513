"""A first look at rows under every class: cheap estimates, by which most classes are out of the running.

Importance sampling around the mode of each class's latent posterior, as training has it. The classes share their
starts: a latent is a style rather than a class, so for each class the encoder's points under all of them are tried, and
the climb begins at the likeliest. Of images, classes whose likeliest start is hopeless are left there.
"""

from typing import NamedTuple, Protocol

import numpy as np
import tensorflow as tf

from bayesnde_cli.inference.engine import FittedModel
from bayesnde_cli.model.encoder import Encoder, Proposal
from bayesnde_cli.model.likelihood import log_joint
from bayesnde_cli.rng import derive_seed
from bayesnde_cli.training.marginal import log_marginal_weights

# Draws of each row under each class, and rows that go together, or as many as have so many cells.
_N_DRAWS = 64
_ROWS, _CELLS = 32, 30_000
# A class is out of the running if it is this many nats, and this many standard errors, below the best one. Importance
# sampling errs to the low side, and beyond this standard error its own error is not known: then it must be farther.
# Its probability is then below 0.001, too.
_MARGIN, _ERRORS = 7.0, 4.0
_POOR_SE, _POOR_MARGIN = 0.5, 20.0
# Classes of an image of MNIST's size or less stay at their start if it is this many nats below the best one, those of a
# larger one if it is as far below for each pixel: of 512 validation images of MNIST
# the likeliest class began 150 below at most, one that stayed in the running 300. That leaves 4 or 5 of 10 classes. Of
# tables none stays: where columns are functions of others, a good class may begin anywhere.
_HOPELESS, _HOPELESS_PIXELS = 400.0, 784


class FirstFigures(NamedTuple):
    """What a first look finds; of classes that are left at their start, log p(x, z) there, with an error of 0."""

    log_density: np.ndarray  # (rows, classes) float64, in the model's space
    se: np.ndarray  # (rows, classes) their Monte-Carlo standard errors
    n_gradients: np.ndarray  # (rows,) int64, under all classes


class FirstLook(Protocol):
    """A first look at rows x (rows, p), all cells observed, and classes of this `prior` (classes,).

    The class that a row came with, `known` (rows,), is never left at its start.
    """

    def __call__(
        self, x: np.ndarray, seed: int, prior: np.ndarray, known: np.ndarray | None = None
    ) -> FirstFigures: ...


class ClassScreen:
    """A first look by a fitted model; equal arguments give equal bits."""

    def __init__(self, model: FittedModel) -> None:
        assert isinstance(model.encoder, Encoder)
        self._model, self._encoder = model, model.encoder
        self._n_rows = max(1, min(_ROWS, _CELLS // model.n_columns))
        is_image, size = self._encoder.spec.image is not None, max(1.0, model.n_columns / _HOPELESS_PIXELS)
        self._hopeless = _HOPELESS * size if is_image else np.inf
        self._starts = tf.function(self._started, jit_compile=True, autograph=False)
        self._weigh = tf.function(self._weights, jit_compile=True, autograph=False)

    def __call__(self, x: np.ndarray, seed: int, prior: np.ndarray, known: np.ndarray | None = None) -> FirstFigures:
        with np.errstate(divide="ignore"):
            log_prior = np.log(prior)
        is_known = np.zeros((len(x), len(prior)), bool) if known is None else np.eye(len(prior), dtype=bool)[known]
        blocks = []
        for start in range(0, len(x), self._n_rows):
            rows, address = slice(start, start + self._n_rows), derive_seed(seed, "block", start // self._n_rows)
            blocks.append(self._block(x[rows], address, log_prior, is_known[rows]))
        return FirstFigures(*(np.concatenate(part) for part in zip(*blocks, strict=True)))

    def _block(self, x: np.ndarray, seed: int, log_prior: np.ndarray, is_known: np.ndarray) -> FirstFigures:
        """The figures of no more rows than go together; of classes where `is_known` (rows, classes) in any case."""
        n_classes, n_rows, d = self._model.n_classes, self._n_rows, self._model.latent_dim
        filled = tf.constant(np.resize(x, (n_rows, x.shape[1])))
        start, sd, height = (part.numpy()[: len(x)] for part in self._starts(filled))
        with np.errstate(invalid="ignore"):
            joint = height + log_prior  # of classes that cannot be: -inf
            best = np.where(np.isfinite(joint), joint, -np.inf).max(axis=1, keepdims=True)
            is_hopeless = joint < best - self._hopeless  # not without a number, nor the best one
        of_row, of_class = np.nonzero(~is_hopeless | is_known)
        log_density, se, n_gradients = height.astype(np.float64), np.zeros(height.shape), np.zeros(len(x), np.int64)
        for index, first in enumerate(range(0, len(of_row), n_rows)):
            pairs = of_row[first : first + n_rows], of_class[first : first + n_rows]
            rows, classes = (np.resize(part, n_rows) for part in pairs)
            y = np.eye(n_classes, dtype=np.float32)[classes]
            address = tf.constant([seed % 2**31, index], tf.int32)
            given = (tf.constant(part) for part in (x[rows], y, start[rows, classes], sd[rows, classes]))
            log_weights, n_climbs = self._weigh(*given, address)
            log_density[pairs], se[pairs] = _estimates(log_weights.numpy()[: len(pairs[0])])
            # A climb is a gradient, and a slope along every latent.
            np.add.at(n_gradients, pairs[0], (int(n_climbs) + 1) * (1 + d))
        return FirstFigures(log_density, se, n_gradients)

    def _started(self, x: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """For every class: where its climb begins and the s.d. of its proposal, (rows, classes, d), and log p(x, z)."""
        n_classes, d, decoder = self._model.n_classes, self._model.latent_dim, self._model.decoder
        every = tf.repeat(x, n_classes, axis=0)
        proposal = self._encoder(every, tf.tile(tf.eye(n_classes), [x.shape[0], 1]))
        mean = tf.where(tf.math.is_finite(proposal.mean), tf.clip_by_value(proposal.mean, -10.0, 10.0), 0.0)
        mean, sd = (tf.reshape(part, [x.shape[0], n_classes, d]) for part in (mean, proposal.sd))

        def begun(index: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            y = tf.repeat(tf.one_hot([index], n_classes), x.shape[0], axis=0)
            height = log_joint(mean, x[:, None, :], decoder, y=y[:, None, :])  # (rows, classes): of each class's start
            height = tf.where(tf.math.is_finite(height), height, -1e30)
            likeliest = tf.argmax(height, axis=1)
            return tf.gather(mean, likeliest, batch_dims=1), tf.gather(height, likeliest, batch_dims=1)

        start, height = tf.map_fn(begun, tf.range(n_classes), fn_output_signature=(tf.float32, tf.float32))
        height = tf.where(height > -1e30, height, np.nan)
        return tf.transpose(start, [1, 0, 2]), sd, tf.transpose(height)

    def _weights(
        self, x: tf.Tensor, y: tf.Tensor, start: tf.Tensor, sd: tf.Tensor, seed: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Logarithms of importance weights of rows with a class each, (rows, draws), and the steps of the climb."""
        return log_marginal_weights(self._model.decoder, x, y, Proposal(start, sd), n_draws=_N_DRAWS, seed=seed)


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
