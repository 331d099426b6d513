"""`prepare`: a table becomes checked, typed, split and scaled Parquet, or one clear message."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO

from bayesnde_cli.artifacts import manifest as manifests
from bayesnde_cli.artifacts.atomic import cannot_write, write_json
from bayesnde_cli.artifacts.layout import RunLayout
from bayesnde_cli.artifacts.manifest import StageState
from bayesnde_cli.artifacts.tables import count_rows
from bayesnde_cli.config import PrepareConfig
from bayesnde_cli.data.features import logit_noise, noise_rules
from bayesnde_cli.data.kinds import Kind, asked_kinds
from bayesnde_cli.data.readers import Source, open_sources, sources_of
from bayesnde_cli.data.roles import assign_roles
from bayesnde_cli.data.splits import SPLITS
from bayesnde_cli.errors import BayesndeError
from bayesnde_cli.stages.outputs import tidy, workplace
from bayesnde_cli.stages.prepare.fitting import (
    assign_splits,
    class_positions,
    condition_classes,
    fit_features,
    make_schema,
)
from bayesnde_cli.stages.prepare.images import image_features, image_of, image_roles, show_images, stage_images
from bayesnde_cli.stages.prepare.staging import stage_table
from bayesnde_cli.stages.prepare.survey import (
    check_labels,
    kept_rows,
    show_features,
    survey_features,
    warn_about_features,
)
from bayesnde_cli.stages.prepare.writing import ROWS_SCHEMA, ROWS_SCHEMA_VERSION, write_splits
from bayesnde_cli.stages.reading import describe_sources, read_schema, text_format
from bayesnde_cli.stages.reporting import Report, counted

STAGE = "prepare"


@dataclass(frozen=True)
class Prepared:
    """What `prepare` made."""

    folder: str
    run_id: str
    is_up_to_date: bool
    n_features: int
    n_train: int
    n_validation: int
    n_test: int

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    def __str__(self) -> str:
        text = (
            f"{self.folder}: {self.n_train:,} training, {self.n_validation:,} validation "
            f"and {self.n_test:,} test rows, {counted(self.n_features, 'feature')}"
        )
        return f"{text} (up to date)" if self.is_up_to_date else text


def run(
    layout: RunLayout, data: Sequence[Path], config: PrepareConfig, report: Report, *, stdin: BinaryIO, is_restart: bool
) -> Prepared:
    """Prepare the rows of one or several files in the run directory."""
    sources = sources_of(data, stdin=stdin)
    return run_on(layout, sources, describe_sources(sources, data), config, report, is_restart=is_restart)


def run_on(
    layout: RunLayout, sources: Sequence[Source], inputs: dict[str, dict[str, Any]], config: PrepareConfig,
    report: Report, *, is_restart: bool,
) -> Prepared:  # fmt: skip
    """Prepare the rows of sources, which the manifest records as `inputs`."""
    identity = {"settings": config.as_dict(), "data": {name: entry["sha256"] for name, entry in inputs.items()}}
    if not is_restart and _is_plainly_done(layout, identity):
        tidy(layout, STAGE)
        return _found(layout)
    with workplace(layout, STAGE) as place:
        if not is_restart and manifests.stage_state(layout, STAGE, identity) is StageState.UP_TO_DATE:
            return _found(layout)

        run_id = manifests.derive_run_id(identity)
        with cannot_write(layout.stage_dir(STAGE)):
            _make(place.folder, sources, config, report, run_id)
        # All is made and checked. Only now does an older result give way.
        outputs = [layout.schema_file().name, *(layout.split_file(name).name for name in SPLITS)]
        place.finish(outputs, config, seed=config.seed, identity=identity, inputs=inputs, run_id=run_id)
    return _prepared(layout, run_id, is_up_to_date=False)


def _is_plainly_done(layout: RunLayout, identity: dict[str, Any]) -> bool:
    """Whether the stage is up to date, without a claim: a run that may only be read is good enough for those after it.

    What looks wrong may be files that another process is just replacing: with the claim we look again.
    """
    try:
        return manifests.stage_state(layout, STAGE, identity) is StageState.UP_TO_DATE
    except BayesndeError:
        return False


def _found(layout: RunLayout) -> Prepared:
    return _prepared(layout, manifests.read(layout.manifest_file(STAGE)).run_id, is_up_to_date=True)


def _make(folder: Path, sources: Sequence[Source], config: PrepareConfig, report: Report, run_id: str) -> None:
    """Read, check, split, scale and write the tables and the schema into a folder."""
    table = open_sources(sources, text_format(config.as_dict()))
    report.note(f"read as: {table.description}")
    roles = assign_roles(table.names, config)
    image = image_of(table, roles, config, report)
    as_text = {name for name in (roles.id, roles.condition, roles.outlier_label, roles.split) if name}
    file = folder / "staged.parquet"
    if image is not None:
        roles = image_roles(roles, image)
        staged = stage_images(table, file, roles, image, as_text=as_text, report=report)
    else:
        asked = asked_kinds(config.type, roles.features)
        as_text |= {name for name, kind in asked.items() if kind is Kind.CATEGORICAL}
        staged = stage_table(table, file, roles.used, as_text=as_text, features=roles.features, report=report)

    row_ids = kept_rows(staged, roles, config, report)
    check_labels(staged, roles, row_ids)
    if image is None:
        facts = survey_features(staged, roles, row_ids, config, report)
        noise = (logit_noise if config.scale == "logit" else noise_rules)(config.dequantize, facts)
        show_features(staged, roles, facts, noise, report)
        warn_about_features(staged, facts, noise, row_ids, seed=config.seed, report=report)

    classes, are_whole = condition_classes(staged, roles, row_ids)
    if image is not None:
        show_images(roles, image, len(row_ids), len(classes), report)
    strata = class_positions(staged, roles, row_ids, classes)
    split = assign_splits(staged, roles, row_ids, classes, strata, config)
    if image is None:
        features = fit_features(staged, facts, noise, row_ids, split, strata, config, report)
    else:
        features = image_features(image)
    schema = make_schema(roles, features, classes, are_whole, seed=config.seed, image=image)
    files = {name: folder / f"{name}.parquet" for name in SPLITS}
    write_splits(files, staged, schema, row_ids, split, run_id=run_id, report=report)
    write_json(folder / "schema.json", schema.to_json())


def _prepared(layout: RunLayout, run_id: str, *, is_up_to_date: bool) -> Prepared:
    n_rows = [count_rows(layout.split_file(name), ROWS_SCHEMA, schema_version=ROWS_SCHEMA_VERSION) for name in SPLITS]
    n_features = len(read_schema(layout).features)
    return Prepared(str(layout.stage_dir(STAGE)), run_id, is_up_to_date, n_features, *n_rows)
