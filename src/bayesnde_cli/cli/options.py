"""Options that several commands share, and options made from a stage's config class."""

import dataclasses
import functools
import inspect
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple, TypeVar

import typer

from bayesnde_cli.config import StageConfig, option_type, preset_names, resolve

# A text and no path yet: an empty one would be the working directory.
RunOption = Annotated[
    str | None,
    typer.Option(
        "--run", metavar="DIR", help="Run directory. [default: $BAYESNDE_RUN, else ./run]", show_default=False
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
QuietOption = Annotated[bool, typer.Option("--quiet", "-q", help="Print results, warnings and errors only.")]
VerboseOption = Annotated[
    int, typer.Option("--verbose", "-v", count=True, show_default=False, help="-vv shows TensorFlow's own messages.")
]
RestartOption = Annotated[
    bool, typer.Option("--restart", help="Replace what an earlier run of this stage with other settings made.")
]
# The argument of a command that takes settings of any stage.
ASSIGNMENTS = "assignments"
AssignmentsOption = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="STAGE.KEY=VALUE", help="A setting of any stage; repeatable.", show_default=False),
]

ConfigT = TypeVar("ConfigT", bound=StageConfig)


class Sources(NamedTuple):
    """Where settings come from beside the flags of a command and the environment."""

    config_file: Path | None
    preset: str | None

    def resolve(
        self, config_class: type[ConfigT], *, flags: Mapping[str, Any] | None = None, assignments: Sequence[str] = ()
    ) -> ConfigT:
        """The settings of a stage."""
        return resolve(
            config_class, flags=flags or {}, environ=os.environ, config_file=self.config_file, preset=self.preset,
            assignments=assignments,
        )  # fmt: skip


def with_settings(
    config_class: type[ConfigT], names: Collection[str] | None = None
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command every setting of a stage as an option, and hand it the resolved config as `config`.

    With `names`, only these are options; the others come from everywhere else.

    A command with an argument `sources` is handed those, too, for the settings of other stages.

    A default is written once, in the config class; flags that are not given stay out of the way of the
    environment, the `--config` file and the preset.
    """

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        every = dataclasses.fields(config_class)  # type: ignore[arg-type]
        fields = [item for item in every if names is None or item.name in names]
        parameters = inspect.signature(command).parameters

        @functools.wraps(command)
        def wrapped(*args: Any, config: Path | None, preset: str | None, **options: Any) -> None:
            flags = {item.name: options.pop(item.name) for item in fields}
            sources = Sources(config, preset)
            settings = sources.resolve(config_class, flags=flags, assignments=options.get(ASSIGNMENTS) or ())
            if "sources" in parameters:
                options["sources"] = sources
            command(*args, config=settings, **options)

        own = [parameter for name, parameter in parameters.items() if name not in ("config", "sources")]
        wrapped.__signature__ = inspect.Signature([*own, *map(_parameter, fields), *_sources()])  # type: ignore[attr-defined]
        wrapped.__annotations__ = {}
        return wrapped

    return decorate


def _parameter(item: "dataclasses.Field[Any]") -> inspect.Parameter:
    element, several = option_type(item)
    limits = item.metadata
    flag = "--" + item.name.replace("_", "-")
    default = _default_text(item.default)
    help_text = limits["help"]
    if "choices" in limits:
        help_text += f" ({' | '.join(limits['choices'])})"
    if default:
        help_text += f" [default: {default}]"
    # Types and ranges are checked by the config, once for flags, environment and files alike.
    annotation: Any
    if element is bool:
        annotation, names = bool | None, [f"{flag}/--no-{flag.removeprefix('--')}"]
    elif several and element is str:
        annotation, names = list[str] | None, [flag]
    else:
        annotation, names = str | None, [flag]
    metavar = None if element is bool else limits.get("metavar") or {int: "N", float: "NUMBER"}.get(element, "WORD")
    option = typer.Option(*names, metavar=metavar, help=help_text, show_default=False)
    return inspect.Parameter(
        item.name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[annotation, option]
    )


def _sources() -> list[inspect.Parameter]:
    config = typer.Option("--config", metavar="FILE", help="Settings in a TOML file, a table per stage.")
    preset = typer.Option("--preset", metavar="NAME", help=f"A named set of settings: {', '.join(preset_names())}.")
    return [
        inspect.Parameter(
            "config", inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[Path | None, config]
        ),
        inspect.Parameter(
            "preset", inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[str | None, preset]
        ),
    ]


def _default_text(default: Any) -> str:
    if default is None or default is False or default == ():
        return ""
    return ",".join(f"{part}" for part in default) if isinstance(default, tuple) else f"{default}"
