"""What scoring needs of a fitted model: its decoder, a start point for each row, and a bank of decoded latents."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from bayesnde_cli.model import backend
from bayesnde_cli.model.coders import Encoder, Proposal
from bayesnde_cli.model.likelihood import Cells, DecoderLike, Target, largest_divisor, log_likelihood
from bayesnde_cli.rng import generator

# Latents in the bank that start points come from, and cells that they are decoded to in each class, at most.
_BANK_SIZE, _BANK_CELLS = 2048, 400_000
# With few latents, two quarters of the random latents of the bank are moved outwards by these factors: a mode three
# standard deviations away may hold a hundredth of a posterior, and the mode of an outlier may lie beyond six.
_FEW_LATENTS, _FARTHER = 4, (1.5, 2.25)
# Nearest neighbours of each latent in the bank.
_N_NEIGHBOURS = 6
# Latents in one call of the proposal, about; in one pass of the decoder; and cells that they are decoded to, at most.
_CALL_LATENTS, _SLICE_LATENTS, _SLICE_CELLS = 4096, 2048, 200_000
# Few rows, unless they have more columns than this.
_FEW_ROWS, _MANY_COLUMNS = 2, 500
# The likelihood where it is not finite.
LOWEST = -1e30


@dataclass(frozen=True, eq=False)
class FittedModel:
    """The model to score: a decoder z[, y] -> (mean, variance), and what helps to find its posteriors."""

    decoder: DecoderLike
    latent_dim: int
    encoder: Encoder | None = None
    n_classes: int = 0
    known_latents: np.ndarray | None = None  # (n, d) float32: of training rows
    n_columns: int = 1  # of the decoder's output; with very many, fewer rows are computed together
    latents_at_once: int | None = None  # best number of latents to decode together, if known

    def limit(self, n: int, n_cells: int) -> int:
        """n, or fewer if n rows would have more than `n_cells` cells."""
        return max(1, min(n, n_cells // self.n_columns))

    @property
    def few_rows(self) -> int:
        """Rows for which compiling takes longer than a plain graph, up to this number."""
        return _FEW_ROWS if self.n_columns <= _MANY_COLUMNS else 0

    @property
    def slice_latents(self) -> int:
        """Latents in one pass of the decoder."""
        return self.latents_at_once or self.limit(_SLICE_LATENTS, _SLICE_CELLS)

    def draws_per_call(self, n_rows: int) -> int:
        """Proposal draws per row in one call: about _CALL_LATENTS latents, in whole slices."""
        in_slice = max(1, self.slice_latents // n_rows)
        return max(1, _CALL_LATENTS // n_rows // in_slice) * in_slice

    def log_joint(self, target: Target, z: tf.Tensor) -> tf.Tensor:
        """log p(x, z), (rows, n, d) -> (rows, n), in slices: activations that stay in the cache are a third faster."""
        n_rows, n, d = z.shape
        n_each = largest_divisor(n, self.slice_latents // n_rows)
        each = target.repeat(n_each)

        def log_joint(some: tf.Tensor) -> tf.Tensor:  # (rows, n_each, d)
            return tf.reshape(each.log_joint(self.decoder, tf.reshape(some, [-1, d])), [n_rows, n_each])

        slices = tf.transpose(tf.reshape(z, [n_rows, n // n_each, n_each, d]), [1, 0, 2, 3])
        values = tf.map_fn(log_joint, slices, fn_output_signature=tf.float64)  # (slices, rows, n_each)
        return tf.reshape(tf.transpose(values, [1, 0, 2]), [n_rows, n])


class Bank(NamedTuple):
    """Latents, the neighbours of each, and what the decoder makes of them in each class."""

    z: np.ndarray  # (n, d)
    neighbours: np.ndarray  # (n, some)
    mean: tf.Tensor  # (classes or 1, n, p)
    variance: tf.Tensor
    cells: Cells | None = None  # of the columns

    def log_likelihood(self, target: Target) -> tuple[tf.Tensor, tf.Tensor]:
        """log p(x | z) of each row and each latent (rows, n), and the means there (rows or 1, n, p)."""
        if target.y is None:
            mean, variance = self.mean, self.variance  # (1, n, p)
        else:
            own = tf.argmax(target.y, axis=1)
            mean, variance = tf.gather(self.mean, own), tf.gather(self.variance, own)  # (rows, n, p)
        shape = [target.x.shape[0], len(self.z), target.x.shape[1]]
        mean, variance = (tf.broadcast_to(part, shape) for part in (mean, variance))
        observed = None if target.observed is None else target.observed[:, None, :]
        height = log_likelihood(target.x[:, None, :], mean, variance, self.cells, mask=observed)
        return tf.where(tf.math.is_finite(height), height, tf.constant(LOWEST, height.dtype)), mean


def make_bank(model: FittedModel) -> Bank:
    """The bank of a model: latents of training rows, and random ones."""
    size = model.limit(_BANK_SIZE, _BANK_CELLS)
    z = generator(0, "latent-bank", model.latent_dim).standard_normal((size, model.latent_dim)).astype(np.float32)
    if model.latent_dim <= _FEW_LATENTS:
        for offset, factor in zip((1, 3), _FARTHER, strict=True):
            z[offset::4] *= factor
    if model.known_latents is not None:
        known = model.known_latents[: size // 2]
        z[: len(known)] = known
    return decode_bank(model.decoder, z, model.n_classes)


def decode_bank(decoder: DecoderLike, z: np.ndarray, n_classes: int) -> Bank:
    """The bank of latents (n, d), decoded in every class."""
    square = np.square(z).sum(axis=1)
    distance = square[:, None] + square[None, :] - 2.0 * z @ z.T
    np.fill_diagonal(distance, np.inf)
    n_neighbours = min(_N_NEIGHBOURS, len(z) - 1)
    neighbours = np.argpartition(distance, n_neighbours - 1, axis=1)[:, :n_neighbours]
    if not n_classes:
        mean, variance, *cells = decoder(tf.constant(z))
        return Bank(z, neighbours, mean[None], variance[None], *cells)
    classes = [tf.repeat(tf.one_hot([k], n_classes), len(z), axis=0) for k in range(n_classes)]
    means, variances, *cells = zip(*(decoder(tf.constant(z), y) for y in classes), strict=True)
    return Bank(z, neighbours, tf.stack(means), tf.stack(variances), *(each[0] for each in cells))


def look_up(model: FittedModel, bank: Bank, target: Target) -> tuple[Proposal, tf.Tensor]:
    """The encoder's proposal for each row, or without one the prior, and log p(x | z) of the bank (rows, n).

    The encoder sees the missing cells of a row as the mean of the bank, weighted by likelihood.
    """
    height, mean = bank.log_likelihood(target)
    if model.encoder is None:
        zeros = tf.zeros([target.x.shape[0], model.latent_dim])
        return Proposal(zeros, zeros + 1.0), height
    x = target.x
    if target.observed is not None:
        weighted = tf.einsum("rb,rbp->rp", tf.nn.softmax(height, axis=1), mean)
        x = tf.where(target.observed, x, weighted)
    z, sd = model.encoder(x, target.y)
    # Far outside the data the encoder may return anything; the prior ends before that.
    z = tf.where(tf.math.is_finite(z), tf.clip_by_value(z, -10.0, 10.0), tf.zeros_like(z))
    return Proposal(z, tf.where(sd < 10.0, sd, tf.ones_like(sd))), height  # False for NaN


class Program:
    """A function of tensors as one XLA program; for few rows as a plain graph, which is slower but ready at once."""

    def __init__(self, function: Callable[..., Any], few: int = 0) -> None:
        def plain(*arguments: Any) -> Any:
            with backend.outside_xla():
                return function(*arguments)

        self._few = few
        self._compiled = tf.function(function, jit_compile=True, autograph=False)
        self._plain = tf.function(plain, autograph=False)

    def __call__(self, *arguments: Any) -> Any:
        n_rows = tf.nest.flatten(arguments)[0].shape[0]
        return (self._plain if n_rows <= self._few else self._compiled)(*arguments)
