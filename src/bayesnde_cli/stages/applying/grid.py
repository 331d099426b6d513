"""`grid`: the density of two columns on a grid, all other columns integrated out or held at a value."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from bayesnde_cli.errors import BadUsage, one_line
from bayesnde_cli.rng import derive_seed
from bayesnde_cli.stages.applying.axis import Axis
from bayesnde_cli.stages.applying.fitted_run import FittedRun
from bayesnde_cli.stages.applying.grid_sums import GridSums
from bayesnde_cli.stages.applying.opening import Prior
from bayesnde_cli.stages.reporting import Report

# Latents in one call of the decoder.
BLOCK_LATENTS = 8192
# Fewer latents of any weight near the values of --at: their average is a matter of chance.
_FEW_LATENTS = 400


@dataclass(frozen=True)
class Question:
    """What is asked: two columns, others at one value each, a class by its position, and how many latents to use."""

    first: Axis
    second: Axis
    held: Sequence[Axis] = ()
    chosen_class: int | None = None
    n_draws: int = 2**19


@dataclass(frozen=True)
class Grid:
    """The density on a grid, in the units of the file. (first, second) each."""

    question: Question
    log_density: np.ndarray
    mc_se: np.ndarray
    reliable: np.ndarray
    title: str

    @property
    def share(self) -> float:
        """How much of the probability lies on the grid, about: the sum over its points."""
        return float(np.exp(self.log_density).sum() * self.question.first.step * self.question.second.step)

    def table(self) -> pa.Table:
        """A row for each point; the second column runs fastest."""
        first, second = self.question.first, self.question.second
        index = np.indices(self.log_density.shape).reshape(2, -1)
        columns = {
            axis.feature.name: axis.cells.take(pa.array(at)) for axis, at in zip((first, second), index, strict=True)
        }
        figures = {"log_density": self.log_density, "mc_se": self.mc_se, "reliable": self.reliable}
        return pa.table({**columns, **{name: pa.array(values.ravel()) for name, values in figures.items()}})

    def as_dict(self) -> dict[str, Any]:
        sizes = dict(zip(("n_first", "n_second"), self.log_density.shape, strict=True))
        return {"title": self.title, **sizes, "n_reliable": int(self.reliable.sum()), "share": self.share}

    def __str__(self) -> str:
        n_first, n_second = self.log_density.shape
        return (
            f"{one_line(self.title)}: {n_first:,} by {n_second:,} points, {int(self.reliable.sum()):,} reliable, "
            f"about {100 * self.share:.1f} % of the probability"
        )


def run_grid(run: FittedRun, prior: Prior, question: Question, report: Report) -> Grid:
    """The density of two columns; `prior` draws BLOCK_LATENTS at a time."""
    axes = [question.first, question.second, *question.held]
    names = [feature.name for feature in run.schema.features]
    positions = [names.index(axis.feature.name) for axis in axes]
    sums = GridSums(len(question.first.places), len(question.second.places))
    inverse_sd = np.zeros(len(axes))
    with report.progress("averaging", question.n_draws, "latents") as advance:
        for mean, sd in _moments(run, prior, question):
            columns = zip(axes, positions, strict=True)
            first, second, *held = (axis.density(mean[:, at], sd[:, at]) for axis, at in columns)
            sums.add(first, second, np.prod(held, axis=0)[:, 0] if held else None)
            inverse_sd += (1.0 / sd[:, positions]).sum(axis=0)
            advance(len(mean))
    _check_weights(sums.n_effective, question, report)
    log_density, se = sums.estimate()
    missed = _unseen(axes, question.n_draws / inverse_sd, question.n_draws) / sums.mean_weight
    mc_se = np.hypot(se, _possible_gain(log_density, missed))
    return Grid(question, log_density, mc_se, mc_se <= run.config.target_se, _title(run, question))


def _unseen(axes: Sequence[Axis], sds: np.ndarray, n_draws: int) -> np.ndarray:
    """The density that latents which were never drawn may add, (first, second): those far out make the far tails.

    With 95 % certainty their share of the prior is below 3 / n_draws; each adds no more than the peak of a latent with
    the usual standard deviation, `sds` of each axis.
    """
    first, second, *held = (axis.peak(float(sd)) for axis, sd in zip(axes, sds, strict=True))
    return np.asarray(3.0 / n_draws * np.prod([peak[0] for peak in held]) * np.outer(first, second))


def _possible_gain(log_density: np.ndarray, missed: np.ndarray) -> np.ndarray:
    """log((p + missed) / p): by how many nats the log-density may be too low."""
    with np.errstate(divide="ignore"):
        return np.logaddexp(log_density, np.log(missed)) - log_density


def _moments(run: FittedRun, prior: Prior, question: Question) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Mean and standard deviation of every column given latents from the prior, (latents, p) float64, in blocks."""
    for block in range(-(-question.n_draws // BLOCK_LATENTS)):
        y = None
        if run.classes:
            drawn = run.drawn_classes(BLOCK_LATENTS, "grid", block)
            y = run.one_hot(drawn if question.chosen_class is None else np.full(BLOCK_LATENTS, question.chosen_class))
        moments = prior.moments(derive_seed(run.seed, "grid", block), y)
        n = min(BLOCK_LATENTS, question.n_draws - block * BLOCK_LATENTS)
        mean, variance = (part[:n].astype(np.float64) for part in moments)
        yield mean, np.sqrt(variance)


def _check_weights(n_effective: float, question: Question, report: Report) -> None:
    if n_effective == 0.0:
        raise BadUsage(
            "the model has no density at the values of --at",
            found=", ".join(_held_words(question)),
            hint="give values in the range of the data",
        )
    if question.held and n_effective < _FEW_LATENTS:
        report.warn(
            f"the values of --at are rare: {n_effective:,.0f} of {question.n_draws:,} latents are near them; "
            "give more --draws, or hold fewer columns"
        )


def _title(run: FittedRun, question: Question) -> str:
    """`log p(a, b | y = u, c = 3)`."""
    given = (
        []
        if question.chosen_class is None
        else [f"{run.schema.roles.condition} = {run.classes[question.chosen_class]}"]
    )
    given += _held_words(question)
    columns = f"{question.first.feature.name}, {question.second.feature.name}"
    return f"log p({columns} | {', '.join(given)})" if given else f"log p({columns})"


def _held_words(question: Question) -> list[str]:
    return [f"{axis.feature.name} = {axis.cells[0].as_py()}" for axis in question.held]
