"""Concentric circles with Gaussian noise."""

import numpy as np
from scipy.special import i0e

from bayesnde_cli.data.simulators.simulator import as_rows, column_names

RADII = (1.0, 2.0, 3.0)
# A tenth of the gap between circles: three separate rings, each with a visible width.
NOISE_SD = 0.1


class Rings:
    """A circle drawn at equal chances from three, a uniform angle on it, and N(0, 0.1^2 I) noise."""

    names = column_names(2)

    def sample(self, n: int, rng: np.random.Generator) -> np.ndarray:
        """`n` rows. (n, 2)."""
        radius = rng.choice(RADII, size=n)
        angle = rng.uniform(0.0, 2.0 * np.pi, size=n)
        circle = np.stack([radius * np.cos(angle), radius * np.sin(angle)], axis=1)
        return circle + NOISE_SD * rng.standard_normal((n, 2))

    def log_density(self, x: np.ndarray) -> np.ndarray:
        """log of the mean over radii R of exp(-(rho - R)^2 / 2s^2) I0e(rho R / s^2) / (2 pi s^2). (n, 2) -> (n,).

        rho is the length of the row and I0e the Bessel function I0 times exp(-argument): the angle integrated out.
        """
        rows = as_rows(x, 2)
        rho = np.hypot(rows[:, 0], rows[:, 1])[:, None]  # (n, 1)
        radii = np.asarray(RADII)
        with np.errstate(over="ignore"):
            log_ring = -0.5 * ((rho - radii) / NOISE_SD) ** 2 + np.log(i0e(rho * (radii / NOISE_SD**2)))  # (n, 3)
        log_constant = np.log(2.0 * np.pi) + 2.0 * np.log(NOISE_SD) + np.log(len(RADII))
        return np.logaddexp.reduce(log_ring, axis=1) - log_constant
