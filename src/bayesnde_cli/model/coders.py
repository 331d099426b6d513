"""The networks of the model: decoder p(x | z[, y]), encoder q(z | x[, y]), and the discriminators of the warm start.

The parameters of several networks are one mapping, each network's under its own name: `decoder/mean/kernel`. One
optimizer moves them together, and one checkpoint holds them together."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import NamedTuple

import tensorflow as tf

from bayesnde_cli.model import networks
from bayesnde_cli.model.layers import Parameters, Statistics, is_statistic
from bayesnde_cli.model.likelihood import DecoderLike, log_likelihood
from bayesnde_cli.model.networks import DiscriminatorSpec, Image, Kind, NetworkSpec, initial_parameters

# The smallest s.d. of a proposal: the width of the posterior under a decoder at its variance floor (s.d. 0.001) with
# slope 100. In float32, z of size 1 still has about a hundred steps inside it.
SD_FLOOR = 1e-5
# Step of the running statistics of batch normalisation towards those of the current batch.
_STATISTICS_RATE = 0.01
# Tables with more columns get residual networks, as in the paper.
_MLP_MAX_COLUMNS = 10
# The paper's number of channels c.
_IMAGE_CHANNELS = 32


# Compared by identity: tf.function hashes its arguments, and arrays have no hash.
@dataclass(frozen=True, eq=False)
class Decoder:
    """z[, y] -> (mean, variance[, cells]), with variance = softplus(raw) + VARIANCE_FLOOR, or bounded for images.

        decoder = Decoder(spec, initial_parameters(spec, seed, "decoder"))
        mean, variance, *cells = decoder(z)

    This is the paper's generator, without the batch normalisation of z in the authors' code: p(x | z) does not depend
    on other rows. In networks of images its statistics are frozen, unless the decoder has `statistics` for training.
    """

    spec: NetworkSpec
    parameters: Parameters
    statistics: Statistics | None = None

    def __call__(self, z: tf.Tensor, y: tf.Tensor | None = None) -> tuple[tf.Tensor, ...]:
        """Mean and variance of every column, (…, p), and cells if there are any. z (…, d), one-hot y (…, n_classes)."""
        mean, raw_variance = networks.apply(self.spec, self.parameters, z, y, self.statistics)
        variance, cells = networks.decoder_variance(self.spec, raw_variance), self.spec.output_cells
        return (mean, variance) if cells is None else (mean, variance, cells)


@dataclass(frozen=True, eq=False)
class BlurredDecoder:
    """The decoder of a blurred model, x = mean(z) + sd(z) e + width e', with the variance variance(z) + width^2.

    The mass of a cell changes; the noise inside it does not.
    """

    decoder: DecoderLike
    width: float

    def __call__(self, z: tf.Tensor, y: tf.Tensor | None = None) -> tuple[tf.Tensor, ...]:
        """Mean, blurred variance and cells of every column."""
        mean, variance, *cells = self.decoder(z) if y is None else self.decoder(z, y)
        return mean, variance + self.width**2, *cells


class Proposal(NamedTuple):
    """The normal distribution N(mean, diag sd^2). Both (…, d)."""

    mean: tf.Tensor
    sd: tf.Tensor

    def draw(self, noise: tf.Tensor) -> tf.Tensor:
        """z = mean + sd * noise, with noise ~ N(0, I); gradients reach mean and sd. (…, d)."""
        return self.mean + self.sd * noise

    def log_prob(self, z: tf.Tensor, *, dtype: tf.DType | None = None) -> tf.Tensor:
        """log q(z), summed in `dtype`. (…, d) -> (…,)."""
        return log_likelihood(z, self.mean, tf.square(self.sd), dtype=dtype)


@dataclass(frozen=True, eq=False)
class Encoder:
    """x[, y] -> Proposal(mean, sd), with sd = softplus(raw) + SD_FLOOR.

    The paper's encoder has the mean alone, a start for HMC. The s.d. makes it a proposal q(z | x), which the evidence
    lower bound and importance sampling need. Nothing is clipped, as a clipped head has no gradient to recover with.
    Softplus is almost exp below zero, so narrow posteriors are learnt as fast as wide ones, and linear above, so a row
    far away gets a wide proposal and not an infinite one.
    """

    spec: NetworkSpec
    parameters: Parameters
    statistics: Statistics | None = None  # for training an encoder of images

    def __call__(self, x: tf.Tensor, y: tf.Tensor | None = None) -> Proposal:
        """The proposal of every row. x (…, p), one-hot y (…, n_classes) -> mean and sd (…, d)."""
        mean, raw_sd = networks.apply(self.spec, self.parameters, x, y, self.statistics)
        return Proposal(mean, tf.math.softplus(raw_sd) + SD_FLOOR)


def discriminate(
    spec: DiscriminatorSpec, parameters: Parameters, x: tf.Tensor, y: tf.Tensor | None = None
) -> tf.Tensor:
    """How real each row (or latent) looks, as one unbounded number. x (…, n_in), y (…, n_classes) -> (…,)."""
    return tf.squeeze(networks.apply(spec, parameters, x, y)[0], axis=-1)


# The paper's architectures. Unlike in the paper, encoders have a second head.


@dataclass(frozen=True)
class Networks:
    """Architecture of a decoder and its encoder."""

    decoder: NetworkSpec
    encoder: NetworkSpec


def decoder_spec(latent_dim: int, n_columns: int, n_classes: int = 0) -> NetworkSpec:
    """The paper's decoder for a table of this many columns."""
    return NetworkSpec(latent_dim, n_columns, ("mean", "raw_variance"), n_classes, _table_kind(n_columns))


def encoder_spec(latent_dim: int, n_columns: int, n_classes: int = 0) -> NetworkSpec:
    """The paper's encoder for a table of this many columns."""
    return NetworkSpec(n_columns, latent_dim, ("mean", "raw_sd"), n_classes, _table_kind(n_columns))


def _table_kind(n_columns: int) -> Kind:
    return "mlp" if n_columns <= _MLP_MAX_COLUMNS else "residual"


def image_decoder_spec(latent_dim: int, image: Image, n_classes: int = 0) -> NetworkSpec:
    """The paper's decoder of images."""
    heads = "mean", "raw_variance"
    return NetworkSpec(latent_dim, prod(image), heads, n_classes, "to_image", _IMAGE_CHANNELS, image=image)


def image_encoder_spec(latent_dim: int, image: Image, n_classes: int = 0) -> NetworkSpec:
    """The paper's encoder of images."""
    heads = "mean", "raw_sd"
    return NetworkSpec(prod(image), latent_dim, heads, n_classes, "from_image", _IMAGE_CHANNELS, image=image)


def of_images(image: Image, n_classes: int = 0) -> DiscriminatorSpec:
    """The paper's discriminator of images."""
    return DiscriminatorSpec(prod(image), n_classes, widths=(32, 64, 128, 128), image=image)


def of_latents_of_images(latent_dim: int) -> DiscriminatorSpec:
    """The paper's discriminator of the latents of images, without a condition."""
    return DiscriminatorSpec(latent_dim, activation="tanh", has_batch_norm=True)


# Joint parameters.


def merge(parts: Mapping[str, Parameters]) -> dict[str, tf.Tensor]:
    """The parameters of several networks, each under the name of its network."""
    return {f"{network}/{name}": value for network, part in parts.items() for name, value in part.items()}


def part_of(parameters: Parameters, network: str) -> dict[str, tf.Tensor]:
    """The parameters of one network inside joint parameters."""
    prefix = f"{network}/"
    return {name.removeprefix(prefix): value for name, value in parameters.items() if name.startswith(prefix)}


def initial_autoencoder(decoder: NetworkSpec, encoder: NetworkSpec, seed: int) -> dict[str, tf.Tensor]:
    """The random joint parameters of decoder and encoder under this seed."""
    specs = {"decoder": decoder, "encoder": encoder}
    return merge({network: initial_parameters(spec, seed, network) for network, spec in specs.items()})


def decoder_of(spec: NetworkSpec, parameters: Parameters, statistics: Statistics | None = None) -> Decoder:
    """The decoder inside joint parameters."""
    return Decoder(spec, part_of(parameters, "decoder"), statistics)


def encoder_of(spec: NetworkSpec, parameters: Parameters, statistics: Statistics | None = None) -> Encoder:
    """The encoder inside joint parameters."""
    return Encoder(spec, part_of(parameters, "encoder"), statistics)


def no_statistics() -> dict[str, Statistics]:
    """Empty mappings in which decoder and encoder record the statistics of a batch."""
    return {"decoder": {}, "encoder": {}}


def with_statistics(moved: Parameters, before: Parameters, seen: Parameters) -> dict[str, tf.Tensor]:
    """Parameters after an optimizer step, with the statistics from before it, moved towards those just seen."""
    statistics = {name: value for name, value in before.items() if is_statistic(name)}
    for name, value in seen.items():
        statistics[name] += _STATISTICS_RATE * (value - statistics[name])
    return {**moved, **statistics}
