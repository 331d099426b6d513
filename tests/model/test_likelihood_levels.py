"""The cells of pixels: against scipy and the logit map itself, integrated, and sampled."""

import numpy as np
import pytest
import tensorflow as tf
from scipy.special import logit
from scipy.stats import norm

from bayesnde_cli.inference.fitted_model import decode_bank
from bayesnde_cli.inference.mode_search import expected_precision, find_mode
from bayesnde_cli.model.likelihood import LevelCells, Target, draw_rows, log_joint, log_likelihood
from bayesnde_cli.scaling.column_map import Logit

BYTES = LevelCells(256.0)
LEVELS = np.arange(256.0)


def _masses(mean: float, sd: float) -> np.ndarray:
    """P of every level, by scipy."""
    with np.errstate(divide="ignore"):
        edges = logit(np.arange(257) / 256)
    below, above = norm.cdf(edges, mean, sd), norm.sf(edges, mean, sd)
    return np.where(edges[:-1] < mean, np.diff(below), -np.diff(above))


def _log_likelihoods(x: np.ndarray, mean: float, sd: float, dtype: tf.DType = tf.float64) -> np.ndarray:
    """log p(x | z) of single pixels."""
    x = tf.constant(x[:, None], dtype)
    mean, variance = tf.fill(x.shape, tf.constant(mean, dtype)), tf.fill(x.shape, tf.constant(sd**2, dtype))
    return log_likelihood(x, mean, variance, BYTES).numpy()


@pytest.mark.parametrize(("mean", "sd"), [(-7.0, 1.0), (0.3, 2.0), (5.0, 0.5), (-9.0, 2.0)])
@pytest.mark.parametrize(("dtype", "error"), [(tf.float64, 1e-5), (tf.float32, 2e-3)])
def test_a_level_with_its_noise_has_the_mass_of_its_cell(mean: float, sd: float, dtype: tf.DType, error: float) -> None:
    """In the units of the file noise has density 1 over a level: what is left is P of the level."""
    for fraction in (0.01, 0.5, 0.99):
        x, log_jacobian = Logit().forward(LEVELS, np.full(256, fraction))
        found = _log_likelihoods(x, mean, sd, dtype) + log_jacobian
        with np.errstate(divide="ignore"):
            wanted = np.log(_masses(mean, sd))
        is_there = wanted > -200.0
        assert is_there.sum() > 200
        np.testing.assert_allclose(found[is_there], wanted[is_there], rtol=error, atol=error)


def test_over_the_line_it_integrates_to_one() -> None:
    x, step = np.linspace(-25.0, 25.0, 400_001, retstep=True)
    assert np.exp(_log_likelihoods(x, -3.0, 1.5)).sum() * step == pytest.approx(1.0, abs=1e-4)
    # Negative control: a level less, and the noise is no density any more.
    fewer = LevelCells(255.0).log_noise(tf.constant(x), BYTES.find(tf.constant(x))).numpy()
    own = BYTES.log_noise(tf.constant(x), BYTES.find(tf.constant(x))).numpy()
    wrong = np.exp(_log_likelihoods(x, -3.0, 1.5) + fewer - own).sum() * step
    assert abs(wrong - 1.0) > 3e-3


def test_both_precisions_find_the_same_cells() -> None:
    """Training and chains are in float32, the bridge in float64: on either side of every edge, as near as it gets."""
    edges = logit(np.arange(1, 256) / 256).astype(np.float32)
    x = np.stack([np.nextafter(edges, np.float32(side)) for side in (-np.inf, 0.0, np.inf)] + [edges])
    found = [BYTES.find(tf.constant(x, dtype)) for dtype in (tf.float32, tf.float64)]
    for name in ("lower", "upper"):
        narrow, wide = (getattr(each, name).numpy() for each in found)
        np.testing.assert_allclose(narrow, wide, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("is_compiled", [False, True])
def test_a_model_may_be_as_sure_of_the_last_level_as_it_likes(is_compiled: bool) -> None:
    def value_and_slopes(x: tf.Tensor, mean: tf.Tensor, variance: tf.Tensor) -> tuple:
        with tf.GradientTape() as tape:
            tape.watch([mean, variance])
            value = log_likelihood(x, mean, variance, BYTES)
        return value, *tape.gradient(value, [mean, variance])

    call = tf.function(value_and_slopes, jit_compile=True) if is_compiled else value_and_slopes
    means = np.array([-1e4, -3e3, -300.0, -100.0, 0.0, 100.0, 300.0, 3e3, 1e4])
    x, _ = Logit().forward(np.array([0.0, 1.0, 128.0, 255.0]), np.full(4, 0.5))
    x, mean = (tf.constant(part.reshape(-1, 1), tf.float32) for part in np.meshgrid(x, means, indexing="ij"))
    log_noise = BYTES.log_noise(x, BYTES.find(x)).numpy().reshape(4, -1)
    for sd in (0.01, 2.0):
        found = [part.numpy().reshape(4, -1) for part in call(x, mean, tf.fill(mean.shape, sd**2))]
        assert np.isfinite(found).all()
        masses = found[0] - log_noise
        # Draws give this level almost always, so its log-mass is near 0.
        assert np.abs(masses[0, 1:4]).max() < 1e-4
        assert np.abs(masses[3, 5:8]).max() < 1e-4
        assert masses[0, 5:].max() < -1e3


def _slopes(x: np.ndarray, mean: float, sd: float, dtype: tf.DType) -> tuple[np.ndarray, np.ndarray]:
    """d log p(x | z) / d mean and / d variance of single pixels."""
    places = tf.constant(x[:, None], dtype)
    at = [tf.fill(places.shape, tf.constant(value, dtype)) for value in (mean, sd**2)]
    with tf.GradientTape() as tape:
        tape.watch(at)
        value = log_likelihood(places, at[0], at[1], BYTES)
    return tuple(slope.numpy()[:, 0] for slope in tape.gradient(value, at))


@pytest.mark.parametrize(("dtype", "error"), [(tf.float64, 1e-4), (tf.float32, 5e-3)])
@pytest.mark.parametrize(("mean", "sd"), [(-7.0, 1.0), (0.3, 2.0), (5.0, 0.5)])
def test_slopes_are_those_of_the_masses(mean: float, sd: float, dtype: tf.DType, error: float) -> None:
    x, _ = Logit().forward(LEVELS, np.full(256, 0.3))
    by_mean, by_variance = _slopes(x, mean, sd, dtype)
    step = 1e-4
    with np.errstate(divide="ignore", invalid="ignore"):
        up, down = (np.log(_masses(mean + shift, sd)) for shift in (step, -step))
        wider, narrower = (np.log(_masses(mean, np.sqrt(sd**2 + shift))) for shift in (step, -step))
    is_there = np.log(_masses(mean, sd) + 1e-300) > -100.0
    assert is_there.sum() > 150
    for found, high, low in ((by_mean, up, down), (by_variance, wider, narrower)):
        wanted = (high - low)[is_there] / (2 * step)
        np.testing.assert_allclose(found[is_there], wanted, rtol=error, atol=error)


def _line(z: tf.Tensor, y: tf.Tensor | None = None) -> tuple:
    """Three pixels that one latent moves, with a spread of their own."""
    mean = tf.constant([2.0, -1.0, 0.5], z.dtype) * z + tf.constant([-1.0, 0.0, 4.0], z.dtype)
    return mean, tf.broadcast_to(tf.constant([0.5, 1.0, 4.0], z.dtype), mean.shape), BYTES


_PIXELS = Logit().forward(np.array([[0.0, 100.0, 255.0], [40.0, 130.0, 250.0]]), np.full((2, 3), 0.4))[0]


def test_the_expected_precision_is_the_curvature_of_the_masses() -> None:
    """The spread does not depend on z and the mean is a line, so what is expected is what there is."""
    x, z = tf.constant(_PIXELS), tf.constant([[-3.0], [-0.3]], tf.float64)
    step = 1e-3
    below, here, above = (log_joint(z + shift, x, _line).numpy() for shift in (-step, 0.0, step))
    curvature = -(below - 2 * here + above) / step**2
    np.testing.assert_allclose(expected_precision(_line, Target(x), z).numpy()[:, 0, 0], curvature, rtol=1e-4)
    # Negative control: a point says more than all that is black.
    points = expected_precision(lambda z: _line(z)[:2], Target(x), z).numpy()[:, 0, 0]
    assert points[0] > curvature[0] + 1.0


def test_a_mode_is_where_the_posterior_is_highest() -> None:
    x = tf.constant(_PIXELS, tf.float32)
    grid = np.linspace(-3.0, 3.0, 6001)
    heights = log_joint(tf.constant(grid[None, :, None]), tf.constant(_PIXELS[:, None]), _line).numpy()
    found = find_mode(_line, Target(x), tf.zeros([2, 1])).z.numpy()[:, 0]
    np.testing.assert_allclose(found, grid[heights.argmax(axis=1)], atol=5e-3)


@pytest.mark.parametrize("n_classes", [0, 2])
def test_starts_of_chains_are_judged_by_the_levels_too(n_classes: int) -> None:
    bank = decode_bank(_line, np.linspace(-2.0, 2.0, 9, dtype=np.float32)[:, None], n_classes)
    assert bank.cells == BYTES
    x = tf.constant(_PIXELS, tf.float32)
    height, _ = bank.log_likelihood(Target(x, None, tf.one_hot([1, 0], 2) if n_classes else None))
    wanted = [log_likelihood(tf.repeat(x[row : row + 1], 9, axis=0), *_line(tf.constant(bank.z))) for row in range(2)]
    np.testing.assert_allclose(height.numpy(), tf.stack(wanted).numpy(), rtol=1e-5)


def test_draws_have_the_masses_of_the_levels_and_even_noise() -> None:
    mean, sd, n = -4.0, 1.5, 200_000

    def decoder(z: tf.Tensor) -> tuple:
        return tf.fill(z.shape, mean), tf.fill(z.shape, sd**2), BYTES

    x = draw_rows(decoder, n, 1, tf.constant([1, 2])).numpy()[:, 0].astype(np.float64)
    y = Logit().inverse(x)
    masses = _masses(mean, sd)
    counts = np.bincount(Logit().to_value(y).astype(int), minlength=256)
    is_large = masses > 1e-3
    assert is_large.sum() > 10
    z = (counts - n * masses)[is_large] / np.sqrt(n * masses * (1 - masses))[is_large]
    assert np.abs(z).max() < 4.5
    fractions = y[Logit().to_value(y) == 0]
    assert fractions.mean() == pytest.approx(0.5, abs=0.01)
    assert fractions.std() == pytest.approx(np.sqrt(1 / 12), abs=0.01)
