"""A proposal for the latent posterior of every row: a mixture of multivariate t's, fitted to draws from it.

With the weights w_k, means m_k and covariances L_k L_k' of a mixture of normals fitted to the draws of a row,

    q(z) = (1 - e) sum over k of w_k t(z; m_k, L_k L_k', freedom) + e N(z; 0, I).

The t's have tails that no posterior outgrows; the last, defensive component, the prior with a small weight e, keeps
p(x, z) / q(z) below p(x | z) / e where no draw came. All of it runs inside XLA, on all rows at once.
"""

import math
from typing import NamedTuple

import tensorflow as tf

from bayesnde_cli.model import random_numbers
from bayesnde_cli.model.latent_mode import triangular_factor
from bayesnde_cli.model.likelihood import log_prior
from bayesnde_cli.model.student_t import log_t

# A draw beyond this is none: under the prior N(0, I) no posterior reaches there. NaN and infinity are none either.
_FARTHEST = 1e6
# Of a coordinate that does not vary, as in chains that never moved: an s.d. of 1e-5, forty steps of float32 at |z| = 3.
_LEAST_VARIANCE = 1e-10
# The least a: a direction's s.d. is then at least a thousandth of a coordinate's.
_LEAST_DIAGONAL_SHARE = 1e-6
_N_KMEANS_STEPS = 5
# With fewer draws than this a component has none: its mean is that of all draws, its covariance the common one.
_NO_DRAWS = 1e-6
# Beyond this many dimensions, elimination takes longer than two of half the size.
_ELIMINATION_LIMIT = 32


class MixtureOfT(NamedTuple):
    """A mixture for every row; the covariance L L' is the scale matrix of a multivariate t. All float64."""

    log_weights: tf.Tensor  # (rows, components)
    means: tf.Tensor  # (rows, components, d)
    factors: tf.Tensor  # L, lower triangular (rows, components, d, d)
    inverses: tf.Tensor  # of L


class _Map(NamedTuple):
    """z = mean + L white. All float64."""

    mean: tf.Tensor  # (rows, d)
    factor: tf.Tensor  # L, lower triangular (rows, d, d)
    inverse: tf.Tensor  # of L


class _Draws(NamedTuple):
    """The draws of every row, centred, in units of their own spread; in float32. The longest axis is the last."""

    places: tf.Tensor  # z up to a scale (rows, d, n)
    white: tf.Tensor  # of covariance I (rows, d, n)
    weight: tf.Tensor  # N / n for a draw, 0 for what is none (rows, n)
    share: tf.Tensor  # 1 - a, (rows,)
    extra: tf.Tensor  # E after the map, (rows, d, d)


def fit(
    draws: tf.Tensor,
    *,
    n_components: int,
    n_steps: int | tf.Tensor,
    regulariser: float,
    absolute_regulariser: float = 0.0,
    seed: tf.Tensor,
) -> MixtureOfT:
    """The mixture that `n_steps` of EM fit to the draws of each row. draws (rows, n, d), chain after chain.

    EM works on draws mapped to mean 0 and covariance I, so that narrow, correlated and wide posteriors are alike to
    it. N_k draws of covariance C_k in component k, of N in all, give it the covariance

        Sigma_k = (1 - l_k) S_k + l_k s_k T + regulariser T,

        S_k = (1 - a) C_k + E                                           its own, see below for a and E,
        T   = sum over k of N_k S_k / N                                 the covariance within components,
        s_k = (N_k tr(T^-1 S_k) / d + 1) / (N_k + 1)                    the size of this one, 1 if it has no draws,
        l_k = min(1, d (d + 1) / (2 J_k))                               how far its shape gives way to T,
        J_k = N_k / 2 (tr(R_k^-1 s_k T) + tr(R_k (s_k T)^-1) - 2 d)     what its draws say against this shape,
        R_k = (N_k S_k + c_k s_k T) / (N_k + c_k),  c_k = 1 + d^2 / N_k.

    If the shape is the same and S_k differs by chance, J_k is near its degrees of freedom d (d + 1) / 2, and l_k near
    1, as in an estimate of James and Stein. If the component has a shape of its own, J_k is far above, and it keeps
    the shape. One with few draws takes the common shape, and none shrinks to nothing around a draw that a chain
    repeats: of n draws, those that equal the one before are no news, so N is the number of the others, and every
    draw counts N / n in N_k.

    The map is by (1 - a) C + E, where C is the covariance of all draws, a = max(1e-6, 1 - N / (2 d)) and E diagonal,
    such that the variances are those of C, but at least 1e-10: fewer than 2 d draws know little of correlations. What
    is not finite is no draw; a row without draws gets the prior. `absolute_regulariser` is added to every variance
    in units of z.
    """
    n_rows, _, d = draws.shape
    back, whitened = _whitened(draws)
    shares = _first_shares(whitened, n_components, seed)

    def step(index: tf.Tensor, shares: tf.Tensor, _: MixtureOfT) -> tuple[tf.Tensor, tf.Tensor, MixtureOfT]:
        mixture = _maximised(whitened, shares, regulariser)
        return index + 1, _expected_shares(whitened, mixture), mixture

    nothing = MixtureOfT(*(tf.zeros([n_rows, n_components, *axes]) for axes in ([], [d], [d, d], [d, d])))
    _, _, mixture = tf.while_loop(lambda index, *_: index < n_steps, step, (tf.constant(0), shares, nothing))
    log_weights, means, factors, inverses = (tf.cast(part, tf.float64) for part in mixture)
    means = back.mean[:, None, :] + tf.matmul(means, back.factor, transpose_b=True)
    factors, inverses = tf.matmul(back.factor[:, None], factors), tf.matmul(inverses, back.inverse[:, None])
    identity = tf.eye(d, dtype=tf.float64)
    if absolute_regulariser > 0.0:
        covariances = tf.matmul(factors, factors, transpose_b=True)
        factors, inverses = _factor(covariances + absolute_regulariser * identity)
    # What is drawn with the one is scored with the other: Newton's step makes the inverse of float32 one of float64.
    factors = tf.linalg.band_part(factors, -1, 0)
    inverses = tf.matmul(inverses, 2.0 * identity - tf.matmul(factors, inverses))
    return MixtureOfT(log_weights, means, factors, inverses)


def draw(
    proposal: MixtureOfT, n: int, seed: tf.Tensor, *, freedom: int = 3, defensive_weight: float = 0.05
) -> tf.Tensor:
    """n independent draws of each row's q. (rows, n, d) float32.

    A draw of component k is m_k + L_k noise sqrt(freedom / chi-square): one chi-square for all of its coordinates.
    """
    n_rows, n_components, d = proposal.means.shape
    # One call for all, as every call for random numbers takes XLA a third of a second to compile.
    numbers = random_numbers.normal([n_rows, n, d + freedom + 1], seed)
    noise, roots = tf.cast(numbers[:, :, :d], tf.float64), tf.cast(numbers[:, :, d:-1], tf.float64)
    chi_square = tf.reduce_sum(tf.square(roots), axis=2)  # (rows, n)
    scaled = noise * tf.sqrt(freedom / chi_square)[:, :, None]
    uniform = 0.5 * tf.math.erfc(math.sqrt(0.5) * tf.cast(numbers[:, :, -1], tf.float64))
    bounds = (1.0 - defensive_weight) * tf.cumsum(tf.exp(proposal.log_weights), axis=1)  # (rows, components)
    # (rows, n); beyond all bounds lies the defensive component.
    component = tf.reduce_sum(tf.cast(uniform[:, :, None] >= bounds[:, None, :], tf.int32), axis=2)

    def place(k: tf.Tensor, z: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        mean, factor = tf.gather(proposal.means, k, axis=1), tf.gather(proposal.factors, k, axis=1)
        # Rounded once: a mean that is rounded by itself would shift all draws of a narrow component.
        there = tf.cast(mean[:, None, :] + tf.matmul(scaled, factor, transpose_b=True), z.dtype)
        return k + 1, tf.where((component == k)[:, :, None], there, z)

    _, z = tf.while_loop(lambda k, _: k < n_components, place, (tf.constant(0), numbers[:, :, :d]))
    return z


def log_prob(proposal: MixtureOfT, z: tf.Tensor, *, freedom: int = 3, defensive_weight: float = 0.05) -> tf.Tensor:
    """log q(z). z (rows, n, d) -> (rows, n) float64."""
    z = tf.cast(z, tf.float64)
    d, n_components = z.shape[2], proposal.means.shape[1]
    log_weights, log_dets = math.log1p(-defensive_weight) + proposal.log_weights, _log_det(proposal.factors)

    # One component after the other: all at once would hold (rows, components, n, d) numbers.
    def add(k: tf.Tensor, total: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        mean, inverse = tf.gather(proposal.means, k, axis=1), tf.gather(proposal.inverses, k, axis=1)
        square = tf.reduce_sum(tf.square(tf.matmul(z - mean[:, None, :], inverse, transpose_b=True)), axis=2)
        log_weight, log_det = (tf.gather(part, k, axis=1)[:, None] for part in (log_weights, log_dets))
        part = log_weight + log_t(square, log_det, freedom=freedom, d=d)
        return k + 1, tf.maximum(total, part) + tf.math.log1p(tf.exp(-tf.abs(total - part)))

    log_defensive = math.log(defensive_weight) if defensive_weight > 0.0 else -math.inf
    _, total = tf.while_loop(lambda k, _: k < n_components, add, (tf.constant(0), log_defensive + log_prior(z)))
    return total


def _whitened(draws: tf.Tensor) -> tuple[_Map, _Draws]:
    """The draws in units of their own spread, and the map back. (rows, n, d)."""
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
    factor, inverse = _factor(tf.linalg.set_diag(covariance, variance))
    extra = tf.matmul(inverse * extra[:, None, :], inverse, transpose_b=True)
    scale = tf.sqrt(tf.reduce_sum(variance, axis=1))[:, None, None]
    weight = is_draw * n_new[:, None] / tf.maximum(n_draws, 1.0)
    parts = centred / scale, tf.matmul(inverse, centred), weight, share, extra
    return _Map(mean, factor, inverse), _Draws(*(tf.cast(part, tf.float32) for part in parts))


def _first_shares(draws: _Draws, n_components: int, seed: tf.Tensor) -> tf.Tensor:
    """Every draw in one of the groups that k-means finds from the start of k-means++. (rows, components, n).

    (Arthur and Vassilvitskii 2007.) Distances are those in z: whitening hides modes that lie far apart, as it makes
    the noise of every other direction as wide as the distance between them.
    """
    n_rows, d, n = draws.places.shape
    uniform = random_numbers.uniform([n_components, n_rows, n], seed, minval=1e-30)
    gumbel = -tf.math.log(-tf.math.log(uniform))

    def choose(k: tf.Tensor, nearest: tf.Tensor, means: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        # A draw becomes the next mean with probability proportional to `nearest`, its squared distance to the others.
        index = tf.argmax(tf.math.log(nearest) + tf.gather(gumbel, k), axis=1)
        mean = tf.gather(draws.places, index, axis=2, batch_dims=1)  # (rows, d)
        distances = tf.reduce_sum(tf.square(draws.places - mean[:, :, None]), axis=1)
        is_next = (tf.range(n_components) == k)[None, :, None]
        return k + 1, tf.minimum(nearest, draws.weight * distances), tf.where(is_next, mean[:, None, :], means)

    # The first of all is any draw.
    start = tf.constant(0), tf.float32.max * draws.weight, tf.zeros([n_rows, n_components, d])
    _, _, means = tf.while_loop(lambda k, *_: k < n_components, choose, start)

    def move(index: tf.Tensor, means: tf.Tensor, _: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        # |z - m|^2 less |z|^2, which is the same for all means.
        distances = tf.reduce_sum(tf.square(means), axis=2)[:, :, None] - 2.0 * tf.matmul(means, draws.places)
        is_nearest = tf.cast(distances <= tf.reduce_min(distances, axis=1, keepdims=True), tf.float32)
        shares = draws.weight[:, None, :] * is_nearest / tf.reduce_sum(is_nearest, axis=1, keepdims=True)
        return index + 1, _means(shares, draws.places), shares

    start = tf.constant(0), means, tf.zeros([n_rows, n_components, n])
    _, _, shares = tf.while_loop(lambda index, *_: index < _N_KMEANS_STEPS, move, start)
    return shares


def _expected_shares(draws: _Draws, mixture: MixtureOfT) -> tf.Tensor:
    """The weight of every draw, shared out by the probability that it came from a component. (rows, components, n)."""
    n_rows, n_components, d = mixture.means.shape
    # All components of a row in one product.
    standard = tf.matmul(tf.reshape(mixture.inverses, [n_rows, n_components * d, d]), draws.white)
    standard = tf.reshape(standard, [n_rows, n_components, d, -1])
    standard -= tf.linalg.matvec(mixture.inverses, mixture.means)[:, :, :, None]
    log_heights = (mixture.log_weights - _log_det(mixture.factors))[:, :, None]
    log_parts = log_heights - 0.5 * tf.reduce_sum(tf.square(standard), axis=2)
    return tf.nn.softmax(log_parts, axis=1) * draws.weight[:, None, :]


def _maximised(draws: _Draws, shares: tf.Tensor, regulariser: float) -> MixtureOfT:
    """The mixture for these shares (rows, components, n), with the covariances of `fit`."""
    d = draws.white.shape[1]
    identity = tf.eye(d)
    counts = tf.reduce_sum(shares, axis=2)  # N_k, (rows, components)
    # One draw more for each, so that no weight is 0.
    log_weights = tf.math.log((counts + 1.0) / tf.reduce_sum(counts + 1.0, axis=1, keepdims=True))
    means = _means(shares, draws.white)
    scaled = tf.sqrt(shares)[:, :, None, :] * (draws.white[:, None] - means[:, :, :, None])  # (rows, components, d, n)
    scatters = draws.share[:, None, None, None] * tf.matmul(scaled, scaled, transpose_b=True)
    n_draws = tf.maximum(tf.reduce_sum(counts, axis=1), 1.0)
    within = tf.reduce_sum(scatters, axis=1) / n_draws[:, None, None] + draws.extra  # T
    scatters += _per_matrix(counts) * draws.extra[:, None]  # N_k S_k

    factor, inverse = (part[:, None] for part in _factor(within))
    # From here on T is the unit: L^-1 (…) L'^-1 with T = L L'.
    scatters = tf.matmul(tf.matmul(inverse, scatters), inverse, transpose_b=True)
    sizes = (tf.linalg.trace(scatters) / d + 1.0) / (counts + 1.0)
    some = tf.maximum(counts, _NO_DRAWS)
    pseudo_count = 1.0 + d**2 / some
    rough = (scatters + _per_matrix(pseudo_count * sizes) * identity) / _per_matrix(counts + pseudo_count)  # R_k
    trace_of_inverse = tf.reduce_sum(tf.square(_factor(rough)[1]), axis=[2, 3])
    against = 0.5 * counts * (sizes * trace_of_inverse + tf.linalg.trace(rough) / sizes - 2.0 * d)  # J_k
    to_common = 0.5 * d * (d + 1.0) / tf.maximum(against, 0.5 * d * (d + 1.0))  # l_k
    own = _per_matrix((1.0 - to_common) / some) * scatters
    factors, inverses = _factor(own + _per_matrix(to_common * sizes + regulariser) * identity)
    return MixtureOfT(log_weights, means, tf.matmul(factor, factors), tf.matmul(inverses, inverse))


def _means(shares: tf.Tensor, places: tf.Tensor) -> tf.Tensor:
    """The mean place of each component, 0 for one without draws. (rows, components, n), (rows, d, n)."""
    counts = tf.maximum(tf.reduce_sum(shares, axis=2, keepdims=True), _NO_DRAWS)
    return tf.matmul(shares, places, transpose_b=True) / counts


def _per_matrix(numbers: tf.Tensor) -> tf.Tensor:
    return numbers[:, :, None, None]


def _log_det(factors: tf.Tensor) -> tf.Tensor:
    return tf.reduce_sum(tf.math.log(tf.linalg.diag_part(factors)), axis=-1)


def _factor(matrices: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """L and its inverse, with matrix = L L' positive definite. (…, d, d) -> twice (…, d, d).

    Halves first, where the matrix is large: elimination works on one column after the other, this on products.
    """
    d = matrices.shape[-1]
    if d <= _ELIMINATION_LIMIT:
        both = triangular_factor(tf.reshape(matrices, [-1, d, d]))
        return tf.reshape(both[0], matrices.shape), tf.reshape(both[1], matrices.shape)
    half = d // 2
    upper, upper_inverse = _factor(matrices[..., :half, :half])
    side = tf.matmul(matrices[..., half:, :half], upper_inverse, transpose_b=True)
    lower, lower_inverse = _factor(matrices[..., half:, half:] - tf.matmul(side, side, transpose_b=True))
    side_inverse = -tf.matmul(lower_inverse, tf.matmul(side, upper_inverse))
    return _triangle(upper, side, lower), _triangle(upper_inverse, side_inverse, lower_inverse)


def _triangle(upper: tf.Tensor, side: tf.Tensor, lower: tf.Tensor) -> tf.Tensor:
    zeros = tf.zeros_like(tf.linalg.matrix_transpose(side))
    return tf.concat([tf.concat([upper, zeros], axis=-1), tf.concat([side, lower], axis=-1)], axis=-2)
