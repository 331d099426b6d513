"""Roundtrip fitted to rows: near the truth of a Gaussian, by class, the same again, and sound when training is not."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
import tensorflow as tf
from scipy import stats

from bayesnde_cli.config import WarmstartConfig
from bayesnde_cli.errors import NumericalFailure
from bayesnde_cli.evaluation.baselines import Part, kept
from bayesnde_cli.evaluation.baselines.roundtrip import Choice
from bayesnde_cli.stages.evaluate import roundtrip as roundtrip_stage
from bayesnde_cli.stages.evaluate.roundtrip import CONFIG, FittedRoundtrip, _looks, roundtrip
from bayesnde_cli.stages.training import phases
from bayesnde_cli.stages.training.phases import Networks, Phase
from bayesnde_cli.stages.training.rows import Rows
from stopping_keeper import Stopped, StoppingKeeper

SMALL = replace(CONFIG, egm_steps=300, checks=2, width=32, depth=2)
NORMAL = stats.multivariate_normal([0.0, 0.0], [[1.0, 0.8], [0.8, 1.0]])


def _part(n: int, seed: int) -> Part:
    return Part(NORMAL.rvs(n, random_state=np.random.default_rng(seed)))


TRAIN, VALIDATION, EVALUATED = _part(2000, 0), _part(300, 1), _part(300, 2)


@pytest.fixture(scope="module", autouse=True)
def compiled_once() -> Iterator[None]:
    """The same config on rows of the same kind is the same program: it takes longer to compile than to run."""
    kept: dict[tuple, list[Phase]] = {}

    def phases_of(config: WarmstartConfig, networks: Networks, rows: Rows) -> list[Phase]:
        key = (config, networks, rows.n_classes)
        if key not in kept:
            kept[key] = phases.phases_of(config, networks, rows)
        return kept[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(roundtrip_stage, "phases_of", phases_of)
        yield


@pytest.fixture(scope="module")
def fitted() -> FittedRoundtrip:
    return roundtrip(TRAIN, VALIDATION, 1, config=SMALL, n_draws=1000)


def test_a_short_fit_to_a_gaussian_comes_near_its_density(fitted: FittedRoundtrip) -> None:
    truth = NORMAL.logpdf(EVALUATED.cells)
    found = fitted.estimate(EVALUATED)
    assert np.array_equal(found.log_density, fitted.score(EVALUATED))
    # 300 adversarial steps of small networks: near it, and never above it by more than the noise of 300 rows.
    assert -0.4 < found.log_density.mean() - truth.mean() < 0.1
    assert np.median(found.mc_se) < 0.2
    far = fitted.score(Part(np.array([[4.0, -4.0], [0.0, 0.0]])))
    assert far[0] < far[1] - 5.0


def test_what_was_chosen_is_told(fitted: FittedRoundtrip) -> None:
    chosen = dict(fitted.chosen)
    assert 0.0 < chosen.pop("sigma") < 1.0
    assert 0.0 < chosen.pop("scale") <= 1.0
    assert chosen.pop("degrees_of_freedom") in (1, 5)
    assert chosen.pop("steps") in (150, 300)
    on_validation = fitted.score(VALIDATION).mean()
    assert chosen.pop("validation_log_density") == pytest.approx(on_validation, abs=0.1)
    assert chosen == {"latent_dim": 2, "draws": 1000, "fit": "all rows", "n_fit_rows": 2000}


def test_evaluated_rows_have_no_say(fitted: FittedRoundtrip) -> None:
    before = fitted.score(EVALUATED)
    fitted.score(Part(100.0 * EVALUATED.cells))
    assert np.array_equal(fitted.score(EVALUATED), before)
    others = Part(np.concatenate([EVALUATED.cells[:64], 100.0 * EVALUATED.cells[64:]]))
    assert np.array_equal(fitted.score(others)[:64], before[:64])


def test_with_classes_the_fit_is_conditional() -> None:
    def part(n: int, seed: int) -> Part:
        plain = _part(n, seed).cells
        classes = np.arange(n) % 2
        return Part(0.3 * plain + np.where(classes == 0, -1.0, 1.0)[:, None], classes)

    evaluated = part(300, 2)
    assert evaluated.classes is not None
    fitted = roundtrip(part(2000, 0), part(300, 1), 1, config=replace(SMALL, checks=1), n_draws=500)
    assert fitted.chosen["fit"] == "conditional"
    right, wrong = fitted.score(evaluated), fitted.score(Part(evaluated.cells, 1 - evaluated.classes))
    assert np.mean(right > wrong) > 0.95
    within_class = (evaluated.cells - np.where(evaluated.classes == 0, -1.0, 1.0)[:, None]) / 0.3
    truth = NORMAL.logpdf(within_class) - 2.0 * np.log(0.3)
    assert -0.4 < right.mean() - truth.mean() < 0.1
    unknown = fitted.score(Part(evaluated.cells[:2], np.array([0, 2])))
    assert np.isnan(unknown).tolist() == [False, True]


def _failing_phase(bad_round: int) -> Phase:
    """Four rounds of ten steps; one of them leaves the finite numbers."""

    class State:
        def __init__(self, n_rounds: int) -> None:
            self.n_rounds, self.average = n_rounds, {"w": tf.constant(float(n_rounds))}

    def run(state: State, *_: object) -> tuple[State, dict[str, tf.Tensor]]:
        bad = 3 if state.n_rounds + 1 == bad_round else -1
        return State(state.n_rounds + 1), {"loss": tf.constant(1.0), "first_bad_step": tf.constant(bad)}

    return Phase("egm", n_rounds=4, rounds_per_epoch=None, steps_per_round=10, start=lambda _: State(0), run=run)


def _looked(bad_round: int) -> list[int]:
    rows = Rows(np.arange(5), np.zeros((5, 2), np.float32), np.zeros(5), None)
    config = replace(CONFIG, seed=0, checks=4)
    phase, choice = _failing_phase(bad_round), Choice(1.0, 1.0, 1, 0.0)
    looks = _looks(phase, {}, rows, config, lambda _: choice, kept.KeptState(None, "settings"))
    return [look.n_steps for look in looks]


def test_training_that_fails_late_ends_with_the_looks_before_it() -> None:
    assert _looked(bad_round=9) == [10, 20, 30, 40]
    assert _looked(bad_round=3) == [10, 20]


def test_training_that_fails_at_once_is_an_error_with_a_way_out() -> None:
    with pytest.raises(NumericalFailure) as caught:
        _looked(bad_round=1)
    assert str(caught.value) == (
        "error: the training of roundtrip fails within its first 10 steps\n"
        "  a loss that is not finite, of 5 training rows\n"
        "hint: evaluate without --baseline roundtrip"
    )
    assert caught.value.exit_code == 4


def test_a_training_that_was_stopped_goes_on_to_the_same_numbers_of_the_same_seed(
    fitted: FittedRoundtrip, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kept, "_SECONDS_BETWEEN", 0.0)
    keeper = StoppingKeeper()
    keeper.n_left = 3
    with pytest.raises(Stopped):
        roundtrip(TRAIN, VALIDATION, 1, config=SMALL, n_draws=1000, keeper=keeper)
    (state,) = keeper.values()
    assert (int(state["n_rounds"]), "numbers/0" in state, "numbers/1" in state) == (3, True, False)  # of 6 rounds
    for n_left in (-3, -3):  # three rounds from there; none when it is done
        again = roundtrip(TRAIN, VALIDATION, 1, config=SMALL, n_draws=1000, keeper=keeper)
        assert again.chosen == fitted.chosen
        assert np.array_equal(again.score(EVALUATED), fitted.score(EVALUATED))
        assert keeper.n_left == n_left
