"""The fitted model as `evaluate` uses it: rows of its own, a quick log-density of any rows, and what it decodes."""

from collections.abc import Callable
from typing import Protocol

import numpy as np

from bayesnde_cli.artifacts.layout import RunLayout
from bayesnde_cli.config import EvaluateConfig


class Model(Protocol):
    """Simulates rows and scores them, in the model's space; equal arguments give equal numbers."""

    device: str

    @property
    def latent_dim(self) -> int: ...

    def decode(self, z: np.ndarray, y: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
        """Mean and variance of every column, (latents, p) each; z (latents, d), one-hot y (latents, classes)."""

    def simulate(self, n_rows: int, y: np.ndarray | None, seed: int) -> np.ndarray:
        """Rows of the model, (rows, p) float32; `y` (rows, classes) are their classes, one-hot."""

    def log_density(self, x: np.ndarray, y: np.ndarray | None, seed: int) -> np.ndarray:
        """Estimates of log p(x) by importance sampling, (rows,) float64."""


ModelFactory = Callable[[RunLayout, EvaluateConfig], Model]


def open_model(layout: RunLayout, config: EvaluateConfig, *, is_verbose: bool = False) -> Model:
    """The refined model of a run."""
    from bayesnde_cli.model.backend import load_tensorflow

    device = load_tensorflow(verbose=is_verbose, device=config.device, threads=config.threads).device
    from bayesnde_cli.stages.evaluate.fitted_model import RefinedModel

    return RefinedModel(layout, config.typicality_draws, device)
