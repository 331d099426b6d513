"""What a training config leaves to the training rows."""

from dataclasses import fields, replace
from typing import TypeVar

from bayesnde_cli.config import IMAGES, LARGE_TABLE, SMALL_TABLE, SMALL_TABLE_ROWS, TrainingConfig

ConfigT = TypeVar("ConfigT", bound=TrainingConfig)


def sized(config: ConfigT, n_rows: int, *, are_images: bool = False) -> ConfigT:
    """The config for so many training rows: nothing is left open, and what was set stays."""
    usual = IMAGES if are_images else SMALL_TABLE if n_rows < SMALL_TABLE_ROWS else LARGE_TABLE
    names = {item.name for item in fields(config)}
    open_ones = {name: value for name, value in usual.items() if name in names and getattr(config, name) is None}
    return replace(config, **open_ones)
