"""Adam, the lower bounds and the column start: textbook formulas, linear-Gaussian oracles, the same bits again."""

import time
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pytest
import tensorflow as tf
from linear_gaussian_oracle import mean_log_density, random_oracle
from same_bits import check_bits
from scipy.special import logsumexp, ndtri
from scipy.stats import norm

from bayesnde_cli.model import coders
from bayesnde_cli.model.coders import Networks, decoder_of, decoder_spec, encoder_spec, initial_autoencoder
from bayesnde_cli.model.layers import is_statistic
from bayesnde_cli.rng import generator
from bayesnde_cli.settings.stage_settings import RefineSettings, WarmstartSettings
from bayesnde_cli.training import objectives
from bayesnde_cli.training.adversarial import adversarial_objective
from bayesnde_cli.training.loop import RunRound, compile_round
from bayesnde_cli.training.objectives import Objective, Optimizer, Pace, State, log_importance_weights, start_state

# The optimizer.

N_STEPS = 20


def _arrays() -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Parameters, and a gradient for each step, of very unequal sizes."""
    rng = generator(0, "parameters")
    parameters = {"dense/kernel": rng.standard_normal((4, 3)), "dense/bias": rng.standard_normal(3)}
    gradients = {
        name: rng.standard_normal((N_STEPS, *value.shape)) * 10.0 ** rng.uniform(-3, 3, value.shape)
        for name, value in parameters.items()
    }
    return parameters, gradients


@pytest.mark.parametrize("weight_decay", [0.0, 0.3])
@pytest.mark.parametrize(("rate", "betas"), [(1e-3, (0.5, 0.9)), (5e-3, (0.9, 0.99))])
def test_adam_is_the_textbook_s(rate: float, betas: tuple[float, float], weight_decay: float) -> None:
    """Kingma and Ba (2015), algorithm 1, with the decay of Loshchilov and Hutter (2019), algorithm 2."""
    start, all_gradients = _arrays()
    optimizer = Optimizer(betas=betas, weight_decay=weight_decay, max_norm=None)
    for dtype, rtol in ((tf.float64, 1e-12), (tf.float32, 2e-5)):
        parameters = {name: tf.constant(value, dtype) for name, value in start.items()}
        state = objectives.start_adam(parameters)
        for t in range(N_STEPS):
            gradients = {name: tf.constant(value[t], dtype) for name, value in all_gradients.items()}
            parameters, state = optimizer.adam(parameters, gradients, state, rate)
        assert int(state.step) == N_STEPS
        for name, theta in start.items():
            m = v = 0.0
            for t, g in enumerate(all_gradients[name], start=1):
                m, v = betas[0] * m + (1 - betas[0]) * g, betas[1] * v + (1 - betas[1]) * g**2
                m_hat, v_hat = m / (1 - betas[0] ** t), v / (1 - betas[1] ** t)
                theta = theta - rate * m_hat / (np.sqrt(v_hat) + 1e-8) - rate * weight_decay * theta
            np.testing.assert_allclose(parameters[name], theta, rtol=rtol)
            assert np.abs(theta - start[name]).min() > 1e-4


def test_rows_may_have_steps_of_their_own() -> None:
    """A row visited for the first time moves by the learning rate, however often the others were visited."""
    z = {"z": tf.zeros([3, 2])}
    state = objectives.AdamState(step=tf.constant([[0], [5], [50]]), first=z, second=z)
    moved, after = Optimizer().adam(z, {"z": tf.fill([3, 2], 1e-3)}, state, 5e-3)
    np.testing.assert_allclose(moved["z"][0], [-5e-3, -5e-3], rtol=1e-3)
    assert (np.abs(moved["z"][1:]) < 4e-3).all()
    np.testing.assert_array_equal(after.step, [[1], [6], [51]])


def test_schedules_are_their_formulas() -> None:
    t = np.arange(0, 120, 10)
    np.testing.assert_array_equal(objectives.schedule_factor("constant", tf.constant(t), 100.0), np.ones(12))
    np.testing.assert_allclose(
        objectives.schedule_factor("decay", tf.constant(t), 100.0), (1 + t / 10) ** -0.6, rtol=1e-6
    )
    expected = 0.5 * (1 + np.cos(np.pi * np.minimum(t / 100, 1)))
    np.testing.assert_allclose(objectives.schedule_factor("cosine", tf.constant(t), 100.0), expected, atol=1e-6)


@pytest.mark.parametrize(("max_norm", "factor"), [(1.0, 0.2), (10.0, 1.0), (None, 1.0)])
def test_clipping_shrinks_all_gradients_together_and_only_when_they_are_too_long(
    max_norm: float | None, factor: float
) -> None:
    gradients = {"a": tf.constant([3.0]), "b": tf.constant([[0.0, 4.0]])}
    _, state = Optimizer(max_norm=max_norm).adam(gradients, gradients, objectives.start_adam(gradients), 1.0)
    for name, gradient in gradients.items():
        np.testing.assert_allclose(state.first[name], 0.1 * factor * gradient, rtol=1e-6)


def test_the_average_is_a_geometric_mixture_of_the_past() -> None:
    state = start_state({"w": tf.constant(0.0)})
    past = []
    for _ in range(5):
        state = Optimizer(average_steps=5.0).move(state, {"w": tf.constant(-1.0)}, 1.0)
        past.append(float(state.parameters["w"]))
    expected = sum(0.2 * 0.8 ** (4 - t) * value for t, value in enumerate(past))
    np.testing.assert_allclose(state.average["w"], expected, rtol=1e-6)
    state = Optimizer(average_steps=0.0).move(state, {"w": tf.constant(-1.0)}, 1.0)
    assert float(state.average["w"]) == float(state.parameters["w"])


# Bounds of x | z ~ N(SLOPE z, NOISE^2), z ~ N(0, 1): log p(x), posterior mean and sd in closed form.

SLOPE, NOISE = 1.5, 0.7
EVIDENCE_SD = np.hypot(SLOPE, NOISE)
POSTERIOR_SD = NOISE / EVIDENCE_SD
POSTERIOR_SLOPE = SLOPE / EVIDENCE_SD**2


def _log_likelihood(x: tf.Tensor, z: tf.Tensor, slope: tf.Tensor) -> tf.Tensor:
    """(rows, 1), (rows, draws, 1) -> (rows, draws)."""
    return -0.5 * tf.square((x - slope * z[:, :, 0]) / NOISE) - np.log(NOISE * np.sqrt(2.0 * np.pi))


def test_the_divergence_makes_the_evidence_lower_bound_log_p_at_the_posterior_and_less_elsewhere() -> None:
    x = EVIDENCE_SD * generator(0, "x").standard_normal((6, 1))
    for shift, is_exact in ((0.0, True), (0.5, False)):
        mean, log_sd = tf.constant(POSTERIOR_SLOPE * x + shift), tf.fill([6, 1], tf.constant(np.log(POSTERIOR_SD)))
        # E_q log p(x|z) in closed form.
        expected_square = (x - SLOPE * mean) ** 2 + (SLOPE * POSTERIOR_SD) ** 2
        likelihood = -0.5 * expected_square[:, 0] / NOISE**2 - np.log(NOISE * np.sqrt(2 * np.pi))
        bound = (likelihood - objectives.gaussian_kl(mean, log_sd)).numpy()
        truth = norm(0, EVIDENCE_SD).logpdf(x[:, 0])
        np.testing.assert_allclose(bound + 0.5 * (shift / POSTERIOR_SD) ** 2, truth, rtol=1e-10)
        assert np.allclose(bound, truth) == is_exact
    assert objectives.gaussian_kl(tf.zeros([1, 2]), tf.zeros([1, 2])).numpy().tolist() == [0.0]


def test_weights_are_all_p_when_the_proposal_is_the_posterior() -> None:
    x = EVIDENCE_SD * generator(0, "x").standard_normal((5, 1))
    mean, log_sd = POSTERIOR_SLOPE * x, tf.fill([5, 1], tf.constant(np.log(POSTERIOR_SD)))
    z = tf.constant(mean[:, None, :] + POSTERIOR_SD * generator(0, "z").standard_normal((5, 7, 1)))
    likelihood = _log_likelihood(tf.constant(x), z, tf.constant(SLOPE, tf.float64))
    log_w = log_importance_weights(likelihood, z, tf.constant(mean), log_sd)
    np.testing.assert_allclose(log_w, np.broadcast_to(norm(0, EVIDENCE_SD).logpdf(x), (5, 7)), rtol=1e-10)
    wrong = log_importance_weights(likelihood, z, tf.constant(mean + 0.3), log_sd).numpy()
    assert np.std(wrong, axis=1).min() > 0.1


def _gradients(noise: tf.Tensor, x: tf.Tensor, *, doubly: bool) -> tuple[tf.Tensor, tf.Tensor]:
    """Loss and gradients for (encoder slope, encoder log sd, decoder slope) at a proposal that is not the posterior."""
    parameters = [tf.constant(value, tf.float64) for value in (0.0, -0.1, SLOPE)]
    with tf.GradientTape() as tape:
        tape.watch(parameters)
        encoder_slope, encoder_log_sd, decoder_slope = parameters
        mean, log_sd = encoder_slope * x, encoder_log_sd * tf.ones_like(x)
        z = mean[:, None, :] + tf.exp(log_sd)[:, None, :] * noise
        if doubly:
            fixed = tf.stop_gradient(mean), tf.stop_gradient(log_sd)
            loss, _ = objectives.doubly_reparameterised_loss(
                z, lambda z: log_importance_weights(_log_likelihood(x, z, decoder_slope), z, *fixed)
            )
        else:
            log_w = log_importance_weights(_log_likelihood(x, z, decoder_slope), z, mean, log_sd)
            loss = -tf.reduce_mean(tf.reduce_logsumexp(log_w, axis=1) - np.log(log_w.shape[1]))
    return loss, tf.stack(tape.gradient(loss, parameters))


def test_doubly_reparameterised_gradients_have_the_same_mean_and_less_noise() -> None:
    n_replications, n_draws, x = 20_000, 8, tf.constant([[1.8]], tf.float64)
    noise = tf.constant(generator(0, "noise").standard_normal((n_replications, 1, n_draws, 1)))

    @tf.function
    def replicate(doubly: bool) -> tuple[tf.Tensor, tf.Tensor]:
        return tf.vectorized_map(lambda one: _gradients(one, x, doubly=doubly), noise)

    (plain_loss, plain), (doubly_loss, doubly) = (
        [part.numpy() for part in replicate(is_doubly)] for is_doubly in (False, True)
    )  # (replications,), (replications, 3)
    np.testing.assert_allclose(doubly_loss, plain_loss, rtol=1e-9)
    difference = doubly - plain  # common random numbers
    standard_error = difference.std(axis=0) / np.sqrt(n_replications)
    assert (np.abs(difference.mean(axis=0)[:2]) < 5 * standard_error[:2]).all()
    # The encoder's gradient is not nil, so the agreement says something.
    assert (np.abs(plain.mean(axis=0)[:2]) > 10 * standard_error[:2]).all()
    assert (doubly.std(axis=0)[:2] < 0.8 * plain.std(axis=0)[:2]).all()
    # The decoder's is the same number, draw by draw.
    np.testing.assert_allclose(doubly[:, 2], plain[:, 2], rtol=1e-9)
    # Negative control: v instead of v^2 in the encoder's gradient gives another mean.
    sd, draws = np.exp(-0.1), np.exp(-0.1) * noise.numpy()[:, 0, :, 0]  # the proposal's mean is 0
    log_w = norm(SLOPE * draws, NOISE).logpdf(1.8) + norm.logpdf(draws) - norm(0, sd).logpdf(draws)
    share = np.exp(log_w - logsumexp(log_w, axis=1, keepdims=True))
    slope_of_log_w = SLOPE * (1.8 - SLOPE * draws) / NOISE**2 - draws + draws / sd**2
    right, wrong = (-(weight * slope_of_log_w).sum(axis=1) * 1.8 for weight in (share**2, share))
    np.testing.assert_allclose(doubly[:, 0], right, rtol=1e-6, atol=1e-9)
    assert abs(wrong.mean() - right.mean()) > 5 * (wrong - right).std() / np.sqrt(n_replications)


# Training by the bounds. Two classes of a linear-Gaussian model, far from each other.

N_COLUMNS, N_ROWS, N_EPOCHS, WARM_UP = 3, 2048, 30, 3
DECODER, ENCODER = (replace(spec(1, N_COLUMNS, 2), width=32, depth=1) for spec in (decoder_spec, encoder_spec))
NETWORKS = Networks(DECODER, ENCODER)
SEED = tf.constant(5)
WARM = WarmstartSettings(kl_warm_up=WARM_UP / N_EPOCHS, learning_rate=4e-3, schedule="cosine", average_epochs=0.5)


def _evidence(rounds_per_epoch: int = 1) -> RunRound:
    steps = N_ROWS // 128 // rounds_per_epoch
    pace = Pace(N_ROWS, 128, steps, N_EPOCHS * rounds_per_epoch, rounds_per_epoch)
    return compile_round(objectives.evidence_objective(NETWORKS, WARM, pace), steps)


class Trained(NamedTuple):
    """A model after each round of the evidence lower bound, and then after some of the importance-weighted bound."""

    evidence: RunRound
    importance: RunRound
    states: list[State]
    losses: list[dict[str, float]]
    seconds: list[float]
    refined: State


def _fresh() -> State:
    return _start(initial_autoencoder(DECODER, ENCODER, 0), N_EPOCHS)


def _start(weights: dict, n_epochs: int) -> State:
    return objectives.start_of(Pace(0, 0, 0, n_epochs))(weights, None)


def _rows(seed: int) -> tuple[tuple[tf.Tensor, tf.Tensor], float]:
    """Rows and classes, and the mean log-density of the rows given their classes."""
    oracle, rng = random_oracle(N_COLUMNS, 1, seed=3), np.random.default_rng(seed)
    x, label = oracle.sample(N_ROWS, rng)[1], rng.integers(0, 2, N_ROWS)
    data = tf.constant(x + 3.0 * label[:, None], tf.float32), tf.one_hot(label, 2)
    return data, float(np.mean(oracle.log_density(x)))


@pytest.fixture(scope="module")
def data() -> tuple[tf.Tensor, tf.Tensor]:
    return _rows(0)[0]


@pytest.fixture(scope="module")
def trained(data: tuple) -> Trained:
    evidence, state, states, losses, seconds = _evidence(), _fresh(), [], [], []
    for _ in range(N_EPOCHS):
        before = time.process_time()
        state, found = evidence(state, data, SEED)
        seconds.append(time.process_time() - before)
        states.append(state)
        losses.append({name: float(value) for name, value in found.items()})
    pace = Pace(N_ROWS, 128, N_ROWS // 128, 5, 1)
    objective = objectives.importance_objective(NETWORKS, RefineSettings(draws=8, learning_rate=1e-3), pace)
    importance = compile_round(objective, N_ROWS // 128)
    state = _start(state.average, 5)
    for _ in range(5):
        state, _ = importance(state, data, SEED)
    return Trained(evidence, importance, states, losses, seconds, state)


@pytest.mark.slow
def test_the_likelihood_of_a_known_model_is_reached_given_the_class(trained: Trained) -> None:
    data, truth = _rows(1)
    x, y = (part.numpy() for part in data)
    right, wrong, fresh = (
        mean_log_density(decoder_of(DECODER, state.average), x, 1, classes)
        for state, classes in ((trained.refined, y), (trained.refined, y[:, ::-1]), (_fresh(), y))
    )
    # 0.05 nats is the bar of a fit.
    assert abs(right - truth) < 0.05
    # Negative controls: the other class, and an untrained model.
    assert wrong < truth - 5.0
    assert fresh < truth - 0.3


def test_the_weight_of_the_kl_rises_to_one(trained: Trained) -> None:
    weights = [(row["loss"] - row["negative_log_likelihood"]) / row["kl"] for row in trained.losses]
    np.testing.assert_allclose(weights, np.minimum(1.0, np.arange(1, N_EPOCHS + 1) / WARM_UP), rtol=1e-3)


def test_effective_draws_are_counted(data: tuple, trained: Trained) -> None:
    of_trained, of_fresh = (
        float(trained.importance(_start(state.average, 5), data, SEED)[1]["effective_draws"])
        for state in (trained.refined, _fresh())
    )
    assert 1.0 <= of_fresh < of_trained
    assert 6.0 < of_trained <= 8.0


@pytest.mark.parametrize("kind", ["evidence", "importance"])
def test_an_epoch_from_the_same_state_gives_the_same_bits(data: tuple, trained: Trained, kind: str) -> None:
    check_bits(getattr(trained, kind), _fresh(), data, SEED)


def test_an_epoch_in_parts_is_the_same_epoch_and_rounds_are_compiled_once(data: tuple, trained: Trained) -> None:
    run, state, losses, seconds = _evidence(2), _fresh(), [], []
    for _ in range(4):
        before = time.process_time()
        state, found = run(state, data, SEED)
        seconds.append(time.process_time() - before)
        losses.append(float(found["loss"]))
    assert max(seconds[1:]) < 0.3 * seconds[0]
    expected = [row["loss"] for row in trained.losses[:2]]
    assert [np.mean(losses[:2]), np.mean(losses[2:])] == pytest.approx(expected, rel=1e-5)
    assert losses[0] != losses[1]  # other rows
    for name, value in trained.states[1].average.items():
        np.testing.assert_allclose(state.average[name], value, atol=1e-5)


def test_a_schedule_slows_the_steps_down_to_nil(data: tuple, trained: Trained) -> None:
    def moved(before: State, after: State) -> float:
        return float(sum(tf.norm(after.parameters[name] - before.parameters[name]) for name in after.parameters))

    assert moved(*trained.states[:2]) > 5.0 * moved(*trained.states[-2:]) > 0.0
    assert moved(trained.states[-1], trained.evidence(trained.states[-1], data, SEED)[0]) == 0.0


def test_a_row_that_is_not_finite_shows_its_step(data: tuple, trained: Trained) -> None:
    assert {row["first_bad_step"] for row in trained.losses} == {-1}
    bad = tf.tensor_scatter_nd_update(data[0], [[17, 1]], [np.nan])
    _, losses = trained.evidence(_fresh(), (bad, data[1]), SEED)
    assert 0 <= int(losses["first_bad_step"]) < N_ROWS // 128
    assert np.isnan(losses["loss"])


# The column start. Two classes; within a class, the second column repeats the first.

MEANS, SDS = np.array([[-1.0, 0.5], [1.0, 0.0]]), np.array([[0.5, 1.0], [0.3, 0.8]])


@pytest.fixture(scope="module")
def rows() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    row_class = (rng.random(4000) < 0.3).astype(int)
    shared = rng.standard_normal(4000)
    x = MEANS[row_class] + SDS[row_class] * np.stack([shared, shared], axis=1)
    return x.astype(np.float32), np.eye(2, dtype=np.float32)[row_class]


@pytest.mark.slow
def test_the_column_start_is_the_product_of_the_columns_of_each_class(rows: tuple) -> None:
    networks = Networks(*(replace(spec(2, 2, 2), width=32, depth=1) for spec in (decoder_spec, encoder_spec)))
    pace = Pace(4000, 128, 250, 4)
    run = compile_round(objectives.column_objective(networks, WarmstartSettings(learning_rate=3e-3), pace), 250)
    fresh = state = start_state(initial_autoencoder(networks.decoder, networks.encoder, 0))
    for _ in range(pace.n_rounds):
        state, losses = run(state, objectives.sort_cells(*rows), tf.constant(3))
        assert int(losses["first_bad_step"]) == -1
    row_class = np.arange(400) % 2
    x = MEANS[row_class] + SDS[row_class] * np.random.default_rng(1).standard_normal((400, 2))
    y = np.eye(2, dtype=np.float32)[row_class]
    product = norm.logpdf(x, MEANS[row_class], SDS[row_class]).sum(axis=1).mean()

    def mean_score(state: State, y: np.ndarray) -> float:
        return mean_log_density(decoder_of(networks.decoder, state.average), x, 2, y)

    assert abs(mean_score(state, y) - product) < 0.1
    # The encoder's entropy nears that of the blur, -0.4; that of the prior is 2.8.
    assert losses["encoder_negative_log_likelihood"] < 1.0
    # Negative controls: the wrong class, and a model that has learnt nothing, are far off.
    assert mean_score(state, y[:, ::-1]) < product - 0.5
    assert mean_score(fresh, y) < product - 0.5


def test_scores_are_the_quantiles_of_each_class_and_one_without_rows_does_no_harm(rows: tuple) -> None:
    cells = objectives.sort_cells(*rows)
    for row_class, (first, n) in enumerate(zip(cells.first_row.numpy(), cells.n_rows.numpy(), strict=True)):
        own = slice(first, first + n)
        assert set(cells.row_class.numpy()[own]) == {row_class}
        order = np.argsort(cells.x.numpy()[own, 1])
        expected = ndtri((np.arange(n) + 0.5) / n)
        np.testing.assert_allclose(cells.scores.numpy()[own, 1][order], expected, atol=1e-6)
    few = objectives.sort_cells(np.arange(6.0, dtype=np.float32).reshape(3, 2), np.eye(2, dtype=np.float32)[[1, 1, 1]])
    assert few.n_rows.numpy().tolist() == [0, 3]
    assert np.isfinite(few.scores.numpy()).all()


def test_cells_come_from_their_own_column_and_class(rows: tuple) -> None:
    cells = objectives.sort_cells(*rows)
    x, y, z = objectives.draw_cells(cells, 500, 2, tf.constant([1, 2]), blur=0.0)
    assert y is not None
    row_class = y.numpy().argmax(axis=1)
    for column in range(2):
        for which in range(2):
            known = cells.x.numpy()[cells.row_class.numpy() == which, column]
            assert np.isin(x.numpy()[row_class == which, column], known).all()
    # The columns of a drawn row are independent; within the file they are equal.
    assert abs(np.corrcoef(z.numpy().T)[0, 1]) < 0.2
    assert np.corrcoef(cells.scores.numpy().T)[0, 1] > 0.99


# Images: statistics of batch normalisation follow the batches in the warm start, and rest in refinement.

IMAGE_NETWORKS = Networks(
    *(replace(spec(2, (4, 4, 1), 2), width=2) for spec in (coders.image_decoder_spec, coders.image_encoder_spec))
)
IMAGE_PACE = Pace(16, 8, 2, 1, 1)
OBJECTIVES: dict[str, Callable[[], Objective]] = {
    "elbo": lambda: objectives.evidence_objective(
        IMAGE_NETWORKS, WarmstartSettings(weight_decay=0.5, learning_rate=1e-3), IMAGE_PACE
    ),
    "egm": lambda: adversarial_objective(
        IMAGE_NETWORKS, WarmstartSettings(objective="egm", seed=1, learning_rate=1e-3), IMAGE_PACE
    ),
    "importance": lambda: objectives.importance_objective(
        IMAGE_NETWORKS, RefineSettings(draws=2, weight_decay=0.5, learning_rate=1e-3), IMAGE_PACE
    ),
}


@pytest.mark.parametrize("name", OBJECTIVES)
def test_all_weights_of_images_are_trained_and_statistics_in_the_warm_start_alone(
    name: str, request: pytest.FixtureRequest
) -> None:
    if name != "elbo":  # one objective shows that convolutions can be compiled
        request.getfixturevalue("eager")
    objective = OBJECTIVES[name]()
    x = tf.constant(generator(1, "images").normal(size=(16, 16)).astype(np.float32))
    start = objective.start(initial_autoencoder(IMAGE_NETWORKS.decoder, IMAGE_NETWORKS.encoder, 0), None)
    state, losses = compile_round(objective, 2)(start, (x, tf.one_hot(np.arange(16) % 2, 2)), tf.constant(1))
    assert int(losses["first_bad_step"]) == -1
    still = {name for name, value in state.parameters.items() if np.array_equal(value, start.parameters[name])}
    statistics = {name for name in start.parameters if is_statistic(name)}
    assert len(statistics) == 2 * 3 * 2
    assert still & statistics == (statistics if name == "importance" else set())
    # EGM does not use the encoder's second head; the bias before a normalised layer has no gradient.
    unused = {"encoder/raw_sd/kernel"} if name == "egm" else set()
    assert {name for name in still - statistics if not name.endswith("bias")} == unused
    if name == "egm":
        assert not np.array_equal(*(part.extra.parameters["discriminator_x/conv1/kernel"] for part in (start, state)))


def test_statistics_go_a_hundredth_of_the_way_and_never_where_the_optimizer_wants_them() -> None:
    before = {"a/moving_mean": tf.constant([1.0]), "b/moving_mean": tf.constant([2.0]), "w": tf.constant([3.0])}
    moved = {name: value + 10.0 for name, value in before.items()}
    after = coders.with_statistics(moved, before, {"a/moving_mean": tf.constant([2.0])})
    found = {name: round(float(value[0]), 6) for name, value in after.items()}
    assert found == {"a/moving_mean": 1.01, "b/moving_mean": 2.0, "w": 13.0}
