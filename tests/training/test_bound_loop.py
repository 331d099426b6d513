"""Training by lower bounds: it reaches the likelihood of a model that is known, and resumes to the same bits."""

import time
from dataclasses import replace

import numpy as np
import pytest
import tensorflow as tf
from linear_gaussian_oracle import random_oracle

from bayesnde_cli.model.decoder import decoder_spec
from bayesnde_cli.model.encoder import encoder_spec
from bayesnde_cli.training import autoencoder_state
from bayesnde_cli.training.autoencoder_state import AutoencoderState
from bayesnde_cli.training.bound_loop import BoundSettings, round_runner
from bayesnde_cli.training.joint_parameters import decoder_of, encoder_of, initial_autoencoder
from bayesnde_cli.training.marginal import marginal_scorer

N_COLUMNS, LATENT_DIM, N_ROWS = 3, 1, 4096


def _small(spec):
    return replace(spec, width=32, depth=2)


DECODER = _small(decoder_spec(LATENT_DIM, N_COLUMNS))
ENCODER = _small(encoder_spec(LATENT_DIM, N_COLUMNS))


def start(decoder, encoder, seed):
    return autoencoder_state.start(initial_autoencoder(decoder, encoder, seed))


@pytest.fixture(scope="module")
def rows() -> tuple[tf.Tensor, tf.Tensor, float]:
    """Training rows and fresh rows of a linear-Gaussian model, and the mean log-density of the fresh ones."""
    oracle = random_oracle(N_COLUMNS, LATENT_DIM, seed=3)
    _, x = oracle.sample(2 * N_ROWS, np.random.default_rng(0))
    fresh = x[N_ROWS:]
    return (
        tf.constant(x[:N_ROWS], tf.float32),
        tf.constant(fresh, tf.float32),
        float(np.mean(oracle.log_density(fresh))),
    )


@pytest.fixture(scope="module")
def trained(rows: tuple) -> AutoencoderState:
    """A model after the evidence lower bound and the importance-weighted bound."""
    state = start(DECODER, ENCODER, 0)
    for n_draws, n_epochs, rate in ((1, 25, 3e-3), (8, 10, 1e-3)):
        run = round_runner(DECODER, ENCODER, BoundSettings(n_draws=n_draws, learning_rate=rate))
        for _ in range(n_epochs):
            state, _ = run(state, rows[0], None, tf.constant(1))
    return state


def _mean_score(state: AutoencoderState, x: tf.Tensor, n_draws: int = 256) -> float:
    scores = marginal_scorer(DECODER, ENCODER, n_draws=n_draws)(state.average, x, None, tf.constant(2))
    assert scores.shape == [x.shape[0]]
    assert scores.dtype == tf.float64
    return float(tf.reduce_mean(scores))


def test_the_likelihood_of_a_known_model_is_reached(rows: tuple, trained: AutoencoderState) -> None:
    # 0.05 nats is the bar of a fit; the sampling error of a difference of means on the same rows is far smaller.
    _, fresh, truth = rows
    assert abs(_mean_score(trained, fresh) - truth) < 0.05
    # Negative control: an untrained model is far off.
    assert _mean_score(start(DECODER, ENCODER, 0), fresh) < truth - 0.3


def test_the_score_is_the_marginal_of_the_decoder_by_quadrature(rows: tuple, trained: AutoencoderState) -> None:
    _, fresh, _ = rows
    x = fresh[:64]
    z = np.linspace(-8.0, 8.0, 4001, dtype=np.float32)[:, None]
    mean, variance = (part.numpy().astype(float) for part in decoder_of(DECODER, trained.average)(tf.constant(z)))
    residual = x.numpy()[:, None, :] - mean[None]
    log_joint = -0.5 * np.sum(residual**2 / variance + np.log(2 * np.pi * variance), axis=2)
    log_joint += -0.5 * z[:, 0] ** 2 - 0.5 * np.log(2 * np.pi)
    exact = np.logaddexp.reduce(log_joint, axis=1) + np.log(z[1, 0] - z[0, 0])
    found = marginal_scorer(DECODER, ENCODER, n_draws=2048)(trained.average, x, None, tf.constant(2)).numpy()
    assert np.max(np.abs(found - exact)) < 0.05
    assert abs(np.mean(found - exact)) < 0.01


def test_more_draws_give_a_tighter_bound(rows: tuple, trained: AutoencoderState) -> None:
    _, fresh, _ = rows
    assert _mean_score(trained, fresh, 4) < _mean_score(trained, fresh, 64) + 1e-3


def test_an_epoch_from_the_same_state_gives_the_same_bits(rows: tuple) -> None:
    run = round_runner(DECODER, ENCODER, BoundSettings(n_draws=4))

    def after(n_epochs: int, state: AutoencoderState) -> AutoencoderState:
        for _ in range(n_epochs):
            state, _ = run(state, rows[0], None, tf.constant(5))
        return state

    whole = after(4, start(DECODER, ENCODER, 1))
    half = after(2, start(DECODER, ENCODER, 1))
    # As if saved and read back: through NumPy, leaf by leaf.
    restored = tf.nest.map_structure(lambda tensor: tf.constant(tensor.numpy()), half)
    resumed = after(2, restored)
    for one, other in zip(tf.nest.flatten(whole), tf.nest.flatten(resumed), strict=True):
        assert np.array_equal(one.numpy(), other.numpy())
    # Another seed is another run.
    other_run, _ = run(start(DECODER, ENCODER, 1), rows[0], None, tf.constant(6))
    first, _ = run(start(DECODER, ENCODER, 1), rows[0], None, tf.constant(5))
    name = next(iter(first.parameters))
    assert not np.array_equal(other_run.parameters[name].numpy(), first.parameters[name].numpy())


def test_the_kl_of_the_first_epochs_counts_for_less(rows: tuple) -> None:
    quiet = round_runner(DECODER, ENCODER, BoundSettings(kl_warm_up_epochs=1000, learning_rate=0.0))
    full = round_runner(DECODER, ENCODER, BoundSettings(learning_rate=0.0))
    state = start(DECODER, ENCODER, 0)
    _, with_little_kl = quiet(state, rows[0], None, tf.constant(1))
    _, with_all = full(state, rows[0], None, tf.constant(1))
    assert float(with_little_kl["loss"]) < float(with_all["loss"])
    parts = with_all["negative_log_likelihood"] + with_all["kl"]
    assert float(with_all["loss"]) == pytest.approx(float(parts), rel=1e-5)


@pytest.mark.parametrize("n_draws", [1, 4])
def test_an_epoch_in_parts_is_the_same_epoch(rows: tuple, n_draws: int) -> None:
    settings = BoundSettings(n_draws=n_draws, schedule="cosine", n_epochs=3, kl_warm_up_epochs=2)
    whole = round_runner(DECODER, ENCODER, settings)
    half = round_runner(DECODER, ENCODER, replace(settings, rounds_per_epoch=2))
    one, other = start(DECODER, ENCODER, 1), start(DECODER, ENCODER, 1)
    losses, parts = [], []
    for _ in range(2):
        one, terms = whole(one, rows[0], None, tf.constant(5))
        losses.append(float(terms["loss"]))
    for _ in range(4):
        other, terms = half(other, rows[0], None, tf.constant(5))
        parts.append(float(terms["loss"]))
    assert [np.mean(parts[:2]), np.mean(parts[2:])] == pytest.approx(losses, rel=1e-5)
    assert parts[0] != parts[1]  # other rows
    for a, b in zip(tf.nest.flatten(one.average), tf.nest.flatten(other.average), strict=True):
        np.testing.assert_allclose(a.numpy(), b.numpy(), atol=1e-6)


def test_later_rounds_are_not_compiled_again(rows: tuple) -> None:
    run = round_runner(DECODER, ENCODER, BoundSettings(rounds_per_epoch=2))
    state, seconds = start(DECODER, ENCODER, 1), []
    for _ in range(4):
        before = time.process_time()
        state, losses = run(state, rows[0], None, tf.constant(5))
        assert np.isfinite(losses["loss"])
        seconds.append(time.process_time() - before)
    assert max(seconds[1:]) < 0.3 * seconds[0]


def test_a_schedule_slows_the_steps_down(rows: tuple) -> None:
    run = round_runner(DECODER, ENCODER, BoundSettings(schedule="cosine", n_epochs=4))
    state, moved = start(DECODER, ENCODER, 1), []
    for _ in range(5):
        before, state = state, run(state, rows[0], None, tf.constant(5))[0]
        moved.append(float(sum(tf.norm(state.parameters[name] - before.parameters[name]) for name in state.parameters)))
    assert moved[0] > 2.0 * moved[3] > 0.0
    assert moved[4] == 0.0  # the schedule is over


def test_a_row_that_is_not_finite_shows_its_step(rows: tuple) -> None:
    run = round_runner(DECODER, ENCODER, BoundSettings())
    _, fine = run(start(DECODER, ENCODER, 0), rows[0], None, tf.constant(1))
    assert int(fine["first_bad_step"]) == -1
    bad = tf.tensor_scatter_nd_update(rows[0], [[17, 1]], [np.nan])
    _, losses = run(start(DECODER, ENCODER, 0), bad, None, tf.constant(1))
    assert 0 <= int(losses["first_bad_step"]) < N_ROWS // 256
    assert np.isnan(losses["loss"])


def test_weights_that_break_in_the_last_step_are_noticed(rows: tuple) -> None:
    run = round_runner(DECODER, ENCODER, BoundSettings(batch_rows=N_ROWS, learning_rate=1e38, weight_decay=1e38))
    _, losses = run(start(DECODER, ENCODER, 0), rows[0], None, tf.constant(1))
    assert np.isfinite(losses["loss"])
    assert int(losses["first_bad_step"]) == 0


def test_the_effective_draws_are_counted(rows: tuple, trained: AutoencoderState) -> None:
    run = round_runner(DECODER, ENCODER, BoundSettings(n_draws=8, learning_rate=0.0))
    _, of_trained = run(autoencoder_state.start(trained.average), rows[0], None, tf.constant(1))
    _, of_fresh = run(start(DECODER, ENCODER, 0), rows[0], None, tf.constant(1))
    assert 6.0 < float(of_trained["effective_draws"]) <= 8.0
    assert 1.0 <= float(of_fresh["effective_draws"]) < float(of_trained["effective_draws"])


def test_a_condition_is_learnt() -> None:
    rng = np.random.default_rng(0)
    label = rng.integers(0, 2, 2048)
    x = rng.normal(size=(2048, 2)) * 0.3 + 3.0 * label[:, None]
    y = tf.one_hot(label, 2)
    decoder, encoder = _small(decoder_spec(1, 2, 2)), _small(encoder_spec(1, 2, 2))
    state = start(decoder, encoder, 0)
    run = round_runner(decoder, encoder, BoundSettings(learning_rate=3e-3))
    data = tf.constant(x, tf.float32)
    for _ in range(12):
        state, _ = run(state, data, y, tf.constant(1))
    score = marginal_scorer(decoder, encoder, n_draws=64)
    right = tf.reduce_mean(score(state.average, data, y, tf.constant(2)))
    wrong = tf.reduce_mean(score(state.average, data, tf.reverse(y, [1]), tf.constant(2)))
    assert float(right) > float(wrong) + 10.0
    mean, sd = encoder_of(encoder, state.average)(data[:5], y[:5])
    assert mean.shape == sd.shape == [5, 1]
