"""Maximum likelihood by Adam, and the weights that validation rows like best. One loop for all networks."""

import copy
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

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
    patience: int = 10  # looks in a row that are no better than the best
    weight_decay: float = 1e-6

    def shortened(self, share: float) -> "Length":
        """A share of the steps, with looks as often at least."""
        steps = max(1, round(share * self.steps))
        return Length(steps, min(self.look_every, steps), self.patience, self.weight_decay)


class Rows(NamedTuple):
    """Rows as the networks take them."""

    x: Tensor  # (n, p) float32
    context: Tensor | None  # (n, classes) float32, one-hot


class Trained(NamedTuple):
    """How the training went."""

    steps: int
    best_step: int
    n_skipped: int  # steps whose gradient was no number


def train(network: torch.nn.Module, train: Rows, validation: Rows, length: Length, random: torch.Generator) -> Trained:
    """Train in place: the weights end as those of the look at which the validation rows were likeliest."""
    optimizer = torch.optim.Adam(network.parameters(), lr=_LEARNING_RATE, weight_decay=length.weight_decay, fused=True)
    batches = _batches(len(train.x), random)
    best, best_step, best_weights, n_skipped = _look(network, validation), 0, _weights(network), 0
    for step in range(1, length.steps + 1):
        rows = next(batches)
        for group in optimizer.param_groups:  # a cosine, to 0 at the end of the longest training
            group["lr"] = _LEARNING_RATE * 0.5 * (1.0 + math.cos(math.pi * (step - 1) / length.steps))
        optimizer.zero_grad()
        network.loss(train.x[rows], None if train.context is None else train.context[rows], random).backward()
        norm = torch.nn.utils.clip_grad_norm_(network.parameters(), _MOST_GRADIENT_NORM)
        if torch.isfinite(norm):
            optimizer.step()
        else:
            n_skipped += 1
        network.stepped(step)
        if step % length.look_every == 0 or step == length.steps:
            mean = _look(network, validation)
            if mean > best:
                best, best_step, best_weights = mean, step, _weights(network)
            elif step - best_step >= length.patience * length.look_every:
                break
    network.load_state_dict(best_weights)
    return Trained(step, best_step, n_skipped)


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


def _batches(n_rows: int, random: torch.Generator) -> Iterator[Tensor]:
    """Positions of the rows of one batch after the other, each pass in an order of its own."""
    size = min(_BATCH_ROWS, n_rows)
    while True:
        order = torch.randperm(n_rows, generator=random)
        for start in range(0, n_rows - size + 1, size):
            yield order[start : start + size]
