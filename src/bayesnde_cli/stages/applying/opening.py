"""What `sample` and `grid` need of the fitted decoder, and how it is opened."""

from collections.abc import Callable
from typing import Protocol

import numpy as np

from bayesnde_cli.artifacts.layout import RunLayout
from bayesnde_cli.config import PosteriorConfig


class Prior(Protocol):
    """Draws from the model in blocks of one size; equal arguments give equal bits."""

    def rows(self, seed: int, y: np.ndarray | None = None) -> np.ndarray:
        """A block of rows x, (rows, p) float32; y (rows, classes) one-hot, for a conditional model."""

    def moments(self, seed: int, y: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
        """Mean and variance of every column given each of a block of latents, (latents, p) float32 each."""


# The run, device and threads, and the rows of a block.
PriorFactory = Callable[[RunLayout, PosteriorConfig, int], Prior]


def open_prior(layout: RunLayout, config: PosteriorConfig, block_rows: int, *, is_verbose: bool = False) -> Prior:
    """Draws from the refined model of a run."""
    from bayesnde_cli.model.backend import load_tensorflow

    tf = load_tensorflow(verbose=is_verbose, device=config.device, threads=config.threads).tensorflow
    from bayesnde_cli.stages.applying.prior_draws import PriorDraws
    from bayesnde_cli.stages.weights import read_networks
    from bayesnde_cli.training.joint_parameters import decoder_of

    stored = read_networks(layout, "refine")
    decoder = decoder_of(stored.decoder, {name: tf.constant(array) for name, array in stored.weights.items()})
    return PriorDraws(decoder, stored.decoder.n_in, block_rows=block_rows)
