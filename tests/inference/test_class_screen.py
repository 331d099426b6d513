"""Screening of classes: right where the truth is known, and careful about the classes that it drops."""

from dataclasses import replace

import numpy as np
import pytest
import tensorflow as tf

from bayesnde_cli.inference.class_screen import ClassScreen, FirstFigures, _estimates, in_the_running
from bayesnde_cli.inference.fitted_model import FittedModel
from bayesnde_cli.model.coders import Encoder, encoder_spec, image_encoder_spec
from bayesnde_cli.model.networks import NetworkSpec, initial_parameters

_LOADING = np.array([[1.0, 0.5, 0.0], [0.0, 0.7, 1.2]], np.float32)  # (d, p)
_SHIFT = np.array([[0.0, 0.0, 0.0], [1.0, -1.0, 0.5], [40.0, 0.0, 0.0]], np.float32)  # (classes, p)
_VARIANCE = 0.3
_EVEN = np.full(3, 1.0 / 3.0)
_NO_GRADIENTS = np.zeros(0, np.int64)


def _linear(z: tf.Tensor, y: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    mean = tf.tensordot(z, tf.constant(_LOADING), 1) + tf.tensordot(y, tf.constant(_SHIFT), 1)
    return mean, tf.fill(tf.shape(mean), _VARIANCE)


def _model(spec: NetworkSpec | None = None) -> FittedModel:
    spec = spec or encoder_spec(2, 3, 3)
    return FittedModel(_linear, 2, Encoder(spec, initial_parameters(spec, 1, "encoder")), n_classes=3, n_columns=3)


def _image_model() -> FittedModel:
    return _model(replace(image_encoder_spec(2, (1, 3, 1), 3), width=2))


def _truth(x: np.ndarray) -> np.ndarray:
    """log N(x; shift of the class, loading' loading + variance), (rows, classes)."""
    covariance = _LOADING.T.astype(float) @ _LOADING + _VARIANCE * np.eye(3)
    away = x[:, None, :] - _SHIFT
    square = np.einsum("rci,ij,rcj->rc", away, np.linalg.inv(covariance), away)
    return np.asarray(-0.5 * (square + np.linalg.slogdet(2.0 * np.pi * covariance)[1]))


@pytest.mark.slow
def test_the_screening_of_a_linear_model_is_right_whatever_the_encoder_says() -> None:
    x = np.random.default_rng(0).normal(size=(50, 3)).astype(np.float32)
    screen = ClassScreen(_model())
    first = screen(x, 3, _EVEN)
    error = first.log_density - _truth(x)
    assert np.abs(error).max() < 0.5
    assert np.sqrt(np.mean((error / first.se) ** 2)) < 1.5
    assert (first.se > 0.0).all()  # no class of a table stays at its start
    assert (first.n_gradients % (1 + 2) == 0).all()  # a gradient and two slopes for each step
    assert (first.n_gradients >= 3 * 2 * (1 + 2)).all()  # of all classes
    assert all(np.array_equal(a, b) for a, b in zip(first[:2], screen(x, 3, _EVEN)[:2], strict=True))
    assert not np.array_equal(first.log_density, screen(x, 4, _EVEN).log_density)


@pytest.mark.slow
def test_a_hopeless_class_of_an_image_stays_at_its_start_unless_it_is_the_known_or_the_only_one() -> None:
    x = np.random.default_rng(0).normal(size=(50, 3)).astype(np.float32)
    screen, truth = ClassScreen(_image_model()), _truth(x)
    assert (truth[:, 2] < truth[:, :2].max(axis=1) - 400.0).all()  # the third class is far away
    image = screen(x, 3, _EVEN)
    assert (image.se[:, 2] == 0.0).all()
    assert (image.log_density[:, 2] < truth[:, 2] - 100.0).all()
    assert (image.se[:, :2] > 0.0).all()
    assert np.abs(image.log_density - truth)[:, :2].max() < 0.5
    assert not in_the_running(image, _EVEN)[:, 2].any()
    only = screen(x, 3, np.array([0.0, 0.0, 1.0]))
    assert np.abs(only.log_density - truth)[:, 2].max() < 0.5
    assert (only.se[:, 2] > 0.0).all()
    assert (only.se[:, :2] == 0.0).all()  # their prior is 0
    known = screen(x, 3, _EVEN, np.where(np.arange(50) < 10, 2, 0))
    assert np.abs(known.log_density - truth)[:10, 2].max() < 0.5
    assert (known.se[10:, 2] == 0.0).all()
    assert (image.n_gradients[:10] < known.n_gradients[:10]).all()  # nothing is spent on a hopeless class
    sizes = {p: ClassScreen(replace(_image_model(), n_columns=p))._hopeless for p in (3, 784, 7840)}
    assert sizes == {3: 400.0, 784: 400.0, 7840: 4000.0}  # large images may differ more


def test_a_class_is_dropped_only_far_below_the_best_its_prior_and_errors_counted() -> None:
    log_density = np.array([[0.0, -7.0, -9.0], [0.0, -21.0, -21.0], [0.0, np.nan, -1000.0], [-500.0, 0.0, -3.0]])
    se = np.array([[0.1, 0.1, 0.1], [0.1, 0.6, 0.1], [0.1, 0.1, np.nan], [0.1, 0.1, 0.1]])
    even = np.full(3, 1.0 / 3.0)
    assert in_the_running(FirstFigures(log_density, se, _NO_GRADIENTS), even).tolist() == [
        [True, True, False],
        [True, True, False],
        [True, True, True],
        [False, True, True],
    ]
    rare = np.array([0.5, 0.5 - 1e-12, 1e-12])  # nobody expects the third one
    assert in_the_running(FirstFigures(log_density, se, _NO_GRADIENTS), rare)[3].tolist() == [False, True, False]
    assert in_the_running(FirstFigures(log_density, se, _NO_GRADIENTS), np.array([0.0, 0.5, 0.5]))[1].tolist() == [
        False,
        True,
        True,
    ]


def test_the_error_of_the_best_class_counts_as_well() -> None:
    log_density = np.array([[0.0, -8.0]])
    doubtful, sure = (FirstFigures(log_density, np.array([[se, 0.1]]), _NO_GRADIENTS) for se in (0.4, 0.1))
    assert in_the_running(doubtful, np.full(2, 0.5)).tolist() == [[True, True]]
    assert in_the_running(sure, np.full(2, 0.5)).tolist() == [[True, False]]


def test_the_mean_of_weights_and_its_error() -> None:
    log_density, se = _estimates(np.log([[1.0, 3.0], [2e-200, 2e-200]]))
    assert np.allclose(log_density, np.log([2.0, 2e-200]))
    assert np.allclose(se, [0.5 / np.sqrt(2.0), 0.0])
