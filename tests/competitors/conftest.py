"""Smaller neural densities for tests."""

import pytest


@pytest.fixture
def small_networks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Smaller networks where that saves most time: rows with two columns need little."""
    for package in ("torch", "zuko", "normflows"):
        pytest.importorskip(package, reason="needs the extra bayesnde[baselines]")
    from bayesnde_cli.competitors import neural

    monkeypatch.setattr(neural, "N_BLOCKS", 4)
    monkeypatch.setattr(neural, "HIDDEN", 64)
    monkeypatch.setattr(neural, "_HIDDEN", 64)
