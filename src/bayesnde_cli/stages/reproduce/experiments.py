"""The paper's experiments: data, protocol, the recipes that we run, the figure that counts, and what the paper has.

Nothing heavy is imported here: the list is shown at once.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from bayesnde_cli.config import nearest_hint
from bayesnde_cli.errors import BadUsage

DEFAULT, PAPER = "default", "paper"
DIMENSIONS = (2, 5, 10, 15, 20, 25)
SIMULATED_ROWS, SIMULATED_SEED = 20_000, 1024

# Figures of a result.
LOG_DENSITY, SPEARMAN, PRECISION, SECONDS = "mean_log_density", "spearman", "precision_at_k", "seconds"
ACCURACY = "accuracy"

FLOWS = ("made", "maf", "realnvp", "nsf", "cfm", "resflow")
DENSITY_METHODS = ("gaussian", "gaussian_mixture", "kernel_density", *FLOWS, "roundtrip")
OUTLIER_METHODS = ("one_class_svm", "isolation_forest", "distance", "blurred_kernels", *DENSITY_METHODS)
# The recipe for outliers, which a user has as the preset of that name.
OUTLIERS = "outliers"


@dataclass(frozen=True)
class Recipe:
    """How we fit and score: presets of the stages after `prepare`, and settings `stage.key=value` over all presets.

    `prepare` follows the experiment's own preset. With a `base`, the model is that of another recipe, and only the
    scoring is its own. What an ablation takes away is in `fixed`: settings that a user cannot change.
    """

    presets: tuple[str, ...] = ()
    settings: tuple[str, ...] = ()
    base: str | None = None
    fixed: tuple[str, ...] = ()

    def without(self, *fixed: str) -> "Recipe":
        """The same recipe but for these settings."""
        return replace(self, fixed=fixed)


@dataclass(frozen=True)
class Experiment:
    """One experiment. `preset` has the paper's protocol of the data, and its training."""

    name: str
    summary: str
    preset: str
    figure: str
    recipes: Mapping[str, Recipe]
    first: tuple[str, ...] = (DEFAULT,)  # the recipes that run if none is named
    files: tuple[str, ...] = ()  # below the data directory
    simulator: str | None = None
    dim: int | None = None
    methods: tuple[str, ...] = DENSITY_METHODS
    seeds: tuple[int, ...] = (0,)
    test_rows: int | None = 500
    is_unit_interval: bool = False  # log-densities of the rows scaled to [0, 1], as in the paper
    folder: str = ""  # of the experiment whose arms it shares; its own if not given
    paper: Mapping[str, float] = field(default_factory=dict)  # the paper's figures, by recipe or method
    paper_importance: Mapping[str, float] = field(default_factory=dict)  # by importance sampling, not the bridge

    @property
    def folder_name(self) -> str:
        return self.folder or self.name


_OWN_SCALING = ("prepare.scale=auto", "prepare.scale_on=train")


def _recipes(preset: str, *more: str) -> dict[str, Recipe]:
    """Our default and the paper's; `more` are settings of the paper's that its preset leaves open."""
    return {
        DEFAULT: Recipe((), _OWN_SCALING),
        PAPER: Recipe((preset, "paper"), more),
    }


def _mixture(dim: int) -> Experiment:
    preset = "paper-gmm-low" if dim <= 10 else "paper-gmm-high"
    weights = {
        2: ("warmstart.reconstruction_x_weight=1", "warmstart.marginal_mmd_weight=0"),
        10: ("warmstart.marginal_mmd_weight=0",),
    }.get(dim, ())
    paper = {2: 0.9214, 15: 0.6311, 20: 0.57}
    return Experiment(
        f"gmm-{dim}", f"independent mixture of three Gaussians in each of {dim} columns", preset, SPEARMAN,
        _recipes(preset, *weights), simulator="gmm", dim=dim, paper={PAPER: paper[dim]} if dim in paper else {},
    )  # fmt: skip


def _uci(
    name: str, summary: str, files: tuple[str, ...], paper: tuple[float, ...], *, unit: bool = False
) -> Experiment:
    names = ("made", "maf", "realnvp", "resflow", "cfm", "roundtrip", PAPER)
    preset = f"paper-{name}"
    return Experiment(
        name, summary, preset, LOG_DENSITY, _recipes(preset), files=files, is_unit_interval=unit,
        paper=dict(zip(names, paper, strict=True)),
    )  # fmt: skip


def _odds(name: str, summary: str, paper: tuple[float, ...]) -> Experiment:
    names = ("one_class_svm", "isolation_forest", "realnvp", "maf", "cfm", "resflow", "roundtrip", PAPER)
    preset = "paper-odds"
    recipes = {
        OUTLIERS: Recipe((OUTLIERS,), ("prepare.scale=standard", "prepare.scale_on=train")),
        DEFAULT: Recipe((), _OWN_SCALING),
        PAPER: Recipe((preset, "paper")),
    }
    return Experiment(
        name, summary, preset, PRECISION, recipes, first=(OUTLIERS,), files=(f"odds/{name}.mat",),
        methods=OUTLIER_METHODS, seeds=(0, 3, 7), test_rows=None, paper=dict(zip(names, paper, strict=True)),
    )  # fmt: skip


def _mnist() -> Experiment:
    names = ("train-images-idx3-ubyte.gz", "train-labels-idx1-ubyte.gz", "t10k-images-idx3-ubyte.gz",
             "t10k-labels-idx1-ubyte.gz")  # fmt: skip
    preset = "paper-mnist"
    recipes = {DEFAULT: Recipe(), PAPER: Recipe((preset,))}
    return Experiment(
        "mnist", "MNIST, images of 28 x 28 given 10 classes: the share of test images whose class is found", preset,
        ACCURACY, recipes, files=tuple(f"mnist/{name}" for name in names), methods=(), test_rows=1000,
        paper={PAPER: 0.986},
    )  # fmt: skip


def _ablation_2d() -> Experiment:
    base = _mixture(2)
    paper, own = base.recipes[PAPER], base.recipes[DEFAULT]
    recipes = dict(base.recipes) | {
        "paper-no-warm-start": paper.without("warmstart.egm_steps=1", "warmstart.checks=1"),
        "paper-no-variance-term": paper.without("warmstart.log_variance_weight=0"),
        "default-no-warm-start": own.without("warmstart.epochs=1", "warmstart.column_steps=0"),
    }
    return Experiment(
        "ablation-2d", "what the warm start and the variance term do, 2 columns", base.preset, SPEARMAN, recipes,
        first=tuple(recipes), simulator="gmm", dim=2, methods=(), folder=base.name,
        paper={PAPER: 0.9214, "paper-no-warm-start": 0.0129, "paper-no-variance-term": 0.8929},
    )  # fmt: skip


def _ablation_15d() -> Experiment:
    base = _mixture(15)
    paper, own = base.recipes[PAPER], base.recipes[DEFAULT]
    recipes = dict(base.recipes) | {
        # "(MMD)" in the paper: its text has a term of sliced distances of its own, which stays.
        "paper-no-mmd": paper.without("warmstart.marginal_mmd_weight=0", "warmstart.joint_mmd_weight=0"),
        "paper-no-correlation": paper.without("warmstart.correlation_weight=0"),
        "default-no-columns": own.without("warmstart.column_steps=0"),
        "default-standard": own.without("prepare.scale=standard"),
    }
    return Experiment(
        "ablation-15d", "what the terms of the warm start, and the bridge, do, 15 columns", base.preset, SPEARMAN,
        recipes, first=tuple(recipes), simulator="gmm", dim=15, methods=(), folder=base.name,
        paper={PAPER: 0.6311, "paper-no-mmd": 0.5848, "paper-no-correlation": 0.6169}, paper_importance={PAPER: 0.5932},
    )  # fmt: skip


# Draws of a row in all four chains, as the paper's table has them.
BUDGETS = (100, 200, 400, 800, 1600)
# The chains alone make the proposal, nothing is tried again: the budget is what it says.
_PLAIN_BUDGET = ("density.escalations=0", "density.pilot_draws=0", "density.proposal_draws=20000")


def _budget_sweep() -> Experiment:
    base = _mixture(15)
    own = base.recipes[DEFAULT]
    recipes = {
        f"budget-{budget}": Recipe(
            own.presets, (*own.settings, *_PLAIN_BUDGET, f"density.draws={budget // 4}"), base=DEFAULT
        )
        for budget in BUDGETS
    }
    paper = (0.5804, 0.6034, 0.6311, 0.6300, 0.6207)
    importance = (0.5270, 0.5501, 0.5932, 0.6014, 0.6039)
    return Experiment(
        "budget-sweep", "bridge against importance sampling from 100 to 1,600 draws, 15 columns", base.preset, SPEARMAN,
        recipes, first=tuple(recipes), simulator="gmm", dim=15, methods=(), folder=base.name, seeds=(0, 1, 2),
        paper=dict(zip(recipes, paper, strict=True)), paper_importance=dict(zip(recipes, importance, strict=True)),
    )  # fmt: skip


def _timing(bank: Experiment) -> Experiment:
    return Experiment(
        "timing", "training and scoring of 500 BANK rows, as ratios", bank.preset, SECONDS, bank.recipes,
        files=bank.files, is_unit_interval=True, folder=bank.name, methods=bank.methods,
        paper={"cfm": 2.1 * 60, "maf": 2.6 * 60, "roundtrip": 6.1 * 60, "realnvp": 43.6 * 60, "resflow": 756 * 60,
               PAPER: 64.2 * 60},
    )  # fmt: skip


def _all() -> list[Experiment]:
    bank = _uci(
        "bank", "UCI Bank Marketing, 17 columns", ("bank/bank-full.csv",),
        (14.38, -53.15, 27.21, 23.68, 10.23, 35.74, 41.43), unit=True,
    )  # fmt: skip
    return [
        Experiment(
            "involute", "a spiral in two columns", "paper-involute", SPEARMAN, _recipes("paper-involute"),
            simulator="involute", paper={PAPER: 0.959, "roundtrip": 0.898},
        ),
        *map(_mixture, DIMENSIONS),
        bank,
        _uci(
            "parktele", "UCI Parkinsons Telemonitoring, 14 columns", ("parktele/parkinsons_updrs.data",),
            (34.34, 36.99, 36.45, 36.25, 16.32, 49.64, 59.54), unit=True,
        ),
        _uci(
            "pendigits10", "UCI Pen-Based Digits, 16 columns given 10 classes",
            ("pendigits10/pendigits.tra", "pendigits10/pendigits.tes"),
            (-54.56, -52.29, -54.59, -47.77, -54.40, -48.59, -28.76),
        ),
        _uci(
            "vehicle", "Statlog Vehicle, 18 columns given 4 classes",
            tuple(f"vehicle/xa{letter}.dat" for letter in "abcdefghi"),
            (-51.84, -52.30, -63.03, -45.97, -49.65, -40.10, -33.54),
        ),
        _uci(
            "eegeye", "UCI EEG Eye State, 14 columns given 2 classes", ("eegeye/EEG Eye State.arff",),
            (-50.25, -49.47, -49.87, -48.33, -51.45, -44.83, -41.15),
        ),
        _odds("shuttle", "ODDS Shuttle, 9 columns, 7 % outliers",
              (0.953, 0.958, 0.735, 0.861, 0.932, 0.477, 0.958, 0.965)),
        _odds("cardio", "ODDS Cardio, 21 columns, 10 % outliers",
              (0.533, 0.556, 0.178, 0.200, 0.511, 0.244, 0.311, 0.556)),
        _odds("pendigits", "ODDS Pendigits, 16 columns, 2 % outliers",
              (0.154, 0.128, 0.0, 0.0, 0.0, 0.0, 0.0, 0.180)),
        _mnist(),
        _ablation_2d(),
        _ablation_15d(),
        _budget_sweep(),
        _timing(bank),
    ]  # fmt: skip


EXPERIMENTS: Mapping[str, Experiment] = {experiment.name: experiment for experiment in _all()}


def experiment_named(name: str, dim: int | None) -> Experiment:
    """The experiment of that name; `gmm` needs a dimension."""
    if name == "gmm":
        if dim not in DIMENSIONS:
            raise BadUsage(
                "gmm needs its number of columns" if dim is None else f"there is no experiment gmm with {dim} columns",
                found=f"columns: {', '.join(map(str, DIMENSIONS))}",
                hint="for instance `bayesnde reproduce gmm --dim 15`",
            )
        name = f"gmm-{dim}"
    elif dim is not None:
        raise BadUsage(f"--dim is for gmm, not for {name}", found=f"--dim {dim}", hint="leave --dim out")
    if name not in EXPERIMENTS:
        names = ["gmm", *EXPERIMENTS]
        raise BadUsage(
            f"there is no experiment '{name}'",
            found=f"experiments: {', '.join(EXPERIMENTS)}",
            hint=nearest_hint(name, names, "see `bayesnde reproduce --list`"),
        )
    return EXPERIMENTS[name]


def typed(experiment: Experiment) -> str:
    """What the user types for an experiment."""
    return experiment.name.replace("gmm-", "gmm --dim ")
