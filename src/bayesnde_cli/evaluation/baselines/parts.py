"""The rows of a comparison, in one space."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Part:
    """Rows of one kind: training, validation or evaluated ones."""

    cells: np.ndarray  # (rows, p) float64
    classes: np.ndarray | None = None  # (rows,) the position of each row's class
    log_jacobian: np.ndarray | None = None  # (rows,) from here to the units of the file; None: 0

    def of_class(self, index: int) -> np.ndarray:
        """The cells of the rows of a class."""
        return self.cells[self.classes == index]

    def in_file(self, log_density: np.ndarray) -> np.ndarray:
        """Log-densities of the rows in this space, in the units of the file. (rows,)"""
        return log_density if self.log_jacobian is None else log_density + self.log_jacobian


@dataclass(frozen=True)
class Parts:
    """A space: all rows of a comparison, and the log-Jacobian from there to the units of the file."""

    train: Part
    validation: Part
    evaluated: Part
    class_names: Sequence[str] = ()

    def standardised(self) -> "Parts":
        """The same with training columns of mean 0 and s.d. 1."""
        mean, sd = self.train.cells.mean(axis=0), self.train.cells.std(axis=0)
        sd = np.where(sd > 0, sd, 1.0)

        def of(part: Part) -> Part:
            log_jacobian = part.in_file(np.full(len(part.cells), -np.log(sd).sum()))
            return Part((part.cells - mean) / sd, part.classes, log_jacobian)

        return Parts(of(self.train), of(self.validation), of(self.evaluated), self.class_names)
