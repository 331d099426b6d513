"""All results together: `results.json`, which later runs add to, and the page that is made from it.

The maps of two columns are kept in the same way, in `results-maps`.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from bayesnde_cli.artifacts import atomic
from bayesnde_cli.artifacts.atomic import cannot_write
from bayesnde_cli.artifacts.canonical import read_object
from bayesnde_cli.artifacts.experiments_layout import ExperimentsLayout
from bayesnde_cli.artifacts.layout import TEST_SET
from bayesnde_cli.artifacts.tables import read_table
from bayesnde_cli.errors import BadArtifact, BadUsage
from bayesnde_cli.evaluation.scores import gain_figures
from bayesnde_cli.stages.reporting import counted
from bayesnde_cli.stages.reproduce.collected_maps import forget_maps, run_maps, store_maps, stored_maps
from bayesnde_cli.stages.reproduce.drawing import draw_all
from bayesnde_cli.stages.reproduce.experiments import ACCURACY, DEFAULT, EXPERIMENTS, LOG_DENSITY, PRECISION
from bayesnde_cli.stages.reproduce.result import Result, read_result, result_from
from bayesnde_cli.stages.reproduce.results_page import results_page
from bayesnde_cli.stages.reproduce.scores import SCORES_SCHEMA, SCORES_VERSION
from bayesnde_cli.stages.scoring.density_table import DENSITY_SCHEMA, DENSITY_VERSION

COLLECTION_SCHEMA, COLLECTION_VERSION = "experiment_results", 1
# Figures that compare a result with our default of the same experiment.
_GAIN = ("gain", "gain_se")


@dataclass(frozen=True)
class Collected:
    """What was brought together."""

    page: str
    n_results: int
    n_new: int

    def as_dict(self) -> dict[str, Any]:
        return vars(self)

    def __str__(self) -> str:
        return f"{self.page}: {counted(self.n_results, 'result')}, {self.n_new:,} of them from this run directory"


def collect_results(root: Path, page: Path) -> Collected:
    """The page of all results: those of this run directory, and those that were collected before."""
    if page.suffix != ".md":
        raise BadUsage(
            f"--out {page} is no page", found="a name that does not end in .md", hint="name it as results.md"
        )
    layout = ExperimentsLayout(root)
    store = page.with_suffix(".json")
    old, new = _stored(store), [read_result(arm.result_file) for arm in layout.results()]
    merged = _with_gains(layout, old, new)
    if not merged:
        raise BadUsage(
            f"there is nothing to collect in {layout.folder}",
            found="no result.json of an experiment",
            hint="run one first, for instance `bayesnde reproduce involute`",
        )
    refuse_other_rows(merged)
    with cannot_write(page.parent):
        page.parent.mkdir(parents=True, exist_ok=True)
    document = {"schema": COLLECTION_SCHEMA, "schema_version": COLLECTION_VERSION,
                "results": [result.as_dict() for result in merged]}  # fmt: skip
    from_here = {result.fit for result in new}
    new_maps = run_maps(layout, [result for result in merged if result.fit in from_here])
    before = {result.fit for result in old}
    maps = stored_maps(page.parent, [r for r in merged if r.fit in before and r.key not in new_maps]) | new_maps
    draw_all(maps, merged, page.parent)
    text = results_page(merged, page.parent)
    atomic.write_json(store, document)  # only what a page can be made of is stored
    atomic.write_bytes(page, text.encode())
    store_maps(page.parent, new_maps)
    forget_maps(page.parent, [result for result in merged if result.key not in maps])
    return Collected(str(page), len(merged), sum(result.fit in from_here for result in merged))


def merge(old: Iterable[Result], new: Iterable[Result]) -> list[Result]:
    """One result of every arm, the newer one, in the order of the experiments, then of methods and seeds."""
    by_key: dict[tuple[str, str, int], Result] = {}
    for result in (*old, *new):
        there = by_key.get(result.key)
        if there is None or result.ended >= there.ended:
            by_key[result.key] = result
    places = {name: index for index, name in enumerate(EXPERIMENTS)}
    return sorted(
        by_key.values(), key=lambda r: (places.get(r.experiment, len(places)), not r.is_own, r.method, r.seed)
    )


def refuse_other_rows(results: Sequence[Result]) -> None:
    """Every method must have been evaluated on the same rows, to the byte."""
    first: dict[str, Result] = {}
    for result in results:
        other = first.setdefault(result.experiment, result)
        if other.rows_sha256 != result.rows_sha256:
            raise BadArtifact(
                f"{result.experiment}: {result.method} and {other.method} were not evaluated on the same rows",
                found=[
                    f"{found.method}, seed {found.seed}: {found.figures.get('n')} rows, {found.rows_sha256}"
                    for found in (result, other)
                ],
                hint="run one of them again as the other was run (--test-rows, version), with --restart",
            )


def _stored(store: Path) -> list[Result]:
    if not store.exists():
        return []
    found = read_object(store, newest=COLLECTION_VERSION)
    results = found.get("results")
    if (
        found.get("schema") != COLLECTION_SCHEMA
        or not isinstance(results, list)
        or not all(isinstance(entry, dict) for entry in results)
    ):
        raise BadArtifact(
            f"{store} holds no results of experiments", found="another document", hint="name another page with --out"
        )
    return [result_from(entry, store) for entry in found["results"]]


def _with_gains(layout: ExperimentsLayout, old: Sequence[Result], new: Sequence[Result]) -> list[Result]:
    """All results, each with how much higher our default's log-density of the same rows is, if that is known.

    It is worked out where both fits lie in this run directory; what was stored is kept while both fits are the same.
    """
    merged = merge(old, new)
    ours = {result.experiment: result for result in merged if _is_held_against(result)}
    before, here = {result.fit for result in old}, {result.fit for result in new}
    stored = {result.fit: {name: result.figures[name] for name in _GAIN if name in result.figures} for result in old}
    found = []
    for result in merged:
        default = ours.get(result.experiment, result)
        both = {default.fit, result.fit}
        gain: dict[str, Any] = {}
        if len(both) == 2 and both <= here and _is_comparable(result, default):
            gain = gain_figures(_log_density(layout, default), _log_density(layout, result))
        elif both <= before:
            gain = stored[result.fit]
        plain = {name: value for name, value in result.figures.items() if name not in _GAIN}
        found.append(replace(result, figures=plain | gain))
    return found


def _is_held_against(result: Result) -> bool:
    """Whether it is our default that gains are over."""
    experiment = EXPERIMENTS.get(result.experiment)
    return experiment is not None and result.key[1:] == (DEFAULT, experiment.seeds[0])


def _is_comparable(result: Result, default: Result) -> bool:
    """Whether the log-densities of both can be compared row by row."""
    if EXPERIMENTS[result.experiment].figure in (PRECISION, ACCURACY):  # ours is blurred there, or of no bridge
        return False
    return result.figures.get(LOG_DENSITY) is not None and result.rows_sha256 == default.rows_sha256


def _log_density(layout: ExperimentsLayout, result: Result) -> np.ndarray:
    """The log-density of the test rows, in the units of the file."""
    arm = layout.arm(*result.key)
    path, name, version = (
        (arm.run.density_file(TEST_SET), DENSITY_SCHEMA, DENSITY_VERSION)
        if result.is_own
        else (arm.scores_file, SCORES_SCHEMA, SCORES_VERSION)
    )
    return np.asarray(read_table(path, name, ["log_density"], schema_version=version)["log_density"].to_numpy())
