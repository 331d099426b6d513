"""Settings of every stage, and the resources of `slurm`.

A default is written here and nowhere else; the command line and the docs read it from here.
"""

import math
import re
import typing
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

from pydantic import Field

from bayesnde_cli.errors import BadConfig, BadUsage
from bayesnde_cli.settings.declare import SettingsT, StageSettings, group

_columns, _rows, _scaling, _text_files = group("Columns", "COL"), group("Rows"), group("Scaling"), group("Text files")
_model, _training, _selection = group("Model"), group("Training"), group("Selection")
_egm, _regularisers, _effort = group("EGM"), group("Regularisers"), group("Effort")
_chains, _proposal, _metrics = group("Chains"), group("Proposal"), group("Metrics")
_computation, _tasks = group("Computation"), group("Tasks")

Seed = Annotated[int, Field(ge=0, le=2**32 - 1)]
Device = Literal["auto", "cpu", "gpu"]

# SLURM sends its signal this many seconds before the time limit, and up to a minute earlier: time to save the work.
SIGNAL_SECONDS = 180
_LEAST_TASK_SECONDS = 600
DEFAULT_SHARDS = 8
# The spellings of a time in sbatch: minutes, minutes:seconds, hours:minutes:seconds, days-hours[:minutes[:seconds]].
_SLURM_TIME = re.compile(
    r"(?:(?P<days>\d{1,4})-)?(?P<first>\d{1,6})(?::(?P<second>\d{1,2}))?(?::(?P<third>\d{1,2}))?", re.ASCII
)
_SLURM_WORD = re.compile(r"[^\s'\"\\#]+")  # may stand in a line of sbatch's options without quotes


class PrepareSettings(StageSettings):
    """Settings of `prepare`."""

    stage: ClassVar[str] = "prepare"

    features: tuple[str, ...] = _columns(
        (), "Columns to model; patterns such as 'x*' work.", default_text="all columns without another role"
    )
    drop: tuple[str, ...] = _columns((), "Columns to leave out; patterns work.")
    drop_constant: bool = _columns(False, "Leave out columns that hold a single value.")
    condition: str | None = _columns(None, "Label column y: model p(x | y).")
    outlier_label: str | None = _columns(None, "Column of 0 and 1 (1 is an outlier), used in evaluation only.")
    truth: str | None = _columns(
        None,
        "Column with the true log-density, used in evaluation only.",
        default_text="true_log_density, if there is such a column",
    )
    id: str | None = _columns(None, "Column with row names, not modelled.")
    split_column: str | None = _columns(None, "Column that assigns each row to train, validation or test.")
    type: tuple[str, ...] = _columns(
        (), "Type of a column, where detection is wrong: continuous, lattice or categorical.", metavar="COL=TYPE"
    )
    missing: Literal["error", "drop"] = _rows(
        "error", "Rows of the table with missing cells: stop with an error, or drop them."
    )
    missing_token: tuple[str, ...] = _rows((), "Another word that marks a missing cell; repeatable.", metavar="WORD")
    max_robust_z: float | None = _rows(
        None, "Drop rows with |x - median| / MAD above this value in any feature.", ge=1.0
    )
    split: tuple[float, ...] = _rows(
        (0.81, 0.09, 0.10), "Shares of training, validation and test rows.", metavar="A,B,C"
    )
    split_method: Literal["address", "tail", "order", "train-test-split"] = _rows(
        "address",
        "How rows are split: address draws a seeded number per row, stratified under --condition; tail shuffles with "
        "RandomState(seed) and takes the last rows for test, those before for validation; order does so without "
        "shuffling; train-test-split calls scikit-learn's function twice with --split-seeds.",
    )
    train_rows: int | None = _rows(
        None, "Largest number of training rows, chosen as for --test-rows.", ge=1, default_text="all"
    )
    test_rows: int | None = _rows(
        None,
        "Largest number of test rows, chosen by a seeded number per row (the first ones with --split-method order).",
        ge=1,
        default_text="all",
    )
    split_seeds: tuple[Seed, ...] = _rows(
        (42, 1051), "Seeds of train-test-split: for test, then for validation.", metavar="I,J"
    )
    dequantize: tuple[str, ...] = _scaling(
        ("auto",),
        "Uniform noise on columns: auto adds one step, (-0.5, 0.5), to lattice and categorical columns; none adds "
        "nothing; COL=LOW,HIGH sets one column (patterns work).",
        metavar="RULE",
    )
    scale: Literal["auto", "marginal", "standard", "minmax", "logit", "none"] = _scaling(
        "auto",
        "Scaling of the columns: marginal maps each through its own distribution to a standard normal; logit is for "
        "pixels, 0 to 255 with noise U(0, 1); auto takes logit for images, else marginal, unless a mixture fits the "
        "validation rows better with standard.",
    )
    scale_on: Literal["train", "all"] = _scaling(
        "train", "Rows that the scaling is fitted to; all is for the paper's protocols."
    )
    delimiter: str | None = _text_files(None, "Column separator, such as ',' or tab.", default_text="detected")
    quote: str | None = _text_files(None, "Quote character.", default_text="detected")
    header: Literal["auto", "yes", "no"] = _text_files("auto", "Whether the first row holds column names.")
    decimal: Literal[".", ","] | None = _text_files(None, "Decimal sign.", default_text="detected")
    encoding: str | None = _text_files(None, "Text encoding.", default_text="detected")
    seed: Seed = _computation(0, "Seed of the run: splits, noise, and every later stage.")

    def check_combination(self) -> None:
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


# Default length of training, in optimizer steps. The warm start need not converge. Tables are refined in cycles: each
# is twice as long as the last, and starts only if the last one gained enough.
WARMSTART_STEPS, FIRST_CYCLE_STEPS, MOST_CYCLES = 1500, 1000, 8
# Operations of all cycles together, at most: four to five minutes of CPU time.
MOST_CYCLE_OPERATIONS = 3.2e13
# Validation checks without improvement that end training. A cycle, which has then begun to memorise, ends after a share
# of its checks, but no fewer than the last number.
PATIENCE, CYCLE_PATIENCE, LEAST_CYCLE_PATIENCE = 6, 0.4, 2
# Gain of a cycle, in nats, that starts the next one: this number divided by the number of training rows, within these
# limits. Smaller gains are within the uncertainty of a fit to that many rows.
CYCLE_GAIN_ROWS, CYCLE_GAIN_LIMITS = 120.0, (0.005, 0.05)
# Images, and the paper's objectives: these steps, within these epochs.
LONG_STEPS, FEWEST_EPOCHS, MOST_EPOCHS = 6000, 30, 400
# A step on images takes seconds: their refinement is limited to about half an hour on two cores.
IMAGE_REFINE_STEPS = 500

# Recipes of tables, from the cheapest to the most expensive. Large networks memorise few rows: on Vehicle (684 rows)
# small ones gained 0.7 to 1 nat on validation rows; on other tables of that size large ones did. So `warmstart` tries
# all of them. Without trials, the number of training rows decides between the first two.
RECIPES: dict[str, dict[str, Any]] = {
    "small": {"width": 128, "depth": 2, "weight_decay": 0.1},
    "medium": {"width": 256, "depth": 2, "weight_decay": 0.0},
    "large": {"width": 256, "depth": 4, "weight_decay": 0.0},
}
SMALL_TABLE_ROWS = 2000
# From this many training rows, medium networks are tried in place of small ones, which lead in short runs but not in
# long ones.
MANY_ROWS = 10_000
# Draws per row in the importance-weighted bound. Where steps are what is lacking, fewer draws are better: on BANK
# (36,621 rows) 3 gained 0.06 nats on validation rows over 8 in the same time; on ParkTele (4,758 rows) 4 lost 0.1,
# with another schedule as well.
REFINE_DRAWS, REFINE_DRAWS_MANY_ROWS = 8, 4
# Recipes are tried if that takes no more than this share of the time that is given. `fit --minutes` gives the other
# shares to the training stages, and the rest to scoring.
SEARCH_TIME, WARMSTART_TIME, REFINE_TIME = 0.5, 0.3, 0.45

# Defaults that depend on the data. Images have the paper's networks, and decoding one takes a thousand times as long as
# decoding a row of a table.
_SCORING: dict[str, Any] = {"block_rows": 256, "pilot_draws": 2000, "proposal_draws": 10_000, "importance_draws": 256}
TABLE: dict[str, Any] = {"validation_rows": 1024, "generated_rows": 5000, "checks": 5, **_SCORING}
IMAGES: dict[str, Any] = {
    **{"validation_rows": 128, "generated_rows": 1000, "block_rows": 8, "pilot_draws": 500, "proposal_draws": 2000},
    **{"importance_draws": 256, "checks": 20, "learning_rate": 1e-3},
    **{"width": 32, "depth": 3, "weight_decay": 0.0, "latent_dim": 10},
}
# Learning rates of tables by objective; of all others, of the paper's, and of images, the last one.
LEARNING_RATES = {"elbo": 2e-3, "importance": 3e-3, "others": 1e-3}

# Largest number of image classes that get a latent map each by default: the weights grow with it.
MOST_MAPPED_CLASSES = 100

Schedule = Literal["constant", "decay", "cosine"]
_SCHEDULE_HELP = "Learning-rate schedule: constant; decay is (1 + epoch/10)^-0.6; cosine falls to 0 at the end{}."


def _by_recipe(name: str) -> str:
    return "by --recipe: " + ", ".join(f"{own[name]} {recipe}" for recipe, own in RECIPES.items())


def _by_kind(name: str) -> str:
    return f"{TABLE[name]:,}; images: {IMAGES[name]:,}"


class ComputedSettings(StageSettings):
    """Base of the settings of the stages after `prepare`: their seed and where they compute."""

    seed: Seed | None = _computation(None, "Seed of this stage.", default_text="the seed of the run")
    device: Device = _computation("auto", "Device to compute on; auto uses a GPU if there is one.", is_technical=True)
    threads: int | None = _computation(None, "CPU threads.", ge=1, default_text="all cores", is_technical=True)

    def with_defaults(
        self: SettingsT, n_rows: int = SMALL_TABLE_ROWS, *, are_images: bool = False, n_classes: int = 0
    ) -> SettingsT:
        """The settings with the defaults that depend on the data filled in; scoring ignores the number of rows."""
        if are_images:
            return self.fill_in(IMAGES | {"class_maps": 0 < n_classes <= MOST_MAPPED_CLASSES})
        return self.fill_in(TABLE | RECIPES["small" if n_rows < SMALL_TABLE_ROWS else "medium"])


class TrainingSettings(ComputedSettings):
    """Settings that both training stages have."""

    epochs: int | None = _training(
        None,
        "Largest number of passes over the training rows (egm has --egm-steps).",
        ge=1,
        default_text="from --steps",
    )
    steps: int | None = _training(
        None,
        "Largest number of optimizer steps, rounded up to whole epochs.",
        ge=1,
        default_text=f"warmstart {WARMSTART_STEPS:,}; refine {FIRST_CYCLE_STEPS:,}, then cycles of twice as "
        f"many while these gain enough; other objectives and images {LONG_STEPS:,}, refine of images "
        f"{IMAGE_REFINE_STEPS}",
    )
    minutes: float | None = _training(
        None,
        "Stop after about this many minutes, with the best weights so far; the result then depends on the machine's "
        "speed, and with little time no recipes are tried.",
        ge=0.1,
        default_text="no limit",
    )
    learning_rate: float | None = _training(
        None,
        "Learning rate of Adam.",
        ge=0.0,
        default_text=", ".join(f"{name} {rate:g}" for name, rate in LEARNING_RATES.items()),
    )
    schedule: Schedule = _training("constant", _SCHEDULE_HELP.format(" (not for egm)"))
    weight_decay: float | None = _training(
        None, "Weight decay of AdamW; 0 is plain Adam (not for egm).", ge=0.0, default_text=_by_recipe("weight_decay")
    )
    batch_rows: int = _training(256, "Rows in a batch.", ge=1)
    fresh_noise: bool = _training(True, "Draw new dequantisation noise in every epoch (elbo and importance on tables).")
    average_epochs: float = _training(
        2.0, "Memory of the running average of the weights, in epochs; 0 turns it off.", ge=0.0
    )
    select: Literal["marginal", "plug-in", "rank"] = _selection(
        "marginal",
        "Criterion that selects a checkpoint on validation rows: marginal is the estimated log-density, plug-in is "
        "log p(x | z) at the encoder's z, rank is the paper's mean percentile rank of eight diagnostics.",
    )
    checks: int | None = _selection(
        None,
        "Validation checks, evenly spaced over the training, or over each of its cycles.",
        ge=1,
        default_text=_by_kind("checks"),
    )
    patience: int | None = _selection(
        None,
        "Stop after this many validation checks without improvement; 0 never stops, nor does --select rank.",
        ge=0,
        default_text=f"{PATIENCE}; in a cycle {CYCLE_PATIENCE:.0%} of its checks",
    )
    validation_rows: int | None = _selection(
        None,
        "Validation rows in a check, the same ones in every check.",
        ge=1,
        default_text=_by_kind("validation_rows"),
    )
    validation_draws: int = _selection(64, "Importance-sampling draws per row in a validation check.", ge=4)
    generated_rows: int | None = _selection(
        None,
        "Generated rows that the diagnostics compare with the validation rows.",
        ge=50,
        default_text=_by_kind("generated_rows"),
    )

    @property
    def needs_all_rows(self) -> bool:
        """Whether training keeps all rows in memory, however many there are: some objectives have a latent for each."""
        return False


class WarmstartSettings(TrainingSettings):
    """Settings of `warmstart`."""

    stage: ClassVar[str] = "warmstart"

    recipe: Literal["auto", "small", "medium", "large"] = _model(
        "auto",
        "Width, depth and weight decay of a table's networks: auto tries two in short runs and chooses by held-out "
        "rows, unless --width or --depth is given.",
    )
    objective: Literal["elbo", "egm", "both"] = _training(
        "elbo", "Objective: the evidence lower bound, the paper's adversarial warm start (egm), or egm and then elbo."
    )
    column_steps: int = _training(
        1000,
        "Steps before elbo that fit each column with its own latent; 0 skips them, as do other latent dimensions.",
        ge=0,
    )
    kl_warm_up: float = _training(
        0.3, "Share of the elbo epochs over which the weight of the prior rises to 1.", ge=0.0, le=1.0
    )
    latent_dim: int | None = _model(
        None,
        "Latent dimension.",
        ge=1,
        default_text=f"number of features, half of it beyond 32; images: {IMAGES['latent_dim']}",
    )
    cells: bool = _model(
        True,
        "Use the likelihood of a value's whole cell for lattice columns, categories and pixels, not that of one noisy "
        "point in it.",
    )
    class_maps: bool | None = _model(
        None,
        "Give every class of images its own latent map in the decoder's first layer (one map for all in the paper).",
        default_text=f"yes, up to {MOST_MAPPED_CLASSES} classes",
    )
    width: int | None = _model(
        None,
        "Width of the networks; for images, the number of channels.",
        ge=1,
        default_text=f"{_by_recipe('width')}; images {IMAGES['width']}",
    )
    depth: int | None = _model(
        None,
        "Hidden layers, or residual blocks beyond 10 features (fixed for images).",
        ge=1,
        default_text=_by_recipe("depth"),
    )
    activation: Literal["leaky_relu", "elu", "silu", "tanh"] = _model("leaky_relu", "Activation of the networks.")
    egm_steps: int = _egm(6000, "Steps of egm, each of both discriminators and of generator and encoder.", ge=1)
    adversarial_x_weight: float = _egm(1.0, "Weight of the adversarial loss on x.", ge=0.0)
    adversarial_z_weight: float = _egm(1.0, "Weight of the adversarial loss on z.", ge=0.0)
    reconstruction_x_weight: float = _egm(3.0, "Weight of the reconstruction of x.", ge=0.0)
    reconstruction_z_weight: float = _egm(1.0, "Weight of the reconstruction of z.", ge=0.0)
    correlation_weight: float = _egm(0.3, "Weight of the correlation loss.", ge=0.0)
    marginal_mmd_weight: float = _egm(0.0, "Weight of the MMD of single columns.", ge=0.0)
    joint_mmd_weight: float = _egm(0.0, "Weight of the MMD of whole rows.", ge=0.0)
    sliced_wasserstein_weight: float = _egm(0.0, "Weight of the sliced Wasserstein distance.", ge=0.0)
    log_variance_weight: float = _egm(0.01, "Weight of the log-variance penalty.", ge=0.0)
    squared_variance_weight: float = _egm(
        0.0, "Weight of the squared-variance penalty (alpha in the paper's table).", ge=0.0
    )

    def check_combination(self) -> None:
        weights = [value for name, value in self if name.endswith("_weight")]
        if self.objective != "elbo" and not any(weights):
            raise BadConfig(
                f"the objective {self.objective} has no term left",
                found=f"found: all {len(weights)} weights are 0",
                hint="give one of them a weight, or choose --objective elbo",
            )

    def with_defaults(
        self, n_rows: int = SMALL_TABLE_ROWS, *, are_images: bool = False, n_classes: int = 0
    ) -> "WarmstartSettings":
        settings = self if are_images else self.fill_in(RECIPES.get(self.recipe, {}))
        settings = super(WarmstartSettings, settings).with_defaults(n_rows, are_images=are_images, n_classes=n_classes)
        return settings.fill_in({"learning_rate": LEARNING_RATES["elbo" if self.objective == "elbo" else "others"]})

    @property
    def needs_all_rows(self) -> bool:
        return self.objective != "elbo"

    def candidates(self, n_rows: int, *, are_images: bool) -> "dict[str, WarmstartSettings]":
        """The settings to try by the names of their recipes; a single one if there is no choice."""
        is_given = self.recipe != "auto" or self.width is not None or self.depth is not None
        if is_given or are_images or self.objective != "elbo":
            return {self.recipe: self}
        names = ("small", "large") if n_rows < MANY_ROWS else ("medium", "large")
        return {name: self.fill_in(RECIPES[name]) for name in names}

    def check_data(self, n_classes: int, *, are_images: bool) -> None:
        """Raise `BadConfig` for settings that do not apply to these rows."""
        if are_images and self.depth is not None:
            raise BadConfig(
                "the depth of networks for images is fixed",
                found=f"depth: {self.depth}",
                hint="leave out --depth; --width sets the number of channels; for --preset fast use fast-images",
            )
        if are_images and self.recipe != "auto":
            raise BadConfig(
                "--recipe is for tables",
                found=f"images, recipe: {self.recipe}",
                hint="leave it out; --width sets the number of channels",
            )
        if self.class_maps and not (are_images and n_classes):
            raise BadConfig(
                "--class-maps needs images and a condition",
                found=f"{'images' if are_images else 'a table'}, {n_classes or 'no'} classes",
                hint="leave out --class-maps",
            )


class RefineSettings(TrainingSettings):
    """Settings of `refine`."""

    stage: ClassVar[str] = "refine"

    schedule: Schedule = _training("cosine", _SCHEDULE_HELP.format(""))
    latent_update: Literal["importance", "posterior", "map"] = _training(
        "importance",
        "How the latents of a batch follow the decoder: weighted draws from the encoder's proposal, a persistent HMC "
        "chain per row, or the paper's Adam step per row (map).",
    )
    draws: int | None = _training(
        None,
        "Draws per row (importance).",
        ge=2,
        default_text=f"{REFINE_DRAWS}; {REFINE_DRAWS_MANY_ROWS} from {MANY_ROWS:,} training rows on",
    )
    burn_in: int = _training(20, "Sweeps over all chains before the first decoder step (posterior).", ge=0)
    transitions: int = _training(2, "Transitions of a chain per visit (posterior).", ge=1)
    leapfrogs: int = _training(5, "Leapfrog steps in a transition (posterior).", ge=1)
    latent_learning_rate: float = _training(5e-3, "Learning rate of the latents (map).", ge=0.0)
    mmd_weight: float = _regularisers(0.0, "Weight of the prior-predictive MMD (posterior and map).", ge=0.0)
    correlation_weight: float = _regularisers(0.0, "Weight of the correlation loss (posterior and map).", ge=0.0)
    log_variance_weight: float = _regularisers(0.0, "Weight of the log-variance penalty (posterior and map).", ge=0.0)
    members: Literal["auto", "latent"] = _selection(
        "auto",
        "Members of the run's density: auto adds a Gaussian mixture and a kernel density, weighted on validation rows "
        "(tables only); latent is the fitted model alone.",
    )

    @property
    def needs_all_rows(self) -> bool:
        return self.latent_update != "importance"

    def with_defaults(
        self, n_rows: int = SMALL_TABLE_ROWS, *, are_images: bool = False, n_classes: int = 0
    ) -> "RefineSettings":
        settings = super().with_defaults(n_rows, are_images=are_images, n_classes=n_classes)
        is_table_of_many = n_rows >= MANY_ROWS and not are_images
        defaults = {
            "learning_rate": LEARNING_RATES.get(self.latent_update, LEARNING_RATES["others"]),
            "draws": REFINE_DRAWS_MANY_ROWS if is_table_of_many else REFINE_DRAWS,
        }
        return settings.fill_in(defaults)

    def check_combination(self) -> None:
        names = ("mmd_weight", "correlation_weight", "log_variance_weight")
        unused = [f"{name} = {getattr(self, name):g}" for name in names if getattr(self, name)]
        if self.latent_update == "importance" and unused:
            raise BadConfig(
                "the importance-weighted bound has no regularisers",
                found=f"found: {', '.join(unused)}",
                hint="leave them out or set them to 0, or choose --latent-update posterior or map",
            )


class PosteriorSettings(ComputedSettings):
    """Settings of `posterior`."""

    stage: ClassVar[str] = "posterior"

    chains: int = _chains(4, "Markov chains per row.", ge=1)
    warm_up: int = _chains(
        100, "Transitions that tune a chain and are discarded, rounded up to a multiple of 25.", ge=0
    )
    draws: int = _chains(100, "Draws per chain.", ge=4)
    leapfrogs: int = _chains(6, "Largest number of leapfrog steps in a transition.", ge=1)
    target_acceptance: float = _chains(0.8, "Acceptance rate that the step size of a row is tuned to.", ge=0.1, le=0.99)
    metric: Literal["curvature", "identity"] = _chains(
        "curvature",
        "Mass matrix of HMC: from the decoder's curvature at the mode of the row, or the identity as in the paper.",
    )
    start: Literal["modes", "encoder"] = _chains(
        "modes",
        "Start points of the chains: the modes found from the encoder and from nearby training rows, or the encoder's "
        "point alone as in the paper.",
    )
    blur: float | None = _model(
        None,
        "Score the model blurred by Gaussian noise, to find outliers that form a cluster; the standard deviation is "
        "this value times sqrt(2 p), the typical distance between two rows.",
        ge=0.0,
        default_text="no blur",
    )
    step_size: float = _chains(0.0, "First step size; 0 finds one for every row.", ge=0.0)
    block_rows: int | None = _computation(
        None,
        "Rows in a block, the unit of work, randomness and resumption.",
        ge=1,
        default_text=_by_kind("block_rows"),
    )


class DensitySettings(PosteriorSettings):
    """Settings of `density`: those of the draws, and those of the estimate."""

    stage: ClassVar[str] = "density"

    method: Literal["auto", "bridge"] = _effort(
        "auto",
        "How rows are scored: auto tries importance sampling first and bridges where its error is not good enough; "
        "bridge runs chains for every row, as in the paper.",
    )
    importance_draws: int | None = _effort(
        None,
        "Draws around the modes of a row, before anything else is tried.",
        ge=64,
        default_text=_by_kind("importance_draws"),
    )
    audit: float = _effort(
        0.01,
        "Share of the rows scored without a bridge that are bridged to check them, at least 16 and at most 200 or one "
        "row in ten; 0 turns it off.",
        ge=0.0,
        le=1.0,
    )
    components: int = _proposal(5, "Mixture components in the proposal of a row.", ge=1)
    freedom: int = _proposal(8, "Degrees of freedom of the proposal's Student-t kernels (3 in the paper).", ge=1)
    defensive_weight: float = _proposal(
        0.02, "Weight of the prior in the proposal (0.05 in the paper).", ge=0.0, le=0.99
    )
    pilot_draws: int | None = _proposal(
        None,
        "Weighted draws that refine the proposal of a row; 0 fits it to the chains alone, as in the paper.",
        ge=0,
        default_text=_by_kind("pilot_draws"),
    )
    proposal_draws: int | None = _proposal(
        None,
        "Draws from the proposal that estimate the density of a row.",
        ge=10,
        default_text=_by_kind("proposal_draws"),
    )
    regulariser: float = _proposal(
        1e-3, "Added to the proposal's covariances, as a share of the mean variance of the row's draws.", ge=0.0
    )
    absolute_regulariser: float = _proposal(
        0.0, "Added to the proposal's covariances as an absolute value, as in the paper.", ge=0.0
    )
    target_se: float = _effort(0.05, "Monte-Carlo standard error to reach in every row, in nats.", ge=0.0)
    escalations: int = _effort(
        2, "Further attempts, each with a larger budget, for rows that miss the target.", ge=0, le=2
    )
    keep_draws: bool = _computation(
        False, "Make all draws first and store them, as `posterior` does.", is_technical=True
    )


NeuralBaseline = Literal["made", "maf", "realnvp", "nsf", "cfm", "resflow"]
# Neural densities that `evaluate` can fit for comparison.
NEURAL_BASELINES: tuple[str, ...] = typing.get_args(NeuralBaseline)


class EvaluateSettings(ComputedSettings):
    """Settings of `evaluate`."""

    stage: ClassVar[str] = "evaluate"

    baselines: bool = _metrics(True, "Fit classical estimators to the same rows for comparison.")
    baseline: tuple[Literal[NeuralBaseline, "roundtrip"], ...] = _metrics(
        (), "Also fit this neural density for comparison, in minutes; repeatable.", metavar="NAME"
    )
    accuracy_rows: int = _metrics(
        256,
        "Largest number of rows that are scored under every class to measure accuracy (needs a condition); 0 skips it.",
        ge=0,
    )
    generated_rows: int = _metrics(5000, "Rows simulated from the model for the generation diagnostics.", ge=50)
    typicality_rows: int = _metrics(
        1000, "Simulated rows, and largest number of data rows, in the typicality test.", ge=50
    )
    typicality_draws: int = _metrics(64, "Importance-sampling draws per row in the typicality test.", ge=4)


class PipelineSettings(NamedTuple):
    """The settings of the stages of `fit`."""

    prepare: PrepareSettings
    warmstart: WarmstartSettings
    refine: RefineSettings
    density: DensitySettings
    evaluate: EvaluateSettings


_STAGES = (PrepareSettings, WarmstartSettings, RefineSettings, PosteriorSettings, DensitySettings, EvaluateSettings)
STAGE_SETTINGS: dict[str, type[StageSettings]] = {settings.stage: settings for settings in _STAGES}


class SlurmRequest(StageSettings):
    """The resources of every task: the options of `bayesnde slurm`, which is not a stage."""

    stage: ClassVar[str] = "slurm"

    shards: int | None = _tasks(None, "Tasks in the array.", ge=1, default_text=str(DEFAULT_SHARDS))
    cpus_per_task: int = _tasks(4, "CPUs per task, and threads.", ge=1)
    gpus_per_task: int = _tasks(0, "GPUs per task; a task fails if TensorFlow cannot use them.", ge=0)
    time: str = _tasks(
        "02:00:00", "Time limit per task, as in sbatch; a task that needs more is requeued.", metavar="TIME"
    )
    partition: str | None = _tasks(None, "Partition, as in sbatch.", metavar="NAME")
    account: str | None = _tasks(None, "Account, as in sbatch.", metavar="NAME")
    array_limit: int | None = _tasks(None, "Largest number of tasks at a time.", ge=1, default_text="all")
    setup: str | None = _tasks(
        None, "File with shell commands (module load …) and #SBATCH lines for both jobs.", metavar="FILE"
    )

    def check_combination(self) -> None:
        for name, value in (("partition", self.partition), ("account", self.account)):
            if value is not None and not _SLURM_WORD.fullmatch(value):
                hint = "see the names with `sinfo` or `sacctmgr`"
                raise BadUsage(f"--{name} must be one word", found=f"--{name} {value!r}", hint=hint)
        if self.seconds < _LEAST_TASK_SECONDS:
            raise BadUsage(
                f"--time {self.time} is too short",
                found=f"a task is told to stop {SIGNAL_SECONDS} s before its time limit, and maybe a minute earlier",
                hint="give at least 10 minutes; a task that runs out of time is requeued and resumes",
            )

    @property
    def seconds(self) -> int:
        """The time limit of a task."""
        match = _SLURM_TIME.fullmatch(self.time)
        if match is None:
            hint = "write HH:MM:SS, or minutes"
            raise BadUsage(f"--time {self.time} is not a time", found="SLURM has no such spelling", hint=hint)
        days, first, second, third = (int(match[name] or 0) for name in ("days", "first", "second", "third"))
        if match["days"] is None and match["third"] is None:
            return 60 * first + second
        return ((24 * days + first) * 60 + second) * 60 + third
