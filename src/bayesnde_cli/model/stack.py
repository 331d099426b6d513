"""The stack whose density is that of a run: the fitted latent-variable model, and members with closed forms,

    p(x) = w_0 p_0(x) + sum over k of w_k p_k(x).

The density p_0 of the fitted model must be estimated; the others are mixtures of normals. With classes, x is x | y, and
the fitted model has the weight of members that know no row of the class.

With r the share of the fitted model in p(x), an error s of log p_0(x) is an error log(1 - r + r e^s) of log p(x): about
r s if it is small. Members that hold nearly all of a density let the fitted model be off by several nats."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy.special import log_expit

from bayesnde_cli.model.normal_mixtures import ClassMixtures, NormalMixture, log_sum_exp
from bayesnde_cli.rng import derive_seed, generator
from bayesnde_cli.rows import Rows

# Names of members: the fitted model, and those of `training/members.py`.
MODEL, GAUSSIAN_MIXTURE, KERNELS = "latent variables", "Gaussian mixture", "kernel density"


@dataclass(frozen=True)
class Stack:
    """The weight of every member by its name, and the mixtures of all but the fitted model."""

    weights: Mapping[str, float]
    mixtures: Mapping[str, ClassMixtures]

    def log_rest(self, rows: Rows) -> np.ndarray:
        """log sum over k of w_k p_k(x) / w_0: what the others add to one unit of the fitted model's density. (rows,)"""
        parts = [math.log(self.weights[name]) + own.log_density(rows) for name, own in self.mixtures.items()]
        parts.append(np.full(len(rows), -np.inf))
        rest = log_sum_exp(np.nan_to_num(np.array(parts), nan=-np.inf, neginf=-np.inf), axis=0)
        return rest - self._log_model_weight(rows)

    def add(self, log_density: np.ndarray, rows: Rows) -> np.ndarray:
        """log p(x) from the log-density of the fitted model; NaN where that is NaN."""
        log_rest = self.log_rest(rows) if rows.log_rest is None else rows.log_rest
        with np.errstate(invalid="ignore"):  # NaN
            return np.asarray(self._log_model_weight(rows) + np.logaddexp(log_density, log_rest))

    def _log_model_weight(self, rows: Rows) -> np.ndarray:
        """log w_0 in the class of each row, (rows,)."""
        by_class = np.log(self._class_weights(max(1, rows.n_classes))[:, 0])
        return by_class[np.zeros(len(rows), np.int64) if rows.classes is None else rows.classes]

    def _class_weights(self, n_classes: int) -> np.ndarray:
        """The weights in each class, (classes, members)."""
        weights = np.zeros((n_classes, 1 + len(self.mixtures)))
        for number, (name, mixtures) in enumerate(self.mixtures.items(), 1):
            has_rows = [mixture is not None for mixture in mixtures.mixtures]
            weights[:, number] = np.where(has_rows, self.weights[name], 0.0)
        weights[:, 0] = 1.0 - weights.sum(axis=1)
        return weights

    def blur(self, sd: float) -> "Stack":
        """The stack after noise with this standard deviation is added to every column."""
        return replace(self, mixtures={name: mixtures.blur(sd) for name, mixtures in self.mixtures.items()})

    def mix_rows(self, x: np.ndarray, y: np.ndarray | None, seed: int) -> np.ndarray:
        """Rows of the stack, from rows x of the fitted model (rows, p): some are replaced by rows of the others."""
        x = x.copy()
        for mixture, index, address in self._choose(len(x), y, seed):
            x[index] = mixture.draw(len(index), address)
        return x

    def mix_moments(
        self, mean: np.ndarray, variance: np.ndarray, y: np.ndarray | None, seed: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """Means and variances of independent normal columns, (rows, p) each, whose average density is the stack's."""
        mean, variance = mean.copy(), variance.copy()
        for mixture, index, address in self._choose(len(mean), y, seed):
            mean[index], variance[index] = mixture.moments(len(index), address)
        return mean, variance

    def _choose(self, n_rows: int, y: np.ndarray | None, seed: int) -> Iterator[tuple[NormalMixture, np.ndarray, int]]:
        """The rows that do not come from the fitted model: their mixture, positions and seed, class by class."""
        limits = np.cumsum(self._class_weights(1 if y is None else y.shape[1]), axis=1)
        classes = np.zeros(n_rows, np.int64) if y is None else y.argmax(axis=1)
        uniform = generator(seed, "member").random(n_rows)
        # The sum of the weights may be slightly less than 1.
        chosen = np.sum(uniform[:, None] >= limits[classes, :-1], axis=1)
        for number, (name, mixtures) in enumerate(self.mixtures.items(), 1):
            for own_class, mixture in enumerate(mixtures.mixtures):
                index = np.flatnonzero((chosen == number) & (classes == own_class))
                if mixture is not None and len(index):
                    yield mixture, index, derive_seed(seed, name, own_class)

    def arrays(self) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """The stack as arrays and facts of a file."""
        arrays = {
            f"{name}/{part}": array
            for name, mixtures in self.mixtures.items()
            for part, array in mixtures.arrays().items()
        }
        return arrays, dict(self.weights)

    @staticmethod
    def from_arrays(arrays: Mapping[str, np.ndarray], weights: Mapping[str, float]) -> "Stack":
        """The stack that `arrays` gave."""

        def mixtures(prefix: str) -> ClassMixtures:
            own = {name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)}
            return ClassMixtures.from_arrays(own)

        return Stack(weights, {name: mixtures(f"{name}/") for name in weights if name != MODEL})


ALONE = Stack({MODEL: 1.0}, {})


# What an error of the fitted model's log-density means for the stack


def error_of_stack(se: np.ndarray, log_density: np.ndarray, log_rest: np.ndarray) -> np.ndarray:
    """The error of log p(x), from that of the fitted model's log-density; all (rows,)."""
    with np.errstate(invalid="ignore"):
        log_odds = log_density - log_rest
        error = np.logaddexp(log_expit(-log_odds), log_expit(log_odds) + se)
    # An infinite error says that nothing is known, whatever the share.
    return np.where(np.isnan(log_odds) | np.isinf(se), se, np.maximum(error, 0.0))


def allowed_error(target: float, log_density: np.ndarray, log_rest: np.ndarray) -> np.ndarray:
    """The error of the fitted model's log-density that makes this error of log p(x), (rows,)."""
    with np.errstate(invalid="ignore", divide="ignore"):  # the target may be 0
        log_odds = log_density - log_rest
        allowed = np.logaddexp(target, np.log(np.expm1(target)) - log_odds)
    return np.where(np.isnan(log_odds), target, allowed)
