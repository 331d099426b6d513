"""A setting: a field of a frozen class with its help, its choices and its range."""

import dataclasses
import difflib
import math
import types
import typing
from collections.abc import Sequence
from dataclasses import field
from typing import Any

from bayesnde_cli.errors import BadConfig


def setting(default: Any, help: str, **limits: Any) -> Any:
    """A config field.

    `limits`: `choices`, `minimum`, `maximum`, `metavar`, `panel` (its heading in the help), and `is_technical` (it
    says how to compute, not what, and is no part of a stage's identity).
    """
    return field(default=default, metadata={"help": help, **limits})


class StageConfig:
    """Base of all stage configs: checks every field's range when made."""

    stage: typing.ClassVar[str]

    def __post_init__(self) -> None:
        for item in dataclasses.fields(self):  # type: ignore[arg-type]
            check_range(item, getattr(self, item.name), where=f"{self.stage}.{item.name}")

    def as_dict(self) -> dict[str, Any]:
        """The settings as JSON-ready values, by name."""
        values = dataclasses.asdict(self)  # type: ignore[call-overload]
        return {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}

    def identity(self) -> dict[str, Any]:
        """The settings that decide the result."""
        technical = {item.name for item in dataclasses.fields(self) if item.metadata.get("is_technical")}  # type: ignore[arg-type]
        return {name: value for name, value in self.as_dict().items() if name not in technical}


def option_type(item: "dataclasses.Field[Any]") -> tuple[type, bool]:
    """The element type of a config field, and whether it holds several."""
    hint = item.type
    if typing.get_origin(hint) is tuple:
        return typing.get_args(hint)[0], True
    if isinstance(hint, types.UnionType):
        hint = next(part for part in typing.get_args(hint) if part is not type(None))
    assert isinstance(hint, type)
    return hint, False


def nearest(word: str, words: Sequence[str]) -> str | None:
    """The known word that the user probably meant."""
    matches = difflib.get_close_matches(word, words, n=1, cutoff=0.6)
    return matches[0] if matches else None


def nearest_hint(word: str, words: Sequence[str], otherwise: str) -> str:
    match = nearest(word, words)
    return f"did you mean '{match}'?" if match else otherwise


def coerce(item: "dataclasses.Field[Any]", value: Any, *, where: str) -> Any:
    """The value of a setting in its own type, from a flag, an environment text or a TOML value."""
    element, several = option_type(item)
    if value == "" and (several or item.default is None):
        return () if several and item.default == () else item.default  # an empty word takes back what a preset says
    if several:
        parts = list(value) if isinstance(value, list | tuple) else [value]
        if element is not str or "choices" in item.metadata:  # others are split where the columns' names are known
            parts = [piece for part in parts for piece in (part.split(",") if isinstance(part, str) else [part])]
        result: Any = tuple(_coerce_one(element, part, item, where) for part in parts)
    else:
        result = _coerce_one(element, value, item, where)
    check_range(item, result, where=where)
    return result


def _coerce_one(element: type, value: Any, item: "dataclasses.Field[Any]", where: str) -> Any:
    wanted = {str: "a word", int: "a whole number", float: "a number", bool: "true or false"}[element]
    try:
        if element is bool:
            if isinstance(value, bool):
                return value
            return {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}[str(value).lower()]
        if isinstance(value, bool):
            raise ValueError
        if element is str:
            if not isinstance(value, str):
                raise ValueError
            return value
        number = element(value)
        if isinstance(value, float) and element is int and number != value:
            raise ValueError
        if not math.isfinite(number):
            raise ValueError
    except (ValueError, KeyError, TypeError, OverflowError):
        raise BadConfig(f"{where} must be {wanted}", found=f"found: {value!r}", hint=item.metadata["help"]) from None
    return number


def check_range(item: "dataclasses.Field[Any]", value: Any, *, where: str) -> None:
    limits = item.metadata
    for part in value if isinstance(value, tuple) else (value,):
        if part is None:
            continue
        if "choices" in limits and part not in limits["choices"]:
            raise BadConfig(
                f"{where} cannot be {part!r}",
                found=f"choices: {', '.join(limits['choices'])}",
                hint=nearest_hint(str(part), limits["choices"], "use one of the choices"),
            )
        if "minimum" in limits and part < limits["minimum"]:
            raise BadConfig(
                f"{where} is too small",
                found=f"found: {part!r}, smallest: {limits['minimum']!r}",
                hint=limits["help"],
            )
        if "maximum" in limits and part > limits["maximum"]:
            raise BadConfig(
                f"{where} is too large",
                found=f"found: {part!r}, largest: {limits['maximum']!r}",
                hint=limits["help"],
            )
