"""The involute of the paper's appendix S1: a spiral with Gaussian noise."""

import numpy as np

from bayesnde_cli.data.simulators.curve import TURN, log_density_around_curve
from bayesnde_cli.data.simulators.simulator import as_rows, column_names

# The standard deviation of the noise, not its variance (paper, appendix S1: "0.4^2").
NOISE_SD = 0.4


class Involute:
    """R ~ U(0, 2 pi), x | r ~ N((r sin 2r, r cos 2r), 0.4^2 I) (paper, appendix S1)."""

    names = column_names(2)

    def __init__(self, noise_sd: float = NOISE_SD) -> None:
        self.noise_sd = noise_sd

    def sample(self, n: int, rng: np.random.Generator) -> np.ndarray:
        """`n` rows. (n, 2)."""
        r = rng.uniform(0.0, TURN, size=n)
        return spiral(r) + self.noise_sd * rng.standard_normal((n, 2))

    def log_density(self, x: np.ndarray) -> np.ndarray:
        """log of 1/(2 pi) times the integral over r of N(x; spiral(r), 0.4^2 I). (n, 2) -> (n,)."""
        return log_density_around_curve(
            as_rows(x, 2),
            spiral,
            noise_sd=self.noise_sd,
            reach=TURN,
            # The length of the spiral from 0 to r grows as r^2.
            panel_edge=lambda share: TURN * np.sqrt(share),
        )


def spiral(r: np.ndarray) -> np.ndarray:
    """The points (r sin 2r, r cos 2r). (n,) -> (n, 2)."""
    return np.stack([r * np.sin(2.0 * r), r * np.cos(2.0 * r)], axis=1)
