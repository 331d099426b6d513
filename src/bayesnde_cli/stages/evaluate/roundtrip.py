"""Roundtrip as a competitor: its density on our own networks, trained by the adversarial warm start.

It differs from its authors' in the networks and in the training, which are those of `warmstart --objective egm`: what
is compared is the model, a generator with noise of one size, and its importance sampling. The generator is the mean of
the decoder. Training rows fit it, validation rows choose; evaluated rows have no say.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from bayesnde_cli.config import WarmstartConfig
from bayesnde_cli.errors import NumericalFailure
from bayesnde_cli.evaluation.baselines import Part
from bayesnde_cli.evaluation.baselines.kept import Keeper, KeptState
from bayesnde_cli.evaluation.baselines.roundtrip import DRAWS, Choice, Estimate, Pair, Roundtrip
from bayesnde_cli.evaluation.figures import Figures, figure
from bayesnde_cli.model.parameters import Parameters
from bayesnde_cli.rng import derive_seed
from bayesnde_cli.stages.training.fitting import fresh_networks
from bayesnde_cli.stages.training.phases import Networks, Phase, first_weights, phases_of
from bayesnde_cli.stages.training.rows import Rows
from bayesnde_cli.stages.training.sizes import sized
from bayesnde_cli.training.joint_parameters import decoder_of, encoder_of

# 6,000 steps of the warm start, and six looks at the validation rows.
CONFIG = WarmstartConfig(objective="egm", checks=6)


class FittedRoundtrip(NamedTuple):
    """The fitted competitor, as `Fitted` is one: rows to log-densities, and what was chosen on the way."""

    score: Callable[[Part], np.ndarray]
    chosen: Figures
    estimate: Callable[..., Estimate]  # by so many draws, log-densities with their Monte-Carlo errors


class _Look(NamedTuple):
    """Weights after so many steps, and what the validation rows say of them."""

    n_steps: int
    weights: Parameters
    choice: Choice


def roundtrip(
    train: Part, validation: Part, seed: int, *, config: WarmstartConfig = CONFIG, n_draws: int = DRAWS,
    keeper: Keeper | None = None,
) -> FittedRoundtrip:  # fmt: skip
    """Roundtrip of these rows, (rows, p) standardised; conditional on the class where rows have one.

    `config` says how the networks look and for how long they are trained; a row of a class that no training row has is
    scored NaN. With a keeper the training goes on where it was stopped.
    """
    config = sized(replace(config, seed=derive_seed(seed, "roundtrip") % 2**32), len(train.cells))
    n_classes = 0 if train.classes is None else int(train.classes.max()) + 1
    networks = fresh_networks(config, train.cells.shape[1], n_classes)
    rows = _rows(train, n_classes)
    (phase,) = phases_of(config, networks, rows)
    estimator = _estimator(networks)
    known = _known(validation, train)
    judged, judged_y = validation.cells[known], _one_hot(validation, n_classes)
    judged_y = None if judged_y is None else judged_y[known]

    def judge(weights: Parameters) -> Choice:
        return estimator.choose(weights, judged, judged_y, seed=derive_seed(seed, "validation"))

    kept = KeptState(keeper, ("roundtrip", config, seed), train, validation)
    looks = _looks(phase, first_weights(config, networks), rows, config, judge, kept)
    best = max(looks, key=lambda look: look.choice.log_density)

    def estimate(part: Part, n_draws: int = n_draws) -> Estimate:
        found = estimator.estimate(
            best.weights, best.choice, part.cells, _one_hot(part, n_classes),
            n_draws=n_draws, seed=derive_seed(seed, "score"),
        )  # fmt: skip
        known = _known(part, train)
        return Estimate(*(np.where(known, numbers, np.nan) for numbers in found))

    chosen = {
        "sigma": best.choice.sigma,
        "scale": best.choice.scale,
        "degrees_of_freedom": best.choice.freedom,
        "steps": best.n_steps,
        "validation_log_density": figure(best.choice.log_density),
        "latent_dim": networks.decoder.n_in,
        "draws": n_draws,
        "fit": "conditional" if n_classes else "all rows",
        "n_fit_rows": len(train.cells),
    }
    return FittedRoundtrip(lambda part: estimate(part).log_density, chosen, estimate)


def _looks(
    phase: Phase, weights: Parameters, rows: Rows, config: WarmstartConfig, judge: Callable[[Parameters], Choice],
    kept: KeptState,
) -> list[_Look]:  # fmt: skip
    """All looks of the training; one that leaves the finite numbers ends with the looks before it."""
    assert config.seed is not None
    seed = tf.constant(derive_seed(config.seed, "rounds") % 2**31, tf.int32)
    x, y = rows.tensors()
    state, n_rounds, looks = _restored(kept.read(), phase.start(weights))
    while n_rounds < phase.n_rounds:
        n_rounds += 1
        state, losses = phase.run(state, x, y, seed)
        n_steps = n_rounds * phase.steps_per_round
        if int(losses["first_bad_step"]) >= 0 or not math.isfinite(float(losses["loss"])):
            if looks:
                return looks
            raise NumericalFailure(
                f"the training of roundtrip fails within its first {n_steps:,} steps",
                found=f"a loss that is not finite, of {len(rows.x):,} training rows",
                hint="evaluate without --baseline roundtrip",
            )
        if phase.is_look(n_rounds, config.checks):
            looks.append(_Look(n_steps, state.average, judge(state.average)))
        kept.write(partial(_arrays, state, n_rounds, looks), is_last=n_rounds == phase.n_rounds)
    return looks


def _arrays(state: Any, n_rounds: int, looks: Sequence[_Look]) -> dict[str, np.ndarray]:
    """The training so far, as arrays by name."""
    arrays = {"n_rounds": np.array(n_rounds)} | _leaves("state", state)
    for index, look in enumerate(looks):
        arrays |= _leaves(f"look/{index}", look.weights)
        arrays[f"numbers/{index}"] = np.array([look.n_steps, *look.choice], np.float64)
    return arrays


def _restored(arrays: Mapping[str, np.ndarray] | None, first: Any) -> tuple[Any, int, list[_Look]]:
    """State, rounds and looks of the training that these arrays are of; without any, those of its beginning."""
    if arrays is None:
        return first, 0, []
    looks = []
    for index in range(sum(name.startswith("numbers/") for name in arrays)):
        n_steps, sigma, scale, freedom, log_density = arrays[f"numbers/{index}"].tolist()
        weights = _filled(f"look/{index}", arrays, first.average)
        looks.append(_Look(int(n_steps), weights, Choice(sigma, scale, int(freedom), log_density)))
    return _filled("state", arrays, first), int(arrays["n_rounds"]), looks


def _leaves(name: str, tree: Any) -> dict[str, np.ndarray]:
    return {f"{name}/{index}": leaf.numpy() for index, leaf in enumerate(tf.nest.flatten(tree))}


def _filled(name: str, arrays: Mapping[str, np.ndarray], tree: Any) -> Any:
    """A tree of the same shape with the leaves of this name."""
    leaves = [tf.constant(arrays[f"{name}/{index}"]) for index in range(len(tf.nest.flatten(tree)))]
    return tf.nest.pack_sequence_as(tree, leaves)


# Fits in several spaces have the same networks, and then the same programs.
@lru_cache(maxsize=2)
def _estimator(networks: Networks) -> Roundtrip:
    return Roundtrip(lambda weights: _pair(networks, weights))


def _pair(networks: Networks, weights: Parameters) -> Pair:
    decoder, encoder = decoder_of(networks.decoder, weights), encoder_of(networks.encoder, weights)
    return Pair(lambda z, y=None: decoder(z, y)[0], lambda x, y=None: encoder(x, y).mean)


def _rows(part: Part, n_classes: int) -> Rows:
    n_rows = len(part.cells)
    return Rows(np.arange(n_rows), part.cells.astype(np.float32), np.zeros(n_rows), _one_hot(part, n_classes))


def _one_hot(part: Part, n_classes: int) -> np.ndarray | None:
    """(rows, classes) float32; a class beyond has no 1."""
    if part.classes is None:
        return None
    return (part.classes[:, None] == np.arange(n_classes)).astype(np.float32)


def _known(part: Part, train: Part) -> np.ndarray:
    """Which rows have a class that a training row has. (rows,) bool."""
    if part.classes is None or train.classes is None:
        return np.ones(len(part.cells), bool)
    return np.isin(part.classes, train.classes)
