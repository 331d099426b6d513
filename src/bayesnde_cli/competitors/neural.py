"""Neural densities: triangular flows, a residual flow and flow matching, trained by one loop.

PyTorch, zuko and normflows are an extra: this module is imported when a neural density is fitted.
"""

import copy
import itertools
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from importlib.metadata import version
from typing import Any, NamedTuple

import numpy as np
import torch
import zuko
from normflows.flows.residual import neumann_logdet_estimator
from normflows.nets import LipschitzMLP
from normflows.utils.optim import update_lipschitz
from torch import Tensor

from bayesnde_cli import stopping
from bayesnde_cli.competitors import PACKAGES
from bayesnde_cli.competitors.plain import Fit, Fitted, Keeper, KeptState, by_class
from bayesnde_cli.rng import derive_seed
from bayesnde_cli.rows import Rows, some_rows

_LOG_2_PI = math.log(2.0 * math.pi)


class Network(torch.nn.Module):
    """A density with weights. Rows are x (n, p) float32 and their one-hot classes, context (n, classes) or None."""

    def log_density(self, x: Tensor, context: Tensor | None) -> Tensor:
        """The log-density of each row, (n,) float64."""
        raise NotImplementedError

    def loss(self, x: Tensor, context: Tensor | None, _random: torch.Generator) -> Tensor:
        """The loss of training rows, a scalar: by default minus the mean log-density."""
        return -self.log_density(x, context).mean()

    def after_step(self, step: int) -> None:
        """Called after each step."""

    def before_scoring(self) -> None:
        """Called before rows are scored."""

    def settle(self, _x: Tensor, _context: Tensor | None) -> dict[str, Any]:
        """Called with validation rows after training: sets what scoring needs besides the weights, and returns it."""
        return {}


class TriangularFlow(Network):
    """log p(x) = log N(f(x); 0, I) + log |det f'(x)| of a flow from zuko."""

    def __init__(self, flow: Callable[..., torch.nn.Module], p: int, n_classes: int) -> None:
        super().__init__()
        self.transform = flow(p, n_classes).transform

    def log_density(self, x: Tensor, context: Tensor | None) -> Tensor:
        z, log_det = self.transform(context).call_and_ladj(x)
        return log_det.double() + _log_normal(z.double())


def _log_normal(z: Tensor) -> Tensor:
    """The log-density of the standard normal distribution, (n, p) -> (n,)."""
    return -0.5 * (z**2 + _LOG_2_PI).sum(dim=1)


# Residual flow (Chen et al. 2019): z = x + g(x), block after block, with Lipschitz networks g from normflows.
#
# Training uses the unbiased gradient of log det(I + g') by a series that ends at random; scores have it exactly.

N_BLOCKS = 10
HIDDEN = 128
_LIPSCHITZ = 0.9  # of each layer
_POWER_ITERATIONS = 5
_REFRESH_EVERY = 5  # steps between two estimates of the layers' norms
_ITERATIONS_BEFORE_SCORING = 200
# Terms that the series always has; each further one follows with this probability.
_N_SURE_TERMS, _CHANCE = 2, 0.5


class ResidualFlow(Network):
    """Residual blocks, each followed by a shift and a scale of every column. It has no context."""

    def __init__(self, p: int, n_classes: int) -> None:
        super().__init__()
        assert n_classes == 0
        self.blocks = torch.nn.ModuleList(
            LipschitzMLP([p, HIDDEN, HIDDEN, p], lipschitz_const=_LIPSCHITZ, max_lipschitz_iter=_POWER_ITERATIONS)
            for _ in range(N_BLOCKS)
        )
        self.shift = torch.nn.Parameter(torch.zeros(N_BLOCKS, p))
        self.log_scale = torch.nn.Parameter(torch.zeros(N_BLOCKS, p))

    def loss(self, x: Tensor, _context: Tensor | None, random: torch.Generator) -> Tensor:
        """A number whose expected gradient is that of minus the mean log-density."""
        x = x.clone().requires_grad_()
        total = torch.zeros(len(x))
        for index, block in enumerate(self.blocks):
            g = block(x)
            n_more = 1 + int(math.log(1.0 - torch.rand((), generator=random).item()) / math.log(_CHANCE))
            noise = torch.randn(x.shape, generator=random)
            total = total + neumann_logdet_estimator(g, x, _N_SURE_TERMS + n_more, noise, _term_weight, True)
            x = self._scale(index, x + g)
        return -(total + self.log_scale.sum() + _log_normal(x)).mean()

    def log_density(self, x: Tensor, _context: Tensor | None) -> Tensor:
        total = torch.zeros(len(x), dtype=torch.float64)
        for index, block in enumerate(self.blocks):
            g, slope = _with_jacobian(block, x)
            total += torch.linalg.slogdet(torch.eye(x.shape[1], dtype=torch.float64) + slope).logabsdet
            x = self._scale(index, x + g)
        return total + self.log_scale.double().sum() + _log_normal(x.double())

    def after_step(self, step: int) -> None:
        """Update the norms of the layers, which keep every block invertible."""
        if step % _REFRESH_EVERY == 0:
            update_lipschitz(self, _POWER_ITERATIONS)

    def before_scoring(self) -> None:
        """Compute the norms of the layers to full precision."""
        update_lipschitz(self, _ITERATIONS_BEFORE_SCORING)

    def _scale(self, index: int, x: Tensor) -> Tensor:
        return x * self.log_scale[index].exp() + self.shift[index]


def _term_weight(k: int) -> float:
    """One over the probability that the series has a k-th term."""
    return _CHANCE ** -max(k - _N_SURE_TERMS - 1, 0)


def _with_jacobian(block: torch.nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
    """A block's values (n, p) and its Jacobian (n, p, p) float64, one output column at a time."""
    with torch.enable_grad():
        x = x.detach().requires_grad_()
        g = block(x)
        lines = [torch.autograd.grad(g[:, column].sum(), x, retain_graph=True)[0] for column in range(x.shape[1])]
    return g.detach(), torch.stack(lines, dim=1).double()


# Conditional flow matching (Lipman et al. 2023).
#
# A row x₁ and a normal draw x₀ are joined by x_t = (1 - (1 - s) t) x₀ + t x₁; the field v(x, t) learns the velocity
# x₁ - (1 - s) x₀ by least squares. Then log p(x₁) = log N(x₀; 0, I) - ∫₀¹ div v(x_t, t) dt along dx/dt = v.

_LEAST_SD = 1e-3  # s: the share of the normal draw left at t = 1, in standardised units
_HIDDEN = 256
_FREQUENCIES = 3
# Steps of the solver while training; afterwards they are doubled until log-densities change by less than this (nats).
_FEWEST_STEPS, _MOST_STEPS = 16, 256
_TOLERANCE = 0.005
_SETTLING_ROWS = 256
_swish = torch.nn.functional.silu


class FlowMatching(Network):
    """A velocity field with two hidden layers, whose divergence is exact and costs one more pass."""

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
        """The log-density of each row by fourth-order Runge-Kutta steps, (n,) float64.

        Steps t = 1 - u² are shorter near the rows, where the field is steep, and the same for every row.
        """
        times = [1.0 - (k / self.n_steps) ** 2 for k in range(self.n_steps + 1)]
        total = torch.zeros(len(x), dtype=torch.float64)
        for t, after in itertools.pairwise(times):
            h = after - t
            v1, d1 = self._velocity(x, t, context)
            v2, d2 = self._velocity(x + 0.5 * h * v1, t + 0.5 * h, context)
            v3, d3 = self._velocity(x + 0.5 * h * v2, t + 0.5 * h, context)
            v4, d4 = self._velocity(x + h * v3, after, context)
            x = x + h / 6.0 * (v1 + 2.0 * v2 + 2.0 * v3 + v4)
            total += h / 6.0 * (d1 + 2.0 * d2 + 2.0 * d3 + d4).double()
        return total + _log_normal(x.double())

    def settle(self, x: Tensor, context: Tensor | None) -> dict[str, Any]:
        """Double the solver's steps until the rows' log-densities settle; the number of steps, and the last change."""
        x, context = x[:_SETTLING_ROWS], None if context is None else context[:_SETTLING_ROWS]
        scores, change = self.log_density(x, context), math.inf
        while change > _TOLERANCE and self.n_steps < _MOST_STEPS:
            self.n_steps *= 2
            finer = self.log_density(x, context)
            change, scores = float((finer - scores).abs().mean()), finer
        return {"ode_steps": self.n_steps, "ode_change": change}

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


def _swish_slope(x: Tensor) -> Tensor:
    share = torch.sigmoid(x)
    return share * (1.0 + x * (1.0 - share))


# What each name is, and how long it is trained

_BATCH_ROWS = 256


@dataclass(frozen=True)
class Length:
    """How long to train: in steps, not in seconds, so that the same seed gives the same weights."""

    steps: int = 6_000
    check_every: int = 200
    patience: int = 2_000  # steps without a better validation check
    weight_decay: float = 1e-6
    most_epochs_unchecked: float = 12  # a small table is soon overfitted

    def scale(self, share: float, n_rows: int) -> "Length":
        """A share of the steps, with checks frequent enough for this number of training rows."""
        steps = max(1, round(share * self.steps))
        most = self.most_epochs_unchecked * max(1, n_rows // _BATCH_ROWS)
        return replace(self, steps=steps, check_every=int(min(self.check_every, steps, most)))


class Kind(NamedTuple):
    """A network by its number of columns and classes, how long it is trained, and the settings to report."""

    make: Callable[[int, int], Network]
    length: Length
    settings: dict[str, Any]
    is_conditional: bool = True  # one network for all classes; else one for each


def _triangular(flow: Callable[..., torch.nn.Module], transforms: int, width: int, **more: int) -> Kind:
    make = partial(flow, transforms=transforms, hidden_features=(width, width), **more)
    return Kind(
        partial(TriangularFlow, make), Length(), {"transforms": transforms, "hidden": f"2x{width}"} | dict(more)
    )


# The paper's settings where it has them (appendix, "Baseline methods"). Splines are the identity beyond [-5, 5].
KINDS: Mapping[str, Kind] = {
    "made": _triangular(zuko.flows.MAF, 1, 100),
    "maf": _triangular(zuko.flows.MAF, 10, 100),
    "realnvp": _triangular(zuko.flows.RealNVP, 10, 100),
    "nsf": _triangular(zuko.flows.NSF, 5, 128, bins=8),
    # Its steps are cheap and its loss is noisy, so it gets more steps.
    "cfm": Kind(FlowMatching, Length(steps=20_000, check_every=500, patience=5_000), {"hidden": "2x256"}),
    # The paper's hundred blocks would take hours without a GPU. It learns slowly, and a check costs many steps.
    "resflow": Kind(
        ResidualFlow,
        Length(steps=3_000, weight_decay=1e-5, most_epochs_unchecked=math.inf),
        {"blocks": N_BLOCKS, "paper_blocks": 100, "hidden": f"2x{HIDDEN}"},
        is_conditional=False,
    ),
}

# Training: maximum likelihood by Adam; the weights of the best validation check are kept.

_LEARNING_RATE = 1e-3
_MOST_GRADIENT_NORM = 5.0
# Validation rows of a check, and rows that are scored at once.
_MOST_CHECK_ROWS = 1_000
_ROWS_AT_ONCE = 4_096
# With another version of a package, a saved state may be that of another network.
_VERSIONS = tuple(version(package) for package in PACKAGES)
_Tensors = tuple[Tensor, Tensor | None]  # x and context


def neural_fit(name: str, share: float = 1.0, keeper: Keeper | None = None) -> Fit:
    """The fit of a network with a share of its steps: one for all classes, or one for each."""
    kind = KINDS[name]

    def fit(train: Rows, validation: Rows, seed: int) -> Fitted:
        length = kind.length.scale(share, len(train))
        kept = KeptState(keeper, (name, kind.settings, length, seed, _VERSIONS), train, validation)
        checked = _tensors(validation.take(some_rows(len(validation), _MOST_CHECK_ROWS, seed)))
        with _one_thread():
            with torch.random.fork_rng(devices=[]):  # initial weights come from the global generator
                torch.manual_seed(_torch_seed(seed, "weights"))
                network = kind.make(train.x.shape[1], train.n_classes)
            state = _State(network, len(train), length, torch.Generator().manual_seed(_torch_seed(seed, "batches")))
            _train(state, _tensors(train), checked, kept)
            network.before_scoring()
            with torch.no_grad():
                settled = network.settle(*checked)

        def score(rows: Rows) -> np.ndarray:
            scores = np.empty(len(rows))
            for start in range(0, len(rows), _ROWS_AT_ONCE):
                stopping.check()
                some = slice(start, start + _ROWS_AT_ONCE)
                with _one_thread(), torch.no_grad():
                    scores[some] = network.log_density(*_tensors(rows.take(some))).numpy()
            if train.classes is not None and rows.classes is not None:
                scores[~np.isin(rows.classes, train.classes)] = np.nan  # a class without training rows has no density
            return scores

        counts = {"steps": state.step, "best_step": state.best_step, "n_skipped": state.n_skipped}
        counts |= {"n_fit_rows": len(train), "n_train_rows": len(train)}
        chosen = kind.settings | settled | counts
        return Fitted(score, chosen | {"fit": "conditional"} if train.n_classes else chosen)

    return fit if kind.is_conditional else by_class(fit)


def _train(state: "_State", rows: _Tensors, checked: _Tensors, kept: KeptState) -> None:
    """Train in place; the weights end as those of the best validation check."""
    network, length, (x, context) = state.network, state.length, rows
    saved = kept.read()
    if saved is None:
        state.record(_check(network, checked))
    else:
        state.restore(saved)
    while not state.is_done:
        stopping.check()
        state.step += 1
        batch = state.next_batch()
        for group in state.optimizer.param_groups:  # a cosine, to 0 after the last step
            group["lr"] = _LEARNING_RATE * 0.5 * (1.0 + math.cos(math.pi * (state.step - 1) / length.steps))
        state.optimizer.zero_grad()
        network.loss(x[batch], None if context is None else context[batch], state.random).backward()
        norm = torch.nn.utils.clip_grad_norm_(network.parameters(), _MOST_GRADIENT_NORM)
        if torch.isfinite(norm):
            state.optimizer.step()
        else:
            state.n_skipped += 1
        network.after_step(state.step)
        if state.step % length.check_every == 0 or state.step == length.steps:
            state.record(_check(network, checked))
            kept.write(state.arrays, is_last=state.is_done)
    network.load_state_dict(state.best_weights)


def _check(network: Network, rows: _Tensors) -> float:
    """The mean log-density of validation rows; -inf if it is not finite."""
    network.before_scoring()
    with torch.no_grad():
        mean = float(network.log_density(*rows).mean())
    return mean if math.isfinite(mean) else -math.inf


class _State:
    """Everything that training changes, so that a fit resumes from it to the same numbers."""

    def __init__(self, network: Network, n_rows: int, length: Length, random: torch.Generator) -> None:
        self.network, self.length, self.random = network, length, random
        self.optimizer = torch.optim.Adam(
            network.parameters(), lr=_LEARNING_RATE, weight_decay=length.weight_decay, fused=True
        )
        self._n_rows = self._start = n_rows  # position of the next batch in the order of this epoch
        self._order = torch.empty(0, dtype=torch.int64)
        self.step = self.n_skipped = self.best_step = 0
        self.is_done, self.best = False, -math.inf
        self.best_weights = copy.deepcopy(network.state_dict())

    def next_batch(self) -> Tensor:
        """Positions of the rows of the next batch; every epoch has its own order."""
        size = min(_BATCH_ROWS, self._n_rows)
        if self._start + size > self._n_rows:
            self._order, self._start = torch.randperm(self._n_rows, generator=self.random), 0
        self._start += size
        return self._order[self._start - size : self._start]

    def record(self, mean: float) -> None:
        """Keep the weights if they are the best so far; training is done after a long time without improvement."""
        if mean > self.best:
            self.best, self.best_step = mean, self.step
            self.best_weights = copy.deepcopy(self.network.state_dict())
        self.is_done = self.step == self.length.steps or self.step - self.best_step >= self.length.patience

    def arrays(self) -> dict[str, np.ndarray]:
        """The state as arrays by name."""
        adam = self.optimizer.state_dict()["state"]
        moments = {f"{index}/{name}": value for index, own in adam.items() for name, value in own.items()}
        groups = {"weights": self.network.state_dict(), "best": self.best_weights, "adam": moments}
        tensors = {f"{group}/{name}": value for group, own in groups.items() for name, value in own.items()}
        tensors |= {"random": self.random.get_state(), "order": self._order}
        numbers = [self._start, self.step, self.n_skipped, self.best_step, int(self.is_done)]
        return {name: value.numpy() for name, value in tensors.items()} | {
            "numbers": np.array(numbers),
            "best": np.array(self.best),
        }

    def restore(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Take the state from these arrays."""
        groups: dict[str, dict[str, Tensor]] = {"weights": {}, "best": {}, "adam": {}}
        for name, array in arrays.items():
            group, separator, rest = name.partition("/")
            if separator:
                groups[group][rest] = torch.from_numpy(array)
        moments: dict[int, dict[str, Tensor]] = {}
        for name, value in groups["adam"].items():
            index, _, kind = name.partition("/")
            moments.setdefault(int(index), {})[kind] = value
        self.network.load_state_dict(groups["weights"])
        self.optimizer.load_state_dict(self.optimizer.state_dict() | {"state": moments})
        self.random.set_state(torch.from_numpy(arrays["random"]))
        self._order, self.best_weights = torch.from_numpy(arrays["order"]), groups["best"]
        self._start, self.step, self.n_skipped, self.best_step, is_done = arrays["numbers"].tolist()
        self.best, self.is_done = float(arrays["best"]), bool(is_done)


@contextmanager
def _one_thread() -> Iterator[None]:
    """PyTorch on one thread: products are small here, and sums in one order give the same numbers everywhere."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _tensors(rows: Rows) -> _Tensors:
    return torch.from_numpy(rows.x).float(), None if rows.y is None else torch.from_numpy(rows.y).float()


def _torch_seed(seed: int, purpose: str) -> int:
    return derive_seed(seed, purpose) % 2**63  # PyTorch's seeds are signed
