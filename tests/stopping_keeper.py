"""A keeper of the states of fits that stops its process after so many."""

from collections.abc import Mapping

import numpy as np


class Stopped(Exception):
    """The process was told to go."""


class StoppingKeeper(dict):
    """States in memory, as files hold them; None: it never stops."""

    n_left: int | None = None

    def read(self, digest: str) -> dict[str, np.ndarray] | None:
        return self.get(digest)

    def write(self, digest: str, arrays: Mapping[str, np.ndarray]) -> None:
        self[digest] = {name: np.array(array) for name, array in arrays.items()}
        if self.n_left is not None:
            self.n_left -= 1
            if self.n_left == 0:
                raise Stopped
