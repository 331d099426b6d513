"""The warm start's loop: its steps are the paper's, its seeds are addresses, and what it generates nears the data."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from same_bits import check_bits

from bayesnde_cli.model import backend, coders
from bayesnde_cli.model import networks as networks_module
from bayesnde_cli.model.coders import Networks, decoder_of, initial_autoencoder, part_of
from bayesnde_cli.model.networks import VARIANCE_FLOOR, DiscriminatorSpec
from bayesnde_cli.rng import derive_seed
from bayesnde_cli.settings.stage_settings import WarmstartSettings
from bayesnde_cli.training import adversarial, losses
from bayesnde_cli.training.adversarial import TERMS, Critics, adversarial_objective
from bayesnde_cli.training.loop import compile_round
from bayesnde_cli.training.losses import joint_mmd, marginal_mmd, sliced_wasserstein, slicing_directions
from bayesnde_cli.training.objectives import AdamState, Objective, Optimizer, Pace, State, gradients_of, start_adam

N_ROWS, P, BATCH, N_STEPS = 2000, 2, 64, 2
NO_TERM = {f"{name}_weight": 0.0 for name in TERMS}
EVERY_TERM = {
    "adversarial_x": 1.0,
    "adversarial_z": 0.9,
    "reconstruction_x": 3.0,
    "reconstruction_z": 1.1,
    "correlation": 0.3,
    "marginal_mmd": 10.0,
    "joint_mmd": 5.0,
    "sliced_wasserstein": 20.0,
    "log_variance": 0.01,
    "squared_variance": 0.1,
}
SLICING = slicing_directions(P, seed=derive_seed(7, "warmstart", "slicing"))
SETTINGS = WarmstartSettings(
    objective="egm",
    seed=7,
    learning_rate=2e-3,
    average_epochs=4.0 * BATCH / N_ROWS,
).model_copy(update={f"{name}_weight": weight for name, weight in EVERY_TERM.items()})
PACE = Pace(N_ROWS, BATCH, N_STEPS, 1)


def _specs(n_classes: int = 0) -> tuple[Networks, Critics]:
    small = (replace(spec(2, P, n_classes), width=32, depth=1) for spec in (coders.decoder_spec, coders.encoder_spec))
    return Networks(*small), Critics(*(DiscriminatorSpec(n, n_classes, (32,)) for n in (P, 2)))


NETWORKS, CRITICS = _specs()
DECODER, ENCODER = NETWORKS.decoder, NETWORKS.encoder
SEED = tf.constant(5)
OBJECTIVE = adversarial_objective(NETWORKS, SETTINGS, PACE, CRITICS)
RUN = compile_round(OBJECTIVE, N_STEPS)  # compiled once, at its first call


def start(seed: int, networks: Networks = NETWORKS, objective: Objective = OBJECTIVE) -> State:
    return objective.start(initial_autoencoder(networks.decoder, networks.encoder, seed), None)


def _rounds(state: State, x: tf.Tensor, n_rounds: int) -> tuple[State, dict[str, np.ndarray]]:
    for _ in range(n_rounds):
        state, found = RUN(state, (x, None), SEED)
    return state, {name: loss.numpy() for name, loss in found.items()}


@pytest.fixture(scope="module")
def x() -> tf.Tensor:
    """Rows of a normal distribution with correlation 0.8, away from the origin."""
    rng = np.random.default_rng(0)
    return tf.constant(
        [2.0, -1.0] + rng.standard_normal((N_ROWS, P)) @ np.linalg.cholesky([[1.0, 0.8], [0.8, 1.0]]).T, tf.float32
    )


# Random numbers in a compiled function are not those outside of one: the transcription's are compiled, too.
@tf.function(jit_compile=True)
def _order(seed: tf.Tensor) -> tf.Tensor:
    return tf.argsort(backend.uniform([N_ROWS], seed))


@tf.function(jit_compile=True)
def _noise(seed: tf.Tensor) -> tf.Tensor:
    return backend.normal([BATCH, 3 * P], seed)


def _draws(round_index: int) -> tuple[tf.Tensor, list[list[tf.Tensor]]]:
    """For each batch of a round: its rows, and the noise of prior, fake rows and rebuilt rows."""
    row_seed, noise_seed = tf.unstack(tf.random.split(tf.stack([SEED, round_index]), 2))
    noise = [tf.split(_noise(seed), 3, axis=1) for seed in tf.random.split(noise_seed, 2 * N_STEPS)]
    return tf.reshape(_order(row_seed)[: 2 * N_STEPS * BATCH], [2 * N_STEPS, BATCH]), noise


def _transcribed_round(x: tf.Tensor) -> tuple[dict, dict, dict, AdamState, dict[str, float]]:
    """The first round, step by step, as appendix S2 says it: weights, discriminators, average, Adam and losses."""
    optimizer, rate = Optimizer(betas=(0.5, 0.9), max_norm=None), SETTINGS.learning_rate
    state = start(0)
    weights, judges, average = state.parameters, state.extra.parameters, dict(state.parameters)
    adam, judges_adam = start_adam(weights), start_adam(judges)
    rows, noise = _draws(0)
    totals: dict[str, float] = {}
    for step in range(N_STEPS):
        real, (z, e_fake, _) = tf.gather(x, rows[2 * step]), noise[2 * step]
        with tf.GradientTape() as tape:
            tape.watch(judges)
            parts = {
                "discriminator_x": losses.discriminator_loss(
                    _score(judges, "x", real), _score(judges, "x", _generated(weights, z, e_fake)[0])
                ),
                "discriminator_z": losses.discriminator_loss(
                    _score(judges, "z", z), _score(judges, "z", _encoded(weights, real))
                ),
            }
            total = parts["discriminator_x"] + parts["discriminator_z"]
        judges, judges_adam = optimizer.adam(judges, tape.gradient(total, judges), judges_adam, rate)

        real, (z, e_fake, e_rebuilt) = tf.gather(x, rows[2 * step + 1]), noise[2 * step + 1]
        with tf.GradientTape() as tape:
            tape.watch(weights)
            fake, variance = _generated(weights, z, e_fake)
            code = _encoded(weights, real)
            rebuilt, _ = _generated(weights, code, e_rebuilt)
            terms = {
                "adversarial_x": losses.adversarial_loss(_score(judges, "x", fake)),
                "adversarial_z": losses.adversarial_loss(_score(judges, "z", code)),
                "reconstruction_x": losses.reconstruction_loss(real, rebuilt, n_columns=P),
                "reconstruction_z": losses.reconstruction_loss(z, _encoded(weights, fake), n_columns=P),
                "correlation": losses.correlation_loss(real, rebuilt),
                "marginal_mmd": marginal_mmd(real, fake),
                "joint_mmd": joint_mmd(real, fake),
                "sliced_wasserstein": sliced_wasserstein(real, fake, SLICING),
                "log_variance": losses.log_variance_loss(variance),
                "squared_variance": losses.squared_variance_loss(variance),
            }
            total = sum(EVERY_TERM[name] * term for name, term in terms.items())
        weights, adam = optimizer.adam(weights, gradients_of(tape, total, weights), adam, rate)
        average = {name: average[name] + (weights[name] - average[name]) / 4.0 for name in weights}
        for name, value in (parts | terms | {"loss": total}).items():
            totals[name] = totals.get(name, 0.0) + float(value) / N_STEPS
    return weights, judges, average, adam, totals


def _generated(weights: dict, z: tf.Tensor, noise: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    mean, raw = networks_module.apply(DECODER, part_of(weights, "decoder"), z)
    variance = tf.math.softplus(raw) + VARIANCE_FLOOR
    return mean + tf.sqrt(variance) * noise, variance


def _encoded(weights: dict, x: tf.Tensor) -> tf.Tensor:
    return networks_module.apply(ENCODER, part_of(weights, "encoder"), x)[0]


def _score(judges: dict, space: str, rows: tf.Tensor) -> tf.Tensor:
    spec = getattr(CRITICS, space)
    return coders.discriminate(spec, part_of(judges, f"discriminator_{space}"), rows)


@pytest.mark.slow
def test_a_round_is_the_paper_s_steps_one_after_another(x: tf.Tensor) -> None:
    weights, judges, average, adam, totals = _transcribed_round(x)
    state, found = _rounds(start(0), x, 1)
    assert int(state.round) == 1
    assert found.keys() == totals.keys() | {"first_bad_step"}
    assert found["first_bad_step"] == -1
    for name, total in totals.items():
        np.testing.assert_allclose(found[name], total, rtol=1e-4, err_msg=name)
    for ours, expected in ((state.parameters, weights), (state.extra.parameters, judges), (state.average, average)):
        assert ours.keys() == expected.keys()
        for name in ours:
            np.testing.assert_allclose(ours[name], expected[name], atol=1e-5, err_msg=name)
    for name, first in state.optimizer.first.items():
        np.testing.assert_allclose(first, adam.first[name], atol=1e-5 * np.abs(first).max() + 1e-12, err_msg=name)
    # The tolerance is far below what a step moves.
    moved = state.parameters["decoder/mean/kernel"] - start(0).parameters["decoder/mean/kernel"]
    assert np.min(np.abs(moved)) > 1e-4
    # No term uses the encoder's second head.
    before = start(0).parameters
    still = {name for name in before if np.array_equal(before[name], state.parameters[name])}
    assert still == {"encoder/raw_sd/kernel", "encoder/raw_sd/bias"}


def test_rounds_from_the_same_state_give_the_same_bits_and_other_seeds_and_rounds_do_not(x: tf.Tensor) -> None:
    half, found = check_bits(RUN, start(1), (x, None), SEED)
    others = [RUN(half, (x, None), SEED + 1)[1], RUN(half._replace(round=tf.constant(0)), (x, None), SEED)[1]]
    for name in ("discriminator_x", "reconstruction_z", "loss"):
        assert len({float(losses_of[name]) for losses_of in (found, *others)}) == 3


def test_batches_take_every_row_once_before_any_row_twice() -> None:
    batches = adversarial.row_batches(23, 5, n_batches=10, seed=tf.constant([1, 2])).numpy()
    assert batches.shape == (12, 5)
    for shuffle in batches.reshape(3, 20):  # four whole batches; three rows wait for the next shuffle
        assert len(set(shuffle)) == 20
        assert set(shuffle) <= set(range(23))
    assert len({tuple(shuffle) for shuffle in batches.reshape(3, 20)}) == 3


def _not_finite(found: dict[str, np.ndarray]) -> set[str]:
    return {name for name, loss in found.items() if not np.isfinite(loss)}


def test_a_bad_row_is_reported_at_its_step_with_the_terms_that_saw_it(x: tf.Tensor) -> None:
    rows, _ = _draws(0)
    seen_by_autoencoder = {"adversarial_z", "reconstruction_x", "correlation", "marginal_mmd", "joint_mmd"}
    for batch, step, expected in (
        (1, 0, seen_by_autoencoder | {"sliced_wasserstein", "loss"}),
        (2, 1, {"discriminator_x", "discriminator_z"}),
    ):
        spoilt = x.numpy()
        spoilt[rows[batch, 0], 0] = np.nan
        _, found = _rounds(start(0), tf.constant(spoilt), 1)
        assert found["first_bad_step"] == step
        assert expected <= _not_finite(found)
        assert batch == 2 or expected == _not_finite(found)
    state = start(0)
    # The variance is then 1e25: its square is beyond float32, all else is not.
    state.parameters["decoder/raw_variance/bias"] = tf.fill([P], 1e25)
    _, found = _rounds(state, x, 1)
    assert found["first_bad_step"] == 0
    assert _not_finite(found) == {"squared_variance", "loss"}


# The functions that a term alone needs, and how often it needs decoder and encoder: a discriminator needs one, too.
NEEDS = {
    "adversarial_x": ({"adversarial_loss", "discriminator_loss"}, (2, 0)),
    "adversarial_z": ({"adversarial_loss", "discriminator_loss"}, (0, 2)),
    "reconstruction_z": ({"reconstruction_loss"}, (1, 1)),
    "sliced_wasserstein": ({"sliced_wasserstein", "slicing_directions"}, (1, 0)),
}
FUNCTIONS = ("marginal_mmd", "joint_mmd", "correlation_loss", "log_variance_loss", "squared_variance_loss")


@pytest.mark.parametrize("term", NEEDS)
def test_a_term_of_weight_0_is_not_computed(term: str, x: tf.Tensor, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []

    def watch(place: object, name: str, label: str) -> None:
        original = getattr(place, name)

        def call(*arguments: Any, **keywords: Any) -> Any:
            calls.append(label)
            return original(*arguments, **keywords)

        monkeypatch.setattr(place, name, call)

    for name in {*FUNCTIONS, *(name for names, _ in NEEDS.values() for name in names)}:
        watch(losses, name, name)
    for network in (coders.Decoder, coders.Encoder):
        watch(network, "__call__", network.__name__)
    settings = SETTINGS.model_copy(update=NO_TERM | {f"{term}_weight": 1.0})
    run: Any = compile_round(adversarial_objective(NETWORKS, settings, PACE, CRITICS), N_STEPS)
    run.get_concrete_function(start(0), (x, None), SEED)  # traced, not compiled
    assert set(calls) - {"Decoder", "Encoder"} == NEEDS[term][0]
    assert (calls.count("Decoder"), calls.count("Encoder")) == NEEDS[term][1]


def _generated_rows(spec: networks_module.NetworkSpec, weights: dict, y: tf.Tensor | None = None) -> np.ndarray:
    rng = np.random.default_rng(1)
    z, noise = (tf.constant(rng.standard_normal((N_ROWS, P)), tf.float32) for _ in range(2))
    mean, variance = decoder_of(spec, weights)(z, y)
    return (mean + tf.sqrt(variance) * noise).numpy()


def test_what_is_generated_comes_near_the_data(x: tf.Tensor) -> None:
    def distance(weights: dict) -> float:
        return float(sliced_wasserstein(x, _generated_rows(DECODER, weights), slicing_directions(P, seed=0)))

    state = start(0)
    assert distance(state.average) > 1.0
    state, _ = _rounds(state, x, 250)
    # In units of the pooled variance; two samples of the data's own distribution are about 0.002 apart.
    assert distance(state.average) < 0.03
    generated = _generated_rows(DECODER, state.average)
    np.testing.assert_allclose(generated.mean(axis=0), [2.0, -1.0], atol=0.25)
    np.testing.assert_allclose(np.cov(generated.T), [[1.0, 0.8], [0.8, 1.0]], atol=0.25)


@pytest.mark.slow
def test_a_condition_is_learnt_while_an_idle_discriminator_rests() -> None:
    rng = np.random.default_rng(0)
    centres = np.array([[-1.5, 1.0], [1.5, -1.0]])
    label = rng.integers(0, 2, N_ROWS)
    x = tf.constant(centres[label] + 0.3 * rng.standard_normal((N_ROWS, P)), tf.float32)
    networks, critics = _specs(2)
    weights = NO_TERM | {"adversarial_x_weight": 1.0, "reconstruction_x_weight": 1.0}
    settings = WarmstartSettings(objective="egm", seed=0, learning_rate=2e-3, average_epochs=0.0).model_copy(
        update=weights
    )
    objective = adversarial_objective(networks, settings, Pace(N_ROWS, BATCH, 50, 8), critics)
    run = compile_round(objective, 50)
    state = start(0, networks, objective)

    def means_by_class(state: State) -> np.ndarray:
        given = [tf.one_hot(tf.fill([N_ROWS], index), 2) for index in range(2)]
        return np.stack([_generated_rows(networks.decoder, state.average, y).mean(axis=0) for y in given])

    assert np.abs(means_by_class(state) - centres).max() > 1.0
    for _ in range(8):
        state, found = run(state, (x, tf.one_hot(label, 2)), SEED)
    np.testing.assert_allclose(means_by_class(state), centres, atol=0.4)

    assert found.keys() == {"discriminator_x", "adversarial_x", "reconstruction_x", "loss", "first_bad_step"}
    assert found["first_bad_step"] == -1
    for name, value in start(0, networks, objective).extra.parameters.items():
        assert np.array_equal(value, state.extra.parameters[name]) == name.startswith("discriminator_z/")
    # No memory was asked for: the average is the weights.
    assert all(np.array_equal(value, state.average[name]) for name, value in state.parameters.items())
    # Weights that are not finite count as bad, though no loss has met them.
    state.extra.parameters["discriminator_z/output/bias"] = tf.constant([np.nan])
    _, found = run(state, (x, tf.one_hot(label, 2)), SEED)
    assert np.isfinite(found["loss"])
    assert found["first_bad_step"] == 49
