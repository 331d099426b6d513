"""A stand-in for the fitted model of `evaluate`: independent standard normal columns, whose log-density is known."""

from dataclasses import dataclass

import numpy as np
import pytest

from bayesnde_cli.runs.layout import RunLayout
from bayesnde_cli.settings.stage_settings import EvaluateSettings


@dataclass
class NormalModel:
    """Rows x ~ N(shift, I), scored as such."""

    n_columns: int = 3
    shift: float = 0.0
    device: str = "fake"
    n_scored: int = 0
    latent_dim: int = 1

    def prior(self, block_rows: int) -> "NormalPrior":
        return NormalPrior(np.full((block_rows, self.n_columns), self.shift, np.float32))

    def simulate(self, n_rows: int, y: np.ndarray | None, seed: int) -> np.ndarray:
        assert y is None or len(y) == n_rows
        rng = np.random.Generator(np.random.Philox(seed))
        return (self.shift + rng.standard_normal((n_rows, self.n_columns))).astype(np.float32)

    def log_density(self, x: np.ndarray, y: np.ndarray | None, seed: int) -> np.ndarray:
        assert y is None or len(y) == len(x)
        self.n_scored += len(x)
        return np.asarray(-0.5 * np.sum((x - self.shift) ** 2 + np.log(2 * np.pi), axis=1, dtype=np.float64))


@dataclass
class NormalPrior:
    """Its draws, in blocks of one size: every latent gives the same normal columns."""

    mean: np.ndarray  # (block, p)

    def moments(self, seed: int, y: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
        assert y is None or len(y) == len(self.mean)
        return self.mean, np.ones_like(self.mean)


def install(monkeypatch: pytest.MonkeyPatch, model: NormalModel) -> list[NormalModel]:
    """Have `evaluate` open this model; those that are opened, in a list that grows."""

    from bayesnde_cli.stages import loading

    opened: list[NormalModel] = []

    def factory(layout: RunLayout, config: EvaluateSettings, *, is_verbose: bool = False) -> NormalModel:
        opened.append(model)
        return model

    monkeypatch.setattr(loading, "open_model", factory)
    return opened
