"""The refined networks behind `Model`."""

import numpy as np
import tensorflow as tf

from bayesnde_cli.artifacts.layout import RunLayout
from bayesnde_cli.model.likelihood import draw_rows
from bayesnde_cli.stages.weights import read_networks
from bayesnde_cli.training.joint_parameters import decoder_of
from bayesnde_cli.training.marginal import marginal_scorer


class RefinedModel:
    """The model that `refine` has left; log-densities are estimated as its checkpoints were judged."""

    def __init__(self, layout: RunLayout, n_draws: int, device: str) -> None:
        stored = read_networks(layout, "refine")
        self._weights = {name: tf.constant(array) for name, array in stored.weights.items()}
        self._decoder = decoder_of(stored.decoder, self._weights)
        self.latent_dim = stored.decoder.n_in
        self._score = marginal_scorer(stored.decoder, stored.encoder, n_draws=n_draws)
        self.device = device

    def decode(self, z: np.ndarray, y: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
        mean, variance, *_ = self._decoder(tf.constant(z), None if y is None else tf.constant(y))
        return mean.numpy(), variance.numpy()

    def simulate(self, n_rows: int, y: np.ndarray | None, seed: int) -> np.ndarray:
        address = tf.constant([seed % 2**31, seed // 2**31 % 2**31], tf.int32)
        given = None if y is None else tf.constant(y)
        return np.asarray(draw_rows(self._decoder, n_rows, self.latent_dim, address, y=given))

    def log_density(self, x: np.ndarray, y: np.ndarray | None, seed: int) -> np.ndarray:
        given = None if y is None else tf.constant(y)
        return np.asarray(self._score(self._weights, tf.constant(x), given, tf.constant(seed % 2**31, tf.int32)))
