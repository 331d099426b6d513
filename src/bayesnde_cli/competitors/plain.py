"""Classical density estimators and outlier detectors, and how a long fit saves its state.

A fit takes training rows, validation rows that choose its settings, and a seed; columns are standardised, float64.
"""

import hashlib
import math
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, Protocol

import numpy as np
from scipy.stats import Covariance, multivariate_normal

from bayesnde_cli import __version__, stopping
from bayesnde_cli.rng import derive_seed, generator
from bayesnde_cli.rows import Rows


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


def some_rows(rows: np.ndarray, most: int, seed: int) -> np.ndarray:
    """All rows, or `most` of them drawn without replacement, in their order."""
    if len(rows) <= most:
        return rows
    return rows[np.sort(generator(seed, "baseline rows").choice(len(rows), most, replace=False))]


# Outlier detectors without a density, with scikit-learn's defaults: no labels are used to choose other settings.

# Time and memory of the support vector machine grow with the square of the rows.
MOST_SVM_ROWS = 5_000


def one_class_svm(train: Rows, _validation: Rows, seed: int) -> Fitted:
    """A one-class support vector machine (Schölkopf et al. 2001)."""
    from sklearn.svm import OneClassSVM

    x = some_rows(train.x, MOST_SVM_ROWS, seed)
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


# Gaussian and Gaussian mixture

# Added to the diagonal of covariances, in standardised units, so that collinear columns have a density.
RIDGE = 1e-6
# Validation rows choose the number of components and the kind of covariance.
COMPONENTS = (1, 2, 3, 5, 8, 12, 20, 32, 50)
COVARIANCES = ("full", "diag")
# Larger numbers of components are not tried after this many in a row without improvement.
_PATIENCE = 2
# Least number of rows per component.
_LEAST_ROWS = 5
# EM passes over all training rows again and again, so it gets at most this many.
MOST_ROWS = 10_000
# A mixture that the user names as a competitor has more to choose from and more rows, and may take minutes.
MORE_COMPONENTS, MANY_ROWS = (*COMPONENTS, 80, 128, 200), 100_000


def gaussian(train: Rows, _validation: Rows, _seed: int) -> Fitted:
    """The Gaussian of maximum likelihood."""
    mean = train.x.mean(axis=0)
    covariance = (train.x - mean).T @ (train.x - mean) / len(train) + RIDGE * np.eye(len(mean))
    normal = multivariate_normal(mean, Covariance.from_cholesky(np.linalg.cholesky(covariance)))
    return Fitted(lambda rows: np.atleast_1d(normal.logpdf(rows.x)), {"n_fit_rows": len(train)})


def gaussian_mixture(
    train: Rows, validation: Rows, seed: int, *, components: Sequence[int] = COMPONENTS, most_rows: int | None = None
) -> Fitted:
    """The mixture with the highest mean log-density on the validation rows; a Gaussian for a single training row."""
    if len(train) < 2:
        return gaussian(train, validation, seed)
    x = some_rows(train.x, most_rows or MOST_ROWS, seed)
    best: Any = None
    best_score = -np.inf
    for covariance in COVARIANCES:
        own_best, n_misses = -np.inf, 0
        for n_components in components:
            if n_misses >= _PATIENCE or n_components > max(1, len(x) // _LEAST_ROWS):
                break
            stopping.check()
            mixture = _fit_mixture(x, n_components, covariance, seed)
            score = float(np.mean(mixture.score_samples(validation.x)))
            n_misses = 0 if score > own_best else n_misses + 1
            own_best = max(score, own_best)
            if best is None or score > best_score:
                best, best_score = mixture, score
    chosen = {"components": best.n_components, "covariance": best.covariance_type, "n_fit_rows": len(x)}
    return Fitted(lambda rows: best.score_samples(rows.x), chosen)


def _fit_mixture(x: np.ndarray, n_components: int, covariance: str, seed: int) -> Any:
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.mixture import GaussianMixture
    from threadpoolctl import threadpool_limits

    mixture = GaussianMixture(
        n_components,
        covariance_type=covariance,
        reg_covar=RIDGE,
        random_state=derive_seed(seed, "mixture", covariance, n_components) % 2**32,
    )
    # One thread: the products are small, and with two threads they took six times as long.
    with warnings.catch_warnings(), threadpool_limits(1):
        # No convergence, or fewer distinct rows than components: the validation rows decide.
        warnings.simplefilter("ignore", ConvergenceWarning)
        return mixture.fit(x)


# Kernel density: a spherical Gaussian on every training row,
#
#     log p(x) = log mean_i exp(-|x - x_i|^2 / (2 h^2)) - p log h - (p / 2) log(2 pi).
#
# Unlike scikit-learn's it computes the distances once for all bandwidths.

# Bandwidths in standardised units: from 1/256 to 4, a factor of sqrt 2 apart. Validation rows choose.
BANDWIDTHS = tuple(2.0 ** (k / 2) for k in range(-16, 5))
# Every row is compared with every kernel: largest number of kernels, and of validation rows.
KERNEL_MOST_ROWS = 10_000
MOST_CHOOSING_ROWS = 1_000
_ROWS_AT_ONCE = 256
# `density --blur` of the preset `outliers`.
OUTLIERS_BLUR = 0.5


def kernel_density(train: Rows, validation: Rows, seed: int) -> Fitted:
    """The kernel density with the bandwidth of the highest mean log-density on the validation rows."""
    kernels = some_rows(train.x, KERNEL_MOST_ROWS, seed)
    scores = log_kernel_density(some_rows(validation.x, MOST_CHOOSING_ROWS, seed), kernels, BANDWIDTHS)
    return _kernels(kernels, BANDWIDTHS[int(np.argmax(scores.mean(axis=1)))])


def blurred_kernels(train: Rows, _validation: Rows, seed: int, *, blur: float = OUTLIERS_BLUR) -> Fitted:
    """A kernel density with the bandwidth by which `density --blur` widens a model: sqrt(2 p) times the blur."""
    return _kernels(some_rows(train.x, KERNEL_MOST_ROWS, seed), blur * math.sqrt(2.0 * train.x.shape[1]))


def _kernels(kernels: np.ndarray, bandwidth: float) -> Fitted:
    chosen = {"bandwidth": bandwidth, "n_fit_rows": len(kernels)}
    return Fitted(lambda rows: log_kernel_density(rows.x, kernels, [bandwidth])[0], chosen)


def log_kernel_density(x: np.ndarray, kernels: np.ndarray, bandwidths: Sequence[float]) -> np.ndarray:
    """The log-density of rows x (n, p) around kernels (m, p) for each bandwidth. (bandwidths, n)."""
    p = x.shape[1]
    scores = np.empty((len(bandwidths), len(x)))
    squares = np.sum(kernels**2, axis=1)
    for start in range(0, len(x), _ROWS_AT_ONCE):
        stopping.check()
        some = x[start : start + _ROWS_AT_ONCE]
        distance = np.maximum(np.sum(some**2, axis=1)[:, None] - 2.0 * some @ kernels.T + squares, 0.0)  # (some, m)
        nearest = distance.min(axis=1)
        for index, h in enumerate(bandwidths):
            # Relative to the nearest kernel, so that the sum is never 0.
            shares = np.exp((nearest[:, None] - distance) * (0.5 / h**2)).sum(axis=1)
            scores[index, start : start + len(some)] = np.log(shares) - nearest * (0.5 / h**2) - p * math.log(h)
    return scores - math.log(len(kernels)) - 0.5 * p * math.log(2.0 * math.pi)


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
