"""From the words of a command line to the question that a grid answers."""

import math
from collections.abc import Sequence

import numpy as np

from bayesnde_cli.config import nearest_hint
from bayesnde_cli.data.kinds import Kind
from bayesnde_cli.data.roles import listed, match_columns
from bayesnde_cli.data.scaling import Logit
from bayesnde_cli.data.scaling.logit import HIGHEST, LOWEST
from bayesnde_cli.data.schema import Feature
from bayesnde_cli.errors import BadUsage
from bayesnde_cli.stages.applying.axis import Axis, axis_at, axis_between
from bayesnde_cli.stages.applying.fitted_run import FittedRun

# Points of an axis: 25 million of a grid are held at once.
_MOST_POINTS = 5000
# The range of an axis, if none is given: that of all training rows but this share at either end, and a margin.
_LEFT_OUT = 0.005
_MARGIN = 0.1


def grid_axes(run: FittedRun, names: Sequence[str], n_points: int, between: str | None) -> tuple[Axis, Axis]:
    """The axes of two columns; `between` is `low,high,low,high`."""
    first, second = (_feature(run, name, "a grid") for name in names)
    if first.name == second.name:
        raise BadUsage("a grid needs two columns", found=f"'{first.name}' twice", hint="name another column")
    if not 2 <= n_points <= _MOST_POINTS:
        raise BadUsage(
            f"--points must be 2 at least and {_MOST_POINTS:,} at most",
            found=f"--points {n_points}",
            hint="the default is 100",
        )
    ranges = [_usual_range(run, feature) for feature in (first, second)] if between is None else _ranges(between)
    for feature in (first, second):
        if between is not None and feature.kind is Kind.CATEGORICAL:
            raise BadUsage(
                f"--range: column '{feature.name}' has categories, and all of them are shown",
                found=f"--range {between}",
                hint="leave --range out",
            )
    return axis_between(first, *ranges[0], n_points), axis_between(second, *ranges[1], n_points)


def held_columns(run: FittedRun, rules: Sequence[str], grid: Sequence[Axis]) -> list[Axis]:
    """The columns that `--at COL=VALUE` holds at a value, each as an axis of one point."""
    held: list[Axis] = []
    for rule in rules:
        name, word = _name_and_value(rule, run.schema.roles.features)
        feature = _feature(run, name, "--at")
        if feature.name in [axis.feature.name for axis in (*grid, *held)]:
            raise BadUsage(
                f"--at: column '{feature.name}' is on the grid, or held, already",
                found=f"--at {rule}",
                hint="hold another column",
            )
        held.append(axis_at(feature, np.array([_place(feature, word)])))
    return held


def _name_and_value(rule: str, names: Sequence[str]) -> tuple[str, str]:
    """The two sides of `COL=VALUE`. Both may have a = of their own: the longest column that is there is meant."""
    splits = [(rule[:at].strip(), rule[at + 1 :].strip()) for at, char in enumerate(rule) if char == "="]
    if not splits:
        raise BadUsage(f"--at {rule} names no value", found="no =", hint=f"write for instance --at {rule}=1")
    known = [split for split in splits if split[0] in names]
    return known[-1] if known else splits[0]


def _feature(run: FittedRun, name: str, where: str) -> Feature:
    if name == run.schema.roles.condition:
        raise BadUsage(
            f"{where}: '{name}' is the condition, not a feature",
            found=f"classes: {listed(run.classes)}",
            hint="choose a class with --condition CLASS",
        )
    features = {feature.name: feature for feature in run.schema.features}
    match_columns([name], list(features), option=where, what="feature") if name not in features else None
    return features[name]


def _place(feature: Feature, word: str) -> float:
    """Where a cell lies on its axis."""
    if feature.kind is Kind.CATEGORICAL:
        if word not in feature.categories:
            raise BadUsage(
                f"--at: column '{feature.name}' has no category '{word}'",
                found=f"categories: {listed(feature.categories)}",
                hint=nearest_hint(word, feature.categories, "use one of the categories"),
            )
        return float(feature.categories.index(word))
    place = _number(word)
    if place is None or (feature.kind is Kind.LATTICE and place != round(place)):
        kind = "a whole number" if feature.kind is Kind.LATTICE else "a number"
        raise BadUsage(
            f"--at: column '{feature.name}' takes {kind}", found=f"value: '{word}'", hint="correct the value"
        )
    if isinstance(feature.map, Logit) and not LOWEST <= place <= HIGHEST:
        raise BadUsage(
            f"--at: column '{feature.name}' has values from 0 to 255",
            found=f"value: '{word}'",
            hint="correct the value",
        )
    return place


def _ranges(text: str) -> list[tuple[float, float]]:
    numbers = [_number(word) for word in text.split(",")]
    known = [number for number in numbers if number is not None]
    if len(numbers) != 4 or len(known) != 4 or not (known[0] < known[1] and known[2] < known[3]):
        raise BadUsage(
            f"--range cannot be '{text}'",
            found="a range is LOW,HIGH of the first column, then LOW,HIGH of the second",
            hint="for instance --range 0,10,-1,1",
        )
    return [(known[0], known[1]), (known[2], known[3])]


def _number(word: str) -> float | None:
    try:
        number = float(word)
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def _usual_range(run: FittedRun, feature: Feature) -> tuple[float, float]:
    """Where nearly all training rows are."""
    if feature.kind is Kind.CATEGORICAL:
        return 0.0, len(feature.categories) - 1.0
    if isinstance(feature.map, Logit):
        return LOWEST, HIGHEST
    batches = [batch.column(0).to_numpy() for batch in run.training_rows([feature.name])]
    low, high = np.quantile(np.concatenate(batches), [_LEFT_OUT, 1.0 - _LEFT_OUT])
    margin = _MARGIN * (high - low) or 1.0
    return float(low - margin), float(high + margin)
