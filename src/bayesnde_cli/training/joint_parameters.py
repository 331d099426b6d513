"""Parameters of several networks in one mapping, each network's under its own name: `decoder/hidden1/kernel`.

A loop's optimizer steps through them together, and a checkpoint holds them together.
"""

from collections.abc import Mapping

import tensorflow as tf

from bayesnde_cli.model import networks
from bayesnde_cli.model.decoder import Decoder
from bayesnde_cli.model.encoder import Encoder
from bayesnde_cli.model.image_layers import Statistics
from bayesnde_cli.model.networks import NetworkSpec
from bayesnde_cli.model.parameters import Parameters, is_statistic

# How fast the statistics of batch normalisation follow those of the batches.
_STATISTICS_RATE = 0.01


def joined(parts: Mapping[str, Parameters]) -> dict[str, tf.Tensor]:
    """The parameters of all networks, each under the name of its network."""
    return {f"{network}/{name}": value for network, part in parts.items() for name, value in part.items()}


def part_of(parameters: Parameters, network: str) -> dict[str, tf.Tensor]:
    """The parameters of one network inside joint parameters."""
    prefix = f"{network}/"
    return {name.removeprefix(prefix): value for name, value in parameters.items() if name.startswith(prefix)}


def initial_autoencoder(decoder: NetworkSpec, encoder: NetworkSpec, seed: int) -> dict[str, tf.Tensor]:
    """The joint parameters with which decoder and encoder start under this seed."""
    specs = {"decoder": decoder, "encoder": encoder}
    return joined({network: networks.initial_parameters(spec, seed, network) for network, spec in specs.items()})


def decoder_of(spec: NetworkSpec, parameters: Parameters, statistics: Statistics | None = None) -> Decoder:
    """The decoder inside joint parameters."""
    return Decoder(spec, part_of(parameters, "decoder"), statistics)


def encoder_of(spec: NetworkSpec, parameters: Parameters, statistics: Statistics | None = None) -> Encoder:
    """The encoder inside joint parameters."""
    return Encoder(spec, part_of(parameters, "encoder"), statistics)


def no_statistics() -> dict[str, Statistics]:
    """Where decoder and encoder leave the statistics of a batch."""
    return {"decoder": {}, "encoder": {}}


def with_statistics(moved: Parameters, before: Parameters, seen: Parameters) -> dict[str, tf.Tensor]:
    """Parameters after a step, with the statistics of batches as they were before it, or nearer to those just seen."""
    statistics = {name: value for name, value in before.items() if is_statistic(name)}
    for name, value in seen.items():
        statistics[name] += _STATISTICS_RATE * (value - statistics[name])
    return {**moved, **statistics}
