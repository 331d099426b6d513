"""What every simulator offers, and the check of its input."""

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import numpy as np


class Simulator(Protocol):
    """A distribution that can be sampled and whose log-density is exact."""

    @property
    def names(self) -> tuple[str, ...]:
        """The column names, x1 .. xp."""

    def sample(self, n: int, rng: "np.random.Generator") -> "np.ndarray":
        """`n` independent rows. (n, p), float64."""

    def log_density(self, x: "np.ndarray") -> "np.ndarray":
        """The exact log-density of each row of `x`. (n, p) -> (n,), float64."""


def column_names(dim: int) -> tuple[str, ...]:
    """The names x1 .. xp."""
    return tuple(f"x{index + 1}" for index in range(dim))


def as_rows(x: "np.ndarray", dim: int) -> "np.ndarray":
    """`x` as float64 of shape (n, dim); a ValueError for any other shape."""
    import numpy as np

    rows = np.asarray(x, dtype=np.float64)
    if rows.ndim != 2 or rows.shape[1] != dim:
        raise ValueError(f"expected rows of shape (n, {dim}), got {rows.shape}")
    return rows
