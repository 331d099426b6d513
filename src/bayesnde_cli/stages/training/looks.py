"""Looks at the validation rows: the figures of a checkpoint, and which of several is chosen."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from bayesnde_cli.config import TrainingConfig
from bayesnde_cli.model.likelihood import draw_rows, log_likelihood
from bayesnde_cli.model.parameters import Parameters
from bayesnde_cli.rng import derive_seed
from bayesnde_cli.stages.training.phases import Networks
from bayesnde_cli.stages.training.rows import Rows, labels_like
from bayesnde_cli.training.diagnostics import DIAGNOSTICS, class_weighted, diagnose, diagnose_by_class, percentile_ranks
from bayesnde_cli.training.joint_parameters import decoder_of, encoder_of
from bayesnde_cli.training.marginal import marginal_scorer

# A look that gains less than this (nats) is no gain: it is within the noise of the importance sampling.
_LEAST_GAIN = 1e-3
_FIGURE = {"marginal": "marginal", "plug-in": "plug_in"}


class Judge:
    """Figures of weights on the same validation rows, with the same random numbers, every time."""

    def __init__(self, config: TrainingConfig, networks: Networks, validation: Rows) -> None:
        assert config.seed is not None
        assert config.validation_rows is not None
        assert config.generated_rows is not None
        seed = derive_seed(config.seed, config.stage, "validation")
        self._networks, self._seed = networks, tf.constant(seed % 2**31, tf.int32)
        self._rows = validation.sample(config.validation_rows, seed)
        self._generated_y = labels_like(self._rows.y, config.generated_rows)
        self._n_generated = config.generated_rows if self._generated_y is None else len(self._generated_y)
        self._score = marginal_scorer(networks.decoder, networks.encoder, n_draws=config.validation_draws)
        self._diagnostics_seed = seed

    def __call__(self, weights: Parameters) -> dict[str, float | None]:
        """Log-densities in the units of the file, the paper's diagnostics in the model's space; None if not finite."""
        x, y = self._rows.tensors()
        marginal = self._score(weights, x, y, self._seed).numpy() + self._rows.log_jacobian
        z = encoder_of(self._networks.encoder, weights)(x, y).mean
        plug_in = log_likelihood(x, *decoder_of(self._networks.decoder, weights)(z, y), dtype=tf.float64).numpy()
        figures = {
            "marginal": float(np.mean(marginal)),
            "marginal_se": float(np.std(marginal) / np.sqrt(len(marginal))),
            "plug_in": float(np.mean(plug_in + self._rows.log_jacobian)),
            **self._diagnostics(weights),
        }
        return {name: float(value) if np.isfinite(value) else None for name, value in figures.items()}

    def _diagnostics(self, weights: Parameters) -> dict[str, float]:
        y = self._generated_y
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
        spec = self._networks.decoder
        return draw_rows(decoder_of(spec, weights), self._n_generated, spec.n_in, tf.stack([self._seed, -2]), y=y)


def ranks(looks: Sequence[Mapping[str, Any]]) -> list[float]:
    """The mean percentile rank of each look among all, by the paper's diagnostics."""
    table = [{name: np.inf if look[name] is None else look[name] for name in DIAGNOSTICS} for look in looks]
    return percentile_ranks(table).tolist()


def chosen_look(looks: Sequence[Mapping[str, Any]], select: str) -> int:
    """The index of the best look; a later one must be better by more than noise."""
    if select == "rank":
        return int(np.argmin(ranks(looks)))
    figures = [-np.inf if look[_FIGURE[select]] is None else look[_FIGURE[select]] for look in looks]
    best = 0
    for index, figure in enumerate(figures):
        if figure > figures[best] + _LEAST_GAIN:
            best = index
    return best


def n_misses(looks: Sequence[Mapping[str, Any]], select: str, *, after_round: int) -> int:
    """Looks since the best one; those up to a round do not count, and ranks only mean something at the end."""
    if select == "rank" or not looks:
        return 0
    return sum(look["round"] > after_round for look in looks[chosen_look(looks, select) + 1 :])
