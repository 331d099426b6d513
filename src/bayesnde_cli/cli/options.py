"""Options: those that many commands share, and those generated from the settings of a stage.

A command names the shared options that it takes, and the settings whose fields become options:

    @with_options("run", "json", config=DensitySettings)
    def density(call: Call, config: DensitySettings, shard: ...) -> None:

Settings, and with them pydantic, are imported where they are needed: the list of commands does without them.
"""

import functools
import inspect
import io
import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Protocol

import typer
import typer.core

from bayesnde_cli.cli.console import Console
from bayesnde_cli.errors import BadUsage
from bayesnde_cli.runs.layout import DEFAULT_ROOT, RunLayout
from bayesnde_cli.settings import preset_names, resolve

if TYPE_CHECKING:
    from pydantic.fields import FieldInfo

    from bayesnde_cli.settings.declare import SettingsT, StageSettings
    from bayesnde_cli.stages.loading import EngineFactory
    from bayesnde_cli.stages.scoring_job import Asked

Command = Callable[..., None]


class Outcome(Protocol):
    """The result of a stage: a sentence for people, a dictionary for machines."""

    def as_dict(self) -> dict[str, Any]: ...


# The settings of `density` that commands on top of it have options for.
COMMON_SETTINGS = ("seed", "device", "threads")


def option(metavar: str | None, help: str, *flags: str, default: Any = None, min: int | None = None) -> Any:
    """An option of one command; typer names it after its parameter unless flags are given."""
    return typer.Option(default, *flags, metavar=metavar, help=help, min=min)


def flag(help: str, *flags: str) -> Any:
    """A switch of one command, off by default."""
    return option(None, help, *flags, default=False)


def argument(metavar: str, help: str, default: Any = ..., min: int | None = None) -> Any:
    """An argument of one command, required unless it has a default."""
    return typer.Argument(default, metavar=metavar, help=help, min=min, show_default=False)


# Options and arguments of several commands.
DATA = argument("DATA", "Files with the columns of the model; - is stdin. [default: the test rows]", None)
TABLE = argument("DATA", "CSV, TSV, Parquet, NPY, NPZ, MAT, ARFF or IDX files, or folders of images; - is stdin.")
SHARD = option("I/N|auto", "Compute only the blocks of this shard; auto takes it from the SLURM array task.")
OUT = option("FILE|-", "File for the rows; - is stdout.", "--out", "-o", default=Path("-"))
FORMAT = option("FORMAT", "Format of the table: csv, parquet or jsonl. [default: from the file name, else csv]")

# Fields of `Call` as options, in the order of `--help`.
_SHARED: dict[str, tuple[Any, Any]] = {
    # A text, not a path: an empty path would be the working directory.
    "run": (str | None, option("DIR", "Run directory. [default: $BAYESNDE_RUN, else ./run]", "--run")),
    "preset": (str | None, option("NAME", f"Named settings: {', '.join(preset_names())}.", "--preset")),
    "config_file": (Path | None, option("FILE", "TOML file with settings, one table per stage.", "--config")),
    "assignments": (list[str] | None, option("STAGE.KEY=VALUE", "Setting of any stage; repeatable.", "--set")),
    "restart": (bool, flag("Replace results that were made with other settings or data.", "--restart")),
    "json": (bool, flag("Print the result as JSON.", "--json")),
    "quiet": (bool, flag("Print only results, warnings and errors.", "--quiet", "-q")),
    "verbose": (
        int,
        typer.Option(
            0, "--verbose", "-v", count=True, show_default=False, help="Show TensorFlow's own messages with -vv."
        ),
    ),
}


@dataclass(frozen=True)
class Call:
    """The shared options of a command, and what follows from them."""

    run: str | None = None
    preset: str | None = None
    config_file: Path | None = None
    assignments: Sequence[str] | None = None
    restart: bool = False
    json: bool = False
    quiet: bool = False
    verbose: int = 0
    console: Console = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "console", Console(quiet=self.quiet))

    @property
    def layout(self) -> RunLayout:
        """The run directory."""
        if self.run == "":
            hint = "name a directory; is a variable of the shell not set?"
            raise BadUsage("--run is empty", found="--run ''", hint=hint)
        found = Path(self.run or os.environ.get("BAYESNDE_RUN") or DEFAULT_ROOT)
        if found.exists() and not found.is_dir():
            hint = "name another directory with --run DIR; it is created if it does not exist"
            raise BadUsage(f"the run directory {found} is a file", found="a file, not a directory", hint=hint)
        return RunLayout(found)

    @property
    def is_verbose(self) -> bool:
        return self.verbose >= 2

    @property
    def stdin(self) -> BinaryIO:
        return sys.stdin.buffer if sys.stdin else io.BytesIO()  # a closed standard input is None in Python

    @property
    def open_engine(self) -> "EngineFactory":
        from bayesnde_cli.stages import loading

        return functools.partial(loading.open_engine, is_verbose=self.is_verbose)

    def resolve(self, settings: "type[SettingsT]", flags: Mapping[str, Any] | None = None) -> "SettingsT":
        """The settings of a stage, from the flags of this command and all other sources."""
        return resolve(
            settings,
            flags=flags,
            environ=os.environ,
            config_file=self.config_file,
            preset=self.preset,
            assignments=self.assignments or (),
        )

    def asked(self, data: Sequence[Path] | None, shard: str | None = None) -> "Asked":
        """The rows and the shard that the user asked for."""
        from bayesnde_cli.runs.blocks import parse_shard
        from bayesnde_cli.stages.scoring_job import Asked

        part = None if shard is None else parse_shard(shard, os.environ)
        return Asked(data=data or (), stdin=self.stdin, shard=part, is_restart=self.restart)

    def finish(self, outcome: Outcome, out: Path | None = None) -> None:
        """Print the outcome: on stdout, unless the table is there."""
        if out is not None and str(out) == "-":
            self.console.note(str(outcome))
        elif self.json:
            self.console.result(json.dumps(outcome.as_dict(), indent=2, ensure_ascii=False, allow_nan=False))
        else:
            self.console.result(str(outcome))


def with_options(
    *shared: str, **settings: "type[StageSettings] | tuple[type[StageSettings], Sequence[str]]"
) -> Callable[[Command], Command]:
    """Give a command shared options as `call`, and settings as parameters whose fields become options.

    With `(settings, names)` only the named fields are options; the others come from the other sources. Options that
    are not given stay None, so that environment, `--config` file and preset decide.
    """
    chosen: dict[str, tuple[type[StageSettings], dict[str, FieldInfo]]] = {}
    for name, value in settings.items():
        cls, keys = value if isinstance(value, tuple) else (value, tuple(value.model_fields))
        chosen[name] = cls, {key: cls.model_fields[key] for key in keys}
    if settings:
        shared = (*shared, "preset", "config_file")
    in_order = [name for name in _SHARED if name in shared]

    def decorate(command: Command) -> Command:
        @functools.wraps(command)
        def wrapped(**options: Any) -> None:
            call = Call(**{name: options.pop(name) for name in in_order})
            for name, (cls, fields) in chosen.items():
                options[name] = call.resolve(cls, {key: options.pop(key) for key in fields})
            command(call=call, **options)

        parameters = inspect.signature(command).parameters.items()
        own = [parameter for name, parameter in parameters if name not in ("call", *settings)]
        common = [_keyword(name, *_SHARED[name]) for name in in_order]
        generated = [item for _, fields in chosen.values() for item in _setting_parameters(fields)]
        wrapped.__signature__ = inspect.Signature([*own, *common, *generated])  # type: ignore[attr-defined]
        wrapped.__annotations__ = {}
        return wrapped

    return decorate


class GroupedCommand(typer.core.TyperCommand):
    """A command whose help shows its options in groups.

    The help is plain text: typer's panels would import rich, which takes longer than everything else together.
    """

    def format_options(self, ctx: Any, formatter: Any) -> None:
        sections: dict[str, list[tuple[str, str]]] = {"Arguments": [], "Options": []}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is None:
                continue
            if parameter.param_type_name == "argument":  # by its name alone: typer adds its Python type
                sections["Arguments"].append((parameter.metavar or "", record[1]))
            else:
                sections.setdefault(getattr(parameter, "rich_help_panel", None) or "Options", []).append(record)
        for heading, records in sections.items():
            if records:
                with formatter.section(heading):
                    formatter.write_dl(records)


def _setting_parameters(fields: "Mapping[str, FieldInfo]") -> list[inspect.Parameter]:
    """Settings as options, in the order of their groups. Values are checked later, alike for all sources."""
    from bayesnde_cli.settings.declare import GROUPS, field_help, field_kind

    parameters = []
    for name in sorted(fields, key=lambda name: GROUPS.index(field_help(fields[name]).group)):
        kind, help = field_kind(fields[name]), field_help(fields[name])
        text = f"{help.text} ({' | '.join(kind.choices)})" if kind.choices else help.text
        text += f" [default: {help.default}]" if help.default else ""
        flags = "--" + name.replace("_", "-")
        annotation: Any = str | None
        metavar: str | None = help.metavar or {int: "N", float: "NUMBER"}.get(kind.element, "WORD")
        if kind.element is bool:
            annotation, metavar, flags = bool | None, None, f"{flags}/--no-{flags.removeprefix('--')}"
        elif kind.is_list and kind.element is str:
            annotation = list[str] | None
        written = typer.Option(None, flags, metavar=metavar, help=text, show_default=False, rich_help_panel=help.group)
        parameters.append(_keyword(name, annotation, written))
    return parameters


def _keyword(name: str, annotation: Any, default: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
