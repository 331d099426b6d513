"""Every setting of every stage, declared once; and which source decides its value.

declare          how a setting is declared, and the messages for wrong values
stage_settings   the settings of each stage
presets/         named settings, one TOML file each

Flag > --set > environment > --config file > preset > default. The environment variable of `prepare.scale` is
`BAYESNDE_PREPARE_SCALE`. `--help` lists the presets, so pydantic is imported only when a value is checked.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bayesnde_cli.errors import BadConfig, nearest, nearest_hint, unknown_word

if TYPE_CHECKING:
    from bayesnde_cli.settings.declare import SettingsT, StageSettings

PRESETS = Path(__file__).resolve().parent / "presets"


def preset_names() -> list[str]:
    """The presets that come with the package."""
    return sorted(path.stem for path in PRESETS.glob("*.toml"))


def resolve(
    settings: "type[SettingsT]",
    *,
    flags: Mapping[str, Any] | None = None,
    environ: Mapping[str, str] | None = None,
    config_file: Path | None = None,
    preset: str | None = None,
    assignments: Sequence[str] = (),
) -> "SettingsT":
    """The settings of a stage, merged from all sources. Flags that are None were not given."""
    from bayesnde_cli.settings.declare import check_values

    values: dict[str, Any] = {}
    if preset is not None:
        values |= _stage_table(read_preset(preset), settings.stage, where=f"preset {preset}")
    if config_file is not None:
        values |= _stage_table(_read_toml(config_file), settings.stage, where=str(config_file))
    values |= _from_environment(settings, environ or {})
    values |= _stage_table(_assigned_tables(assignments), settings.stage, where="--set")
    given = {name: value for name, value in (flags or {}).items() if value is not None}
    values |= check_values(settings, given, {name: "--" + name.replace("_", "-") for name in given})
    return settings(**values)


def read_preset(name: str) -> dict[str, Any]:
    """The tables of a preset, by stage."""
    names = preset_names()
    if name not in names:
        what, otherwise = f"there is no preset '{name}'", "use one of the presets above"
        raise unknown_word(what, name, names, label="presets", otherwise=otherwise, error=BadConfig)
    return _read_toml(PRESETS / f"{name}.toml")


def _read_toml(path: Path) -> dict[str, Any]:
    import tomllib  # not needed for `--help`

    try:
        return tomllib.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        found = f"no such file in {'the working directory' if path.parent == Path() else path.parent}"
        hint = "check the path given with --config"
        raise BadConfig(f"config file {path} does not exist", found=found, hint=hint) from None
    except (ValueError, RecursionError, OSError) as error:  # not TOML, not UTF-8, a huge number, very deep nesting
        hint = "it must be a TOML file, UTF-8"
        raise BadConfig(f"config file {path} cannot be read", found=f"reason: {error}", hint=hint) from None


def _from_environment(settings: "type[StageSettings]", environ: Mapping[str, str]) -> dict[str, Any]:
    """The settings of a stage that environment variables give."""
    from bayesnde_cli.settings.declare import check_values

    prefix = f"BAYESNDE_{settings.stage.upper()}_"
    spelled = {name.removeprefix(prefix).lower(): name for name in environ if name.startswith(prefix)}
    for key, name in spelled.items():
        _require_known(key, settings, what=f"environment variable {name} is not a setting", prefix=prefix)
    return check_values(settings, {key: environ[name] for key, name in spelled.items()}, spelled)


def _assigned_tables(assignments: Sequence[str]) -> dict[str, dict[str, str]]:
    """The assignments `stage.key=value` as the tables of a config file."""
    tables: dict[str, dict[str, str]] = {}
    for text in assignments:
        place, sign, value = text.partition("=")
        stage, dot, key = place.partition(".")
        if not (sign and dot and key):
            hint = "for instance --set refine.epochs=50"
            raise BadConfig("--set takes stage.key=value", found=f"found: {text}", hint=hint)
        tables.setdefault(stage.strip(), {})[key.strip()] = value.strip()
    return tables


def _stage_table(tables: Mapping[str, Any], stage: str, *, where: str) -> dict[str, Any]:
    """The settings of one stage; the tables of all stages are checked."""
    from bayesnde_cli.settings.declare import check_values
    from bayesnde_cli.settings.stage_settings import STAGE_SETTINGS

    found: dict[str, Any] = {}
    for table_name, table in tables.items():
        if table_name not in STAGE_SETTINGS or not isinstance(table, Mapping):
            what = f"{where} has an unknown table or key '{table_name}'"
            hint = nearest_hint(table_name, list(STAGE_SETTINGS), "put settings under their stage's table")
            raise BadConfig(what, found=f"tables: {', '.join(f'[{name}]' for name in STAGE_SETTINGS)}", hint=hint)
        settings = STAGE_SETTINGS[table_name]
        values = {key.replace("-", "_"): value for key, value in table.items()}
        spelled = {key.replace("-", "_"): f"{table_name}.{key}" for key in table}
        for name, key in spelled.items():
            _require_known(name, settings, what=f"{where} has an unknown setting '{key}'")
        checked = check_values(settings, values, {name: f"{where}: {key}" for name, key in spelled.items()})
        if table_name == stage:
            found = checked
    return found


def _require_known(key: str, settings: "type[StageSettings]", *, what: str, prefix: str = "") -> None:
    known = list(settings.model_fields)
    if key not in known:
        match = nearest(key, known)
        spelled = f"{prefix}{match.upper()}" if match and prefix else match
        hint = f"did you mean '{spelled}'?" if match else "use one of the known ones"
        raise BadConfig(what, found=f"known: {', '.join(known)}", hint=hint)
