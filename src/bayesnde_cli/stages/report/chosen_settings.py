"""What somebody chose in making a run: the settings that a command must repeat to make it again."""

from collections.abc import Mapping
from typing import Any

from bayesnde_cli.artifacts.manifest import Manifest
from bayesnde_cli.config import STAGE_CONFIGS, read_preset


def chosen_settings(made: Mapping[str, Manifest], *, are_images: bool = False) -> dict[str, dict[str, Any]]:
    """The settings of each stage that are not the defaults. The depth of networks of images cannot be chosen."""
    run_seed = {"seed": made["prepare"].seed}  # the default of every later stage
    found = {}
    for stage, manifest in made.items():
        defaults = STAGE_CONFIGS[stage]().as_dict() | (run_seed if stage != "prepare" else {})
        stored = defaults | manifest.config
        found[stage] = {
            name: stored[name]
            for name, default in defaults.items()
            if stored[name] != default and not (are_images and name == "depth")
        }
    return found


def fast_settings(made: Mapping[str, Manifest]) -> dict[str, list[str]]:
    """The settings, by stage, that the preset fast sets; none if one of them is not what the preset says."""
    preset = read_preset("fast")
    is_fast = all(
        stage in made and made[stage].config.get(name) == value
        for stage, table in preset.items()
        for name, value in table.items()
    )
    return {stage: list(table) for stage, table in preset.items()} if is_fast else {}
