"""What is sampled: the latent posterior of every row of a block, up to its constant."""

from collections.abc import Callable
from typing import NamedTuple

import tensorflow as tf

from bayesnde_cli.inference.hmc import LogDensity
from bayesnde_cli.model.likelihood import DecoderLike, log_joint


def largest_divisor(n: int, most: int) -> int:
    """The largest divisor of n up to `most`, 1 at least: how many of n go together in equal lots."""
    return max(size for size in range(1, max(1, min(n, most)) + 1) if n % size == 0)


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

    def log_density(self, decoder: DecoderLike, at_once: int | None = None) -> LogDensity:
        """The function z (rows, d) -> log p(x, z) (rows,) float64.

        Of no more than `at_once` rows together are value and gradient computed, one lot after the other: what large
        networks leave behind on their way forward then stays in the cache. The gradient is no further differentiable.
        """
        n_rows = self.x.shape[0]
        if at_once is None or at_once >= n_rows:
            return lambda z: self.log_joint(decoder, z)
        n_each = largest_divisor(n_rows, at_once)
        lots = Target(*(None if part is None else tf.reshape(part, [-1, n_each, part.shape[1]]) for part in self))

        @tf.custom_gradient
        def log_density(z: tf.Tensor) -> tuple[tf.Tensor, Callable[[tf.Tensor], tf.Tensor]]:
            z_lots = tf.reshape(z, [-1, n_each, z.shape[1]])

            def of_lot(index: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
                some, own = z_lots[index], Target(*(None if part is None else part[index] for part in lots))
                with tf.GradientTape() as tape:
                    tape.watch(some)
                    value = own.log_joint(decoder, some)
                return value, tape.gradient(value, some)

            value, gradient = tf.map_fn(
                of_lot, tf.range(n_rows // n_each), fn_output_signature=(tf.float64, z.dtype)
            )  # fmt: skip
            gradient = tf.reshape(gradient, z.shape)  # of each row's own value
            return tf.reshape(value, [n_rows]), lambda upstream: tf.cast(upstream, z.dtype)[:, None] * gradient

        return log_density
