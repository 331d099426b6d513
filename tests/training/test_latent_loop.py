"""Alternating refinement: posterior draws lead to maximum likelihood, maximised latents to too small a variance.

The decoder here can be the linear-Gaussian oracle itself, as leaky(z) - leaky(-z) = 1.2 z.
"""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import tensorflow as tf
from linear_gaussian_oracle import LinearGaussianOracle, random_oracle

from bayesnde_cli.inference.hmc import transition
from bayesnde_cli.model import random_numbers
from bayesnde_cli.model.decoder import VARIANCE_FLOOR, Decoder, decoder_spec
from bayesnde_cli.model.encoder import encoder_spec
from bayesnde_cli.model.likelihood import log_likelihood
from bayesnde_cli.training import latent_loop
from bayesnde_cli.training.joint_parameters import decoder_of, encoder_of, initial_autoencoder, part_of
from bayesnde_cli.training.latent_loop import LatentSettings, LatentState, burn_in_runner, round_runner, start
from bayesnde_cli.training.losses import correlation_loss, log_variance_loss
from bayesnde_cli.training.mmd import marginal_mmd
from bayesnde_cli.training.optimizers import adam_step, clipped

N_COLUMNS, LATENT_DIM = 3, 1
N_ROWS, BATCH = 4000, 256  # 15 batches, and 160 rows that wait
DECODER = replace(decoder_spec(LATENT_DIM, N_COLUMNS), width=2 * LATENT_DIM, depth=1)
ENCODER = replace(encoder_spec(LATENT_DIM, N_COLUMNS), width=4, depth=1)
ORACLE = random_oracle(N_COLUMNS, LATENT_DIM, seed=3)
LATENTS, ROWS = (tf.constant(part, tf.float32) for part in ORACLE.sample(N_ROWS, np.random.default_rng(0)))
FRESH = ORACLE.sample(N_ROWS, np.random.default_rng(1))[1]
SEED = tf.constant(7)

POSTERIOR = LatentSettings("posterior", learning_rate=3e-3, average_epochs=3.0)
MAP = LatentSettings("map", learning_rate=3e-3)


@pytest.fixture(scope="module")
def burn_in() -> Callable:
    return burn_in_runner(DECODER, POSTERIOR, transition)


@pytest.fixture(scope="module")
def posterior_epoch() -> Callable:
    return round_runner(DECODER, POSTERIOR, transition)


@pytest.fixture(scope="module")
def map_epoch() -> Callable:
    return round_runner(DECODER, MAP)


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


def _at(oracle: LinearGaussianOracle, latents: tf.Tensor = LATENTS) -> LatentState:
    return start(ENCODER, _linear(oracle), ROWS, None)._replace(latents=latents)


def _after(run: Callable, state: LatentState, n_times: int) -> tuple[LatentState, list[dict[str, float]]]:
    losses = []
    for _ in range(n_times):
        state, found = run(state, ROWS, None, SEED)
        losses.append({name: float(value) for name, value in found.items()})
    return state, losses


def _mean_log_density(parameters: dict[str, tf.Tensor]) -> float:
    """Of fresh rows, by quadrature."""
    z = np.linspace(-8.0, 8.0, 801, dtype=np.float32)[:, None]
    mean, variance = (part.numpy().astype(float) for part in decoder_of(DECODER, parameters)(tf.constant(z)))
    log_joint = -0.5 * np.sum((FRESH[:, None] - mean) ** 2 / variance + np.log(2 * np.pi * variance), axis=2)
    log_joint += -0.5 * z[:, 0] ** 2 - 0.5 * np.log(2 * np.pi)
    return float(np.mean(np.logaddexp.reduce(log_joint, axis=1)) + np.log(z[1, 0] - z[0, 0]))


def _variance_at_latents(state: LatentState) -> np.ndarray:
    return decoder_of(DECODER, state.parameters)(state.latents)[1].numpy().mean(axis=0)


def _same_bits(one: LatentState, other: LatentState) -> bool:
    pairs = zip(tf.nest.flatten(one), tf.nest.flatten(other), strict=True)
    return all(np.array_equal(left.numpy(), right.numpy()) for left, right in pairs)


def test_a_start_has_the_latents_of_the_encoder() -> None:
    state = start(ENCODER, _linear(ORACLE), ROWS, None)
    assert state.latents.shape == [N_ROWS, LATENT_DIM]
    expected = encoder_of(ENCODER, state.parameters)(ROWS).mean
    assert np.allclose(state.latents, expected, atol=1e-6)
    assert set(state.optimizer.first) == set(part_of(state.parameters, "decoder"))


def test_posterior_draws_reach_the_likelihood_of_the_truth(burn_in: Callable, posterior_epoch: Callable) -> None:
    truth = float(np.mean(ORACLE.log_density(FRESH)))
    state = start(ENCODER, _linear(_off(ORACLE)), ROWS, None)
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


def test_maximised_latents_let_the_variance_shrink(map_epoch: Callable) -> None:
    modes = tf.constant(ORACLE.posterior(ROWS.numpy()).mean, tf.float32)
    state, losses = _after(map_epoch, _at(ORACLE, modes), 40)
    shrunk = _variance_at_latents(state) / ORACLE.variance
    assert np.min(shrunk) < 0.3
    assert losses[-1]["loss"] < losses[0]["loss"] - 0.3
    # The likelihood of the latents goes up while that of the rows goes down.
    assert _mean_log_density(state.parameters) < float(np.mean(ORACLE.log_density(FRESH))) - 0.02
    assert losses[0].keys() == {"loss", "negative_log_likelihood", "latent_norm", "first_bad_step"}


def test_posterior_draws_keep_the_variance(posterior_epoch: Callable) -> None:
    state, _ = _after(posterior_epoch, _at(ORACLE), 40)
    assert np.all(np.abs(_variance_at_latents(state) / ORACLE.variance - 1.0) < 0.4)


def test_burn_in_draws_from_the_posterior_of_every_row(burn_in: Callable) -> None:
    state = start(ENCODER, _linear(ORACLE), ROWS, None)

    def error(state: LatentState) -> float:
        """The largest error of the moments of standardised draws, in standard errors."""
        posterior = ORACLE.posterior(ROWS.numpy())
        standard = (state.latents.numpy() - posterior.mean) / np.sqrt(posterior.covariance[0, 0])
        halves = np.split(standard[:, 0], 2)
        return max(
            max(abs(np.mean(half)), abs(np.mean(half**2) - 1.0) / np.sqrt(2.0)) * np.sqrt(len(half)) for half in halves
        )

    assert error(state) > 10.0
    moved, _ = _after(burn_in, state, 15)
    assert error(moved) < 4.5
    assert np.all(moved.visits == 15)
    for name in ("parameters", "optimizer", "average", "round"):
        assert all(
            np.array_equal(one, other)
            for one, other in zip(
                tf.nest.flatten(getattr(state, name)), tf.nest.flatten(getattr(moved, name)), strict=True
            )
        )


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


def test_the_lag_of_an_epoch_is_that_of_its_chains(posterior_epoch: Callable) -> None:
    calm, changed = _at(ORACLE), _at(replace(ORACLE, weights=-ORACLE.weights))
    assert abs(_after(posterior_epoch, calm, 1)[1][0]["lag"]) < 0.2
    assert _after(posterior_epoch, changed, 1)[1][0]["lag"] < -1.0


def test_a_burn_in_sweep_visits_the_rows_of_the_last_batch_too(burn_in: Callable) -> None:
    begin = _at(ORACLE)
    after, _ = _after(burn_in, begin, 1)
    has_moved = (after.latents != begin.latents).numpy()
    assert np.mean(has_moved) > 0.95
    assert np.mean(has_moved[-10:]) > 0.5
    assert np.all(after.visits == 1)


def test_a_map_step_is_adam_with_moments_of_the_row() -> None:
    n_rows, batch, rate = 10, 4, 0.05
    settings = replace(MAP, batch_rows=batch, learning_rate=0.0, latent_learning_rate=rate)
    rng = np.random.default_rng(5)
    z, m, x = LATENTS.numpy()[:n_rows], rng.standard_normal((n_rows, 1)), ROWS.numpy()[:n_rows]
    v, visits = m**2 + rng.uniform(0.1, 2.0, m.shape), rng.integers(0, 6, n_rows)
    m[visits == 0] = v[visits == 0] = 0.0
    state = start(ENCODER, _linear(ORACLE), ROWS[:n_rows], None)._replace(
        latents=tf.constant(z),
        latent_moments=(tf.constant(m, tf.float32), tf.constant(v, tf.float32)),
        visits=tf.constant(visits, tf.int32),
    )
    after, losses = round_runner(DECODER, settings)(state, ROWS[:n_rows], None, SEED)

    is_visited = after.visits.numpy() == visits + 1
    assert np.sum(is_visited) == 8  # the other two wait for another shuffle
    for i in range(n_rows):
        found = [part[i] for part in (after.latents, *after.latent_moments)]
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
    assert np.isclose(losses["latent_norm"], np.mean(after.latents.numpy()[is_visited] ** 2), rtol=1e-5)


def test_a_generator_step_follows_the_papers_objective(monkeypatch: pytest.MonkeyPatch) -> None:
    n_rows, rate = 64, 0.01
    settings = LatentSettings(
        "map", batch_rows=n_rows, learning_rate=rate, latent_learning_rate=0.1, weight_decay=0.1, schedule="decay",
        mmd_weight=2.0, correlation_weight=0.3, log_variance_weight=0.01, max_norm=0.5,
    )  # fmt: skip
    x = ROWS[:n_rows]
    state = start(ENCODER, _linear(_off(ORACLE)), x, None)._replace(latents=LATENTS[:n_rows], round=tf.constant(3))
    noise = np.random.default_rng(2).standard_normal((n_rows, LATENT_DIM + 2 * N_COLUMNS)).astype(np.float32)
    # Known random numbers, and no shuffle.
    monkeypatch.setattr(random_numbers, "normal", lambda shape, seed: tf.reshape(noise, shape))
    monkeypatch.setattr(random_numbers, "uniform", lambda shape, seed: tf.cast(tf.range(shape[0]), tf.float32))
    after, losses = round_runner(DECODER, settings)(state, x, None, SEED)
    assert np.all(np.abs(after.latents - state.latents) > 0.05)

    weights = part_of(state.parameters, "decoder")
    prior, fresh_noise, rebuilt_noise = noise[:, :1], noise[:, 1:4], noise[:, 4:]
    with tf.GradientTape() as tape:
        tape.watch(weights)
        model = Decoder(DECODER, weights)
        mean, variance = model(after.latents)  # the latents moved first
        prior_mean, prior_variance = model(prior)
        likelihood = -tf.reduce_sum(log_likelihood(x, mean, variance)) / n_rows
        mmd = marginal_mmd(x, prior_mean + tf.sqrt(prior_variance) * fresh_noise)
        correlation = correlation_loss(x, mean + tf.sqrt(variance) * rebuilt_noise)
        log_variance = log_variance_loss(prior_variance)
        loss = likelihood + 2.0 * mmd + 0.3 * correlation + 0.01 * log_variance
    gradients, norm = clipped(tape.gradient(loss, weights), max_norm=0.5)
    assert norm > 0.5
    expected, _ = adam_step(
        gradients, state.optimizer, weights,
        learning_rate=rate * 1.3**-0.6, beta_1=0.9, beta_2=0.99, epsilon=1e-8, weight_decay=0.1,
    )  # fmt: skip
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


@pytest.mark.parametrize("term", ["marginal_mmd", "correlation_loss", "log_variance_loss"])
def test_a_term_of_weight_nil_is_never_computed(term: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: tf.Tensor) -> tf.Tensor:
        raise RuntimeError(term)

    monkeypatch.setattr(latent_loop, term, refuse)
    weights = {"mmd_weight": 1.0, "correlation_weight": 1.0, "log_variance_weight": 1.0}
    name = {"marginal_mmd": "mmd", "correlation_loss": "correlation", "log_variance_loss": "log_variance"}[term]

    def trace(settings: LatentSettings) -> None:
        x = ROWS[:BATCH]
        round_runner(DECODER, settings).get_concrete_function(start(ENCODER, _linear(ORACLE), x, None), x, None, SEED)

    trace(replace(MAP, **weights | {f"{name}_weight": 0.0}))
    with pytest.raises(RuntimeError, match=term):
        trace(replace(MAP, **weights))


@pytest.mark.parametrize("update", ["map", "posterior"])
def test_an_epoch_from_the_same_state_gives_the_same_bits(update: str, request: pytest.FixtureRequest) -> None:
    run = request.getfixturevalue(f"{update}_epoch")
    begin = start(ENCODER, _linear(_off(ORACLE)), ROWS, None)
    whole, _ = _after(run, begin, 4)
    half, _ = _after(run, begin, 2)
    # As if saved and read back: through NumPy, leaf by leaf.
    leaves = [tf.constant(leaf.numpy()) for leaf in tf.nest.flatten(half)]
    resumed, _ = _after(run, tf.nest.pack_sequence_as(begin, leaves), 2)
    assert _same_bits(whole, resumed)
    other, _ = run(begin, ROWS, None, tf.constant(8))
    first, _ = run(begin, ROWS, None, SEED)
    assert not _same_bits(other, first)


@pytest.mark.parametrize("update", ["map", "posterior"])
def test_a_bad_row_is_found_in_its_step(update: str, request: pytest.FixtureRequest) -> None:
    run = request.getfixturevalue(f"{update}_epoch")
    state, n_steps = _at(ORACLE), N_ROWS // BATCH
    x = ROWS.numpy().copy()
    x[1234] = np.nan
    _, losses = run(state, tf.constant(x), None, SEED)
    assert 0 <= int(losses["first_bad_step"]) < n_steps
    assert losses["first_bad_step"].dtype == tf.int32
    assert not np.isfinite(losses["loss"])
    assert int(run(state, ROWS, None, SEED)[1]["first_bad_step"]) == -1


def test_generated_rows_of_a_conditional_model_have_the_labels_of_the_batch() -> None:
    label = np.random.default_rng(0).integers(0, 2, 512)
    x = tf.constant(np.stack([5.0 * label, -5.0 * label], axis=1) + 0.1, tf.float32)
    decoder = replace(decoder_spec(1, 2, 2), width=4, depth=1)
    encoder = replace(encoder_spec(1, 2, 2), width=4, depth=1)
    parameters = initial_autoencoder(decoder, encoder, 0)
    parameters |= {name: tf.zeros_like(value) for name, value in parameters.items() if name.startswith("decoder/")}
    kernel = np.zeros((6, 2), np.float32)
    kernel[5] = 5.0, -5.0  # the mean is that of the label, whatever z
    parameters["decoder/mean/kernel"] = tf.constant(kernel)
    parameters["decoder/raw_variance/bias"] = tf.fill([2], -5.0)
    run = round_runner(decoder, LatentSettings("map", learning_rate=0.0, mmd_weight=1.0, correlation_weight=1.0))
    found = []
    for one_hot in (tf.one_hot(label, 2), tf.one_hot(np.zeros_like(label), 2)):
        _, losses = run(start(encoder, parameters, x, one_hot), x, one_hot, SEED)
        found.append({name: float(value) for name, value in losses.items()})
    assert found[0]["mmd"] < 0.2
    assert found[1]["mmd"] > 0.4
    assert found[0]["correlation"] < 0.01
    assert all(np.isfinite(value) for value in found[0].values())


def test_settings_are_checked() -> None:
    with pytest.raises(ValueError, match="expected one of map, posterior, got 'mode'"):
        LatentSettings("mode")
    with pytest.raises(ValueError, match="expected one of constant, decay, cosine, got 'linear'"):
        LatentSettings("map", schedule="linear")
    with pytest.raises(ValueError, match="expected a transition for the update 'posterior', got None"):
        round_runner(DECODER, POSTERIOR)


def test_the_parts_of_an_epoch_visit_every_row_once() -> None:
    rows = ROWS[:1024]
    settings = LatentSettings("map", batch_rows=128, rounds_per_epoch=4)
    run = round_runner(DECODER, settings)
    state = start(ENCODER, _linear(ORACLE), rows, None)
    for n_parts in range(1, 5):
        state, _ = run(state, rows, None, SEED)
        visits = state.visits.numpy()
        assert (visits.sum(), visits.max()) == (256 * n_parts, 1)
    after, _ = run(state, rows, None, SEED)
    assert sorted(np.unique(after.visits.numpy())) == [1, 2]  # a new shuffle
