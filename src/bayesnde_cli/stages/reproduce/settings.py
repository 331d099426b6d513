"""The settings of every stage of an arm."""

from collections.abc import Sequence
from typing import TypeVar

from bayesnde_cli.config import (
    DensityConfig,
    EvaluateConfig,
    PrepareConfig,
    RefineConfig,
    StageConfig,
    WarmstartConfig,
    read_preset,
    resolve,
)
from bayesnde_cli.stages.fit import FitSettings
from bayesnde_cli.stages.reproduce.experiments import Experiment, Recipe

ConfigT = TypeVar("ConfigT", bound=StageConfig)


def arm_settings(
    experiment: Experiment, recipe: Recipe, *, seed: int, test_rows: int | None, more: Sequence[str] = ()
) -> FitSettings:
    """The settings of a recipe; `more` are the user's. The seed is the model's: rows, noise and split stay the same.

    The environment has no say: an arm is what its command says.
    """

    def of(config_class: type[ConfigT]) -> ConfigT:
        having = [name for name in recipe.presets if config_class.stage in read_preset(name)]
        settings = [*recipe.settings, *recipe.fixed, f"{config_class.stage}.seed={seed}", *more]
        return resolve(
            config_class, flags={}, environ={}, preset=having[-1] if having else None, assignments=settings
        )  # fmt: skip

    return FitSettings(
        prepare_settings(experiment, test_rows, (*recipe.settings, *recipe.fixed, *more)),
        of(WarmstartConfig),
        of(RefineConfig),
        of(DensityConfig),
        # The competitors are arms of their own; of many classes the accuracy would cost more than all else.
        resolve(
            EvaluateConfig, flags={}, environ={},
            assignments=[f"evaluate.seed={seed}", "evaluate.baselines=false", "evaluate.accuracy_rows=0", *more],
        ),
    )  # fmt: skip


def prepare_settings(experiment: Experiment, test_rows: int | None, settings: Sequence[str]) -> PrepareConfig:
    """The experiment's protocol of the data, with some settings changed."""
    limit = [] if test_rows is None else [f"prepare.test_rows={test_rows}"]
    return resolve(
        PrepareConfig, flags={}, environ={}, preset=experiment.preset, assignments=[*limit, *settings]
    )  # fmt: skip
