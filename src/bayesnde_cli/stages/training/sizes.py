"""What a training config leaves to the training rows."""

from dataclasses import fields, replace
from typing import TypeVar

from bayesnde_cli.config import IMAGES, LARGE_TABLE, SMALL_TABLE, SMALL_TABLE_ROWS, TrainingConfig, WarmstartConfig
from bayesnde_cli.config.training import MOST_MAPPED_CLASSES
from bayesnde_cli.errors import BadConfig

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


def refuse_misfits(config: WarmstartConfig, n_classes: int, *, are_images: bool) -> None:
    """Refuse settings that mean nothing for these rows."""
    if are_images and config.depth is not None:
        raise BadConfig(
            "networks of images have a depth of their own",
            found=f"depth: {config.depth}",
            hint="leave --depth out; --width sets their number of channels; their --preset fast is fast-images",
        )
    if config.class_maps and not (are_images and n_classes):
        raise BadConfig(
            "only decoders of images with a condition have maps for each class",
            found=f"{'images' if are_images else 'a table'}, {n_classes or 'no'} classes",
            hint="leave --class-maps out",
        )
