"""Statistics of batch normalisation follow the batches in the warm start, and rest in refinement."""

from dataclasses import replace

import numpy as np
import pytest
import tensorflow as tf

from bayesnde_cli.model import discriminator
from bayesnde_cli.model.decoder import image_decoder_spec
from bayesnde_cli.model.encoder import image_encoder_spec
from bayesnde_cli.model.parameters import is_statistic
from bayesnde_cli.rng import generator
from bayesnde_cli.training import autoencoder_state, bound_loop, egm_loop
from bayesnde_cli.training.joint_parameters import initial_autoencoder, with_statistics

_DECODER, _ENCODER = (replace(spec(2, (4, 4, 1), 2), width=2) for spec in (image_decoder_spec, image_encoder_spec))
_X = tf.constant(generator(1, "images").normal(size=(32, 16)).astype(np.float32))
_Y = tf.one_hot(np.arange(32) % 2, 2)


@pytest.mark.parametrize(("n_draws", "has_batch_statistics"), [(1, True), (2, False)])
def test_statistics_move_in_the_warm_start_alone(n_draws: int, has_batch_statistics: bool) -> None:
    settings = bound_loop.BoundSettings(
        batch_rows=8, n_draws=n_draws, weight_decay=0.5, has_batch_statistics=has_batch_statistics
    )
    start = autoencoder_state.start(initial_autoencoder(_DECODER, _ENCODER, 0))
    state, losses = bound_loop.round_runner(_DECODER, _ENCODER, settings)(start, _X, _Y, tf.constant(1))
    assert int(losses["first_bad_step"]) == -1
    moved = {name for name, value in state.parameters.items() if not np.array_equal(value, start.parameters[name])}
    statistics = {name for name in start.parameters if is_statistic(name)}
    assert len(statistics) == 2 * 3 * 2
    assert moved & statistics == (statistics if has_batch_statistics else set())
    assert any(name.endswith("gain") for name in moved)  # weights are trained either way


def test_the_paper_s_warm_start_trains_images() -> None:
    settings = egm_loop.EgmSettings(egm_loop.EgmWeights(), batch_rows=8, steps_per_round=2, slicing_seed=1)
    of_x, of_z = discriminator.of_images((4, 4, 1), 2), discriminator.of_latents_of_images(2)
    start = egm_loop.start(_DECODER, _ENCODER, of_x, of_z, 0)
    run = egm_loop.round_runner(_DECODER, _ENCODER, of_x, of_z, settings)
    state, losses = run(start, _X, _Y, tf.constant(1))
    assert int(losses["first_bad_step"]) == -1
    for before, after in ((start.parameters, state.parameters), (start.discriminators, state.discriminators)):
        still = {name for name, value in after.items() if np.array_equal(value, before[name])}
        # The encoder's second head has no part in it; the last bias of a normalised layer may rest by chance alone.
        assert still <= {"encoder/raw_sd/kernel", "encoder/raw_sd/bias"} | {n for n in before if n.endswith("bias")}


def test_statistics_go_a_hundredth_of_the_way_and_never_where_the_optimizer_wants_them() -> None:
    before = {"a/moving_mean": tf.constant([1.0]), "b/moving_mean": tf.constant([2.0]), "w": tf.constant([3.0])}
    moved = {name: value + 10.0 for name, value in before.items()}
    after = with_statistics(moved, before, {"a/moving_mean": tf.constant([2.0])})
    assert {name: round(float(value[0]), 6) for name, value in after.items()} == {
        "a/moving_mean": 1.01, "b/moving_mean": 2.0, "w": 13.0,
    }  # fmt: skip
