"""The time that training is expected to take."""

import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

import fake_training
from bayesnde_cli.model.coders import Networks
from bayesnde_cli.model.networks import NetworkSpec
from bayesnde_cli.rows import Rows
from bayesnde_cli.settings.stage_settings import MOST_CYCLE_OPERATIONS, RefineSettings, WarmstartSettings
from bayesnde_cli.training import forecast as forecast_module
from bayesnde_cli.training.forecast import Forecast, forecast, measure_speed
from bayesnde_cli.training.recipes import fresh_networks, phases_of

ROWS = Rows(np.random.default_rng(0).standard_normal((4096, 5)).astype(np.float32))
NETWORKS = Networks(NetworkSpec(5, 5, kind="mlp", width=64, depth=2), NetworkSpec(5, 5, kind="mlp", width=64, depth=2))


def test_later_cycles_count_only_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forecast_module, "_COMPILE_SECONDS", 0.0)
    phases = phases_of(RefineSettings(seed=0).with_defaults(4096), NETWORKS, ROWS)
    found, first = forecast(phases, 1e9), phases[0].pace.operations / 1e9
    assert found.usual == pytest.approx(7 * first)
    assert found.longest == pytest.approx((2 ** len(phases) - 1) * first)
    assert found.longest * 1e9 <= MOST_CYCLE_OPERATIONS
    monkeypatch.setattr(forecast_module, "_COMPILE_SECONDS", 2.0)
    assert forecast(phases, 1e9).usual == pytest.approx(found.usual + 2.0)  # all cycles share one program


def test_large_networks_get_fewer_cycles() -> None:
    most = {}
    for recipe in ("small", "large"):
        networks = fresh_networks(WarmstartSettings(recipe=recipe).with_defaults(4096), 40, 0)
        phases = phases_of(RefineSettings(seed=0).with_defaults(4096), networks, ROWS)
        assert sum(phase.pace.operations for phase in phases) <= MOST_CYCLE_OPERATIONS
        most[recipe] = len(phases)
    assert most["small"] > most["large"] >= 1


def test_a_time_is_told_as_exactly_as_it_is_known() -> None:
    assert str(Forecast(64.0, 64.0)) == "about 1 min 0 s"
    assert str(Forecast(3.0, 3.0)) == "about 10 s"
    assert str(Forecast(64.0, 1000.0)) == "about 1 min 0 s, and up to 17 min 0 s if longer training keeps gaining"


def test_the_speed_is_that_of_a_training_step() -> None:
    phase, *_ = phases_of(
        WarmstartSettings(seed=0, column_steps=0, steps=200, recipe="medium").with_defaults(4096), *_medium()
    )
    state, data = phase.objective.start(_weights(), (tf.constant(ROWS.x), None)), (tf.constant(ROWS.x), None)
    state, _ = phase.run(state, data, tf.constant(0))
    started = time.perf_counter()
    state, losses = phase.run(state, data, tf.constant(0))
    assert np.isfinite(float(losses["loss"]))
    seconds = (time.perf_counter() - started) * phase.pace.n_rounds
    # Within a factor of five: other processes share the machine.
    assert 0.2 < phase.pace.operations / measure_speed() / seconds < 5.0


def _medium() -> tuple[Networks, Rows]:
    return fresh_networks(WarmstartSettings(recipe="medium").with_defaults(4096), 5, 0), ROWS


def _weights() -> dict[str, tf.Tensor]:
    from bayesnde_cli.training.recipes import first_weights

    return first_weights(WarmstartSettings(seed=0), _medium()[0])


@pytest.mark.parametrize(("minutes", "is_tried"), [("1000", True), ("0.1", False), (None, True)])
def test_recipes_are_tried_if_there_is_time(
    minutes: str | None, is_tried: bool, bayesnde: Callable, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forecast_module, "measure_speed", lambda: 1e11)
    target = tmp_path / "run"
    (target / "prepare").mkdir(parents=True)
    for file in (run / "prepare").iterdir():
        (target / "prepare" / file.name).write_bytes(file.read_bytes())
    with fake_training.installed():
        outcome = bayesnde("warmstart", "--run", target, *(("--minutes", minutes) if minutes else ()))
    assert outcome.code == 0, outcome.err
    assert (target / "warmstart/recipe.parquet").exists() is is_tried
    assert ("no recipes are tried" in outcome.err) is not is_tried
    assert ("expected time: " in outcome.err) is (minutes is None)
