"""The search for modes: what the starts of a row tell of modes that were not found, and where starts are taken."""

import numpy as np
import pytest
import tensorflow as tf

from bayesnde_cli.inference import modes
from bayesnde_cli.model.likelihood import Target

# x = z^2 with a little noise: modes at both roots, of equal weight.
SD = 0.05


def squares(z: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    return tf.square(z), tf.fill(tf.shape(z), tf.constant(SD**2, z.dtype))


def _found(starts: list[float], known: list[float] | None = None, n_kept: int = 16) -> modes.ModeSearch:
    """The modes of one row x = 1."""
    start, carried = (None if some is None else tf.constant(some)[None, :, None] for some in (starts, known))
    size = modes.SearchSize(0, 24, n_kept)
    return modes.find_modes(squares, Target(tf.constant([[1.0]]), None, None), start, carried, size)


def _weights(found: modes.ModeSearch) -> dict[int, float]:
    """The weight of the modes near -1 and 1."""
    place, weight = found.modes.z.numpy().ravel(), np.exp(found.modes.log_weight.numpy().ravel())
    return {side: float(weight[np.abs(place - side) < 0.1].sum()) for side in (-1, 1)}


BOTH, ONE = [0.8, 1.2, 0.9, -0.8, -1.2, -0.9] * 3, [0.8, 1.2, 0.9, 1.1] * 3


@pytest.mark.parametrize(
    ("starts", "options", "missed"),
    [
        (BOTH, {}, 3 * (2 / 3) ** 18),  # of three modes of equal size, 18 starts miss this much
        ([*ONE, -0.8], {}, 0.5),  # a mode that one start alone leads to counts as missed
        ([0.8, 1.2], {}, 2 * 0.5**2),
        ([0.8] * 9, {}, 2 * 0.5**9),
        (ONE, {"known": [-1.0, -1.0]}, 0.5),  # known from an earlier attempt, but the starts have missed it
        (BOTH, {"n_kept": 1}, 0.5),  # modes that are not kept count as missed
    ],
)
def test_the_missed_mass(starts: list[float], options: dict, missed: float) -> None:
    assert _found(starts, **options).missed_mass.numpy()[0] == pytest.approx(missed, rel=0.02)


def test_modes_have_their_weight_whether_found_or_known_from_an_earlier_attempt() -> None:
    for found in (_found(BOTH), _found(ONE, known=[-1.0, -1.0])):
        assert _weights(found) == pytest.approx({-1: 0.5, 1: 0.5}, abs=0.01)
    assert _weights(_found(ONE))[-1] == 0.0
    assert _found(BOTH, n_kept=1).modes.z.shape[1] == 1


def test_the_search_ends_when_nearly_all_starts_have_arrived() -> None:
    near = int(_found([0.99, -1.01, 1.0]).n_steps)
    assert 1 < near < 12
    assert near <= int(_found([6.0, -7.0, 8.0]).n_steps)


def test_starts_are_taken_as_well_beside_a_narrow_mode_where_the_likelihood_is_low() -> None:
    """All latents that are likely lie on one side; on the other there is a narrow mode, which none of them has hit."""

    def decoder(z: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        return tf.where(z > 0, 0.0, 1e4 * tf.abs(z + 2.0) + 100.0), tf.ones_like(z)

    z = np.random.default_rng(0).standard_normal((512, 1)).astype(np.float32)
    nearest = z[np.argmin(np.abs(z + 2.0))]
    bank = modes.decode_bank(decoder, tf.constant(z), 0)
    target = Target(tf.zeros([8, 1]), None, None)
    uniform = tf.constant(np.random.default_rng(1).uniform(1e-6, 1.0, (8, 512)), tf.float32)
    found = modes.choose_candidates(bank, target, tf.ones([8, 1]), 6, uniform).numpy()[:, :, 0]
    assert (found[:, :3] > 0).all()
    assert (found[:, 3:] == nearest).any(axis=1).all()
    blind = bank._replace(neighbours=bank.neighbours * 0 + np.argmax(z > 0))  # no peaks there: any latents
    found = modes.choose_candidates(blind, target, tf.ones([8, 1]), 6, uniform).numpy()[:, :, 0]
    assert not (found[:, 3:] == nearest).any(axis=1).all()
