"""Which run directory a command works in."""

import os
from pathlib import Path

from bayesnde_cli.artifacts.layout import DEFAULT_ROOT
from bayesnde_cli.errors import BadUsage


def run_directory(given: Path | None) -> Path:
    """The run directory: the flag, else `$BAYESNDE_RUN`, else `./run`."""
    found = given or Path(os.environ.get("BAYESNDE_RUN") or DEFAULT_ROOT)
    if found.exists() and not found.is_dir():
        raise BadUsage(f"the run directory {found} is a file", found="a file, not a directory",
                       hint="name another directory with --run DIR; one that does not exist is made")  # fmt: skip
    return found
