"""Scoring by tiers against closed forms and quadrature: whatever the tier, errors are small and honest."""

import time
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from linear_gaussian_oracle import LinearGaussianOracle, random_oracle
from test_engine import NOISE, ScaledOracles, check

from bayesnde_cli.inference import importance, tiers
from bayesnde_cli.inference.bridge import BRIDGE, IMPORTANCE, REFIT
from bayesnde_cli.inference.fitted_model import FittedModel, Program
from bayesnde_cli.inference.mode_search import SearchSize
from bayesnde_cli.inference.tiers import TieredEngine
from bayesnde_cli.rows import Rows
from bayesnde_cli.settings.stage_settings import DensitySettings

AUTO = DensitySettings(seed=0)


@pytest.mark.slow
@pytest.mark.parametrize("latent_dim", [1, 6, 25])
def test_linear_gaussian_decoders_need_no_chains(latent_dim: int) -> None:
    oracles = ScaledOracles(random_oracle(latent_dim + 2, latent_dim, seed=1))
    rows, truth = oracles.rows(64, seed=2)
    engine = TieredEngine(FittedModel(oracles, latent_dim, n_classes=len(NOISE)), AUTO)
    scores = engine.estimate(rows, 3)
    check(scores, truth)
    assert np.mean(scores["method"] == BRIDGE) < 0.02
    assert (scores["mc_se"] <= AUTO.target_se).all()
    again = engine.estimate(rows, 3)
    for name, values in scores.items():
        np.testing.assert_array_equal(again[name], values, err_msg=name)
    # Negative control: half a nat more, and the same check fails.
    with pytest.raises(AssertionError):
        check(scores, truth + 0.5)


SHAPES = ("two modes", "ring", "funnel", "ridge")


def _shapes(z: tf.Tensor, y: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Decoders of two latents, one for each class, whose posteriors have these shapes."""
    a, b = z[..., 0], z[..., 1]
    one = tf.ones_like(a)
    radius = tf.sqrt(tf.square(a) + tf.square(b) + 1e-6)
    means = [(tf.square(a), 0.3 * b), (radius, 0.0 * a), (b * tf.exp(0.8 * a), a), (a + b, 0.1 * (a - b))]
    variances = [(0.03 * one, 0.1 * one), (0.02 * one, one), (0.05 * one, 0.4 * one), (1e-3 * one, 0.25 * one)]
    mean, variance = (tf.stack([tf.stack(pair, -1) for pair in parts], -2) for parts in (means, variances))
    return tuple(tf.reduce_sum(part * y[..., None], axis=-2) for part in (mean, variance))


def _shape_rows(n_each: int) -> tuple[Rows, np.ndarray]:
    """Rows of each class, and their log-densities by quadrature on a grid of the latents."""
    y = np.repeat(np.eye(len(SHAPES), dtype=np.float32), n_each, axis=0)
    rng = np.random.default_rng(5)
    z = tf.constant(rng.standard_normal((len(y), 2)))
    mean, variance = (part.numpy() for part in _shapes(z, tf.constant(y, tf.float64)))
    x = (mean + np.sqrt(variance) * rng.standard_normal(mean.shape)).astype(np.float32)
    axis = np.linspace(-6.0, 6.0, 601)  # closer than the s.d. of the ridge
    grid = np.stack(np.meshgrid(axis, axis, indexing="ij"), axis=-1).reshape(-1, 2)
    log_prior = -0.5 * np.square(grid).sum(axis=1) - np.log(2 * np.pi) + 2 * np.log(axis[1] - axis[0])
    truth = np.empty(len(x))
    for k in range(len(SHAPES)):
        own = tf.constant(np.broadcast_to(np.eye(len(SHAPES))[k], (len(grid), len(SHAPES))))
        mean, variance = (part.numpy() for part in _shapes(tf.constant(grid), own))
        constant = log_prior - 0.5 * np.log(2 * np.pi * variance).sum(axis=1)
        for index in range(k * n_each, (k + 1) * n_each):
            terms = constant - 0.5 * (np.square(x[index] - mean) / variance).sum(axis=1)
            truth[index] = np.logaddexp.reduce(terms)
    return Rows(x, None, y), truth


@pytest.mark.slow
def test_posteriors_of_hard_shapes_are_right_or_flagged(monkeypatch: pytest.MonkeyPatch) -> None:
    rows, truth = _shape_rows(20)
    engine = TieredEngine(FittedModel(_shapes, 2, n_classes=len(SHAPES)), AUTO)
    scores = engine.estimate(rows, 3)
    check(scores, truth)
    assert scores["reliable"].mean() > 0.9  # the others are flagged: rings and ridges look like many modes
    # Negative control: one start point, nothing said about missing modes, and half of the two modes' mass is lost.
    monkeypatch.setattr(tiers, "_SEARCH", SearchSize(n_starts=(1,), n_steps=12, n_kept=1))
    monkeypatch.setattr(tiers, "MOST_MISSED_MASS", 1.1)
    monkeypatch.setattr(TieredEngine, "_bridge", lambda *given: None)
    careless = engine.estimate(rows, 3)
    with pytest.raises(AssertionError):
        check(careless, truth)


def _count_traces(engine: TieredEngine) -> int:
    """How often a program of the engine has been traced, compiled or plain."""
    holders = (engine, engine.finder, engine.programs._asdict())
    parts = [part for holder in holders for part in (holder if isinstance(holder, dict) else vars(holder)).values()]
    programs = [part for part in parts if isinstance(part, Program)]
    assert len(programs) >= 9
    return sum(
        function.experimental_get_tracing_count()
        for program in programs
        for function in (program._plain, program._compiled)
    )


def test_a_second_call_on_two_rows_traces_nothing_and_takes_less_than_a_tenth_of_a_second() -> None:
    oracle = random_oracle(5, 3, seed=1)
    rows = Rows(oracle.sample(8, np.random.default_rng(2))[1].astype(np.float32))
    engine = TieredEngine(FittedModel(oracle, 3), AUTO)
    assert _count_traces(engine) == 0
    engine.estimate(rows.take(np.arange(2)), 3)
    n_traces = _count_traces(engine)
    assert n_traces > 0
    seconds = []
    for first in (2, 4, 6):
        start = time.process_time()
        scores = engine.estimate(rows.take(np.arange(first, first + 2)), first)
        seconds.append(time.process_time() - start)
        assert (scores["method"] == IMPORTANCE).all()
    assert _count_traces(engine) == n_traces
    assert min(seconds) < 0.1
    # Negative control: other shapes are traced.
    engine.estimate(rows, 3)
    assert _count_traces(engine) > n_traces


N_FOLDED = 3
FOLDED_DIM = 8


def folded(z: tf.Tensor, y: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """In class k the first k + 1 columns are squares of a latent: 2, 4 and 8 modes of equal size."""
    n_squares = 1.0 + tf.matmul(y, tf.range(N_FOLDED, dtype=z.dtype)[:, None])
    mean = tf.where(tf.range(FOLDED_DIM, dtype=z.dtype) < n_squares, tf.square(z), z)
    return mean, tf.fill(tf.shape(mean), tf.constant(0.01, z.dtype))


def folded_rows(n_each: int) -> tuple[Rows, np.ndarray]:
    """Rows of each class whose modes are well apart, and their log-densities: column by column, by quadrature."""
    rng = np.random.default_rng(8)
    z = rng.standard_normal((N_FOLDED * n_each, FOLDED_DIM))
    z += np.sign(z)
    y = np.repeat(np.eye(N_FOLDED, dtype=np.float32), n_each, axis=0)
    mean, variance = (part.numpy() for part in folded(tf.constant(z), tf.constant(y, tf.float64)))
    x = (mean + np.sqrt(variance) * rng.standard_normal(mean.shape)).astype(np.float32)
    grid = np.linspace(-8.0, 8.0, 16001)
    log_prior = np.log(grid[1] - grid[0]) - 0.5 * np.log(2 * np.pi) - 0.5 * grid**2
    is_square = np.arange(FOLDED_DIM) <= y.argmax(axis=1)[:, None]
    truth = np.zeros(len(x))
    for index, column in np.ndindex(x.shape):
        there = grid**2 if is_square[index, column] else grid
        cell = -50.0 * (x[index, column].astype(float) - there) ** 2 - 0.5 * np.log(2 * np.pi * 0.01)
        truth[index] += np.logaddexp.reduce(log_prior + cell)
    return Rows(x, None, y), truth


@pytest.fixture(scope="module")
def of_folds() -> TieredEngine:
    return TieredEngine(FittedModel(folded, FOLDED_DIM, n_classes=N_FOLDED), AUTO)


@pytest.mark.slow
def test_modes_that_few_starts_miss_are_suspected_and_found_with_a_larger_budget(
    of_folds: TieredEngine,
) -> None:
    rows, truth = folded_rows(16)
    first, last = [], []
    for k in range(N_FOLDED):  # the size of a group, for which programs are compiled anyway
        some = rows.take(np.arange(16 * k, 16 * (k + 1)))
        draws = of_folds.sample(some, 3 + k)
        first.append(of_folds._score(some, draws, 3 + k, of_folds._budget))
        last.append(of_folds.score(some, draws, 3 + k))
    once, scores = (
        {name: np.concatenate([part[name] for part in parts]) for name in parts[0]} for parts in (first, last)
    )
    is_wrong = np.abs(once["log_density_scaled"] - truth) > 0.3
    # The first attempt does miss modes, and says so.
    assert is_wrong.mean() > 0.15
    assert not np.any(is_wrong & once["reliable"])
    check(scores, truth)
    assert scores["reliable"].mean() > 0.9
    again = ~once["reliable"]
    assert (scores["n_gradients"][again] > 2 * once["n_gradients"][again]).all()
    for name in once:
        np.testing.assert_array_equal(scores[name][~again], once[name][~again])


@pytest.mark.slow
def test_many_modes_are_found_or_left_to_the_bridge(of_folds: TieredEngine) -> None:
    rows, truth = folded_rows(8)
    scores = of_folds.estimate(rows, 3)
    check(scores, truth)
    assert scores["reliable"].mean() > 0.9
    assert {IMPORTANCE, REFIT, BRIDGE} >= set(scores["method"])


def test_audited_rows_are_bridged_as_well_and_keep_their_estimate() -> None:
    oracle, is_observed = random_oracle(4, 2, seed=5), np.array([True, True, False, True])
    x = oracle.sample(20, np.random.default_rng(6))[1].astype(np.float32)
    part = LinearGaussianOracle(oracle.weights[is_observed], oracle.offset[is_observed], oracle.variance[is_observed])
    truth = part.log_density(x[:, is_observed].astype(float))
    audited = np.zeros(20, bool)
    audited[[3, 7, 11]] = True
    engine = TieredEngine(FittedModel(oracle, 2), AUTO.model_copy(update={"warm_up": 25, "draws": 25}))
    scores = engine.estimate(Rows(x, np.broadcast_to(is_observed, x.shape)), 3, audited)
    assert (scores["method"] == IMPORTANCE).all()
    error = scores["log_density_scaled"] - truth
    assert np.all(np.abs(error) < 5 * scores["mc_se"] + 1e-3)
    assert np.isfinite(scores["audit_log_density"]).tolist() == audited.tolist()
    found, se = scores["audit_log_density"][audited], scores["audit_mc_se"][audited]
    assert np.all(np.abs(found - truth[audited]) < 5 * se + 1e-3)
    assert np.all(found != scores["log_density_scaled"][audited])


def test_a_contradicted_estimate_stays_and_is_never_accepted_later() -> None:
    def one(log_z: float, se: float) -> importance.Estimate:
        return importance.Estimate(*(np.array([value]) for value in (log_z, se, 0.0, 0.0)))

    scores = {name: np.full(1, np.nan) for name in ("log_density_scaled", "mc_se", "pareto_k")}
    scores["method"] = np.array([BRIDGE], object)
    engine: Any = SimpleNamespace(_settings=AUTO)
    accept = partial(TieredEngine._accept, engine, np.array([0]), target_se=np.array([AUTO.target_se]), scores=scores)
    assert not accept(one(-5.0, 0.1), n=512, method=IMPORTANCE)[0]  # above the target, but known from now on
    for _ in range(2):  # two fits that agree with each other, as both have lost a mode
        assert not accept(one(-8.0, 0.01), n=1024, method=REFIT)[0]
        assert scores["log_density_scaled"][0] == -5.0
    assert accept(one(-5.1, 0.02), n=1024, method=REFIT)[0]
    assert scores["method"].tolist() == [REFIT]


def test_the_shape_of_the_largest_weights_is_found_and_smoothing_helps() -> None:
    rng, n = np.random.default_rng(0), 1000
    for shape in (0.1, 0.4, 0.7):
        weights = ((1 - rng.random((400, n))) ** -shape - 1) / shape
        largest = weights.max(axis=1, keepdims=True)
        smooth, k = importance.smooth_tail(weights / largest)
        # 95 observations of the tail, and a prior of 1/2 that counts as ten.
        assert k.mean() == pytest.approx((95 * shape + 5) / 105, abs=0.03)
        assert smooth.max() <= 1.0
        order = np.argsort(weights, axis=1)
        assert (np.diff(np.take_along_axis(smooth, order, axis=1)) >= 0).all()
    error, raw_error = (np.abs((part * largest).mean(axis=1) * (1 - shape) - 1) for part in (smooth, weights / largest))
    assert error.mean() < 0.95 * raw_error.mean()


def test_the_error_of_an_estimate_is_that_of_repeated_estimates_and_bad_weights_are_not_sound() -> None:
    rng, n, sd = np.random.default_rng(1), 512, 0.8
    log_weights = sd * rng.standard_normal((2000, n)) - 0.5 * sd**2  # the mean weight is 1
    found = importance.estimate(log_weights)
    assert abs(found.log_z.mean()) < 0.002 + 2 * found.log_z.std() / np.sqrt(2000)
    assert np.mean(np.abs(found.log_z) < 1.96 * found.se) == pytest.approx(0.95, abs=0.02)
    assert found.is_sound(n).mean() > 0.99
    heavy = importance.estimate(4.0 * rng.standard_normal((50, n)))
    assert heavy.is_sound(n).mean() < 0.1
    for height in (10.0, 30.0):  # one draw has found another mode
        alone = log_weights[:200].copy()
        alone[:, 7] = height
        assert importance.estimate(alone).is_sound(n).mean() < 0.01 or importance.estimate(alone).se.min() > 0.3
    halves = log_weights[:50] + np.where(np.arange(n) % 2, 0.7, 0.0)
    assert not importance.estimate(halves).is_sound(n).any()
    log_weights[0, 3], log_weights[1, 3], log_weights[2] = np.nan, np.inf, -np.inf
    assert not importance.estimate(log_weights[:3]).is_sound(n).any()
    same = importance.estimate(np.full((1, n), 2.5))
    assert (same.log_z[0], same.se[0], same.is_sound(n)[0]) == (2.5, 0.0, True)
