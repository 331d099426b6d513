"""log p(x | y) for every y: each class in its turn, with its own seed, whatever class the rows came with."""

import numpy as np

from bayesnde_cli.config import DensityConfig
from bayesnde_cli.inference.block import Rows
from bayesnde_cli.stages.scoring.by_class import log_densities_by_class
from fake_engine import FakeEngine


def _found(rows: Rows, seed: int = 5) -> dict[str, np.ndarray]:
    return log_densities_by_class(FakeEngine(DensityConfig(chains=2, draws=4)), rows, 3, seed, block_rows=len(rows.x))


def test_every_class_has_its_column() -> None:
    x = np.random.default_rng(0).normal(size=(6, 2)).astype(np.float32)
    found = _found(Rows(x, None, None))
    assert {name: array.shape for name, array in found.items()} == dict.fromkeys(
        ("log_density_scaled", "mc_se", "reliable", "n_gradients"), (6, 3)
    )
    assert found["reliable"].dtype == bool
    # The stand-in's density falls from class to class, by more than its noise.
    assert (np.diff(found["log_density_scaled"], axis=1) < -0.5).all()
    assert len(np.unique(found["mc_se"])) == 18  # no two classes share random numbers
    came_with = np.eye(3, dtype=np.float32)[np.arange(6) % 3]
    again = _found(Rows(x, None, came_with))
    assert all(np.array_equal(found[name], again[name]) for name in found)
    assert not np.array_equal(found["mc_se"], _found(Rows(x, None, None), seed=6)["mc_se"])


def test_only_wanted_classes_are_scored_and_pairs_fill_whole_blocks() -> None:
    x = np.random.default_rng(0).normal(size=(4, 2)).astype(np.float32)
    is_wanted = np.array([[True, False, True], [False, False, False], [True, True, False]])
    engine = FakeEngine(DensityConfig(chains=2, draws=4))
    found = log_densities_by_class(engine, Rows(x[:3], None, None), 3, 5, block_rows=4, is_wanted=is_wanted)
    assert engine.n_real == [4]  # four pairs of a row and a class, one block
    assert (np.isfinite(found["log_density_scaled"]) == is_wanted).all()
    assert ((found["n_gradients"] > 0) == is_wanted).all()
    assert not found["reliable"][~is_wanted].any()


def test_a_row_without_cells_is_as_likely_under_every_class() -> None:
    observed = np.ones((4, 2), bool)
    observed[2] = False
    found = _found(Rows(np.zeros((4, 2), np.float32), observed, None))
    assert found["log_density_scaled"][2].tolist() == [0.0, 0.0, 0.0]
    assert found["reliable"][2].all()
    assert (found["log_density_scaled"][[0, 1, 3]] != 0.0).all()
