"""The state of a long fit, kept on the way: the next process goes on with it, to the same numbers."""

import hashlib
import time
from collections.abc import Callable, Mapping
from typing import Protocol

import numpy as np

from bayesnde_cli import __version__
from bayesnde_cli.evaluation.baselines.parts import Part

# Between two times that a state is kept, at least: a quick fit is not slowed by it.
_SECONDS_BETWEEN = 10.0


class Keeper(Protocol):
    """Where states are kept, each by the digest of its fit."""

    def read(self, digest: str) -> dict[str, np.ndarray] | None:
        """What was kept of a fit; None if nothing was, or cannot be read."""

    def write(self, digest: str, arrays: Mapping[str, np.ndarray]) -> None:
        """Keep arrays, in place of those before."""


class KeptState:
    """The state of one fit: that of these settings to these rows. Without a keeper nothing is kept."""

    def __init__(self, keeper: Keeper | None, settings: object, *parts: Part) -> None:
        self._keeper, self._written = keeper, time.monotonic()
        self._digest = "" if keeper is None else _digest(settings, parts)

    def read(self) -> dict[str, np.ndarray] | None:
        return None if self._keeper is None else self._keeper.read(self._digest)

    def write(self, arrays: Callable[[], Mapping[str, np.ndarray]], *, is_last: bool = False) -> None:
        """Keep the state, unless one was kept a moment ago and more are to come."""
        if self._keeper is None or (not is_last and time.monotonic() - self._written < _SECONDS_BETWEEN):
            return
        self._keeper.write(self._digest, arrays())
        self._written = time.monotonic()


def _digest(settings: object, parts: tuple[Part, ...]) -> str:
    """Of settings and rows; another bayesnde, whose states may be others, has another one."""
    digest = hashlib.sha256(repr((settings, __version__)).encode())
    for part in parts:
        for array in (part.cells, part.classes):
            found = np.ascontiguousarray([] if array is None else array)
            digest.update(f"{found.dtype} {found.shape}".encode() + found.tobytes())
    return digest.hexdigest()
