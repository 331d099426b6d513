"""The choice of a recipe: every candidate is trained for a short while, and held-out rows decide.

After the warm start candidates that are clearly below the best one are dropped; if others are left, they are refined
for a moment as well. Of those within a standard error of the best one, the cheapest is chosen. All
see the same rows. With many rows, where networks differ in speed rather than in what they memorise, they take about as
many operations each; else as many steps, as a small network is ahead after few operations and behind in the end."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from bayesnde_cli import stopping
from bayesnde_cli.errors import NumericalFailure
from bayesnde_cli.formatting import Advance, Report
from bayesnde_cli.inference.importance import marginal_scorer
from bayesnde_cli.model.coders import Networks
from bayesnde_cli.model.layers import Parameters
from bayesnde_cli.model.networks import n_products
from bayesnde_cli.rng import derive_seed, generator
from bayesnde_cli.rows import Rows
from bayesnde_cli.settings.stage_settings import MANY_ROWS, RefineSettings, WarmstartSettings
from bayesnde_cli.training import recipes
from bayesnde_cli.training.loop import Once, Phase, read_losses
from bayesnde_cli.training.members import distinct_ids
from bayesnde_cli.training.training_rows import TrainingRows

# Steps of the middle candidate in both parts, and of its column start; others take at least and at most these shares.
_WARMSTART_STEPS, _COLUMN_STEPS, _REFINE_STEPS = 600, 400, 300
_FEWEST, _MOST = 0.5, 2.0
# With fewer validation rows than this, training rows are held out as well, up to a share of them.
_FEW_ROWS, _HELD_OUT_SHARE = 200, 0.25
_MOST_ROWS = 512  # held-out rows that are scored
# Fewer held-out rows than this cannot choose.
LEAST_ROWS = 100
# Standard errors of the difference within which a cheaper candidate is as good, and beyond which one is dropped.
_AS_GOOD, _CLEARLY = 1.0, 3.0
_PARTS = ("warmstart", "refine")
_SCORES = "scores"
# Where a density is not finite.
_LOWEST = -1e6


class HeldOut(NamedTuple):
    """Positions of the training rows that candidates are trained on, and the rows that they are compared by."""

    trained: np.ndarray
    rows: Rows
    n_rows: int  # that are held out; of many, some are scored


def hold_out(train: Rows, validation: Rows, seed: int) -> HeldOut:
    """The validation rows, and with few of them some training rows as well, with all copies of each."""
    parts, is_held = [replace(validation, values=None)], np.full(len(train), False)
    n_more = min(_FEW_ROWS - len(validation), int(_HELD_OUT_SHARE * len(train)))
    if n_more > 0:
        copies = distinct_ids(train)
        counts = np.bincount(copies)
        for index in generator(seed, "held out").permutation(len(counts)):
            if counts[index] <= n_more:
                is_held |= copies == index
                n_more -= counts[index]
        parts.append(replace(train.take(is_held), values=None))
    rows = Rows.concatenate(parts) if len(parts) > 1 else parts[0]
    return HeldOut(np.flatnonzero(~is_held), rows.sample(_MOST_ROWS, seed), len(rows))


class Candidate(NamedTuple):
    """A recipe, its settings, and its networks with the weights to begin with."""

    name: str
    settings: WarmstartSettings
    networks: Networks
    weights: Parameters


# The phases of the warm start and of the refinement of every candidate, by its name.
Trials = dict[str, tuple[list[Phase], list[Phase]]]


def choose(
    candidates: Sequence[Candidate],
    parts: Trials,
    rows: TrainingRows,
    held_out: Rows,
    report: Report,
    once: Once = lambda _name, compute: compute(),
) -> list[dict[str, Any]]:
    """The figures of every candidate after each part of its trial, as rows of a table; one of them `is_chosen`."""
    weights = {candidate.name: candidate.weights for candidate in candidates}
    left, found, last = list(candidates), [], []
    total = sum(phase.pace.n_rounds for own in parts.values() for phases in own for phase in phases)
    with report.progress("recipes", total, "rounds") as advance:
        for number, part in enumerate(_PARTS):
            scores: dict[str, np.ndarray] = {}
            for candidate in left:

                def try_one(own: Candidate = candidate, number: int = number) -> dict[str, np.ndarray]:
                    seed = tf.constant(derive_seed(own.settings.seed or 0, "recipe", number) % 2**31, tf.int32)
                    trained = _train(parts[own.name][number], weights[own.name], rows, seed, advance)
                    arrays = {name: np.asarray(array) for name, array in trained.items()}
                    return arrays | {_SCORES: _score(own, trained, held_out)}

                arrays = once(f"{part}-{candidate.name}", try_one)
                scores[candidate.name] = arrays.pop(_SCORES)
                weights[candidate.name] = {name: tf.constant(array) for name, array in arrays.items()}
            best = max(scores, key=lambda name: float(scores[name].mean()))
            last = [_record(candidate, part, scores, best) for candidate in left]
            found += last
            is_below = {record["recipe"]: record["below_best"] > _CLEARLY * record["below_best_se"] for record in last}
            left = [candidate for candidate in left if candidate.name == best or not is_below[candidate.name]]
            if len(left) == 1:
                break
    # In order of cost.
    chosen = next(record for record in last if record["below_best"] <= _AS_GOOD * record["below_best_se"])
    return [record | {"is_chosen": record is chosen} for record in found]


def trials(candidates: Sequence[Candidate], rows: TrainingRows) -> Trials:
    """The phases of the warm start and of the refinement of every candidate, by its name."""
    costs = [_cost(candidate) for candidate in candidates]
    shares = [min(max(float(np.median(costs)) / cost, _FEWEST), _MOST) for cost in costs]
    if rows.n_rows < MANY_ROWS:
        shares = [1.0] * len(candidates)
    return {own.name: _parts(own, rows, share) for own, share in zip(candidates, shares, strict=True)}


def chosen_recipe(records: Sequence[Mapping[str, Any]]) -> str:
    """The name of the chosen recipe."""
    return str(next(record["recipe"] for record in records if record["is_chosen"]))


def _cost(candidate: Candidate) -> int:
    """Products in one pass of a row."""
    return n_products(candidate.networks.decoder) + n_products(candidate.networks.encoder)


def _parts(candidate: Candidate, rows: TrainingRows, share: float) -> tuple[list[Phase], list[Phase]]:
    """The phases of the warm start and of the refinement of a candidate, with this share of the usual steps."""
    most = candidate.settings.steps or _WARMSTART_STEPS
    usual = min(_WARMSTART_STEPS, most), _COLUMN_STEPS, min(_REFINE_STEPS, most)
    n_warmstart, n_columns, n_refine = (math.ceil(share * n) for n in usual)
    short = {"steps": n_warmstart, "epochs": None, "column_steps": min(n_columns, candidate.settings.column_steps)}
    warmstart = candidate.settings.model_copy(update=short)
    refine = RefineSettings(seed=candidate.settings.seed, steps=n_refine, batch_rows=warmstart.batch_rows)
    refine = refine.model_copy(update={"weight_decay": warmstart.weight_decay}).with_defaults(rows.n_rows)
    networks = candidate.networks
    return (
        recipes.phases_of(warmstart, networks, rows.first, rows.n_epoch_rows),
        recipes.phases_of(refine, networks, rows.first, rows.n_epoch_rows),
    )


def _train(
    phases: Sequence[Phase],
    weights: Parameters,
    rows: TrainingRows,
    seed: tf.Tensor,
    advance: Advance,
) -> Parameters:
    """The running mean of the weights after all phases; those before a phase that fails."""
    for phase in phases:
        state = phase.objective.start(weights, rows.epoch(None))
        try:
            for n_rounds in range(phase.pace.n_rounds):
                stopping.check()
                epoch = n_rounds // (phase.pace.rounds_per_epoch or 1) if phase.follows_epochs else None
                data = phase.data if phase.own_data else rows.epoch(epoch)
                state, losses = phase.run(state, data, seed)
                read_losses(losses, phase, n_rounds)
                advance(1)
            weights = state.average
        except NumericalFailure:
            advance(phase.pace.n_rounds - n_rounds)
    return weights


def _score(candidate: Candidate, weights: Parameters, held_out: Rows) -> np.ndarray:
    """Estimated log-densities of the held-out rows in the model's space, (rows,)."""
    networks, settings = candidate.networks, candidate.settings
    score = marginal_scorer(networks.decoder, networks.encoder, n_draws=settings.validation_draws)
    x, y = (None if part is None else tf.constant(part) for part in (held_out.x, held_out.y))
    seed = tf.constant(derive_seed(settings.seed or 0, "recipe", "score") % 2**31, tf.int32)
    return np.nan_to_num(score(weights, x, y, seed).numpy(), nan=_LOWEST, posinf=_LOWEST, neginf=_LOWEST)


def _record(candidate: Candidate, part: str, scores: Mapping[str, np.ndarray], best: str) -> dict[str, Any]:
    """The figures of a candidate, and how far it is below the best one on the same rows."""
    own = scores[candidate.name]
    below = scores[best] - own
    return {
        "part": part,
        "recipe": candidate.name,
        **{name: getattr(candidate.settings, name) for name in ("width", "depth", "weight_decay")},
        "log_density": float(own.mean()),
        "below_best": float(below.mean()),
        "below_best_se": float(below.std() / math.sqrt(len(below))),
        "n_rows": len(own),
    }
