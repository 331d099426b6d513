"""Settings: what there is to set (`stages`, `training`), and who decides (`resolve`)."""

from bayesnde_cli.config.fields import StageConfig, nearest, nearest_hint, option_type
from bayesnde_cli.config.resolve import preset_names, read_preset, resolve
from bayesnde_cli.config.stages import (
    NEURAL_BASELINES,
    SCORED_IMAGES,
    SCORED_TABLE,
    STAGE_CONFIGS,
    DensityConfig,
    EvaluateConfig,
    PosteriorConfig,
    PrepareConfig,
)
from bayesnde_cli.config.training import (
    IMAGES,
    LARGE_TABLE,
    SMALL_TABLE,
    SMALL_TABLE_ROWS,
    RefineConfig,
    TrainingConfig,
    WarmstartConfig,
)

__all__ = [
    "IMAGES",
    "LARGE_TABLE",
    "NEURAL_BASELINES",
    "SCORED_IMAGES",
    "SCORED_TABLE",
    "SMALL_TABLE",
    "SMALL_TABLE_ROWS",
    "STAGE_CONFIGS",
    "DensityConfig",
    "EvaluateConfig",
    "PosteriorConfig",
    "PrepareConfig",
    "RefineConfig",
    "StageConfig",
    "TrainingConfig",
    "WarmstartConfig",
    "nearest",
    "nearest_hint",
    "option_type",
    "preset_names",
    "read_preset",
    "resolve",
]
