"""The warm start's loop: its steps are the paper's, its seeds are addresses, and what it generates nears the data."""

from dataclasses import fields, replace

import numpy as np
import pytest
import tensorflow as tf

from bayesnde_cli.model import discriminator, networks, random_numbers
from bayesnde_cli.model.decoder import VARIANCE_FLOOR, Decoder, decoder_spec
from bayesnde_cli.model.discriminator import DiscriminatorSpec
from bayesnde_cli.model.encoder import Encoder, encoder_spec
from bayesnde_cli.training import egm_loop, losses
from bayesnde_cli.training.egm_loop import EgmSettings, EgmState, EgmWeights, round_runner, start
from bayesnde_cli.training.joint_parameters import decoder_of, part_of
from bayesnde_cli.training.mmd import joint_mmd, marginal_mmd
from bayesnde_cli.training.sliced_wasserstein import sliced_wasserstein, slicing_directions

N_ROWS, P, BATCH, N_STEPS = 2000, 2, 64, 2
NO_TERM = {field.name: 0.0 for field in fields(EgmWeights)}
EVERY_TERM = EgmWeights(
    adversarial_x=1.0, adversarial_z=0.9, reconstruction_x=3.0, reconstruction_z=1.1, correlation=0.3,
    marginal_mmd=10.0, joint_mmd=5.0, sliced_wasserstein=20.0, log_variance=0.01, squared_variance=0.1,
)  # fmt: skip
SETTINGS = EgmSettings(
    EVERY_TERM, batch_rows=BATCH, steps_per_round=N_STEPS, learning_rate=2e-3, average_steps=4.0, slicing_seed=7
)


def _specs(n_classes: int = 0) -> tuple:
    small = (replace(spec(2, P, n_classes), width=32, depth=1) for spec in (decoder_spec, encoder_spec))
    return *small, DiscriminatorSpec(P, n_classes, (32,)), DiscriminatorSpec(2, n_classes, (32,))


DECODER, ENCODER, DISCRIMINATOR_X, DISCRIMINATOR_Z = SPECS = _specs()
SEED = tf.constant(5)
RUN = round_runner(*SPECS, SETTINGS)  # compiled once, at its first call


def _rounds(state: EgmState, x: tf.Tensor, n_rounds: int) -> tuple[EgmState, dict[str, np.ndarray]]:
    for _ in range(n_rounds):
        state, found = RUN(state, x, None, SEED)
    return state, {name: loss.numpy() for name, loss in found.items()}


def _leaves(state: EgmState) -> list[np.ndarray]:
    return [leaf.numpy() for leaf in tf.nest.flatten(state)]


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
    return tf.argsort(random_numbers.uniform([N_ROWS], seed))


@tf.function(jit_compile=True)
def _noise(seed: tf.Tensor) -> tf.Tensor:
    return random_numbers.normal([BATCH, 3 * P], seed)


def _draws(round_index: int) -> tuple[tf.Tensor, list[list[tf.Tensor]]]:
    """For each batch of a round: its rows, and the noise of prior, fake rows and rebuilt rows."""
    row_seed, noise_seed = tf.unstack(tf.random.split(tf.stack([SEED, round_index]), 2))
    noise = [tf.split(_noise(seed), 3, axis=1) for seed in tf.random.split(noise_seed, 2 * N_STEPS)]
    return tf.reshape(_order(row_seed)[: 2 * N_STEPS * BATCH], [2 * N_STEPS, BATCH]), noise


class _Adam:
    """Kingma and Ba's algorithm 1 with the paper's betas, in float64."""

    def __init__(self) -> None:
        self.t, self.m, self.v = 0, {}, {}

    def step(self, weights: dict[str, tf.Tensor], gradients: dict[str, tf.Tensor | None]) -> dict[str, tf.Tensor]:
        self.t += 1
        moved = {}
        for name, weight in weights.items():
            g = np.zeros(weight.shape) if gradients[name] is None else gradients[name].numpy().astype(float)
            self.m[name] = 0.5 * self.m.get(name, 0.0) + 0.5 * g
            self.v[name] = 0.9 * self.v.get(name, 0.0) + 0.1 * g**2
            m, v = self.m[name] / (1 - 0.5**self.t), self.v[name] / (1 - 0.9**self.t)
            moved[name] = tf.constant(weight - SETTINGS.learning_rate * m / (np.sqrt(v) + 1e-8), tf.float32)
        return moved


def _transcribed_round(x: tf.Tensor) -> tuple[dict, dict, dict, _Adam, dict[str, float]]:
    """The first round, step by step, as appendix S2 says it: weights, discriminators, average, Adam and losses."""
    state = start(*SPECS, 0)
    weights, judges, average = state.parameters, state.discriminators, dict(state.parameters)
    adam, judges_adam = _Adam(), _Adam()
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
        judges = judges_adam.step(judges, tape.gradient(total, judges))

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
                "sliced_wasserstein": sliced_wasserstein(real, fake, slicing_directions(P, seed=7)),
                "log_variance": losses.log_variance_loss(variance),
                "squared_variance": losses.squared_variance_loss(variance),
            }
            total = sum(getattr(EVERY_TERM, name) * term for name, term in terms.items())
        weights = adam.step(weights, tape.gradient(total, weights))
        average = {name: average[name] + (weights[name] - average[name]) / 4.0 for name in weights}
        for name, value in (parts | terms | {"loss": total}).items():
            totals[name] = totals.get(name, 0.0) + float(value) / N_STEPS
    return weights, judges, average, adam, totals


def _generated(weights: dict, z: tf.Tensor, noise: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    mean, raw = networks.apply(DECODER, part_of(weights, "decoder"), z)
    variance = tf.math.softplus(raw) + VARIANCE_FLOOR
    return mean + tf.sqrt(variance) * noise, variance


def _encoded(weights: dict, x: tf.Tensor) -> tf.Tensor:
    return networks.apply(ENCODER, part_of(weights, "encoder"), x)[0]


def _score(judges: dict, space: str, rows: tf.Tensor) -> tf.Tensor:
    spec = {"x": DISCRIMINATOR_X, "z": DISCRIMINATOR_Z}[space]
    return discriminator.apply(spec, part_of(judges, f"discriminator_{space}"), rows)


def test_a_round_is_the_paper_s_steps_one_after_another(x: tf.Tensor) -> None:
    weights, judges, average, adam, totals = _transcribed_round(x)
    state, found = _rounds(start(*SPECS, 0), x, 1)
    assert int(state.round) == 1
    assert found.keys() == totals.keys() | {"first_bad_step"}
    assert found["first_bad_step"] == -1
    for name, total in totals.items():
        np.testing.assert_allclose(found[name], total, rtol=1e-4, err_msg=name)
    for ours, expected in ((state.parameters, weights), (state.discriminators, judges), (state.average, average)):
        assert ours.keys() == expected.keys()
        for name in ours:
            np.testing.assert_allclose(ours[name], expected[name], atol=1e-5, err_msg=name)
    for name, first in state.optimizer.first.items():
        np.testing.assert_allclose(first, adam.m[name], atol=1e-5 * np.abs(adam.m[name]).max() + 1e-12, err_msg=name)
    # The tolerance is far below what a step moves.
    moved = state.parameters["decoder/mean/kernel"] - start(*SPECS, 0).parameters["decoder/mean/kernel"]
    assert np.min(np.abs(moved)) > 1e-4


def test_the_head_that_no_term_uses_stays_as_it_was(x: tf.Tensor) -> None:
    before = start(*SPECS, 0).parameters
    state, _ = _rounds(start(*SPECS, 0), x, 1)
    still = {name for name in before if np.array_equal(before[name], state.parameters[name])}
    assert still == {"encoder/raw_sd/kernel", "encoder/raw_sd/bias"}


def test_rounds_from_the_same_state_give_the_same_bits(x: tf.Tensor) -> None:
    whole, found = _rounds(start(*SPECS, 1), x, 3)
    half, _ = _rounds(start(*SPECS, 1), x, 2)
    # As if saved and read back: through NumPy, leaf by leaf.
    restored = tf.nest.pack_sequence_as(start(*SPECS, 2), [tf.constant(leaf) for leaf in _leaves(half)])
    resumed, found_again = _rounds(restored, x, 1)
    assert found == found_again
    for one, other in zip(_leaves(whole), _leaves(resumed), strict=True):
        assert np.array_equal(one, other)


def test_another_seed_and_another_round_have_other_random_numbers(x: tf.Tensor) -> None:
    state = start(*SPECS, 1)
    found = {
        "first": RUN(state, x, None, SEED)[1],
        "other seed": RUN(state, x, None, SEED + 1)[1],
        "other round": RUN(state._replace(round=tf.constant(1)), x, None, SEED)[1],
    }
    for name in ("discriminator_x", "reconstruction_z", "loss"):
        assert len({float(losses_of[name]) for losses_of in found.values()}) == len(found)


def test_batches_take_every_row_once_before_any_row_twice() -> None:
    batches = egm_loop.row_batches(23, 5, n_batches=10, seed=tf.constant([1, 2])).numpy()
    assert batches.shape == (12, 5)
    for shuffle in batches.reshape(3, 20):  # four whole batches; three rows wait for the next shuffle
        assert len(set(shuffle)) == 20
        assert set(shuffle) <= set(range(23))
    assert len({tuple(shuffle) for shuffle in batches.reshape(3, 20)}) == 3
    # Fewer rows than a batch: each batch is all of them.
    few = egm_loop.row_batches(4, 5, n_batches=3, seed=tf.constant([1, 2])).numpy()
    assert np.array_equal(np.sort(few, axis=1), np.tile(np.arange(4), (3, 1)))


def _not_finite(found: dict[str, np.ndarray]) -> set[str]:
    return {name for name, loss in found.items() if not np.isfinite(loss)}


def test_a_bad_row_is_reported_at_its_step_with_the_terms_that_saw_it(x: tf.Tensor) -> None:
    rows, _ = _draws(0)
    seen_by_decoder_and_encoder = {
        "adversarial_z", "reconstruction_x", "correlation", "marginal_mmd", "joint_mmd", "sliced_wasserstein", "loss",
    }  # fmt: skip
    for batch, step in ((1, 0), (3, 1)):
        spoilt = x.numpy()
        spoilt[rows[batch, 0], 0] = np.nan
        _, found = _rounds(start(*SPECS, 0), tf.constant(spoilt), 1)
        assert found["first_bad_step"] == step
        assert _not_finite(found) == seen_by_decoder_and_encoder
    spoilt = x.numpy()
    spoilt[rows[2, 0], 0] = np.nan
    _, found = _rounds(start(*SPECS, 0), tf.constant(spoilt), 1)
    assert found["first_bad_step"] == 1
    assert {"discriminator_x", "discriminator_z"} <= _not_finite(found)


def test_a_single_term_that_overflows_is_named(x: tf.Tensor) -> None:
    state = start(*SPECS, 0)
    # The variance is then 1e25: its square is beyond float32, all else is not.
    state.parameters["decoder/raw_variance/bias"] = tf.fill([P], 1e25)
    _, found = _rounds(state, x, 1)
    assert found["first_bad_step"] == 0
    assert _not_finite(found) == {"squared_variance", "loss"}


FUNCTIONS = {
    "adversarial_x": {"adversarial_loss", "discriminator_loss"},
    "adversarial_z": {"adversarial_loss", "discriminator_loss"},
    "reconstruction_x": {"reconstruction_loss"},
    "reconstruction_z": {"reconstruction_loss"},
    "correlation": {"correlation_loss"},
    "marginal_mmd": {"marginal_mmd"},
    "joint_mmd": {"joint_mmd"},
    "sliced_wasserstein": {"sliced_wasserstein", "slicing_directions"},
    "log_variance": {"log_variance_loss"},
    "squared_variance": {"squared_variance_loss"},
}
# How often the term alone needs decoder and encoder in its own step; a discriminator needs the one that it judges.
PASSES = {
    "adversarial_x": (2, 0),
    "adversarial_z": (0, 2),
    "reconstruction_x": (1, 1),
    "reconstruction_z": (1, 1),
    "correlation": (1, 1),
} | dict.fromkeys(("marginal_mmd", "joint_mmd", "sliced_wasserstein", "log_variance", "squared_variance"), (1, 0))


@pytest.mark.parametrize("term", FUNCTIONS)
def test_a_term_of_weight_0_is_not_computed(term: str, x: tf.Tensor, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []

    def watched(place: object, name: str, label: str) -> None:
        original = getattr(place, name)

        def call(*arguments, **keywords):
            calls.append(label)
            return original(*arguments, **keywords)

        monkeypatch.setattr(place, name, call)

    for name in set.union(*FUNCTIONS.values()):
        watched(egm_loop, name, name)
    for network in (Decoder, Encoder):
        watched(network, "__call__", network.__name__)
    settings = replace(SETTINGS, weights=EgmWeights(**NO_TERM | {term: 1.0}))
    round_runner(*SPECS, settings).get_concrete_function(start(*SPECS, 0), x, None, SEED)  # traced, not compiled
    assert set(calls) - {"Decoder", "Encoder"} == FUNCTIONS[term]
    assert (calls.count("Decoder"), calls.count("Encoder")) == PASSES[term]


def test_weights_that_say_nothing_are_refused() -> None:
    with pytest.raises(ValueError, match="expected weights of at least 0, and one above it"):
        EgmWeights(**NO_TERM)
    with pytest.raises(ValueError, match="expected weights of at least 0"):
        EgmWeights(correlation=-1.0)


def _generated_rows(spec: networks.NetworkSpec, weights: dict, y: tf.Tensor | None = None) -> np.ndarray:
    rng = np.random.default_rng(1)
    z, noise = (tf.constant(rng.standard_normal((N_ROWS, P)), tf.float32) for _ in range(2))
    mean, variance = decoder_of(spec, weights)(z, y)
    return (mean + tf.sqrt(variance) * noise).numpy()


def test_what_is_generated_comes_near_the_data(x: tf.Tensor) -> None:
    def distance(weights: dict) -> float:
        return float(sliced_wasserstein(x, _generated_rows(DECODER, weights), slicing_directions(P, seed=0)))

    state = start(*SPECS, 0)
    assert distance(state.average) > 1.0
    state, _ = _rounds(state, x, 250)
    # In units of the pooled variance; two samples of the data's own distribution are about 0.002 apart.
    assert distance(state.average) < 0.03
    generated = _generated_rows(DECODER, state.average)
    np.testing.assert_allclose(generated.mean(axis=0), [2.0, -1.0], atol=0.25)
    np.testing.assert_allclose(np.cov(generated.T), [[1.0, 0.8], [0.8, 1.0]], atol=0.25)


def test_a_condition_is_learnt_while_an_idle_discriminator_rests() -> None:
    rng = np.random.default_rng(0)
    centres = np.array([[-1.5, 1.0], [1.5, -1.0]])
    label = rng.integers(0, 2, N_ROWS)
    x = tf.constant(centres[label] + 0.3 * rng.standard_normal((N_ROWS, P)), tf.float32)
    specs = _specs(2)
    weights = EgmWeights(**NO_TERM | {"adversarial_x": 1.0, "reconstruction_x": 1.0})
    settings = EgmSettings(weights, batch_rows=BATCH, steps_per_round=50, learning_rate=2e-3, slicing_seed=0)
    run = round_runner(*specs, settings)
    state = start(*specs, 0)

    def means_by_class(state: EgmState) -> np.ndarray:
        given = [tf.one_hot(tf.fill([N_ROWS], index), 2) for index in range(2)]
        return np.stack([_generated_rows(specs[0], state.average, y).mean(axis=0) for y in given])

    assert np.abs(means_by_class(state) - centres).max() > 1.0
    for _ in range(8):
        state, found = run(state, x, tf.one_hot(label, 2), SEED)
    np.testing.assert_allclose(means_by_class(state), centres, atol=0.4)

    assert found.keys() == {"discriminator_x", "adversarial_x", "reconstruction_x", "loss", "first_bad_step"}
    assert found["first_bad_step"] == -1
    for name, value in start(*specs, 0).discriminators.items():
        assert np.array_equal(value, state.discriminators[name]) == name.startswith("discriminator_z/")
    # No memory was asked for: the average is the weights.
    assert all(np.array_equal(value, state.average[name]) for name, value in state.parameters.items())
    # Weights that are not finite count as bad, though no loss has met them.
    state.discriminators["discriminator_z/output/bias"] = tf.constant([np.nan])
    _, found = run(state, x, tf.one_hot(label, 2), SEED)
    assert np.isfinite(found["loss"])
    assert found["first_bad_step"] == 49
