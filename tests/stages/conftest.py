"""Runs whose test rows are scored, by stand-ins for engine and model."""

from collections.abc import Callable
from pathlib import Path

import pytest

import fake_model
from scoring_runs import SMALL


@pytest.fixture
def models(monkeypatch: pytest.MonkeyPatch) -> list:
    return fake_model.install(monkeypatch, fake_model.NormalModel())


@pytest.fixture
def scored(bayesnde: Callable, engines: list, models: list, run: Path) -> Path:
    """A run whose test rows are scored."""
    assert bayesnde("density", "--run", run, *SMALL).code == 0
    return run
