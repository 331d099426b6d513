"""Classical density estimators and outlier detectors, and how a long fit saves its state.

A fit takes training rows, validation rows that choose its settings, and a seed; columns are standardised, float64.
The densities are mixtures of normals, fitted by `training/members.py`.
"""

import hashlib
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, Protocol

import numpy as np

from bayesnde_cli import __version__
from bayesnde_cli.model.normal_mixtures import NormalMixture
from bayesnde_cli.rng import derive_seed
from bayesnde_cli.rows import Rows, some_rows
from bayesnde_cli.training.members import (
    COMPONENTS,
    KERNEL_MOST_ROWS,
    MOST_ROWS,
    fit_gaussian,
    fit_gaussian_mixture,
    fit_kernels,
    kernel_mixture,
)


class Fitted(NamedTuple):
    """A fitted estimator: rows to scores (n,), larger for more usual rows; and the settings that it chose."""

    score: Callable[[Rows], np.ndarray]
    chosen: dict[str, Any]


# (training rows, validation rows, seed) -> the fitted estimator
Fit = Callable[[Rows, Rows, int], Fitted]


def by_class(fit: Fit) -> Fit:
    """The fit to all rows; with classes, one fit for each class. `chosen["classes"]` is then by class index."""

    def fit_classes(train: Rows, validation: Rows, seed: int) -> Fitted:
        if train.classes is None:
            fitted = fit(train, validation, seed)
            score = np.errstate(over="ignore", invalid="ignore")(fitted.score)  # extreme rows have no finite density
            return Fitted(score, fitted.chosen | {"n_train_rows": len(train)})
        experts = {
            index: fit_classes(_of_class(train, index), _of_class(validation, index), derive_seed(seed, index))
            for index in np.unique(train.classes).tolist()
        }

        def score_classes(rows: Rows) -> np.ndarray:
            scores = np.full(len(rows), np.nan)  # a class without training rows has no density
            for index, expert in experts.items():
                own = _of_class(rows, index)
                if len(own):
                    scores[rows.classes == index] = expert.score(own)
            return scores

        return Fitted(
            score_classes, {"fit": "experts", "classes": {index: own.chosen for index, own in experts.items()}}
        )

    return fit_classes


def _of_class(rows: Rows, index: int) -> Rows:
    return replace(rows.take(np.flatnonzero(rows.classes == index)), y=None)


# Outlier detectors without a density, with scikit-learn's defaults: no labels are used to choose other settings.

# Time and memory of the support vector machine grow with the square of the rows.
MOST_SVM_ROWS = 5_000


def one_class_svm(train: Rows, _validation: Rows, seed: int) -> Fitted:
    """A one-class support vector machine (Schölkopf et al. 2001)."""
    from sklearn.svm import OneClassSVM

    x = train.x[some_rows(len(train), MOST_SVM_ROWS, seed)]
    machine = OneClassSVM().fit(x)
    return Fitted(lambda rows: machine.decision_function(rows.x), {"nu": machine.nu, "n_fit_rows": len(x)})


def isolation_forest(train: Rows, _validation: Rows, seed: int) -> Fitted:
    """An isolation forest (Liu, Ting and Zhou 2008)."""
    from sklearn.ensemble import IsolationForest

    forest = IsolationForest(random_state=derive_seed(seed, "forest") % 2**32).fit(train.x)
    chosen = {"trees": len(forest.estimators_), "n_fit_rows": len(train)}
    return Fitted(lambda rows: forest.decision_function(rows.x), chosen)


def distance(train: Rows, _validation: Rows, _seed: int) -> Fitted:
    """Minus the squared distance from the mean of the training rows: the simplest detector of all."""
    mean = train.x.mean(axis=0)
    return Fitted(lambda rows: -np.sum((rows.x - mean) ** 2, axis=1), {"n_fit_rows": len(train)})


# Mixtures of normals

# A mixture that the user names as a competitor has more to choose from and more rows, and may take minutes.
MORE_COMPONENTS, MANY_ROWS = (*COMPONENTS, 80, 128, 200), 100_000
# `density --blur` of the preset `outliers`.
OUTLIERS_BLUR = 0.5


def gaussian(train: Rows, _validation: Rows, _seed: int) -> Fitted:
    """The Gaussian of maximum likelihood."""
    return _as_fitted(fit_gaussian(train.x), {"n_fit_rows": len(train)})


def gaussian_mixture(
    train: Rows, validation: Rows, seed: int, *, components: Sequence[int] = COMPONENTS, most_rows: int | None = None
) -> Fitted:
    """The Gaussian mixture with the highest mean log-density on held-out rows."""
    most_rows = most_rows or MOST_ROWS
    return _as_fitted(*fit_gaussian_mixture(train, validation, seed, components=components, most_rows=most_rows))


def kernel_density(train: Rows, validation: Rows, seed: int) -> Fitted:
    """The kernel density with the bandwidth of the highest mean log-density on held-out rows."""
    return _as_fitted(*fit_kernels(train, validation, seed, most_rows=KERNEL_MOST_ROWS))


def blurred_kernels(train: Rows, _validation: Rows, seed: int, *, blur: float = OUTLIERS_BLUR) -> Fitted:
    """A kernel density with the bandwidth by which `density --blur` widens a model: sqrt(2 p) times the blur."""
    kernels = train.x[some_rows(len(train), KERNEL_MOST_ROWS, seed)]
    bandwidth = blur * math.sqrt(2.0 * train.x.shape[1])
    return _as_fitted(kernel_mixture(kernels, bandwidth), {"bandwidth": bandwidth, "n_fit_rows": len(kernels)})


def _as_fitted(mixture: NormalMixture, chosen: dict[str, Any]) -> Fitted:
    return Fitted(lambda rows: mixture.log_density(rows.x), chosen)


# The saved state of a long fit: the next process resumes from it, to the same numbers.

# Least time between two saves.
_SECONDS_BETWEEN = 10.0


class Keeper(Protocol):
    """Storage for the states of fits."""

    def read(self, digest: str) -> dict[str, np.ndarray] | None:
        """The saved state of a fit; None if there is none that can be read."""

    def write(self, digest: str, arrays: Mapping[str, np.ndarray]) -> None:
        """Replace the saved state of a fit."""


class KeptState:
    """The saved state of one fit, known by the digest of its settings and rows. Without a keeper it saves nothing."""

    def __init__(self, keeper: Keeper | None, settings: object, *parts: Rows) -> None:
        self._keeper, self._written = keeper, time.monotonic()
        digest = hashlib.sha256(repr((settings, __version__)).encode())
        for rows in parts:
            for array in (rows.x, rows.classes):
                content = np.ascontiguousarray([] if array is None else array)
                digest.update(f"{content.dtype} {content.shape}".encode() + content.tobytes())
        self._digest = digest.hexdigest()

    def read(self) -> dict[str, np.ndarray] | None:
        """The saved arrays, if there are any."""
        return None if self._keeper is None else self._keeper.read(self._digest)

    def write(self, arrays: Callable[[], Mapping[str, np.ndarray]], *, is_last: bool = False) -> None:
        """Save the state, unless it was saved a moment ago and more states follow."""
        if self._keeper is None or (not is_last and time.monotonic() - self._written < _SECONDS_BETWEEN):
            return
        self._keeper.write(self._digest, arrays())
        self._written = time.monotonic()
