"""Uniform on the dark squares of a board: sharp edges and a support with holes."""

import numpy as np

from bayesnde_cli.data.simulators.simulator import as_rows, column_names

# Four squares a side, each of side one, so the board is (-2, 2)^2 and the eight dark squares have area eight.
SQUARES_PER_SIDE = 4
LOWEST = -SQUARES_PER_SIDE // 2
N_DARK = SQUARES_PER_SIDE**2 // 2

# Places inside a square are odd multiples of 2^-51: never on an edge, and exact in float64 after adding the corner.
PLACE_BITS = 50


class Checkerboard:
    """x is uniform on the squares (i, j) of a 4 x 4 board with i + j even."""

    names = column_names(2)

    def sample(self, n: int, rng: np.random.Generator) -> np.ndarray:
        """`n` rows. (n, 2)."""
        square = rng.integers(0, N_DARK, size=n)
        column, half_row = np.divmod(square, SQUARES_PER_SIDE // 2)
        row = 2 * half_row + column % 2  # i + j even
        corner = LOWEST + np.stack([column, row], axis=1)  # (n, 2)
        place = (rng.integers(0, 2**PLACE_BITS, size=(n, 2)) + 0.5) * 2.0**-PLACE_BITS
        return corner + place

    def log_density(self, x: np.ndarray) -> np.ndarray:
        """-log 8 on a dark square, -inf elsewhere. (n, 2) -> (n,)."""
        square = np.floor(as_rows(x, 2)) - LOWEST  # (n, 2)
        on_board = ((square >= 0) & (square < SQUARES_PER_SIDE)).all(axis=1)
        is_dark = on_board & (np.where(on_board, square.sum(axis=1), 1.0) % 2 == 0)
        return np.where(is_dark, -np.log(N_DARK), -np.inf)
