"""Hamiltonian Monte Carlo: it leaves a known distribution as it is, and its leapfrog is reversible and of order two."""

from collections.abc import Callable
from functools import cache

import numpy as np
import pytest
import tensorflow as tf

from bayesnde_cli.inference.hmc import ChainState, PhasePoint, adapt_step, leapfrog, phase_point, transition

MEAN = np.array([1.0, -2.0, 0.5])
COVARIANCE = np.array([[1.0, 0.7, 0.0], [0.7, 0.8, -0.2], [0.0, -0.2, 0.3]])
PRECISION = np.linalg.inv(COVARIANCE)
N_CHAINS = 8192
# Coarse: the narrowest s.d. is 0.29. One proposal in eight is turned down, so that the rule matters.
STEP_SIZE = 0.35

Kernel = Callable[..., tuple[tf.Tensor, tf.Tensor]]


def _log_density(z: tf.Tensor) -> tf.Tensor:
    centred = z - tf.constant(MEAN, z.dtype)
    return -0.5 * tf.reduce_sum(centred * tf.matmul(centred, tf.constant(PRECISION, z.dtype)), axis=1)


@cache
def _runner(kernel: Kernel) -> Callable:
    @tf.function(jit_compile=True)
    def run(z: tf.Tensor, n_transitions: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        def one(index, z, total):  # type: ignore[no-untyped-def]
            seed = tf.random.experimental.stateless_fold_in(tf.constant([3, 4]), index)
            z, acceptance = kernel(_log_density, z, tf.fill([z.shape[0]], STEP_SIZE), seed, n_leapfrog=4)
            return index + 1, z, total + tf.reduce_mean(acceptance)

        start = (tf.constant(0), z, tf.constant(0.0))
        n_done, z, total = tf.while_loop(lambda index, *_: index < n_transitions, one, start)
        return z, total / tf.cast(n_done, tf.float32)

    return run


def _after(kernel: Kernel, z: tf.Tensor, n_transitions: int) -> tuple[np.ndarray, float]:
    """The chains, and the mean acceptance on the way."""
    z, acceptance = _runner(kernel)(z, tf.constant(n_transitions))
    return z.numpy(), float(acceptance)


def _largest_error(draws: np.ndarray) -> float:
    """The largest error among all first and second moments of the whitened draws, in standard errors."""
    white = (draws.astype(float) - MEAN) @ np.linalg.cholesky(PRECISION)  # (n, d), N(0, I) if the draws are right
    n, d = white.shape
    mean = np.sqrt(n) * white.mean(axis=0)
    second = np.sqrt(n) * (white.T @ white / n - np.eye(d)) / np.sqrt(1.0 + np.eye(d))
    return float(max(np.abs(mean).max(), np.abs(second).max()))


def _from_afar() -> tf.Tensor:
    return tf.fill([N_CHAINS, 3], 3.0)


def _never_refuses(
    log_density: Callable, z: tf.Tensor, step_size: tf.Tensor, seed: tf.Tensor, *, n_leapfrog: int
) -> tuple[tf.Tensor, tf.Tensor]:
    start = phase_point(log_density, z, tf.random.stateless_normal(z.shape, seed))
    return leapfrog(log_density, start, step_size, n_leapfrog).z, tf.ones_like(step_size)


def test_chains_from_afar_arrive_at_the_distribution() -> None:
    draws, acceptance = _after(transition, _from_afar(), 60)
    assert 0.7 < acceptance < 0.95
    # Nine moments of exact draws stay below 4.5 standard errors with probability 0.9999.
    assert _largest_error(draws) < 4.5
    # Negative controls: too few transitions, and a kernel that accepts everything.
    assert _largest_error(_after(transition, _from_afar(), 2)[0]) > 10.0
    assert _largest_error(_after(_never_refuses, _from_afar(), 60)[0]) > 10.0


def test_exact_draws_stay_exact_draws() -> None:
    exact = np.random.default_rng(0).multivariate_normal(MEAN, COVARIANCE, N_CHAINS)
    assert _largest_error(exact) < 4.5
    draws, _ = _after(transition, tf.constant(exact, tf.float32), 3)
    assert _largest_error(draws) < 4.5
    assert np.mean(np.any(draws != exact.astype(np.float32), axis=1)) > 0.8


def _oscillator(step_size: float, n_leapfrog: int) -> tuple[PhasePoint, PhasePoint]:
    """Start and end of a few float64 rows of the correlated normal."""
    rng = np.random.default_rng(1)
    z, momentum = (tf.constant(rng.standard_normal((16, 3))) for _ in range(2))
    start = phase_point(_log_density, z, momentum)
    return start, leapfrog(_log_density, start, tf.fill([16], tf.constant(step_size, tf.float64)), n_leapfrog)


def test_the_leapfrog_goes_back_where_it_came_from() -> None:
    start, end = _oscillator(0.3, 20)
    assert np.max(np.abs(end.z - start.z)) > 0.5
    step_size = tf.fill([16], tf.constant(0.3, tf.float64))
    back = leapfrog(_log_density, end._replace(momentum=-end.momentum), step_size, 20)
    assert np.allclose(back.z, start.z, atol=1e-10)
    assert np.allclose(-back.momentum, start.momentum, atol=1e-10)


def test_the_energy_error_is_of_second_order() -> None:
    errors = []
    for n_leapfrog in (16, 32, 64, 128):  # the same stretch of time
        start, end = _oscillator(1.6 / n_leapfrog, n_leapfrog)
        errors.append(float(np.sqrt(np.mean((end.energy() - start.energy()) ** 2))))
    slopes = np.log2(np.array(errors[:-1]) / np.array(errors[1:]))
    assert np.all(np.abs(slopes - 2.0) < 0.1)


def test_the_acceptance_is_the_metropolis_probability() -> None:
    z = tf.constant(np.random.default_rng(2).standard_normal((64, 3)), tf.float32)
    seed, step_size = tf.constant([1, 2]), tf.fill([64], STEP_SIZE)
    moved, acceptance = transition(_log_density, z, step_size, seed, n_leapfrog=3)
    start = phase_point(_log_density, z, tf.random.stateless_normal([64, 4], seed)[:, :3])
    end = leapfrog(_log_density, start, step_size, 3)
    expected = np.minimum(1.0, np.exp(start.energy() - end.energy()))
    assert np.allclose(acceptance, expected, atol=1e-6)
    assert 0.0 < np.mean(expected < 1.0) < 1.0
    has_moved = np.any(moved.numpy() != z.numpy(), axis=1)
    assert np.array_equal(moved.numpy()[has_moved], end.z.numpy()[has_moved])
    assert np.all(has_moved[expected == 1.0])
    assert not np.all(has_moved)


@pytest.mark.parametrize("worst", [np.nan, np.inf, -np.inf])
def test_a_proposal_that_is_not_finite_is_turned_down(worst: float) -> None:
    def log_density(z: tf.Tensor) -> tf.Tensor:
        inside = tf.reduce_all(tf.abs(z) < 1.0, axis=1)
        return tf.where(inside, tf.reduce_sum(0.0 * z, axis=1), tf.fill([z.shape[0]], worst))

    z = tf.zeros([256, 2])
    moved, acceptance = transition(log_density, z, tf.fill([256], 1.0), tf.constant([5, 6]), n_leapfrog=1)
    has_moved = np.any(moved.numpy() != 0.0, axis=1)
    assert np.array_equal(acceptance.numpy(), has_moved.astype(np.float32))
    assert 0.2 < np.mean(has_moved) < 0.8
    assert np.all(np.abs(moved) < 1.0)


def test_chains_that_run_away_or_start_at_no_density_stay() -> None:
    z = tf.constant([[np.nan, 0.0], [0.5, 0.0], [0.5, 0.0]], tf.float32)
    step_size = tf.constant([0.1, 0.1, np.inf])
    moved, acceptance = transition(
        lambda z: -0.5 * tf.reduce_sum(tf.square(z), axis=1), z, step_size, tf.constant([5, 6]), n_leapfrog=2
    )
    assert acceptance[0] == acceptance[2] == 0.0
    assert acceptance[1] > 0.9
    assert np.array_equal(moved.numpy()[[0, 2]], z.numpy()[[0, 2]], equal_nan=True)


def test_the_seed_decides_and_float64_log_densities_give_float32_chains() -> None:
    z = tf.constant(np.random.default_rng(2).standard_normal((64, 3)), tf.float32)

    def chains(seed: list[int], dtype: tf.DType = tf.float32) -> tuple[tf.Tensor, tf.Tensor]:
        log_density = lambda z: tf.cast(_log_density(z), dtype)  # noqa: E731
        return transition(log_density, z, tf.fill([64], 0.5), tf.constant(seed), n_leapfrog=3)

    first = chains([1, 2])
    assert all(np.array_equal(one, other) for one, other in zip(first, chains([1, 2]), strict=True))
    assert not np.array_equal(first[0], chains([1, 3])[0])
    for one, other in zip(first, chains([1, 2], tf.float64), strict=True):
        assert one.dtype == other.dtype == tf.float32
        assert np.allclose(one, other, atol=1e-5)


@pytest.mark.parametrize("first_log_step", [3.0, -3.0])
def test_dual_averaging_finds_the_step_size_of_the_target(first_log_step: float) -> None:
    # Chains whose acceptance is exp(-eps): a step size of -log(0.75) has the target. No noise, so no tolerance for it.
    log_step, n_adapting = tf.fill([1], first_log_step), tf.constant(400)
    point = phase_point(_log_density, tf.zeros([1, 3]), tf.zeros([1, 3]))
    state = ChainState(point, log_step, log_step, tf.zeros([1]), log_step, tf.constant(0))
    for _ in range(400):
        state = adapt_step(state, tf.exp(-tf.exp(state.log_step)), 0.75, n_adapting)
    assert float(tf.exp(-tf.exp(state.mean_log_step[0]))) == pytest.approx(0.75, abs=0.01)
    after = adapt_step(state, tf.zeros([1]), 0.75, n_adapting)  # the warm-up is over
    assert float(after.mean_log_step[0]) == float(state.mean_log_step[0])
    # Negative control: the first step size is far from the target.
    assert abs(np.exp(-np.exp(first_log_step)) - 0.75) > 0.1
