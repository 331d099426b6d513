"""The search for modes: what the starts of a row tell of modes that were not found, and where starts are taken."""

from typing import NamedTuple

import numpy as np
import pytest
import tensorflow as tf

from bayesnde_cli.inference import mode_search
from bayesnde_cli.inference.bridge import MOST_MISSED_MASS
from bayesnde_cli.inference.fitted_model import Bank, FittedModel, decode_bank
from bayesnde_cli.inference.mode_search import ModeFinder, SearchSize, Walk
from bayesnde_cli.inference.modes import Modes
from bayesnde_cli.model.likelihood import Target
from bayesnde_cli.rows import Rows

# x = z^2 with a little noise: modes at both roots, of equal weight.
SD = 0.05


class Result(NamedTuple):
    modes: Modes
    missed_mass: np.ndarray


def squares(z: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    return tf.square(z), tf.fill(tf.shape(z), tf.constant(SD**2, z.dtype))


def _found(starts: list[float], known: tuple[float, ...] = (), n_kept: int = 16, n_legs: int = 12) -> Result:
    """The modes of one row x = 1, from known places and from starts, and the missed mass."""
    walk = Walk(*(tf.constant(part) for part in Walk.begin(np.array([*known, *starts], np.float32)[:, None])))
    target = Target(tf.ones([len(walk.z), 1]))
    for leg in range(n_legs):
        walk = mode_search.climb(squares, target, walk, tf.constant(2 + (leg == 0)))
    arrays = Walk(*(part.numpy()[None] for part in walk))
    is_settled = arrays.gained <= mode_search._LEAST_GAIN
    return Result(*mode_search.weigh_modes(arrays, is_settled, len(known), n_kept))


def _weights(found: Result) -> dict[int, float]:
    """The weight of the modes near -1 and 1."""
    place, weight = found.modes.z.ravel(), np.exp(found.modes.log_weight.ravel())
    return {side: float(weight[np.abs(place - side) < 0.1].sum()) for side in (-1, 1)}


BOTH, ONE = [0.8, 1.2, 0.9, -0.8, -1.2, -0.9] * 3, [0.8, 1.2, 0.9, 1.1] * 3


@pytest.mark.parametrize(
    ("starts", "options", "missed"),
    [
        (BOTH, {}, 3 * (2 / 3) ** 18),  # of three modes of equal size, 18 starts miss this much
        ([*ONE, -0.8], {}, 0.5),  # a mode that one start alone leads to counts as missed
        ([0.8, 1.2], {}, 2 * 0.5**2),
        ([0.8] * 9, {}, 2 * 0.5**9),
        (ONE, {"known": (-1.0, -1.0)}, 0.5),  # known from an earlier attempt, but the starts have missed it
        (BOTH, {"n_kept": 1}, 0.5),  # modes that are not kept count as missed
        ([*[0.8] * 9, 4e3], {"n_legs": 5}, 2 * 0.5**9),  # a start that has not arrived anywhere says nothing
    ],
)
def test_the_missed_mass(starts: list[float], options: dict, missed: float) -> None:
    assert _found(starts, **options).missed_mass[0] == pytest.approx(missed, rel=0.02)


def test_modes_have_their_weight_whether_found_or_known_from_an_earlier_attempt() -> None:
    for found in (_found(BOTH), _found(ONE, known=(-1.0, -1.0))):
        assert _weights(found) == pytest.approx({-1: 0.5, 1: 0.5}, abs=0.01)
    assert _weights(_found(ONE))[-1] == 0.0
    assert _found(BOTH, n_kept=1).modes.z.shape[1] == 1


def test_places_that_are_below_a_higher_one_wait_and_the_others_go_on_until_they_have_arrived() -> None:
    finder = ModeFinder(FittedModel(squares, 1))
    rows = Rows(np.linspace(0.5, 2.0, 40, dtype=np.float32)[:, None])
    found = finder.find(rows, SearchSize((6,), n_steps=24, n_kept=2), 3)
    roots = np.sqrt(rows.x)
    np.testing.assert_allclose(np.sort(found.modes.z[:, :, 0], axis=1), np.hstack([-roots, roots]), atol=0.02)
    assert (np.abs(np.exp(found.modes.log_weight) - 0.5) < 0.02).all()
    # Seven starts that all go on to the end would take more than twice as many gradients.
    n_all = 7 * (1 + 24 + 12)
    assert 0 < found.n_gradients.mean() < n_all / 2
    # Seven starts do not rule out a third mode; more of them do.
    assert (found.missed_mass > MOST_MISSED_MASS).all()
    more = finder.find(rows, SearchSize((6, 12), n_steps=24, n_kept=2), 3)
    assert (more.missed_mass < MOST_MISSED_MASS).all()


def test_a_precision_that_is_not_positive_definite_gets_its_least_eigenvalue() -> None:
    vectors, _ = np.linalg.qr(np.random.default_rng(0).normal(size=(3, 3)))
    precision = np.stack([(vectors * [-0.5, 2.0, 1e6]) @ vectors.T, np.full((3, 3), np.nan)])
    factor = mode_search._cholesky(precision)
    np.testing.assert_allclose(np.linalg.eigvalsh(factor[0] @ factor[0].T), [1.0, 2.0, 1e6], rtol=1e-6)
    np.testing.assert_array_equal(factor[1], np.eye(3))


def test_starts_are_taken_as_well_beside_a_narrow_mode_where_the_likelihood_is_low() -> None:
    """All latents that are likely lie on one side; on the other there is a narrow mode, which none of them has hit."""

    def decoder(z: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        return tf.where(z > 0, 0.0, 1e4 * tf.abs(z + 2.0) + 100.0), tf.ones_like(z)

    z = np.random.default_rng(0).standard_normal((512, 1)).astype(np.float32)
    nearest = z[np.argmin(np.abs(z + 2.0))]
    bank = decode_bank(decoder, z, 0)
    height = np.repeat(bank.log_likelihood(Target(tf.zeros([1, 1])))[0].numpy(), 8, axis=0)

    def candidates(bank: Bank) -> np.ndarray:
        near = np.ones((8, 1, 1), np.float32)
        return mode_search.choose_candidates(bank, height, near, 6, np.random.default_rng(1))[:, :, 0]

    found = candidates(bank)
    assert (found[:, :3] > 0).all()
    assert (found[:, 3:] == nearest).any(axis=1).all()
    # No peaks there: any latents.
    found = candidates(bank._replace(neighbours=bank.neighbours * 0 + np.argmax(z > 0)))
    assert not (found[:, 3:] == nearest).any(axis=1).all()
