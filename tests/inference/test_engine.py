"""The whole estimate, draws to bridge, against log-densities that are known: closed form and quadrature."""

from dataclasses import dataclass

import numpy as np
import pytest
import tensorflow as tf
from linear_gaussian_oracle import LinearGaussianOracle, random_oracle

from bayesnde_cli.inference.block import Rows
from bayesnde_cli.inference.budget import EngineSettings
from bayesnde_cli.inference.engine import Engine, FittedModel
from bayesnde_cli.inference.verdicts import MOST_RHAT, RELIABLE
from bayesnde_cli.model.decoder import BlurredDecoder

# The noise of each class as a share of the oracle's: posterior standard deviations from about 1 to 0.001.
NOISE = (1.0, 0.1, 0.01, 0.001)


@dataclass(frozen=True)
class ScaledOracles:
    """Linear-Gaussian decoders that differ in their noise, one for each class: one compiled program for all."""

    oracle: LinearGaussianOracle

    def __call__(self, z: tf.Tensor, y: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        mean, variance = self.oracle(z)
        return mean, variance * tf.linalg.matvec(y, tf.constant(NOISE, z.dtype) ** 2)[..., None]

    def rows(self, n_each: int, seed: int) -> tuple[Rows, np.ndarray]:
        """So many rows of each class, and their log-densities."""
        parts, truths = [], []
        for index, noise in enumerate(NOISE):
            own = LinearGaussianOracle(self.oracle.weights, self.oracle.offset, self.oracle.variance * noise**2)
            _, x = own.sample(n_each, np.random.default_rng([seed, index]))
            parts.append(x.astype(np.float32))
            truths.append(own.log_density(parts[-1].astype(float)))
        y = np.repeat(np.eye(len(NOISE), dtype=np.float32), n_each, axis=0)
        return Rows(np.concatenate(parts), None, y), np.concatenate(truths)


def _scores(engine: Engine, rows: Rows, seed: int = 3) -> dict[str, np.ndarray]:
    return engine.score(rows, engine.sample(rows, seed), seed)


def _check(scores: dict[str, np.ndarray], truth: np.ndarray) -> None:
    """Right on average to 0.01 nats, intervals that cover, and no row far off unless it is flagged."""
    error, se = scores["log_density_scaled"] - truth, scores["mc_se"]
    assert abs(error.mean()) < 0.01 + 2 * np.sqrt(np.mean(se**2) / len(se))
    # Of a few hundred rows: within three standard errors of 95 %, and a little more. Pooled rows have a closer bound.
    assert 0.88 <= np.mean(np.abs(error) < 1.96 * se) <= 0.995
    assert not np.any((np.abs(error) > 0.3) & scores["reliable"])


def test_linear_gaussian_decoders() -> None:
    covered, covered_is = [], []
    for latent_dim in (1, 2, 8, 16, 25):
        oracles = ScaledOracles(random_oracle(latent_dim + 2, latent_dim, seed=1))
        rows, truth = oracles.rows(50, seed=2)
        # The first try alone: what is told of its error must be true, large or small. But at d = 16 the errors lie near
        # the target, and half of the rows are tried again: that choice must do no harm either.
        settings = EngineSettings(escalations=2 if latent_dim == 16 else 0)
        scores = _scores(Engine(FittedModel(oracles, latent_dim, n_classes=len(NOISE)), settings), rows)
        _check(scores, truth)
        assert scores["converged"].all()
        covered.append(np.abs(scores["log_density_scaled"] - truth) < 1.96 * scores["mc_se"])
        covered_is.append(np.abs(scores["log_density_is"] - truth) < 1.96 * scores["mc_se_is"])
    assert 0.93 <= np.mean(covered) <= 0.97
    assert 0.9 <= np.mean(covered_is) <= 0.99  # the larger one of two errors: it covers a little more
    # Negative control: half a nat more, and the same check fails.
    with pytest.raises(AssertionError):
        _check(scores, truth + 0.5)


def _many_modes(z: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """z -> rows that two latents of opposite sign explain nearly as well, and in two dimensions some more."""
    first, slope = z[..., :1], 0.05 if z.shape[-1] == 1 else 0.3
    parts = [tf.square(first), slope * first]
    if z.shape[-1] == 2:
        parts.append(tf.sin(2.0 * z[..., 1:]) + 0.2 * first)
    mean = tf.concat(parts, axis=-1)
    return mean, tf.broadcast_to(0.02 + 0.01 * tf.square(first), tf.shape(mean))


def _by_quadrature(x: np.ndarray, latent_dim: int) -> np.ndarray:
    grid = np.linspace(-8.0, 8.0, 4001 if latent_dim == 1 else 801)
    z = np.stack(np.meshgrid(*[grid] * latent_dim), axis=-1).reshape(-1, latent_dim)
    mean, variance = (part.numpy() for part in _many_modes(tf.constant(z)))
    log_prior = -0.5 * (z**2).sum(axis=1) + latent_dim * (np.log(grid[1] - grid[0]) - 0.5 * np.log(2 * np.pi))
    constant = log_prior - 0.5 * np.log(2 * np.pi * variance).sum(axis=1)
    return np.array([np.logaddexp.reduce(constant - 0.5 * ((row - mean) ** 2 / variance).sum(axis=1)) for row in x])


@pytest.mark.parametrize("latent_dim", [1, 2])
def test_posteriors_with_several_modes(latent_dim: int) -> None:
    rng = np.random.default_rng(3)
    mean, variance = (part.numpy() for part in _many_modes(tf.constant(rng.standard_normal((100, latent_dim)))))
    x = (mean + np.sqrt(variance) * rng.standard_normal(mean.shape)).astype(np.float32)
    truth = _by_quadrature(x.astype(float), latent_dim)
    rows, model = Rows(x, None, None), FittedModel(_many_modes, latent_dim)
    scores = _scores(Engine(model, EngineSettings(escalations=0)), rows)
    _check(scores, truth)
    if latent_dim == 1:
        # Negative control: chains that all start at one place know of one mode, and half of the density is missing.
        one_place = _scores(Engine(model, EngineSettings(escalations=0, start="encoder")), rows)
        with pytest.raises(AssertionError):
            _check(one_place | {"reliable": np.ones(len(x), bool)}, truth)


def test_chains_that_agree_poorly_do_no_harm_where_importance_sampling_is_exact() -> None:
    oracles = ScaledOracles(random_oracle(14, 12, seed=4))
    rows, truth = oracles.rows(50, seed=5)
    model = FittedModel(oracles, 12, n_classes=len(NOISE))
    scores = _scores(Engine(model, EngineSettings(escalations=0, draws=25, warm_up=50)), rows)
    is_poor = scores["reliable"] & (scores["rhat_max"] > MOST_RHAT)
    assert is_poor.sum() > 100
    _check({name: values[is_poor] for name, values in scores.items()}, truth[is_poor])


N_FOLDED = 3
FOLDED_DIM = 8


def _folded(z: tf.Tensor, y: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """In class k the first k + 1 columns are squares of a latent: 2, 4 and 8 modes of equal size."""
    n_squares = 1.0 + tf.matmul(y, tf.range(N_FOLDED, dtype=z.dtype)[:, None])
    mean = tf.where(tf.range(FOLDED_DIM, dtype=z.dtype) < n_squares, tf.square(z), z)
    return mean, tf.fill(tf.shape(mean), tf.constant(0.01, z.dtype))


def _folded_rows(n_each: int) -> tuple[Rows, np.ndarray]:
    """Rows of each class whose modes are well apart, and their log-densities: column by column, by quadrature."""
    rng = np.random.default_rng(8)
    z = rng.standard_normal((N_FOLDED * n_each, FOLDED_DIM))
    z += np.sign(z)
    y = np.repeat(np.eye(N_FOLDED, dtype=np.float32), n_each, axis=0)
    mean, variance = (part.numpy() for part in _folded(tf.constant(z), tf.constant(y, tf.float64)))
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


def test_modes_that_few_starts_miss_are_suspected_and_then_found() -> None:
    rows, truth = _folded_rows(16)
    model = FittedModel(_folded, FOLDED_DIM, n_classes=N_FOLDED)
    engine = Engine(model, EngineSettings())
    draws = engine.sample(rows, 3)
    once = Engine(model, EngineSettings(escalations=0)).score(rows, draws, 3)
    is_wrong = np.abs(once["log_density_scaled"] - truth) > 0.3
    # The first try does miss modes, and says so.
    assert is_wrong.mean() > 0.15
    assert not np.any(is_wrong & once["reliable"])
    scores = engine.score(rows, draws, 3)
    _check(scores, truth)
    assert scores["reliable"].mean() > 0.9


@pytest.fixture(scope="module")
def plain() -> tuple[LinearGaussianOracle, Engine]:
    """An oracle of two latents and four columns, and an engine that takes rows with gaps."""
    oracle = random_oracle(4, 2, seed=5)
    return oracle, Engine(FittedModel(oracle, 2), EngineSettings(escalations=0))


def test_missing_cells_are_integrated_out(plain: tuple[LinearGaussianOracle, Engine]) -> None:
    oracle, engine = plain
    rng = np.random.default_rng(6)
    _, x = oracle.sample(64, rng)
    observed = rng.random(x.shape) < 0.6
    observed[:4] = True
    rows = Rows(np.where(observed, x, np.nan).astype(np.float32), observed, None)
    truth = np.empty(len(x))
    for index, seen in enumerate(observed):
        part = LinearGaussianOracle(oracle.weights[seen], oracle.offset[seen], oracle.variance[seen])
        truth[index] = part.log_density(x[index : index + 1, seen])[0] if seen.any() else 0.0
    scores = _scores(engine, rows)
    error = scores["log_density_scaled"] - truth
    assert np.abs(error.mean()) < 0.01
    assert np.all(np.abs(error) < 5 * scores["mc_se"] + 1e-3)
    # The same seed gives the same bits, another one does not.
    again = _scores(engine, rows)
    assert all(np.array_equal(again[name], scores[name]) for name in scores)
    assert not np.array_equal(_scores(engine, rows, seed=4)["log_density_scaled"], scores["log_density_scaled"])


def test_a_decoder_that_is_given_few_latents_at_once_has_the_same_densities() -> None:
    oracle = random_oracle(4, 2, seed=5)
    _, x = oracle.sample(16, np.random.default_rng(8))
    rows, settings = Rows(x.astype(np.float32), None, None), EngineSettings(escalations=0, warm_up=25, draws=25)
    seen: list[int] = []

    def decoder(z: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        seen.append(int(np.prod(z.shape[:-1])))
        return oracle(z)

    scores = _scores(Engine(FittedModel(decoder, 2, latents_at_once=24), settings), rows)
    truth = oracle.log_density(rows.x.astype(float))
    assert np.all(np.abs(scores["log_density_scaled"] - truth) < 5 * scores["mc_se"])
    # 16 rows of 4 chains are 64 latents: all of them at the start alone, then no more than 24 in equal lots.
    assert seen.count(64) == 1
    assert 16 in seen


def test_far_rows_are_finite_and_in_order_or_flagged(plain: tuple[LinearGaussianOracle, Engine]) -> None:
    oracle, engine = plain
    distance = np.array([0.0, 10.0, 100.0, 1e4, 1e6, 1e20])
    x = np.resize(oracle.offset + distance[:, None], (64, 4)).astype(np.float32)
    scores = _scores(engine, Rows(x, np.ones(x.shape, bool), None))
    found, verdict = scores["log_density_scaled"][: len(distance)], scores["verdict"][: len(distance)]
    assert verdict[0] == RELIABLE
    assert np.isfinite(found).all()
    assert (np.diff(found) < 0).all()
    truth = oracle.log_density(x[: len(distance)].astype(float))
    assert np.all((np.abs(found - truth) < 5 * scores["mc_se"][: len(distance)]) | (verdict != RELIABLE))
    # Where float32 knows a log-density to no better than a nat, none is called reliable.
    assert (verdict[truth < -1e7] != RELIABLE).all()


def test_a_row_that_misses_the_target_gets_a_larger_budget() -> None:
    oracle = random_oracle(4, 2, seed=5)
    _, x = oracle.sample(20, np.random.default_rng(7))
    rows = Rows(x.astype(np.float32), None, None)
    small = {"warm_up": 25, "draws": 25, "proposal_draws": 100, "target_se": 0.02}
    once = _scores(Engine(FittedModel(oracle, 2), EngineSettings(**small, escalations=0)), rows)
    assert 3 < once["reliable"].sum() < 17
    more = _scores(Engine(FittedModel(oracle, 2), EngineSettings(**small, escalations=1)), rows)
    again = ~once["reliable"]
    assert (more["n_gradients"][again] > 2 * once["n_gradients"][again]).all()
    assert more["mc_se"][again].mean() < once["mc_se"][again].mean()
    for name in once:
        np.testing.assert_array_equal(more[name][~again], once[name][~again])


def test_a_blurred_model_has_the_density_of_its_rows_with_noise_added() -> None:
    oracle, width = random_oracle(6, 4, seed=5), 1.5
    blurred = LinearGaussianOracle(oracle.weights, oracle.offset, oracle.variance + width**2)
    _, x = blurred.sample(64, np.random.default_rng(6))
    rows = Rows(x.astype(np.float32), None, None)
    scores = _scores(Engine(FittedModel(BlurredDecoder(oracle, width), 4), EngineSettings(escalations=0)), rows)
    truth = blurred.log_density(x.astype(np.float32).astype(float))
    _check(scores, truth)
    # Negative control: the density without the noise is another one.
    with pytest.raises(AssertionError):
        _check(scores, oracle.log_density(x))
