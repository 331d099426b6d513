"""Distributions whose exact log-density is known.

`sample(n, rng)` returns `n` independent rows, (n, p); `log_density(x)` the exact log-density of rows, (n, p) -> (n,).
"""

import numpy as np
from scipy.special import i0e

from bayesnde_cli.rng import generator


def column_names(dim: int) -> tuple[str, ...]:
    """Return the names x1 .. xp."""
    return tuple(f"x{index + 1}" for index in range(dim))


# Four squares a side, each of side one, so the board is (-2, 2)^2 and the eight dark squares have area eight.
SQUARES_PER_SIDE = 4
LOWEST = -SQUARES_PER_SIDE // 2
N_DARK = SQUARES_PER_SIDE**2 // 2
# Places inside a square are odd multiples of 2^-51: never on an edge, and exact in float64 after adding the corner.
PLACE_BITS = 50


class Checkerboard:
    """x is uniform on the squares (i, j) of a 4 x 4 board with i + j even: sharp edges and a support with holes."""

    names = column_names(2)

    def sample(self, n: int, rng: np.random.Generator) -> np.ndarray:
        square = rng.integers(0, N_DARK, size=n)
        column, half_row = np.divmod(square, SQUARES_PER_SIDE // 2)
        row = 2 * half_row + column % 2  # i + j even
        corner = LOWEST + np.stack([column, row], axis=1)  # (n, 2)
        place = (rng.integers(0, 2**PLACE_BITS, size=(n, 2)) + 0.5) * 2.0**-PLACE_BITS
        return corner + place

    def log_density(self, x: np.ndarray) -> np.ndarray:
        """Return -log 8 on a dark square, -inf elsewhere."""
        square = np.floor(x) - LOWEST  # (n, 2)
        on_board = ((square >= 0) & (square < SQUARES_PER_SIDE)).all(axis=1)
        is_dark = on_board & (np.where(on_board, square.sum(axis=1), 1.0) % 2 == 0)
        return np.where(is_dark, -np.log(N_DARK), -np.inf)


# The root of the seed of W, b and the noise. Part of the distribution: another number is another distribution.
PARAMETER_SEED = 0
# Noise between a tenth and half of the signal's size: the latent matters, and no column is noise alone.
NOISE_SD_RANGE = (0.1, 0.5)


class LinearGaussian:
    """x = W z + b + noise, z ~ N(0, I), noise ~ N(0, diag(noise_sd^2)); hence x ~ N(b, W W' + diag(noise_sd^2)).

    `weights` (p, d), `offset` (p,) and `noise_sd` (p,) depend on (p, d) alone. Each row of W has mean squared
    length one.
    """

    def __init__(self, dim: int, latent_dim: int) -> None:
        rng = generator(PARAMETER_SEED, "linear-gaussian", dim, latent_dim)
        self.names = column_names(dim)
        self.weights = rng.standard_normal((dim, latent_dim)) / np.sqrt(latent_dim)  # (p, d)
        self.offset = rng.standard_normal(dim)  # (p,)
        self.noise_sd = rng.uniform(*NOISE_SD_RANGE, size=dim)  # (p,)
        self.covariance = self.weights @ self.weights.T + np.diag(self.noise_sd**2)  # (p, p)
        lower = np.linalg.cholesky(self.covariance)
        self._whitening = np.linalg.solve(lower, np.eye(dim))  # (p, p)
        self._log_determinant = 2.0 * np.log(np.diag(lower)).sum()

    def sample(self, n: int, rng: np.random.Generator) -> np.ndarray:
        z = rng.standard_normal((n, self.weights.shape[1]))  # (n, d)
        noise = self.noise_sd * rng.standard_normal((n, len(self.names)))
        return z @ self.weights.T + self.offset + noise

    def log_density(self, x: np.ndarray) -> np.ndarray:
        """Return log N(x; b, W W' + diag(noise_sd^2))."""
        white = (x - self.offset) @ self._whitening.T  # (n, p)
        with np.errstate(over="ignore"):
            squared_length = np.einsum("np,np->n", white, white)
        return -0.5 * (squared_length + self._log_determinant + len(self.names) * np.log(2.0 * np.pi))


TURN = 2.0 * np.pi
# With 32 nodes on each of 16 panels the error in log p is below 1e-11 wherever log p > -100, for both curves below;
# the tests compare with adaptive quadrature.
NODES_PER_PANEL = 32
N_PANELS = 16
# The further away a row, the narrower the part of the curve that counts, in proportion to the distance at worst.
# Each doubling of the distance therefore doubles the panels; after the last tier (64 times the reach of the curve)
# the error grows, but stays below 1e-8 of |log p|.
N_TIERS = 6
# Rows are taken in blocks of this many kernel values (2 MB), so memory does not grow with rows or nodes.
BLOCK_VALUES = 2**18


class NoisyCurve:
    """T ~ U(0, 2 pi), x | t ~ N(curve(t), noise_sd^2 I): a plane curve with Gaussian noise."""

    names = column_names(2)
    noise_sd: float
    reach: float  # the curve's greatest distance from the origin

    def curve(self, t: np.ndarray) -> np.ndarray:
        """Return the points at the parameters. (k,) -> (k, 2)."""
        raise NotImplementedError

    def panel_edge(self, share: np.ndarray) -> np.ndarray:
        """Map (0, 1) onto (0, 2 pi) such that equal steps cover arcs of about equal length."""
        return TURN * share

    def sample(self, n: int, rng: np.random.Generator) -> np.ndarray:
        t = rng.uniform(0.0, TURN, size=n)
        return self.curve(t) + self.noise_sd * rng.standard_normal((n, 2))

    def log_density(self, x: np.ndarray) -> np.ndarray:
        """Return log of 1/(2 pi) times the integral over t in (0, 2 pi) of N(x; curve(t), noise_sd^2 I).

        Gauss-Legendre quadrature on panels, summed on the log scale.
        """
        tops = 2.0 * self.reach * 2.0 ** np.arange(N_TIERS - 1)
        tier = np.searchsorted(tops, np.hypot(x[:, 0], x[:, 1]))  # (n,)
        node, weight = np.polynomial.legendre.leggauss(NODES_PER_PANEL)  # on (-1, 1)
        log_density = np.empty(len(x))
        for tier_index in np.unique(tier):
            edges = self.panel_edge(np.linspace(0.0, 1.0, N_PANELS * 2**tier_index + 1))
            middle, half = (edges[1:] + edges[:-1]) / 2.0, (edges[1:] - edges[:-1]) / 2.0
            centre = self.curve((middle[:, None] + half[:, None] * node).ravel())  # (k, 2)
            log_weight = np.log(half[:, None] * weight).ravel()  # (k,)
            row_index = np.flatnonzero(tier == tier_index)
            n_block_rows = max(1, BLOCK_VALUES // len(centre))
            for start in range(0, len(row_index), n_block_rows):
                block = row_index[start : start + n_block_rows]
                log_density[block] = _log_sum(x[block], centre, log_weight, self.noise_sd)
        return log_density - np.log(TURN) - 2.0 * np.log(self.noise_sd) - np.log(TURN)


def _log_sum(x: np.ndarray, centre: np.ndarray, log_weight: np.ndarray, noise_sd: float) -> np.ndarray:
    """Return log of sum over k of weight_k exp(-|x - centre_k|^2 / (2 noise_sd^2)). (n, 2) -> (n,)."""
    # A row so far away that its square overflows has log-density -inf, which is the right float64.
    with np.errstate(over="ignore"):
        log_kernel = (x[:, :1] - centre[:, 0]) ** 2  # (n, k)
        log_kernel += (x[:, 1:] - centre[:, 1]) ** 2
        log_kernel *= -0.5 / noise_sd**2
    log_kernel += log_weight
    # The lower limit keeps -inf minus -inf out.
    peak = np.maximum(log_kernel.max(axis=1), np.finfo(np.float64).min)  # (n,)
    log_kernel -= peak[:, None]
    total = np.exp(log_kernel, out=log_kernel).sum(axis=1)
    with np.errstate(divide="ignore"):
        return peak + np.log(total)


class Involute(NoisyCurve):
    """R ~ U(0, 2 pi), x | r ~ N((r sin 2r, r cos 2r), 0.4^2 I) (paper, appendix S1)."""

    reach = TURN

    def __init__(self, noise_sd: float = 0.4) -> None:
        self.noise_sd = noise_sd  # 0.4 is the standard deviation, not the variance (paper, appendix S1: "0.4^2")

    def curve(self, t: np.ndarray) -> np.ndarray:
        return np.stack([t * np.sin(2.0 * t), t * np.cos(2.0 * t)], axis=1)

    def panel_edge(self, share: np.ndarray) -> np.ndarray:
        return TURN * np.sqrt(share)  # the length of the spiral from 0 to r grows as r^2


class Moons(NoisyCurve):
    """Two interleaving half circles: the upper one for t < pi, the lower one after."""

    # A tenth of the radius: the moons stay apart (0.5 at the nearest) and the gap is still not empty.
    noise_sd = 0.1
    # The second moon opens upwards around this point, so that each tip lies inside the other moon.
    second_centre = (1.0, 0.5)
    reach = 1.0 + float(np.hypot(*second_centre))

    def curve(self, t: np.ndarray) -> np.ndarray:
        # The number of panels is even, so the jump from arc to arc at pi falls on an edge.
        circle = np.stack([np.cos(t), np.sin(t)], axis=1)
        return circle + np.where(t < np.pi, 0.0, 1.0)[:, None] * np.asarray(self.second_centre)


# Paper, appendix S1: each coordinate is 1/3 N(-1, 0.1^2) + 1/3 N(0, 0.1^2) + 1/3 N(1, 0.1^2).
COMPONENT_MEANS = (-1.0, 0.0, 1.0)
COMPONENT_SD = 0.1
# The root of the seed of the rotation. Part of the distribution: another number is another distribution.
ROTATION_SEED = 0


class IndependentMixture:
    """Independent coordinates, each a mixture of three normals: 3^p modes of equal weight.

    With `rotate`, rows are multiplied by a fixed rotation. The coordinates are then dependent, and a model that
    treats the columns one by one no longer finds the modes; the density at corresponding rows is unchanged.
    """

    def __init__(self, dim: int, *, rotate: bool = False) -> None:
        self.names = column_names(dim)
        self.rotation = rotation_matrix(dim) if rotate else None  # (p, p)

    def sample(self, n: int, rng: np.random.Generator) -> np.ndarray:
        shape = (n, len(self.names))
        y = rng.choice(COMPONENT_MEANS, size=shape) + COMPONENT_SD * rng.standard_normal(shape)
        return y if self.rotation is None else y @ self.rotation.T

    def log_density(self, x: np.ndarray) -> np.ndarray:
        """Return the sum over coordinates of log 1/3 sum over mu of N(y_j; mu, 0.1^2), y = x rotated back."""
        y = x if self.rotation is None else x @ self.rotation
        log_mixture = np.full(y.shape, -np.inf)  # (n, p)
        with np.errstate(over="ignore"):
            for mean in COMPONENT_MEANS:
                np.logaddexp(log_mixture, -0.5 * ((y - mean) / COMPONENT_SD) ** 2, out=log_mixture)
        log_constant = 0.5 * np.log(2.0 * np.pi) + np.log(COMPONENT_SD) + np.log(len(COMPONENT_MEANS))
        return log_mixture.sum(axis=1) - len(self.names) * log_constant


def rotation_matrix(dim: int) -> np.ndarray:
    """Return the rotation of a dimension, drawn once and for all from the uniform distribution. (dim, dim).

    The orthogonal factor of a Gaussian matrix, with signs chosen so that the factorisation is unique and the
    determinant is one (Mezzadri 2007, "How to generate random matrices from the classical compact groups").
    """
    gaussian = generator(ROTATION_SEED, "gmm-rotation", dim).standard_normal((dim, dim))
    orthogonal, upper = np.linalg.qr(gaussian)
    rotation = orthogonal * np.sign(np.diag(upper))
    rotation[:, 0] *= np.linalg.slogdet(rotation).sign
    return rotation


RADII = (1.0, 2.0, 3.0)
# A tenth of the gap between circles: three separate rings, each with a visible width.
RINGS_NOISE_SD = 0.1


class Rings:
    """A circle drawn at equal chances from three, a uniform angle on it, and N(0, 0.1^2 I) noise."""

    names = column_names(2)

    def sample(self, n: int, rng: np.random.Generator) -> np.ndarray:
        radius = rng.choice(RADII, size=n)
        angle = rng.uniform(0.0, 2.0 * np.pi, size=n)
        circle = np.stack([radius * np.cos(angle), radius * np.sin(angle)], axis=1)
        return circle + RINGS_NOISE_SD * rng.standard_normal((n, 2))

    def log_density(self, x: np.ndarray) -> np.ndarray:
        """Return log of the mean over radii R of exp(-(rho - R)^2 / 2s^2) I0e(rho R / s^2) / (2 pi s^2).

        rho is the length of the row and I0e the Bessel function I0 times exp(-argument): the angle integrated out.
        """
        rho = np.hypot(x[:, 0], x[:, 1])[:, None]  # (n, 1)
        radii = np.asarray(RADII)
        with np.errstate(over="ignore"):
            log_bessel = np.log(i0e(rho * (radii / RINGS_NOISE_SD**2)))
            log_ring = -0.5 * ((rho - radii) / RINGS_NOISE_SD) ** 2 + log_bessel  # (n, 3)
        log_constant = np.log(2.0 * np.pi) + 2.0 * np.log(RINGS_NOISE_SD) + np.log(len(RADII))
        return np.logaddexp.reduce(log_ring, axis=1) - log_constant
