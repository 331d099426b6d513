"""The loop of a training stage: epoch, record, look at validation rows, checkpoint. Killed, it goes on the same."""

import math
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from bayesnde_cli.artifacts.arrays import read_arrays, write_arrays
from bayesnde_cli.artifacts.differences import compare, settings_differ
from bayesnde_cli.artifacts.fingerprint import sha256_json
from bayesnde_cli.artifacts.layout import RunLayout
from bayesnde_cli.config import RefineConfig, TrainingConfig, WarmstartConfig
from bayesnde_cli.errors import NumericalFailure, Stopped
from bayesnde_cli.model.decoder import decoder_spec
from bayesnde_cli.model.encoder import encoder_spec
from bayesnde_cli.model.networks import NetworkSpec
from bayesnde_cli.rng import derive_seed
from bayesnde_cli.stages.reporting import Report
from bayesnde_cli.stages.training.rows import Rows, read_rows
from bayesnde_cli.training.bound_loop import (
    BoundSettings,
    BoundState,
    epoch_runner,
    marginal_scorer,
    restart_from,
    start,
)

# Latent dimension: as many as features up to this many, half as many beyond.
_FULL_LATENT_FEATURES = 20
# Steps in an epoch, at least: the batch shrinks for it.
_LEAST_STEPS = 8
# A look that gains less than this (nats) is no gain: it is within the noise of the importance sampling.
_LEAST_GAIN = 1e-3


@dataclass
class Fit:
    """The progress of a training stage, all of it: what a checkpoint holds."""

    decoder: NetworkSpec
    encoder: NetworkSpec
    state: BoundState
    best: dict[str, np.ndarray]  # averaged weights of the best look so far
    history: list[dict[str, Any]] = field(default_factory=list)  # a row an epoch
    selection: list[dict[str, Any]] = field(default_factory=list)  # a row a look
    best_look: int = -1

    def n_misses(self, after_epoch: int) -> int:
        """Looks since the best one; those up to an epoch do not count."""
        return sum(row["epoch"] > after_epoch for row in self.selection[self.best_look + 1 :])


def fit(layout: RunLayout, config: TrainingConfig, identity: dict[str, Any], report: Report) -> Fit:
    """The fitted model of a stage; a checkpoint of the same identity is taken up where it stopped."""
    train, validation = (read_rows(layout, split) for split in ("train", "validation"))
    file = layout.checkpoint_dir(config.stage) / "state.npz"
    progress = _beginning(layout, config, train)
    _take_up(progress, file, identity, layout, config, report)
    assert config.seed is not None
    seed = tf.constant(derive_seed(config.seed, config.stage) % 2**31, tf.int32)
    judges = validation.first(config.validation_rows)
    score = marginal_scorer(progress.decoder, progress.encoder, n_draws=config.validation_draws, block_rows=64)
    run_epoch = epoch_runner(progress.decoder, progress.encoder, _bound_settings(config, len(train.x)))
    x, y = train.tensors()
    try:
        with report.progress(config.stage, config.epochs, "epochs") as advance:
            advance(len(progress.history))
            n_warm_up = _warm_up_epochs(config)
            while len(progress.history) < config.epochs and progress.n_misses(n_warm_up) < config.patience:
                state, loss = run_epoch(progress.state, x, y, seed)
                _record(progress, state, float(loss))
                if len(progress.history) % config.check_every == 0 or len(progress.history) == config.epochs:
                    _look(progress, judges, score, seed, report)
                    _save(progress, file, identity)
                advance(1)
    except Stopped:
        _save(progress, file, identity)
        raise
    return progress


def _beginning(layout: RunLayout, config: TrainingConfig, train: Rows) -> Fit:
    """The model before the first epoch: fresh for `warmstart`, the warm start's for `refine`."""
    assert config.seed is not None
    if isinstance(config, WarmstartConfig):
        n_features = train.x.shape[1]
        full = n_features if n_features <= _FULL_LATENT_FEATURES else math.ceil(n_features / 2)
        latent_dim = config.latent_dim or full
        decoder, encoder = (
            replace(spec(latent_dim, n_features, train.n_classes), width=config.width, depth=config.depth)
            for spec in (decoder_spec, encoder_spec)
        )
        state = start(decoder, encoder, derive_seed(config.seed, config.stage, "weights"))
    else:
        arrays, facts = read_arrays(layout.weights_dir("warmstart") / "model.npz")
        decoder, encoder = (_spec(facts[name]) for name in ("decoder", "encoder"))
        state = restart_from({name: tf.constant(array) for name, array in arrays.items()})
    return Fit(decoder, encoder, state, {})


def _spec(stored: dict[str, Any]) -> NetworkSpec:
    return NetworkSpec(**{**stored, "heads": tuple(stored["heads"])})


def _bound_settings(config: TrainingConfig, n_rows: int) -> BoundSettings:
    return BoundSettings(
        # A small table gets several steps an epoch, too.
        batch_rows=max(1, min(config.batch_rows, n_rows // _LEAST_STEPS)),
        learning_rate=config.learning_rate,
        n_draws=config.draws if isinstance(config, RefineConfig) else 1,
        kl_warm_up_epochs=_warm_up_epochs(config),
    )


def _warm_up_epochs(config: TrainingConfig) -> int:
    return round(config.kl_warm_up * config.epochs) if isinstance(config, WarmstartConfig) else 0


def _record(progress: Fit, state: BoundState, loss: float) -> None:
    epoch = len(progress.history) + 1
    if not math.isfinite(loss):
        raise NumericalFailure(
            f"the loss is not finite in epoch {epoch}",
            found=f"loss: {loss}, epoch before: {progress.history[-1]['loss'] if progress.history else 'none'}",
            hint="the last good checkpoint is kept; try a smaller --learning-rate, with --restart",
        )
    progress.state = state
    progress.history.append({"epoch": epoch, "loss": loss})


def _look(progress: Fit, judges: Rows, score: Any, seed: tf.Tensor, report: Report) -> None:
    """Score the validation rows with the averaged weights, in the units of the file."""
    x, y = judges.tensors()
    scores = score(progress.state.average, x, y, seed).numpy() + judges.log_jacobian
    marginal = float(np.mean(scores))
    previous = progress.selection[progress.best_look]["marginal"] if progress.selection else -math.inf
    row = {
        "epoch": len(progress.history),
        "marginal": marginal,
        "marginal_se": float(np.std(scores) / math.sqrt(len(scores))),
    }
    progress.selection.append(row)
    if marginal > previous + _LEAST_GAIN:
        progress.best_look = len(progress.selection) - 1
        progress.best = {name: tensor.numpy() for name, tensor in progress.state.average.items()}
    report.note(f"epoch {row['epoch']}: loss {progress.history[-1]['loss']:.4f}, validation log-density {marginal:.4f}")


def _save(progress: Fit, file: Path, identity: dict[str, Any]) -> None:
    leaves = {f"state/{index:04d}": leaf.numpy() for index, leaf in enumerate(tf.nest.flatten(progress.state))}
    best = {f"best/{name}": array for name, array in progress.best.items()}
    facts = {
        "identity": identity,
        "history": progress.history,
        "selection": progress.selection,
        "best_look": progress.best_look,
    }
    write_arrays(file, leaves | best, facts)


def _take_up(
    progress: Fit, file: Path, identity: dict[str, Any], layout: RunLayout, config: TrainingConfig, report: Report
) -> None:
    """Continue from a checkpoint of the same identity; one of another identity is left for the user to decide on."""
    if not file.exists():
        return
    arrays, facts = read_arrays(file)
    if sha256_json(facts["identity"]) != sha256_json(identity):
        if not layout.manifest_file(config.stage).exists():
            raise settings_differ(layout, config.stage, None, compare(facts["identity"], identity))
        return  # of the finished run that --restart replaces
    leaves = [tf.constant(arrays[name]) for name in sorted(arrays) if name.startswith("state/")]
    progress.state = tf.nest.pack_sequence_as(progress.state, leaves)
    progress.best = {name.removeprefix("best/"): array for name, array in arrays.items() if name.startswith("best/")}
    progress.history, progress.selection = facts["history"], facts["selection"]
    progress.best_look = facts["best_look"]
    report.note(f"going on after epoch {len(progress.history)}")
