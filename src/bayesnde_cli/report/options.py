"""Settings as they are typed in a shell. None leaves a setting to its default."""

import shlex
from collections.abc import Mapping
from typing import Any


def options(settings: Mapping[str, Any]) -> list[str]:
    """The options of a stage's own command: `--split 0.5,0.25,0.25`, `--drop a`, `--no-baselines`."""
    typed = []
    for name, value in settings.items():
        option = f"--{name.replace('_', '-')}"
        if isinstance(value, bool):
            typed.append(option if value else f"--no-{option.removeprefix('--')}")
        elif value is not None:
            typed += [f"{option} {shlex.quote(word)}" for word in _words(value)]
    return typed


def assignments(stage: str, settings: Mapping[str, Any]) -> list[str]:
    """The same for `fit`: `--set refine.epochs=50`."""
    return [f"--set {shlex.quote(f'{stage}.{name}={_word(value)}')}" for name, value in settings.items()]


def _words(value: Any) -> list[str]:
    """What follows an option, one word for each time that it is typed."""
    if not isinstance(value, list | tuple):
        return [_word(value)]
    return list(value) if all(isinstance(part, str) for part in value) else [",".join(map(_word, value))]


def _word(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
