"""A keeper of the states of fits that stops its process after so many."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from bayesnde_cli.competitors import plain


class Stopped(Exception):
    """The process was told to go."""


class StoppingKeeper:
    """States in a folder, saved whenever they may be; `n_left` None: it never stops."""

    n_left: int | None = None

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder, self._write = folder, plain.files.write_arrays
        monkeypatch.setattr(plain, "_SECONDS_BETWEEN", 0.0)
        monkeypatch.setattr(plain.files, "write_arrays", self._write_and_count)

    def __call__(self, digest: str) -> Path:
        return self.folder / f"{digest}.npz"

    def _write_and_count(self, path: Path, arrays: Mapping[str, np.ndarray], facts: dict[str, object]) -> None:
        self._write(path, arrays, facts)
        if self.n_left is not None:
            self.n_left -= 1
            if self.n_left == 0:
                raise Stopped
