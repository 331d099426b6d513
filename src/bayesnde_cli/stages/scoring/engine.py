"""What a scoring stage needs of the numerical engine, and how it is opened."""

from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np

from bayesnde_cli.artifacts.layout import RunLayout
from bayesnde_cli.config import PosteriorConfig
from bayesnde_cli.inference.block import Draws, Rows
from bayesnde_cli.rng import derive_seed
from bayesnde_cli.stages.scoring.job import Job

if TYPE_CHECKING:
    from bayesnde_cli.inference.budget import EngineSettings
    from bayesnde_cli.stages.scoring.first_look import FirstLook


class Engine(Protocol):
    """Draws and scores blocks of rows; equal arguments give equal bits."""

    def sample(self, rows: Rows, seed: int) -> Draws: ...

    def score(self, rows: Rows, draws: Draws, seed: int, n_real: int | None = None) -> dict[str, np.ndarray]:
        """`n_real` rows are the user's; those after them fill the block up, and their figures are not looked at."""

    def diagnostics(self, draws: Draws) -> dict[str, np.ndarray]: ...


class Opened(NamedTuple):
    """An engine, and what it computes on: `cpu, 2 threads`; with a condition, how it takes a first look at classes."""

    engine: Engine
    device: str
    first_look: "FirstLook | None" = None


EngineFactory = Callable[[RunLayout, PosteriorConfig], Opened]


@dataclass
class LazyOpened:
    """An engine that is opened when it is first needed."""

    layout: RunLayout
    config: PosteriorConfig
    factory: EngineFactory

    @cached_property
    def opened(self) -> Opened:
        return self.factory(self.layout, self.config)


@dataclass
class LazyEngine:
    """An engine that is opened when the first block needs it: combining blocks does without TensorFlow.

    `StaleArtifact` if the model is then another one than the job was made for.
    """

    job: Job
    factory: EngineFactory

    @cached_property
    def _opened(self) -> Opened:
        opened = self.factory(self.job.layout, self.job.config)
        self.job.refuse_other_model()  # afterwards: what was read cannot change any more
        return opened

    @property
    def engine(self) -> Engine:
        return self._opened.engine

    @property
    def device(self) -> str:
        """What the blocks of this process were computed on."""
        return self._opened.device if "_opened" in vars(self) else "none: all blocks were there"


def open_engine(layout: RunLayout, config: PosteriorConfig, *, is_verbose: bool = False) -> Opened:
    """The engine for the refined model of a run."""
    from bayesnde_cli.model.backend import load_tensorflow

    device = load_tensorflow(verbose=is_verbose, device=config.device, threads=config.threads).device
    from bayesnde_cli.inference import engine
    from bayesnde_cli.stages.scoring.first_look import ClassScreen
    from bayesnde_cli.stages.scoring.fitted_model import read_model

    assert config.seed is not None
    model = read_model(layout, derive_seed(config.seed, "posterior", "known latents"), config.blur)
    first_look = ClassScreen(model) if model.n_classes else None
    return Opened(engine.Engine(model, engine_settings(config)), device, first_look)


def engine_settings(config: PosteriorConfig) -> "EngineSettings":
    """Those of the engine's settings that a config has; the others are the engine's own."""
    from bayesnde_cli.inference.budget import EngineSettings

    names = [item.name for item in fields(EngineSettings) if hasattr(config, item.name)]
    return EngineSettings(**{name: getattr(config, name) for name in names})
