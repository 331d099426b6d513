"""The networks that a training stage has left: what they look like, and their weights."""

from typing import Any, NamedTuple

import numpy as np

from bayesnde_cli.artifacts.arrays import read_arrays
from bayesnde_cli.artifacts.layout import RunLayout
from bayesnde_cli.model.networks import NetworkSpec


class StoredNetworks(NamedTuple):
    """Decoder and encoder, and the arrays of both."""

    decoder: NetworkSpec
    encoder: NetworkSpec
    weights: dict[str, np.ndarray]


def read_networks(layout: RunLayout, stage: str) -> StoredNetworks:
    """The networks of a finished stage."""
    arrays, facts = read_arrays(layout.weights_dir(stage) / "model.npz")
    return StoredNetworks(_spec(facts["decoder"]), _spec(facts["encoder"]), arrays)


def _spec(stored: dict[str, Any]) -> NetworkSpec:
    return NetworkSpec(**{**stored, "heads": tuple(stored["heads"])})
