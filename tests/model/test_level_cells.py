"""The cells of pixels: against scipy and the logit map itself, integrated, and sampled."""

import numpy as np
import pytest
import tensorflow as tf
from scipy.special import logit
from scipy.stats import norm

from bayesnde_cli.data.scaling.logit import Logit
from bayesnde_cli.model.cells import LevelCells
from bayesnde_cli.model.decoder import Decoder, image_decoder_spec
from bayesnde_cli.model.likelihood import draw_rows, log_likelihood
from bayesnde_cli.model.networks import NetworkSpec, initial_parameters

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
def test_a_level_with_its_noise_has_the_mass_of_its_cell(
    mean: float, sd: float, dtype: tf.DType, error: float
) -> None:  # fmt: skip
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


def test_places_lie_in_the_cells_of_their_levels() -> None:
    fraction = np.random.default_rng(1).uniform(1e-6, 1.0 - 1e-6, (20, 256))
    x = Logit().forward(np.broadcast_to(LEVELS, fraction.shape), fraction)[0].astype(np.float32)
    found = BYTES.find(tf.constant(x))
    lower, upper = found.lower.numpy(), found.upper.numpy()
    assert found.is_inside.numpy().all()
    assert np.all((lower <= x + 1e-4) & (x <= upper + 1e-4))
    assert np.all(lower[:, 0] == -100.0)
    assert np.all(upper[:, 255] == 100.0)
    np.testing.assert_allclose(lower[:, 1:], np.broadcast_to(logit(LEVELS[1:] / 256), lower[:, 1:].shape), atol=1e-5)
    assert not BYTES.find(tf.constant([np.nan], tf.float32)).is_inside.numpy()[0]


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


def test_a_decoder_of_images_has_them_if_it_is_told_of_levels() -> None:
    points = image_decoder_spec(2, (8, 8, 1))
    cells = NetworkSpec(**vars(points) | {"levels": 256})
    z = tf.zeros([3, 2])
    plain, told = (Decoder(spec, initial_parameters(points, 1, "decoder"))(z) for spec in (points, cells))
    assert len(plain) == 2
    assert isinstance(told[2], LevelCells)
    np.testing.assert_array_equal(plain[0], told[0])
    with pytest.raises(ValueError, match="expected levels of the pixels of a decoder alone"):
        NetworkSpec(2, 3, levels=256)
    with pytest.raises(ValueError, match="expected levels of 0 or 256, got 1"):
        NetworkSpec(**vars(points) | {"levels": 1})
