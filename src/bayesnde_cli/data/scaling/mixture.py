"""A one-dimensional Gaussian mixture with one wide Student-t component, and its map to a standard normal.

    F(x) = sum_k w_k Phi((x - m_k)/s_k) + w_t T_2((x - c)/b)

T_2 is Student's t with two degrees of freedom: its distribution function, density and quantile are closed,

    T_2(z) = 1/2 + z/(2 h),   t_2(z) = 1/h^3,   h = sqrt(2 + z^2),   z = (1 - 2q)/sqrt(2 q (1 - q)) at upper tail q,

and its tails keep every density positive: no row is impossible, however far out.
"""

from typing import Any, NamedTuple

import numpy as np
from scipy.special import log_ndtr, ndtr, ndtri, ndtri_exp

from bayesnde_cli.data.scaling.column_map import Array, as_float

HALF_LOG_TWO_PI = 0.9189385332046727
_ROOT_TWO_PI = 2.5066282746310002
_LOG_TWO = 0.6931471805599453
_ROOT_TWO = 1.4142135623730951
# Rows that are worked on at a time: the work arrays stay in the processor's cache and out of the memory bill.
CHUNK = 16_384
# A tail probability below this one is handled by its logarithm.
_SMALLEST_TAIL = 1e-290
# Distances from the centre, in scales of the t component, end here: squares and quotients stay finite.
_FARTHEST = 1e300
_LOG_FARTHEST = 690.7
# Newton's method takes about 6 steps; where it leaves its bracket, the bracket is halved, which ends by itself.
_MAX_STEPS = 200


class Mixture(NamedTuple):
    """The parameters. `weights`, `means`, `sds` have shape (K,); `tail_*` belong to the t component.

    `weights` and `tail_weight` are used divided by their sum, which keeps rounded weights a distribution.
    """

    weights: Array
    means: Array
    sds: Array
    tail_weight: float
    tail_centre: float
    tail_scale: float

    def to_normal(self, x: Array) -> tuple[Array, Array]:
        """`u = Phi^-1(F(x))` and `log du/dx = log f(x) - log phi(u)`, each of shape (n,)."""
        x = as_float(x)
        u = np.empty_like(x)
        log_slope = np.empty_like(x)
        for start in range(0, len(x), CHUNK):
            rows = slice(start, start + CHUNK)
            lower, upper, log_density = self._evaluate(x[rows])
            u[rows] = self._normal_score(x[rows], lower, upper)
            log_slope[rows] = log_density + (0.5 * u[rows] ** 2 + HALF_LOG_TWO_PI)
        return u, log_slope

    def log_density(self, x: Array) -> Array:
        """log f(x). Shape (n,)."""
        x = as_float(x)
        pieces = [self._evaluate(x[start : start + CHUNK])[2] for start in range(0, len(x), CHUNK)]
        return np.concatenate([np.empty(0), *pieces])

    def tails(self, x: Array) -> tuple[Array, Array]:
        """F(x) and 1 - F(x), each to full relative precision. Shapes (n,)."""
        x = as_float(x)
        lower = np.empty_like(x)
        upper = np.empty_like(x)
        for start in range(0, len(x), CHUNK):
            rows = slice(start, start + CHUNK)
            lower[rows], upper[rows], _ = self._evaluate(x[rows])
        return lower, upper

    def from_normal(self, u: Array) -> Array:
        """The x with `Phi^-1(F(x)) = u`. Shape (n,).

        The quantile lies between the smallest and the largest quantile of the components at the same
        probability. Inside that bracket: Newton's method on u, in the coordinate `arcsinh((x - c)/b)`, in which
        both the body and the far tails have moderate slopes.
        """
        u = as_float(u)
        x = np.empty_like(u)
        for start in range(0, len(u), CHUNK):
            rows = slice(start, start + CHUNK)
            x[rows] = self._solve(u[rows])
        return x

    def log_far_tail(self, x: Array) -> Array:
        """log of the smaller tail where only the t component is left. Shape (n,)."""
        z = np.abs(self._tail_z(x))
        h = np.hypot(_ROOT_TWO, z)
        return np.log(self.tail_weight / self._total) - np.log(h) - np.log(h + z)

    def to_json(self) -> dict[str, Any]:
        return {
            "weights": self.weights.tolist(),
            "means": self.means.tolist(),
            "sds": self.sds.tolist(),
            "tail": [self.tail_weight, self.tail_centre, self.tail_scale],
        }

    @property
    def _total(self) -> float:
        return float(np.sum(self.weights)) + self.tail_weight

    def _tail_z(self, x: Array) -> Array:
        with np.errstate(over="ignore"):
            return np.clip((x - self.tail_centre) / self.tail_scale, -_FARTHEST, _FARTHEST)

    def _evaluate(self, x: Array) -> tuple[Array, Array, Array]:
        """F, 1 - F and log f of one chunk."""
        with np.errstate(over="ignore", under="ignore", divide="ignore"):
            z = self._tail_z(x)
            h = np.hypot(_ROOT_TWO, z)
            # (1 - |z|/h)/2 without the cancellation
            beyond = (self.tail_weight / self._total) / (h * (h + np.abs(z)))
            lower, upper = _by_side(z, beyond, self.tail_weight / self._total)
            log_tail = np.log(self.tail_weight / self._total / self.tail_scale) - 3.0 * np.log(h)
            density = np.zeros_like(x)
            for weight, mean, sd in zip(self.weights / self._total, self.means, self.sds, strict=True):
                z = (x - mean) / sd
                beyond = weight * ndtr(-np.abs(z))
                below, above = _by_side(z, beyond, weight)
                lower += below
                upper += above
                density += (weight / (sd * _ROOT_TWO_PI)) * np.exp(-0.5 * z * z)
            return lower, upper, np.logaddexp(log_tail, np.log(density))

    def _normal_score(self, x: Array, lower: Array, upper: Array) -> Array:
        u = normal_score(lower, upper)
        far = np.minimum(lower, upper) < _SMALLEST_TAIL
        if far.any():
            u[far] = np.copysign(ndtri_exp(self.log_far_tail(x[far])), x[far] - self.tail_centre)
        return u

    def _bracket(self, u: Array) -> tuple[Array, Array]:
        """The smallest and the largest component quantile, in the coordinate arcsinh((x - c)/b). Shapes (n,)."""
        tail_z = _student_quantile(u)
        low = high = tail_z
        for mean, sd in zip(self.means, self.sds, strict=True):
            z = (mean + sd * u - self.tail_centre) / self.tail_scale
            low = np.minimum(low, z)
            high = np.maximum(high, z)
        return np.arcsinh(low), np.arcsinh(high)

    def _solve(self, u: Array) -> Array:
        low, high = self._bracket(u)
        place = 0.5 * (low + high)
        active = np.arange(len(u))
        for _ in range(_MAX_STEPS):
            at, target = place[active], u[active]
            x = self.tail_centre + self.tail_scale * np.sinh(at)
            found, log_slope = self.to_normal(x)
            error = found - target
            low[active] = np.where(error <= 0, at, low[active])
            high[active] = np.where(error >= 0, at, high[active])
            step = error / (np.exp(log_slope) * self.tail_scale * np.cosh(at))
            following = at - step
            # A step onto the edge is fine; a step past it is not.
            is_outside = ~((following >= low[active]) & (following <= high[active]))
            middle = 0.5 * (low[active] + high[active])
            following = np.where(is_outside, middle, following)
            place[active] = following
            moved = np.abs(following - at)
            active = active[moved > 4e-16 * (1.0 + np.abs(at))]
            if not len(active):
                break
        return self.tail_centre + self.tail_scale * np.sinh(place)


def mixture_from_json(stored: dict[str, Any]) -> Mixture:
    weight, centre, scale = stored["tail"]
    arrays = (np.array(stored[name], dtype=np.float64) for name in ("weights", "means", "sds"))
    return Mixture(*arrays, float(weight), float(centre), float(scale))


def normal_score(lower: Array, upper: Array) -> Array:
    """Phi^-1 of a probability known from both sides: the smaller one keeps its precision. Shape (n,)."""
    u = ndtri(np.minimum(lower, upper))
    return np.where(lower <= upper, u, -u)


def _by_side(z: Array, beyond: Array, weight: float) -> tuple[Array, Array]:
    """The mass of a component below and above, given the mass beyond |z|."""
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
