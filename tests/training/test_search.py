"""The choice of a recipe, and cycles of refinement that go on as long as they gain."""

import itertools
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from bayesnde_cli.cli.console import Console
from bayesnde_cli.model.coders import Networks
from bayesnde_cli.model.networks import NetworkSpec
from bayesnde_cli.rows import Rows
from bayesnde_cli.settings.stage_settings import (
    CYCLE_GAIN_LIMITS,
    CYCLE_GAIN_ROWS,
    FIRST_CYCLE_STEPS,
    RefineSettings,
    WarmstartSettings,
)
from bayesnde_cli.training import recipes, search
from bayesnde_cli.training.loop import Progress, Training
from bayesnde_cli.training.recipes import first_weights, fresh_networks, phases_of

REPORT = Console(quiet=True)
N_ROWS = 400
NAMES = ("small", "medium", "large")


def _made_up(rng: np.random.Generator, n_rows: int) -> Rows:
    """Two columns on a thin line: independent columns are two nats worse."""
    first = rng.standard_normal(n_rows)
    return Rows(np.stack([first, first + 0.1 * rng.standard_normal(n_rows)], axis=1).astype(np.float32))


def _candidate(name: str, **settings: Any) -> search.Candidate:
    complete = WarmstartSettings(seed=0, validation_draws=8, **settings).with_defaults(N_ROWS)
    networks = fresh_networks(complete, 2, 0)
    return search.Candidate(name, complete, networks, first_weights(complete, networks))


def _training_rows(train: Rows) -> Any:
    data = tf.constant(train.x), None
    return SimpleNamespace(first=train, n_rows=len(train), n_epoch_rows=len(train), epoch=lambda _: data)


def _choose(candidates: list[search.Candidate]) -> list[dict[str, Any]]:
    rng = np.random.default_rng(0)
    train, held_out = _made_up(rng, N_ROWS), _made_up(rng, 100)
    rows = _training_rows(train)
    return search.choose(candidates, search.trials(candidates, rows), rows, held_out, REPORT)


def test_a_recipe_that_cannot_fit_the_rows_loses(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, steps in (("_WARMSTART_STEPS", 80), ("_COLUMN_STEPS", 20), ("_REFINE_STEPS", 40)):
        monkeypatch.setattr(search, name, steps)
    frozen = _candidate("small", width=8, depth=1, learning_rate=0.0)
    able = _candidate("large", width=8, depth=1, learning_rate=0.02)
    records = _choose([frozen, able])
    assert search.chosen_recipe(records) == "large"
    first = {record["recipe"]: record for record in records if record["part"] == "warmstart"}
    assert first["large"]["below_best"] == 0.0
    assert first["small"]["below_best"] > 0.3
    assert (first["small"]["width"], first["small"]["n_rows"]) == (8, 100)
    # The same with the cheap one able: the result does not depend on the order.
    assert search.chosen_recipe(_choose([able._replace(name="small"), frozen._replace(name="large")])) == "small"


@pytest.fixture
def chosen_by(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[dict[str, Any]]]:
    """The records where candidates have these scores of the held-out rows after each part."""

    def choose(**scores: list[np.ndarray]) -> list[dict[str, Any]]:
        trained = dict.fromkeys(scores, 0)

        def score(candidate: Any, _weights: Any, _held_out: Any) -> np.ndarray:
            trained[candidate.name] += 1
            return scores[candidate.name][trained[candidate.name] - 1]

        monkeypatch.setattr(search, "_train", lambda *_: {})
        monkeypatch.setattr(search, "_score", score)
        settings = SimpleNamespace(seed=0, width=1, depth=1, weight_decay=0.0)
        candidates: Any = [search.Candidate(name, settings, None, {}) for name in scores]  # type: ignore[arg-type]
        parts: search.Trials = {name: ([], []) for name in scores}
        rows = _training_rows(Rows(np.zeros((9, 1))))
        return search.choose(candidates, parts, rows, Rows(np.zeros((50, 1))), REPORT)

    return choose


def test_those_clearly_below_are_dropped_and_the_cheapest_of_equals_is_chosen(chosen_by: Callable) -> None:
    noise = np.random.default_rng(1).standard_normal(50)
    zero, one = np.zeros(50), np.ones(50)
    # After the first part medium is far below; in the end small is below large by less than a standard error.
    records = chosen_by(small=[0.1 * noise, zero + 0.05], medium=[-one], large=[zero, 0.1 + noise])
    assert [(record["part"], record["recipe"]) for record in records] == [
        *(("warmstart", name) for name in NAMES),
        ("refine", "small"),
        ("refine", "large"),
    ]
    assert search.chosen_recipe(records) == "small"
    # A difference that is known exactly counts, however small it is.
    assert (
        search.chosen_recipe(chosen_by(small=[0.1 * noise, zero], medium=[-one], large=[zero, zero + 0.01])) == "large"
    )
    # Those that may be as good as the best one are all tried again.
    again = chosen_by(small=[noise - 0.2, -one], medium=[zero, zero], large=[noise - 0.1, one])
    assert [record["part"] for record in again] == ["warmstart"] * 3 + ["refine"] * 3
    assert search.chosen_recipe(again) == "large"


@pytest.mark.usefixtures("eager")
def test_a_search_that_was_stopped_goes_on_where_it_was(chosen_by: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    kept: dict[str, dict[str, np.ndarray]] = {}
    n_computed: list[str] = []

    def once(name: str, compute: Callable[[], dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
        if name not in kept:
            if len(kept) in stops:
                stops.remove(len(kept))
                raise KeyboardInterrupt
            n_computed.append(name)
            kept[name] = compute()
        return dict(kept[name])

    for name, steps in (("_WARMSTART_STEPS", 8), ("_COLUMN_STEPS", 4), ("_REFINE_STEPS", 4), ("_CLEARLY", 1e9)):
        monkeypatch.setattr(search, name, steps)
    rng = np.random.default_rng(0)
    rows, held_out = _training_rows(_made_up(rng, N_ROWS)), _made_up(rng, 100)
    candidates = [_candidate(name, width=width, depth=1) for name, width in (("small", 4), ("large", 8))]
    parts = search.trials(candidates, rows)
    expected, stops = search.choose(candidates, parts, rows, held_out, REPORT), {1, 3}
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            search.choose(candidates, parts, rows, held_out, REPORT, once)
    assert search.choose(candidates, parts, rows, held_out, REPORT, once) == expected
    assert n_computed == ["warmstart-small", "warmstart-large", "refine-small", "refine-large"]


def test_nothing_more_is_tried_where_the_choice_is_clear(chosen_by: Callable) -> None:
    noise = 0.1 * np.random.default_rng(1).standard_normal(50)
    records = chosen_by(small=[noise - 1.0], medium=[np.zeros(50)], large=[noise - 2.0])
    assert [record["part"] for record in records] == ["warmstart"] * 3
    assert search.chosen_recipe(records) == "medium"


def test_a_network_that_costs_more_takes_fewer_steps() -> None:
    narrow, wide = _candidate("small", width=8, depth=1), _candidate("large", width=32, depth=2)
    assert search._cost(wide) > 4 * search._cost(narrow)
    train = _made_up(np.random.default_rng(0), N_ROWS)
    for share in (0.5, 1.0, 2.0):
        for phases, steps in zip(search._parts(narrow, _training_rows(train), share), (600, 300), strict=True):
            pace = phases[-1].pace
            assert abs(pace.n_rounds * pace.steps_per_round - share * steps) <= pace.steps_per_epoch


def test_training_rows_are_held_out_where_validation_rows_are_few() -> None:
    rng = np.random.default_rng(0)
    train, many, few = (_made_up(rng, n) for n in (400, 200, 30))
    assert len(search.hold_out(train, many, 0).trained) == 400
    index, rows, n_rows = search.hold_out(train, few, 0)
    assert (len(index), len(rows), n_rows) == (300, 130, 130)  # a quarter of the training rows, though 200 are wanted
    held_out = set(map(tuple, rows.x.tolist()))
    assert not held_out & set(map(tuple, train.x[index].tolist()))
    assert set(map(tuple, few.x.tolist())) <= held_out
    # A row with very many copies leaves room for others.
    copied = Rows(np.concatenate([np.repeat(train.x[:1], 200, axis=0), train.x[:200]]))
    for seed in range(20):
        index, _, n_rows = search.hold_out(copied, few, seed)
        assert (len(index), n_rows) == (300, 130)


NETWORKS = Networks(NetworkSpec(2, 2, kind="mlp", width=4, depth=1), NetworkSpec(2, 2, kind="mlp", width=4, depth=1))


def test_cycles_double_and_share_one_program() -> None:
    settings = RefineSettings(seed=0).with_defaults(N_ROWS)
    first, second, third, *_ = phases_of(settings, NETWORKS, _made_up(np.random.default_rng(0), N_ROWS))
    assert FIRST_CYCLE_STEPS <= first.pace.n_rounds * first.pace.steps_per_round < FIRST_CYCLE_STEPS + 8
    assert (second.pace.n_rounds, third.pace.n_rounds) == (2 * first.pace.n_rounds, 4 * first.pace.n_rounds)
    assert third.run is first.run
    # Random numbers are not used twice.
    assert second.first_epoch == first.pace.n_epochs
    assert third.first_epoch == second.first_epoch + second.pace.n_epochs
    assert float(third.objective.start({}, None).extra[0]) == third.pace.n_epochs
    low, high = CYCLE_GAIN_LIMITS
    assert (first.least_gain, second.least_gain) == (None, min(max(CYCLE_GAIN_ROWS / N_ROWS, low), high))
    for one in (
        RefineSettings(seed=0, steps=10),
        RefineSettings(seed=0, epochs=2),
        RefineSettings(latent_update="map"),
    ):
        assert len(phases_of(one.with_defaults(N_ROWS), NETWORKS, _made_up(np.random.default_rng(0), N_ROWS))) == 1


@pytest.mark.parametrize(("end", "is_needed"), [(-1.94, True), (-1.96, False), (-2.1, False), (None, False)])
def test_a_cycle_follows_one_that_gained_enough(end: float | None, is_needed: bool) -> None:
    settings = RefineSettings(seed=0).with_defaults(N_ROWS)
    phases = phases_of(settings, NETWORKS, _made_up(np.random.default_rng(0), N_ROWS))
    training = Training(settings, phases, lambda _: None, lambda _: {}, tf.constant(0))
    assert phases[1].least_gain == 0.05
    before = {"phase": phases[0].name, "round": 0, "marginal": -2.0}
    checks = [before, before | {"round": 1, "marginal": -2.5}, before | {"round": 2, "marginal": end}]
    assert training._is_next_needed(Progress(0, 2, None, [], checks)) is is_needed


def test_a_cycle_that_memorises_ends_and_none_follows_it() -> None:
    settings = RefineSettings(seed=0).with_defaults(N_ROWS)
    phases = phases_of(settings, NETWORKS, _made_up(np.random.default_rng(0), N_ROWS))
    training = Training(settings, phases, lambda _: None, lambda _: {}, tf.constant(0))

    def progress(*marginals: float) -> Progress:
        checks = [{"phase": phases[0].name, "round": at, "marginal": own} for at, own in enumerate(marginals)]
        return Progress(0, len(checks) - 1, None, [], checks)

    assert not training._is_phase_over(progress(-2.0, -1.5, -1.6))
    assert not training._is_phase_over(progress(-2.0, -3.0, -2.9, -2.8))  # it regains what it lost at first
    assert training._is_phase_over(progress(-2.0, -1.5, -1.6, -1.7))
    assert training._is_next_needed(progress(-2.0, -1.7, -1.5))
    assert not training._is_next_needed(progress(-2.0, -1.5, -1.6))  # it gained, and then lost


@pytest.mark.parametrize("most", [0.5, 1.0, 2.0, 6.0, 7.0, 19.0, 40.0])
def test_cycles_take_all_operations_that_there_are(most: float, monkeypatch: pytest.MonkeyPatch) -> None:
    settings, rows = RefineSettings(seed=0).with_defaults(N_ROWS), _made_up(np.random.default_rng(0), N_ROWS)
    first = phases_of(settings, NETWORKS, rows)[0].pace
    monkeypatch.setattr(recipes.stage_settings, "MOST_CYCLE_OPERATIONS", most * first.operations)
    paces = [phase.pace for phase in phases_of(settings, NETWORKS, rows)]
    assert sum(pace.n_rounds for pace in paces) == max(1, int(most)) * first.n_rounds
    assert all(later.n_rounds >= pace.n_rounds for pace, later in itertools.pairwise(paces))


def test_training_that_could_go_on_says_so(capsys: pytest.CaptureFixture) -> None:
    settings = RefineSettings(seed=0).with_defaults(N_ROWS)
    phases = phases_of(settings, NETWORKS, _made_up(np.random.default_rng(0), N_ROWS))[:2]
    training = Training(settings, phases, lambda _: None, lambda _: {}, tf.constant(0))
    first, last = (phase.name for phase in phases)
    for end, is_told in ((-1.5, True), (-1.99, False)):
        checks = [{"phase": first, "round": 1, "marginal": -2.0}, {"phase": last, "round": 1, "marginal": end}]
        training._note_end(Progress(1, 1, None, [], checks), 0.05, Console())
        assert ("still gained" in capsys.readouterr().err) is is_told
