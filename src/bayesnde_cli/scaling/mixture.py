"""Marginals of continuous columns: a Gaussian mixture with one wide Student-t component, fitted by EM.

    F(x) = sum_k w_k Phi((s - m_k)/s_k) + w_t T_2((s - c)/b),     s = (x - centre)/scale

T_2 is Student's t with two degrees of freedom: its distribution function, density and quantile are closed,

    T_2(z) = 1/2 + z/(2 h),   t_2(z) = 1/h^3,   h = sqrt(2 + z^2),   z = (1 - 2q)/sqrt(2 q (1 - q)) at upper tail q,

and its tails keep every density positive: no row is impossible, however far out.
"""

from collections.abc import Iterator
from typing import Literal, NamedTuple

import numpy as np
from pydantic import Field
from pydantic.dataclasses import dataclass
from scipy.special import log_ndtr, ndtr, ndtri_exp

from bayesnde_cli.rng import bits_at
from bayesnde_cli.scaling.column_map import (
    HALF_LOG_TWO_PI,
    ROOT_TWO_PI,
    STORED,
    ColumnMap,
    Noise,
    Numbers,
    as_float,
    normal_score,
)

_LOG_TWO = 0.6931471805599453
_ROOT_TWO = 1.4142135623730951
# A tail probability below this one is handled by its logarithm.
_SMALLEST_TAIL = 1e-290
# Distances from the centre, in scales, end here: quotients stay finite.
_FARTHEST = 1e300
_LOG_FARTHEST = 690.7
_LARGEST = float(np.finfo(np.float64).max)
# Newton's method takes 5 to 13 steps; where it leaves its bracket or its steps do not shrink, the bracket is halved.
# Steps and errors of the size of rounding errors end the search.
_MAX_STEPS = 200
_ROUNDING = 4e-16
# Cells narrower than this, in s.d.s of the narrowest component, have the mass `density * width` to 1e-9;
# a difference of distribution functions would lose those digits.
_NARROW = 1e-4
_FAR = 1e8


class Tail(NamedTuple):
    """The Student-t component, in standard units."""

    weight: float
    centre: float
    scale: float


@dataclass(frozen=True, config=STORED)
class Mixture:
    """The parameters, in standard units `s = (x - centre)/scale`. `weights`, `means`, `sds` have shape (K,).

    The weights are divided by their sum, the tail's included.
    """

    weights: Numbers
    means: Numbers
    sds: Numbers
    tail: Tail
    centre: float
    scale: float

    def to_normal(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """`u = Phi^-1(F(x))` and `log du/dx = log f(x) - log phi(u)`, each of shape (n,)."""
        u, log_slope = self._score(self._standard(x))
        return u, log_slope - np.log(self.scale)

    def from_normal(self, u: np.ndarray) -> np.ndarray:
        """The x with `Phi^-1(F(x)) = u`. Shape (n,)."""
        s = self._solve(u)
        with np.errstate(over="ignore"):
            return np.clip(self.centre + self.scale * s, -_LARGEST, _LARGEST)

    def log_density(self, x: np.ndarray) -> np.ndarray:
        """log f(x). Shape (n,)."""
        return self._evaluate(self._standard(x))[2] - np.log(self.scale)

    def tails(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """F(x) and 1 - F(x), each to full relative precision. Shapes (n,)."""
        lower, upper, _ = self._evaluate(self._standard(x))
        return lower, upper

    def log_far_tail(self, x: np.ndarray) -> np.ndarray:
        """log of the smaller tail where only the t component is left. Shape (n,)."""
        return self._log_far_tail(self._standard(x))

    def log_mass(self, x: np.ndarray) -> np.ndarray:
        """log(F(x + 1/2) - F(x - 1/2)): the mass of a lattice cell. Shape (n,)."""
        width = 1.0 / self.scale
        left = self._standard(x - 0.5)
        z = (left - self.tail.centre) / self.tail.scale
        is_narrow = (np.abs(z) > _FAR) | (width < _NARROW * min(self.tail.scale, float(np.min(self.sds))))
        log_mass = np.empty_like(x)
        log_mass[is_narrow] = self.log_density(x[is_narrow])
        left, z = left[~is_narrow], z[~is_narrow]
        tail_weight, components = self._normalised()
        mass = tail_weight * _student_between(z, width / self.tail.scale)
        for weight, mean, sd in components:
            z = (left - mean) / sd
            beyond = z + width / sd
            # The sides are swapped above the mean: differences of small tails keep their digits.
            near, far = np.where(z > 0, -beyond, z), np.where(z > 0, -z, beyond)
            mass += weight * (ndtr(far) - ndtr(near))
        log_mass[~is_narrow] = np.log(mass)
        return log_mass

    def _standard(self, x: np.ndarray) -> np.ndarray:
        with np.errstate(over="ignore"):
            return np.clip((x - self.centre) / self.scale, -_FARTHEST, _FARTHEST)

    def _normalised(self) -> tuple[float, Iterator[tuple[float, float, float]]]:
        """The t component's weight, and weight, mean and s.d. of each Gaussian; the weights sum to 1."""
        total = float(np.add.reduce(self.weights)) + self.tail.weight
        weights = (self.weights / total).tolist()
        return self.tail.weight / total, zip(weights, self.means.tolist(), self.sds.tolist(), strict=True)

    def _evaluate(self, s: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """F, 1 - F and the log-density in standard units."""
        tail_weight, components = self._normalised()
        with np.errstate(over="ignore", under="ignore", divide="ignore"):
            z = (s - self.tail.centre) / self.tail.scale
            h = np.hypot(_ROOT_TWO, z)
            # (1 - |z|/h)/2 without the cancellation
            lower, upper = _by_side(z, tail_weight / (h * (h + np.abs(z))), tail_weight)
            log_tail = np.log(tail_weight / self.tail.scale) - 3.0 * np.log(h)
            density = np.zeros_like(s)
            for weight, mean, sd in components:
                z = (s - mean) / sd
                below, above = _by_side(z, weight * ndtr(-np.abs(z)), weight)
                lower += below
                upper += above
                density += (weight / (sd * ROOT_TWO_PI)) * np.exp(-0.5 * z * z)
            return lower, upper, np.logaddexp(log_tail, np.log(density))

    def _score(self, s: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """`u` and `log du/ds`."""
        lower, upper, log_density = self._evaluate(s)
        u = normal_score(lower, upper)
        far = np.minimum(lower, upper) < _SMALLEST_TAIL
        if far.any():
            u[far] = np.copysign(ndtri_exp(self._log_far_tail(s[far])), s[far])
        return u, log_density + (0.5 * u * u + HALF_LOG_TWO_PI)

    def _log_far_tail(self, s: np.ndarray) -> np.ndarray:
        z = np.abs((s - self.tail.centre) / self.tail.scale)
        h = np.hypot(_ROOT_TWO, z)
        return np.log(self._normalised()[0]) - np.log(h) - np.log(h + z)

    def _solve(self, u: np.ndarray) -> np.ndarray:
        """The s with the score u: Newton's method on u, in a bracket.

        The quantile lies between the smallest and the largest quantile of the components at the same
        probability. The coordinate is `arcsinh((s - c)/b)`: in it the body and the far tails have moderate slopes.
        """
        centre, scale = self.tail.centre, self.tail.scale
        low = high = _student_quantile(u)
        for mean, sd in zip(self.means.tolist(), self.sds.tolist(), strict=True):
            z = (mean + sd * u - centre) / scale
            low, high = np.minimum(low, z), np.maximum(high, z)
        low, high = np.arcsinh(low), np.arcsinh(high)
        place = 0.5 * (low + high)
        allowed = high - low
        active = np.arange(len(u))
        for _ in range(_MAX_STEPS):
            at = place[active]
            found, log_slope = self._score(centre + scale * np.sinh(at))
            error = found - u[active]
            low[active] = np.where(error <= 0, at, low[active])
            high[active] = np.where(error >= 0, at, high[active])
            newton = at - error * np.exp(-log_slope) / (scale * np.cosh(at))
            is_good = (newton >= low[active]) & (newton <= high[active])
            # Steps must shrink, or Newton's method may circle around a narrow mode for ever.
            is_good &= np.abs(newton - at) <= allowed[active]
            following = np.where(is_good, newton, 0.5 * (low[active] + high[active]))
            is_found = np.abs(error) <= _ROUNDING * (1.0 + np.abs(found))
            place[active] = np.where(is_found, at, following)
            step = np.abs(place[active] - at)
            allowed[active] = 0.5 * step
            active = active[step > _ROUNDING * (1.0 + np.abs(at))]
            if not len(active):
                break
        return centre + scale * np.sinh(place)


def _by_side(z: np.ndarray, beyond: np.ndarray, weight: float) -> tuple[np.ndarray, np.ndarray]:
    """The mass of a component below and above z, given the mass beyond |z|."""
    rest = weight - beyond
    is_below = z < 0
    return np.where(is_below, beyond, rest), np.where(is_below, rest, beyond)


def _student_quantile(u: np.ndarray) -> np.ndarray:
    """The t_2 quantile at probability Phi(u). Shape (n,)."""
    log_q = log_ndtr(-np.abs(u))
    q = np.exp(log_q)
    # 1/sqrt(2 q) from the logarithm: q itself is 0 in float64 beyond |u| = 38
    far = np.exp(np.minimum(-0.5 * (log_q + _LOG_TWO), _LOG_FARTHEST))
    return np.copysign((1.0 - 2.0 * q) / np.sqrt(1.0 - q) * far, u)


def _student_between(z: np.ndarray, width: float) -> np.ndarray:
    """T_2(z + width) - T_2(z), without cancellation where both ends lie on one side. Shape (n,)."""
    end = z + width
    h, h_end = np.hypot(_ROOT_TWO, z), np.hypot(_ROOT_TWO, end)
    across = 0.5 * (end / h_end - z / h)
    same_side = width * np.abs(z + end) / (h * h_end * np.maximum(np.abs(end * h + z * h_end), 1e-300))
    return np.where(z * end > 0, same_side, across)


# Maximum likelihood by EM: a fixed number of steps from quantile-based starts. Long columns are compressed first:
# the rows in the tails stay single, the body becomes bins of equal counts, each with its mean and its variance.

N_STEPS = 100
MAX_ATOMS = 1_024
_N_TAIL_ATOMS = 64  # on either side
_NORMAL_IQR = 1.349  # interquartile range of a standard normal
# The least component s.d.: a thousandth of the column's own scale, or the s.d. of a rounding error to the
# nearest step. Ties and spikes cannot collapse below it.
_LEAST_SD = 1e-3
_LARGEST_LEAST_SD = 0.5  # of the column's own scale: a few values far apart are not due to rounding
_ROOT_TWELVE = 3.4641016151377544
# The tail component starts with this weight and the column's width, and stays wide: left free, it turns into one
# more mode, which costs small tables 0.03 nats a row. A larger floor would cost Cauchy columns 0.02.
_START_TAIL_WEIGHT = 0.05
_LEAST_TAIL_VARIANCE = 0.5
_EMPTY = 1e-8  # a component with less mass keeps its place


class Atoms(NamedTuple):
    """A column's training rows in standard units, compressed. `mean`, `variance`, `weight` have shape (A,)."""

    mean: np.ndarray
    variance: np.ndarray
    weight: np.ndarray  # sums to 1
    n_rows: int
    least_sd: float
    centre: float  # file = centre + scale * standard
    scale: float


def compress(train: np.ndarray) -> Atoms:
    """The rows moved to median 0 and scale 1: an atom for each value, or 1,024 atoms if there are more values."""
    ordered = np.sort(train)
    n = len(ordered)
    centre = float(ordered[n // 2])
    scale = _robust_scale(ordered)
    ordered = np.clip((ordered - centre) / scale, -1e100, 1e100)
    first = np.flatnonzero(np.concatenate([[True], np.diff(ordered) > 0]))
    distinct = ordered[first]
    step = float(np.diff(distinct).min()) if len(distinct) > 1 else 0.0
    least_sd = max(min(step / _ROOT_TWELVE, _LARGEST_LEAST_SD), _LEAST_SD)
    if len(distinct) <= MAX_ATOMS:
        counts = np.diff(np.append(first, n)).astype(np.float64)
        return Atoms(distinct, np.zeros(len(distinct)), counts / n, n, least_sd, centre, scale)
    n_bins = MAX_ATOMS - 2 * _N_TAIL_ATOMS
    inner = _N_TAIL_ATOMS + (np.arange(n_bins + 1) * (n - 2 * _N_TAIL_ATOMS)) // n_bins
    edges = np.concatenate([np.arange(_N_TAIL_ATOMS), inner, np.arange(n - _N_TAIL_ATOMS + 1, n + 1)])
    counts = np.diff(edges).astype(np.float64)
    mean = np.add.reduceat(ordered, edges[:-1]) / counts
    deviation = ordered - np.repeat(mean, np.diff(edges))
    variance = np.add.reduceat(deviation * deviation, edges[:-1]) / counts
    return Atoms(mean, variance, counts / n, n, least_sd, centre, scale)


def fit_atoms(atoms: Atoms, n_components: int) -> Mixture:
    """The mixture after `N_STEPS` EM steps."""
    x, spread = atoms.mean, atoms.variance
    weight, mean, variance = _start(atoms, n_components)
    weight *= 1.0 - _START_TAIL_WEIGHT
    least_variance = atoms.least_sd**2
    tail_floor = 1.0 / (atoms.n_rows + 1.0)
    tail_weight, centre, tail_variance = _START_TAIL_WEIGHT, 0.0, 1.0
    for _ in range(N_STEPS):
        deviation = x - mean[:, None]  # (K, A)
        square = deviation * deviation
        share = np.exp(square * (-0.5 / variance)[:, None])
        share *= (weight / (np.sqrt(variance) * ROOT_TWO_PI))[:, None]
        far = (x - centre) * (x - centre) / tail_variance
        tail_share = tail_weight / (np.sqrt(tail_variance) * (2.0 + far) * np.sqrt(2.0 + far))  # (A,)
        scaled = atoms.weight / (np.add.reduce(share, axis=0) + tail_share)
        share *= scaled
        tail_share *= scaled
        mass = np.add.reduce(share, axis=1)  # (K,)
        safe = np.maximum(mass, _EMPTY)
        shift = np.add.reduce(share * deviation, axis=1) / safe
        mean = mean + shift
        variance = np.add.reduce(share * (square + spread), axis=1) / safe - shift * shift
        variance = np.maximum(variance, least_variance)
        # Student's t as a scale mixture of Gaussians: rows far out count less for its centre and its scale.
        precision = tail_share * 3.0 / (2.0 + far)
        tail_mass = float(np.add.reduce(tail_share))
        centre = float(np.add.reduce(precision * x)) / float(np.add.reduce(precision))
        tail_variance = float(np.add.reduce(precision * ((x - centre) * (x - centre) + spread))) / tail_mass
        tail_variance = max(tail_variance, _LEAST_TAIL_VARIANCE)
        tail_weight = max(tail_mass, tail_floor)
        weight = safe * ((1.0 - tail_weight) / float(np.add.reduce(safe)))
    tail = Tail(tail_weight, centre, float(np.sqrt(tail_variance)))
    return Mixture(weight, mean, np.sqrt(variance), tail, atoms.centre, atoms.scale)


def _start(atoms: Atoms, n_components: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Weights, means and variances of groups of neighbouring atoms. Shapes (K,).

    The groups end at the quantiles 3 t^2 - 2 t^3, t = k/K: small groups at both ends, where edges and skewed
    tails need their own components and EM is slow to send them.
    """
    cumulative = np.cumsum(atoms.weight) - 0.5 * atoms.weight
    t = np.arange(1, n_components) / n_components
    group = np.searchsorted(t * t * (3.0 - 2.0 * t), cumulative)
    # A heavy atom may leave groups empty: such a component starts at the next atom.
    starts = np.minimum(np.searchsorted(group, np.arange(n_components)), len(group) - 1)
    mass = np.add.reduceat(atoms.weight, starts)
    mean = np.add.reduceat(atoms.weight * atoms.mean, starts) / mass
    deviation = atoms.mean - mean[group]
    variance = np.add.reduceat(atoms.weight * (deviation * deviation + atoms.variance), starts) / mass
    return mass / np.add.reduce(mass), mean, np.maximum(variance, atoms.least_sd**2)


def _robust_scale(ordered: np.ndarray) -> float:
    """The smaller of the s.d. and the normal-consistent interquartile range; 1 for a constant column."""
    n = len(ordered)
    quartiles = float(ordered[(3 * n) // 4] - ordered[n // 4]) / _NORMAL_IQR
    largest = float(np.max(np.abs(ordered))) or 1.0
    unit = ordered / largest  # squares of huge values stay finite
    sd = largest * float(np.sqrt(np.mean((unit - np.mean(unit)) ** 2)))
    positive = [scale for scale in (sd, quartiles) if scale > 0]
    return min(positive) if positive else 1.0


# The number of components: sizes in increasing order, as long as held-out rows gain.
#
# Parameters are fitted to training rows alone. The size is chosen by the log-density of held-out rows: the validation
# rows and, in small tables, which have too few of them, also the training rows by five-fold cross-validation.
# Measured at 45 to 600 rows, that choice loses half as much as a choice by validation rows alone.
#
# A size is accepted if it gains more than one nat over all held-out rows; the search ends after two sizes in a row
# without such a gain.

SIZES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)
_MAX_JUDGES = 5_000
_MIN_ROWS_PER_COMPONENT = 8
_FEW_ROWS = 2_000  # with fewer training rows than this they judge too
_N_FOLDS = 5
_MAX_MISSES = 2


def select_mixture(train: np.ndarray, validation: np.ndarray) -> Mixture:
    """The mixture fitted to `train`, of the size that predicts held-out rows best."""
    train, validation = as_float(train), as_float(validation)
    if len(validation) > _MAX_JUDGES:  # evenly spaced ones
        validation = validation[(np.arange(_MAX_JUDGES) * len(validation)) // _MAX_JUDGES]
    judges = [(compress(train), validation)]
    if len(train) < _FEW_ROWS:
        # Folds by a hash of the position: neighbours in a sorted file go to different folds.
        fold = bits_at(0, np.arange(len(train))) % np.uint64(_N_FOLDS)
        judges += [(compress(train[fold != k]), train[fold == k]) for k in np.unique(fold) if (fold != k).any()]
    n_judges = sum(len(rows) for _, rows in judges)
    sizes = [size for size in SIZES if size == 1 or (n_judges and size * _MIN_ROWS_PER_COMPONENT <= len(train))]
    best, best_score, n_misses = None, -np.inf, 0
    for size in sizes:
        fits = [fit_atoms(atoms, size) for atoms, _ in judges]
        score = sum(float(np.add.reduce(fit.log_density(rows))) for fit, (_, rows) in zip(fits, judges, strict=True))
        if best is None or score > best_score + 1.0:
            best, best_score, n_misses = fits[0], score, 0
        else:
            n_misses += 1
        if n_misses == _MAX_MISSES:
            break
    assert best is not None
    return best


@dataclass(frozen=True, config=STORED)
class MixtureMarginal(ColumnMap):
    """`u = Phi^-1(F(y))` with F a Gaussian mixture plus a Student-t component.

    For continuous columns, and for lattice columns whose noise is wider than the lattice step.
    """

    kind: Literal["mixture"] = Field(default="mixture", kw_only=True)
    mixture: Mixture
    noise: Noise | None = None

    def _forward(self, value: np.ndarray, fraction: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return self.mixture.to_normal(self._add_noise(value, fraction))

    def _inverse(self, u: np.ndarray) -> np.ndarray:
        return self.mixture.from_normal(u)


def fit_mixture(train: np.ndarray, validation: np.ndarray, *, noise: Noise | None = None) -> MixtureMarginal:
    """The map fitted to the training values (noise included); validation rows choose its size."""
    return MixtureMarginal(select_mixture(train, validation), noise)
