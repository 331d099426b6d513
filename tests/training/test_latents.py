"""Alternating refinement: posterior draws lead to maximum likelihood, maximised latents to too small a variance.

The decoder here can be the linear-Gaussian oracle itself, as leaky(z) - leaky(-z) = 1.2 z.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from linear_gaussian_oracle import LinearGaussianOracle, mean_log_density, random_oracle
from same_bits import check_bits, have_same_bits

from bayesnde_cli.model import backend, coders
from bayesnde_cli.model.coders import Decoder, Networks, decoder_of, initial_autoencoder, part_of
from bayesnde_cli.model.likelihood import log_likelihood
from bayesnde_cli.model.networks import VARIANCE_FLOOR, NetworkSpec
from bayesnde_cli.settings.stage_settings import RefineSettings
from bayesnde_cli.training import losses as losses_module
from bayesnde_cli.training.latents import compile_burn_in, latent_objective
from bayesnde_cli.training.loop import RunRound, compile_round
from bayesnde_cli.training.losses import correlation_loss, log_variance_loss, marginal_mmd
from bayesnde_cli.training.objectives import Optimizer, Pace, State

N_COLUMNS, LATENT_DIM = 3, 1
N_ROWS, BATCH = 4000, 256  # 15 batches, and 160 rows that wait
DECODER = replace(coders.decoder_spec(LATENT_DIM, N_COLUMNS), width=2 * LATENT_DIM, depth=1)
ENCODER = replace(coders.encoder_spec(LATENT_DIM, N_COLUMNS), width=4, depth=1)
NETWORKS = Networks(DECODER, ENCODER)
ORACLE = random_oracle(N_COLUMNS, LATENT_DIM, seed=3)
LATENTS, ROWS = (tf.constant(part, tf.float32) for part in ORACLE.sample(N_ROWS, np.random.default_rng(0)))
FRESH = ORACLE.sample(N_ROWS, np.random.default_rng(1))[1]
SEED = tf.constant(7)

_PLAIN: dict[str, Any] = {"learning_rate": 3e-3, "schedule": "constant", "weight_decay": 0.0}
POSTERIOR = RefineSettings(latent_update="posterior", average_epochs=3.0, **_PLAIN)
MAP = RefineSettings(latent_update="map", average_epochs=0.0, **_PLAIN)


def round_runner(
    settings: RefineSettings = MAP,
    *,
    networks: Networks = NETWORKS,
    n_rows: int = N_ROWS,
    batch_rows: int = BATCH,
    rounds_per_epoch: int = 1,
) -> RunRound:
    """Compiled rounds, of an epoch each or of a part of one."""
    n_steps = n_rows // batch_rows // rounds_per_epoch
    pace = Pace(n_rows, batch_rows, n_steps, 2000 * rounds_per_epoch, rounds_per_epoch)
    return compile_round(latent_objective(networks, settings, pace), n_steps)


def start(parameters: dict, x: tf.Tensor, y: tf.Tensor | None = None, encoder: NetworkSpec = ENCODER) -> State:
    objective = latent_objective(Networks(DECODER, encoder), MAP, Pace(x.shape[0], 1, 1, 1, 1))
    return objective.start(parameters, (x, y))


def _with_latents(state: State, **latents: tf.Tensor) -> State:
    return state._replace(extra=state.extra._replace(**latents))


@pytest.fixture(scope="module")
def burn_in() -> Callable:
    return compile_burn_in(DECODER, POSTERIOR, BATCH)


@pytest.fixture(scope="module")
def posterior_epoch() -> Callable:
    return round_runner(POSTERIOR)


@pytest.fixture(scope="module")
def map_epoch() -> Callable:
    return round_runner()


def _linear(oracle: LinearGaussianOracle) -> dict[str, tf.Tensor]:
    """Joint parameters whose decoder is this oracle."""
    identity = np.eye(oracle.weights.shape[1])
    slopes = np.concatenate([oracle.weights.T, -oracle.weights.T]) / 1.2
    arrays = {
        "hidden1/kernel": np.concatenate([identity, -identity], axis=1),
        "hidden1/bias": np.zeros(2 * len(identity)),
        "mean/kernel": slopes,
        "mean/bias": oracle.offset,
        "raw_variance/kernel": np.zeros_like(slopes),
        "raw_variance/bias": np.log(np.expm1(oracle.variance - VARIANCE_FLOOR)),
    }
    fresh = initial_autoencoder(DECODER, ENCODER, 0)
    return fresh | {f"decoder/{name}": tf.constant(array, tf.float32) for name, array in arrays.items()}


def _off(oracle: LinearGaussianOracle) -> LinearGaussianOracle:
    """A decent start that is not the truth."""
    return replace(oracle, weights=0.7 * oracle.weights, offset=oracle.offset + 0.3, variance=1.8 * oracle.variance)


def _at(oracle: LinearGaussianOracle, latents: tf.Tensor = LATENTS) -> State:
    return _with_latents(start(_linear(oracle), ROWS), z=latents)


def _after(run: Callable, state: State, n_times: int) -> tuple[State, list[dict[str, float]]]:
    losses = []
    for _ in range(n_times):
        state, found = run(state, (ROWS, None), SEED)
        losses.append({name: float(value) for name, value in found.items()})
    return state, losses


def _mean_log_density(parameters: dict[str, tf.Tensor]) -> float:
    """Of fresh rows."""
    return mean_log_density(decoder_of(DECODER, parameters), FRESH, LATENT_DIM)


def _variance_at_latents(state: State) -> np.ndarray:
    return decoder_of(DECODER, state.parameters)(state.extra.z)[1].numpy().mean(axis=0)


@pytest.mark.slow
def test_posterior_draws_reach_the_likelihood_of_the_truth_and_its_variance(
    burn_in: Callable, posterior_epoch: Callable
) -> None:
    truth = float(np.mean(ORACLE.log_density(FRESH)))
    state = start(_linear(_off(ORACLE)), ROWS)
    # The quadrature is right, and the start is clearly not the truth.
    begin = _mean_log_density(state.parameters)
    assert abs(begin - np.mean(_off(ORACLE).log_density(FRESH))) < 1e-3
    assert begin < truth - 0.1
    state, sweeps = _after(burn_in, state, 20)
    state, losses = _after(posterior_epoch, state, 40)
    # 4000 rows and 22 weights: the best fit is about 22 / (2 * 4000) = 0.003 nats below the truth.
    assert abs(_mean_log_density(state.average) - truth) < 0.02
    assert abs(sweeps[-1]["acceptance"] - 0.75) < 0.05
    assert abs(np.mean([row["acceptance"] for row in losses[20:]]) - 0.75) < 0.05
    assert all(row["first_bad_step"] == -1 for row in losses)
    assert losses[0].keys() == {"loss", "negative_log_likelihood", "acceptance", "lag", "first_bad_step"}
    assert np.all(np.abs(_variance_at_latents(state) / ORACLE.variance - 1.0) < 0.4)


def test_maximised_latents_let_the_variance_shrink(map_epoch: Callable) -> None:
    modes = tf.constant(ORACLE.posterior(ROWS.numpy()).mean, tf.float32)
    state, losses = _after(map_epoch, _at(ORACLE, modes), 40)
    shrunk = _variance_at_latents(state) / ORACLE.variance
    assert np.min(shrunk) < 0.3
    assert losses[-1]["loss"] < losses[0]["loss"] - 0.3
    # The likelihood of the latents goes up while that of the rows goes down.
    assert _mean_log_density(state.parameters) < float(np.mean(ORACLE.log_density(FRESH))) - 0.02
    assert losses[0].keys() == {"loss", "negative_log_likelihood", "latent_norm", "first_bad_step"}


def test_burn_in_goes_from_the_encoder_s_mean_to_the_posterior_of_every_row(burn_in: Callable) -> None:
    state = start(_linear(ORACLE), ROWS)
    assert np.allclose(state.extra.z, coders.encoder_of(ENCODER, state.parameters)(ROWS).mean, atol=1e-6)
    assert set(state.optimizer.first) == set(part_of(state.parameters, "decoder"))

    def error(state: State) -> float:
        """The largest error of the moments of standardised draws, in standard errors."""
        posterior = ORACLE.posterior(ROWS.numpy())
        standard = (state.extra.z.numpy() - posterior.mean) / np.sqrt(posterior.covariance[0, 0])
        halves = np.split(standard[:, 0], 2)
        return max(
            max(abs(np.mean(half)), abs(np.mean(half**2) - 1.0) / np.sqrt(2.0)) * np.sqrt(len(half)) for half in halves
        )

    assert error(state) > 10.0
    first, _ = _after(burn_in, state, 1)
    assert np.mean((first.extra.z != state.extra.z)[-10:]) > 0.5  # also rows of the last batch, which is not full
    moved, _ = _after(burn_in, first, 14)
    assert error(moved) < 4.5
    assert np.all(moved.extra.visits == 15)
    assert have_same_bits(moved._replace(extra=()), state._replace(extra=()))


def test_lag_is_nil_in_equilibrium_and_negative_behind_a_decoder_that_moved(burn_in: Callable) -> None:
    # Latents of the simulation are exact draws. The difference of two log joints has a variance of at most 2 d.
    noise = 4.5 * np.sqrt(2 * LATENT_DIM / N_ROWS)
    settled, losses = _after(burn_in, _at(ORACLE), 12)
    assert all(abs(row["lag"]) < noise for row in losses)
    moved = replace(ORACLE, weights=-ORACLE.weights)
    _, losses = _after(burn_in, settled._replace(parameters=_linear(moved)), 12)
    assert losses[0]["lag"] < -20 * noise
    assert abs(losses[-1]["lag"]) < noise
    # Latents at the mode are too probable.
    modes = tf.constant(ORACLE.posterior(ROWS.numpy()).mean, tf.float32)
    _, losses = _after(burn_in, _at(ORACLE, modes), 1)
    assert losses[0]["lag"] > 3 * noise


@pytest.mark.usefixtures("eager")
def test_a_map_step_is_adam_with_moments_of_the_row() -> None:
    n_rows, batch, rate = 10, 4, 0.05
    settings = MAP.model_copy(update={"learning_rate": 0.0, "latent_learning_rate": rate})
    rng = np.random.default_rng(5)
    z, m, x = LATENTS.numpy()[:n_rows], rng.standard_normal((n_rows, 1)), ROWS.numpy()[:n_rows]
    v, visits = m**2 + rng.uniform(0.1, 2.0, m.shape), rng.integers(0, 6, n_rows)
    m[visits == 0] = v[visits == 0] = 0.0
    state = _with_latents(
        start(_linear(ORACLE), ROWS[:n_rows]),
        z=tf.constant(z),
        moments=(tf.constant(m, tf.float32), tf.constant(v, tf.float32)),
        visits=tf.constant(visits, tf.int32),
    )
    after, losses = round_runner(settings, n_rows=n_rows, batch_rows=batch)(state, (ROWS[:n_rows], None), SEED)

    is_visited = after.extra.visits.numpy() == visits + 1
    assert np.sum(is_visited) == 8  # the other two wait for another shuffle
    for i in range(n_rows):
        found = [part[i] for part in (after.extra.z, *after.extra.moments)]
        expected = [z[i], m[i], v[i]]
        if is_visited[i]:
            residual = (x[i] - ORACLE.offset - ORACLE.weights @ z[i]) / ORACLE.variance
            gradient = z[i] - ORACLE.weights.T @ residual
            t = visits[i] + 1
            mean, square = 0.9 * m[i] + 0.1 * gradient, 0.99 * v[i] + 0.01 * gradient**2
            step = (mean / (1 - 0.9**t)) / (np.sqrt(square / (1 - 0.99**t)) + 1e-8)
            expected = [z[i] - rate * step, mean, square]
        for one, other in zip(found, expected, strict=True):
            assert np.allclose(one, other, rtol=1e-4, atol=1e-6)
    assert np.isclose(losses["latent_norm"], np.mean(after.extra.z.numpy()[is_visited] ** 2), rtol=1e-5)


@pytest.mark.usefixtures("eager")
def test_a_generator_step_follows_the_papers_objective(monkeypatch: pytest.MonkeyPatch) -> None:
    n_rows, rate = 64, 0.01
    settings = RefineSettings(
        latent_update="map",
        learning_rate=rate,
        latent_learning_rate=0.1,
        weight_decay=0.1,
        schedule="decay",
        mmd_weight=2.0,
        correlation_weight=0.3,
        log_variance_weight=0.01,
        average_epochs=0.0,
    )
    x = ROWS[:n_rows]
    state = _with_latents(start(_linear(_off(ORACLE)), x), z=LATENTS[:n_rows])._replace(round=tf.constant(3))
    noise = np.random.default_rng(2).standard_normal((n_rows, LATENT_DIM + 2 * N_COLUMNS)).astype(np.float32)
    # Known random numbers, and no shuffle.
    monkeypatch.setattr(backend, "normal", lambda shape, seed: tf.reshape(noise, shape))
    monkeypatch.setattr(backend, "uniform", lambda shape, seed: tf.cast(tf.range(shape[0]), tf.float32))
    after, losses = round_runner(settings, n_rows=n_rows, batch_rows=n_rows)(state, (x, None), SEED)
    assert np.all(np.abs(after.extra.z - state.extra.z) > 0.05)

    weights = part_of(state.parameters, "decoder")
    prior, fresh_noise, rebuilt_noise = noise[:, :1], noise[:, 1:4], noise[:, 4:]
    with tf.GradientTape() as tape:
        tape.watch(weights)
        model = Decoder(DECODER, weights)
        mean, variance = model(after.extra.z)  # the latents moved first
        prior_mean, prior_variance = model(prior)
        likelihood = -tf.reduce_sum(log_likelihood(x, mean, variance)) / n_rows
        mmd = marginal_mmd(x, prior_mean + tf.sqrt(prior_variance) * fresh_noise)
        correlation = correlation_loss(x, mean + tf.sqrt(variance) * rebuilt_noise)
        log_variance = log_variance_loss(prior_variance)
        loss = likelihood + 2.0 * mmd + 0.3 * correlation + 0.01 * log_variance
    gradients = tape.gradient(loss, weights)  # the paper clips nothing
    optimizer = Optimizer(weight_decay=0.1, max_norm=None)
    expected, _ = optimizer.adam(weights, gradients, state.optimizer, rate * 1.3**-0.6)
    terms = [loss, likelihood, mmd, correlation, log_variance]
    names = ["loss", "negative_log_likelihood", "mmd", "correlation", "log_variance"]
    for name, term in zip(names, terms, strict=True):
        assert np.isclose(losses[name], term, rtol=1e-4), name
    for name, first in after.optimizer.first.items():
        assert np.allclose(first, 0.1 * gradients[name], atol=1e-5), name
    for name, value in part_of(after.parameters, "decoder").items():
        # A first step of Adam is the sign of a gradient; near 0 that is up to rounding.
        is_clear = np.abs(gradients[name]) > 1e-4
        assert np.allclose(value[is_clear], expected[name][is_clear], atol=1e-3 * rate), name
    frozen = part_of(state.parameters, "encoder")
    assert all(np.array_equal(value, frozen[name]) for name, value in part_of(after.parameters, "encoder").items())
    # No running mean was asked for: it is the weights themselves.
    assert all(np.array_equal(after.average[name], value) for name, value in after.parameters.items())


@pytest.mark.usefixtures("eager")
@pytest.mark.parametrize("term", ["mmd", "correlation", "log_variance"])
def test_a_term_of_weight_nil_is_never_computed(term: str, monkeypatch: pytest.MonkeyPatch) -> None:
    functions = {"mmd": "marginal_mmd", "correlation": "correlation_loss", "log_variance": "log_variance_loss"}

    def refuse(*_: tf.Tensor) -> tf.Tensor:
        raise RuntimeError(term)

    monkeypatch.setattr(losses_module, functions[term], refuse)

    def run(update: dict[str, float]) -> None:
        round_runner(MAP.model_copy(update=update), n_rows=8, batch_rows=8)(
            start(_linear(ORACLE), ROWS[:8]), (ROWS[:8], None), SEED
        )

    weights = {f"{name}_weight": 1.0 for name in functions}
    run(weights | {f"{term}_weight": 0.0})
    with pytest.raises(RuntimeError, match=term):
        run(weights)


@pytest.mark.parametrize("update", ["map", "posterior"])
def test_an_epoch_gives_the_same_bits_again_and_finds_a_bad_row(update: str, request: pytest.FixtureRequest) -> None:
    run = request.getfixturevalue(f"{update}_epoch")
    begin = start(_linear(_off(ORACLE)), ROWS)
    check_bits(run, begin, (ROWS, None), SEED)
    x = ROWS.numpy().copy()
    x[1234] = np.nan
    _, losses = run(begin, (tf.constant(x), None), SEED)
    assert 0 <= int(losses["first_bad_step"]) < N_ROWS // BATCH
    assert not np.isfinite(losses["loss"])


@pytest.mark.usefixtures("eager")
def test_generated_rows_of_a_conditional_model_have_the_labels_of_the_batch() -> None:
    label = np.random.default_rng(0).integers(0, 2, 512)
    x = tf.constant(np.stack([5.0 * label, -5.0 * label], axis=1) + 0.1, tf.float32)
    decoder = replace(coders.decoder_spec(1, 2, 2), width=4, depth=1)
    encoder = replace(coders.encoder_spec(1, 2, 2), width=4, depth=1)
    parameters = initial_autoencoder(decoder, encoder, 0)
    parameters |= {name: tf.zeros_like(value) for name, value in parameters.items() if name.startswith("decoder/")}
    kernel = np.zeros((6, 2), np.float32)
    kernel[5] = 5.0, -5.0  # the mean is that of the label, whatever z
    parameters["decoder/mean/kernel"] = tf.constant(kernel)
    parameters["decoder/raw_variance/bias"] = tf.fill([2], -5.0)
    settings = MAP.model_copy(update={"learning_rate": 0.0, "mmd_weight": 1.0, "correlation_weight": 1.0})
    run = round_runner(settings, networks=Networks(decoder, encoder), n_rows=512)
    found = []
    for one_hot in (tf.one_hot(label, 2), tf.one_hot(np.zeros_like(label), 2)):
        _, losses = run(start(parameters, x, one_hot, encoder), (x, one_hot), SEED)
        found.append({name: float(value) for name, value in losses.items()})
    assert found[0]["mmd"] < 0.2
    assert found[1]["mmd"] > 0.4
    assert found[0]["correlation"] < 0.01
    assert all(np.isfinite(value) for value in found[0].values())


@pytest.mark.usefixtures("eager")
def test_the_parts_of_an_epoch_visit_every_row_once() -> None:
    rows = ROWS[:64]
    run = round_runner(n_rows=64, batch_rows=8, rounds_per_epoch=4)
    state = start(_linear(ORACLE), rows)
    for n_parts in range(1, 5):
        state, _ = run(state, (rows, None), SEED)
        visits = state.extra.visits.numpy()
        assert (visits.sum(), visits.max()) == (16 * n_parts, 1)
    after, _ = run(state, (rows, None), SEED)
    assert sorted(np.unique(after.extra.visits.numpy())) == [1, 2]  # a new shuffle
