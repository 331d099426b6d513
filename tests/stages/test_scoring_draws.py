"""Draws that are written and read back."""

import numpy as np
import pytest

from bayesnde_cli.artifacts import plan as plans
from bayesnde_cli.artifacts.layout import RunLayout
from bayesnde_cli.artifacts.plan import Plan
from bayesnde_cli.errors import BadArtifact
from bayesnde_cli.inference.block import Draws
from bayesnde_cli.stages.scoring.draws import DrawStore

N_ROWS, N_CHAINS, N_DRAWS, N_LATENT = 3, 2, 4, 5


def _draws(n_modes: int) -> Draws:
    rng = np.random.Generator(np.random.Philox(key=1))
    modes = rng.normal(size=(N_ROWS, n_modes, N_LATENT)).astype(np.float32)
    modes[0, 1:] = np.nan
    return Draws(
        z=rng.normal(size=(N_ROWS, N_CHAINS, N_DRAWS, N_LATENT)).astype(np.float32),
        acceptance=rng.uniform(size=N_ROWS).astype(np.float32),
        divergences=np.arange(N_ROWS, dtype=np.int32),
        step_size=rng.uniform(size=N_ROWS).astype(np.float32),
        n_gradients=np.arange(N_ROWS, dtype=np.int64),
        missed_mass=rng.uniform(size=N_ROWS).astype(np.float32),
        modes=modes,
    )


def _store(folder) -> tuple[RunLayout, DrawStore]:
    layout = RunLayout(folder)
    plan = plans.create_or_join(layout, Plan("posterior", "test", "abc", N_ROWS, N_ROWS, seed=1))
    return layout, DrawStore(layout, plan)


@pytest.mark.parametrize("n_modes", [0, 1, 3])
def test_draws_come_back_as_they_were(tmp_path, n_modes):
    _, store = _store(tmp_path)
    draws = _draws(n_modes)
    store.write(0, np.arange(N_ROWS), draws, {})
    for name, array in store.read(0)._asdict().items():
        np.testing.assert_array_equal(array, getattr(draws, name), err_msg=name)
        assert array.dtype == getattr(draws, name).dtype


def test_draws_that_do_not_tell_their_modes_are_refused(tmp_path, monkeypatch):
    _, store = _store(tmp_path)
    store.write(0, np.arange(N_ROWS), _draws(2), {})
    without = store.diagnostics(0).drop_columns(["modes"])
    monkeypatch.setattr(type(store), "diagnostics", lambda store, block: without)
    with pytest.raises(BadArtifact, match="older bayesnde") as caught:
        store.read(0)
    assert "posterior" in caught.value.hint
    assert "--restart" in caught.value.hint
