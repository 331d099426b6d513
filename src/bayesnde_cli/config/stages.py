"""One frozen config class per stage: its settings, their defaults, their ranges, their help.

A default is written here and nowhere else; the command line and the docs read it from here.
"""

import math
import typing
from dataclasses import dataclass

from bayesnde_cli.config.fields import StageConfig, setting
from bayesnde_cli.config.run_settings import device_setting, seed_setting, threads_setting
from bayesnde_cli.config.training import RefineConfig, WarmstartConfig
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


# What scoring leaves to the rows: a pass of an image's decoder takes a thousand times as long as one of a table's.
SCORED_TABLE = {"block_rows": 128, "pilot_draws": 2000, "proposal_draws": 10_000}
SCORED_IMAGES = {"block_rows": 8, "pilot_draws": 500, "proposal_draws": 2000}


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
    seed: int | None = seed_setting()
    device: str = device_setting()
    threads: int | None = threads_setting()


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
        (), "A neural density to compare with beside the plain estimators, fitted in minutes; repeatable.",
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
    seed: int | None = seed_setting()
    device: str = device_setting()
    threads: int | None = threads_setting()


STAGE_CONFIGS: dict[str, type[StageConfig]] = {
    config.stage: config
    for config in (PrepareConfig, WarmstartConfig, RefineConfig, PosteriorConfig, DensityConfig, EvaluateConfig)
}
