"""Networks, phases and number of steps of a training stage."""

import math
from dataclasses import replace
from functools import partial
from typing import Any

import tensorflow as tf

from bayesnde_cli.model import coders
from bayesnde_cli.model.coders import Networks
from bayesnde_cli.model.networks import n_products
from bayesnde_cli.rng import derive_seed
from bayesnde_cli.rows import Rows
from bayesnde_cli.settings import stage_settings
from bayesnde_cli.settings.stage_settings import RefineSettings, TrainingSettings, WarmstartSettings
from bayesnde_cli.tables.columns import ImageShape
from bayesnde_cli.training import objectives
from bayesnde_cli.training.loop import Phase
from bayesnde_cli.training.objectives import Pace

# Latent dimension: the number of features up to this many, half of it beyond.
_FULL_LATENT_FEATURES = 32
# Fewest steps in an epoch: the batch shrinks for it.
_LEAST_STEPS = 8
# Approximate number of operations in one compiled call: seconds on two cores, so that a signal does not wait long.
_ROUND_OPERATIONS = 2e11
_EGM_ROUND_STEPS = 50
# Approximate passes of a batch through decoder and encoder in a step: two in their own, one in that of the critics.
_EGM_PASSES = 3.0


def fresh_networks(
    settings: WarmstartSettings, n_features: int, n_classes: int, image: ImageShape | None = None
) -> Networks:
    """Decoder and encoder for these rows; the settings must be settled."""
    if image is not None:
        assert settings.latent_dim is not None
        shape = image.height, image.width, image.channels
        decoder = coders.image_decoder_spec(settings.latent_dim, shape, n_classes)
        decoder = replace(decoder, class_maps=bool(settings.class_maps))
        encoder = coders.image_encoder_spec(settings.latent_dim, shape, n_classes)
    else:
        full = n_features if n_features <= _FULL_LATENT_FEATURES else math.ceil(n_features / 2)
        latent_dim = settings.latent_dim or full
        decoder = coders.decoder_spec(latent_dim, n_features, n_classes)
        encoder = coders.encoder_spec(latent_dim, n_features, n_classes)
    common: dict[str, Any] = {name: getattr(settings, name) for name in ("width", "depth", "activation")}
    return Networks(replace(decoder, **common), replace(encoder, **common))


def first_weights(settings: TrainingSettings, networks: Networks) -> dict[str, tf.Tensor]:
    """The random weights before the first phase."""
    assert settings.seed is not None
    seed = derive_seed(settings.seed, settings.stage, "weights")
    return coders.initial_autoencoder(networks.decoder, networks.encoder, seed)


def phases_of(
    settings: TrainingSettings, networks: Networks, rows: Rows, n_epoch_rows: int | None = None
) -> list[Phase]:
    """The phases of a stage, in order. An epoch has this many of the rows, or all."""
    sizes = Sizes(settings, networks, n_epoch_rows or len(rows))
    if isinstance(settings, RefineSettings):
        low, high = stage_settings.CYCLE_GAIN_LIMITS
        return _refinement(settings, networks, sizes, min(max(stage_settings.CYCLE_GAIN_ROWS / len(rows), low), high))
    assert isinstance(settings, WarmstartSettings)
    phases = []
    if settings.objective != "elbo":
        from bayesnde_cli.training.adversarial import adversarial_objective

        pace = sizes.egm(settings, networks)
        phases.append(Phase("egm", adversarial_objective(networks, settings, pace), pace))
    elif settings.column_steps > 0 and networks.decoder.n_in == networks.decoder.n_out:
        pace, cells = sizes.columns(settings), partial(objectives.sort_cells, rows.x, rows.y)
        phases.append(Phase("columns", objectives.column_objective(networks, settings, pace), pace, cells, n_checks=1))
    if settings.objective != "egm":
        pace = sizes.epochs(passes=1.0)
        n_settling = objectives.kl_warm_up_epochs(settings, pace) * (pace.rounds_per_epoch or 1)
        objective = objectives.evidence_objective(networks, settings, pace)
        phases.append(Phase("elbo", objective, pace, n_settling=n_settling, follows_epochs=True))
    return phases


def _refinement(settings: RefineSettings, networks: Networks, sizes: "Sizes", least_gain: float) -> list[Phase]:
    """One phase; with the default length cycles, each twice as long as the one before, up to a number of operations."""
    update = settings.latent_update
    if update == "importance":
        assert settings.draws is not None
        pace = sizes.epochs(passes=0.5 * (1 + settings.draws))
        objective = objectives.importance_objective(networks, settings, pace)
        first = Phase(update, objective, pace, follows_epochs=True)
        if settings.steps or settings.epochs or settings.select != "marginal" or networks.decoder.image is not None:
            return [first]
        n_misses = math.ceil(stage_settings.CYCLE_PATIENCE * (settings.checks or 1))
        first = replace(first, patience=max(n_misses, stage_settings.LEAST_CYCLE_PATIENCE))
        most = int(stage_settings.MOST_CYCLE_OPERATIONS / pace.operations)  # in lengths of the first cycle
        cycles, done = [first], 1
        while done < most and len(cycles) < stage_settings.MOST_CYCLES:
            factor = 2 ** len(cycles)
            if most - done <= 2 * factor:  # the last one takes all that is left
                factor = most - done
            cycles.append(_longer(first, factor, done, f"{update} {len(cycles) + 1}", least_gain))
            done += factor
        return cycles
    from bayesnde_cli.training.latents import latent_objective

    passes = 1.0 if update == "map" else 0.5 * (settings.transitions * (settings.leapfrogs + 1) + 1)
    pace = sizes.epochs(passes=passes)
    return [Phase(update, latent_objective(networks, settings, pace), pace)]


def _longer(phase: Phase, factor: int, done: int, name: str, least_gain: float) -> Phase:
    """A phase of a lower bound `factor` times as long, after `done` lengths, if the one before gained enough."""
    pace = phase.pace._replace(n_rounds=factor * phase.pace.n_rounds)
    objective = replace(phase.objective, start=objectives.start_of(pace))
    longer = replace(phase, name=name, objective=objective, pace=pace, first_epoch=done * phase.pace.n_epochs)
    return replace(longer, like=phase, least_gain=least_gain)


class Sizes:
    """Batch size, epochs and rounds for a number of rows."""

    def __init__(self, settings: TrainingSettings, networks: Networks, n_rows: int) -> None:
        self.n_rows = n_rows
        # A small table also gets several steps an epoch.
        self.batch_rows = max(1, min(settings.batch_rows, n_rows // _LEAST_STEPS))
        self.steps_per_epoch = n_rows // self.batch_rows
        self.n_epochs = settings.epochs or self._epochs_of_steps(settings, networks)
        self._products = sum(n_products(spec) for spec in (networks.decoder, networks.encoder))

    def _epochs_of_steps(self, settings: TrainingSettings, networks: Networks) -> int:
        """Whole epochs with at least the number of steps in the settings, or the default number."""
        is_image, is_refine = networks.decoder.image is not None, isinstance(settings, RefineSettings)
        if isinstance(settings, RefineSettings):
            is_usual = settings.latent_update == "importance" and not is_image
        else:
            is_usual = isinstance(settings, WarmstartSettings) and settings.objective == "elbo" and not is_image
        usual = stage_settings.FIRST_CYCLE_STEPS if is_refine else stage_settings.WARMSTART_STEPS
        image_steps = stage_settings.IMAGE_REFINE_STEPS if is_refine and is_image else None
        if steps := settings.steps or image_steps or (usual if is_usual else None):
            return math.ceil(steps / self.steps_per_epoch)
        n_epochs = math.ceil(stage_settings.LONG_STEPS / self.steps_per_epoch)
        return min(max(n_epochs, stage_settings.FEWEST_EPOCHS), stage_settings.MOST_EPOCHS)

    def _operations(self, passes: float) -> float:
        """Operations of a step that passes each row through the networks `passes` times."""
        return 6.0 * passes * self._products * self.batch_rows

    def _steps_in_seconds(self, passes: float) -> float:
        """Steps that take a few seconds."""
        return _ROUND_OPERATIONS / self._operations(passes)

    def epochs(self, *, passes: float) -> Pace:
        """Epochs in equal rounds of a few seconds each."""
        steps = self.steps_per_epoch
        fewest = min(max(1, round(steps / self._steps_in_seconds(passes))), steps)
        # Steps beyond equal rounds wait for another epoch: choose the number of rounds that leaves fewest.
        rounds = min(range(fewest, min(2 * fewest, steps) + 1), key=lambda n: steps % n)
        n_rounds = self.n_epochs * rounds
        return Pace(self.n_rows, self.batch_rows, steps // rounds, n_rounds, rounds, self._operations(passes))

    def columns(self, settings: WarmstartSettings) -> Pace:
        """Rounds of the column start."""
        n_rounds = math.ceil(settings.column_steps / max(1.0, self._steps_in_seconds(1.0)))
        n_steps = math.ceil(settings.column_steps / n_rounds)
        return Pace(self.n_rows, self.batch_rows, n_steps, n_rounds, step_operations=self._operations(1.0))

    def egm(self, settings: WarmstartSettings, networks: Networks) -> Pace:
        """Rounds of the adversarial warm start; those of images have fewer steps."""
        at_once = _EGM_ROUND_STEPS
        if networks.decoder.image is not None:
            at_once = min(at_once, max(1, int(self._steps_in_seconds(_EGM_PASSES))))
        n_rounds = math.ceil(settings.egm_steps / at_once)
        batch_rows = min(settings.batch_rows, self.n_rows)
        n_steps = math.ceil(settings.egm_steps / n_rounds)
        return Pace(self.n_rows, batch_rows, n_steps, n_rounds, step_operations=self._operations(_EGM_PASSES))
