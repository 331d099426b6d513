"""The decoder p(x | z[, y]): a latent in, the mean and the variance of every column out."""

from collections.abc import Callable
from dataclasses import dataclass
from math import prod

import tensorflow as tf

from bayesnde_cli.model import networks
from bayesnde_cli.model.cells import LevelCells, joined_cells
from bayesnde_cli.model.image_layers import Statistics
from bayesnde_cli.model.networks import IMAGE_CHANNELS, NetworkSpec, regime
from bayesnde_cli.model.parameters import Parameters

# The smallest variance of a column given its latent: part of the model, the same in training, HMC and bridge. Far
# below any noise of scaled data (s.d. 0.001), far above what float32 cannot divide by.
VARIANCE_FLOOR = 1e-6
# Images have bounds of their own (in logit space), the paper's.
IMAGE_VARIANCE = (1e-4, 4.0)


def decoder_spec(latent_dim: int, n_columns: int, n_classes: int = 0) -> NetworkSpec:
    """The paper's decoder for data of this many columns."""
    return NetworkSpec(latent_dim, n_columns, ("mean", "raw_variance"), n_classes, regime(n_columns))


def image_decoder_spec(latent_dim: int, image: tuple[int, int, int], n_classes: int = 0) -> NetworkSpec:
    """The paper's decoder of images of this height, width and number of channels."""
    return NetworkSpec(
        latent_dim, prod(image), ("mean", "raw_variance"), n_classes, "to_image", width=IMAGE_CHANNELS, image=image
    )


# Compared by identity: tf.function hashes what it is handed, and arrays have no hash.
@dataclass(frozen=True, eq=False)
class Decoder:
    """z[, y] -> (mean, variance), with variance = softplus(raw) + VARIANCE_FLOOR.

    Of images it is low + (high - low) (1 - exp(-softplus(raw))), with the bounds low and high of IMAGE_VARIANCE. Where
    columns have cells, these come third.

        decoder = Decoder(spec, initial_parameters(spec, seed, "decoder"))
        mean, variance, *cells = decoder(z)

    In a compiled training step, make it inside the step from the parameters that the step was handed. This is the
    paper's generator; unlike its authors' code, there is no batch normalisation of z, so p(x | z) does not depend
    on the other rows of a batch. The batch normalisation inside networks of images has frozen statistics, unless the
    decoder is made with `statistics`, to be trained.
    """

    spec: NetworkSpec
    parameters: Parameters
    statistics: Statistics | None = None

    def __call__(self, z: tf.Tensor, y: tf.Tensor | None = None) -> tuple[tf.Tensor, ...]:
        """Mean and variance of every column, (…, p), and cells if there are any. z (…, d), one-hot y (…, n_classes)."""
        mean, raw_variance = networks.apply(self.spec, self.parameters, z, y, self.statistics)
        if self.spec.image is not None:
            low, high = IMAGE_VARIANCE
            variance = low + (high - low) * tf.sigmoid(raw_variance)  # 1 - exp(-softplus(raw)) is the sigmoid
            levels = self.spec.levels
            return (mean, variance, LevelCells(float(levels))) if levels else (mean, variance)
        # softplus(raw) = max(raw, 0) + log(1 + exp(-|raw|)) inside: no overflow at either end.
        variance, cells = tf.math.softplus(raw_variance) + VARIANCE_FLOOR, joined_cells(self.spec.cells)
        return (mean, variance) if cells is None else (mean, variance, cells)


@dataclass(frozen=True, eq=False)
class BlurredDecoder:
    """A decoder whose model is blurred: rows of it with Gaussian noise of the s.d. `width` added to every column.

    x = mean(z) + sd(z) e + width e', so p(x | z) keeps its mean, and its variance is variance(z) + width^2. A value's
    cell gains or loses mass by it; inside, the noise of the cell stays what it is.
    """

    decoder: Callable[..., tuple[tf.Tensor, ...]]
    width: float

    def __call__(self, z: tf.Tensor, y: tf.Tensor | None = None) -> tuple[tf.Tensor, ...]:
        """Mean and variance of every column, as the decoder's; cells stay what they are."""
        mean, variance, *cells = self.decoder(z) if y is None else self.decoder(z, y)
        return mean, variance + self.width**2, *cells
