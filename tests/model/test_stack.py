"""The stack against closed forms: its density, its draws, its moments and the error that reaches it."""

import json
from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import norm

from bayesnde_cli.model.normal_mixtures import ClassMixtures, NormalMixture
from bayesnde_cli.model.stack import ALONE, MODEL, Stack, allowed_error, error_of_stack
from bayesnde_cli.rows import Rows

# The fitted model of these tests: two columns, normal with these moments in both classes.
MEAN, VARIANCE = np.array([0.5, -0.5]), np.array([0.4, 0.9])
FULL = NormalMixture(
    np.log([0.3, 0.7]),
    np.array([[-2.0, 1.0], [1.5, 0.0]]),
    np.array([[[0.5, 0.0], [0.4, 0.3]], [[1.0, 0.0], [-0.6, 0.5]]]),
)
KERNELS = NormalMixture(
    np.full(3, -np.log(3.0)), np.array([[0.0, 2.0], [2.0, -1.0], [-1.0, -2.0]]), np.full((1, 2), 0.6)
)
PLAIN = Stack(
    {MODEL: 0.5, "Gaussian mixture": 0.3, "kernel density": 0.2},
    {"Gaussian mixture": ClassMixtures((FULL,)), "kernel density": ClassMixtures((KERNELS,))},
)
# Of two classes, the second has no Gaussian mixture.
BY_CLASS = replace(
    PLAIN,
    mixtures={
        "Gaussian mixture": ClassMixtures((FULL, None)),
        "kernel density": ClassMixtures((KERNELS, KERNELS.blur(0.5))),
    },
)
# Monte-Carlo averages of this many rows are within five standard errors of their limits.
N_ROWS, MOST_ERRORS = 40_000, 5.0


def _log_model(rows: Rows, blur: float = 0.0) -> np.ndarray:
    """The log-density of the fitted model at the observed cells."""
    each = norm.logpdf(rows.x, MEAN, np.sqrt(VARIANCE + blur**2))
    return np.where(True if rows.observed is None else rows.observed, each, 0.0).sum(axis=1)


def _log_density(stack: Stack, rows: Rows, blur: float = 0.0) -> np.ndarray:
    return stack.add(_log_model(rows, blur), rows)


def _one_hot(classes: np.ndarray) -> np.ndarray:
    return np.eye(2, dtype=np.float32)[classes]


def _model_rows(n: int) -> np.ndarray:
    noise = np.random.default_rng(0).standard_normal((n, 2))
    return (MEAN + np.sqrt(VARIANCE) * noise).astype(np.float32)


def _grid() -> tuple[np.ndarray, float]:
    """Points of a square that holds all of the density, none of them on a kernel, and the area of each."""
    axis = np.linspace(-9.0, 9.0, 362)
    return np.stack(np.meshgrid(axis, axis), axis=-1).reshape(-1, 2), (axis[1] - axis[0]) ** 2


# Densities


def test_the_density_is_the_weighted_sum() -> None:
    rows = Rows(_model_rows(50))
    parts = [_log_model(rows), FULL.log_density(rows.x), KERNELS.log_density(rows.x)]
    expected = np.log(np.exp(np.array(parts).T) @ [0.5, 0.3, 0.2])
    np.testing.assert_allclose(_log_density(PLAIN, rows), expected, rtol=1e-12)
    known = replace(rows, log_rest=PLAIN.log_rest(rows))
    np.testing.assert_array_equal(_log_density(PLAIN, known), _log_density(PLAIN, rows))


@pytest.mark.parametrize("blur", [0.0, 0.7])
@pytest.mark.parametrize("own_class", [0, 1])
def test_the_density_integrates_to_one_in_every_class(own_class: int, blur: float) -> None:
    x, area = _grid()
    rows, stack = Rows(x, None, _one_hot(np.full(len(x), own_class))), BY_CLASS.blur(blur) if blur else BY_CLASS
    assert np.exp(_log_density(stack, rows, blur)).sum() * area == pytest.approx(1.0, abs=1e-9)


def test_a_density_under_a_mask_is_the_integral_over_the_missing_cell() -> None:
    axis = np.linspace(-12.0, 12.0, 4801)
    for column, at in ((0, 0.3), (1, -1.2)):
        x = np.full((len(axis), 2), at)
        x[:, 1 - column] = axis
        integral = np.exp(_log_density(PLAIN, Rows(x))).sum() * (axis[1] - axis[0])
        observed = np.arange(2)[None] == column
        masked = _log_density(PLAIN, Rows(np.where(observed, at, 0.0), observed))
        assert masked[0] == pytest.approx(np.log(integral), abs=1e-9)
    assert _log_density(PLAIN, Rows(np.zeros((1, 2)), np.zeros((1, 2), bool)))[0] == pytest.approx(0.0, abs=1e-12)


def test_without_other_members_nothing_changes() -> None:
    rows = Rows(_model_rows(5))
    np.testing.assert_array_equal(ALONE.add(_log_model(rows), rows), _log_model(rows))
    np.testing.assert_array_equal(ALONE.mix_rows(rows.x, None, 1), rows.x)


def test_rows_without_density_have_none_and_rows_without_estimate_get_none() -> None:
    rows = Rows(np.array([[1e200, 0.0], [1e200, 0.0], [0.0, 0.0]]))
    log_density = PLAIN.add(np.array([-np.inf, np.nan, np.nan]), rows)
    assert log_density[0] == -np.inf
    assert np.isnan(log_density[1:]).all()


# Draws and moments


def test_rows_are_drawn_from_the_density() -> None:
    # With f the density of another distribution, the mean of f / p over draws from p is 1.
    other = NormalMixture(np.zeros(1), np.zeros((1, 2)), np.full((1, 2), 0.8))
    y = _one_hot(np.arange(N_ROWS) % 2)
    x = BY_CLASS.mix_rows(_model_rows(N_ROWS), y, 3)
    assert x.dtype == np.float32

    def errors(rows: Rows, own_class: int) -> float:
        own = rows.take(y.argmax(axis=1) == own_class)
        ratio = np.exp(other.log_density(own.x) - _log_density(BY_CLASS, own))
        return abs(ratio.mean() - 1.0) / (ratio.std() / np.sqrt(len(own)))

    rows = Rows(x, None, y)
    assert max(errors(rows, 0), errors(rows, 1)) < MOST_ERRORS
    # The control: rows of the fitted model alone are not.
    assert errors(replace(rows, x=_model_rows(N_ROWS)), 0) > MOST_ERRORS
    np.testing.assert_array_equal(BY_CLASS.mix_rows(_model_rows(N_ROWS), y, 3), x)


def test_normals_with_the_moments_average_to_the_density() -> None:
    y, points = _one_hot(np.arange(N_ROWS) % 2), np.array([[0.0, 0.0], [1.0, -1.0], [-1.0, -1.5]])
    mean, variance = (np.tile(part, (N_ROWS, 1)) for part in (MEAN, VARIANCE))
    mean, variance = BY_CLASS.mix_moments(mean, variance, y, 4)
    for own_class in (0, 1):
        own = y.argmax(axis=1) == own_class
        density = np.exp(norm.logpdf(points[:, None], mean[own], np.sqrt(variance[own])).sum(axis=2))  # (points, rows)
        truth = np.exp(_log_density(BY_CLASS, Rows(points, None, _one_hot(np.full(len(points), own_class)))))
        errors = np.abs(density.mean(axis=1) - truth) / (density.std(axis=1) / np.sqrt(own.sum()))
        assert (errors < MOST_ERRORS).all()
        # The control: the density of the fitted model is another.
        model = np.exp(_log_model(Rows(points)))
        assert (np.abs(density.mean(axis=1) - model) / (density.std(axis=1) / np.sqrt(own.sum()))).max() > MOST_ERRORS


# Errors


def test_an_error_of_the_fitted_model_moves_the_stack_by_no_more() -> None:
    log_density, log_rest = np.array([0.0, -3.0, -20.0, 4.0, 0.0]), np.array([0.0, 0.0, 0.0, 0.0, -np.inf])
    for se in (1e-4, 0.1, 3.0):
        moved = np.logaddexp(log_density + se, log_rest) - np.logaddexp(log_density, log_rest)
        error = error_of_stack(np.full(5, se), log_density, log_rest)
        np.testing.assert_allclose(error, moved, rtol=1e-6, atol=1e-14)
    share = 1.0 / (1.0 + np.exp(log_rest - log_density))
    np.testing.assert_allclose(error_of_stack(np.full(5, 1e-4), log_density, log_rest), 1e-4 * share, rtol=1e-3)


def test_the_allowed_error_is_the_inverse() -> None:
    log_density, log_rest = np.array([0.0, -3.0, -20.0, 4.0, 0.0]), np.array([0.0, 0.0, 0.0, 0.0, -np.inf])
    allowed = allowed_error(0.1, log_density, log_rest)
    np.testing.assert_allclose(error_of_stack(allowed, log_density, log_rest), 0.1, rtol=1e-9)
    assert allowed[-1] == pytest.approx(0.1)
    assert (allowed[:3] > 0.1).all()
    np.testing.assert_array_equal(allowed_error(0.0, log_density, log_rest), 0.0)


def test_unknown_errors_stay_unknown_whatever_the_share() -> None:
    nothing, far = np.array([-2000.0, np.nan]), np.zeros(2)
    np.testing.assert_array_equal(error_of_stack(np.full(2, np.inf), nothing, far), np.inf)
    np.testing.assert_array_equal(allowed_error(0.1, np.array([np.nan, -np.inf]), np.array([0.0, -np.inf])), 0.1)


# Files


def test_a_stack_survives_a_file() -> None:
    arrays, weights = BY_CLASS.arrays()
    again = Stack.from_arrays(arrays, json.loads(json.dumps(weights)))
    assert again.weights == BY_CLASS.weights
    assert list(again.mixtures) == list(BY_CLASS.mixtures)
    rows = Rows(_model_rows(9), None, _one_hot(np.arange(9) % 2))
    np.testing.assert_array_equal(_log_density(again, rows), _log_density(BY_CLASS, rows))
