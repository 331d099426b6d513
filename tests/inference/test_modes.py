"""What the starts of a row tell of modes that were not found, and what a further try remembers."""

from dataclasses import replace

import numpy as np
import pytest
import tensorflow as tf

from bayesnde_cli.inference import modes
from bayesnde_cli.inference.block import Draws, Rows
from bayesnde_cli.inference.budget import EngineSettings
from bayesnde_cli.inference.engine import Engine, FittedModel, _places
from bayesnde_cli.inference.target import Target

# x = z^2 with a little noise: modes at both roots, of equal weight.
SD = 0.05


def squares(z: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    return tf.square(z), tf.fill(tf.shape(z), tf.constant(SD**2, z.dtype))


def _found(starts: list[float], known: list[float] | None = None, n_kept: int = 16) -> modes.Found:
    """The modes of one row x = 1."""
    places = [None if some is None else tf.constant(some)[None, :, None] for some in (starts, known)]
    return modes.find_modes(squares, Target(tf.constant([[1.0]]), None, None), *places, n_climbs=24, n_kept=n_kept)


def _weights(found: modes.Found) -> dict[int, float]:
    """The weight of the modes near -1 and 1."""
    place, weight = found.modes.z.numpy().ravel(), np.exp(found.modes.log_weight.numpy().ravel())
    return {side: float(weight[np.abs(place - side) < 0.1].sum()) for side in (-1, 1)}


def test_modes_that_several_starts_lead_to_are_known() -> None:
    found = _found([0.8, 1.2, 0.9, -0.8, -1.2, -0.9] * 3)
    assert _weights(found) == pytest.approx({-1: 0.5, 1: 0.5}, abs=0.01)
    # Of three modes of equal size, 18 starts miss 3 (2/3)^18.
    assert found.missed_mass.numpy()[0] == pytest.approx(3 * (2 / 3) ** 18, rel=0.02)


def test_a_mode_that_one_start_alone_leads_to_counts_as_missed() -> None:
    assert _found([0.8, 1.2, 0.9] * 4 + [-0.8]).missed_mass.numpy()[0] == pytest.approx(0.5, abs=0.01)


def test_few_starts_may_have_missed_a_mode() -> None:
    assert _found([0.8, 1.2]).missed_mass.numpy()[0] == pytest.approx(0.5, abs=0.01)  # 2 (1/2)^2
    assert _found([0.8] * 9).missed_mass.numpy()[0] == pytest.approx(2 * 0.5**9, rel=0.02)


def test_a_known_place_is_kept_but_is_no_find() -> None:
    """A mode that an earlier try knew of has its weight, and the starts that missed it say so."""
    found = _found([0.8, 1.2, 0.9, 1.1] * 3, known=[-1.0, -1.0])
    assert _weights(found) == pytest.approx({-1: 0.5, 1: 0.5}, abs=0.01)
    assert found.missed_mass.numpy()[0] == pytest.approx(0.5, abs=0.01)
    assert _weights(_found([0.8, 1.2, 0.9, 1.1] * 3))[-1] == 0.0  # without it, nobody knows


def test_modes_that_are_not_kept_count_as_missed() -> None:
    found = _found([0.8, 1.2, 0.9, -0.8, -1.2, -0.9] * 3, n_kept=1)
    assert found.modes.z.shape[1] == 1
    assert found.missed_mass.numpy()[0] == pytest.approx(0.5, abs=0.01)


def test_a_climb_ends_when_nearly_all_have_arrived() -> None:
    assert 1 < int(_found([0.99, -1.01, 1.0]).n_climbs) < 12
    assert int(_found([0.99, -1.01, 1.0]).n_climbs) <= int(_found([6.0, -7.0, 8.0]).n_climbs)


def test_a_further_try_starts_where_the_first_has_been() -> None:
    """An engine whose starts all lead to one mode draws from both, once it is told of a place near the other."""
    engine = Engine(FittedModel(lambda z: squares(z), 1, known_latents=None), EngineSettings(starts=1, warm_up=25))
    z = engine._bank.z.numpy()
    engine._bank = modes.bank_of(squares, tf.constant(z[z[:, 0] > 0.5]), 0)
    rows = Rows(np.ones((4, 1), np.float32), None, None)
    engine._encoded = lambda target: tf.ones([4, 1])  # type: ignore[method-assign]
    assert (engine.sample(rows, 1).z > 0.0).all()
    told = engine.sample(rows, 1, np.full((4, 1, 1), -1.0, np.float32))
    assert 0.2 < np.mean(told.z < 0.0) < 0.8
    assert (told.missed_mass > 0.3).all()


def test_starts_are_taken_as_well_beside_a_narrow_mode_where_the_likelihood_is_low() -> None:
    """All latents that are likely lie on one side; on the other there is a narrow mode, which none of them has hit."""

    def decoder(z: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        return tf.where(z > 0, 0.0, 1e4 * tf.abs(z + 2.0) + 100.0), tf.ones_like(z)

    z = np.random.default_rng(0).standard_normal((512, 1)).astype(np.float32)
    nearest = z[np.argmin(np.abs(z + 2.0))]
    bank = modes.bank_of(decoder, tf.constant(z), 0)
    target = Target(tf.zeros([8, 1]), None, None)
    uniform = tf.constant(np.random.default_rng(1).uniform(1e-6, 1.0, (8, 512)), tf.float32)
    found = modes.candidates(bank, target, tf.ones([8, 1]), 6, uniform).numpy()[:, :, 0]
    assert (found[:, :3] > 0).all()
    assert (found[:, 3:] == nearest).any(axis=1).all()
    blind = bank._replace(neighbours=bank.neighbours * 0 + np.argmax(z > 0))  # no peaks there: any latents
    found = modes.candidates(blind, target, tf.ones([8, 1]), 6, uniform).numpy()[:, :, 0]
    assert not (found[:, 3:] == nearest).any(axis=1).all()


def test_a_further_try_remembers_modes_that_no_chain_has_visited() -> None:
    z = np.zeros((1, 2, 4, 1), np.float32)
    found = np.array([[[5.0], [-3.0], [np.nan]]], np.float32)
    zeros = np.zeros(1, np.float32)
    draws = Draws(z, zeros, zeros, zeros, zeros, zeros, found)
    remembered = _places(draws)
    assert np.isfinite(remembered).all()
    assert {5.0, -3.0, 0.0} == {*remembered.ravel().tolist()}
    assert _places(draws._replace(modes=found[:, :0])).shape == remembered.shape


def test_draws_do_not_depend_on_how_they_will_be_scored() -> None:
    rows = Rows(np.linspace(0.5, 2.0, 4, dtype=np.float32)[:, None], None, None)
    model = FittedModel(squares, 1)
    usual = EngineSettings(warm_up=50, draws=25)
    other = replace(usual, components=2, regulariser=0.1, absolute_regulariser=0.01)
    first, second = (Engine(model, some).sample(rows, 3).z for some in (usual, other))
    np.testing.assert_array_equal(first, second)


def test_nobody_looks_for_modes_that_chains_would_not_go_to() -> None:
    rows = Rows(np.ones((2, 1), np.float32), None, None)
    engine = Engine(FittedModel(squares, 1), EngineSettings(start="encoder", warm_up=25, draws=25))
    assert np.isnan(engine.sample(rows, 1).missed_mass).all()
