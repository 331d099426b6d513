"""What a scoring config leaves to the rows."""

from dataclasses import fields, replace
from typing import Any, TypeVar

from bayesnde_cli.config import SCORED_IMAGES, SCORED_TABLE, PosteriorConfig
from bayesnde_cli.data.schema import Schema

ConfigT = TypeVar("ConfigT", bound=PosteriorConfig)


def settled(config: ConfigT, schema: Schema) -> ConfigT:
    """The config for rows of this schema: nothing is left open, and what was set stays."""
    usual = SCORED_TABLE if schema.image is None else SCORED_IMAGES
    names = {item.name for item in fields(config)}
    open_ones: dict[str, Any] = {
        name: value for name, value in usual.items() if name in names and getattr(config, name) is None
    }
    return replace(config, **open_ones)
