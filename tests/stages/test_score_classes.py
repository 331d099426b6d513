"""log p(x | y) for every y: each class with its own seed, whatever class the rows came with, after a screening."""

import numpy as np
import pytest

from bayesnde_cli.inference.class_screen import FirstFigures
from bayesnde_cli.rows import Rows
from bayesnde_cli.settings.stage_settings import DensitySettings
from bayesnde_cli.stages.loading import ByClass, Effort, Opened, log_densities_by_class, score_classes
from fake_engine import FakeEngine

EVERY = np.full((6, 3), True)
X = np.random.default_rng(0).normal(size=(6, 2)).astype(np.float32)


def _engine() -> FakeEngine:
    return FakeEngine(DensitySettings(chains=2, draws=4))


def _found(rows: Rows, seed: int = 5) -> ByClass:
    return log_densities_by_class(_engine(), rows, EVERY, seed, block_rows=6)


def test_every_class_has_its_column_whatever_class_the_rows_came_with() -> None:
    found = _found(Rows(X))
    # The stand-in's density falls from class to class, by more than its noise.
    assert (np.diff(found.log_density, axis=1) < -0.5).all()
    assert len(np.unique(found.mc_se)) == 18  # no two classes share random numbers
    again = _found(Rows(X, y=np.eye(3, dtype=np.float32)[np.arange(6) % 3]))
    assert all(np.array_equal(a, b) for a, b in zip(found, again, strict=True))
    assert not np.array_equal(found.mc_se, _found(Rows(X), seed=6).mc_se)


def test_only_wanted_classes_are_scored_and_pairs_fill_whole_blocks() -> None:
    is_wanted, engine = np.array([[True, False, True], [False, False, False], [True, True, False]]), _engine()
    found = log_densities_by_class(engine, Rows(X[:3]), is_wanted, 5, block_rows=4)
    assert engine.n_real == [4]  # four pairs of a row and a class, one block
    assert (np.isfinite(found.log_density) == is_wanted).all()
    assert ((found.n_gradients > 0) == is_wanted.any(axis=1)).all()
    assert not found.reliable[~is_wanted].any()


def test_a_row_without_cells_is_as_likely_under_every_class() -> None:
    observed = np.ones((6, 2), bool)
    observed[2] = False
    found = _found(Rows(np.zeros((6, 2), np.float32), observed))
    assert found.log_density[2].tolist() == [0.0, 0.0, 0.0]
    assert found.reliable[2].all()
    assert (np.delete(found.log_density, 2, axis=0) != 0.0).all()


@pytest.mark.parametrize(
    ("effort", "is_screened", "n_real"),
    [
        (Effort.USUAL, [[True, True, True], [False, False, True]], [2]),  # only rivals are scored
        (Effort.QUICK, [[True] * 3] * 2, []),  # the screening decides
        (Effort.THOROUGH, [[False] * 3] * 2, [4, 2]),  # every class is scored
    ],
)
def test_the_effort_says_which_classes_are_scored_after_screening(
    effort: Effort, is_screened: list, n_real: list[int]
) -> None:
    # Of the first row, the screening leaves one class; of the second, two.
    first = FirstFigures(np.array([[0.0, -50.0, -60.0], [0.0, -1.0, -90.0]]), np.full((2, 3), 0.1), np.array([7, 9]))
    engine = _engine()
    opened = Opened(engine, "cpu", lambda x, seed, prior, known: first)
    found = score_classes(opened, Rows(np.ones((2, 2), np.float32)), np.full(3, 1 / 3), 5, block_rows=4, effort=effort)
    assert (found.log_density == first.log_density).tolist() == is_screened
    assert engine.n_real == n_real
    if effort is Effort.USUAL:
        assert found.n_gradients[0] == 7 < found.n_gradients[1]
        assert found.reliable[0].tolist() == [True, False, False]
    if effort is Effort.QUICK:
        assert found.n_gradients.tolist() == [7, 9]
        assert found.reliable.tolist() == [[True, False, False], [False, False, False]]
