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

from bayesnde_cli.errors import BadConfig, nearest_hint

# Headings of the options in `--help`, in this order.
GROUPS = (
    "Columns",
    "Rows",
    "Scaling",
    "Text files",
    "Model",
    "Training",
    "Selection",
    "EGM",
    "Regularisers",
    "Effort",
    "Chains",
    "Proposal",
    "Metrics",
    "Computation",
    "Tasks",
)


def setting(
    default: Any,
    help: str,
    *,
    group: str,
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
    assert group in GROUPS
    extra: dict[str, Any] = {
        "group": group,
        "metavar": metavar,
        "default_text": default_text,
        "is_technical": is_technical,
    }
    return Field(default, description=help, ge=ge, le=le, json_schema_extra=extra)


def group(heading: str) -> Callable[..., Any]:
    """A shorthand for `setting` that declares the settings of one group."""
    return functools.partial(setting, group=heading)


Seed = Annotated[int, Field(ge=0, le=2**32 - 1)]
Device = Literal["auto", "cpu", "gpu"]
_computation = group("Computation")


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


class ComputedSettings(StageSettings):
    """Base of the settings of the stages after `prepare`: their seed and where they compute."""

    seed: Seed | None = _computation(None, "Seed of this stage.", default_text="the seed of the run")
    device: Device = _computation("auto", "Device to compute on; auto uses a GPU if there is one.", is_technical=True)
    threads: int | None = _computation(None, "CPU threads.", ge=1, default_text="all cores", is_technical=True)


SettingsT = TypeVar("SettingsT", bound=StageSettings)
# Context of a check of values from one source: combinations are judged when all sources are merged.
_ONE_SOURCE = object()


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
    if typing.get_origin(hint) is Literal:
        return FieldKind(str, is_list, typing.get_args(hint))
    return FieldKind(hint, is_list, ())


class FieldHelp(NamedTuple):
    """What `--help` says about a setting."""

    text: str
    group: str
    metavar: str | None
    default: str


def field_help(field: FieldInfo) -> FieldHelp:
    """What `--help` says about a setting."""
    extra, default = _extra(field), field.default
    shown = extra["default_text"]
    if shown is None:
        is_empty = default is None or default is False or default == ()
        parts = default if isinstance(default, tuple) else (default,)
        shown = "" if is_empty else "on" if default is True else ",".join(map(str, parts))
    return FieldHelp(field.description or "", extra["group"], extra["metavar"], shown)


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


def _bad_value(field: FieldInfo, where: str, error: Mapping[str, Any]) -> BadConfig:
    """The message for a value that pydantic refused."""
    kind, help, value = field_kind(field), field.description or "", error["input"]
    limits = error.get("ctx", {})
    if error["type"] == "greater_than_equal":
        return BadConfig(f"{where} is too small", found=f"found: {value}, smallest: {limits['ge']}", hint=help)
    if error["type"] == "less_than_equal":
        return BadConfig(f"{where} is too large", found=f"found: {value}, largest: {limits['le']}", hint=help)
    if kind.choices and isinstance(value, str):
        return BadConfig(
            f"{where} cannot be {value!r}",
            found=f"choices: {', '.join(kind.choices)}",
            hint=nearest_hint(value, kind.choices, "use one of the choices"),
        )
    wanted = {str: "a word", int: "a whole number", float: "a number", bool: "true or false"}[kind.element]
    return BadConfig(f"{where} must be {wanted}", found=f"found: {value!r}", hint=help)


def _extra(field: FieldInfo) -> dict[str, Any]:
    return typing.cast(dict[str, Any], field.json_schema_extra)
