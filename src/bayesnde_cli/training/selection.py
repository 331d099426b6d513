"""Validation checks: log-densities of weights and diagnostics on validation rows, and which check is selected."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from scipy.stats import rankdata

from bayesnde_cli.inference.importance import marginal_scorer
from bayesnde_cli.model.coders import Networks, decoder_of, encoder_of
from bayesnde_cli.model.layers import Parameters
from bayesnde_cli.model.likelihood import draw_rows, log_likelihood
from bayesnde_cli.rng import derive_seed
from bayesnde_cli.rows import Rows
from bayesnde_cli.settings.stage_settings import TrainingSettings
from bayesnde_cli.training.generated_rows import DIAGNOSTICS, diagnose_by_class, labels_like

# Draws by which the weight of the fitted model in a stack is found: with few draws its log-densities are too low.
_STACK_DRAWS = 512
# Smallest improvement that counts, in nats: less is within the noise of the importance sampling.
_LEAST_GAIN = 1e-3


class ValidationCheck:
    """Figures of weights, each time on the same validation rows with the same random numbers."""

    def __init__(self, settings: TrainingSettings, networks: Networks, validation: Rows) -> None:
        assert settings.seed is not None
        assert settings.validation_rows is not None
        assert settings.generated_rows is not None
        self._seed = derive_seed(settings.seed, settings.stage, "validation")
        self._networks = networks
        self._rows = validation.sample(settings.validation_rows, self._seed)
        self._generated_y = labels_like(self._rows.y, settings.generated_rows)
        self._n_generated = settings.generated_rows if self._generated_y is None else len(self._generated_y)
        self._score = marginal_scorer(networks.decoder, networks.encoder, n_draws=settings.validation_draws)

    def __call__(self, weights: Parameters) -> dict[str, float | None]:
        """Log-densities in the units of the file and diagnostics in the model's space; None if not finite."""
        rows, seed = self._rows, self._seed_tensor
        x, y, generated_y = (
            None if part is None else tf.constant(part) for part in (rows.x, rows.y, self._generated_y)
        )
        decoder = decoder_of(self._networks.decoder, weights)
        marginal = self._score(weights, x, y, seed).numpy() + rows.log_jacobian
        z = encoder_of(self._networks.encoder, weights)(x, y).mean
        plug_in = log_likelihood(x, *decoder(z, y), dtype=tf.float64).numpy() + rows.log_jacobian
        address, d = tf.stack([seed, -2]), self._networks.decoder.n_in
        generated = draw_rows(decoder, self._n_generated, d, address, y=generated_y).numpy()
        diagnostics, _ = diagnose_by_class(rows.x, generated, rows.y, self._generated_y, seed=self._seed)
        figures = {
            "marginal": np.mean(marginal),
            "marginal_se": np.std(marginal) / np.sqrt(len(marginal)),
            "plug_in": np.mean(plug_in),
            **diagnostics,
        }
        return {name: float(value) if np.isfinite(value) else None for name, value in figures.items()}

    def log_density(self, weights: Parameters) -> tuple[Rows, np.ndarray]:
        """The validation rows, and log-densities in the model's space from more draws than in a check, (rows,)."""
        x, y = (None if part is None else tf.constant(part) for part in (self._rows.x, self._rows.y))
        score = marginal_scorer(self._networks.decoder, self._networks.encoder, n_draws=_STACK_DRAWS)
        return self._rows, score(weights, x, y, self._seed_tensor).numpy()

    @property
    def _seed_tensor(self) -> tf.Tensor:
        return tf.constant(self._seed % 2**31, tf.int32)


def rank_checks(checks: Sequence[Mapping[str, Any]]) -> list[float]:
    """The mean percentile rank of each check by the diagnostics; the paper selects the smallest.

    mean over diagnostics m of r_m(e) = #{e' : d_m(e') < d_m(e)} / (#checks - 1)        (paper, S4)

    None counts as infinite. One check alone has rank 0.
    """
    table = [[np.inf if check[name] is None else check[name] for name in DIAGNOSTICS] for check in checks]
    n_smaller = rankdata(table, "min", axis=0) - 1.0  # (checks, diagnostics)
    return (np.mean(n_smaller, axis=1) / max(len(checks) - 1, 1)).tolist()


def best_check(checks: Sequence[Mapping[str, Any]], select: str) -> int:
    """The index of the selected check; a later one must improve by more than noise."""
    if select == "rank":
        return int(np.argmin(rank_checks(checks)))
    figures = [check[select.replace("-", "_")] for check in checks]
    values = [-np.inf if figure is None else figure for figure in figures]
    best = 0
    for index, value in enumerate(values):
        if value > values[best] + _LEAST_GAIN:
            best = index
    return best


def n_misses(checks: Sequence[Mapping[str, Any]], select: str, *, after_round: int) -> int:
    """The number of checks since the best one; those up to `after_round` do not count. 0 for ranks, which change."""
    if select == "rank" or not checks:
        return 0
    return sum(check["round"] > after_round for check in checks[best_check(checks, select) + 1 :])
