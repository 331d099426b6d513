"""Looks at the validation rows: the figures of a checkpoint, and which of several is chosen."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from bayesnde_cli.config import TrainingConfig
from bayesnde_cli.model.likelihood import log_likelihood
from bayesnde_cli.model.parameters import Parameters
from bayesnde_cli.stages.training.phases import Networks
from bayesnde_cli.stages.training.rows import Rows
from bayesnde_cli.training.diagnostics import DIAGNOSTICS, class_weighted, diagnose, diagnose_by_class, percentile_ranks
from bayesnde_cli.training.joint_parameters import decoder_of, encoder_of
from bayesnde_cli.training.marginal import marginal_scorer

# A look that gains less than this (nats) is no gain: it is within the noise of the importance sampling.
_LEAST_GAIN = 1e-3
_FIGURE = {"marginal": "marginal", "plug-in": "plug_in"}


class Judge:
    """Figures of weights on the same validation rows, with the same random numbers, every time."""

    def __init__(self, config: TrainingConfig, networks: Networks, rows: Rows, seed: tf.Tensor) -> None:
        self._networks, self._rows, self._seed = networks, rows, seed
        self._n_generated = config.generated_rows
        self._score = marginal_scorer(networks.decoder, networks.encoder, n_draws=config.validation_draws)
        self._diagnostics_seed = int(seed)

    def __call__(self, weights: Parameters) -> dict[str, float]:
        """Log-densities in the units of the file, and the paper's diagnostics in the model's space."""
        x, y = self._rows.tensors()
        marginal = self._score(weights, x, y, self._seed).numpy() + self._rows.log_jacobian
        z = encoder_of(self._networks.encoder, weights)(x, y).mean
        plug_in = log_likelihood(x, *decoder_of(self._networks.decoder, weights)(z, y), dtype=tf.float64).numpy()
        return {
            "marginal": float(np.mean(marginal)),
            "marginal_se": float(np.std(marginal) / np.sqrt(len(marginal))),
            "plug_in": float(np.mean(plug_in + self._rows.log_jacobian)),
            **self._diagnostics(weights),
        }

    def _diagnostics(self, weights: Parameters) -> dict[str, float]:
        of_row = np.arange(self._n_generated) % len(self._rows.x)  # classes as often as the validation rows have them
        y = None if self._rows.y is None else self._rows.y[of_row]
        generated = self._generated(weights, None if y is None else tf.constant(y)).numpy()
        if self._rows.y is None or y is None:
            return diagnose(self._rows.x, generated, seed=self._diagnostics_seed)
        real_class = self._rows.y.argmax(axis=1)
        by_class = diagnose_by_class(
            self._rows.x, generated, real_class=real_class, generated_class=y.argmax(axis=1),
            seed=self._diagnostics_seed,
        )  # fmt: skip
        return class_weighted(by_class, real_class)

    def _generated(self, weights: Parameters, y: tf.Tensor | None) -> tf.Tensor:
        """Rows of the model: x = mean(z) + sd(z) * noise, z from the prior."""
        spec = self._networks.decoder
        seeds = tf.random.split(tf.stack([self._seed, -2]), 2)
        z = tf.random.stateless_normal([self._n_generated, spec.n_in], seeds[0])
        mean, variance = decoder_of(spec, weights)(z, y)
        return mean + tf.sqrt(variance) * tf.random.stateless_normal(mean.shape, seeds[1])


def ranks(looks: Sequence[Mapping[str, Any]]) -> list[float]:
    """The mean percentile rank of each look among all, by the paper's diagnostics."""
    return percentile_ranks([{name: look[name] for name in DIAGNOSTICS} for look in looks]).tolist()


def chosen_look(looks: Sequence[Mapping[str, Any]], select: str) -> int:
    """The index of the best look; a later one must be better by more than noise."""
    if select == "rank":
        return int(np.argmin(ranks(looks)))
    best = 0
    for index, look in enumerate(looks):
        if look[_FIGURE[select]] > looks[best][_FIGURE[select]] + _LEAST_GAIN:
            best = index
    return best


def n_misses(looks: Sequence[Mapping[str, Any]], select: str, *, after_round: int) -> int:
    """Looks since the best one; those up to a round do not count, and ranks only mean something at the end."""
    if select == "rank" or not looks:
        return 0
    return sum(look["round"] > after_round for look in looks[chosen_look(looks, select) + 1 :])
