"""What a report is made from: plain values and arrays. Whatever was not known when it was made is None or empty."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from bayesnde_cli.report.image_sheet import SheetRow


@dataclass(frozen=True)
class Subject:
    """What the report is about, and how a command names it."""

    title: str
    set_name: str
    version: str  # of bayesnde
    run_option: str = ""  # as typed in a shell: `--run results`; nothing for the default
    data_argument: str = ""  # as typed in a shell: the files of a set that is no split of the run
    table_argument: str = ""  # as typed in a shell: the files that `prepare` read
    n_train: int = 0
    n_validation: int = 0
    n_rows: int = 0  # of the set
    n_features: int = 0
    classes: Mapping[str, int] = field(default_factory=dict)  # and the training rows of each
    facts: tuple[tuple[str, str], ...] = ()  # name and value, for the head of the page


@dataclass(frozen=True)
class LossCurve:
    """The loss of one phase of training, in the model's space."""

    phase: str
    step: np.ndarray  # (records,)
    loss: np.ndarray  # (records,)


@dataclass(frozen=True)
class Training:
    """A training stage: its losses, and its looks at the validation rows. Steps count on over its phases."""

    stage: str
    losses: tuple[LossCurve, ...]
    step: np.ndarray  # (looks,)
    log_density: np.ndarray  # (looks,) mean over validation rows, units of the file
    se: np.ndarray  # (looks,)
    chosen: int  # the look whose weights were kept
    selected_by: str = "marginal"
    n_epochs: int | None = None  # of its last phase

    @property
    def chosen_log_density(self) -> float:
        return float(self.log_density[self.chosen])

    @property
    def chosen_se(self) -> float:
        return float(self.se[self.chosen])


@dataclass(frozen=True)
class ScoredRows:
    """Rows of the set with what `density` found, (rows,) each: all of them, or a sample of a large set."""

    log_density: np.ndarray  # NaN for a row with missing cells: the density of the others is another quantity
    mc_se: np.ndarray
    rhat: np.ndarray
    ess: np.ndarray
    verdict: np.ndarray  # of str
    truth: np.ndarray | None = None
    is_outlier: np.ndarray | None = None  # bool


@dataclass(frozen=True)
class Column:
    """One feature in the units of the file; of categories, their positions."""

    name: str
    real: np.ndarray  # (rows,) of the scored rows, in their order
    generated: np.ndarray  # (generated rows,)
    categories: tuple[str, ...] = ()
    is_whole: bool = False  # a lattice: whole numbers


@dataclass(frozen=True)
class PairMap:
    """The estimated density of two of the columns on a grid, the others integrated out; averages over its cells."""

    x_index: int  # position among the columns
    y_index: int
    x_edges: np.ndarray  # (nx + 1,)
    y_edges: np.ndarray  # (ny + 1,)
    density: np.ndarray  # (ny, nx)


@dataclass(frozen=True)
class ImageSheets:
    """Images to be looked at: a row of a sheet for each class, or several of all."""

    size: str  # in words
    white: int  # the value that is shown white
    real: tuple[SheetRow, ...]  # some of the set
    generated: tuple[SheetRow, ...]
    highest: tuple[SheetRow, ...]  # of the set, by density
    lowest: tuple[SheetRow, ...]


@dataclass(frozen=True)
class Limits:
    """What a row must meet to be reliable; of R-hat and effective draws, also where importance sampling is exact."""

    rhat: float = 1.05
    ess: float = 40.0
    rhat_of_witnesses: float = 1.2
    ess_of_witnesses: float = 20.0
    mc_se: float = 0.05


@dataclass(frozen=True)
class DoubtfulColumns:
    """Columns in which a continuous density is not defined."""

    spikes: tuple[tuple[str, float], ...] = ()  # name, and the share of rows that have one and the same value
    linear: tuple[tuple[str, tuple[str, ...]], ...] = ()  # name, and the columns that determine it


@dataclass(frozen=True)
class TextTable:
    """A table of words."""

    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str = ""


@dataclass(frozen=True)
class ReportData:
    """Everything that the page shows."""

    subject: Subject
    metrics: Mapping[str, Any] = field(default_factory=dict)  # metrics.json
    training: tuple[Training, ...] = ()
    rows: ScoredRows | None = None
    limits: Limits = Limits()
    # Log-densities of rows that the model was fitted to and chosen by, by the estimator that chose: name -> (rows,).
    seen_log_density: Mapping[str, np.ndarray] = field(default_factory=dict)
    columns: tuple[Column, ...] = ()  # those shown
    pair_maps: tuple[PairMap, ...] = ()
    images: ImageSheets | None = None  # of a run of images, in place of columns
    doubtful: DoubtfulColumns = DoubtfulColumns()
    lowest: TextTable | None = None
    settings: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # by stage
    chosen: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # those that are not the defaults
    fast: Mapping[str, Sequence[str]] = field(default_factory=dict)  # the names of those that the preset fast set
    fingerprints: tuple[tuple[str, str], ...] = ()  # file and SHA-256
    versions: Mapping[str, str] = field(default_factory=dict)
