"""MADE, MAF, Real NVP and NSF: flows with triangular Jacobians, on zuko."""

import math
from collections.abc import Callable
from functools import partial

import torch
import zuko
from torch import Tensor

from bayesnde_cli.evaluation.figures import Figures

_LOG_2_PI = math.log(2.0 * math.pi)


class TriangularFlow(torch.nn.Module):
    """log p(x) = log N(f(x); 0, I) + log |det f'(x)| of a flow of zuko's."""

    def __init__(self, flow: Callable[..., torch.nn.Module], p: int, n_classes: int) -> None:
        super().__init__()
        self.transform = flow(p, n_classes).transform

    def log_density(self, x: Tensor, context: Tensor | None) -> Tensor:
        """The log-density of each row, (n,) float64."""
        z, log_det = self.transform(context).call_and_ladj(x)
        z = z.double()
        return log_det.double() - 0.5 * (z**2 + _LOG_2_PI).sum(dim=-1)

    def loss(self, x: Tensor, context: Tensor | None, random: torch.Generator) -> Tensor:
        """Minus the mean log-density."""
        return -self.log_density(x, context).mean()

    def stepped(self, step: int) -> None:
        """Nothing is to be done after a step."""

    def settle(self, x: Tensor, context: Tensor | None) -> Figures:
        """There is nothing to set once it is trained."""
        return {}

    def before_scoring(self) -> None:
        """Nothing is to be done before rows are scored."""


# The paper's settings where it has them (appendix, "Baseline methods"). Splines are the identity beyond [-5, 5].
made = partial(TriangularFlow, partial(zuko.flows.MAF, transforms=1, hidden_features=(100, 100)))
maf = partial(TriangularFlow, partial(zuko.flows.MAF, transforms=10, hidden_features=(100, 100)))
realnvp = partial(TriangularFlow, partial(zuko.flows.RealNVP, transforms=10, hidden_features=(100, 100)))
nsf = partial(TriangularFlow, partial(zuko.flows.NSF, transforms=5, hidden_features=(128, 128), bins=8))
