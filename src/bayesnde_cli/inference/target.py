"""What is sampled: the latent posterior of every row of a block, up to its constant."""

from typing import NamedTuple

import tensorflow as tf

from bayesnde_cli.model.likelihood import DecoderLike, log_joint


class Target(NamedTuple):
    """Rows x (rows, p); which cells are observed (rows, p) bool, None: all; the one-hot class y (rows, classes)."""

    x: tf.Tensor
    observed: tf.Tensor | None
    y: tf.Tensor | None

    def repeated(self, times: int) -> "Target":
        """Each row so many times, one after the other: a row for every chain of a row."""
        return Target(*(None if part is None else tf.repeat(part, times, axis=0) for part in self))

    def log_joint(self, decoder: DecoderLike, z: tf.Tensor) -> tf.Tensor:
        """log p(x, z) of a latent, or of several, for each row. z (rows, [draws,] d) -> (rows[, draws]) float64."""
        if len(z.shape) == 2:
            return log_joint(z, self.x, decoder, y=self.y, mask=self.observed, dtype=tf.float64)
        x, observed, y = (None if part is None else part[:, None, :] for part in self)
        return log_joint(z, x, decoder, y=y, mask=observed, dtype=tf.float64)
