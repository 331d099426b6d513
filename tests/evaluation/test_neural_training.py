"""How neural densities are trained: to the same numbers again, after a stop too, and no longer than rows allow."""

from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from bayesnde_cli.config import NEURAL_BASELINES
from bayesnde_cli.errors import BadUsage
from bayesnde_cli.evaluation.baselines import COMPETITORS, DENSITIES, DETECTORS, Part, Parts, competitor
from bayesnde_cli.evaluation.baselines import neural as neural_room
from bayesnde_cli.evaluation.baselines.fitted import FittedParts
from bayesnde_cli.evaluation.baselines.kept import KeptState
from bayesnde_cli.evaluation.baselines.neural import neural
from normal_rows import FEW, normal
from stopping_keeper import Stopped, StoppingKeeper

pytestmark = pytest.mark.usefixtures("small_networks")


@pytest.mark.parametrize("name", NEURAL_BASELINES)
def test_the_same_seed_gives_the_same_numbers_and_leaves_the_global_generator_alone(name: str) -> None:
    import torch

    rows, train, validation = normal(50, 3), normal(500, 1), normal(100, 2)
    before, threads = torch.random.get_rng_state(), torch.get_num_threads()
    first, again, other = (neural(name, share=FEW)(train, validation, seed).score(rows) for seed in (1, 1, 2))
    assert np.array_equal(first, again)
    assert not np.allclose(first, other)
    assert torch.equal(before, torch.random.get_rng_state())
    assert torch.get_num_threads() == threads


@pytest.mark.parametrize("name", NEURAL_BASELINES)
def test_a_fit_that_was_stopped_goes_on_to_the_same_numbers(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from bayesnde_cli.evaluation.baselines import kept
    from bayesnde_cli.evaluation.baselines.neural import fitting, training

    monkeypatch.setattr(kept, "_SECONDS_BETWEEN", 0.0)
    looks = []
    monkeypatch.setattr(training, "_look", lambda *of, look=training._look: looks.append(1) or look(*of))
    monkeypatch.setattr(training, "_BATCH_ROWS", 30)  # passes end between looks
    few = {
        each: kind._replace(length=replace(kind.length, steps=60, look_every=20))
        for each, kind in fitting.KINDS.items()
    }
    monkeypatch.setattr(fitting, "KINDS", few)
    train, validation, rows = normal(200, 1), normal(60, 2), normal(40, 3)
    whole = neural(name)(train, validation, 1)
    n_looks = len(looks)
    keeper = StoppingKeeper()
    keeper.n_left = 1
    with pytest.raises(Stopped):
        neural(name, keeper=keeper)(train, validation, 1)
    looks.clear()
    keeper.n_left = None
    again = neural(name, keeper=keeper)(train, validation, 1)
    assert len(looks) == n_looks - 2  # neither the first, of fresh weights, nor the one before the stop
    assert again.chosen == whole.chosen
    assert np.array_equal(again.score(rows), whole.score(rows))
    # Once more, when it is done: nothing is left to do. Another seed or other rows are another fit.
    looks.clear()
    done = neural(name, keeper=keeper)(train, validation, 1)
    assert not looks
    assert np.array_equal(done.score(rows), whole.score(rows))
    neural(name, share=0.05, keeper=keeper)(train, validation, 1)
    neural(name, share=0.05, keeper=keeper)(train, validation, 2)
    neural(name, share=0.05, keeper=keeper)(normal(200, 4), validation, 2)
    neural(name, share=0.05, keeper=keeper)(train, normal(60, 4), 2)
    assert len(keeper) == 5


def test_states_are_kept_now_and_then_and_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    from bayesnde_cli.evaluation.baselines import kept

    now = 0.0
    monkeypatch.setattr(kept, "time", SimpleNamespace(monotonic=lambda: now))
    keeper = StoppingKeeper()
    state = kept.KeptState(keeper, "settings", normal(5, 1))
    for now, is_last, there in ((9.0, False, None), (11.0, False, 11.0), (20.0, False, 11.0), (20.5, True, 20.5)):
        state.write(lambda now=now: {"now": np.array(now)}, is_last=is_last)
        assert (state.read() or {}).get("now") == there
    kept.KeptState(None, "settings").write(lambda: pytest.fail("nobody asked for it"), is_last=True)


@pytest.mark.parametrize(
    ("name", "n_rows", "share", "looks"),
    [
        ("nsf", 100, 1.0, (12, 2_000)),
        ("nsf", 684, 1.0, (24, 2_000)),  # two batches an epoch: the best weights of flows are those of a hundred steps
        ("nsf", 4_760, 1.0, (200, 2_000)),
        ("nsf", 4_760, 0.01, (60, 2_000)),
        ("cfm", 684, 1.0, (24, 5_000)),
        ("cfm", 50_000, 1.0, (500, 5_000)),
        ("resflow", 684, 1.0, (200, 2_000)),
    ],
)
def test_of_few_rows_the_validation_rows_are_looked_at_more_often(
    name: str, n_rows: int, share: float, looks: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    from bayesnde_cli.evaluation.baselines.neural import fitting

    seen = []
    monkeypatch.setattr(fitting, "_fit_one", lambda *of: seen.append(of[3]) or FittedParts(len, {}))
    neural(name, share=share)(Part(np.zeros((n_rows, 2))), Part(np.zeros((5, 2))), 0)
    (length,) = seen
    assert (length.look_every, length.patience) == looks


def test_training_ends_by_patience_and_keeps_the_best_weights() -> None:
    """Twenty rows are soon learnt by heart: validation rows say when."""
    from bayesnde_cli.evaluation.baselines.neural import fitting
    from bayesnde_cli.evaluation.baselines.neural.training import Length

    kind = fitting.KINDS["made"]._replace(length=Length(steps=3000, look_every=20, patience=60))
    validation = normal(500, 2)
    fitted = fitting._fit_one(kind, normal(20, 1), validation, kind.length, 0, KeptState(None, "settings"))
    assert fitted.chosen["steps"] == fitted.chosen["best_step"] + 60 < 3000
    longer = Length(steps=fitted.chosen["steps"] + 400, look_every=10_000)
    # The control: trained on without a look, the weights of the end are the worse ones for validation rows.
    rows = fitting._rows(normal(20, 1), 0), fitting._rows(validation, 0)
    assert fitted.score(validation).mean() > _mean_at_the_end(*rows, longer)


def _mean_at_the_end(train_rows, validation_rows, length) -> float:
    import torch

    from bayesnde_cli.evaluation.baselines.neural import autoregressive, training

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        network = autoregressive.made(2, 0)
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-3)
    for _ in range(length.steps):
        optimizer.zero_grad()
        network.loss(train_rows.x, None, torch.Generator()).backward()
        optimizer.step()
    return training._look(network, validation_rows)


@pytest.fixture
def without_zuko(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(neural_room, "find_spec", lambda name: None if name in ("zuko", "normflows") else object())
    return


@pytest.mark.usefixtures("without_zuko")
def test_without_its_packages_a_neural_density_says_what_to_install() -> None:
    with pytest.raises(BadUsage) as caught:
        competitor("nsf", {"file": Parts(normal(20, 1), normal(20, 2), normal(20, 3))}, seed=0)
    assert str(caught.value) == (
        "error: --baseline nsf needs packages that are not installed\n"
        "  no zuko, normflows\n"
        "hint: run `pip install 'bayesnde[baselines]'`, then the same command again"
    )
    assert caught.value.exit_code == 2


def test_every_neural_density_that_can_be_asked_for_is_known() -> None:
    from bayesnde_cli.evaluation.baselines.neural.fitting import KINDS

    assert tuple(KINDS) == NEURAL_BASELINES
    assert set(COMPETITORS) == {*DENSITIES, *NEURAL_BASELINES, *DETECTORS, "distance", "blurred_kernels"}
