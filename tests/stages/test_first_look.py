"""A first look at classes: right where the truth is known, and careful about what it drops."""

from dataclasses import replace

import numpy as np
import tensorflow as tf

from bayesnde_cli.config import DensityConfig
from bayesnde_cli.inference.block import Rows
from bayesnde_cli.inference.engine import FittedModel
from bayesnde_cli.model.encoder import Encoder, encoder_spec, image_encoder_spec
from bayesnde_cli.model.networks import NetworkSpec, initial_parameters
from bayesnde_cli.stages.scoring.by_class import ByClass, Effort, score_classes
from bayesnde_cli.stages.scoring.engine import Opened
from bayesnde_cli.stages.scoring.first_look import ClassScreen, FirstFigures, _estimates, in_the_running
from fake_engine import FakeEngine

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


def _image_screen() -> ClassScreen:
    return ClassScreen(_image_model())


def _truth(x: np.ndarray) -> np.ndarray:
    """log N(x; shift of the class, loading' loading + variance), (rows, classes)."""
    covariance = _LOADING.T.astype(float) @ _LOADING + _VARIANCE * np.eye(3)
    away = x[:, None, :] - _SHIFT
    square = np.einsum("rci,ij,rcj->rc", away, np.linalg.inv(covariance), away)
    return np.asarray(-0.5 * (square + np.linalg.slogdet(2.0 * np.pi * covariance)[1]))


def test_a_first_look_is_right_for_a_linear_model_whatever_the_encoder_says() -> None:
    x = np.random.default_rng(0).normal(size=(50, 3)).astype(np.float32)
    first = ClassScreen(_model())(x, 3, _EVEN)
    error = first.log_density - _truth(x)
    assert np.abs(error).max() < 0.5
    assert np.sqrt(np.mean((error / first.se) ** 2)) < 1.5
    assert (first.n_gradients % (1 + 2) == 0).all()  # a gradient and two slopes for each step
    assert (first.n_gradients >= 3 * 2 * (1 + 2)).all()  # of all classes
    again = ClassScreen(_model())(x, 3, _EVEN)
    assert all(np.array_equal(a, b) for a, b in zip(first[:2], again[:2], strict=True))
    assert not np.array_equal(first.log_density, ClassScreen(_model())(x, 4, _EVEN).log_density)


def test_a_hopeless_class_of_an_image_stays_at_its_start_and_one_of_a_table_does_not() -> None:
    x = np.random.default_rng(0).normal(size=(50, 3)).astype(np.float32)
    table = ClassScreen(_model())(x, 3, _EVEN)
    image = _image_screen()(x, 3, _EVEN)
    truth = _truth(x)
    assert (truth[:, 2] < truth[:, :2].max(axis=1) - 400.0).all()  # the third class is far away
    assert (image.se[:, 2] == 0.0).all()
    assert (image.log_density[:, 2] < truth[:, 2] - 100.0).all()
    assert (table.se > 0.0).all()
    assert np.abs(table.log_density - truth).max() < 0.5
    # The others are looked at as ever, and nothing is spent on the third.
    assert (image.se[:, :2] > 0.0).all()
    assert np.abs(image.log_density - truth)[:, :2].max() < 0.5
    assert (image.n_gradients < table.n_gradients).all()
    assert not in_the_running(image, _EVEN)[:, 2].any()


def test_the_best_class_that_can_be_and_the_known_one_are_looked_at_however_hopeless() -> None:
    x = np.random.default_rng(0).normal(size=(50, 3)).astype(np.float32)
    screen, truth = _image_screen(), _truth(x)
    found = screen(x, 3, np.array([0.0, 0.0, 1.0]))
    assert np.abs(found.log_density - truth)[:, 2].max() < 0.5
    assert (found.se[:, 2] > 0.0).all()
    assert (found.se[:, :2] == 0.0).all()  # nobody asks
    known = np.where(np.arange(50) < 10, 2, 0)
    found = screen(x, 3, _EVEN, known)
    assert np.abs(found.log_density - truth)[:10, 2].max() < 0.5
    assert (found.se[10:, 2] == 0.0).all()


def test_of_large_images_more_is_needed_to_be_hopeless() -> None:
    sizes = {p: ClassScreen(replace(_image_model(), n_columns=p))._hopeless for p in (3, 784, 7840)}
    assert sizes == {3: 400.0, 784: 400.0, 7840: 4000.0}


def test_a_class_is_dropped_only_far_below_the_best_its_prior_and_errors_counted() -> None:
    log_density = np.array([[0.0, -7.0, -9.0], [0.0, -21.0, -21.0], [0.0, np.nan, -1000.0], [-500.0, 0.0, -3.0]])
    se = np.array([[0.1, 0.1, 0.1], [0.1, 0.6, 0.1], [0.1, 0.1, np.nan], [0.1, 0.1, 0.1]])
    even = np.full(3, 1.0 / 3.0)
    assert in_the_running(FirstFigures(log_density, se, _NO_GRADIENTS), even).tolist() == [
        [True, True, False], [True, True, False], [True, True, True], [False, True, True],
    ]  # fmt: skip
    rare = np.array([0.5, 0.5 - 1e-12, 1e-12])  # nobody expects the third one
    assert in_the_running(FirstFigures(log_density, se, _NO_GRADIENTS), rare)[3].tolist() == [False, True, False]
    assert in_the_running(FirstFigures(log_density, se, _NO_GRADIENTS), np.array([0.0, 0.5, 0.5]))[1].tolist() == [
        False, True, True,
    ]  # fmt: skip


def test_the_error_of_the_best_class_counts_as_well() -> None:
    log_density = np.array([[0.0, -8.0]])
    doubtful, sure = (FirstFigures(log_density, np.array([[se, 0.1]]), _NO_GRADIENTS) for se in (0.4, 0.1))
    assert in_the_running(doubtful, np.full(2, 0.5)).tolist() == [[True, True]]
    assert in_the_running(sure, np.full(2, 0.5)).tolist() == [[True, False]]


def test_the_mean_of_weights_and_its_error() -> None:
    log_density, se = _estimates(np.log([[1.0, 3.0], [2e-200, 2e-200]]))
    assert np.allclose(log_density, np.log([2.0, 2e-200]))
    assert np.allclose(se, [0.5 / np.sqrt(2.0), 0.0])


def _scored(effort: Effort) -> tuple[FakeEngine, list, ByClass]:
    """Two rows: of the first, the look leaves one class; of the second, two. And where its estimates are kept."""
    first = FirstFigures(np.array([[0.0, -50.0, -60.0], [0.0, -1.0, -90.0]]), np.full((2, 3), 0.1), np.array([7, 9]))
    engine = FakeEngine(DensityConfig(chains=2, draws=4))
    rows = Rows(np.ones((2, 2), np.float32), None, None)
    opened = Opened(engine, "cpu", lambda x, seed, prior, known: first)
    found = score_classes(opened, rows, np.full(3, 1 / 3), 5, block_rows=4, effort=effort)
    assert found.log_density.shape == found.mc_se.shape == found.reliable.shape == (2, 3)
    return engine, (found.log_density == first.log_density).tolist(), found


def test_usually_only_rivals_are_scored() -> None:
    engine, is_first, found = _scored(Effort.USUAL)
    assert is_first == [[True, True, True], [False, False, True]]
    assert engine.n_real == [2]
    assert found.n_gradients[0] == 7 < found.n_gradients[1]
    assert found.reliable[0].tolist() == [True, False, False]


def test_quickly_the_first_look_decides_and_rivals_are_in_doubt() -> None:
    engine, is_first, found = _scored(Effort.QUICK)
    assert is_first == [[True, True, True], [True, True, True]]
    assert engine.n_real == []
    assert found.n_gradients.tolist() == [7, 9]
    assert found.reliable.tolist() == [[True, False, False], [False, False, False]]


def test_thoroughly_every_class_is_scored() -> None:
    engine, is_first, _ = _scored(Effort.THOROUGH)
    assert is_first == [[False] * 3] * 2
    assert engine.n_real == [4, 2]
