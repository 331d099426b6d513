"""What tests of neural densities share."""

import pytest


@pytest.fixture
def small_networks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Smaller networks than a user's where that saves most time: rows in two columns ask for little."""
    pytest.importorskip("torch", reason="needs the extra bayesnde[baselines]")
    pytest.importorskip("zuko", reason="needs the extra bayesnde[baselines]")
    pytest.importorskip("normflows", reason="needs the extra bayesnde[baselines]")
    from bayesnde_cli.evaluation.baselines.neural import flow_matching, residual

    monkeypatch.setattr(residual, "N_BLOCKS", 4)
    monkeypatch.setattr(residual, "HIDDEN", 64)
    monkeypatch.setattr(flow_matching, "_HIDDEN", 64)
