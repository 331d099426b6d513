"""The loop of a training stage: round, record, look at validation rows, checkpoint. Killed, it goes on the same."""

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import tensorflow as tf

from bayesnde_cli.artifacts.layout import RunLayout
from bayesnde_cli.config import TrainingConfig, WarmstartConfig
from bayesnde_cli.data.image import N_LEVELS, ImageShape
from bayesnde_cli.errors import NumericalFailure, Stopped
from bayesnde_cli.model.decoder import decoder_spec, image_decoder_spec
from bayesnde_cli.model.encoder import encoder_spec, image_encoder_spec
from bayesnde_cli.model.parameters import Parameters
from bayesnde_cli.rng import derive_seed
from bayesnde_cli.stages.reporting import Advance, Report
from bayesnde_cli.stages.training.checkpoints import Checkpoints
from bayesnde_cli.stages.training.looks import Judge, chosen_look, n_misses
from bayesnde_cli.stages.training.noisy_values import NoisyValues, read_noisy_values
from bayesnde_cli.stages.training.phases import Networks, Phase, first_weights, phases_of
from bayesnde_cli.stages.training.rows import Rows, read_rows
from bayesnde_cli.stages.training.sizes import sized
from bayesnde_cli.stages.weights import read_networks

# Latent dimension: as many as features up to this many, half as many beyond.
_FULL_LATENT_FEATURES = 32


@dataclass(frozen=True)
class Progress:
    """How far a stage has come, all of it. One object, replaced as a whole: a signal finds the old or the new one."""

    phase: int
    n_rounds: int  # done in this phase
    state: Any  # of the phase's loop
    history: tuple[dict[str, Any], ...] = ()  # a row for each round
    looks: tuple[dict[str, Any], ...] = ()  # a row for each look at the validation rows


@dataclass(frozen=True)
class Fit:
    """What a training stage has found."""

    config: TrainingConfig  # what ran: nothing is left open
    networks: Networks
    weights: dict[str, np.ndarray]
    history: tuple[dict[str, Any], ...]
    looks: tuple[dict[str, Any], ...]  # with their ranks
    chosen: int


def fit(layout: RunLayout, config: TrainingConfig, checkpoints: Checkpoints, report: Report) -> Fit:
    """The fitted model of a stage; a checkpoint of the same identity is taken up where it stopped."""
    train = read_rows(layout, "train")
    config = sized(config, len(train.x), are_images=train.image is not None, n_classes=train.n_classes)
    assert config.seed is not None
    values = read_noisy_values(layout, train, derive_seed(config.seed, config.stage))
    networks, weights = _model(layout, config, train, values)
    phases = phases_of(config, networks, train)
    seed = tf.constant(derive_seed(config.seed, config.stage) % 2**31, tf.int32)
    judge = Judge(config, networks, read_rows(layout, "validation"))
    x, y = train.tensors()

    def rows_of(phase: Phase, n_rounds: int) -> tf.Tensor:
        """The rows as the next round sees them."""
        if values is None or not phase.has_fresh_noise:
            return x
        assert phase.rounds_per_epoch is not None
        return values.x(n_rounds // phase.rounds_per_epoch)

    def entered(index: int, weights: Parameters) -> Any:
        phase = phases[index]
        state = phase.start(weights)
        return phase.settle(state, x, y, seed) if phase.settle else state

    progress = checkpoints.read(lambda index: phases[index].start(weights))
    if progress is None:
        progress = Progress(0, 0, entered(0, weights))
    else:
        report.note(f"going on after {phases[progress.phase].place(progress.n_rounds)}")
    total = sum(phase.n_rounds for phase in phases)
    try:
        with report.progress(config.stage, total, "rounds") as advance:
            advance(sum(phase.n_rounds for phase in phases[: progress.phase]) + progress.n_rounds)
            while True:
                phase = phases[progress.phase]
                if _is_look_due(progress, phase, config):
                    progress = _look(progress, phase, judge, checkpoints, config, report)
                    checkpoints.forget(progress.looks, config.select)  # a signal before this saves what went before
                if not _is_over(progress, phase, config):
                    done = phase.run(progress.state, rows_of(phase, progress.n_rounds), y, seed)
                    progress = _advanced(progress, phase, done, advance)
                elif progress.phase + 1 < len(phases):
                    best = checkpoints.weights(chosen_look(progress.looks, config.select))
                    state = entered(progress.phase + 1, {name: tf.constant(array) for name, array in best.items()})
                    progress = replace(progress, phase=progress.phase + 1, n_rounds=0, state=state)
                else:
                    break
    except Stopped:
        checkpoints.write(progress)
        raise
    chosen = chosen_look(progress.looks, config.select)
    return Fit(config, networks, checkpoints.weights(chosen), progress.history, progress.looks, chosen)


def fresh_networks(
    config: WarmstartConfig, n_features: int, n_classes: int, image: ImageShape | None = None
) -> Networks:
    """Decoder and encoder as a config has them, one that leaves nothing open."""
    looks = {"width": config.width, "depth": config.depth, "activation": config.activation}
    if image is not None:
        shape = image.height, image.width, image.channels
        assert config.latent_dim is not None
        specs = [spec(config.latent_dim, shape, n_classes) for spec in (image_decoder_spec, image_encoder_spec)]
        specs[0] = replace(specs[0], class_maps=bool(config.class_maps))
    else:
        full = n_features if n_features <= _FULL_LATENT_FEATURES else math.ceil(n_features / 2)
        specs = [spec(config.latent_dim or full, n_features, n_classes) for spec in (decoder_spec, encoder_spec)]
    return Networks(*(replace(spec, **looks) for spec in specs))  # type: ignore[arg-type]


def _model(
    layout: RunLayout, config: TrainingConfig, rows: Rows, values: NoisyValues | None
) -> tuple[Networks, dict[str, tf.Tensor]]:
    """Networks and weights before the first round: fresh for `warmstart`, the warm start's for `refine`."""
    if isinstance(config, WarmstartConfig):
        networks = fresh_networks(config, rows.x.shape[1], rows.n_classes, rows.image)
        if config.cells and values is not None:
            networks = replace(networks, decoder=replace(networks.decoder, cells=values.cells()))
        if config.cells and rows.image is not None:
            networks = replace(networks, decoder=replace(networks.decoder, levels=N_LEVELS))
        return networks, first_weights(config, networks)
    stored = read_networks(layout, "warmstart")
    weights = {name: tf.constant(array) for name, array in stored.weights.items()}
    return Networks(stored.decoder, stored.encoder), weights


def _is_look_due(progress: Progress, phase: Phase, config: TrainingConfig) -> bool:
    """Evenly spread over the phase, its end included; `refine` looks at what it was given first."""
    if progress.looks and (progress.looks[-1]["phase"], progress.looks[-1]["round"]) == (phase.name, progress.n_rounds):
        return False
    if progress.n_rounds == 0:
        return config.stage == "refine"
    return phase.is_look(progress.n_rounds, phase.n_looks or config.checks)


def _is_over(progress: Progress, phase: Phase, config: TrainingConfig) -> bool:
    if progress.n_rounds >= phase.n_rounds:
        return True
    own = [look for look in progress.looks if look["phase"] == phase.name]
    return 0 < config.patience <= n_misses(own, config.select, after_round=phase.n_settling)


def _look(
    progress: Progress, phase: Phase, judge: Judge, checkpoints: Checkpoints, config: TrainingConfig, report: Report
) -> Progress:
    """Judge the averaged weights on the validation rows, and save."""
    average = progress.state.average
    figures = judge(average)
    place = {"phase": phase.name, "round": progress.n_rounds, **_position(phase, progress.n_rounds)}
    checkpoints.write_weights(len(progress.looks), {name: tensor.numpy() for name, tensor in average.items()})
    progress = replace(progress, looks=(*progress.looks, place | figures))
    checkpoints.write(progress)
    loss = f"loss {progress.history[-1]['loss']:.4f}, " if progress.n_rounds else ""
    marginal = "not finite" if figures["marginal"] is None else f"{figures['marginal']:.4f}"
    report.note(f"{phase.name}, {phase.place(progress.n_rounds)}: {loss}validation log-density {marginal}")
    return progress


def _advanced(progress: Progress, phase: Phase, done: tuple[Any, dict[str, tf.Tensor]], advance: Advance) -> Progress:
    """After one more round."""
    state, losses = done
    terms: dict[str, float] = {name: float(value) for name, value in losses.items()}
    bad_step = int(terms.pop("first_bad_step"))
    if bad_step >= 0 or not all(map(math.isfinite, terms.values())):
        bad = [name for name, value in terms.items() if not math.isfinite(value)]
        raise NumericalFailure(
            f"a loss is not finite in {phase.name}, step {progress.n_rounds * phase.steps_per_round + bad_step + 1:,}",
            found=f"terms: {', '.join(name for name in bad if name != 'loss' or bad == ['loss']) or 'the gradient'}",
            hint="the checkpoint of the last look is kept; try a smaller --learning-rate, with --restart",
        )
    n_rounds = progress.n_rounds + 1
    row = {"phase": phase.name, "round": n_rounds, **_position(phase, n_rounds), **terms}
    advance(1)
    return replace(progress, n_rounds=n_rounds, state=state, history=(*progress.history, row))


def _position(phase: Phase, n_rounds: int) -> dict[str, Any]:
    epoch = None if phase.rounds_per_epoch is None else n_rounds / phase.rounds_per_epoch
    return {"epoch": epoch, "step": n_rounds * phase.steps_per_round}
