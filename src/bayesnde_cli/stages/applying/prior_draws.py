"""Draws from the fitted model, in blocks of one size: a block is one compiled call, and its seed is an address."""

from typing import Any

import numpy as np
import tensorflow as tf

from bayesnde_cli.model import random_numbers
from bayesnde_cli.model.likelihood import DecoderLike, draw_rows


class PriorDraws:
    """Rows of the model, and the columns' means and variances at latents from the prior."""

    def __init__(self, decoder: DecoderLike, latent_dim: int, *, block_rows: int) -> None:
        def rows(seed: tf.Tensor, y: tf.Tensor | None) -> tf.Tensor:
            return draw_rows(decoder, block_rows, latent_dim, seed, y=y)

        def moments(seed: tf.Tensor, y: tf.Tensor | None) -> tuple[tf.Tensor, tf.Tensor]:
            z = random_numbers.normal([block_rows, latent_dim], seed)
            mean, variance, *_ = decoder(z) if y is None else decoder(z, y)
            return mean, variance

        self._rows = tf.function(rows, jit_compile=True, autograph=False)
        self._moments = tf.function(moments, jit_compile=True, autograph=False)

    def rows(self, seed: int, y: np.ndarray | None = None) -> np.ndarray:
        """A block of rows x, (rows, p) float32; y (rows, classes) one-hot, for a conditional model."""
        return self._rows(*_arguments(seed, y)).numpy()

    def moments(self, seed: int, y: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
        """Mean and variance of every column at a block of latents, (rows, p) float32 each."""
        mean, variance = self._moments(*_arguments(seed, y))
        return mean.numpy(), variance.numpy()


def _arguments(seed: int, y: np.ndarray | None) -> tuple[Any, Any]:
    address = tf.constant([seed % 2**31, seed // 2**31 % 2**31], tf.int32)
    return address, None if y is None else tf.constant(y)
