"""Settings of the two training stages, and what they leave to the rows."""

import typing
from dataclasses import dataclass
from typing import Any

from bayesnde_cli.config.fields import StageConfig, setting
from bayesnde_cli.config.run_settings import device_setting, seed_setting, threads_setting
from bayesnde_cli.errors import BadConfig

# What an untold number of epochs comes to: enough for this many steps, within these limits. The small networks of few
# columns are refined twice as long: on the involute that gained .002 nats and still took minutes.
TYPICAL_STEPS, SMALL_REFINE_STEPS = 6000, 12000
FEWEST_EPOCHS, MOST_EPOCHS, MOST_SMALL_REFINE_EPOCHS = 30, 400, 250
# Images, whose steps take seconds, are refined for half an hour on two cores, however few epochs that is.
IMAGE_REFINE_STEPS = 500

# What is left to the rows. With few, large networks learn them by heart: on Vehicle (684 rows) validation rows gained
# 0.7 to 1 nat. Images have the paper's networks, and looks at them are dear.
SMALL_TABLE_ROWS = 2000
_TABLE: dict[str, Any] = {"validation_rows": 1024, "generated_rows": 5000}
SMALL_TABLE: dict[str, Any] = {**_TABLE, "width": 128, "depth": 2, "weight_decay": 0.1}
LARGE_TABLE: dict[str, Any] = {**_TABLE, "width": 256, "depth": 5, "weight_decay": 0.0}
IMAGES: dict[str, Any] = {
    "validation_rows": 128, "generated_rows": 1000, "width": 32, "depth": 3, "weight_decay": 0.0, "latent_dim": 10,
}  # fmt: skip


# Classes of images, at most, that have maps of the latents of their own unless that is set: weights grow with them.
MOST_MAPPED_CLASSES = 100


@dataclass(frozen=True)
class TrainingConfig(StageConfig):
    """What the two training stages have in common."""

    epochs: int | None = setting(
        None, "Passes over the training rows, at most. By default as many as --steps come to. (egm has --egm-steps.)",
        minimum=1, panel="Training",
    )  # fmt: skip
    steps: int | None = setting(
        None,
        f"Steps of the optimizer, in whole epochs, at most. By default {TYPICAL_STEPS:,} (refine, up to 10 columns: "
        f"{SMALL_REFINE_STEPS:,}), but at least {FEWEST_EPOCHS} and at most {MOST_EPOCHS} epochs (there: "
        f"{MOST_SMALL_REFINE_EPOCHS}); refine of images: {IMAGE_REFINE_STEPS}.",
        minimum=1, panel="Training",
    )  # fmt: skip
    learning_rate: float = setting(1e-3, "Learning rate of Adam.", minimum=0.0, panel="Training")
    schedule: str = setting(
        "constant",
        "Course of the learning rate (not of egm): constant; decay: (1 + epoch/10)^-0.6; cosine: down to 0 at the end.",
        choices=("constant", "decay", "cosine"), panel="Training",
    )  # fmt: skip
    weight_decay: float | None = setting(
        None,
        f"Weight decay (not of egm); above 0 Adam becomes AdamW. By default {SMALL_TABLE['weight_decay']} for fewer "
        f"than {SMALL_TABLE_ROWS:,} training rows, else 0.", minimum=0.0, panel="Training",
    )  # fmt: skip
    batch_rows: int = setting(256, "Rows in a batch.", minimum=1, panel="Training")
    fresh_noise: bool = setting(
        True, "Draw the dequantisation noise of lattice and categorical columns anew for every epoch. (elbo and "
        "importance, not of images.)", panel="Training",
    )  # fmt: skip
    average_epochs: float = setting(
        2.0, "Memory of the running mean of the weights, in epochs; 0: no mean.", minimum=0.0, panel="Training"
    )
    select: str = setting(
        "marginal",
        "What chooses among the checkpoints, on validation rows. marginal: estimated log-density; "
        "plug-in: log p(x | z) at the encoder's z; rank: the paper's mean percentile rank of eight diagnostics.",
        choices=("marginal", "plug-in", "rank"), panel="Selection",
    )  # fmt: skip
    checks: int = setting(20, "Looks at the validation rows, evenly spread.", minimum=1, panel="Selection")
    patience: int = setting(
        6, "Stop after so many looks without a gain; 0: never, nor with --select rank.", minimum=0, panel="Selection"
    )
    validation_rows: int | None = setting(
        None, f"Validation rows that choose, the same ones at every look. By default {_TABLE['validation_rows']:,}, of "
        f"images {IMAGES['validation_rows']}.", minimum=1, panel="Selection",
    )  # fmt: skip
    validation_draws: int = setting(64, "Importance-sampling draws of each such row.", minimum=4, panel="Selection")
    generated_rows: int | None = setting(
        None, "Generated rows that the diagnostics compare with the validation rows. By default "
        f"{_TABLE['generated_rows']:,}, of images {IMAGES['generated_rows']:,}.", minimum=50, panel="Selection",
    )  # fmt: skip
    seed: int | None = seed_setting()
    device: str = device_setting()
    threads: int | None = threads_setting()


@dataclass(frozen=True)
class WarmstartConfig(TrainingConfig):
    """Settings of `warmstart`."""

    stage: typing.ClassVar[str] = "warmstart"

    objective: str = setting(
        "elbo",
        "elbo: the evidence lower bound; egm: the paper's adversarial warm start; both: egm, then elbo.",
        choices=("elbo", "egm", "both"), panel="Training",
    )  # fmt: skip
    column_steps: int = setting(
        2000,
        "elbo: steps that first teach each latent its own column, as though the columns were independent; 0: none. "
        "Only with a latent for every feature.",
        minimum=0, panel="Training",
    )  # fmt: skip
    kl_warm_up: float = setting(
        0.3, "elbo: share of the epochs over which the prior gains its full weight.",
        minimum=0.0, maximum=1.0, panel="Training",
    )  # fmt: skip
    latent_dim: int | None = setting(
        None, "Latent dimension. By default the number of features up to 32, half of it beyond; of images "
        f"{IMAGES['latent_dim']}.", minimum=1, panel="Model",
    )  # fmt: skip
    cells: bool = setting(
        True, "Lattice and categorical columns, and pixels of images: the likelihood of a value's whole cell, not of "
        "the point in it where the noise fell.", panel="Model",
    )  # fmt: skip
    class_maps: bool | None = setting(
        None, "Images with a condition: every class has a map of the latents of its own in the decoder's first layer. "
        f"By default for up to {MOST_MAPPED_CLASSES} classes; the paper has one map for all.", panel="Model",
    )  # fmt: skip
    width: int | None = setting(
        None, f"Width of the networks. By default {LARGE_TABLE['width']}, or {SMALL_TABLE['width']} for fewer than "
        f"{SMALL_TABLE_ROWS:,} training rows. Of images the channels: {IMAGES['width']}.", minimum=1, panel="Model",
    )  # fmt: skip
    depth: int | None = setting(
        None, f"Hidden layers, or residual blocks beyond 10 features. By default {LARGE_TABLE['depth']}, or "
        f"{SMALL_TABLE['depth']} for fewer than {SMALL_TABLE_ROWS:,} training rows. Networks of images have theirs.",
        minimum=1, panel="Model",
    )  # fmt: skip
    activation: str = setting(
        "leaky_relu", "Activation of the networks.", choices=("leaky_relu", "elu", "silu", "tanh"), panel="Model"
    )
    egm_steps: int = setting(6000, "egm: steps, each of both discriminators and of generator and encoder.", minimum=1,
                             panel="EGM")  # fmt: skip
    adversarial_x_weight: float = setting(1.0, "egm: weight of this term.", minimum=0.0, panel="EGM")
    adversarial_z_weight: float = setting(1.0, "egm: weight of this term.", minimum=0.0, panel="EGM")
    reconstruction_x_weight: float = setting(3.0, "egm: weight of this term.", minimum=0.0, panel="EGM")
    reconstruction_z_weight: float = setting(1.0, "egm: weight of this term.", minimum=0.0, panel="EGM")
    correlation_weight: float = setting(0.3, "egm: weight of this term.", minimum=0.0, panel="EGM")
    marginal_mmd_weight: float = setting(0.0, "egm: weight of this term.", minimum=0.0, panel="EGM")
    joint_mmd_weight: float = setting(0.0, "egm: weight of this term.", minimum=0.0, panel="EGM")
    sliced_wasserstein_weight: float = setting(0.0, "egm: weight of this term.", minimum=0.0, panel="EGM")
    log_variance_weight: float = setting(0.01, "egm: weight of this term.", minimum=0.0, panel="EGM")
    squared_variance_weight: float = setting(
        0.0, "egm: weight of this term, `alpha` in the paper's table.", minimum=0.0, panel="EGM"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        weights = [value for name, value in vars(self).items() if name.endswith("_weight")]
        if self.objective != "elbo" and not any(weights):
            raise BadConfig(
                f"the objective {self.objective} has no term left",
                found=f"found: all {len(weights)} weights are 0",
                hint="give one of them a weight, or choose --objective elbo",
            )


@dataclass(frozen=True)
class RefineConfig(TrainingConfig):
    """Settings of `refine`."""

    stage: typing.ClassVar[str] = "refine"

    schedule: str = setting(
        "cosine", "Course of the learning rate: constant; decay: (1 + epoch/10)^-0.6; cosine: down to 0 at the end.",
        choices=("constant", "decay", "cosine"), panel="Training",
    )  # fmt: skip
    latent_update: str = setting(
        "importance",
        "How the latents of a batch follow the decoder. importance: weighted draws from the encoder's proposal; "
        "posterior: a persistent HMC chain for every row; map: the paper's, one step of Adam for every row.",
        choices=("importance", "posterior", "map"), panel="Training",
    )  # fmt: skip
    draws: int = setting(8, "importance: draws for each row.", minimum=2, panel="Training")
    burn_in: int = setting(
        20, "posterior: sweeps over all chains before the first step of the decoder.", minimum=0, panel="Training"
    )
    transitions: int = setting(2, "posterior: transitions of a chain at each visit.", minimum=1, panel="Training")
    leapfrogs: int = setting(5, "posterior: leapfrog steps of a transition.", minimum=1, panel="Training")
    latent_learning_rate: float = setting(5e-3, "map: learning rate of the latents.", minimum=0.0, panel="Training")
    mmd_weight: float = setting(
        0.0, "posterior, map: weight of the prior-predictive MMD.", minimum=0.0, panel="Regularisers"
    )
    correlation_weight: float = setting(
        0.0, "posterior, map: weight of the correlation term.", minimum=0.0, panel="Regularisers"
    )
    log_variance_weight: float = setting(
        0.0, "posterior, map: weight of the log-variance term.", minimum=0.0, panel="Regularisers"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        names = ("mmd_weight", "correlation_weight", "log_variance_weight")
        unused = [f"{name} = {getattr(self, name):g}" for name in names if getattr(self, name)]
        if self.latent_update == "importance" and unused:
            raise BadConfig(
                "the importance-weighted bound has no regularisers",
                found=f"found: {', '.join(unused)}",
                hint="leave them out or set them to 0, or choose --latent-update posterior or map",
            )
