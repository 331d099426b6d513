"""Mixtures of normals, p(x) = sum_k w_k N(x; mu_k, Sigma_k): densities, draws and conditionals in closed form."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np

from bayesnde_cli import stopping
from bayesnde_cli.rng import generator
from bayesnde_cli.rows import Rows

_LOG_TWO_PI = math.log(2.0 * math.pi)
# Size of temporary arrays, which bounds the memory whatever the number of rows and of components.
_NUMBERS_AT_ONCE = 1 << 20
# Cells beyond it are moved there: their squares overflow, so the density is 0, but no difference is inf - inf.
_FARTHEST = 1e160
# A row this close to a kernel, in bandwidths, is the row that the kernel stands on, or a copy of it.
_SAME_ROW = 1e-3
# Share of the largest diagonal that a covariance is split by: the rest keeps a Cholesky factor.
_DIAGONAL_SHARE = 0.9


@dataclass(frozen=True, eq=False)
class NormalMixture:
    """A mixture of K normals in p columns, float64. The rank of `scales` tells diagonal from full covariances.

    Where several components share a scale they are the kernels of a kernel density. Of those that stand on a row it
    leaves one out, the row's own if it was fitted to it: else no training row would be an outlier.
    """

    log_weights: np.ndarray  # (K,); the weights sum to 1
    means: np.ndarray  # (K, p)
    scales: np.ndarray  # s.d. (K, p), or (1, p) if all components share them; lower Cholesky factors (K, p, p)

    @property
    def is_full(self) -> bool:
        return self.scales.ndim == 3

    def log_density(self, x: np.ndarray, observed: np.ndarray | None = None) -> np.ndarray:
        """The log-density of rows x (n, p), (n,); with a mask (n, p), of the observed cells: 0 if there are none."""
        log_density = np.zeros(len(x))
        if observed is None:
            for block, log_joint in self._log_joint(x, leaves_out_own=True):
                log_density[block] = log_sum_exp(log_joint, axis=1)
            return log_density
        for rows, is_observed in _patterns(observed):
            columns = np.flatnonzero(is_observed)
            if len(columns):
                log_density[rows] = self.marginal(columns).log_density(x[np.ix_(rows, columns)])
        return log_density

    def marginal(self, columns: np.ndarray) -> "NormalMixture":
        """The mixture of some columns, by positions in any order."""
        if self.is_full:
            scales = np.linalg.cholesky(self._covariances()[:, columns[:, None], columns])
        else:
            scales = self.scales[:, columns]
        return NormalMixture(self.log_weights, self.means[:, columns], scales)

    def blur(self, sd: float) -> "NormalMixture":
        """The density of x plus normal noise of this s.d. in every column."""
        if self.is_full:
            return replace(self, scales=np.linalg.cholesky(self._covariances() + sd**2 * np.eye(self.means.shape[1])))
        return replace(self, scales=np.hypot(self.scales, sd))

    def rescale(self, mean: np.ndarray, sd: np.ndarray) -> "NormalMixture":
        """The density of mean + sd x, column by column."""
        scales = sd[:, None] * self.scales if self.is_full else sd * self.scales
        return NormalMixture(self.log_weights, mean + sd * self.means, scales)

    def draw(self, n: int, seed: int) -> np.ndarray:
        """Independent rows, (n, p)."""
        mean, variance = self.moments(n, seed)
        return mean + np.sqrt(variance) * generator(seed, "normal mixture", "noise").normal(size=mean.shape)

    def moments(self, n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
        """Random means and variances, each (n, p): the average of N(x; mean, diag(variance)) estimates p(x).

        A full covariance is split, Sigma = A A' + D, and the mean is mu + A u with u normal. D is a multiple of each
        column's variance given the other columns, C. The largest multiple is the smallest eigenvalue of
        C^-1/2 Sigma C^-1/2, which is at least 1/p: D stays large in columns that do not depend on the others.
        """
        rng = generator(seed, "normal mixture", "moments")
        weights = np.exp(self.log_weights)
        component = rng.choice(len(weights), n, p=weights / weights.sum())
        if not self.is_full:
            return self.means[component], np.broadcast_to(self.scales**2, self.means.shape)[component]
        whiten = np.linalg.inv(self.scales)
        precision = whiten.transpose(0, 2, 1) @ whiten
        variance = 1.0 / np.diagonal(precision, axis1=1, axis2=2)  # (K, p), given the other columns
        sd = np.sqrt(variance)
        largest = np.linalg.eigvalsh(sd[:, :, None] * precision * sd[:, None, :])[:, -1]
        variance = variance * (_DIAGONAL_SHARE / largest)[:, None]
        factors = np.linalg.cholesky(self._covariances() - variance[:, :, None] * np.eye(variance.shape[1]))
        spread = _multiply(factors, component, rng.normal(size=(n, variance.shape[1])))
        return self.means[component] + spread, variance[component]

    def fill(self, x: np.ndarray, observed: np.ndarray, seed: int) -> np.ndarray:
        """The rows, (n, p) float64, with draws of the missing cells given the observed ones."""
        rng = generator(seed, "normal mixture", "fill")
        uniform, noise = rng.random(len(x)), rng.normal(size=x.shape)
        filled = np.array(x, np.float64)
        for rows, is_observed in _patterns(observed):
            known, missing = np.flatnonzero(is_observed), np.flatnonzero(~is_observed)
            own, own_noise = filled[np.ix_(rows, known)], noise[np.ix_(rows, missing)]
            component = np.empty(len(rows), np.int64)
            for block, log_joint in self.marginal(known)._log_joint(own):
                total = np.cumsum(_shares(log_joint, axis=1)[0], axis=1)
                component[block] = np.sum(total < uniform[rows[block], None] * total[:, -1:], axis=1)
            if self.is_full:
                # The leading block of the factor is that of the known columns: x_m = mu_m + L_mk L_kk^-1 (x_k - mu_k)
                # + L_mm noise.
                factors, n_known = self.marginal(np.concatenate([known, missing])).scales, len(known)
                slopes = factors[:, n_known:, :n_known] @ np.linalg.inv(factors[:, :n_known, :n_known])
                spread = _multiply(slopes, component, own - self.means[np.ix_(component, known)])
                spread += _multiply(factors[:, n_known:, n_known:], component, own_noise)
            else:
                spread = np.broadcast_to(self.scales, self.means.shape)[np.ix_(component, missing)] * own_noise
            filled[np.ix_(rows, missing)] = self.means[np.ix_(component, missing)] + spread
        return filled

    def arrays(self) -> dict[str, np.ndarray]:
        """The mixture as named arrays, for a file."""
        return {"log_weights": self.log_weights, "means": self.means, "scales": self.scales}

    @staticmethod
    def from_arrays(arrays: Mapping[str, np.ndarray]) -> "NormalMixture":
        """The mixture that `arrays` describes."""
        return NormalMixture(arrays["log_weights"], arrays["means"], arrays["scales"])

    def _covariances(self) -> np.ndarray:
        return self.scales @ self.scales.transpose(0, 2, 1)

    def _log_joint(self, x: np.ndarray, *, leaves_out_own: bool = False) -> Iterator[tuple[slice, np.ndarray]]:
        """Yield blocks of the rows with log w_k + log N(x; mu_k, Sigma_k), (rows, K)."""
        n_components, p = self.means.shape
        centre = self.means.mean(axis=0)  # products of cells far from 0 would lose digits
        means, is_shared = self.means - centre, not self.is_full and len(self.scales) == 1
        sds = np.diagonal(self.scales, axis1=1, axis2=2) if self.is_full else self.scales
        constant = self.log_weights - np.log(sds).sum(axis=1) - 0.5 * p * _LOG_TWO_PI
        if self.is_full:
            whiten = np.linalg.inv(self.scales)
            shift, whiten = np.einsum("kij,kj->ki", whiten, means), whiten.reshape(n_components * p, p).T
        n_rows = max(1, _NUMBERS_AT_ONCE // (n_components * (1 if is_shared else max(p, 1))))
        for start in range(0, len(x), n_rows):
            stopping.check()
            block = slice(start, start + n_rows)
            some = np.clip(x[block].astype(np.float64) - centre, -_FARTHEST, _FARTHEST)
            with np.errstate(over="ignore"):
                if is_shared:
                    distance = squared_distances(some / sds, means / sds)
                    if leaves_out_own and n_components > 1:
                        distance = _leave_out_own(distance)
                else:
                    if self.is_full:
                        z = (some @ whiten).reshape(len(some), n_components, p) - shift
                    else:
                        z = (some[:, None] - means) / sds
                    distance = np.einsum("nkp,nkp->nk", z, z)
                distance *= -0.5
            yield block, np.add(distance, constant, out=distance)


@dataclass(frozen=True)
class ClassMixtures:
    """A mixture for each class, by class index; a single one without classes. None: no training row."""

    mixtures: tuple[NormalMixture | None, ...]

    def log_density(self, rows: Rows) -> np.ndarray:
        """The log-density of the observed cells given the class, (n,); NaN where the class has no mixture."""
        log_density = np.full(len(rows), np.nan)
        classes = np.zeros(len(rows), np.int64) if rows.classes is None else rows.classes
        for index, mixture in enumerate(self.mixtures):
            own = np.flatnonzero(classes == index)
            if mixture is not None and len(own):
                observed = None if rows.observed is None else rows.observed[own]
                log_density[own] = mixture.log_density(rows.x[own], observed)
        return log_density

    def blur(self, sd: float) -> "ClassMixtures":
        """Every mixture blurred."""
        return ClassMixtures(tuple(None if mixture is None else mixture.blur(sd) for mixture in self.mixtures))

    def rescale(self, mean: np.ndarray, sd: np.ndarray) -> "ClassMixtures":
        """The density of mean + sd x given each class."""
        return ClassMixtures(tuple(own and own.rescale(mean, sd) for own in self.mixtures))

    def arrays(self) -> dict[str, np.ndarray]:
        """The mixtures as named arrays, for a file."""
        arrays = {"n_mixtures": np.array(len(self.mixtures))}
        for index, mixture in enumerate(self.mixtures):
            if mixture is not None:
                arrays |= {f"{index}.{name}": array for name, array in mixture.arrays().items()}
        return arrays

    @staticmethod
    def from_arrays(arrays: Mapping[str, np.ndarray]) -> "ClassMixtures":
        """The mixtures that `arrays` describes."""

        def mixture(prefix: str) -> NormalMixture | None:
            own = {name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)}
            return NormalMixture.from_arrays(own) if own else None

        return ClassMixtures(tuple(mixture(f"{index}.") for index in range(int(arrays["n_mixtures"]))))


def squared_distances(x: np.ndarray, centres: np.ndarray) -> np.ndarray:
    """|x_i - c_j|^2 of rows (n, p) and centres (m, p), by one matrix product. (n, m)."""
    distance = x @ (-2.0 * centres.T)
    distance += np.sum(x**2, axis=1)[:, None]
    distance += np.sum(centres**2, axis=1)
    return np.maximum(distance, 0.0, out=distance)


def _leave_out_own(distance: np.ndarray) -> np.ndarray:
    """Squared distances (rows, K >= 2), infinite for one of the kernels that stand on a row; others take its weight."""
    nearest = distance.argmin(axis=1)
    rows = np.flatnonzero(distance[np.arange(len(distance)), nearest] < _SAME_ROW**2)
    distance[rows] -= 2.0 * np.log(distance.shape[1] / (distance.shape[1] - 1.0))
    distance[rows, nearest[rows]] = np.inf
    return distance


def log_sum_exp(values: np.ndarray, axis: int) -> np.ndarray:
    """log sum exp(values) along an axis; -inf if all values are."""
    shares, largest = _shares(values, axis)
    with np.errstate(divide="ignore"):
        return np.log(shares.sum(axis=axis)) + largest.squeeze(axis)


def _shares(values: np.ndarray, axis: int) -> tuple[np.ndarray, np.ndarray]:
    """exp(values - largest), and the largest value along an axis; finite, so that shares of -inf are 0."""
    largest = np.maximum(values.max(axis=axis, keepdims=True), np.finfo(np.float64).min)
    shares = values - largest
    return np.exp(shares, out=shares), largest


def _patterns(observed: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield the positions of all rows with the same observed cells, and which cells these are, (p,) bool."""
    _, pattern = np.unique(np.packbits(observed, axis=1), axis=0, return_inverse=True)
    pattern = pattern.ravel()
    for rows in np.split(np.argsort(pattern, kind="stable"), np.cumsum(np.bincount(pattern))[:-1]):
        if len(rows):
            yield rows, observed[rows[0]]


def _multiply(factors: np.ndarray, component: np.ndarray, z: np.ndarray) -> np.ndarray:
    """Each row of z (n, q) times the factor (p, q) of its component. (n, p)."""
    product = np.empty((len(z), factors.shape[1]))
    for index in np.unique(component):
        own = component == index
        product[own] = z[own] @ factors[index].T
    return product
