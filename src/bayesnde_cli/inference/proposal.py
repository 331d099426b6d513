"""The proposal of the latent posterior of every row: a mixture of multivariate t's, fitted to draws of it.

With the weights w_k, means m_k and covariances L_k L_k' of a mixture of normals fitted to the draws of a row,

    q(z) = (1 - e) sum over k of w_k t(z; m_k, L_k L_k', freedom) + e N(z; 0, I).

The tails of the t's are heavier than those of any posterior. The defensive component, the prior with a small weight e,
keeps p(x, z) / q(z) below p(x | z) / e where there were no draws. All rows are fitted at once, inside XLA."""

import math
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from bayesnde_cli.model import backend
from bayesnde_cli.model.likelihood import log_prior

# Draws beyond this are discarded, as are NaN and infinity: under the prior N(0, I) no posterior reaches that far.
_FARTHEST = 1e6
# Variance of a coordinate that does not vary, as in chains that never moved. The s.d. of 1e-5 is forty steps of float32
# at |z| = 3.
_LEAST_VARIANCE = 1e-10
# The least a: the s.d. of any direction is then at least a thousandth of that of a coordinate.
_LEAST_DIAGONAL_SHARE = 1e-6
_N_KMEANS_STEPS = 5
# Steps of EM.
_N_EM_STEPS = 25
# A component with fewer draws than this counts as empty: its mean is that of all draws, its covariance the common one.
_NO_DRAWS = 1e-6
# Above this dimension, factoring two halves is faster than elimination.
_ELIMINATION_LIMIT = 32


class FitSettings(NamedTuple):
    """How a mixture is fitted: its size, and what is added to its covariances."""

    n_components: int
    regulariser: float  # times the covariance within components
    absolute_regulariser: float = 0.0  # added to every variance, in units of z
    n_steps: int = _N_EM_STEPS  # of EM


class MixtureOfT(NamedTuple):
    """A mixture for every row; the covariance L L' is the scale matrix of a multivariate t. All float64."""

    log_weights: tf.Tensor  # (rows, components)
    means: tf.Tensor  # (rows, components, d)
    factors: tf.Tensor  # L, lower triangular (rows, components, d, d)
    inverses: tf.Tensor  # of L


class _Whitened(NamedTuple):
    """The draws of every row, centred and whitened, in float32, and in float64 the map back: z = mean + L white."""

    places: tf.Tensor  # z up to a scale (rows, d, n): the longest axis is the last
    white: tf.Tensor  # of covariance I (rows, d, n)
    weight: tf.Tensor  # N / n, or 0 for a discarded draw (rows, n)
    share: tf.Tensor  # 1 - a, (rows,)
    extra: tf.Tensor  # E after whitening, (rows, d, d)
    mean: tf.Tensor  # (rows, d)
    factor: tf.Tensor  # L, lower triangular (rows, d, d)
    inverse: tf.Tensor  # of L


def fit(draws: tf.Tensor, settings: FitSettings, seed: tf.Tensor) -> MixtureOfT:
    """Fit a mixture to the draws of each row by EM. draws (rows, n, d), one chain after the other.

    EM works on draws whitened to mean 0 and covariance I, so that narrow, correlated and wide posteriors look alike.
    A component k with N_k of the N draws, of covariance C_k, gets the covariance

        Sigma_k = (1 - l_k) S_k + l_k s_k T + regulariser T,

        S_k = (1 - a) C_k + E                                           its own, see below for a and E,
        T   = sum over k of N_k S_k / N                                 the covariance within components,
        s_k = (N_k tr(T^-1 S_k) / d + 1) / (N_k + 1)                    the size of this one, 1 if it has no draws,
        l_k = min(1, d (d + 1) / (2 J_k))                               how far its shape gives way to T,
        J_k = N_k / 2 (tr(R_k^-1 s_k T) + tr(R_k (s_k T)^-1) - 2 d)     what its draws say against this shape,
        R_k = (N_k S_k + c_k s_k T) / (N_k + c_k),  c_k = 1 + d^2 / N_k.

    If the true shape is the common one and S_k differs by chance, J_k is near its degrees of freedom d (d + 1) / 2
    and l_k near 1, as in a James-Stein estimate. If the component has a shape of its own, J_k is far larger and it
    keeps that shape. A component with few draws takes the common shape, and none collapses onto a draw that a chain
    repeats: a draw that equals the previous one carries no information, so N counts only the others, and each of the
    n draws counts N / n in N_k.

    Whitening uses (1 - a) C + E, with the covariance C of all draws, a = max(1e-6, 1 - N / (2 d)), and E diagonal such
    that the variances are those of C, but at least 1e-10: fewer than 2 d draws say little about correlations. Draws
    that are not finite are ignored; a row without draws gets the prior.
    """
    n_rows, _, d = draws.shape
    whitened = _whiten(draws)
    shares = _first_shares(whitened, settings.n_components, seed)

    def step(index: tf.Tensor, shares: tf.Tensor, _: MixtureOfT) -> tuple[tf.Tensor, tf.Tensor, MixtureOfT]:
        mixture = _maximise(whitened, shares, settings.regulariser)
        return index + 1, _expected_shares(whitened, mixture), mixture

    empty = MixtureOfT(*(tf.zeros([n_rows, settings.n_components, *axes]) for axes in ([], [d], [d, d], [d, d])))
    _, _, mixture = tf.while_loop(lambda index, *_: index < settings.n_steps, step, (tf.constant(0), shares, empty))
    log_weights, means, factors, inverses = (tf.cast(part, tf.float64) for part in mixture)
    means = whitened.mean[:, None, :] + tf.matmul(means, whitened.factor, transpose_b=True)
    factors, inverses = tf.matmul(whitened.factor[:, None], factors), tf.matmul(inverses, whitened.inverse[:, None])
    identity = tf.eye(d, dtype=tf.float64)
    if settings.absolute_regulariser > 0.0:
        covariances = tf.matmul(factors, factors, transpose_b=True)
        factors, inverses = _factorise_halves(covariances + settings.absolute_regulariser * identity)
    # Draws use the factor and scores its inverse: a Newton step refines the float32 inverse to float64.
    factors = tf.linalg.band_part(factors, -1, 0)
    inverses = tf.matmul(inverses, 2.0 * identity - tf.matmul(factors, inverses))
    return MixtureOfT(log_weights, means, factors, inverses)


def draw(
    proposal: MixtureOfT, n: int, seed: tf.Tensor, *, freedom: int = 3, defensive_weight: float = 0.05
) -> tf.Tensor:
    """Draw n independent latents from each row's q. (rows, n, d) float32.

    A draw of component k is m_k + L_k noise sqrt(freedom / chi-square): one chi-square for all of its coordinates.
    """
    n_rows, n_components, d = proposal.means.shape
    # One call for all, as XLA takes a third of a second to compile each call for random numbers.
    numbers = backend.normal([n_rows, n, d + freedom + 1], seed)
    noise, roots = tf.cast(numbers[:, :, :d], tf.float64), tf.cast(numbers[:, :, d:-1], tf.float64)
    chi_square = tf.reduce_sum(tf.square(roots), axis=2)  # (rows, n)
    scaled = noise * tf.sqrt(freedom / chi_square)[:, :, None]
    uniform = 0.5 * tf.math.erfc(math.sqrt(0.5) * tf.cast(numbers[:, :, -1], tf.float64))
    bounds = (1.0 - defensive_weight) * tf.cumsum(tf.exp(proposal.log_weights), axis=1)  # (rows, components)
    # (rows, n); a number beyond all bounds stands for the defensive component.
    component = tf.reduce_sum(tf.cast(uniform[:, :, None] >= bounds[:, None, :], tf.int32), axis=2)

    def place(k: tf.Tensor, z: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        mean, factor = tf.gather(proposal.means, k, axis=1), tf.gather(proposal.factors, k, axis=1)
        # Round the sum once: rounding the mean alone would shift all draws of a narrow component.
        drawn = tf.cast(mean[:, None, :] + tf.matmul(scaled, factor, transpose_b=True), z.dtype)
        return k + 1, tf.where((component == k)[:, :, None], drawn, z)

    _, z = tf.while_loop(lambda k, _: k < n_components, place, (tf.constant(0), numbers[:, :, :d]))
    return z


def log_prob(proposal: MixtureOfT, z: tf.Tensor, *, freedom: int = 3, defensive_weight: float = 0.05) -> tf.Tensor:
    """log q(z). z (rows, n, d) -> (rows, n) float64."""
    z = tf.cast(z, tf.float64)
    d, n_components = z.shape[2], proposal.means.shape[1]
    log_weights, log_dets = math.log1p(-defensive_weight) + proposal.log_weights, log_det(proposal.factors)

    # One component after the other: all at once would need memory for (rows, components, n, d) numbers.
    def add(k: tf.Tensor, total: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        mean, inverse = tf.gather(proposal.means, k, axis=1), tf.gather(proposal.inverses, k, axis=1)
        square = tf.reduce_sum(tf.square(tf.matmul(z - mean[:, None, :], inverse, transpose_b=True)), axis=2)
        log_weight, log_scale = (tf.gather(part, k, axis=1)[:, None] for part in (log_weights, log_dets))
        part = log_weight + log_t(square, log_scale, freedom=freedom, d=d)
        return k + 1, tf.maximum(total, part) + tf.math.log1p(tf.exp(-tf.abs(total - part)))

    log_defensive = math.log(defensive_weight) if defensive_weight > 0.0 else -math.inf
    _, total = tf.while_loop(lambda k, _: k < n_components, add, (tf.constant(0), log_defensive + log_prior(z)))
    return total


def resample(z: np.ndarray, log_ratios: np.ndarray, n: int) -> np.ndarray:
    """Resample n of each row's draws by their weights pi / q. z (rows, m, d), log_ratios (rows, m) -> (rows, n, d).

    Systematic: a draw is repeated as often as its share of the weights says, rounded up or down, and copies stand
    together. Weights are truncated at sqrt(m) times their mean (Ionides 2008), so that a few draws where q is tiny do
    not replace all others. A row without finite weights gets NaN.
    """
    n_rows, m, _ = z.shape
    log_ratios = np.where(np.isfinite(log_ratios), log_ratios, -np.inf)
    top = log_ratios.max(axis=1, keepdims=True)
    is_lost = ~np.isfinite(top[:, 0])
    weights = np.exp(log_ratios - np.where(is_lost[:, None], 0.0, top))
    weights[is_lost] = 1.0
    weights = np.minimum(weights, weights.mean(axis=1, keepdims=True) * np.sqrt(m))
    shares = np.cumsum(weights, axis=1)
    reached = np.floor(n * shares / shares[:, -1:] + 0.5).astype(np.int64)  # copies so far
    times = np.diff(reached, axis=1, prepend=0)
    index = np.repeat(np.tile(np.arange(m), n_rows), times.ravel()).reshape(n_rows, n)
    taken = np.take_along_axis(z, index[:, :, None], axis=1)
    taken[is_lost] = np.nan
    return taken


def log_t(square: tf.Tensor, log_det: tf.Tensor, *, freedom: int, d: int) -> tf.Tensor:
    """Log-density of the multivariate t where |L^-1 (z - m)|^2 = square, for location m and scale matrix L L'.

    log t = log G((nu + d) / 2) - log G(nu / 2) - d / 2 log(nu pi) - log det L - (nu + d) / 2 log(1 + square / nu)
    """
    constant = math.lgamma(0.5 * (freedom + d)) - math.lgamma(0.5 * freedom) - 0.5 * d * math.log(freedom * math.pi)
    return constant - log_det - 0.5 * (freedom + d) * tf.math.log1p(square / freedom)


def _whiten(draws: tf.Tensor) -> _Whitened:
    """The whitened draws. (rows, n, d)."""
    d = draws.shape[2]
    is_sound = tf.reduce_all(tf.abs(draws) < _FARTHEST, axis=2)  # False for NaN
    is_draw = tf.cast(is_sound, tf.float64)  # (rows, n)
    n_draws = tf.reduce_sum(is_draw, axis=1)[:, None]
    z = tf.where(is_sound[:, :, None], tf.cast(draws, tf.float64), tf.zeros([], tf.float64))
    mean = tf.reduce_sum(z, axis=1) / tf.maximum(n_draws, 1.0)
    centred = tf.linalg.matrix_transpose((z - mean[:, None, :]) * is_draw[:, :, None])  # (rows, d, n)
    covariance = tf.matmul(centred, centred, transpose_b=True) / tf.maximum(n_draws, 1.0)[:, :, None]
    variance = tf.maximum(tf.linalg.diag_part(covariance), _LEAST_VARIANCE)
    variance = tf.where(n_draws > 0.0, variance, tf.ones_like(variance))

    is_new = tf.concat([tf.ones_like(is_sound[:, :1]), tf.reduce_any(draws[:, 1:] != draws[:, :-1], axis=2)], axis=1)
    n_new = tf.reduce_sum(tf.cast(is_new & is_sound, tf.float64), axis=1)
    share = tf.minimum(n_new / (2.0 * d), 1.0 - _LEAST_DIAGONAL_SHARE)
    covariance *= share[:, None, None]
    extra = variance - tf.linalg.diag_part(covariance)
    factor, inverse = _factorise_halves(tf.linalg.set_diag(covariance, variance))
    extra = tf.matmul(inverse * extra[:, None, :], inverse, transpose_b=True)
    scale = tf.sqrt(tf.reduce_sum(variance, axis=1))[:, None, None]
    weight = is_draw * n_new[:, None] / tf.maximum(n_draws, 1.0)
    parts = centred / scale, tf.matmul(inverse, centred), weight, share, extra
    places, white, weight, share, extra = (tf.cast(part, tf.float32) for part in parts)
    return _Whitened(places, white, weight, share, extra, mean, factor, inverse)


def _first_shares(draws: _Whitened, n_components: int, seed: tf.Tensor) -> tf.Tensor:
    """Assign the draws to groups by k-means, started by k-means++ (Arthur and Vassilvitskii 2007).

    -> (rows, components, n). Distances are in z: whitening would hide modes that lie far apart, as it makes the noise
    of every other direction as wide as the distance between them.
    """
    n_rows, d, n = draws.places.shape
    uniform = backend.uniform([n_components, n_rows, n], seed, minval=1e-30)
    gumbel = -tf.math.log(-tf.math.log(uniform))

    def choose(k: tf.Tensor, nearest: tf.Tensor, means: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        # A draw becomes the next mean with probability proportional to its squared distance to the nearest mean.
        index = tf.argmax(tf.math.log(nearest) + tf.gather(gumbel, k), axis=1)
        mean = tf.gather(draws.places, index, axis=2, batch_dims=1)  # (rows, d)
        distances = tf.reduce_sum(tf.square(draws.places - mean[:, :, None]), axis=1)
        is_next = (tf.range(n_components) == k)[None, :, None]
        return k + 1, tf.minimum(nearest, draws.weight * distances), tf.where(is_next, mean[:, None, :], means)

    # The first mean is any draw.
    start = tf.constant(0), tf.float32.max * draws.weight, tf.zeros([n_rows, n_components, d])
    _, _, means = tf.while_loop(lambda k, *_: k < n_components, choose, start)

    def move(index: tf.Tensor, means: tf.Tensor, _: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        # |z - m|^2 without |z|^2, which is the same for all means.
        distances = tf.reduce_sum(tf.square(means), axis=2)[:, :, None] - 2.0 * tf.matmul(means, draws.places)
        is_nearest = tf.cast(distances <= tf.reduce_min(distances, axis=1, keepdims=True), tf.float32)
        shares = draws.weight[:, None, :] * is_nearest / tf.reduce_sum(is_nearest, axis=1, keepdims=True)
        return index + 1, _means(shares, draws.places), shares

    start = tf.constant(0), means, tf.zeros([n_rows, n_components, n])
    _, _, shares = tf.while_loop(lambda index, *_: index < _N_KMEANS_STEPS, move, start)
    return shares


def _expected_shares(draws: _Whitened, mixture: MixtureOfT) -> tf.Tensor:
    """E step: the weight of every draw times the probability of each component. (rows, components, n)."""
    n_rows, n_components, d = mixture.means.shape
    # One product for all components of a row.
    standard = tf.matmul(tf.reshape(mixture.inverses, [n_rows, n_components * d, d]), draws.white)
    standard = tf.reshape(standard, [n_rows, n_components, d, -1])
    standard -= tf.linalg.matvec(mixture.inverses, mixture.means)[:, :, :, None]
    log_heights = (mixture.log_weights - log_det(mixture.factors))[:, :, None]
    log_parts = log_heights - 0.5 * tf.reduce_sum(tf.square(standard), axis=2)
    return tf.nn.softmax(log_parts, axis=1) * draws.weight[:, None, :]


def _maximise(draws: _Whitened, shares: tf.Tensor, regulariser: float) -> MixtureOfT:
    """M step: the mixture for these shares (rows, components, n), with the covariances of `fit`."""
    d = draws.white.shape[1]
    identity = tf.eye(d)
    counts = tf.reduce_sum(shares, axis=2)  # N_k, (rows, components)
    # One draw more in each component, so that no weight is 0.
    log_weights = tf.math.log((counts + 1.0) / tf.reduce_sum(counts + 1.0, axis=1, keepdims=True))
    means = _means(shares, draws.white)
    scaled = tf.sqrt(shares)[:, :, None, :] * (draws.white[:, None] - means[:, :, :, None])  # (rows, components, d, n)
    scatters = draws.share[:, None, None, None] * tf.matmul(scaled, scaled, transpose_b=True)
    n_draws = tf.maximum(tf.reduce_sum(counts, axis=1), 1.0)
    within = tf.reduce_sum(scatters, axis=1) / n_draws[:, None, None] + draws.extra  # T
    scatters += _per_matrix(counts) * draws.extra[:, None]  # N_k S_k

    factor, inverse = (part[:, None] for part in _factorise_halves(within))
    # From here on in units of T: L^-1 (…) L'^-1 with T = L L'.
    scatters = tf.matmul(tf.matmul(inverse, scatters), inverse, transpose_b=True)
    sizes = (tf.linalg.trace(scatters) / d + 1.0) / (counts + 1.0)
    some = tf.maximum(counts, _NO_DRAWS)
    pseudo_count = 1.0 + d**2 / some
    rough = (scatters + _per_matrix(pseudo_count * sizes) * identity) / _per_matrix(counts + pseudo_count)  # R_k
    trace_of_inverse = tf.reduce_sum(tf.square(_factorise_halves(rough)[1]), axis=[2, 3])
    against = 0.5 * counts * (sizes * trace_of_inverse + tf.linalg.trace(rough) / sizes - 2.0 * d)  # J_k
    to_common = 0.5 * d * (d + 1.0) / tf.maximum(against, 0.5 * d * (d + 1.0))  # l_k
    own = _per_matrix((1.0 - to_common) / some) * scatters
    factors, inverses = _factorise_halves(own + _per_matrix(to_common * sizes + regulariser) * identity)
    return MixtureOfT(log_weights, means, tf.matmul(factor, factors), tf.matmul(inverses, inverse))


def _means(shares: tf.Tensor, places: tf.Tensor) -> tf.Tensor:
    """The mean place of each component, 0 for one without draws. (rows, components, n), (rows, d, n)."""
    counts = tf.maximum(tf.reduce_sum(shares, axis=2, keepdims=True), _NO_DRAWS)
    return tf.matmul(shares, places, transpose_b=True) / counts


def _per_matrix(numbers: tf.Tensor) -> tf.Tensor:
    return numbers[:, :, None, None]


def log_det(factors: tf.Tensor) -> tf.Tensor:
    """log det L of lower triangular matrices. (…, d, d) -> (…,)."""
    return tf.reduce_sum(tf.math.log(tf.linalg.diag_part(factors)), axis=-1)


def factorise(matrices: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Cholesky factor L and its inverse of positive definite matrices. (…, d, d) -> twice (…, d, d).

    Elimination turns [matrix, I] into [L', inverse of L], all rows at once. A pivot that rounding has made tiny or
    negative is raised to a millionth of its diagonal. XLA's own factorisation takes several seconds to compile on a
    CPU, and twice as long with a solve.
    """
    d = matrices.shape[-1]
    matrix, index = tf.reshape(matrices, [-1, d, d]), tf.range(d)
    least = 1e-6 * tf.linalg.diag_part(matrix)  # (rows, d)

    def eliminate(k: tf.Tensor, both: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        row = tf.gather(both, k, axis=1)  # (rows, 2 d)
        pivot = tf.maximum(tf.gather(row, k, axis=1), tf.gather(least, k, axis=1))[:, None]
        row = tf.where(tf.range(2 * d) == k, pivot, row)
        root = tf.sqrt(pivot)
        row = row / root
        below = tf.where(index > k, tf.gather(both, k, axis=2) / root, 0.0)  # (rows, d)
        both = both - below[:, :, None] * row[:, None, :]
        return k + 1, tf.where((index == k)[None, :, None], row[:, None, :], both)

    both = tf.concat([matrix, tf.broadcast_to(tf.eye(d, dtype=matrix.dtype), matrix.shape)], axis=2)
    _, both = tf.while_loop(lambda k, _: k < d, eliminate, (tf.constant(0), both))
    factor, inverse = tf.linalg.matrix_transpose(both[:, :, :d]), both[:, :, d:]
    return tf.reshape(factor, matrices.shape), tf.reshape(inverse, matrices.shape)


def _factorise_halves(matrices: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """The same in halves if the matrices are large: elimination takes one column at a time, halves are products."""
    d = matrices.shape[-1]
    if d <= _ELIMINATION_LIMIT:
        return factorise(matrices)
    half = d // 2
    upper, upper_inverse = _factorise_halves(matrices[..., :half, :half])
    side = tf.matmul(matrices[..., half:, :half], upper_inverse, transpose_b=True)
    lower, lower_inverse = _factorise_halves(matrices[..., half:, half:] - tf.matmul(side, side, transpose_b=True))
    side_inverse = -tf.matmul(lower_inverse, tf.matmul(side, upper_inverse))
    return _triangle(upper, side, lower), _triangle(upper_inverse, side_inverse, lower_inverse)


def _triangle(upper: tf.Tensor, side: tf.Tensor, lower: tf.Tensor) -> tf.Tensor:
    zeros = tf.zeros_like(tf.linalg.matrix_transpose(side))
    return tf.concat([tf.concat([upper, zeros], axis=-1), tf.concat([side, lower], axis=-1)], axis=-2)
