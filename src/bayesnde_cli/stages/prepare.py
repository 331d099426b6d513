"""The stage `prepare`: read a table, survey its columns, split its rows, scale them, write them as Parquet."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bayesnde_cli import stopping
from bayesnde_cli.competitors.plain import by_class, gaussian_mixture
from bayesnde_cli.errors import BadInput, BayesndeError
from bayesnde_cli.formatting import Report, counted
from bayesnde_cli.rng import derive_seed
from bayesnde_cli.rows import Rows, some_rows
from bayesnde_cli.runs.files import cannot_write, write_json
from bayesnde_cli.runs.layout import SCHEMA, RunLayout, split_name
from bayesnde_cli.runs.manifest import Manifest, derive_run_id, is_stage_done, tidy, workplace
from bayesnde_cli.runs.parquet_files import Stamp, count_rows, writing_table
from bayesnde_cli.scaling.column_map import Affine, Logit, fit_minmax, fit_standard
from bayesnde_cli.scaling.discrete import fit_categorical, fit_lattice
from bayesnde_cli.scaling.mixture import fit_mixture
from bayesnde_cli.settings.stage_settings import PrepareSettings
from bayesnde_cli.tables import columns, model_rows, splits, survey
from bayesnde_cli.tables.columns import IMAGE_COLUMN, ColumnFacts, ImageShape, Kind, Roles, listed, quoted
from bayesnde_cli.tables.schema import Feature, Schema, StoredMap, class_list, noise_fractions
from bayesnde_cli.tables.sources import LABEL, Source, Table, describe_sources, open_sources
from bayesnde_cli.tables.splits import LEFT_OUT, SPLITS
from bayesnde_cli.tables.survey import StagedTable

STAGE = "prepare"


@dataclass(frozen=True)
class Prepared:
    """The result of `prepare`."""

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


def run_prepare(
    layout: RunLayout,
    data: Sequence[Path],
    sources: Sequence[Source],
    config: PrepareSettings,
    report: Report,
    *,
    is_restart: bool = False,
) -> Prepared:
    """Prepare the rows of `sources`; `data` are their paths as the user gave them."""
    inputs = describe_sources(sources, data)
    identity = {"settings": config.as_dict(), "data": {name: entry["sha256"] for name, entry in inputs.items()}}
    # Checked without a lock first, so that a read-only run can be used. If something looks wrong, another process may
    # be replacing the files: the check is repeated under the lock.
    with suppress(BayesndeError):
        if not is_restart and is_stage_done(layout, STAGE, identity):
            tidy(layout, STAGE)
            return _describe(layout, is_up_to_date=True)
    with workplace(layout, STAGE) as place:
        if not is_restart and is_stage_done(layout, STAGE, identity):
            return _describe(layout, is_up_to_date=True)
        run_id = derive_run_id(identity)
        with cannot_write(layout.stage_dir(STAGE)):
            _prepare(place.folder, sources, config, report, run_id)
        # An older result is replaced only now that the new one is complete.
        outputs = [SCHEMA, *map(split_name, SPLITS)]
        place.finish(outputs, config, seed=config.seed, identity=identity, inputs=inputs, run_id=run_id)
    return _describe(layout, is_up_to_date=False)


def _describe(layout: RunLayout, *, is_up_to_date: bool) -> Prepared:
    run_id = Manifest.read(layout.manifest_file(STAGE)).run_id
    n_rows = [count_rows(layout.split_file(name), model_rows.ROWS_SCHEMA) for name in SPLITS]
    n_features = len(model_rows.read_schema(layout).features)
    return Prepared(str(layout.stage_dir(STAGE)), run_id, is_up_to_date, n_features, *n_rows)


def _prepare(folder: Path, sources: Sequence[Source], config: PrepareSettings, report: Report, run_id: str) -> None:
    """Read, survey, split, scale and write."""
    table = open_sources(sources, model_rows.text_format(config.as_dict()))
    report.note(f"read as: {table.description}")
    roles = columns.assign_roles(table.names, config)
    types = columns.parse_types(config.type, roles.features)
    as_text = roles.words | {name for name, kind in types.items() if kind is Kind.CATEGORICAL}
    image = image_of(table, roles, config, report)
    if image is None:
        batches, inspected = table.batches(roles.used, as_text=as_text), roles.features
    else:
        roles = _image_roles(roles, image)
        batches, inspected = _pack_pixels(table.batches(roles.used, as_text=as_text), image.n_pixels), ()
    staged = survey.stage_table(batches, folder / "staged.parquet", features=inspected, report=report)
    staged = _add_classes(survey.select_rows(staged, roles, config, report), roles.condition)
    if image is None:
        facts, copies = survey.survey_features(staged, roles, config, report)
        staged = replace(staged, split=_split(staged, roles, config, copies))
        features = _scale(staged, facts, config, report)
    else:
        _show_images(staged, roles, image, report)
        staged = replace(staged, split=_split(staged, roles, config))
        features = tuple(Feature(name, Kind.LATTICE, (), Logit()) for name in image.pixel_names())
    schema = Schema(
        features,
        config.seed,
        condition=roles.condition,
        classes=staged.classes,
        classes_are_whole=staged.classes_are_whole,
        outlier_label=roles.outlier_label,
        truth=roles.truth,
        id=roles.id,
        split_column=roles.split,
        image=image,
    )
    _write_splits(folder, staged, schema, Stamp(model_rows.ROWS_SCHEMA, run_id), report)
    write_json(folder / SCHEMA, schema.to_json())


def _add_classes(staged: StagedTable, condition: str | None) -> StagedTable:
    """The table with the classes of its rows, if there is a condition."""
    if condition is None:
        return staged
    labels = staged.cells(condition)
    classes, are_whole = class_list(pc.unique(labels).to_pylist(), condition)
    index = pc.index_in(labels, value_set=pa.array(classes, pa.string())).to_numpy().astype(np.int64)
    return replace(staged, classes=classes, classes_are_whole=are_whole, class_index=index)


# Images


def image_of(table: Table, roles: Roles, config: PrepareSettings, report: Report) -> ImageShape | None:
    """The size of the images that the run models; None if its rows are an ordinary table.

    Options about single columns ask for a table: no image can leave a pixel out.
    """
    if table.image is None or config.scale not in ("auto", "logit"):
        return None
    asked = {
        "--features": bool(config.features),
        "--drop-constant": config.drop_constant,
        "--type": bool(config.type),
        "--dequantize": config.dequantize != ("auto",),
        "--max-robust-z": config.max_robust_z is not None,
        "a pixel with another role": not set(table.image.pixel_names()) <= set(roles.features),
    }
    reasons = [option for option, is_asked in asked.items() if is_asked]
    if reasons:
        report.note(f"read as a table of pixels, not as images of {table.image}: {', '.join(reasons)}")
        return None
    return table.image


def _image_roles(roles: Roles, image: ImageShape) -> Roles:
    """The roles with the pixels as the only features: a label without a role is ignored."""
    if IMAGE_COLUMN in roles.used:
        raise BadInput(
            f"column '{IMAGE_COLUMN}' has a name that bayesnde writes itself",
            found=f"reserved in a run of images: {IMAGE_COLUMN}",
            hint=f"rename it in the file, or leave it out with --drop {IMAGE_COLUMN}",
        )
    pixels = image.pixel_names()
    others = tuple(name for name in roles.features if name not in set(pixels))
    return replace(roles, features=pixels, ignored=(*others, *roles.ignored))


def _pack_pixels(batches: Iterator[pa.RecordBatch], n_pixels: int) -> Iterator[pa.RecordBatch]:
    """Batches whose first columns, the pixels, are packed into one."""
    for batch in batches:
        pixels = np.empty((batch.num_rows, n_pixels), np.uint8)
        for position, column in enumerate(batch.columns[:n_pixels]):
            pixels[:, position] = column.to_numpy()
        others = dict(zip(batch.schema.names[n_pixels:], batch.columns[n_pixels:], strict=True))
        yield pa.RecordBatch.from_pydict({IMAGE_COLUMN: columns.image_column(pixels), **others})


def _show_images(staged: StagedTable, roles: Roles, image: ImageShape, report: Report) -> None:
    classes = f", {len(staged.classes)} classes" if staged.classes else ""
    report.note(f"{len(staged.row_ids):,} images of {image}{classes}")
    report.note(
        "every pixel has uniform noise, U(0, 1), addressed by image, and goes through a logit: "
        "log-densities are those of value plus noise"
    )
    if roles.ignored:
        label = LABEL if LABEL in roles.ignored else roles.ignored[0]
        advice = f"; this is p(x) of all images, and --condition {quoted(label)} is p(x | {label})"
        report.note(f"not used: {listed(roles.ignored)}{'' if roles.condition else advice}")


# Split


def _split(staged: StagedTable, roles: Roles, config: PrepareSettings, copies: np.ndarray | None = None) -> np.ndarray:
    """The split of every row, (rows,) int8; `copies` are the positions of rows' first copies."""
    row_ids, strata, condition = staged.row_ids, staged.class_index, roles.condition
    if condition and strata is not None:
        splits.check_strata(strata, staged.classes, condition)
    if roles.split:
        split = splits.split_by_words(staged.cells(roles.split), row_ids, roles.split)
    elif config.split_method == "tail":
        split = splits.split_by_tail(len(row_ids), config.split, config.seed)
    elif config.split_method == "order":
        split = splits.split_by_order(len(row_ids), config.split)
    elif config.split_method == "train-test-split":
        split = splits.split_by_train_test_split(len(row_ids), config.split, config.split_seeds, strata)
    else:
        split = splits.split_by_address(row_ids, config.split, config.seed, strata, copies)
    order_seed = None if config.split_method == "order" else config.seed
    for code, most in ((splits.TRAIN, config.train_rows), (splits.TEST, config.test_rows)):
        if most is not None:
            split = splits.limit_rows(split, row_ids, code, most, order_seed)
    splits.check_splits(split)
    if condition and strata is not None:
        splits.check_classes(split, strata, staged.classes, condition)
    return split


# Scale
#
# The marginal scaling models every column's own distribution, which is most of the structure where columns are
# skewed, lumpy or nearly independent. Where the structure is in their dependence, as in a spiral, it bends the shape
# and adds estimation noise; a shift and a scale keep the shape. Of the two, `auto` chooses the one in which a Gaussian
# mixture gives validation rows the higher density.

_USUAL, _OTHER = "marginal", "standard"
# With more columns a mixture says little and takes long.
_MOST_COLUMNS = 30
_MOST_TRAINING_ROWS, _MOST_VALIDATION_ROWS = 3000, 2000
# The other scaling must be better by this many standard errors of the difference.
_LEAST_GAIN = 1.0
# Rows that each class needs for mixtures by class.
_LEAST_TRAINING_ROWS, _LEAST_VALIDATION_ROWS = 50, 10
# Networks see float32: a column whose body spans fewer float32 steps cannot be resolved there.
_MIN_FLOAT32_STEPS = 1000.0
_BODY = (0.05, 0.95)


def _scale(
    staged: StagedTable, facts: Mapping[str, ColumnFacts], config: PrepareSettings, report: Report
) -> tuple[Feature, ...]:
    """Every feature with its map. Test rows take no part, except with `--scale-on all`."""
    if config.scale != "auto":
        return _fit_features(config.scale, staged, facts, config, report)
    usual = _fit_features(_USUAL, staged, facts, config, report)
    if len(facts) > _MOST_COLUMNS:
        return usual
    try:
        other = _fit_features(_OTHER, staged, facts, config, report)
    except BadInput:  # outliers, or a large offset, leave float32 too few digits without the marginal scaling
        return usual
    return _choose_scaling({_USUAL: usual, _OTHER: other}, staged, facts, config.seed, report)


def _fit_features(
    scale: str, staged: StagedTable, facts: Mapping[str, ColumnFacts], config: PrepareSettings, report: Report
) -> tuple[Feature, ...]:
    """Every feature with its map of one scaling."""
    is_fitting = np.full(len(staged.split), True) if config.scale_on == "all" else staged.split == splits.TRAIN
    is_choosing = staged.split == splits.VALIDATION
    features = []
    with report.progress("scaling", len(facts), "columns") as advance:
        for name, fact in facts.items():
            stopping.check()
            values = staged.values(fact)
            train = values[is_fitting]
            if fact.noise is None and train.min() == train.max():  # with noise, even one value has a density
                raise BadInput(
                    f"column '{name}' holds one value only in the training rows",
                    found=f"value: {train[0]:g}",
                    hint=f"leave it out with --drop {quoted(name)}, or try another --seed",
                )
            fraction = noise_fractions(name, staged.row_ids, config.seed)
            column_map = fit_map(fact, scale, values, fraction, (is_fitting, is_choosing))
            feature = Feature(name, fact.kind, fact.categories, column_map)
            _refuse_lost_in_float32(name, feature.scale(train, staged.row_ids[is_fitting], config.seed)[0])
            features.append(feature)
            advance(1)
    return tuple(features)


def fit_map(
    fact: ColumnFacts, scale: str, values: np.ndarray, fraction: np.ndarray, masks: tuple[np.ndarray, np.ndarray]
) -> StoredMap:
    """The map of one column with values (rows,), fitted to training rows; validation rows only choose its size.

    `masks` are the training and the validation rows; `fraction` is the noise as uniform numbers.
    """
    noise = fact.noise
    if scale == "logit":
        return Logit()
    if scale == "none":
        return Affine(0.0, 1.0, noise)
    if scale == "marginal" and noise is not None and noise.width <= 1:
        train, validation = (values[mask] for mask in masks)
        if fact.kind is Kind.CATEGORICAL:
            return fit_categorical(train, validation, n_categories=len(fact.categories), noise=noise)
        return fit_lattice(train, validation, noise=noise)
    noisy = values if noise is None else noise.add(values, fraction)
    train, validation = (noisy[mask] for mask in masks)
    if scale == "marginal":
        return fit_mixture(train, validation, noise=noise)
    return (fit_standard if scale == "standard" else fit_minmax)(train, noise)


def _refuse_lost_in_float32(name: str, scaled: np.ndarray) -> None:
    low, high = np.quantile(scaled, _BODY)
    body = scaled[(scaled >= low) & (scaled <= high)]
    resolution = np.spacing(np.float32(np.max(np.abs(body))))
    if 0 < float(high - low) < _MIN_FLOAT32_STEPS * float(resolution):
        raise BadInput(
            f"column '{name}' is lost in float32, which the model works in",
            found=f"nine tenths of its scaled values lie between {low:.9g} and {high:.9g}",
            hint="use --scale standard or --scale marginal against a large offset, --scale marginal against outliers",
        )


def _choose_scaling(
    candidates: Mapping[str, tuple[Feature, ...]],
    staged: StagedTable,
    facts: Mapping[str, ColumnFacts],
    seed: int,
    report: Report,
) -> tuple[Feature, ...]:
    """The features of the better scaling of p(x), or of p(x | y) if every class has enough rows."""
    limits = ((splits.TRAIN, _MOST_TRAINING_ROWS), (splits.VALIDATION, _MOST_VALIDATION_ROWS))
    found = [(np.flatnonzero(staged.split == code), most) for code, most in limits]
    indices = [index[some_rows(len(index), most, seed)] for index, most in found]
    index, parts = np.concatenate(indices), (slice(0, len(indices[0])), slice(len(indices[0]), None))
    values = [staged.values(fact)[index] for fact in facts.values()]
    classes = None if staged.class_index is None else staged.class_index[index]
    least = (_LEAST_TRAINING_ROWS, _LEAST_VALIDATION_ROWS)
    if classes is not None and any(np.bincount(classes[part]).min() < n for part, n in zip(parts, least, strict=True)):
        classes = None
    y = None if classes is None else np.eye(classes.max() + 1, dtype=np.float32)[classes]
    scores = {}
    with report.progress("choosing the scaling", len(candidates), "scalings") as advance:
        for name, features in candidates.items():
            pairs = zip(features, values, strict=True)
            scaled = [feature.scale(column, staged.row_ids[index], seed) for feature, column in pairs]
            x = np.stack([u for u, _ in scaled], axis=1)
            log_jacobian = np.sum([log_slope for _, log_slope in scaled], axis=0)
            whole = Rows(x, y=y, log_jacobian=log_jacobian)
            train, validation = (whole.take(part) for part in parts)
            mixture = by_class(gaussian_mixture)(train, validation, derive_seed(seed, "prepare", "scale"))
            scores[name] = mixture.score(validation) + validation.log_jacobian
            advance(1)
    gain = scores[_OTHER] - scores[_USUAL]
    mean, se = float(np.mean(gain)), float(np.std(gain) / np.sqrt(len(gain)))
    best = _OTHER if mean > _LEAST_GAIN * se else _USUAL
    report.note(
        f"scaling: {best} (a mixture of validation rows is {abs(mean):.3f} ± {2 * se:.3f} nats "
        f"{'better' if mean > 0 else 'worse'} with {_OTHER} than with {_USUAL}"
        f"{', which may be chance' if best == _USUAL and mean > 0 else ''})"
    )
    return candidates[best]


# Write


def _write_splits(folder: Path, staged: StagedTable, schema: Schema, stamp: Stamp, report: Report) -> None:
    """Write the table of every split, rows in the order of the file, one batch in memory at a time."""
    fields = model_rows.rows_schema(schema)
    split_of_row = np.full(staged.n_rows, LEFT_OUT, np.int8)
    split_of_row[staged.row_ids] = staged.split
    with ExitStack() as stack, report.progress("writing", staged.n_rows, "rows") as advance:
        writers = [stack.enter_context(writing_table(folder / split_name(name), fields, stamp)) for name in SPLITS]
        for first_row, batch in staged.batches():
            stopping.check()
            split = split_of_row[first_row : first_row + batch.num_rows]
            kept = np.flatnonzero(split != LEFT_OUT)
            if len(kept) < batch.num_rows:
                batch = batch.take(pa.array(kept))
            rows = model_rows.scale_batch(batch, schema, first_row + kept)
            raw = {item.name: pc.cast(batch.column(item.name), item.type) for item in model_rows.raw_fields(schema)}
            scaled = model_rows.rows_to_batch(replace(rows, labels=rows.labels | raw), fields)
            for code, writer in enumerate(writers):
                writer.write(scaled.filter(pa.array(split[kept] == code)))
            advance(len(split))
