"""What goes into the engine and comes out of it: the rows of a block, and draws for them."""

from typing import NamedTuple

import numpy as np


class Rows(NamedTuple):
    """The rows of a block, as many in every block."""

    x: np.ndarray  # (rows, p) float32; anything where not observed
    observed: np.ndarray | None  # (rows, p) bool; None: all
    y: np.ndarray | None  # (rows, classes) float32, one-hot


class Draws(NamedTuple):
    """Draws from the latent posterior of every row of a block."""

    z: np.ndarray  # (rows, chains, draws, d) float32, chains in order of time
    acceptance: np.ndarray  # (rows,) float32: of the trajectories after the warm-up
    divergences: np.ndarray  # (rows,) int32
    step_size: np.ndarray  # (rows,) float32
    n_gradients: np.ndarray  # (rows,) int64, spent on these draws
    missed_mass: np.ndarray  # (rows,) float32: see `modes.Found`; NaN if modes were not looked for
    modes: np.ndarray  # (rows, n, d) float32: where they are; NaN for none
