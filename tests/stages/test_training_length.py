"""How long a training stage goes on: epochs, steps, or the usual number."""

import pytest

from bayesnde_cli.config import RefineConfig, TrainingConfig, WarmstartConfig
from bayesnde_cli.model.networks import NetworkSpec
from bayesnde_cli.stages.training.phases import Networks, _Pace

BATCH = 256


def n_epochs(config: TrainingConfig, n_rows: int, kind: str = "mlp") -> int:
    spec = NetworkSpec(2, 2, kind=kind, width=8, depth=1)
    return _Pace(config, Networks(spec, spec), n_rows).n_epochs


@pytest.mark.parametrize(
    ("config", "n_rows", "kind", "expected"),
    [
        (WarmstartConfig(), 60 * BATCH, "mlp", 100),  # 6,000 steps
        (RefineConfig(), 60 * BATCH, "mlp", 200),  # 12,000 of them for small networks
        (RefineConfig(), 60 * BATCH, "residual", 100),
        (WarmstartConfig(), 6000 * BATCH, "mlp", 30),  # a large table is seen several times nevertheless
        (WarmstartConfig(), 8 * BATCH, "mlp", 400),  # a small one not for ever
        (RefineConfig(), 8 * BATCH, "mlp", 250),
        (RefineConfig(), 8 * BATCH, "residual", 400),
        (WarmstartConfig(steps=1000), 60 * BATCH, "mlp", 17),  # whole epochs
        (WarmstartConfig(steps=1000), 6000 * BATCH, "mlp", 1),
        (WarmstartConfig(steps=10000), 8 * BATCH, "mlp", 1250),
        (WarmstartConfig(steps=1000, epochs=3), 60 * BATCH, "mlp", 3),  # the plainer word counts
    ],
)
def test_epochs(config: TrainingConfig, n_rows: int, kind: str, expected: int) -> None:
    assert n_epochs(config, n_rows, kind) == expected
