"""One frozen config class per stage: its settings, their defaults, their ranges, their help.

A default is written here and nowhere else; the command line and the docs read it from here.
"""

import math
import typing
from dataclasses import dataclass
from typing import Any

from bayesnde_cli.config.fields import StageConfig, setting
from bayesnde_cli.errors import BadConfig


@dataclass(frozen=True)
class PrepareConfig(StageConfig):
    """Settings of `prepare`."""

    stage: typing.ClassVar[str] = "prepare"

    features: tuple[str, ...] = setting(
        (), "Columns to model; patterns such as 'x*' work. All columns without another role if not given.",
        metavar="COL", panel="Columns",
    )  # fmt: skip
    drop: tuple[str, ...] = setting((), "Columns to leave out; patterns work.", metavar="COL", panel="Columns")
    drop_constant: bool = setting(False, "Leave out columns that hold one value only.", panel="Columns")
    condition: str | None = setting(None, "Label column y: model p(x | y).", metavar="COL", panel="Columns")
    outlier_label: str | None = setting(
        None, "0/1 column, 1 = outlier; kept aside for evaluation.", metavar="COL", panel="Columns"
    )
    truth: str | None = setting(
        None,
        "True log-density; kept aside for evaluation. A column 'true_log_density' is taken without asking.",
        metavar="COL", panel="Columns",
    )  # fmt: skip
    id: str | None = setting(None, "Row names; kept aside.", metavar="COL", panel="Columns")
    split_column: str | None = setting(
        None, "Column that says train, validation or test for each row.", metavar="COL", panel="Columns"
    )
    type: tuple[str, ...] = setting(
        (), "COL=continuous, COL=lattice or COL=categorical, where the type found is not the one meant.",
        metavar="COL=TYPE", panel="Columns",
    )  # fmt: skip
    missing: str = setting(
        "error", "Rows with missing cells: stop, or drop them.", choices=("error", "drop"), panel="Rows"
    )
    missing_token: tuple[str, ...] = setting(
        (), "A further word that means a missing cell.", metavar="WORD", panel="Rows"
    )
    max_robust_z: float | None = setting(
        None, "Drop rows with |x - median| / MAD above this in any feature.", minimum=1.0, panel="Rows"
    )
    split: tuple[float, ...] = setting(
        (0.81, 0.09, 0.10), "Shares of training, validation and test rows.", metavar="A,B,C", panel="Rows"
    )
    split_method: str = setting(
        "address",
        "address: each row by its own seeded number, stratified under --condition. "
        "tail: shuffle with RandomState(seed), last rows are test, then validation. "
        "order: as in the file, last rows are test, those before validation. "
        "train-test-split: scikit-learn's, twice, with --split-seeds.",
        choices=("address", "tail", "order", "train-test-split"), panel="Rows",
    )  # fmt: skip
    train_rows: int | None = setting(
        None, "Training rows at most, as --test-rows. All if not given.", minimum=1, panel="Rows"
    )
    test_rows: int | None = setting(
        None, "Test rows at most, each by its own seeded number (the first with --split-method order); what is too "
        "many is left out. All if not given.",
        minimum=1, panel="Rows",
    )  # fmt: skip
    split_seeds: tuple[int, ...] = setting(
        (42, 1051),
        "Seeds of train-test-split: test, then validation.",
        minimum=0,
        maximum=2**32 - 1,
        metavar="I,J",
        panel="Rows",
    )
    dequantize: tuple[str, ...] = setting(
        ("auto",),
        "auto: uniform noise of one step, (-0.5, 0.5), on lattice and categorical columns; none; "
        "or COL=LOW,HIGH for one column (patterns work).",
        metavar="RULE", panel="Scaling",
    )  # fmt: skip
    scale: str = setting(
        "auto",
        "marginal: each column through its own distribution to a standard normal; standard; minmax; none; "
        "logit: of whole numbers 0 to 255 with noise U(0, 1), for images; "
        "auto: logit for images, else marginal, unless a mixture of validation rows is better with standard.",
        choices=("auto", "marginal", "standard", "minmax", "logit", "none"), panel="Scaling",
    )  # fmt: skip
    scale_on: str = setting(
        "train", "Rows that fit the scaling; 'all' is for the paper's protocols.",
        choices=("train", "all"), panel="Scaling",
    )  # fmt: skip
    delimiter: str | None = setting(
        None, "Column separator, such as ',' or tab; found out if not given.", panel="Text files"
    )
    quote: str | None = setting(None, "Quote character; found out if not given.", panel="Text files")
    header: str = setting(
        "auto", "Whether the first row holds names.", choices=("auto", "yes", "no"), panel="Text files"
    )
    decimal: str | None = setting(None, "Decimal sign; found out if not given.", choices=(".", ","), panel="Text files")
    encoding: str | None = setting(None, "Text encoding; found out if not given.", panel="Text files")
    seed: int = setting(
        0, "Seed of the run: splits, noise, and every later stage.", minimum=0, maximum=2**32 - 1, panel="Run"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.split) != 3 or abs(math.fsum(self.split) - 1.0) > 1e-9 or min(self.split) <= 0:
            raise BadConfig(
                "prepare.split must be three positive shares that sum to 1",
                found=f"found: {', '.join(f'{share:g}' for share in self.split)} (sum {math.fsum(self.split):g})",
                hint="for instance --split 0.81,0.09,0.10",
            )
        if len(self.split_seeds) != 2:
            raise BadConfig(
                "prepare.split_seeds must be two whole numbers",
                found=f"found: {', '.join(map(str, self.split_seeds))}",
                hint="for instance --split-seeds 42,1051",
            )


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


# What scoring leaves to the rows: a pass of an image's decoder takes a thousand times as long as one of a table's.
SCORED_TABLE = {"block_rows": 128, "pilot_draws": 2000, "proposal_draws": 10_000}
SCORED_IMAGES = {"block_rows": 8, "pilot_draws": 500, "proposal_draws": 2000}


def _seed_setting() -> Any:
    return setting(None, "Seed of this stage; the run's if not given.", minimum=0, maximum=2**32 - 1, panel="Run")


def _device_setting() -> Any:
    return setting(
        "auto", "Where to compute; auto: a GPU if there is one.", choices=("auto", "cpu", "gpu"), panel="Run",
        is_technical=True,
    )  # fmt: skip


def _threads_setting() -> Any:
    return setting(None, "Threads of the CPU; all cores if not given.", minimum=1, panel="Run", is_technical=True)


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
    seed: int | None = _seed_setting()
    device: str = _device_setting()
    threads: int | None = _threads_setting()


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


@dataclass(frozen=True)
class PosteriorConfig(StageConfig):
    """Settings of `posterior`."""

    stage: typing.ClassVar[str] = "posterior"

    chains: int = setting(4, "Markov chains of every row.", minimum=1, panel="Chains")
    warm_up: int = setting(
        100, "Transitions that tune a chain and are not kept, rounded up to a multiple of 25.",
        minimum=0, panel="Chains",
    )  # fmt: skip
    draws: int = setting(
        100, "Draws kept of every chain; 25 are made at a time, and what is too many is dropped.",
        minimum=4, panel="Chains",
    )  # fmt: skip
    leapfrogs: int = setting(6, "Leapfrog steps of a transition, at most; their number varies.", minimum=1,
                             panel="Chains")  # fmt: skip
    target_acceptance: float = setting(
        0.8, "Acceptance that the step size of a row is tuned to.", minimum=0.1, maximum=0.99, panel="Chains"
    )
    metric: str = setting(
        "curvature",
        "What a chain takes for round. curvature: the decoder's curvature at the mode of the row; "
        "identity: the prior's unit, as in the paper.",
        choices=("curvature", "identity"), panel="Chains",
    )  # fmt: skip
    start: str = setting(
        "modes",
        "Where chains start. modes: spread over the modes found from the encoder and from near training rows; "
        "encoder: all at the encoder's point, as in the paper.",
        choices=("modes", "encoder"), panel="Chains",
    )  # fmt: skip
    blur: float | None = setting(
        None,
        "Score the model blurred by Gaussian noise whose s.d., in every column of the model's space, is this many "
        "times sqrt(2 p), the typical distance of two rows. For outliers that lie together. No blur if not given.",
        minimum=0.0, panel="Model",
    )  # fmt: skip
    step_size: float = setting(0.0, "First step size; 0: found for every row.", minimum=0.0, panel="Chains")
    block_rows: int | None = setting(
        None, "Rows of a block, the unit of work, of randomness and of resumption. By default "
        f"{SCORED_TABLE['block_rows']}, of images {SCORED_IMAGES['block_rows']}.", minimum=1, panel="Run",
    )  # fmt: skip
    seed: int | None = _seed_setting()
    device: str = _device_setting()
    threads: int | None = _threads_setting()


@dataclass(frozen=True)
class DensityConfig(PosteriorConfig):
    """Settings of `density`: those of the draws, and those of the estimate."""

    stage: typing.ClassVar[str] = "density"

    components: int = setting(5, "Components of the proposal of a row.", minimum=1, panel="Proposal")
    freedom: int = setting(
        8, "Degrees of freedom of the proposal's Student-t kernels; the paper's: 3.", minimum=1, panel="Proposal"
    )
    defensive_weight: float = setting(
        0.02, "Weight of the prior in the proposal; the paper's: 0.05.", minimum=0.0, maximum=0.99, panel="Proposal"
    )
    pilot_draws: int | None = setting(
        None, "Draws that the proposal of a row is fitted to once more, by their weight; 0: to the chains alone, as in "
        f"the paper. By default {SCORED_TABLE['pilot_draws']:,}, of images {SCORED_IMAGES['pilot_draws']:,}.",
        minimum=0, panel="Proposal",
    )  # fmt: skip
    proposal_draws: int | None = setting(
        None, "Draws from the proposal of a row that its density is estimated from. By default "
        f"{SCORED_TABLE['proposal_draws']:,}, of images {SCORED_IMAGES['proposal_draws']:,}.",
        minimum=10, panel="Proposal",
    )  # fmt: skip
    regulariser: float = setting(
        1e-3, "Added to the proposal's covariances, as a share of the mean variance of the row's draws.",
        minimum=0.0, panel="Proposal",
    )  # fmt: skip
    absolute_regulariser: float = setting(
        0.0, "Added to the proposal's covariances as it is; the paper's way.", minimum=0.0, panel="Proposal"
    )
    target_se: float = setting(
        0.05, "Monte-Carlo standard error, in nats, that a row should reach.", minimum=0.0, panel="Effort"
    )
    escalations: int = setting(
        2,
        "How often a row that misses the target is run again with a larger budget.",
        minimum=0,
        maximum=2,
        panel="Effort",
    )
    keep_draws: bool = setting(
        False, "First make all draws and keep them, as `posterior` does.", panel="Run", is_technical=True
    )


# Neural densities that `evaluate` can fit beside the model.
NEURAL_BASELINES = ("made", "maf", "realnvp", "nsf", "cfm", "resflow")


@dataclass(frozen=True)
class EvaluateConfig(StageConfig):
    """Settings of `evaluate`."""

    stage: typing.ClassVar[str] = "evaluate"

    baselines: bool = setting(True, "Fit plain estimators to the same rows, to compare with.", panel="Figures")
    baseline: tuple[str, ...] = setting(
        (), "A neural density to compare with, too, fitted in minutes; repeatable.",
        choices=(*NEURAL_BASELINES, "roundtrip"), metavar="NAME", panel="Figures",
    )  # fmt: skip
    accuracy_rows: int = setting(
        256, "With a condition: rows at most that are scored under every class, for the accuracy of the likeliest one; "
        "0: none. Classes that a first look leaves open cost as much as `density`.", minimum=0, panel="Figures",
    )  # fmt: skip
    generated_rows: int = setting(
        5000, "Rows simulated from the model for the generation diagnostics.", minimum=50, panel="Figures"
    )
    typicality_rows: int = setting(
        1000, "Rows simulated from the model, and rows at most, whose densities are compared.", minimum=50,
        panel="Figures",
    )  # fmt: skip
    typicality_draws: int = setting(
        64, "Importance-sampling draws of each row of that comparison.", minimum=4, panel="Figures"
    )
    seed: int | None = _seed_setting()
    device: str = _device_setting()
    threads: int | None = _threads_setting()


STAGE_CONFIGS: dict[str, type[StageConfig]] = {
    config.stage: config
    for config in (PrepareConfig, WarmstartConfig, RefineConfig, PosteriorConfig, DensityConfig, EvaluateConfig)
}
