"""The stack whose density is that of a run: the fitted latent-variable model, and members with closed forms,

    p(x) = w_0 p_0(x) + sum over k of w_k p_k(x).

The density p_0 of the fitted model must be estimated; the others are mixtures of normals. With classes, x is x | y."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from bayesnde_cli.model.normal_mixtures import ClassMixtures, NormalMixture, log_sum_exp
from bayesnde_cli.rng import derive_seed, generator
from bayesnde_cli.rows import Rows

MODEL = "latent variables"  # the name of the fitted model among the members


@dataclass(frozen=True)
class Stack:
    """The weight of every member by its name, the fitted model first, and the mixtures of the others."""

    weights: Mapping[str, float]
    mixtures: Mapping[str, ClassMixtures]

    @property
    def model_weight(self) -> float:
        return self.weights[MODEL]

    def log_rest(self, rows: Rows) -> np.ndarray:
        """log sum over k of w_k p_k(x) / w_0: what the others add to one unit of the fitted model's density. (rows,)"""
        parts = [
            math.log(self.weights[name] / self.model_weight) + mixtures.log_density(rows)
            for name, mixtures in self.mixtures.items()
        ]
        return log_sum_exp(np.nan_to_num(np.array(parts), nan=-np.inf, neginf=-np.inf), axis=0)

    def add(self, log_density: np.ndarray, log_rest: np.ndarray) -> np.ndarray:
        """log p(x) from the log-density of the fitted model; NaN where that is NaN."""
        return math.log(self.model_weight) + np.logaddexp(log_density, log_rest)

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
        shares = [self.model_weight, *(self.weights[name] for name in self.mixtures)]
        chosen = generator(seed, "member").choice(len(shares), n_rows, p=shares)
        classes = np.zeros(n_rows, np.int64) if y is None else y.argmax(axis=1)
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
