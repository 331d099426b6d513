"""A byte, such as a pixel, to the whole line: the logit of value plus noise."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import expit

from bayesnde_cli.data.scaling.column_map import Array, Noise, as_float, given

LOWEST, HIGHEST = 0.0, 255.0
_LEVELS = 256.0


@dataclass(frozen=True)
class Logit:
    """`u = log s - log(1 - s)` with `s = (v + fraction) / 256`, and `log du/dy = -log 256 - log s - log(1 - s)`.

    Whole numbers from 0 to 255 are the support: another value has no density, and `forward` raises ValueError. The
    noise is U(0, 1), so that the cells of the 256 values fill (0, 256) without a gap. Nothing is fitted.
    """

    @property
    def noise(self) -> Noise:
        return Noise(0.0, 1.0)

    def forward(self, value: Array, fraction: Array | None = None) -> tuple[Array, Array]:
        value, fraction = as_float(value), given(fraction)
        is_byte = (value >= LOWEST) & (value <= HIGHEST) & (value == np.floor(value))
        if not is_byte.all():
            raise ValueError(f"expected a whole number from 0 to 255, got {value[~is_byte][0]:g}")
        # 256 - (v + fraction), but from its two parts: beside 256 the last digits of the fraction are lost
        log_below = np.log(value + fraction)
        log_above = np.log((HIGHEST - value) + (1.0 - fraction))
        return log_below - log_above, np.log(_LEVELS) - log_below - log_above

    def inverse(self, u: Array) -> Array:
        return np.asarray(_LEVELS * expit(as_float(u)))

    def to_value(self, y: Array) -> Array:
        """The whole number below `y`, from 0 to 255."""
        return np.clip(np.floor(y), LOWEST, HIGHEST)

    def to_json(self) -> dict[str, Any]:
        return {"kind": "logit"}


def logit_from_json(stored: dict[str, Any]) -> Logit:
    return Logit()
