"""Which run directory a command works in."""

import os
from pathlib import Path

from bayesnde_cli.artifacts.layout import DEFAULT_ROOT
from bayesnde_cli.errors import BadUsage


def run_directory(given: str | None) -> Path:
    """The run directory: the flag, else `$BAYESNDE_RUN`, else `./run`."""
    if given == "":
        raise BadUsage("--run is empty", found="--run ''", hint="name a directory; is a variable of the shell not set?")
    found = Path(given or os.environ.get("BAYESNDE_RUN") or DEFAULT_ROOT)
    if found.exists() and not found.is_dir():
        raise BadUsage(f"the run directory {found} is a file", found="a file, not a directory",
                       hint="name another directory with --run DIR; one that does not exist is made")  # fmt: skip
    return found
