"""The data of a report, gathered from what the stages of a run have left."""

import shlex
from collections import Counter
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from bayesnde_cli import __version__
from bayesnde_cli.artifacts import manifest as manifests
from bayesnde_cli.artifacts.layout import DEFAULT_ROOT, TEST_SET, RunLayout
from bayesnde_cli.artifacts.manifest import Manifest
from bayesnde_cli.artifacts.tables import count_rows
from bayesnde_cli.data.roles import listed
from bayesnde_cli.data.schema import Schema
from bayesnde_cli.inference.verdicts import LEAST_ESS, LEAST_ESS_OF_WITNESSES, MOST_RHAT, MOST_RHAT_OF_WITNESSES
from bayesnde_cli.report.report_data import Limits, ReportData, Subject
from bayesnde_cli.stages.evaluate.model import Model
from bayesnde_cli.stages.prepare.writing import ROWS_SCHEMA
from bayesnde_cli.stages.reading import read_schema
from bayesnde_cli.stages.report.chosen_settings import chosen_settings, fast_settings
from bayesnde_cli.stages.report.doubtful_columns import doubtful_columns
from bayesnde_cli.stages.report.image_view import image_sheets
from bayesnde_cli.stages.report.model_view import ModelView
from bayesnde_cli.stages.report.scored_rows import lowest_rows, read_scored
from bayesnde_cli.stages.report.training_curves import read_training
from bayesnde_cli.stages.reporting import counted, duration

_TRAINING = ("warmstart", "refine")


def collect(layout: RunLayout, set_name: str, metrics: Mapping[str, Any], model: Model) -> ReportData:
    """All that the page shows of one scored data set."""
    schema = read_schema(layout)
    made = _manifests(layout, set_name)
    scored = read_scored(layout, set_name, schema)
    view = ModelView(model, layout, schema, seed=made["density"].seed)
    are_images = schema.image is not None
    columns = () if are_images else view.columns(scored.x_scaled)  # a pixel alone says nothing
    return ReportData(
        subject=_subject(layout, set_name, schema, made, view),
        metrics=metrics,
        training=tuple(read_training(layout, made[stage]) for stage in _TRAINING if _has_history(layout, made, stage)),
        rows=scored.rows,
        limits=Limits(
            MOST_RHAT, LEAST_ESS, MOST_RHAT_OF_WITNESSES, LEAST_ESS_OF_WITNESSES, made["density"].config["target_se"]
        ),
        seen_log_density=view.seen_log_density(),
        columns=columns,
        pair_maps=view.pair_maps(columns) if columns else (),
        images=image_sheets(layout, set_name, schema, view) if are_images else None,
        doubtful=doubtful_columns(schema, view.x_train),
        lowest=lowest_rows(layout, set_name, schema),
        settings={stage: manifest.config for stage, manifest in made.items()},
        chosen=chosen_settings(made, are_images=are_images),
        fast=fast_settings(made),
        fingerprints=_fingerprints(layout, made),
        versions=made["density"].packages | {"python": made["density"].python, "platform": made["density"].platform},
    )


def _manifests(layout: RunLayout, set_name: str) -> dict[str, Manifest]:
    """The manifest of each stage that the densities come from, in order."""
    places = {"prepare": None, "warmstart": None, "refine": None, "density": set_name}
    files = {stage: layout.manifest_file(stage, name) for stage, name in places.items()}
    found = {stage: manifests.read(path) for stage, path in files.items() if path.exists()}
    for stage in _TRAINING:
        if stage in found:
            shown = [name for name in ("history.parquet", "selection.parquet") if name in found[stage].outputs]
            manifests.check_outputs(found[stage], files[stage].parent, deep=shown)
    return found


def _has_history(layout: RunLayout, made: Mapping[str, Manifest], stage: str) -> bool:
    return stage in made and layout.history_file(stage).exists()


def _subject(
    layout: RunLayout, set_name: str, schema: Schema, made: Mapping[str, Manifest], view: ModelView
) -> Subject:
    table = _user_files(made["prepare"])
    files = table if set_name == TEST_SET else _user_files(made["density"])
    n_split = {name: count_rows(layout.split_file(name), ROWS_SCHEMA) for name in ("train", "validation")}
    n_rows = int(made["density"].result["n_rows"])
    facts = {
        "Run": str(layout.root),
        "Data": listed(files) or "standard input",
        "Rows": f"{n_split['train']:,} training, {n_split['validation']:,} validation, {n_rows:,} scored ({set_name})",
        "Columns": _columns_in_words(schema),
        "Model": f"{counted(view.latent_dim, 'latent')}{_layers_in_words(made.get('warmstart'), schema)}",
        "Time": ", ".join(
            f"{stage} {duration(seconds)}"
            for stage, manifest in made.items()
            if (seconds := _seconds(manifest)) is not None
        ),
        "Seed": str(made["prepare"].seed),
        "Device": made["density"].device,
    }
    return Subject(
        title=", ".join(Path(file).name for file in files[:3]) or "standard input",
        set_name=set_name,
        version=__version__,
        run_option="" if layout.root == DEFAULT_ROOT else f"--run {shlex.quote(str(layout.root))}",
        data_argument="" if set_name == TEST_SET else " ".join(map(shlex.quote, files)) or "-",
        table_argument=" ".join(map(shlex.quote, table)) or "-",
        n_train=n_split["train"],
        n_validation=n_split["validation"],
        n_rows=n_rows,
        n_features=len(schema.features),
        classes=dict(zip(schema.classes, view.n_train_by_class, strict=True)),
        facts=tuple(facts.items()),
    )


def _user_files(manifest: Manifest) -> list[str]:
    """The user's files that a stage read, in order, as absolute paths; none for standard input."""
    names = sorted((name for name in manifest.inputs if name.startswith("data-")), key=lambda name: int(name[5:]))
    paths = [str(manifest.inputs[name]["path"]) for name in names]
    return [path for path in paths if path != "-"]


def _columns_in_words(schema: Schema) -> str:
    kinds = Counter(str(feature.kind) for feature in schema.features)
    words = ", ".join(f"{n} {kind}" for kind, n in kinds.most_common())
    text = f"images of {schema.image}" if schema.image else f"{counted(len(schema.features), 'feature')} ({words})"
    return f"{text}, given {schema.roles.condition} ({len(schema.classes)} classes)" if schema.roles.condition else text


def _layers_in_words(warmstart: Manifest | None, schema: Schema) -> str:
    if warmstart is None:
        return ""
    depth, width = warmstart.config["depth"], warmstart.config["width"]
    return f", convolutions of {width} channels" if schema.image else f", {depth} layers of {width}"


def _seconds(manifest: Manifest) -> float | None:
    """How long a stage took; None if that is not known, as when the clock was set back meanwhile."""
    if not manifest.started:
        return None
    started, ended = (datetime.fromisoformat(time) for time in (manifest.started, manifest.ended))
    return (ended - started).total_seconds() if ended >= started else None


def _fingerprints(layout: RunLayout, made: Mapping[str, Manifest]) -> tuple[tuple[str, str], ...]:
    """Every file that the densities come from, with its SHA-256: the user's, then those of the stages."""
    found = {
        str(entry["path"]): str(entry["sha256"])
        for manifest in made.values()
        for name, entry in manifest.inputs.items()
        if name.startswith("data-")
    }
    for stage, manifest in made.items():
        label = layout.label(stage, manifest.set_name)
        found |= {f"{label}/{name}": str(entry["sha256"]) for name, entry in manifest.outputs.items()}
    return tuple(found.items())
