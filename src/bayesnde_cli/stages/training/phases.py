"""The phases of a training stage: each a loop of compiled rounds, one after the other, from the weights of the last."""

import math
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

import tensorflow as tf

from bayesnde_cli.config import RefineConfig, TrainingConfig, WarmstartConfig
from bayesnde_cli.config.training import (
    FEWEST_EPOCHS,
    IMAGE_REFINE_STEPS,
    MOST_EPOCHS,
    MOST_SMALL_REFINE_EPOCHS,
    SMALL_REFINE_STEPS,
    TYPICAL_STEPS,
)
from bayesnde_cli.inference import hmc
from bayesnde_cli.model import discriminator
from bayesnde_cli.model.discriminator import DiscriminatorSpec
from bayesnde_cli.model.networks import NetworkSpec, n_products
from bayesnde_cli.model.parameters import Parameters
from bayesnde_cli.rng import derive_seed
from bayesnde_cli.stages.training.rows import Rows
from bayesnde_cli.training import autoencoder_state, bound_loop, column_loop, egm_loop, latent_loop
from bayesnde_cli.training.joint_parameters import initial_autoencoder

# Steps in an epoch, at least: the batch shrinks for it.
_LEAST_STEPS = 8
# Operations of one compiled call, about: seconds on two cores, so that a signal does not wait for long.
_ROUND_OPERATIONS = 2e11
_EGM_ROUND_STEPS = 50
# Passes of a batch through decoder and encoder in a step, about: two in their own, one in that of the critics.
_EGM_PASSES = 3.0


@dataclass(frozen=True)
class Networks:
    """What decoder and encoder look like."""

    decoder: NetworkSpec
    encoder: NetworkSpec


@dataclass(frozen=True)
class Phase:
    """A loop: `start` makes its state from weights, `run` a round of it.

    The state, whatever its class, has the weights to score as `average`.
    """

    name: str
    n_rounds: int
    rounds_per_epoch: int | None  # None: its rounds are no parts of epochs
    steps_per_round: int
    start: Callable[[Parameters], Any]
    run: Callable[[Any, tf.Tensor, "tf.Tensor | None", tf.Tensor], tuple[Any, dict[str, tf.Tensor]]]
    n_settling: int = 0  # rounds before which a look without a gain means nothing
    settle: Callable[[Any, tf.Tensor, "tf.Tensor | None", tf.Tensor], Any] | None = None  # before the first round
    n_looks: int | None = None  # as many as the config says
    has_fresh_noise: bool = False  # every epoch sees the rows with dequantisation noise of its own

    def is_look(self, n_rounds: int, n_looks: int) -> bool:
        """Whether one of so many looks comes after so many rounds: evenly spread, the end included."""
        n_looks = min(n_looks, self.n_rounds)
        return n_rounds * n_looks // self.n_rounds > (n_rounds - 1) * n_looks // self.n_rounds

    def place(self, n_rounds: int) -> str:
        """How far a number of rounds leads, in words."""
        if self.rounds_per_epoch is None:
            return f"step {n_rounds * self.steps_per_round:,}"
        return f"epoch {n_rounds / self.rounds_per_epoch:.6g}"


def phases_of(config: TrainingConfig, networks: Networks, rows: Rows) -> list[Phase]:
    """The phases that a config asks for, in order."""
    pace = _Pace(config, networks, len(rows.x))
    if isinstance(config, WarmstartConfig):
        if config.objective == "elbo":
            has_columns = config.column_steps > 0 and networks.decoder.n_in == networks.decoder.n_out
            columns = [_columns(config, networks, pace, rows)] if has_columns else []
            return [*columns, _elbo(config, networks, pace)]
        egm = [_egm(config, networks, pace, rows)]
        return egm if config.objective == "egm" else [*egm, _elbo(config, networks, pace)]
    assert isinstance(config, RefineConfig)
    if config.latent_update == "importance":
        return [_importance(config, networks, pace)]
    return [_latents(config, networks, pace, rows)]


def first_weights(config: TrainingConfig, networks: Networks) -> dict[str, tf.Tensor]:
    """The weights of a model that knows nothing yet."""
    return initial_autoencoder(networks.decoder, networks.encoder, _seed(config, "weights"))


def _seed(config: TrainingConfig, purpose: str) -> int:
    assert config.seed is not None
    return derive_seed(config.seed, config.stage, purpose)


class _Pace:
    """How many rows, steps and rounds."""

    def __init__(self, config: TrainingConfig, networks: Networks, n_rows: int) -> None:
        # A small table gets several steps an epoch, too.
        self.batch_rows = max(1, min(config.batch_rows, n_rows // _LEAST_STEPS))
        self.steps_per_epoch = n_rows // self.batch_rows
        self.n_epochs = config.epochs or self._epochs_of_steps(config, networks)
        self._products = sum(n_products(spec) for spec in (networks.decoder, networks.encoder))

    def _epochs_of_steps(self, config: TrainingConfig, networks: Networks) -> int:
        """Whole epochs that make as many steps as the config asks for, or the usual number."""
        if config.steps:
            return math.ceil(config.steps / self.steps_per_epoch)
        if isinstance(config, RefineConfig) and networks.decoder.image is not None:
            return math.ceil(IMAGE_REFINE_STEPS / self.steps_per_epoch)
        is_small_refine = isinstance(config, RefineConfig) and networks.decoder.kind == "mlp"
        steps, most = (
            (SMALL_REFINE_STEPS, MOST_SMALL_REFINE_EPOCHS) if is_small_refine else (TYPICAL_STEPS, MOST_EPOCHS)
        )
        return min(max(math.ceil(steps / self.steps_per_epoch), FEWEST_EPOCHS), most)

    def steps_per_round(self, passes: float) -> float:
        """Steps that are done in seconds."""
        return _ROUND_OPERATIONS / (6.0 * passes * self._products * self.batch_rows)

    def rounds_per_epoch(self, passes: float) -> int:
        """Equal parts of an epoch that are each done in seconds, where a step passes each row so often."""
        fewest = min(max(1, round(self.steps_per_epoch / self.steps_per_round(passes))), self.steps_per_epoch)
        # Steps that do not divide wait for another epoch: of some numbers of rounds, the one that leaves fewest.
        return min(range(fewest, min(2 * fewest, self.steps_per_epoch) + 1), key=lambda n: self.steps_per_epoch % n)


def _bound_phase(
    name: str, config: TrainingConfig, networks: Networks, pace: _Pace, *, n_draws: int, warm_up: float = 0.0
) -> Phase:
    rounds = pace.rounds_per_epoch(0.5 * (1 + n_draws))
    warm_up_epochs = round(warm_up * pace.n_epochs)
    settings = bound_loop.BoundSettings(
        batch_rows=pace.batch_rows,
        n_draws=n_draws,
        learning_rate=config.learning_rate,
        schedule=config.schedule,
        n_epochs=pace.n_epochs,
        weight_decay=config.weight_decay or 0.0,
        kl_warm_up_epochs=warm_up_epochs,
        average_epochs=config.average_epochs,
        rounds_per_epoch=rounds,
        has_batch_statistics=isinstance(config, WarmstartConfig),
    )
    return Phase(
        name,
        n_rounds=pace.n_epochs * rounds,
        rounds_per_epoch=rounds,
        steps_per_round=pace.steps_per_epoch // rounds,
        start=autoencoder_state.start,
        run=bound_loop.round_runner(networks.decoder, networks.encoder, settings),
        n_settling=warm_up_epochs * rounds,
        has_fresh_noise=config.fresh_noise,
    )


def _columns(config: WarmstartConfig, networks: Networks, pace: _Pace, rows: Rows) -> Phase:
    n_rounds = math.ceil(config.column_steps / max(1.0, pace.steps_per_round(1.0)))
    steps = math.ceil(config.column_steps / n_rounds)
    settings = column_loop.ColumnSettings(
        batch_rows=pace.batch_rows, steps_per_round=steps, n_rounds=n_rounds, learning_rate=config.learning_rate
    )
    run = column_loop.round_runner(networks.decoder, networks.encoder, settings)
    cells = column_loop.cells_of(rows.x, rows.y)
    return Phase(
        "columns",
        n_rounds=n_rounds,
        rounds_per_epoch=None,
        steps_per_round=steps,
        start=autoencoder_state.start,
        run=lambda state, _x, _y, seed: run(state, cells, seed),
        n_looks=1,
    )


def _elbo(config: WarmstartConfig, networks: Networks, pace: _Pace) -> Phase:
    return _bound_phase("elbo", config, networks, pace, n_draws=1, warm_up=config.kl_warm_up)


def _importance(config: RefineConfig, networks: Networks, pace: _Pace) -> Phase:
    return _bound_phase("importance", config, networks, pace, n_draws=config.draws)


def _egm(config: WarmstartConfig, networks: Networks, pace: _Pace, rows: Rows) -> Phase:
    weights = egm_loop.EgmWeights(
        **{item.name: getattr(config, f"{item.name}_weight") for item in fields(egm_loop.EgmWeights)}
    )
    is_slow = networks.decoder.image is not None  # its rounds are as long as those of the other phases
    at_once = min(_EGM_ROUND_STEPS, max(1, int(pace.steps_per_round(_EGM_PASSES)))) if is_slow else _EGM_ROUND_STEPS
    n_rounds = math.ceil(config.egm_steps / at_once)
    steps = math.ceil(config.egm_steps / n_rounds)
    batch = min(config.batch_rows, len(rows.x))
    settings = egm_loop.EgmSettings(
        weights=weights,
        batch_rows=batch,
        steps_per_round=steps,
        learning_rate=config.learning_rate,
        average_steps=config.average_epochs * len(rows.x) / batch,
        slicing_seed=_seed(config, "slicing"),
    )
    if networks.decoder.image is not None:
        of_x = discriminator.of_images(networks.decoder.image, rows.n_classes)
        of_z = discriminator.of_latents_of_images(networks.encoder.n_out)
    else:
        of_x, of_z = (DiscriminatorSpec(spec.n_out, rows.n_classes) for spec in (networks.decoder, networks.encoder))
    seed = _seed(config, "discriminators")

    def start(parameters: Parameters) -> egm_loop.EgmState:
        return egm_loop.start(networks.decoder, networks.encoder, of_x, of_z, seed, parameters)

    return Phase(
        "egm",
        n_rounds=n_rounds,
        rounds_per_epoch=None,
        steps_per_round=steps,
        start=start,
        run=egm_loop.round_runner(networks.decoder, networks.encoder, of_x, of_z, settings),
    )


def _latents(config: RefineConfig, networks: Networks, pace: _Pace, rows: Rows) -> Phase:
    is_posterior = config.latent_update == "posterior"
    passes = 0.5 * (config.transitions * (config.leapfrogs + 1) + 1 if is_posterior else 2)
    rounds = pace.rounds_per_epoch(passes)
    settings = latent_loop.LatentSettings(
        update=config.latent_update,
        batch_rows=pace.batch_rows,
        learning_rate=config.learning_rate,
        latent_learning_rate=config.latent_learning_rate,
        weight_decay=config.weight_decay or 0.0,
        schedule=config.schedule,
        n_epochs=pace.n_epochs,
        mmd_weight=config.mmd_weight,
        correlation_weight=config.correlation_weight,
        log_variance_weight=config.log_variance_weight,
        max_norm=10.0 if is_posterior else 0.0,  # the paper clips nothing
        average_epochs=config.average_epochs,
        n_transitions=config.transitions,
        n_leapfrog=config.leapfrogs,
        rounds_per_epoch=rounds,
    )
    x, y = rows.tensors()
    burn_in = latent_loop.burn_in_runner(networks.decoder, settings, hmc.transition)

    def settle(state: Any, x: tf.Tensor, y: tf.Tensor | None, seed: tf.Tensor) -> Any:
        for _ in range(config.burn_in):
            state, _ = burn_in(state, x, y, seed)
        return state

    return Phase(
        config.latent_update,
        n_rounds=pace.n_epochs * rounds,
        rounds_per_epoch=rounds,
        steps_per_round=pace.steps_per_epoch // rounds,
        start=lambda parameters: latent_loop.start(networks.encoder, parameters, x, y),
        run=latent_loop.round_runner(networks.decoder, settings, hmc.transition),
        settle=settle if is_posterior else None,
    )
