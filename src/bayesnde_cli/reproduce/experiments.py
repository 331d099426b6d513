"""The paper's experiments: the table of `experiments.toml`, their raw files, the requested arms, settings and results.

An arm is one method with one seed: one of our recipes, or a competitor. Nothing heavy is imported here, so that the
list of experiments appears at once.
"""

import io
import tomllib
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias, TypeVar

from bayesnde_cli import stopping
from bayesnde_cli.errors import BadArtifact, BadInput, BadUsage, nearest_hint
from bayesnde_cli.formatting import Report, aligned, duration
from bayesnde_cli.runs.blocks import Shard
from bayesnde_cli.runs.files import sha256_bytes, sha256_file, write_bytes
from bayesnde_cli.settings import read_preset, resolve, stage_settings
from bayesnde_cli.settings.declare import StageSettings
from bayesnde_cli.settings.stage_settings import PipelineSettings

ALL, DEFAULT, PAPER = "all", "default", "paper"
DIMENSIONS = (2, 5, 10, 15, 20, 25)
BUDGETS = (100, 200, 400, 800, 1600)
# Figures of a result.
LOG_DENSITY, SPEARMAN, PRECISION, SECONDS = "mean_log_density", "spearman", "precision_at_k", "seconds"
ACCURACY = "accuracy"
# Schema name of the table with a competitor's scores.
SCORES_SCHEMA = "competitor_scores"
# Longest wait for an archive of raw files.
_TIMEOUT_SECONDS = 60

ConfigT = TypeVar("ConfigT", bound=StageSettings)
Key: TypeAlias = tuple[str, str, int]  # of an arm: experiment, method, seed


@dataclass(frozen=True)
class Recipe:
    """How we fit and score; `experiments.toml` explains the fields."""

    presets: tuple[str, ...] = ()
    settings: tuple[str, ...] = ()
    base: str | None = None
    fixed: tuple[str, ...] = ()


@dataclass(frozen=True)
class Experiment:
    """One experiment; `experiments.toml` explains the fields."""

    name: str
    summary: str
    preset: str
    figure: str
    recipes: Mapping[str, Recipe]
    first: tuple[str, ...] = (DEFAULT,)
    files: tuple[str, ...] = ()  # below the data directory
    simulator: str | None = None
    dim: int | None = None
    methods: tuple[str, ...] = ()
    seeds: tuple[int, ...] = (0,)
    test_rows: int | None = 500  # None: all
    is_unit_interval: bool = False  # log-densities of the rows scaled to [0, 1], as in the paper
    folder: str = ""
    picture: str = ""
    map_title: str = ""
    paper: Mapping[str, float] = field(default_factory=dict)
    paper_importance: Mapping[str, float] = field(default_factory=dict)  # by importance sampling, not the bridge

    @property
    def folder_name(self) -> str:
        return self.folder or self.name

    @property
    def all_methods(self) -> tuple[str, ...]:
        """Our recipes, then competitors."""
        return *self.recipes, *self.methods

    @property
    def command(self) -> str:
        """The words that name it on the command line."""
        return self.name.replace("gmm-", "gmm --dim ")

    def method_name(self, method: str) -> str:
        """The name of a recipe or competitor for people."""
        return f"ours, {method}" if method in self.recipes else str(TABLE["names"].get(method, method))

    def as_dict(self) -> dict[str, Any]:
        plain = {name: getattr(self, name) for name in ("name", "summary", "figure", "paper", "test_rows")}
        return plain | {name: list(getattr(self, name)) for name in ("seeds", "recipes", "methods", "files")}


def _read_experiment(name: str) -> Experiment:
    own = TABLE["experiments"][name]
    entry = {**TABLE["experiments"].get(own.get("folder"), {}), **own}
    changes = entry.pop("changes", {})

    def recipe(of: str) -> Recipe:
        parts = {**TABLE["recipes"][of], **changes.get(of, {})}
        like = recipe(parts["like"]) if "like" in parts else Recipe()
        presets = tuple(entry["preset"] if preset == "PRESET" else preset for preset in parts.get("presets", ()))
        settings = (*like.settings, *parts.get("settings", ()))
        return Recipe(presets or like.presets, settings, parts.get("base"), tuple(parts.get("fixed", ())))

    recipes = {of: recipe(of) for of in entry.pop("recipes", (DEFAULT, PAPER))}
    methods = TABLE["methods"][entry.pop("methods", "density")]
    lists = {key: tuple(value) for key, value in entry.items() if isinstance(value, list)}
    if lists.get("first") == (ALL,):
        lists["first"] = tuple(recipes)
    if entry.get("test_rows") == ALL:
        entry["test_rows"] = None
    return Experiment(**{**entry, **lists}, name=name, recipes=recipes, methods=tuple(methods))


TABLE: dict[str, Any] = tomllib.loads(Path(__file__).with_suffix(".toml").read_text("utf-8"))
EXPERIMENTS: dict[str, Experiment] = {name: _read_experiment(name) for name in TABLE["experiments"]}


def find_experiment(name: str, dim: int | None) -> Experiment:
    """The experiment of that name; `gmm` needs a dimension."""
    if name == "gmm":
        if dim not in DIMENSIONS:
            raise BadUsage(
                "gmm needs a number of columns" if dim is None else f"there is no experiment gmm with {dim} columns",
                found=f"columns: {', '.join(map(str, DIMENSIONS))}",
                hint="for instance `bayesnde reproduce gmm --dim 15`",
            )
        name = f"gmm-{dim}"
    elif dim is not None:
        raise BadUsage(f"--dim is for gmm, not for {name}", found=f"--dim {dim}", hint="leave --dim out")
    if name not in EXPERIMENTS:
        raise BadUsage(
            f"there is no experiment '{name}'",
            found=f"experiments: {', '.join(EXPERIMENTS)}",
            hint=nearest_hint(name, ["gmm", *EXPERIMENTS], "see `bayesnde reproduce --list`"),
        )
    return EXPERIMENTS[name]


class Listing:
    """The list of experiments, for people and for machines."""

    def as_dict(self) -> dict[str, Any]:
        return {"experiments": [experiment.as_dict() for experiment in EXPERIMENTS.values()]}

    def __str__(self) -> str:
        header = ["name", "data", "figure", "in the paper", "test rows", "seeds", "recipes"]
        rows = [
            [
                found.command,
                found.summary,
                found.figure,
                "" if (figure := found.paper.get(PAPER)) is None else f"{figure:g}",
                "all" if found.test_rows is None else str(found.test_rows),
                ",".join(map(str, found.seeds)),
                ", ".join(found.recipes),
            ]
            for found in EXPERIMENTS.values()
        ]
        methods = sorted({name for experiment in EXPERIMENTS.values() for name in experiment.methods})
        return f"{aligned(header, rows)}\n\nmethods: {', '.join(methods)}"


# Raw files: `raw_files.toml` has their sources and SHA-256, which are checked


class RawSet(NamedTuple):
    """A published data set: its source, the SHA-256 of its files below the data directory, and its zip archive."""

    source: str
    files: dict[str, str]
    archive: str | None = None


_RAW_TABLE = tomllib.loads(Path(__file__).with_name("raw_files.toml").read_text("utf-8"))
RAW_SETS = {name: RawSet(**entry) for name, entry in _RAW_TABLE.items()}


def find_files(folder: Path, files: Sequence[str]) -> list[Path]:
    """The files below the data directory; the first that is missing, or not the published one, is refused."""
    missing = [file for file in files if not (folder / file).is_file()]
    if missing:
        raw = _set_of(missing[0])
        more = f", and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise BadInput(
            f"{folder / missing[0]} does not exist{more}",
            found=[f"it is a file of {raw.source}", *([f"archive: {raw.archive}"] if raw.archive else [])],
            hint=f"{'add --download, ' if raw.archive else ''}put it there, or name the data folder with --data-dir",
        )
    for file in files:
        try:
            found, expected = sha256_file(folder / file), _set_of(file).files[file]
        except OSError as error:
            reason = error.strerror or str(error)
            raise BadInput(f"cannot read {folder / file}", found=reason, hint="check its permissions") from error
        if found != expected:
            raise BadInput(
                f"{folder / file} is not the published file",
                found=[f"SHA-256 {found}", f"expected {expected}"],
                hint="remove it and get it again, with --download where its archive is public",
            )
    return [folder / file for file in files]


def download(folder: Path, files: Sequence[str], report: Report) -> None:
    """Fetch the missing files from their public archives: the only use of a network."""
    for file in files:
        if (folder / file).is_file():
            continue
        raw = _set_of(file)
        if raw.archive is None:
            raise BadInput(
                f"{file} cannot be downloaded",
                found=f"it is a file of {raw.source}, which has no stable address",
                hint=f"get it by hand, put it at {folder / file}, and leave --download out",
            )
        report.note(f"downloading {raw.archive}")
        members = _unzip(_fetch(raw.archive), raw.archive)
        for name, expected in raw.files.items():  # check all first: half a set is useless
            found = sha256_bytes(members[Path(name).name]) if Path(name).name in members else "none"
            if found != expected:
                raise BadInput(
                    f"{raw.archive} does not hold the published {Path(name).name}",
                    found=["no file of that name" if found == "none" else f"SHA-256 {found}", f"expected {expected}"],
                    hint=f"the archive may have changed: get the file elsewhere, and put it at {folder / name}",
                )
        for name in raw.files:
            write_bytes(folder / name, members[Path(name).name])


def _set_of(file: str) -> RawSet:
    return RAW_SETS[file.split("/")[0]]


def _fetch(address: str) -> bytes:
    from http.client import HTTPException
    from urllib.request import urlopen

    try:
        with stopping.interruptible(), urlopen(address, timeout=_TIMEOUT_SECONDS) as answer:
            return bytes(answer.read())
    except (OSError, HTTPException) as error:  # URLError is an OSError
        raise BadInput(
            f"{address} cannot be fetched",
            found=str(getattr(error, "reason", error)),
            hint="try again, or get the file another way and name the data folder with --data-dir",
        ) from error


def _unzip(data: bytes, address: str) -> dict[str, bytes]:
    """The files of a zip file by name, including those of zip files inside it."""
    found: dict[str, bytes] = {}
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            for entry in archive.infolist():
                inner, path = archive.read(entry), Path(entry.filename)
                found |= _unzip(inner, address) if path.suffix == ".zip" else {path.name: inner}
    except (zipfile.BadZipFile, zlib.error, EOFError) as error:
        raise BadInput(f"{address} is not a readable zip file", found=str(error), hint="get it by hand") from error
    return found


# Requests


@dataclass(frozen=True)
class Request:
    """What the user asks of an experiment."""

    recipes: tuple[str, ...] = ()
    methods: tuple[str, ...] = ()
    seeds: tuple[int, ...] = ()
    test_rows: int | None = None
    settings: tuple[str, ...] = ()
    data_dir: Path = Path("data")
    is_download: bool = False
    shard: Shard | None = None
    is_restart: bool = False


def list_arms(experiment: Experiment, request: Request) -> list[tuple[str, int]]:
    """Recipes and methods by seeds, those of the shard; if none is named, the experiment's first recipes."""
    recipes = _check_names("recipe", request.recipes, tuple(experiment.recipes), experiment)
    methods = _check_names("method", request.methods, experiment.methods, experiment)
    seeds = dict.fromkeys(request.seeds or experiment.seeds)
    arms = [(method, seed) for method in (*recipes, *methods) or experiment.first for seed in seeds]
    return arms if request.shard is None else [arms[index] for index in request.shard.blocks(len(arms))]


def _check_names(kind: str, names: Sequence[str], known: tuple[str, ...], experiment: Experiment) -> tuple[str, ...]:
    if ALL in names and known:
        return known
    for name in names:
        if name not in known:
            hint = nearest_hint(name, list(known), f"use one of these with --{kind}")
            raise BadUsage(
                f"{experiment.name} has no {kind} '{name}'",
                found=f"{kind}s: {', '.join((*known, ALL)) if known else '(none)'}",
                hint=hint if known else f"leave --{kind} out",
            )
    return tuple(dict.fromkeys(names))


def check_settings(experiment: Experiment, methods: Sequence[str], settings: Sequence[str]) -> None:
    """Refuse settings of no recipe, those that would undo an ablation, and those of a model that another arm fits."""
    own = [method for method in methods if method in experiment.recipes]
    if settings and not own:
        raise BadUsage(
            "--set changes recipes, and none was requested",
            found=", ".join(f"--set {text}" for text in settings),
            hint="leave it out, or name a recipe with --recipe",
        )
    for method in own:
        recipe = experiment.recipes[method]
        fixed = {text.partition("=")[0] for text in recipe.fixed}
        undone = [text for text in settings if text.partition("=")[0].strip().replace("-", "_") in fixed]
        if undone:
            raise BadUsage(
                f"{method} is the recipe with {', '.join(recipe.fixed)}, which cannot be changed",
                found=[f"--set {text}" for text in undone],
                hint="leave it out, or name the other recipes with --recipe",
            )
        idle = [text for text in settings if recipe.base and not text.startswith(("density.", "evaluate."))]
        if idle:
            raise BadUsage(
                f"{method} scores with the model of another arm",
                found=[f"--set {text} would change nothing" for text in idle],
                hint="set only settings of density and evaluate",
            )


def arm_settings(
    experiment: Experiment, recipe: Recipe, *, seed: int, test_rows: int | None, more: Sequence[str] = ()
) -> PipelineSettings:
    """The settings of a recipe; `more` are the user's. The seed is the model's: rows, noise and split stay the same.

    The environment is ignored: the command alone determines an arm.
    """

    def of(config_class: type[ConfigT]) -> ConfigT:
        presets = [name for name in recipe.presets if config_class.stage in read_preset(name)]
        settings = [*recipe.settings, *recipe.fixed, f"{config_class.stage}.seed={seed}", *more]
        preset = presets[-1] if presets else None
        return resolve(config_class, flags={}, environ={}, preset=preset, assignments=settings)

    # Competitors are arms of their own; the accuracy of many classes would cost more than everything else.
    evaluate = [f"evaluate.seed={seed}", "evaluate.baselines=false", "evaluate.accuracy_rows=0", *more]
    return PipelineSettings(
        prepare_settings(experiment, test_rows, (*recipe.settings, *recipe.fixed, *more)),
        of(stage_settings.WarmstartSettings),
        of(stage_settings.RefineSettings),
        of(stage_settings.DensitySettings),
        resolve(stage_settings.EvaluateSettings, flags={}, environ={}, assignments=evaluate),
    )


def prepare_settings(
    experiment: Experiment, test_rows: int | None, settings: Sequence[str]
) -> stage_settings.PrepareSettings:
    """The experiment's protocol of the data, with some settings changed."""
    limit = [] if test_rows is None else [f"prepare.test_rows={test_rows}"]
    return resolve(
        stage_settings.PrepareSettings, flags={}, environ={}, preset=experiment.preset, assignments=[*limit, *settings]
    )


# Results


@dataclass(frozen=True)
class Result:
    """The figures of one arm, and everything needed to compute them again: `result.json`."""

    experiment: str  # the name of its folder
    method: str
    is_own: bool
    seed: int
    settings: list[str]  # the user's: `stage.key=value`, over those of the recipe
    test_rows: int | None  # at most; None: all
    figures: dict[str, Any]  # numbers, None, or a dictionary of such figures
    chosen: dict[str, Any]  # what validation rows selected
    rows_sha256: str  # of training, validation and evaluated rows with all that is known about them
    seconds_fit: float
    seconds_score: float
    device: str
    ended: str
    version: str
    schema: str = "experiment_result"
    schema_version: int = 1

    @property
    def key(self) -> Key:
        return self.experiment, self.method, self.seed

    @property
    def fit(self) -> tuple[str, str, int, str]:
        """What distinguishes this fit from all others, including earlier ones of the same arm."""
        return *self.key, self.ended

    @property
    def seconds(self) -> float:
        return self.seconds_fit + self.seconds_score

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def parse_result(found: Any, path: Path) -> Result:
    """A result from the JSON object in a file."""
    try:
        return Result(**found)
    except TypeError as error:
        hint = "remove it and run the experiment again"
        raise BadArtifact(f"{path} is not a result of an experiment", found=str(error), hint=hint) from None


@dataclass(frozen=True)
class Reproduced:
    """The results of the requested arms."""

    experiment: Experiment
    results: Sequence[Result]

    def as_dict(self) -> dict[str, Any]:
        return {"experiment": self.experiment.name, "results": [result.as_dict() for result in self.results]}

    def __str__(self) -> str:
        if not self.results:
            return f"{self.experiment.name}: no arm in this shard"
        figure, rows = self.experiment.figure, []
        for result in self.results:
            value = (result.figures | {SECONDS: result.seconds}).get(figure)
            paper = self.experiment.paper.get(result.method)
            rows.append([result.method, str(result.seed), _format(value), _format(paper), duration(result.seconds)])
        return aligned([self.experiment.name, "seed", figure, "in the paper", "time"], rows)


def _format(value: float | None) -> str:
    return "–" if value is None else f"{value:.4g}" if abs(value) < 1 else f"{value:.2f}"
