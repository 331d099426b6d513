"""What a training config leaves to the training rows."""

from dataclasses import fields, replace
from typing import TypeVar

from bayesnde_cli.config import IMAGES, LARGE_TABLE, SMALL_TABLE, SMALL_TABLE_ROWS, TrainingConfig, WarmstartConfig
from bayesnde_cli.config.training import MOST_MAPPED_CLASSES

ConfigT = TypeVar("ConfigT", bound=TrainingConfig)


def sized(config: ConfigT, n_rows: int, *, are_images: bool = False, n_classes: int = 0) -> ConfigT:
    """The config for so many training rows: nothing is left open, and what was set stays."""
    usual = IMAGES if are_images else SMALL_TABLE if n_rows < SMALL_TABLE_ROWS else LARGE_TABLE
    if are_images and isinstance(config, WarmstartConfig):
        usual = usual | {"class_maps": has_class_maps(config, n_classes)}
    names = {item.name for item in fields(config)}
    open_ones = {name: value for name, value in usual.items() if name in names and getattr(config, name) is None}
    return replace(config, **open_ones)


def has_class_maps(config: WarmstartConfig, n_classes: int) -> bool:
    """Whether the decoder of images of so many classes has a map of the latents for each of them."""
    return 0 < n_classes <= MOST_MAPPED_CLASSES if config.class_maps is None else config.class_maps
