"""Maximum likelihood by Adam, and the weights that validation rows like best. One loop for all networks."""

import copy
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from bayesnde_cli.evaluation.baselines.kept import KeptState
from bayesnde_cli.evaluation.figures import Figures

_LEARNING_RATE = 1e-3
_BATCH_ROWS = 256
_MOST_GRADIENT_NORM = 5.0


class Network(Protocol):
    """A density with weights, as the loop sees it. Rows are x (n, p) float32, context (n, classes) or None."""

    def loss(self, x: Tensor, context: Tensor | None, random: torch.Generator) -> Tensor:
        """What is made small on training rows, ()."""

    def log_density(self, x: Tensor, context: Tensor | None) -> Tensor:
        """The log-density of each row, (n,) float64."""

    def stepped(self, step: int) -> None:
        """Called after each step."""

    def before_scoring(self) -> None:
        """Called before rows are scored."""

    def settle(self, x: Tensor, context: Tensor | None) -> Figures:
        """Called with validation rows once it is trained: what scoring needs beside the weights, to be told."""


@dataclass(frozen=True)
class Length:
    """How long to train: in steps and not in seconds, so that the same seed gives the same weights."""

    steps: int = 6_000
    look_every: int = 200
    patience: int = 2_000  # steps without a look that is better than the best
    weight_decay: float = 1e-6
    most_epochs_unseen: int | None = 12  # between two looks, as few rows are soon learnt by heart

    def shortened(self, share: float) -> "Length":
        """A share of the steps, with looks as often at least."""
        steps = max(1, round(share * self.steps))
        return replace(self, steps=steps, look_every=min(self.look_every, steps))

    def of_rows(self, n_rows: int) -> "Length":
        """The same for so many training rows: the fewer they are, the sooner it looks."""
        if self.most_epochs_unseen is None:
            return self
        most = self.most_epochs_unseen * max(1, n_rows // _BATCH_ROWS)
        return replace(self, look_every=min(self.look_every, most))


class Rows(NamedTuple):
    """Rows as the networks take them."""

    x: Tensor  # (n, p) float32
    context: Tensor | None  # (n, classes) float32, one-hot


class Trained(NamedTuple):
    """How the training went."""

    steps: int
    best_step: int
    n_skipped: int  # steps whose gradient was no number


class _State:
    """All that changes while a network is trained: what it needs to go on from here, to the same numbers."""

    def __init__(self, network: torch.nn.Module, n_rows: int, length: Length, random: torch.Generator) -> None:
        self.network, self.random = network, random
        self.optimizer = torch.optim.Adam(
            network.parameters(), lr=_LEARNING_RATE, weight_decay=length.weight_decay, fused=True
        )
        self.batches = _Batches(n_rows, random)
        self.step, self.n_skipped, self.is_done = 0, 0, False
        self.best, self.best_step, self.best_weights = -math.inf, 0, _weights(network)

    def looked(self, mean: float, length: Length) -> None:
        """Remember the weights if the validation rows like them best; without a gain for long, it is done."""
        if mean > self.best:
            self.best, self.best_step, self.best_weights = mean, self.step, _weights(self.network)
        elif self.step - self.best_step >= length.patience:
            self.is_done = True
        self.is_done = self.is_done or self.step == length.steps

    def arrays(self) -> dict[str, np.ndarray]:
        """The state as arrays by name."""
        tensors = {f"weights/{name}": found for name, found in self.network.state_dict().items()}
        tensors |= {f"best/{name}": found for name, found in self.best_weights.items()}
        for index, moments in self.optimizer.state_dict()["state"].items():
            tensors |= {f"adam/{index}/{name}": found for name, found in moments.items()}
        tensors |= {"random": self.random.get_state(), "order": self.batches.order}
        numbers = [self.batches.start, self.step, self.n_skipped, self.best_step, int(self.is_done)]
        return {name: found.numpy() for name, found in tensors.items()} | {
            "numbers": np.array(numbers),
            "best": np.array(self.best),
        }

    def restore(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Be the state that these arrays are of."""
        tensors = {name: torch.from_numpy(found) for name, found in arrays.items()}
        self.network.load_state_dict(_under("weights/", tensors))
        self.best_weights = _under("best/", tensors)
        moments: dict[int, dict[str, Tensor]] = {}
        for name, found in _under("adam/", tensors).items():
            index, _, kind = name.partition("/")
            moments.setdefault(int(index), {})[kind] = found
        self.optimizer.load_state_dict(self.optimizer.state_dict() | {"state": moments})
        self.random.set_state(tensors["random"])
        self.batches.order, self.best = tensors["order"], float(arrays["best"])
        self.batches.start, self.step, self.n_skipped, self.best_step, is_done = arrays["numbers"].tolist()
        self.is_done = bool(is_done)


def train(
    network: torch.nn.Module, train: Rows, validation: Rows, length: Length, random: torch.Generator, kept: KeptState
) -> Trained:
    """Train in place: the weights end as those of the look at which the validation rows were likeliest."""
    state = _State(network, len(train.x), length, random)
    there = kept.read()
    if there is None:
        state.looked(_look(network, validation), length)
    else:
        state.restore(there)
    while not state.is_done:
        state.step += 1
        rows = state.batches.next()
        for group in state.optimizer.param_groups:  # a cosine, to 0 at the end of the longest training
            group["lr"] = _LEARNING_RATE * 0.5 * (1.0 + math.cos(math.pi * (state.step - 1) / length.steps))
        state.optimizer.zero_grad()
        network.loss(train.x[rows], None if train.context is None else train.context[rows], random).backward()
        norm = torch.nn.utils.clip_grad_norm_(network.parameters(), _MOST_GRADIENT_NORM)
        if torch.isfinite(norm):
            state.optimizer.step()
        else:
            state.n_skipped += 1
        network.stepped(state.step)
        if state.step % length.look_every == 0 or state.step == length.steps:
            state.looked(_look(network, validation), length)
            kept.write(state.arrays, is_last=state.is_done)
    network.load_state_dict(state.best_weights)
    return Trained(state.step, state.best_step, state.n_skipped)


@contextmanager
def one_thread() -> Iterator[None]:
    """PyTorch on one thread: its products are small here, and sums in one order give the same numbers everywhere."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _look(network: torch.nn.Module, rows: Rows) -> float:
    """The mean log-density of validation rows; -inf if it is no number."""
    network.before_scoring()
    with torch.no_grad():
        mean = float(network.log_density(rows.x, rows.context).mean())
    return mean if math.isfinite(mean) else -math.inf


def _weights(network: torch.nn.Module) -> dict[str, Tensor]:
    return copy.deepcopy(network.state_dict())


def _under(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors whose names begin so, by the rest of their names."""
    return {name.removeprefix(prefix): found for name, found in tensors.items() if name.startswith(prefix)}


class _Batches:
    """Positions of the rows of one batch after the other, each pass in an order of its own."""

    def __init__(self, n_rows: int, random: torch.Generator) -> None:
        self._n_rows, self._size, self._random = n_rows, min(_BATCH_ROWS, n_rows), random
        self.order, self.start = torch.empty(0, dtype=torch.int64), n_rows

    def next(self) -> Tensor:
        if self.start + self._size > self._n_rows:
            self.order, self.start = torch.randperm(self._n_rows, generator=self._random), 0
        rows = self.order[self.start : self.start + self._size]
        self.start += self._size
        return rows
