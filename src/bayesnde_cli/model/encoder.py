"""The encoder q(z | x[, y]): a row in, a normal proposal for its latent out."""

from dataclasses import dataclass
from math import prod
from typing import NamedTuple

import tensorflow as tf

from bayesnde_cli.model import networks
from bayesnde_cli.model.image_layers import Statistics
from bayesnde_cli.model.likelihood import log_likelihood
from bayesnde_cli.model.networks import IMAGE_CHANNELS, NetworkSpec, regime
from bayesnde_cli.model.parameters import Parameters

# The smallest s.d. of a proposal. A decoder at its own floor (s.d. 0.001) and of slope 100 leaves a posterior of this
# width; z of size 1 in float32 still has about a hundred steps inside it.
SD_FLOOR = 1e-5


class Proposal(NamedTuple):
    """The normal distribution N(mean, diag sd^2). Drawing and scoring it stand side by side. Both (…, d)."""

    mean: tf.Tensor
    sd: tf.Tensor

    def draw(self, noise: tf.Tensor) -> tf.Tensor:
        """z = mean + sd * noise, with noise ~ N(0, I); gradients reach mean and sd. (…, d)."""
        return self.mean + self.sd * noise

    def log_prob(self, z: tf.Tensor, *, dtype: tf.DType | None = None) -> tf.Tensor:
        """log q(z), summed in `dtype`. (…, d) -> (…,)."""
        return log_likelihood(z, self.mean, tf.square(self.sd), dtype=dtype)


def encoder_spec(latent_dim: int, n_columns: int, n_classes: int = 0) -> NetworkSpec:
    """The paper's encoder for data of this many columns, with a second head."""
    return NetworkSpec(n_columns, latent_dim, ("mean", "raw_sd"), n_classes, regime(n_columns))


def image_encoder_spec(latent_dim: int, image: tuple[int, int, int], n_classes: int = 0) -> NetworkSpec:
    """The paper's encoder of images of this height, width and number of channels, with a second head."""
    return NetworkSpec(
        prod(image), latent_dim, ("mean", "raw_sd"), n_classes, "from_image", width=IMAGE_CHANNELS, image=image
    )


# Compared by identity: tf.function hashes what it is handed, and arrays have no hash.
@dataclass(frozen=True, eq=False)
class Encoder:
    """x[, y] -> Proposal(mean, sd), with sd = softplus(raw) + SD_FLOOR.

    The paper's encoder is the mean alone, a start for HMC. The s.d. makes it a proposal q(z | x), as the evidence lower
    bound and importance sampling need; where the objective uses only the mean, the second head is idle.

    Nothing is clipped, as a clipped head has no gradient to come back with. Below zero softplus is almost exp: raw is
    then the logarithm of the s.d., and narrow posteriors are learnt at the pace of wide ones. Above zero it grows
    linearly, so a far-away row gives a wide proposal and not an infinite one. A fresh encoder has sd near log 2 = 0.69.
    """

    spec: NetworkSpec
    parameters: Parameters
    statistics: Statistics | None = None  # where an encoder of images is trained, as the decoder's

    def __call__(self, x: tf.Tensor, y: tf.Tensor | None = None) -> Proposal:
        """The proposal of every row. x (…, p), one-hot y (…, n_classes) -> mean and sd (…, d)."""
        mean, raw_sd = networks.apply(self.spec, self.parameters, x, y, self.statistics)
        return Proposal(mean, tf.math.softplus(raw_sd) + SD_FLOOR)
