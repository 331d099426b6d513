"""The model as a scikit-learn estimator: the stages and the run directory of the command line, called from Python."""

import functools
import io
import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
from sklearn.base import BaseEstimator, DensityMixin
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted

from bayesnde_cli.artifacts.layout import RunLayout
from bayesnde_cli.artifacts.tables import read_table
from bayesnde_cli.artifacts.upstream import require
from bayesnde_cli.cli.console import Console
from bayesnde_cli.config import (
    DensityConfig,
    PosteriorConfig,
    PrepareConfig,
    RefineConfig,
    StageConfig,
    WarmstartConfig,
    resolve,
)
from bayesnde_cli.data.kinds import Kind
from bayesnde_cli.data.readers.table import made_up_names
from bayesnde_cli.data.splits import MIN_ROWS
from bayesnde_cli.errors import BadConfig, BadInput, BadUsage, SettingsDiffer, StaleArtifact
from bayesnde_cli.estimator.run_folder import RunFolder
from bayesnde_cli.estimator.tables import as_kind, checked, class_word, frame_kind, with_classes, written
from bayesnde_cli.stages import applying, prepare, scoring, training
from bayesnde_cli.stages.reading import read_schema
from bayesnde_cli.stages.reporting import counted
from bayesnde_cli.stages.scoring.density_table import DENSITY_SCHEMA, DENSITY_VERSION
from bayesnde_cli.stages.scoring.engine import Opened

# The column that the classes of a conditional model have in a run of ours.
CLASS_COLUMN = "y"
_OTHER_RUN = "give another directory as `run`, or remove this one to make it anew"
ConfigT = TypeVar("ConfigT", bound=StageConfig)


def _in_scikit_learns_words(method: Callable[..., Any]) -> Callable[..., Any]:
    """What is wrong with the caller's data or settings is a `ValueError` in scikit-learn; the message is ours."""

    @functools.wraps(method)
    def translated(*args: Any, **kwargs: Any) -> Any:
        try:
            return method(*args, **kwargs)
        except (BadInput, BadConfig, BadUsage, SettingsDiffer) as error:
            hint = _OTHER_RUN if isinstance(error, SettingsDiffer) else error.hint
            words = type(error)(error.what, found=error.found, hint=hint)
            raise ValueError(str(words).removeprefix("error: ").replace("--set", "settings")) from error

    return translated


class UnreliableDensity(UserWarning):
    """Some log-densities cannot be relied on; `density_table` says which, and why."""


class BayesNDE(DensityMixin, BaseEstimator):
    """A density estimator whose log-densities come with their Monte-Carlo error and a verdict.

    Fitting is `prepare`, `warmstart` and `refine` of the command line in a run directory, scoring is `density`: the
    same files, settings and numbers. An interrupted `fit` with a `run` goes on when it is called again.

    Parameters
    ----------
    run : path, optional
        The run directory. By default a temporary one, which goes with the object; see `save`.
    conditional : bool
        Model p(x | y): `y` holds the classes, in `fit` and in every score. Otherwise `y` is ignored.
    preset : str, optional
        A preset of the command line, such as `"fast"`.
    settings : mapping, optional
        Settings of the stages by `"stage.key"`, as `--set` takes them: `{"refine.epochs": 50}`.
    random_state : int, RandomState or None
        The seed of the run; None is 0.
    verbose : bool
        Show progress on standard error.

    Attributes
    ----------
    run_ : Path
        The run directory, which every command of `bayesnde` takes with `--run`.
    classes_ : array of int64 or str
        The classes of a conditional model: whole numbers, or words.
    n_features_in_, feature_names_in_
        As everywhere in scikit-learn.
    """

    def __init__(
        self, run: str | Path | None = None, *, conditional: bool = False, preset: str | None = None,
        settings: Mapping[str, Any] | None = None, random_state: Any = None, verbose: bool = False,
    ) -> None:  # fmt: skip
        self.run = run
        self.conditional = conditional
        self.preset = preset
        self.settings = settings
        self.random_state = random_state
        self.verbose = verbose

    @_in_scikit_learns_words
    def fit(self, X: Any, y: Any = None) -> "BayesNDE":
        """Fit the model to the rows of an array or a data frame; a part of them chooses the epoch, another is unused.

        Which rows these are is up to the settings `prepare.split` and `prepare.split_method`.
        """
        seed = None if self.random_state is None else _seed(self.random_state)
        class_column = CLASS_COLUMN if self.conditional else None
        config = self._config(PrepareConfig, seed=seed, condition=class_column)
        warmstart, refine = self._config(WarmstartConfig), self._config(RefineConfig)
        rows = checked(self, X, names=None, allows_missing=config.missing == "drop", min_rows=MIN_ROWS)
        folder = RunFolder(self.run)
        layout, report = RunLayout(folder.path), self._report()
        with written(self._with_classes(rows, y, class_column)) as file:
            prepare.run(layout, [file], config, report, stdin=io.BytesIO(), is_restart=False)
        training.run_warmstart(layout, warmstart, report, is_restart=False, is_verbose=False)
        training.run_refine(layout, refine, report, is_restart=False, is_verbose=False)
        self._frame_kind, self._names = frame_kind(X), rows.column_names
        self._open(folder)
        return self

    def score_samples(self, X: Any, y: Any = None, *, return_se: bool = False) -> Any:
        """The log-density of each row, (rows,), in the units of X; with `return_se`, and its Monte-Carlo error.

        NaN is a missing cell: such a row gets the density of the others. Rows that cannot be relied on are counted in
        an `UnreliableDensity` warning.
        """
        table = self._scored(X, y)
        log_density = table["log_density"].to_numpy()
        return (log_density, table["mc_se"].to_numpy()) if return_se else log_density

    def score(self, X: Any, y: Any = None) -> float:
        """The mean log-density of the rows without missing cells where it is finite, in nats and in the units of X."""
        table = self._scored(X, y)
        is_whole = table["n_observed"].to_numpy() == len(read_schema(RunLayout(self.run_)).features)
        if not is_whole.any():
            raise ValueError("every row has missing cells: their densities are of other quantities, and have no mean")
        log_density = table["log_density"].to_numpy()[is_whole]
        is_finite = np.isfinite(log_density)
        return float(np.mean(log_density[is_finite])) if is_finite.any() else float("nan")

    def _scored(self, X: Any, y: Any) -> pa.Table:
        """The densities of the rows, with a warning if some cannot be relied on."""
        table = self.density_table(X, y)
        n_doubtful = table.num_rows - int(np.sum(table["reliable"].to_numpy()))
        if n_doubtful:
            warnings.warn(
                f"{n_doubtful:,} of {counted(table.num_rows, 'log-density', 'log-densities')} cannot be relied on; "
                "density_table(X) has the verdicts",
                UnreliableDensity,
                stacklevel=3,
            )
        return table

    @_in_scikit_learns_words
    def density_table(self, X: Any, y: Any = None) -> pa.Table:
        """All that `bayesnde density` finds out about each row: log-density, error, verdict, diagnostics.

        Rows that were scored before with the same settings are not scored again: the table is in the run directory.
        """
        check_is_fitted(self, "run_")
        rows = checked(self, X, names=self._names, allows_missing=True, min_rows=1)
        layout = RunLayout(self.run_)
        with written(self._with_classes(rows, y, read_schema(layout).roles.condition)) as file:
            asked, config = scoring.Asked(data=[file]), self._config(DensityConfig)
            try:
                scored = scoring.run_density(layout, asked, config, self._report(), factory=self._engine)
            except (SettingsDiffer, StaleArtifact):
                anew = replace(asked, is_restart=True)
                scored = scoring.run_density(layout, anew, config, self._report(), factory=self._engine)
        assert isinstance(scored, scoring.Scored)  # no shard was asked for
        return read_table(Path(scored.file), DENSITY_SCHEMA, schema_version=DENSITY_VERSION)

    @_in_scikit_learns_words
    def sample(self, n_samples: int = 1, *, condition: Any = None, random_state: Any = None) -> Any:
        """New rows of the model, as X was given: an array or a data frame; with the classes, if it is conditional.

        Of a run that was loaded: a pandas data frame (without pandas, an Arrow table) if it has words, or a header.

        A conditional model is asked for one class with `condition`, or gives all as often as in training. The same
        call gives the same rows; another `random_state` gives others.
        """
        from bayesnde_cli.stages.applying.fitted_run import fitted_run
        from bayesnde_cli.stages.applying.sample import BLOCK_ROWS, RowMaker

        check_is_fitted(self, "run_")
        if n_samples < 1:
            raise ValueError(f"a sample has one row at least, found n_samples={n_samples}")
        seed = None if random_state is None else _seed(random_state)
        run = fitted_run(RunLayout(self.run_), self._config(DensityConfig, seed=seed))
        chosen = () if condition is None else (run.class_index(class_word(condition)),)
        maker = RowMaker(run, applying.open_prior(run.layout, run.config, BLOCK_ROWS), chosen)
        table = pa.Table.from_batches(maker.batches(n_samples))
        rows = as_kind(table.select([feature.name for feature in run.schema.features]), self._frame_kind)
        return (rows, table[run.schema.roles.condition].to_numpy()) if run.classes else rows

    def save(self, run: str | Path) -> None:
        """Copy the run to a directory that is not there yet; `load` opens it, and so does the command line."""
        check_is_fitted(self, "run_")
        self._folder.copy_to(Path(run))

    @classmethod
    def load(cls, run: str | Path) -> "BayesNDE":
        """The model of a run directory, no matter whether the command line or `fit` made it."""
        layout = RunLayout(Path(run))
        require(layout, "refine")
        schema = read_schema(layout)
        estimator = cls(run, conditional=bool(schema.classes))
        names = [feature.name for feature in schema.features]
        estimator.n_features_in_, estimator._names = len(names), names
        has_names = names != list(made_up_names(len(names)))
        has_words = any(feature.kind is Kind.CATEGORICAL for feature in schema.features)
        estimator._frame_kind = "pandas" if has_names or has_words else None
        if has_names:
            estimator.feature_names_in_ = np.array(names, dtype=object)
        estimator._open(RunFolder(run))
        return estimator

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "run_")

    def __getstate__(self) -> dict[str, Any]:
        state = dict(super().__getstate__())
        state.pop("_engines", None)  # compiled programs
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        if "_folder" in state:
            self._open(self._folder)

    def _open(self, folder: RunFolder) -> None:
        self._folder = folder
        self._engines: dict[PosteriorConfig, Opened] = {}
        self.run_ = folder.path
        schema = read_schema(RunLayout(self.run_))
        if schema.classes:
            self.classes_ = np.array(schema.classes, np.int64 if schema.classes_are_whole else None)

    def _engine(self, layout: RunLayout, config: PosteriorConfig) -> Opened:
        """The engine of these settings, opened once."""
        if config not in self._engines:
            self._engines[config] = scoring.open_engine(layout, config)
        return self._engines[config]

    def _config(self, config_class: type[ConfigT], **flags: Any) -> ConfigT:
        assignments = _assignments(self.settings)
        return resolve(config_class, flags=flags, environ={}, preset=self.preset, assignments=assignments)

    def _with_classes(self, rows: pa.Table, y: Any, column: str | None) -> pa.Table:
        if column is None:
            return rows
        if y is None:
            raise ValueError("a conditional model needs y, the classes of the rows")
        return with_classes(rows, y, column)

    def _report(self) -> Console:
        return _Report(quiet=not self.verbose)


class _Report(Console):
    """What the command line would show, except that a warning is one of Python's."""

    def warn(self, text: str) -> None:
        warnings.warn(text, stacklevel=2)


def _seed(random_state: Any) -> int:
    if isinstance(random_state, int | np.integer):
        return int(random_state)
    return int(check_random_state(random_state).randint(2**31 - 1))


def _assignments(settings: Any) -> list[str]:
    """Settings as `--set` takes them."""
    if settings is None:
        return []
    if not isinstance(settings, Mapping) or not all("." in str(name) for name in settings):
        raise BadConfig(
            'settings is a mapping from "stage.key" to a value',
            found=f"found: {settings!r}",
            hint='for instance settings={"refine.epochs": 50}',
        )
    return [f"{name}={_text(value)}" for name, value in settings.items()]


def _text(value: Any) -> str:
    return ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
