"""Every setting of every stage, declared once.

declare          how a setting is declared, and the messages for wrong values
stage_settings   the settings of each stage
resolve          flag > --set > environment > --config > --preset > default
presets/         named settings, one TOML file each
"""

from pathlib import Path

PRESETS = Path(__file__).resolve().parent / "presets"


def preset_names() -> list[str]:
    """The presets that come with the package. Here, as `--help` lists them without pydantic."""
    return sorted(path.stem for path in PRESETS.glob("*.toml"))
