"""How a setting is declared, how its value is checked, and the message for a wrong value.

A stage's settings are a frozen pydantic model. pydantic checks types, ranges and choices; this module adds the help
text and the group of every setting, accepts the texts of flags and environment variables, and turns pydantic's errors
into messages with three parts.
"""

import functools
import types
import typing
from collections.abc import Callable, Mapping
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from pydantic.fields import FieldInfo

from bayesnde_cli.errors import BadConfig, BayesndeError, bad_choice

# Headings of the options in `--help`, in the order in which they are declared.
GROUPS: list[str] = []
# Context of a check of values from one source: combinations are judged when all sources are merged.
_ONE_SOURCE = object()


class FieldHelp(NamedTuple):
    """What `--help` says about a setting."""

    text: str
    group: str
    metavar: str | None
    default: str


def group(heading: str, metavar: str | None = None) -> Callable[..., Any]:
    """A shorthand for `setting` that declares the settings under one heading."""
    GROUPS.append(heading)
    return functools.partial(setting, heading, metavar=metavar)


def setting(
    group: str,
    default: Any,
    help: str,
    *,
    ge: float | None = None,
    le: float | None = None,
    metavar: str | None = None,
    default_text: str | None = None,
    is_technical: bool = False,
) -> Any:
    """A field of a settings class, shown under the heading `group` in `--help`.

    `default_text` is shown in place of a default that depends on the data. A technical setting says how to compute,
    not what, and is not part of a stage's identity.
    """
    if default_text is None:
        is_empty = default is None or default is False or default == ()
        parts = default if isinstance(default, tuple) else (default,)
        default_text = "" if is_empty else "on" if default is True else ",".join(map(str, parts))
    extra: dict[str, Any] = {"help": FieldHelp(help, group, metavar, default_text), "is_technical": is_technical}
    return Field(default, description=help, ge=ge, le=le, json_schema_extra=extra)


class StageSettings(BaseModel):
    """Base of the settings of all stages."""

    # Schemas are built at the first check of a value: `--help` only needs the fields.
    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True, allow_inf_nan=False)

    stage: ClassVar[str]

    @model_validator(mode="before")
    @classmethod
    def _read_texts(cls, values: Any) -> Any:
        """Split lists that are given as text, and undo a preset's setting where the text is empty."""
        fields = cls.model_fields
        return {name: _read_text(fields[name], value) if name in fields else value for name, value in values.items()}

    def model_post_init(self, context: Any, /) -> None:
        if context is not _ONE_SOURCE:
            self.check_combination()

    def check_combination(self) -> None:
        """Raise `BadConfig` for settings that contradict each other."""

    def as_dict(self) -> dict[str, Any]:
        """The settings as JSON values, by name."""
        return self.model_dump(mode="json")

    def identity(self) -> dict[str, Any]:
        """The settings that decide the result."""
        technical = {name for name, field in type(self).model_fields.items() if _extra(field)["is_technical"]}
        return self.model_dump(mode="json", exclude=technical)

    def fill_in(self: "SettingsT", values: Mapping[str, Any]) -> "SettingsT":
        """The settings with these values for fields that are still None; other names are ignored."""
        known = type(self).model_fields
        unset = {name: value for name, value in values.items() if name in known and getattr(self, name) is None}
        return self.model_copy(update=unset)


SettingsT = TypeVar("SettingsT", bound=StageSettings)


class FieldKind(NamedTuple):
    """What a setting holds: one element or several, free or from a list of choices."""

    element: type
    is_list: bool
    choices: tuple[str, ...]


def field_kind(field: FieldInfo) -> FieldKind:
    """What a setting holds, read from its annotation."""
    hint: Any = field.annotation
    if isinstance(hint, types.UnionType) or typing.get_origin(hint) is typing.Union:
        hint = next(part for part in typing.get_args(hint) if part is not type(None))
    is_list = typing.get_origin(hint) is tuple
    if is_list:
        hint = typing.get_args(hint)[0]
    if typing.get_origin(hint) is Annotated:
        hint = typing.get_args(hint)[0]
    is_choice = typing.get_origin(hint) is Literal
    return FieldKind(str if is_choice else hint, is_list, typing.get_args(hint) if is_choice else ())


def field_help(field: FieldInfo) -> FieldHelp:
    """What `--help` says about a setting."""
    return typing.cast(FieldHelp, _extra(field)["help"])


def check_values(settings: type[StageSettings], values: Mapping[str, Any], where: Mapping[str, str]) -> dict[str, Any]:
    """The values of one source in the types of their settings; `where` says how the user spelled each of them."""
    try:
        checked = settings.model_validate(dict(values), context=_ONE_SOURCE)
    except ValidationError as error:
        first = error.errors()[0]
        name = str(first["loc"][0])
        raise _bad_value(settings.model_fields[name], where[name], first) from None
    return {name: getattr(checked, name) for name in values}


def _read_text(field: FieldInfo, value: Any) -> Any:
    kind = field_kind(field)
    if value == "" and (kind.is_list or field.default is None):
        return () if field.default == () else field.default
    if not kind.is_list:
        return _without_bool(kind, value)
    parts = list(value) if isinstance(value, list | tuple) else [value]
    if kind.element is not str or kind.choices:  # names of columns are split where the columns are known
        parts = [piece for part in parts for piece in (part.split(",") if isinstance(part, str) else [part])]
    return [_without_bool(kind, part) for part in parts]


def _without_bool(kind: FieldKind, value: Any) -> Any:
    """The value; true and false as words where a number is expected, since pydantic would read them as 1 and 0."""
    return str(value).lower() if isinstance(value, bool) and kind.element in (int, float) else value


def _bad_value(field: FieldInfo, where: str, error: Mapping[str, Any]) -> BayesndeError:
    """The message for a value that pydantic refused."""
    kind, value = field_kind(field), error["input"]
    if kind.choices and isinstance(value, str):
        return bad_choice(where, value, kind.choices, BadConfig)
    words = {str: "a word", int: "a whole number", float: "a number", bool: "true or false"}
    problem, found, limits = f"must be {words[kind.element]}", repr(value), error.get("ctx", {})
    if "ge" in limits:
        problem, found = "is too small", f"{value}, smallest: {limits['ge']}"
    elif "le" in limits:
        problem, found = "is too large", f"{value}, largest: {limits['le']}"
    return BadConfig(f"{where} {problem}", found=f"found: {found}", hint=field.description or "")


def _extra(field: FieldInfo) -> dict[str, Any]:
    return typing.cast(dict[str, Any], field.json_schema_extra)
