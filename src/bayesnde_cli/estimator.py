"""The model as a scikit-learn estimator: the stages and the run directory of the command line, called from Python."""

import contextlib
import functools
import io
import shutil
import tempfile
import warnings
import weakref
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from sklearn.base import BaseEstimator, DensityMixin
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_array, check_is_fitted, column_or_1d, validate_data

from bayesnde_cli.cli.console import Console
from bayesnde_cli.errors import BadConfig, BadInput, BadUsage, SettingsDiffer, StaleArtifact
from bayesnde_cli.formatting import counted
from bayesnde_cli.runs.layout import RunLayout
from bayesnde_cli.runs.manifest import require
from bayesnde_cli.runs.parquet_files import read_table
from bayesnde_cli.settings import resolve
from bayesnde_cli.settings.declare import StageSettings
from bayesnde_cli.settings.stage_settings import STAGE_SETTINGS
from bayesnde_cli.stages import loading, prepare, score, scoring_job, train
from bayesnde_cli.tables.columns import Kind
from bayesnde_cli.tables.model_rows import read_schema
from bayesnde_cli.tables.sources import made_up_names, normalise_words, sources_of
from bayesnde_cli.tables.splits import MIN_ROWS

# The column of the classes in the run of a conditional model.
_CLASS_COLUMN = "y"
_OTHER_RUN = "give another directory as `run`, or remove this one to fit again"


class UnreliableDensity(UserWarning):
    """Some log-densities are not reliable; `density_table` says which, and why."""


def _raise_value_errors(method: Callable[..., Any]) -> Callable[..., Any]:
    """The method with `ValueError`, as in scikit-learn, for errors in the caller's data or settings."""

    @functools.wraps(method)
    def translated(*args: Any, **kwargs: Any) -> Any:
        try:
            return method(*args, **kwargs)
        except (BadInput, BadConfig, BadUsage, SettingsDiffer) as error:
            hint = _OTHER_RUN if isinstance(error, SettingsDiffer) else error.hint
            words = type(error)(error.what, found=error.found, hint=hint)
            raise ValueError(str(words).removeprefix("error: ").replace("--set", "settings")) from error

    return translated


class BayesNDE(DensityMixin, BaseEstimator):
    """A density estimator whose log-densities come with their Monte-Carlo error and a verdict.

    Fitting is `prepare`, `warmstart` and `refine` of the command line in a run directory, scoring is `density`: the
    same files, settings and numbers. Call an interrupted `fit` with a `run` again to resume it.

    Parameters
    ----------
    run : path, optional
        The run directory. By default a temporary one, which is removed with the object; see `save`.
    conditional : bool
        Model p(x | y): `y` holds the classes, when fitting and when scoring. Otherwise `y` is ignored.
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
        As in every estimator of scikit-learn.
    """

    def __init__(
        self,
        run: str | Path | None = None,
        *,
        conditional: bool = False,
        preset: str | None = None,
        settings: Mapping[str, Any] | None = None,
        random_state: Any = None,
        verbose: bool = False,
    ) -> None:
        self.run = run
        self.conditional = conditional
        self.preset = preset
        self.settings = settings
        self.random_state = random_state
        self.verbose = verbose

    @_raise_value_errors
    def fit(self, X: Any, y: Any = None) -> "BayesNDE":
        """Fit the model to the rows of an array or a data frame.

        Some rows select the checkpoint and others are set aside for testing, as the settings `prepare.split` and
        `prepare.split_method` say.
        """
        seed = None if self.random_state is None else _to_seed(self.random_state)
        class_column = _CLASS_COLUMN if self.conditional else None
        config = self._resolve("prepare", seed=seed, condition=class_column)
        warmstart, refine = self._resolve("warmstart"), self._resolve("refine")
        rows = _check_rows(self, X, names=None, allow_missing=config.missing == "drop", min_rows=MIN_ROWS)
        folder, report = _RunFolder(self.run), _Report(quiet=not self.verbose)
        layout = RunLayout(folder.path)
        with _write_file(rows, y, class_column) as file:
            prepare.run_prepare(layout, [file], sources_of([file]), config, report)
        train.run_warmstart(layout, warmstart, report)
        train.run_refine(layout, refine, report)
        self._frame_package = type(X).__module__.partition(".")[0] if hasattr(X, "columns") else None
        self._names = rows.column_names
        self._open(folder)
        return self

    def score_samples(self, X: Any, y: Any = None, *, return_se: bool = False) -> Any:
        """The log-density of each row, (rows,), in the units of X; with `return_se`, also its Monte-Carlo error.

        NaN is a missing cell: such a row gets the density of its other cells. An `UnreliableDensity` warning counts the
        rows that are not reliable.
        """
        table = self._table_with_doubts(X, y)
        log_density = table["log_density"].to_numpy()
        return (log_density, table["mc_se"].to_numpy()) if return_se else log_density

    def score(self, X: Any, y: Any = None) -> float:
        """The mean log-density, in nats and in the units of X, of complete rows where it is finite."""
        table = self._table_with_doubts(X, y)
        is_complete = table["n_observed"].to_numpy() == len(read_schema(RunLayout(self.run_)).features)
        if not is_complete.any():
            raise ValueError("every row has missing cells: their densities are different quantities and have no mean")
        log_density = table["log_density"].to_numpy()[is_complete]
        is_finite = np.isfinite(log_density)
        return float(np.mean(log_density[is_finite])) if is_finite.any() else float("nan")

    def _table_with_doubts(self, X: Any, y: Any) -> pa.Table:
        table = self.density_table(X, y)
        n_doubtful = table.num_rows - int(np.sum(table["reliable"].to_numpy()))
        if n_doubtful:
            rows = counted(table.num_rows, "log-density", "log-densities")
            text = f"{n_doubtful:,} of {rows} are not reliable; density_table(X) has the verdicts"
            warnings.warn(text, UnreliableDensity, stacklevel=3)
        return table

    @_raise_value_errors
    def density_table(self, X: Any, y: Any = None) -> pa.Table:
        """The table that `bayesnde density` writes: log-density, error, verdict and diagnostics of each row.

        It is kept in the run directory: rows that were scored with the same settings are not scored again.
        """
        check_is_fitted(self, "run_")
        rows = _check_rows(self, X, names=self._names, allow_missing=True, min_rows=1)
        layout, config = RunLayout(self.run_), self._resolve("density")
        with _write_file(rows, y, read_schema(layout).condition) as file:
            asked, report = scoring_job.Asked(data=[file]), _Report(quiet=not self.verbose)
            try:
                found = score.run_density(layout, asked, config, report, factory=self._engine)
            except (SettingsDiffer, StaleArtifact):
                asked = replace(asked, is_restart=True)
                found = score.run_density(layout, asked, config, report, factory=self._engine)
        return read_table(layout.density_file(found.set_name), score.DENSITY_SCHEMA)

    @_raise_value_errors
    def sample(self, n_samples: int = 1, *, condition: Any = None, random_state: Any = None) -> Any:
        """New rows of the model, in the type of X: an array or a data frame. A conditional model also returns classes.

        `condition` selects one class; by default, classes are as frequent as in training. Equal calls give equal rows;
        another `random_state` gives others. A loaded run returns a pandas data frame (without pandas, an Arrow table)
        if it has text columns or a header.
        """
        from bayesnde_cli.answers import fitted_run
        from bayesnde_cli.answers.sample import BLOCK_ROWS, Sampler

        check_is_fitted(self, "run_")
        if n_samples < 1:
            raise ValueError(f"n_samples must be at least 1, found n_samples={n_samples}")
        seed = None if random_state is None else _to_seed(random_state)
        run = fitted_run(RunLayout(self.run_), self._resolve("density", seed=seed))
        classes: tuple[int, ...] = ()
        if condition is not None:  # spelled as in a column: True is `true`, 1.0 is `1`
            classes = (run.class_index(str(normalise_words(pa.array(np.array([condition])).cast(pa.string()))[0])),)
        sampler = Sampler(run, loading.open_prior(run.layout, run.config, BLOCK_ROWS), classes)
        table = pa.Table.from_batches(sampler.batches(n_samples))
        rows = _to_package(table.select([feature.name for feature in run.schema.features]), self._frame_package)
        return (rows, table[run.schema.condition].to_numpy()) if run.classes else rows

    def save(self, run: str | Path) -> None:
        """Copy the run to a new directory; `load` and the command line can open it."""
        check_is_fitted(self, "run_")
        path = Path(run)
        if path.exists():
            raise FileExistsError(f"{path} exists: choose another place for the run")
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".bayesnde-", dir=path.parent) as folder:  # all files or none
            Path(shutil.copytree(self.run_, Path(folder) / "run")).rename(path)

    @classmethod
    def load(cls, run: str | Path) -> "BayesNDE":
        """The model of a run directory, made by the command line or by `fit`."""
        layout = RunLayout(Path(run))
        require(layout, "refine")
        schema = read_schema(layout)
        estimator = cls(run, conditional=bool(schema.classes))
        names = [feature.name for feature in schema.features]
        estimator.n_features_in_, estimator._names = len(names), names
        has_names = names != list(made_up_names(len(names)))
        has_words = any(feature.kind is Kind.CATEGORICAL for feature in schema.features)
        estimator._frame_package = "pandas" if has_names or has_words else None
        if has_names:
            estimator.feature_names_in_ = np.array(names, dtype=object)
        estimator._open(_RunFolder(run))
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

    def _open(self, folder: "_RunFolder") -> None:
        self._folder = folder
        self._engines: dict[StageSettings, loading.Opened] = {}
        self.run_ = folder.path
        schema = read_schema(RunLayout(self.run_))
        if schema.classes:
            self.classes_ = np.array(schema.classes, np.int64 if schema.classes_are_whole else None)

    def _engine(self, layout: RunLayout, config: Any) -> loading.Opened:
        """The engine of these settings, opened once."""
        if config not in self._engines:
            self._engines[config] = loading.open_engine(layout, config)
        return self._engines[config]

    def _resolve(self, stage: str, **flags: Any) -> Any:
        """The settings of a stage."""
        settings = {} if self.settings is None else self.settings
        if not isinstance(settings, Mapping) or not all("." in str(name) for name in settings):
            hint = 'for instance settings={"refine.epochs": 50}'
            raise BadConfig('settings must map "stage.key" to a value', found=f"found: {settings!r}", hint=hint)
        assignments = [
            f"{name}={','.join(map(str, value)) if isinstance(value, list | tuple) else value}"
            for name, value in settings.items()
        ]
        return resolve(STAGE_SETTINGS[stage], flags=flags, environ={}, preset=self.preset, assignments=assignments)


class _Report(Console):
    """The console of the command line, with Python's warnings."""

    def warn(self, text: str) -> None:
        warnings.warn(text, stacklevel=2)


class _RunFolder:
    """A run directory: the user's, or a temporary one, whose files are pickled with the object: they are the model."""

    def __init__(self, path: str | Path | None) -> None:
        self._is_temporary = path is None
        self.path = Path(tempfile.mkdtemp(prefix="bayesnde-run-") if path is None else path)
        if self._is_temporary:
            weakref.finalize(self, shutil.rmtree, self.path, ignore_errors=True)

    def __getstate__(self) -> dict[str, Any]:
        if not self._is_temporary:
            return {"path": str(self.path)}
        packed = io.BytesIO()
        with zipfile.ZipFile(packed, "w") as archive:
            for file in sorted(self.path.rglob("*")):
                archive.write(file, file.relative_to(self.path))
        return {"path": None, "files": packed.getvalue()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        _RunFolder.__init__(self, state["path"])
        if self._is_temporary:
            with zipfile.ZipFile(io.BytesIO(state["files"])) as archive:
                archive.extractall(self.path)


def _check_rows(
    estimator: BayesNDE, X: Any, *, names: Sequence[str] | None, allow_missing: bool, min_rows: int
) -> pa.Table:
    """The rows, checked as scikit-learn does: an array of numbers, or a data frame, which may hold words.

    New rows must have the columns `names` of the fitted ones. An array has them by position, and so has a data frame
    without any of these names. Without `names` the columns of an array are c1, c2, …
    """
    if hasattr(X, "columns"):
        validate_data(estimator, X, reset=names is None, skip_check_array=True)
        if isinstance(X, pa.Table):
            table = X
        elif hasattr(X, "to_arrow"):  # polars
            table = X.to_arrow()
        else:
            table = pa.Table.from_pandas(X, preserve_index=False).replace_schema_metadata(None)
        return table if names is None or set(names) & set(table.column_names) else table.rename_columns(list(names))
    array = validate_data(
        estimator,
        X,
        reset=names is None,
        dtype=np.float64,
        ensure_min_samples=min_rows,
        ensure_all_finite="allow-nan" if allow_missing else True,
    )
    columns = zip(names or made_up_names(array.shape[1]), array.T, strict=True)
    return pa.table({name: np.ascontiguousarray(column) for name, column in columns})


@contextlib.contextmanager
def _write_file(rows: pa.Table, y: Any, class_column: str | None) -> Iterator[Path]:
    """A temporary file with the rows and their classes."""
    if class_column is not None:
        if y is None:
            raise ValueError("a conditional model needs y, the classes of the rows")
        if class_column in rows.column_names:
            raise ValueError(f"X has a column '{class_column}', which holds the classes: rename or remove it")
        classes = column_or_1d(check_array(y, ensure_2d=False, dtype=None, ensure_all_finite=False))
        if len(classes) != rows.num_rows:
            raise ValueError(f"X has {rows.num_rows} rows, y has {len(classes)} classes")
        rows = rows.append_column(class_column, pa.array(classes))
    with tempfile.TemporaryDirectory(prefix="bayesnde-") as folder:
        file = Path(folder) / "rows.parquet"
        pq.write_table(rows, file)
        yield file


def _to_package(table: pa.Table, package: str | None) -> Any:
    """A table as a data frame of a package (an Arrow table if pandas is not installed), or as an array of numbers."""
    if package is None:
        return np.stack([column.to_numpy() for column in table.columns], axis=1).astype(np.float64)
    if package == "polars":
        import polars

        return polars.from_arrow(table)
    return table.to_pandas() if package == "pandas" and find_spec("pandas") else table


def _to_seed(random_state: Any) -> int:
    if isinstance(random_state, int | np.integer):
        return int(random_state)
    return int(check_random_state(random_state).randint(2**31 - 1))
