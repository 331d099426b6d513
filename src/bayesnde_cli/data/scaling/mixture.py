"""A one-dimensional Gaussian mixture with one wide Student-t component, and its map to a standard normal.

    F(x) = sum_k w_k Phi((s - m_k)/s_k) + w_t T_2((s - c)/b),     s = (x - centre)/scale

T_2 is Student's t with two degrees of freedom: its distribution function, density and quantile are closed,

    T_2(z) = 1/2 + z/(2 h),   t_2(z) = 1/h^3,   h = sqrt(2 + z^2),   z = (1 - 2q)/sqrt(2 q (1 - q)) at upper tail q,

and its tails keep every density positive: no row is impossible, however far out.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from scipy.special import log_ndtr, ndtr, ndtri_exp

from bayesnde_cli.data.scaling import stored as read
from bayesnde_cli.data.scaling.cells import HALF_LOG_TWO_PI, ROOT_TWO_PI, chunks, normal_score
from bayesnde_cli.data.scaling.column_map import Array, as_float

_LOG_TWO = 0.6931471805599453
_ROOT_TWO = 1.4142135623730951
# A tail probability below this one is handled by its logarithm.
_SMALLEST_TAIL = 1e-290
# Distances from the centre, in scales, end here: quotients stay finite.
_FARTHEST = 1e300
_LOG_FARTHEST = 690.7
_LARGEST = float(np.finfo(np.float64).max)
_LEAST = float(np.finfo(np.float64).tiny)
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


class Mixture(NamedTuple):
    """The parameters, in standard units `s = (x - centre)/scale`. `weights`, `means`, `sds` have shape (K,).

    The weights are used divided by their sum, the tail's included: rounded weights stay a distribution.
    """

    weights: Array
    means: Array
    sds: Array
    tail: Tail
    centre: float
    scale: float

    def to_normal(self, x: Array) -> tuple[Array, Array]:
        """`u = Phi^-1(F(x))` and `log du/dx = log f(x) - log phi(u)`, each of shape (n,)."""
        x = as_float(x)
        u = np.empty_like(x)
        log_slope = np.empty_like(x)
        for rows in chunks(len(x)):
            u[rows], log_slope[rows] = self._score(self._standard(x[rows]))
        log_slope -= np.log(self.scale)
        return u, log_slope

    def from_normal(self, u: Array) -> Array:
        """The x with `Phi^-1(F(x)) = u`. Shape (n,)."""
        u = as_float(u)
        x = np.empty_like(u)
        for rows in chunks(len(u)):
            x[rows] = self._file_units(self._solve(u[rows]))
        return x

    def log_density(self, x: Array) -> Array:
        """log f(x). Shape (n,)."""
        x = as_float(x)
        log_density = np.empty_like(x)
        for rows in chunks(len(x)):
            log_density[rows] = self._evaluate(self._standard(x[rows]))[2]
        return log_density - np.log(self.scale)

    def tails(self, x: Array) -> tuple[Array, Array]:
        """F(x) and 1 - F(x), each to full relative precision. Shapes (n,)."""
        lower, upper, _ = self._evaluate(self._standard(as_float(x)))
        return lower, upper

    def log_far_tail(self, x: Array) -> Array:
        """log of the smaller tail where only the t component is left. Shape (n,)."""
        return self._log_far_tail(self._standard(as_float(x)))

    def log_mass(self, x: Array) -> Array:
        """log(F(x + 1/2) - F(x - 1/2)): the mass of a lattice cell. Shape (n,)."""
        x = as_float(x)
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

    def to_json(self) -> dict[str, Any]:
        return {
            "weights": self.weights.tolist(),
            "means": self.means.tolist(),
            "sds": self.sds.tolist(),
            "tail": list(self.tail),
            "centre": self.centre,
            "scale": self.scale,
        }

    def _standard(self, x: Array) -> Array:
        with np.errstate(over="ignore"):
            return np.clip((x - self.centre) / self.scale, -_FARTHEST, _FARTHEST)

    def _file_units(self, s: Array) -> Array:
        with np.errstate(over="ignore"):
            return np.clip(self.centre + self.scale * s, -_LARGEST, _LARGEST)

    def _normalised(self) -> tuple[float, Iterator[tuple[float, float, float]]]:
        """The t component's weight, and weight, mean and s.d. of each Gaussian; the weights sum to 1."""
        total = float(np.sum(self.weights)) + self.tail.weight
        weights = (self.weights / total).tolist()
        return self.tail.weight / total, zip(weights, self.means.tolist(), self.sds.tolist(), strict=True)

    def _evaluate(self, s: Array) -> tuple[Array, Array, Array]:
        """F, 1 - F and the log-density of one chunk, in standard units."""
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

    def _score(self, s: Array) -> tuple[Array, Array]:
        """`u` and `log du/ds` of one chunk."""
        lower, upper, log_density = self._evaluate(s)
        u = normal_score(lower, upper)
        far = np.minimum(lower, upper) < _SMALLEST_TAIL
        if far.any():
            u[far] = np.copysign(ndtri_exp(self._log_far_tail(s[far])), s[far])
        return u, log_density + (0.5 * u * u + HALF_LOG_TWO_PI)

    def _log_far_tail(self, s: Array) -> Array:
        z = np.abs((s - self.tail.centre) / self.tail.scale)
        h = np.hypot(_ROOT_TWO, z)
        return np.log(self._normalised()[0]) - np.log(h) - np.log(h + z)

    def _solve(self, u: Array) -> Array:
        """The s of one chunk: Newton's method on u, in a bracket.

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


def mixture_from_json(stored: dict[str, Any]) -> Mixture:
    weight, centre, scale = read.numbers(stored["tail"], "tail").tolist()
    found = Mixture(
        weights=read.numbers(stored["weights"], "weights", least=0),
        means=read.numbers(stored["means"], "means"),
        sds=read.numbers(stored["sds"], "sds", least=_LEAST),
        tail=Tail(read.number(weight, "tail", above=0), centre, read.number(scale, "tail", above=0)),
        centre=read.number(stored["centre"], "centre"),
        scale=read.number(stored["scale"], "scale", above=0),
    )
    if not len(found.weights) == len(found.means) == len(found.sds):
        raise ValueError(f"{len(found.weights)} weights, {len(found.means)} means, {len(found.sds)} sds")
    return found


def _by_side(z: Array, beyond: Array, weight: float) -> tuple[Array, Array]:
    """The mass of a component below and above z, given the mass beyond |z|."""
    rest = weight - beyond
    is_below = z < 0
    return np.where(is_below, beyond, rest), np.where(is_below, rest, beyond)


def _student_quantile(u: Array) -> Array:
    """The t_2 quantile at probability Phi(u). Shape (n,)."""
    log_q = log_ndtr(-np.abs(u))
    q = np.exp(log_q)
    # 1/sqrt(2 q) from the logarithm: q itself is 0 in float64 beyond |u| = 38
    far = np.exp(np.minimum(-0.5 * (log_q + _LOG_TWO), _LOG_FARTHEST))
    return np.copysign((1.0 - 2.0 * q) / np.sqrt(1.0 - q) * far, u)


def _student_between(z: Array, width: float) -> Array:
    """T_2(z + width) - T_2(z), without cancellation where both ends lie on one side. Shape (n,)."""
    end = z + width
    h, h_end = np.hypot(_ROOT_TWO, z), np.hypot(_ROOT_TWO, end)
    across = 0.5 * (end / h_end - z / h)
    same_side = width * np.abs(z + end) / (h * h_end * np.maximum(np.abs(end * h + z * h_end), 1e-300))
    return np.where(z * end > 0, same_side, across)
