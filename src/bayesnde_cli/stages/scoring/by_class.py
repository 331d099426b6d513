"""log p(x | y) of rows for every class y, and not only for the class that a row came with."""

from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from bayesnde_cli.inference.block import Rows
from bayesnde_cli.rng import derive_seed
from bayesnde_cli.stages.scoring.engine import Engine, Opened

if TYPE_CHECKING:
    from bayesnde_cli.stages.scoring.first_look import FirstLook

# What a row without any cell has under every class: the integral of the prior, exactly 1.
_OF_NO_CELLS = {"log_density_scaled": 0.0, "mc_se": 0.0, "reliable": True}
_FIGURES = tuple(_OF_NO_CELLS)
# Rows that are looked at together, at least.
_LOOK_ROWS = 32


class Effort(StrEnum):
    """How much is spent on a row."""

    QUICK = "quick"  # the first look decides
    USUAL = "usual"  # where a first look leaves several classes, they are scored as by `density`
    THOROUGH = "thorough"  # every class is, without a first look


class ByClass(NamedTuple):
    """What is known of rows under every class, (rows, classes) each, and what it took."""

    log_density: np.ndarray  # in the model's space
    mc_se: np.ndarray
    reliable: np.ndarray  # of a class that is out of the running: False
    n_gradients: np.ndarray  # (rows,) of all classes of a row together


def rows_at_once(block_rows: int) -> int:
    """How many rows to hand to `score_classes`: the engine may take few, a first look does not."""
    return max(block_rows, _LOOK_ROWS)


def score_classes(
    opened: Opened, rows: Rows, prior: np.ndarray, seed: int,
    *, block_rows: int, effort: Effort = Effort.USUAL, known: np.ndarray | None = None,
) -> ByClass:  # fmt: skip
    """Rows under every class, whatever classes they came with; the engine takes `block_rows` at a time.

    After a first look, the classes that may be the likeliest, with their `prior` (classes,), are scored by the engine,
    if they are several; all else keeps that look's estimates. Rows with missing cells have no first look. Of images a
    look may leave hopeless classes without an estimate, but not the `known` one (rows,).
    """
    n_classes = len(prior)
    is_looked = effort is not Effort.THOROUGH and rows.observed is None
    look: FirstLook | None = opened.first_look if is_looked else None
    if look is None:
        found = log_densities_by_class(opened.engine, rows, n_classes, seed, block_rows=block_rows)
        log_density, mc_se, reliable = (found[name] for name in _FIGURES)
        return ByClass(log_density, mc_se, reliable, found["n_gradients"].sum(axis=1))
    from bayesnde_cli.stages.scoring.first_look import in_the_running

    first = look(rows.x, derive_seed(seed, "first look"), prior, known)
    is_in = in_the_running(first, prior)
    is_open = is_in.sum(axis=1, keepdims=True) > 1
    is_wanted = is_in & is_open if effort is Effort.USUAL else np.zeros_like(is_in)
    found = log_densities_by_class(
        opened.engine, rows, n_classes, seed, block_rows=block_rows, is_wanted=is_wanted
    )  # fmt: skip
    log_density, mc_se, reliable = (found[name] for name in _FIGURES)
    return ByClass(
        np.where(is_wanted, log_density, first.log_density),
        np.where(is_wanted, mc_se, first.se),
        np.where(is_wanted, reliable, is_in & ~is_open),  # one class alone: nothing is left to doubt
        first.n_gradients + found["n_gradients"].sum(axis=1),
    )


def log_densities_by_class(
    engine: Engine, rows: Rows, n_classes: int, seed: int,
    *, block_rows: int, is_wanted: np.ndarray | None = None,
) -> dict[str, np.ndarray]:  # fmt: skip
    """`log_density_scaled`, `mc_se`, `reliable` and `n_gradients` of rows by class, (rows, classes) each.

    The classes that the rows came with, if they did, play no part. The log-Jacobian is the same under every class: it
    is added for units of the file, and left out where classes are compared. Of classes that are not wanted of a row,
    `is_wanted` (rows, classes), nothing is known: NaN and False. Rows and classes that are go through the engine
    together, in blocks of `block_rows`, the last of which is filled up with some of its own.
    """
    n_rows = len(rows.x)
    if is_wanted is None:
        is_wanted = np.full((n_rows, n_classes), True)
    found = {
        "log_density_scaled": np.full((n_rows, n_classes), np.nan),
        "mc_se": np.full((n_rows, n_classes), np.nan),
        "reliable": np.full((n_rows, n_classes), False),
        "n_gradients": np.zeros((n_rows, n_classes), np.int64),
    }
    of_class, of_row = np.nonzero(is_wanted.T)
    for index, first in enumerate(range(0, len(of_row), block_rows)):
        chosen, classes = of_row[first : first + block_rows], of_class[first : first + block_rows]
        padded = np.resize(chosen, block_rows)
        given = Rows(
            rows.x[padded],
            None if rows.observed is None else rows.observed[padded],
            np.eye(n_classes, dtype=np.float32)[np.resize(classes, block_rows)],
        )
        address = derive_seed(seed, "class", index)
        figures = engine.score(given, engine.sample(given, address), address, n_real=len(chosen))
        for name, table in found.items():
            table[chosen, classes] = figures[name][: len(chosen)]
    if rows.observed is not None:
        for name, value in _OF_NO_CELLS.items():
            found[name][~rows.observed.any(axis=1)] = value
    return found
