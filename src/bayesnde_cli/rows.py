"""Rows in the model's space: the one type that travels from the schema to the engine."""

from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np

from bayesnde_cli.rng import bits_at, generator


@dataclass(frozen=True, eq=False)
class Rows:
    """Rows as the networks take them. Without row ids they are counted from 0; without a log-Jacobian it is 0."""

    x: np.ndarray  # (rows, p) float32; 0 where a cell is missing
    observed: np.ndarray | None = None  # (rows, p) bool; None: no cell is missing
    y: np.ndarray | None = None  # (rows, classes) float32, one-hot
    row_ids: np.ndarray = None  # type: ignore[assignment]  # (rows,) int64, position in the file
    log_jacobian: np.ndarray = None  # type: ignore[assignment]  # (rows,) float64, of observed cells
    # (rows,) float64: log of the density that closed-form members add to one unit of the fitted model's; None: no such
    log_rest: np.ndarray | None = None
    labels: dict[str, Any] = field(default_factory=dict)  # Arrow columns that travel with the rows, by name
    values: np.ndarray | None = None  # (rows, p) float64, units of the file, categories by position, NaN: missing

    def __post_init__(self) -> None:
        if self.row_ids is None:
            object.__setattr__(self, "row_ids", np.arange(len(self.x)))
        if self.log_jacobian is None:
            object.__setattr__(self, "log_jacobian", np.zeros(len(self.x)))

    def __len__(self) -> int:
        return len(self.x)

    @property
    def n_classes(self) -> int:
        return 0 if self.y is None else self.y.shape[1]

    @property
    def classes(self) -> np.ndarray | None:
        """The index of each row's class, (rows,) int64; None without classes."""
        return None if self.y is None else self.y.argmax(axis=1)

    @property
    def n_observed(self) -> np.ndarray:
        """The number of observed cells of each row, (rows,)."""
        return np.full(len(self), self.x.shape[1]) if self.observed is None else self.observed.sum(axis=1)

    @property
    def is_complete(self) -> np.ndarray:
        """Which rows have no missing cell, (rows,) bool."""
        return self.n_observed == self.x.shape[1]

    def take(self, index: np.ndarray | slice) -> "Rows":
        """Some rows, by positions in any order, by a boolean mask, or by a slice."""
        positions = np.arange(len(self))[index]
        taken: dict[str, Any] = {name: array[index] for name, array in self._arrays().items()}
        return replace(self, **taken, labels={name: column.take(positions) for name, column in self.labels.items()})

    def pad(self, n_rows: int) -> "Rows":
        """The number of rows that a compiled program takes: the last one is repeated."""
        return self.take(np.minimum(np.arange(n_rows), len(self) - 1))

    def sample(self, n_rows: int, seed: int) -> "Rows":
        """A random sample of the rows, in the order of the file; all rows if there are fewer."""
        return self.take(np.sort(np.argsort(bits_at(seed, self.row_ids), kind="stable")[:n_rows]))

    @staticmethod
    def concatenate(parts: Sequence["Rows"]) -> "Rows":
        """The rows of all parts, which must have the same fields and labels."""
        import pyarrow as pa

        if any(part.observed is not None for part in parts):
            parts = [
                part if part.observed is not None else replace(part, observed=np.full(part.x.shape, True))
                for part in parts
            ]
        joined: dict[str, Any] = {
            name: np.concatenate([getattr(part, name) for part in parts]) for name in parts[0]._arrays()
        }
        labels = {name: pa.chunked_array([part.labels[name] for part in parts]) for name in parts[0].labels}
        return Rows(**joined, labels=labels)

    def _arrays(self) -> dict[str, np.ndarray]:
        """The fields that are known, except the labels."""
        known = {item.name: getattr(self, item.name) for item in fields(self) if item.name != "labels"}
        return {name: array for name, array in known.items() if array is not None}


def some_rows(n_rows: int, most: int, seed: int) -> np.ndarray:
    """The positions of all rows, or of `most` of them drawn without replacement, in their order."""
    if n_rows <= most:
        return np.arange(n_rows)
    return np.sort(generator(seed, "baseline rows").choice(n_rows, most, replace=False))
