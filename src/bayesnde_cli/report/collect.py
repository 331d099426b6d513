"""The data of a report: plain values and arrays, read from the artifacts of a run into one `ReportData`."""

import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow.dataset import dataset

from bayesnde_cli import __version__
from bayesnde_cli.formatting import format_nats
from bayesnde_cli.model.stack import ALONE
from bayesnde_cli.report.plots import Column, PairMap, Training, thin
from bayesnde_cli.rng import bits_at
from bayesnde_cli.rows import Rows
from bayesnde_cli.runs.layout import DEFAULT_ROOT, TEST_SET, RunLayout
from bayesnde_cli.runs.manifest import Manifest
from bayesnde_cli.runs.parquet_files import read_table
from bayesnde_cli.settings import read_preset
from bayesnde_cli.settings.stage_settings import STAGE_SETTINGS
from bayesnde_cli.tables.columns import Kind
from bayesnde_cli.tables.model_rows import format_cells, invert_scaling, read_schema, read_split
from bayesnde_cli.tables.schema import Schema
from bayesnde_cli.tables.survey import LINEAR_CHECK_ROWS, SPIKE_SHARE, linear_relations

if TYPE_CHECKING:
    from bayesnde_cli.report.sheets import ImageSheets

_TRAINING_STAGES = ("warmstart", "refine")
# Rows in the plots, rows of lowest density, and their columns in the table.
_MAX_PLOT_ROWS, _N_LOWEST, _MAX_LOWEST_COLUMNS = 5000, 10, 40
_MAX_LOSS_RECORDS = 400


@dataclass(frozen=True)
class Subject:
    """What the report is about, and how commands name it. The arguments are quoted for a shell."""

    title: str
    set_name: str
    run_option: str = ""  # `--run results`; empty for the default
    data_argument: str = ""  # the files of a set that is not a split of the run
    table_argument: str = ""  # the files that `prepare` read
    n_train: int = 0
    n_validation: int = 0
    n_rows: int = 0  # of the set
    n_features: int = 0
    classes: Mapping[str, int] = field(default_factory=dict)  # with their numbers of training rows
    facts: Mapping[str, Any] = field(default_factory=dict)  # for the table of provenance
    version: str = __version__


@dataclass(frozen=True)
class ScoredRows:
    """Results of `density`, (rows,) each: of all rows, or of a random sample of a large set."""

    log_density: np.ndarray  # NaN for rows with missing cells, whose density is a different quantity
    mc_se: np.ndarray
    rhat: np.ndarray
    ess: np.ndarray
    verdict: np.ndarray  # of str
    truth: np.ndarray | None = None
    is_outlier: np.ndarray | None = None  # bool


class ModelFigures(NamedTuple):
    """What a report shows of the fitted model; `evaluate` computes it."""

    latent_dim: int = 0
    # Log-densities of training and validation rows by importance sampling: split -> (rows,).
    seen_log_density: Mapping[str, np.ndarray] = {}
    columns: tuple[Column, ...] = ()
    pair_maps: tuple[PairMap, ...] = ()
    images: np.ndarray | None = None  # (rows, p) generated images in the model's space, class by class


class LowestRows(NamedTuple):
    """The rows of lowest density as text, with the columns of the file."""

    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    n_features: int = 0  # shown in the table
    n_incomplete: int = 0  # rows with missing cells, which are left out


@dataclass(frozen=True)
class ReportData:
    """Everything that the page shows. Anything unknown is None or empty and left out."""

    subject: Subject
    metrics: Mapping[str, Any] = field(default_factory=dict)  # metrics.json
    training: tuple[Training, ...] = ()
    rows: ScoredRows | None = None
    target_se: float = 0.05  # Monte-Carlo error up to which a row is reliable
    model: ModelFigures = field(default_factory=ModelFigures)
    images: "ImageSheets | None" = None  # of runs of images, instead of columns
    spikes: Mapping[str, float] = field(default_factory=dict)  # continuous column -> share of its most frequent value
    linear: Mapping[str, Sequence[str]] = field(default_factory=dict)  # column -> the columns that determine it
    lowest: LowestRows | None = None
    settings: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # by stage
    changed: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # settings other than the defaults
    fast: Mapping[str, Sequence[str]] = field(default_factory=dict)  # names of settings that the preset fast set
    fingerprints: Mapping[str, str] = field(default_factory=dict)  # file -> SHA-256
    versions: Mapping[str, str] = field(default_factory=dict)


def collect(layout: RunLayout, set_name: str, metrics: Mapping[str, Any], model: ModelFigures) -> ReportData:
    """Everything that the page shows about one scored set, from what the stages wrote and computed."""
    schema, train = read_schema(layout), read_split(layout, "train")
    manifests = _read_manifests(layout, set_name)
    density = manifests["density"]
    spikes, linear = find_doubtful_columns(schema, train.x)
    images = None
    if model.images is not None:
        from bayesnde_cli.report.sheets import collect_images

        images = collect_images(layout, set_name, train.x, model.images)
    return ReportData(
        subject=_read_subject(layout, set_name, manifests, train, latent_dim=model.latent_dim),
        metrics=metrics,
        training=tuple(
            read_training(layout, manifests[stage])
            for stage in _TRAINING_STAGES
            if stage in manifests and layout.history_file(stage).exists()
        ),
        rows=read_scored(layout, set_name, schema)[0],
        target_se=density.config["target_se"],
        model=model,
        images=images,
        spikes=spikes,
        linear=linear,
        lowest=_read_lowest(layout, set_name, schema),
        settings={stage: manifest.config for stage, manifest in manifests.items()},
        changed=changed_settings(manifests, are_images=schema.image is not None),
        fast=fast_settings(manifests),
        fingerprints=_list_fingerprints(layout, manifests),
        versions=density.packages | {"python": density.python, "platform": density.platform},
    )


# Manifests and settings


def _read_manifests(layout: RunLayout, set_name: str) -> dict[str, Manifest]:
    """The manifests of the stages that the densities depend on, in order."""
    places = {"prepare": None, "warmstart": None, "refine": None, "density": set_name}
    files = {stage: layout.manifest_file(stage, name) for stage, name in places.items()}
    found = {stage: Manifest.read(path) for stage, path in files.items() if path.exists()}
    for stage in found.keys() & _TRAINING_STAGES:
        shown = {"history.parquet", "selection.parquet"} & found[stage].outputs.keys()
        found[stage].check_outputs(files[stage].parent, hashed=shown)
    return found


def changed_settings(manifests: Mapping[str, Manifest], *, are_images: bool = False) -> dict[str, dict[str, Any]]:
    """The settings of each stage that are not the defaults: those that a command must repeat."""
    run_seed = {"seed": manifests["prepare"].seed}  # the default of every later stage
    found = {}
    for stage, manifest in manifests.items():
        defaults = STAGE_SETTINGS[stage]().as_dict() | (run_seed if stage != "prepare" else {})
        stored = defaults | manifest.config
        found[stage] = {name: stored[name] for name, default in defaults.items() if stored[name] != default}
        if are_images:
            found[stage].pop("depth", None)  # networks of images have no choice of depth
    return found


def fast_settings(manifests: Mapping[str, Manifest]) -> dict[str, list[str]]:
    """The names, by stage, of the settings of the preset fast; empty if any of them has another value."""
    preset = read_preset("fast")
    is_fast = all(
        stage in manifests and table.items() <= manifests[stage].config.items() for stage, table in preset.items()
    )
    return {stage: list(table) for stage, table in preset.items()} if is_fast else {}


def _read_subject(
    layout: RunLayout, set_name: str, manifests: Mapping[str, Manifest], train: Rows, *, latent_dim: int
) -> Subject:
    schema, density = read_schema(layout), manifests["density"]
    table = _user_files(manifests["prepare"])
    files = table if set_name == TEST_SET else _user_files(density)
    n_by_class = [] if train.y is None else [int(n) for n in train.y.sum(axis=0, dtype=np.float64)]
    facts = {
        "run": str(layout.root),
        "files": files,
        "kinds": dict(Counter(str(feature.kind) for feature in schema.features).most_common()),
        "condition": schema.condition,
        "latent_dim": latent_dim,
        "network": manifests["warmstart"].config if "warmstart" in manifests else None,
        "members": _read_members(manifests),
        "seconds": {name: stage_seconds(manifest) for name, manifest in manifests.items() if manifest.started},
        "seed": manifests["prepare"].seed,
        "device": density.device,
    }
    return Subject(
        title=", ".join(Path(file).name for file in files[:3]) or "standard input",
        set_name=set_name,
        run_option="" if layout.root == DEFAULT_ROOT else f"--run {shlex.quote(str(layout.root))}",
        data_argument="" if set_name == TEST_SET else " ".join(map(shlex.quote, files)) or "-",
        table_argument=" ".join(map(shlex.quote, table)) or "-",
        n_train=len(train),
        n_validation=pq.read_metadata(layout.split_file("validation")).num_rows,
        n_rows=int(density.result["n_rows"]),
        n_features=len(schema.features),
        classes=dict(zip(schema.classes, n_by_class, strict=True)),
        facts=facts,
    )


def _read_members(manifests: Mapping[str, Manifest]) -> Mapping[str, float]:
    """The weights of the members whose sum the density is, by name; the fitted model alone has all."""
    return manifests["refine"].result.get("members", ALONE.weights) if "refine" in manifests else ALONE.weights


def _user_files(manifest: Manifest) -> list[str]:
    """The user's files that a stage read, in order, as absolute paths; empty for standard input."""
    names = sorted((name for name in manifest.inputs if name.startswith("data-")), key=lambda name: int(name[5:]))
    paths = [str(manifest.inputs[name]["path"]) for name in names]
    return [path for path in paths if path != "-"]


def stage_seconds(manifest: Manifest) -> float:
    """Wall time of a stage; of an interrupted stage, that of its last part."""
    return (datetime.fromisoformat(manifest.ended) - datetime.fromisoformat(manifest.started)).total_seconds()


def _list_fingerprints(layout: RunLayout, manifests: Mapping[str, Manifest]) -> dict[str, str]:
    """Every file that the densities depend on with its SHA-256: the user's files, then the stages' outputs."""
    found: dict[str, str] = {}
    for manifest in manifests.values():
        own = [entry for name, entry in manifest.inputs.items() if name.startswith("data-")]
        found |= {str(entry["path"]): entry["sha256"] for entry in own}
    for stage, manifest in manifests.items():
        label = layout.label(stage, manifest.set_name)
        found |= {f"{label}/{name}": entry["sha256"] for name, entry in manifest.outputs.items()}
    return found


def read_training(layout: RunLayout, manifest: Manifest) -> Training:
    """Losses and validation checks of a training stage. Each phase counts its steps from 0; here they continue."""
    stage = manifest.stage
    history = _columns_of(read_table(layout.history_file(stage), "history", ["phase", "epoch", "step", "loss"]))
    names = ["phase", "step", "is_chosen", "marginal", "marginal_se"]
    checks = _columns_of(read_table(layout.selection_file(stage), "selection", names))
    first_step, length, losses = {}, 0, {}
    for phase in dict.fromkeys([*history["phase"].tolist(), *checks["phase"].tolist()]):
        first_step[phase] = length
        length += max(int(part["step"].max(where=part["phase"] == phase, initial=0)) for part in (history, checks))
        own = np.flatnonzero(history["phase"] == phase)
        own = own[thin(len(own), _MAX_LOSS_RECORDS)]
        losses[phase] = (first_step[phase] + history["step"][own], history["loss"][own].astype(np.float64))
    epochs = history["epoch"]
    return Training(
        stage=stage,
        losses=losses,
        step=checks["step"] + np.array([first_step[name] for name in checks["phase"]]),
        log_density=checks["marginal"].astype(np.float64),
        se=checks["marginal_se"].astype(np.float64),
        selected=int(np.argmax(checks["is_chosen"])),
        selected_by=manifest.config.get("select", "marginal"),
        n_epochs=None if not len(epochs) or np.isnan(epochs[-1]) else round(epochs[-1]),
    )


# Scored rows


def _columns_of(table: pa.Table) -> dict[str, np.ndarray]:
    """The columns as arrays, NaN for missing numbers."""
    return {name: table[name].to_numpy() for name in table.column_names}


def _take(path: Path, columns: Sequence[str], position: np.ndarray) -> pa.Table:
    """The rows of a Parquet file at these positions, in this order; the rest of the file never fills the memory."""
    return dataset(path).take(pa.array(position), columns=list(columns)).combine_chunks()


def _rows_file(layout: RunLayout, set_name: str) -> Path:
    """The rows of a set, in the order of its density table."""
    return layout.split_file(TEST_SET) if set_name == TEST_SET else layout.rows_file("density", set_name)


def read_scaled(layout: RunLayout, set_name: str, position: np.ndarray) -> np.ndarray:
    """Rows at these positions in the model's space, (rows, p) float32, NaN for missing cells."""
    cells = _take(_rows_file(layout, set_name), ["x_scaled"], position)["x_scaled"].combine_chunks()
    return cells.flatten().to_numpy(zero_copy_only=False).reshape(len(position), cells.type.list_size)


def read_scored(layout: RunLayout, set_name: str, schema: Schema) -> tuple[ScoredRows, np.ndarray]:
    """Scored rows in file order, a random sample of a large set; and their features in the model's space (rows, p)."""
    path = layout.density_file(set_name)
    row_ids = pq.read_table(path, columns=["row_id"])["row_id"].to_numpy()
    chosen = np.sort(np.argsort(bits_at(0, row_ids), kind="stable")[:_MAX_PLOT_ROWS])
    names = ["log_density", "mc_se", "rhat_max", "ess_min", "verdict", "n_observed"]
    stored = pq.read_schema(path).names
    labels = [name for name in (schema.truth, schema.outlier_label) if name and name in stored]
    values = _columns_of(_take(path, [*names, *labels], chosen))
    is_outlier = values.get(schema.outlier_label or "")
    rows = ScoredRows(
        log_density=np.where(values["n_observed"] == len(schema.features), values["log_density"], np.nan),
        mc_se=values["mc_se"],
        rhat=values["rhat_max"],
        ess=values["ess_min"],
        verdict=values["verdict"],
        truth=values.get(schema.truth or ""),
        is_outlier=None if is_outlier is None else is_outlier == 1,
    )
    return rows, read_scaled(layout, set_name, chosen)


def _read_lowest(layout: RunLayout, set_name: str, schema: Schema) -> LowestRows:
    """The complete rows of lowest density, lowest first."""
    path = layout.density_file(set_name)
    found = _columns_of(pq.read_table(path, columns=["n_observed", "log_density"]))
    is_complete = found["n_observed"] == len(schema.features)
    ranked = np.flatnonzero(is_complete & ~np.isnan(found["log_density"]))
    order = ranked[np.argsort(found["log_density"][ranked], kind="stable")][:_N_LOWEST]
    labels = [name for name in schema.roles.labels if name in pq.read_schema(path).names]
    features = () if schema.image else schema.features[:_MAX_LOWEST_COLUMNS]
    names = [feature.name for feature in features]
    if set_name == TEST_SET:
        cells = _take(_rows_file(layout, set_name), names, order).columns
    else:  # mapped back from the model's space: the user's file may be gone
        x = read_scaled(layout, set_name, order).T
        cells = [format_cells(own, invert_scaling(own, u)) for own, u in zip(features, x, strict=False)]
    table = _take(path, ["row_id", "log_density", "mc_se", "verdict", *labels], order)
    row_id, log_density, mc_se, *others = (column.to_pylist() for column in (*table.columns, *cells))
    figures = [str(index + 1) for index in row_id], map(format_nats, log_density), map(format_nats, mc_se)
    rows = zip(*figures, *(map(_format_cell, column) for column in others), strict=True)
    header = ("row", "log-density", "s.e.", "verdict", *labels, *names)
    return LowestRows(header, tuple(rows), len(names), int((~is_complete).sum()))


def _format_cell(value: Any) -> str:
    if value is None or value != value:
        return "–"
    return f"{value:.5g}" if isinstance(value, float) else str(value)


def find_doubtful_columns(schema: Schema, x_scaled: np.ndarray) -> tuple[dict[str, float], dict[str, tuple[str, ...]]]:
    """Columns of the training rows in which a density is not defined: spiked ones, and linear functions of others."""
    if schema.image is not None:  # every pixel has its noise, and neighbours may be alike
        return {}, {}
    spikes = {}
    for index, feature in enumerate(schema.features):
        if feature.kind is Kind.CONTINUOUS and feature.map.noise is None:
            share = np.unique(x_scaled[:, index], return_counts=True)[1].max() / len(x_scaled)
            if share > SPIKE_SHARE:
                spikes[feature.name] = float(share)
    some = x_scaled[:LINEAR_CHECK_ROWS].astype(np.float64)
    values = np.stack([feature.map.inverse(some[:, index]) for index, feature in enumerate(schema.features)], axis=1)
    relations = linear_relations(values, [feature.name for feature in schema.features])
    return spikes, {relation.column: relation.others for relation in relations}
