"""From kept rows to a schema: the splits, and the map of every feature, fitted on training rows."""

from collections.abc import Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bayesnde_cli.config import PrepareConfig
from bayesnde_cli.data import splits
from bayesnde_cli.data.features import fit_map
from bayesnde_cli.data.image import ImageShape
from bayesnde_cli.data.kinds import ColumnFacts
from bayesnde_cli.data.labels import class_codes, class_list
from bayesnde_cli.data.roles import Roles, quoted
from bayesnde_cli.data.scaling import Noise
from bayesnde_cli.data.schema import Feature, Schema, noise_fractions
from bayesnde_cli.errors import BadInput
from bayesnde_cli.stages.prepare import choosing
from bayesnde_cli.stages.prepare.staging import StagedTable
from bayesnde_cli.stages.prepare.survey import feature_values
from bayesnde_cli.stages.reporting import Report

# Networks see float32: a column whose body spans less than this many of its steps cannot be told apart there.
_MIN_FLOAT32_STEPS = 1000.0
_BODY = (0.05, 0.95)


def assign_splits(
    staged: StagedTable, roles: Roles, row_ids: np.ndarray, classes: tuple[str, ...], strata: np.ndarray | None,
    config: PrepareConfig,
) -> np.ndarray:  # fmt: skip
    """The split of every kept row, (rows,) int8; `strata` are the positions of their classes."""
    if roles.condition and strata is not None:
        splits.check_strata(strata, classes, roles.condition)
    if roles.split:
        words = staged.column(roles.split).take(pa.array(row_ids)).to_pylist()
        split = splits.split_by_words(words, row_ids, roles.split)
    elif config.split_method == "tail":
        split = splits.split_by_tail(len(row_ids), config.split, config.seed)
    elif config.split_method == "order":
        split = splits.split_by_order(len(row_ids), config.split)
    elif config.split_method == "train-test-split":
        split = splits.split_by_train_test_split(len(row_ids), config.split, config.split_seeds, strata)
    else:
        split = splits.split_by_address(row_ids, config.split, config.seed, strata)
    for code, most in ((splits.TRAIN, config.train_rows), (splits.TEST, config.test_rows)):
        if most is not None:
            is_in_order = config.split_method == "order"
            split = splits.limited(split, row_ids, code, most, config.seed, is_in_order=is_in_order)
    splits.check_splits(split)
    if roles.condition and strata is not None:
        splits.check_classes(split, strata, classes, roles.condition)
    return split


def condition_classes(staged: StagedTable, roles: Roles, row_ids: np.ndarray) -> tuple[tuple[str, ...], bool]:
    """The classes of the condition, if there is one, and whether they are whole numbers."""
    if roles.condition is None:
        return (), False
    words = pc.unique(staged.column(roles.condition).take(pa.array(row_ids))).to_pylist()
    return class_list(words, roles.condition)


def class_positions(
    staged: StagedTable, roles: Roles, row_ids: np.ndarray, classes: tuple[str, ...]
) -> np.ndarray | None:
    """The position of every kept row's class, (rows,); None without a condition."""
    if roles.condition is None:
        return None
    labels = staged.column(roles.condition).take(pa.array(row_ids)).combine_chunks()
    return class_codes(labels, classes, roles.condition, row_ids)


def fit_features(
    staged: StagedTable, facts: Mapping[str, ColumnFacts], noise: Mapping[str, Noise], row_ids: np.ndarray,
    split: np.ndarray, strata: np.ndarray | None, config: PrepareConfig, report: Report,
) -> tuple[Feature, ...]:  # fmt: skip
    """Every feature with its map. Test rows take no part, unless the scaling is asked to be on all rows."""
    if config.scale != "auto":
        return _fitted(config.scale, staged, facts, noise, row_ids, split, config, report)
    usual = _fitted(choosing.USUAL, staged, facts, noise, row_ids, split, config, report)
    if len(facts) > choosing.MOST_COLUMNS:
        return usual
    try:
        other = _fitted(choosing.OTHER, staged, facts, noise, row_ids, split, config, report)
    except BadInput:  # outliers, or a large offset, leave float32 too few digits without the marginal scaling
        return usual
    places = choosing.positions(split, config.seed)
    columns: list[list[np.ndarray]] = [[], []]
    for fact in facts.values():
        values = feature_values(staged, fact, row_ids)  # one column at a time: there may be millions of rows
        for some, index in zip(columns, places, strict=True):
            some.append(values[index])
    train, validation = (
        choosing.SomeRows(np.stack(some, axis=1), row_ids[index], None if strata is None else strata[index])
        for some, index in zip(columns, places, strict=True)
    )
    candidates = {choosing.USUAL: usual, choosing.OTHER: other}
    return choosing.chosen_features(candidates, train, validation, config.seed, report)


def _fitted(
    scale: str, staged: StagedTable, facts: Mapping[str, ColumnFacts], noise: Mapping[str, Noise], row_ids: np.ndarray,
    split: np.ndarray, config: PrepareConfig, report: Report,
) -> tuple[Feature, ...]:  # fmt: skip
    """Every feature with its map of one scaling."""
    is_fitting = np.full(len(split), True) if config.scale_on == "all" else split == splits.TRAIN
    is_choosing = split == splits.VALIDATION
    features = []
    with report.progress("scaling", len(facts), "columns") as advance:
        for name, fact in facts.items():
            values = feature_values(staged, fact, row_ids)
            if name not in noise:  # with noise, even one value has a density
                _refuse_constant(values[is_fitting], name)
            column_map = fit_map(
                fact,
                scale,
                noise.get(name),
                values,
                fraction=noise_fractions(name, row_ids, config.seed),
                is_fitting=is_fitting,
                is_choosing=is_choosing,
            )
            feature = Feature(name, fact.kind, fact.categories, column_map)
            _refuse_lost_in_float32(feature, values[is_fitting], row_ids[is_fitting], config.seed)
            features.append(feature)
            advance(1)
    return tuple(features)


def make_schema(
    roles: Roles, features: tuple[Feature, ...], classes: tuple[str, ...], are_whole: bool, *, seed: int,
    image: ImageShape | None,
) -> Schema:  # fmt: skip
    """The schema of the run; features that were left out as constant are gone from its roles."""
    kept = Roles(
        features=tuple(feature.name for feature in features),
        condition=roles.condition,
        outlier_label=roles.outlier_label,
        truth=roles.truth,
        id=roles.id,
        split=roles.split,
    )
    return Schema(kept, features, classes, are_whole, seed, image)


def _refuse_constant(train: np.ndarray, name: str) -> None:
    if train.min() == train.max():
        raise BadInput(
            f"column '{name}' holds one value only in the training rows",
            found=f"value: {train[0]:g}",
            hint=f"leave it out with --drop {quoted(name)}, or try another --seed",
        )


def _refuse_lost_in_float32(feature: Feature, train: np.ndarray, row_ids: np.ndarray, seed: int) -> None:
    scaled, _ = feature.scale(train, row_ids, seed)
    low, high = np.quantile(scaled, _BODY)
    body = scaled[(scaled >= low) & (scaled <= high)]
    resolution = np.spacing(np.float32(np.max(np.abs(body))))
    spread = float(high - low)
    if 0 < spread < _MIN_FLOAT32_STEPS * float(resolution):
        raise BadInput(
            f"column '{feature.name}' is lost in float32, which the model works in",
            found=f"nine tenths of its scaled values lie between {low:.9g} and {high:.9g}",
            hint="use --scale standard or --scale marginal against a large offset, --scale marginal against outliers",
        )
