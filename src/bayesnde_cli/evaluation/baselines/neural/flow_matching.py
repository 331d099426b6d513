"""CFM: a velocity field fitted by conditional flow matching (Lipman et al. 2023), its density by solving the flow.

A row x₁ and a normal draw x₀ are joined by x_t = (1 - (1 - s) t) x₀ + t x₁; the field v(x, t) learns the velocity
x₁ - (1 - s) x₀ by least squares. Then log p(x₁) = log N(x₀; 0, I) - ∫₀¹ div v(x_t, t) dt along dx/dt = v.
"""

import itertools
import math

import torch
from torch import Tensor

from bayesnde_cli.evaluation.figures import Figures

_LEAST_SD = 1e-3  # s: what is left of the normal draw at t = 1, in standardised units
_HIDDEN = 256
_FREQUENCIES = 3
_LOG_2_PI = math.log(2.0 * math.pi)
# Steps of the solver while training; then they are doubled until log-densities move less than this, in nats.
_FEWEST_STEPS, _MOST_STEPS = 16, 256
_TOLERANCE = 0.005
_SETTLING_ROWS = 256


class FlowMatching(torch.nn.Module):
    """The field: two hidden layers, of which the divergence is exact at the price of one more pass."""

    def __init__(self, p: int, n_classes: int) -> None:
        super().__init__()
        self.p, self.n_steps = p, _FEWEST_STEPS
        self.first = torch.nn.Linear(p + 2 * _FREQUENCIES + 1 + n_classes, _HIDDEN)
        self.second = torch.nn.Linear(_HIDDEN, _HIDDEN)
        self.last = torch.nn.Linear(_HIDDEN, p)

    def loss(self, x: Tensor, context: Tensor | None, random: torch.Generator) -> Tensor:
        """The mean squared error of the velocity at a random time between a draw and a row."""
        draw = torch.randn(x.shape, generator=random)
        t = torch.rand((len(x), 1), generator=random)
        here = (1.0 - (1.0 - _LEAST_SD) * t) * draw + t * x
        hidden = self.second(_swish(self.first(self._inputs(here, t, context))))
        return ((self.last(_swish(hidden)) - (x - (1.0 - _LEAST_SD) * draw)) ** 2).sum(dim=1).mean()

    def log_density(self, x: Tensor, context: Tensor | None) -> Tensor:
        """The log-density of each row by Runge and Kutta's fourth-order steps, (n,) float64.

        Steps t = 1 - u² are shorter near the rows, where the field is steep. Each row has the same ones, whatever
        rows are beside it.
        """
        places = [1.0 - (k / self.n_steps) ** 2 for k in range(self.n_steps + 1)]
        total = torch.zeros(len(x), dtype=torch.float64)
        for t, after in itertools.pairwise(places):
            h = after - t
            v1, d1 = self._velocity(x, t, context)
            v2, d2 = self._velocity(x + 0.5 * h * v1, t + 0.5 * h, context)
            v3, d3 = self._velocity(x + 0.5 * h * v2, t + 0.5 * h, context)
            v4, d4 = self._velocity(x + h * v3, after, context)
            x = x + h / 6.0 * (v1 + 2.0 * v2 + 2.0 * v3 + v4)
            total += h / 6.0 * (d1 + 2.0 * d2 + 2.0 * d3 + d4).double()
        return total - 0.5 * (x.double() ** 2 + _LOG_2_PI).sum(dim=1)

    def settle(self, x: Tensor, context: Tensor | None) -> Figures:
        """Set the solver's steps so that these rows' log-densities no longer move; how many, and the last move."""
        x, context = x[:_SETTLING_ROWS], None if context is None else context[:_SETTLING_ROWS]
        found, change = self.log_density(x, context), math.inf
        while change > _TOLERANCE and self.n_steps < _MOST_STEPS:
            self.n_steps *= 2
            finer = self.log_density(x, context)
            change, found = float((finer - found).abs().mean()), finer
        return {"ode_steps": self.n_steps, "ode_change": change}

    def stepped(self, step: int) -> None:
        """Nothing is to be done after a step."""

    def before_scoring(self) -> None:
        """Nothing is to be done before rows are scored."""

    def _velocity(self, x: Tensor, t: float, context: Tensor | None) -> tuple[Tensor, Tensor]:
        """The velocity (n, p) and its divergence (n,).

        With W₁ on x, W₂, W₃ and the slopes a, b of the two layers, div = tr(W₃ diag(b) W₂ diag(a) W₁)
        = bᵀ (W₂ ∘ (W₁ W₃)ᵀ) a.
        """
        first = self.first(self._inputs(x, torch.full((len(x), 1), t), context))
        second = self.second(_swish(first))
        loop = self.second.weight * (self.first.weight[:, : self.p] @ self.last.weight).T  # (hidden, hidden)
        divergence = (_swish_slope(second) * (_swish_slope(first) @ loop.T)).sum(dim=1)
        return self.last(_swish(second)), divergence

    def _inputs(self, x: Tensor, t: Tensor, context: Tensor | None) -> Tensor:
        angles = math.pi * t * torch.arange(1, _FREQUENCIES + 1)
        return torch.cat([x, t, angles.cos(), angles.sin(), *([] if context is None else [context])], dim=1)


def _swish(x: Tensor) -> Tensor:
    return torch.nn.functional.silu(x)


def _swish_slope(x: Tensor) -> Tensor:
    share = torch.sigmoid(x)
    return share * (1.0 + x * (1.0 - share))
