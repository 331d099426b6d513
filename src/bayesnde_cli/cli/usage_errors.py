"""What the option parser cannot make sense of, as our own kind of message."""

import dataclasses
import shlex
from collections.abc import Sequence
from typing import Any

from bayesnde_cli.cli.commands import COMMANDS, command
from bayesnde_cli.config import StageConfig, nearest_hint
from bayesnde_cli.config.stages import STAGE_CONFIGS
from bayesnde_cli.errors import BadUsage


def usage_error(error: Any, arguments: Sequence[str]) -> BadUsage:
    """For an exception of the option parser, whose classes are known by their attributes alone."""
    name = next((word for word in arguments if word in COMMANDS), None)
    context = getattr(error, "ctx", None)
    option = getattr(error, "option_name", None)
    if name and context is not None and option and hasattr(error, "possibilities"):
        known = [word for item in context.command.params for word in (*item.opts, *item.secondary_opts)]
        return _unknown_option(name, option, [word for word in known if word.startswith("--")])
    message = error.format_message()
    return BadUsage(
        (message[0].lower() + message[1:]).rstrip("."),
        found=f"typed: {shlex.join(['bayesnde', *arguments])}",
        hint=_example(name) if name else "see `bayesnde --help`",
    )


def _unknown_option(name: str, option: str, known: Sequence[str]) -> BadUsage:
    """For an option that a command does not have. A setting of other stages is named as such."""
    what = f"`bayesnde {name}` has no option {option}"
    key = option.lstrip("-").replace("-", "_")
    stages = [stage for stage, config in STAGE_CONFIGS.items() if key in _settings(config)]
    if stages:
        ways = [f"--set {stage}.{key}=VALUE" if "--set" in known else f"`bayesnde {stage}`" for stage in stages]
        hint = f"{'write' if '--set' in known else 'give it to'} {' or '.join(ways)}"
        return BadUsage(what, found=f"{key} is a setting of: {', '.join(stages)}", hint=hint)
    hint = nearest_hint(option, known, f"see `bayesnde {name} --help`")
    return BadUsage(what, found=f"known: {', '.join(known)}", hint=hint)


def _settings(config_class: type[StageConfig]) -> list[str]:
    return [item.name for item in dataclasses.fields(config_class)]  # type: ignore[arg-type]


def _example(name: str) -> str:
    """The first example of a command's help."""
    _, _, examples = (command(name).__doc__ or "").partition("Example:")
    return f"for instance `{examples.strip().splitlines()[0].strip()}`; see `bayesnde {name} --help`"
