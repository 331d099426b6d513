"""Where several places speak of a setting: flag, `--set`, environment, `--config` file, preset, default, in this order.

The environment variable of `prepare.scale` is `BAYESNDE_PREPARE_SCALE`.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from bayesnde_cli.config.fields import StageConfig, coerce, nearest, nearest_hint
from bayesnde_cli.config.stages import STAGE_CONFIGS
from bayesnde_cli.errors import BadConfig

_PRESETS = Path(__file__).resolve().parents[1] / "presets"

ConfigT = TypeVar("ConfigT", bound=StageConfig)


def resolve(
    config_class: type[ConfigT],
    *,
    flags: Mapping[str, Any],
    environ: Mapping[str, str],
    config_file: Path | None = None,
    preset: str | None = None,
    assignments: Sequence[str] = (),
) -> ConfigT:
    """The settings of a stage after flag > assignment `stage.key=value` > environment > file > preset > default."""
    stage = config_class.stage
    fields = {item.name: item for item in dataclasses.fields(config_class)}  # type: ignore[arg-type]
    values: dict[str, Any] = {}
    if preset is not None:
        values |= _stage_table(read_preset(preset), stage, where=f"preset {preset}")
    if config_file is not None:
        values |= _stage_table(_read_toml(config_file), stage, where=str(config_file))
    prefix = f"BAYESNDE_{stage.upper()}_"
    for name, text in environ.items():
        if name.startswith(prefix):
            key = name.removeprefix(prefix).lower()
            _require_known(key, fields, what=f"environment variable {name} is not a setting", prefix=prefix)
            values[key] = coerce(fields[key], text, where=name)
    values |= _stage_table(_tables_of(assignments), stage, where="--set")
    for name, value in flags.items():
        if value is not None:
            values[name] = coerce(fields[name], value, where="--" + name.replace("_", "-"))
    return config_class(**values)


def preset_names() -> list[str]:
    """The presets that come with the package."""
    return sorted(path.stem for path in _PRESETS.glob("*.toml"))


def read_preset(name: str) -> dict[str, Any]:
    """The tables of a preset, by stage."""
    names = preset_names()
    if name not in names:
        raise BadConfig(
            f"there is no preset '{name}'",
            found=f"presets: {', '.join(names)}",
            hint=nearest_hint(name, names, "use one of the presets above"),
        )
    return _read_toml(_PRESETS / f"{name}.toml")


def _read_toml(path: Path) -> dict[str, Any]:
    import tomllib  # only here: `--help` does without

    try:
        return tomllib.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        raise BadConfig(
            f"config file {path} does not exist",
            found=f"no such file in {'the working directory' if path.parent == Path() else path.parent}",
            hint="check the path given with --config",
        ) from None
    except (ValueError, RecursionError, OSError) as error:  # not TOML, not UTF-8, endless numbers, lists without end
        raise BadConfig(
            f"config file {path} cannot be read",
            found=f"reason: {error}",
            hint="it must be a TOML file, UTF-8",
        ) from None


def _tables_of(assignments: Sequence[str]) -> dict[str, dict[str, str]]:
    """The tables that a file with these assignments, `stage.key=value`, would hold."""
    tables: dict[str, dict[str, str]] = {}
    for text in assignments:
        place, sign, value = text.partition("=")
        stage, dot, key = place.partition(".")
        if not (sign and dot and key):
            raise BadConfig(
                "--set takes stage.key=value", found=f"found: {text}", hint="for instance --set refine.epochs=50"
            )
        tables.setdefault(stage.strip(), {})[key.strip()] = value.strip()
    return tables


def _stage_table(tables: Mapping[str, Any], stage: str, *, where: str) -> dict[str, Any]:
    """One stage's settings out of a file that may hold several stages' tables. Unknown keys anywhere are errors."""
    chosen: dict[str, Any] = {}
    for table_name, table in tables.items():
        if table_name not in STAGE_CONFIGS or not isinstance(table, Mapping):
            raise BadConfig(
                f"{where} has an unknown table or key '{table_name}'",
                found=f"tables: {', '.join(f'[{name}]' for name in STAGE_CONFIGS)}",
                hint=nearest_hint(table_name, list(STAGE_CONFIGS), "put settings under their stage's table"),
            )
        fields = {item.name: item for item in dataclasses.fields(STAGE_CONFIGS[table_name])}  # type: ignore[arg-type]
        for key, value in table.items():
            name = key.replace("-", "_")
            _require_known(name, fields, what=f"{where} has an unknown setting '{table_name}.{key}'")
            coerced = coerce(fields[name], value, where=f"{where}: {table_name}.{key}")
            if table_name == stage:
                chosen[name] = coerced
    return chosen


def _require_known(key: str, fields: Mapping[str, Any], *, what: str, prefix: str = "") -> None:
    if key not in fields:
        match = nearest(key, list(fields))
        known = ", ".join(fields)
        spelled = f"{prefix}{match.upper()}" if match and prefix else match
        raise BadConfig(
            what,
            found=f"known: {known}",
            hint=f"did you mean '{spelled}'?" if match else "use one of the known ones",
        )
