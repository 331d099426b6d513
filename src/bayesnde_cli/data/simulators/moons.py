"""Two interleaving half circles with Gaussian noise."""

import numpy as np

from bayesnde_cli.data.simulators.curve import TURN, log_density_around_curve
from bayesnde_cli.data.simulators.simulator import as_rows, column_names

# A tenth of the radius: the moons stay apart (0.5 at the nearest) and the gap is still not empty.
NOISE_SD = 0.1
# The second moon opens upwards around (1, 0.5), so that each tip lies inside the other moon.
SECOND_CENTRE = (1.0, 0.5)


class Moons:
    """T ~ U(0, 2 pi), x | t ~ N(c(t), 0.1^2 I): c is the upper half circle for t < pi and the lower one after."""

    names = column_names(2)

    def sample(self, n: int, rng: np.random.Generator) -> np.ndarray:
        """`n` rows. (n, 2)."""
        t = rng.uniform(0.0, TURN, size=n)
        return two_arcs(t) + NOISE_SD * rng.standard_normal((n, 2))

    def log_density(self, x: np.ndarray) -> np.ndarray:
        """log of 1/(2 pi) times the integral over t of N(x; c(t), 0.1^2 I). (n, 2) -> (n,)."""
        return log_density_around_curve(
            as_rows(x, 2),
            two_arcs,
            noise_sd=NOISE_SD,
            reach=1.0 + float(np.hypot(*SECOND_CENTRE)),
            # Equal panels; their number is even, so the jump from arc to arc at pi falls on an edge.
            panel_edge=lambda share: TURN * share,
        )


def two_arcs(t: np.ndarray) -> np.ndarray:
    """The upper half circle around the origin for t < pi, the lower one around (1, 0.5) after. (n,) -> (n, 2)."""
    circle = np.stack([np.cos(t), np.sin(t)], axis=1)
    return circle + np.where(t < np.pi, 0.0, 1.0)[:, None] * np.asarray(SECOND_CENTRE)
