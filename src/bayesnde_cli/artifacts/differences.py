"""What differs between two identities, in lines that a person can read."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from bayesnde_cli.artifacts.canonical import json_bytes
from bayesnde_cli.artifacts.layout import RunLayout
from bayesnde_cli.errors import SettingsDiffer


def compare(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """One line for each value that differs, as `scale: 'marginal' -> 'standard'`; nested keys are dotted.

    Both are compared as JSON would keep them: a tuple equals a list, and `1`, `1.0` and `true` are three values. A
    setting that is not there equals None: what an earlier version did not know of and nobody has set is no difference.
    """
    return _differences(json.loads(json_bytes(old)), json.loads(json_bytes(new)), "")


def settings_differ(layout: RunLayout, stage: str, set_name: str | None, differences: Sequence[str]) -> SettingsDiffer:
    """The error for a stage that was made, or begun, with another identity."""
    return SettingsDiffer(
        f"{layout.label(stage, set_name)} was made with other settings or data",
        found=differences,
        hint=f"run `{layout.command(stage, set_name, '--restart')}` with the same options to make it again, "
        "or keep it and use another run directory with `--run OTHER`",
    )


def _differences(old: dict[str, Any], new: dict[str, Any], prefix: str) -> list[str]:
    lines = []
    for key in sorted(old.keys() | new.keys()):
        was, is_now = old.get(key), new.get(key)
        if isinstance(was, dict) and isinstance(is_now, dict):
            lines += _differences(was, is_now, f"{prefix}{key}.")
        elif json_bytes(was) != json_bytes(is_now):
            lines.append(f"{prefix}{key}: {_shown(was)} -> {_shown(is_now)}")
    return lines


def _shown(value: Any) -> str:
    if value is None:
        return "(none)"
    if isinstance(value, str) and len(value) == 64 and set(value) <= set("0123456789abcdef"):
        return f"{value[:12]}…"  # a SHA-256
    return repr(value)
