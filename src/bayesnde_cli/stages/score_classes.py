"""log p(x | y) of rows for every class y, whatever class a row came with."""

from dataclasses import replace
from enum import StrEnum
from typing import NamedTuple

import numpy as np

from bayesnde_cli.rng import derive_seed
from bayesnde_cli.rows import Rows
from bayesnde_cli.stages.loading import Engine, Opened

# A row without cells has the density 1 under every class: the integral of the prior.
_OF_NO_CELLS = {"log_density_scaled": 0.0, "mc_se": 0.0, "reliable": True}
# Least number of rows in a batch for screening.
_SCREEN_ROWS = 32


class Effort(StrEnum):
    """How much is spent on a row."""

    QUICK = "quick"  # screening decides
    USUAL = "usual"  # classes that screening leaves open are scored as by `density`
    THOROUGH = "thorough"  # every class is scored, without screening


class ByClass(NamedTuple):
    """Estimates for rows under every class, (rows, classes) each, and their cost."""

    log_density: np.ndarray  # in the model's space
    mc_se: np.ndarray
    reliable: np.ndarray  # False for a class that screening ruled out
    n_gradients: np.ndarray  # (rows,) of all classes together


def rows_at_once(block_rows: int) -> int:
    """The number of rows to hand to `score_classes`: the engine can take few, screening cannot."""
    return max(block_rows, _SCREEN_ROWS)


def score_classes(
    opened: Opened,
    rows: Rows,
    prior: np.ndarray,
    seed: int,
    *,
    block_rows: int,
    effort: Effort = Effort.USUAL,
    known: np.ndarray | None = None,
) -> ByClass:
    """Rows under every class; the engine takes `block_rows` at a time.

    After screening, the classes that may be the most probable given their `prior` (classes,) are scored by the engine
    if there are several; the others keep the estimates of the screening. Rows with missing cells are not screened. For
    images, screening may leave hopeless classes without an estimate, but not the `known` one (rows,).
    """
    if opened.first_look is None or effort is Effort.THOROUGH or rows.observed is not None:
        is_wanted = np.full((len(rows), len(prior)), True)
        return ByClass(*log_densities_by_class(opened.engine, rows, is_wanted, seed, block_rows=block_rows))
    from bayesnde_cli.inference.class_screen import in_the_running

    first = opened.first_look(rows.x, derive_seed(seed, "first look"), prior, known)
    is_in = in_the_running(first, prior)
    is_open = is_in.sum(axis=1, keepdims=True) > 1
    is_wanted = is_in & is_open if effort is Effort.USUAL else np.zeros_like(is_in)
    found = log_densities_by_class(opened.engine, rows, is_wanted, seed, block_rows=block_rows)
    return ByClass(
        np.where(is_wanted, found.log_density, first.log_density),
        np.where(is_wanted, found.mc_se, first.se),
        np.where(is_wanted, found.reliable, is_in & ~is_open),  # a single class left is not in doubt
        first.n_gradients + found.n_gradients,
    )


def log_densities_by_class(engine: Engine, rows: Rows, is_wanted: np.ndarray, seed: int, *, block_rows: int) -> ByClass:
    """The engine's estimates where `is_wanted` (rows, classes), and NaN and False elsewhere.

    The classes of the rows themselves play no part. The log-Jacobian, which is the same under every class, is not
    included. Rows and classes go through the engine together, in blocks of `block_rows`.
    """
    found = {
        "log_density_scaled": np.full(is_wanted.shape, np.nan),
        "mc_se": np.full(is_wanted.shape, np.nan),
        "reliable": np.full(is_wanted.shape, False),
        "n_gradients": np.zeros(is_wanted.shape, np.int64),
    }
    class_index, row_index = np.nonzero(is_wanted.T)
    for block, first in enumerate(range(0, len(row_index), block_rows)):
        positions, classes = row_index[first : first + block_rows], class_index[first : first + block_rows]
        given = replace(rows.take(positions), y=np.eye(is_wanted.shape[1], dtype=np.float32)[classes])
        figures = engine.estimate(given, derive_seed(seed, "class", block))
        for name, table in found.items():
            table[positions, classes] = figures[name][: len(positions)]
    for name, value in _OF_NO_CELLS.items():
        found[name][rows.n_observed == 0] = value
    log_density, mc_se, reliable, n_gradients = found.values()
    return ByClass(log_density, mc_se, reliable, n_gradients.sum(axis=1))
