"""Resflow: a residual flow (Chen et al. 2019) of normflows' Lipschitz networks, z = x + g(x) block after block.

Training takes the unbiased gradient of log det(I + g') by a series that ends at random; scores have it exactly.
"""

import math

import torch
from normflows.flows.residual import neumann_logdet_estimator
from normflows.nets import LipschitzMLP
from normflows.utils.optim import update_lipschitz
from torch import Tensor

from bayesnde_cli.evaluation.figures import Figures

N_BLOCKS = 10
HIDDEN = 128
_LIPSCHITZ = 0.9  # of each layer
_POWER_ITERATIONS = 5
_REFRESH_EVERY = 5  # steps between two estimates of the layers' norms
_ITERATIONS_BEFORE_SCORING = 200
# Terms of the series that are always there; each further one follows with this chance.
_N_SURE_TERMS, _CHANCE = 2, 0.5
_LOG_2_PI = math.log(2.0 * math.pi)


class ResidualFlow(torch.nn.Module):
    """Residual blocks, each followed by a shift and a scale of every column."""

    def __init__(self, p: int, n_classes: int) -> None:
        super().__init__()
        assert n_classes == 0, "a residual flow here knows no classes"
        self.blocks = torch.nn.ModuleList(
            LipschitzMLP([p, HIDDEN, HIDDEN, p], lipschitz_const=_LIPSCHITZ, max_lipschitz_iter=_POWER_ITERATIONS)
            for _ in range(N_BLOCKS)
        )
        self.shift = torch.nn.Parameter(torch.zeros(N_BLOCKS, p))
        self.log_scale = torch.nn.Parameter(torch.zeros(N_BLOCKS, p))

    def loss(self, x: Tensor, context: Tensor | None, random: torch.Generator) -> Tensor:
        """A number whose gradient is, in the mean over the random draws, that of minus the mean log-density."""
        x = x.clone().requires_grad_()
        total = torch.zeros(len(x))
        for index, block in enumerate(self.blocks):
            g = block(x)
            n_more = 1 + int(math.log(1.0 - torch.rand((), generator=random).item()) / math.log(_CHANCE))
            noise = torch.randn(x.shape, generator=random)
            total = total + neumann_logdet_estimator(g, x, _N_SURE_TERMS + n_more, noise, _weight, True)
            x = self._scaled(index, x + g)
        return -(total + self.log_scale.sum() - 0.5 * (x**2 + _LOG_2_PI).sum(dim=1)).mean()

    def log_density(self, x: Tensor, context: Tensor | None) -> Tensor:
        """The log-density of each row with the exact determinant of each block, (n,) float64."""
        total = torch.zeros(len(x), dtype=torch.float64)
        for index, block in enumerate(self.blocks):
            g, slope = _with_jacobian(block, x)
            total += torch.linalg.slogdet(torch.eye(x.shape[1], dtype=torch.float64) + slope).logabsdet
            x = self._scaled(index, x + g)
        return total + self.log_scale.double().sum() - 0.5 * (x.double() ** 2 + _LOG_2_PI).sum(dim=1)

    def stepped(self, step: int) -> None:
        """Follow the norms of the layers, which keep every block invertible."""
        if step % _REFRESH_EVERY == 0:
            update_lipschitz(self, _POWER_ITERATIONS)

    def settle(self, x: Tensor, context: Tensor | None) -> Figures:
        """There is nothing to set once it is trained."""
        return {}

    def before_scoring(self) -> None:
        """Have the norms of the layers to the last digit."""
        update_lipschitz(self, _ITERATIONS_BEFORE_SCORING)

    def _scaled(self, index: int, x: Tensor) -> Tensor:
        return x * self.log_scale[index].exp() + self.shift[index]


def _weight(k: int) -> float:
    """One over the chance that the series has a k-th term."""
    return _CHANCE ** -max(k - _N_SURE_TERMS - 1, 0)


def _with_jacobian(block: torch.nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
    """A block's values (n, p) and its Jacobian (n, p, p) float64, a column of values at a time."""
    with torch.enable_grad():
        x = x.detach().requires_grad_()
        g = block(x)
        lines = [torch.autograd.grad(g[:, column].sum(), x, retain_graph=True)[0] for column in range(x.shape[1])]
    return g.detach(), torch.stack(lines, dim=1).double()
