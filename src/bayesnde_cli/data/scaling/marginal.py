"""A continuous column through its own fitted distribution to a standard normal."""

from dataclasses import dataclass
from typing import Any

from bayesnde_cli.data.scaling import stored as read
from bayesnde_cli.data.scaling.column_map import Array, Noise, dequantised, noise_to_json
from bayesnde_cli.data.scaling.mixture import Mixture, mixture_from_json
from bayesnde_cli.data.scaling.mixture_fit import fitted_mixture


@dataclass(frozen=True)
class MixtureMarginal:
    """`u = Phi^-1(F(y))` with F a Gaussian mixture plus a Student-t component.

    For continuous columns, and for lattice columns whose noise is wider than the lattice step.
    """

    mixture: Mixture
    noise: Noise | None = None

    def forward(self, value: Array, fraction: Array | None = None) -> tuple[Array, Array]:
        return self.mixture.to_normal(dequantised(value, fraction, self.noise))

    def inverse(self, u: Array) -> Array:
        return self.mixture.from_normal(u)

    def to_value(self, y: Array) -> Array:
        return y if self.noise is None else self.noise.remove(y)

    def to_json(self) -> dict[str, Any]:
        return {"kind": "mixture", "mixture": self.mixture.to_json(), "noise": noise_to_json(self.noise)}


def fit_mixture(train: Array, validation: Array, *, noise: Noise | None = None) -> MixtureMarginal:
    """The map fitted to the training values (noise included); validation rows choose its size."""
    return MixtureMarginal(fitted_mixture(train, validation), noise)


def mixture_marginal_from_json(stored: dict[str, Any]) -> MixtureMarginal:
    noise = None if stored["noise"] is None else read.noise(stored["noise"])
    return MixtureMarginal(mixture_from_json(stored["mixture"]), noise)
