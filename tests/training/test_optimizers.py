"""Adam, AdamW, schedules, clipping and averaging against textbook loops and Keras, also inside a compiled loop."""

import numpy as np
import pytest
import tensorflow as tf

from bayesnde_cli.rng import generator
from bayesnde_cli.training.optimizers import (
    SCHEDULES,
    AdamState,
    adam_start,
    adam_step,
    averaged,
    clipped,
    cosine_schedule,
    decay_schedule,
)

N_STEPS = 20
PAPER_WARM_START = {"learning_rate": 1e-3, "beta_1": 0.5, "beta_2": 0.9, "epsilon": 1e-7}
PAPER_REFINEMENT = {"learning_rate": 5e-3, "beta_1": 0.9, "beta_2": 0.99, "epsilon": 1e-7}
NO_MOMENTUM = {"learning_rate": 1e-2, "beta_1": 0.0, "beta_2": 0.999, "epsilon": 1e-8}


def _parameters() -> dict[str, np.ndarray]:
    rng = generator(0, "parameters")
    return {"dense/kernel": rng.standard_normal((4, 3)), "dense/bias": rng.standard_normal(3)}


def _gradients() -> dict[str, np.ndarray]:
    """A gradient for each step, of very unequal sizes."""
    rng = generator(0, "gradients")
    return {
        name: rng.standard_normal((N_STEPS, *value.shape)) * 10.0 ** rng.uniform(-3, 3, value.shape)
        for name, value in _parameters().items()
    }


def _tensors(arrays: dict[str, np.ndarray], dtype: tf.DType = tf.float32) -> dict[str, tf.Tensor]:
    return {name: tf.constant(value, dtype) for name, value in arrays.items()}


def _textbook(settings: dict[str, float], weight_decay: float) -> dict[str, np.ndarray]:
    """Kingma and Ba (2015), algorithm 1, with the decay of Loshchilov and Hutter (2019), algorithm 2."""
    rate, beta_1, beta_2, epsilon = settings.values()
    found = {}
    for name, theta in _parameters().items():
        m = v = 0.0
        for t, g in enumerate(_gradients()[name], start=1):
            m = beta_1 * m + (1 - beta_1) * g
            v = beta_2 * v + (1 - beta_2) * g**2
            m_hat, v_hat = m / (1 - beta_1**t), v / (1 - beta_2**t)
            theta = theta - rate * m_hat / (np.sqrt(v_hat) + epsilon) - rate * weight_decay * theta
        found[name] = theta
    return found


def _ours(settings: dict[str, float], weight_decay: float, dtype: tf.DType = tf.float32) -> dict[str, tf.Tensor]:
    parameters = _tensors(_parameters(), dtype)
    gradients = _tensors(_gradients(), dtype)
    state = adam_start(parameters)
    for t in range(N_STEPS):
        step = {name: value[t] for name, value in gradients.items()}
        parameters, state = adam_step(step, state, parameters, **settings, weight_decay=weight_decay)
    assert int(state.step) == N_STEPS
    return parameters


@pytest.mark.parametrize("weight_decay", [0.0, 0.3])
@pytest.mark.parametrize("settings", [PAPER_WARM_START, PAPER_REFINEMENT, NO_MOMENTUM])
def test_adam_is_the_textbook_s(settings: dict[str, float], weight_decay: float) -> None:
    expected = _textbook(settings, weight_decay)
    for dtype, rtol in ((tf.float64, 1e-12), (tf.float32, 2e-5)):
        found = _ours(settings, weight_decay, dtype)
        for name, value in expected.items():
            np.testing.assert_allclose(found[name], value, rtol=rtol)
            assert np.abs(value - _parameters()[name]).min() > 1e-4


@pytest.mark.parametrize("weight_decay", [0.0, 0.3])
def test_adam_is_that_of_keras(weight_decay: float) -> None:
    kind = tf.keras.optimizers.AdamW if weight_decay else tf.keras.optimizers.Adam
    extra = {"weight_decay": weight_decay} if weight_decay else {}
    optimizer = kind(**PAPER_REFINEMENT, **extra)
    variables = {name: tf.Variable(value, dtype=tf.float32) for name, value in _parameters().items()}
    gradients = _tensors(_gradients())
    for t in range(N_STEPS):
        optimizer.apply_gradients((gradients[name][t], variable) for name, variable in variables.items())
    found = _ours(PAPER_REFINEMENT, weight_decay)
    for name, variable in variables.items():
        # Keras adds epsilon before the bias correction, which shortens the first steps of the smallest gradient (1e-3)
        # by epsilon / sqrt(1 - beta_2) / 1e-3 = 1e-3 of the learning rate; all 20 steps together move by 0.1.
        np.testing.assert_allclose(found[name], variable, atol=5e-5)


def test_the_step_runs_inside_a_compiled_loop_and_gives_the_same() -> None:
    gradients = _tensors(_gradients())

    @tf.function(jit_compile=True)
    def all_steps(parameters: dict[str, tf.Tensor]) -> tuple[dict[str, tf.Tensor], AdamState, dict[str, tf.Tensor]]:
        def body(t: tf.Tensor, parameters: dict, state: AdamState, average: dict) -> tuple:
            step, _ = clipped({name: value[t] for name, value in gradients.items()}, max_norm=1e9)
            rate = PAPER_REFINEMENT["learning_rate"] * SCHEDULES["constant"](t, N_STEPS)
            parameters, state = adam_step(step, state, parameters, **{**PAPER_REFINEMENT, "learning_rate": rate})
            return t + 1, parameters, state, averaged(average, parameters, decay=0.9)

        start = (tf.constant(0), parameters, adam_start(parameters), parameters)
        return tf.while_loop(lambda t, *_: t < N_STEPS, body, start)[1:]

    parameters, state, average = all_steps(_tensors(_parameters()))
    assert int(state.step) == N_STEPS
    for name, value in _ours(PAPER_REFINEMENT, 0.0).items():
        np.testing.assert_allclose(parameters[name], value, rtol=1e-5)
        assert (average[name].numpy() != parameters[name].numpy()).all()


def test_rows_may_have_steps_of_their_own() -> None:
    """A row visited for the first time moves by the learning rate, however often the others were visited."""
    z = {"z": tf.zeros([3, 2])}
    state = AdamState(step=tf.constant([[0], [5], [50]]), first=z, second=z)
    moved, after = adam_step({"z": tf.fill([3, 2], 1e-3)}, state, z, **PAPER_REFINEMENT)
    np.testing.assert_allclose(moved["z"][0], [-5e-3, -5e-3], rtol=1e-3)
    assert (np.abs(moved["z"][1:]) < 4e-3).all()
    np.testing.assert_array_equal(after.step, [[1], [6], [51]])


def test_adam_finds_the_minimum_of_a_parabola() -> None:
    parameters = {"x": tf.constant([3.0, -10.0])}
    state = adam_start(parameters)
    for t in range(200):
        rate = cosine_schedule(tf.constant(t), 200)
        gradients = {"x": 2.0 * (parameters["x"] - 1.0)}
        parameters, state = adam_step(gradients, state, parameters, **{**PAPER_REFINEMENT, "learning_rate": rate})
    np.testing.assert_allclose(parameters["x"], [1.0, 1.0], atol=1e-2)


def test_schedules_are_their_formulas() -> None:
    t = tf.range(0, 120, 10)
    np.testing.assert_array_equal(SCHEDULES["constant"](t, 100), np.ones(12))
    np.testing.assert_allclose(decay_schedule(t, 100), (1 + np.arange(0, 120, 10) / 10) ** -0.6, rtol=1e-6)
    expected = 0.5 * (1 + np.cos(np.pi * np.minimum(np.arange(0, 120, 10) / 100, 1)))
    np.testing.assert_allclose(cosine_schedule(t, 100), expected, atol=1e-6)


def test_clipping_shrinks_all_gradients_together_and_only_when_they_are_too_long() -> None:
    gradients = {"a": tf.constant([3.0]), "b": tf.constant([[0.0, 4.0]])}
    short, norm = clipped(gradients, max_norm=1.0)
    assert float(norm) == 5.0
    np.testing.assert_allclose(short["a"], [0.6], rtol=1e-6)
    np.testing.assert_allclose(short["b"], [[0.0, 0.8]], rtol=1e-6)
    same, _ = clipped(gradients, max_norm=10.0)
    np.testing.assert_array_equal(same["b"], gradients["b"])
    nil, _ = clipped({"a": tf.zeros([2])}, max_norm=1.0)
    np.testing.assert_array_equal(nil["a"], [0.0, 0.0])


def test_the_average_is_a_geometric_mixture_of_the_past() -> None:
    past = [{"w": tf.constant(float(t))} for t in range(6)]
    average = past[0]
    for parameters in past[1:]:
        average = averaged(average, parameters, decay=0.8)
    expected = sum(0.2 * 0.8 ** (5 - t) * t for t in range(1, 6))
    np.testing.assert_allclose(average["w"], expected, rtol=1e-6)
