"""Which run directory a command works in."""

import os
from pathlib import Path

from bayesnde_cli.artifacts.layout import DEFAULT_ROOT


def run_directory(given: Path | None) -> Path:
    """The run directory: the flag, else `$BAYESNDE_RUN`, else `./run`."""
    return given or Path(os.environ.get("BAYESNDE_RUN") or DEFAULT_ROOT)
