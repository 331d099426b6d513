"""All results together: `results.json`, which later runs add to, and the page that is made from it."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from bayesnde_cli.artifacts import atomic
from bayesnde_cli.artifacts.atomic import cannot_write
from bayesnde_cli.artifacts.canonical import read_object
from bayesnde_cli.artifacts.experiments_layout import ArmLayout, ExperimentsLayout
from bayesnde_cli.artifacts.layout import TEST_SET
from bayesnde_cli.artifacts.tables import read_table
from bayesnde_cli.errors import BadArtifact, BadUsage
from bayesnde_cli.evaluation.scores import gain_figures
from bayesnde_cli.stages.reporting import counted
from bayesnde_cli.stages.reproduce.drawing import draw_all
from bayesnde_cli.stages.reproduce.experiments import ACCURACY, DEFAULT, EXPERIMENTS, LOG_DENSITY, PRECISION
from bayesnde_cli.stages.reproduce.result import Result, read_result, result_from
from bayesnde_cli.stages.reproduce.results_page import results_page
from bayesnde_cli.stages.reproduce.scores import SCORES_SCHEMA, SCORES_VERSION
from bayesnde_cli.stages.scoring.density_table import DENSITY_SCHEMA, DENSITY_VERSION

COLLECTION_SCHEMA, COLLECTION_VERSION = "experiment_results", 1


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
    new = [_with_gain(layout, read_result(arm.result_file)) for arm in layout.results()]
    anew = {result.experiment for result in new if result.method == DEFAULT}
    old = [_without_gain(result) if result.experiment in anew else result for result in _stored(store)]
    merged = merge(old, new)
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
    draw_all(layout, merged, page.parent)
    text = results_page(merged, page.parent)
    atomic.write_json(store, document)  # only what a page can be made of is stored
    atomic.write_bytes(page, text.encode())
    return Collected(str(page), len(merged), sum(result in new for result in merged))


def merge(old: Iterable[Result], new: Iterable[Result]) -> list[Result]:
    """One result of every arm, the newer one, in the order of the experiments, then of methods and seeds."""
    by_key: dict[tuple[str, str, int], Result] = {}
    for result in (*old, *new):
        there = by_key.get(result.key)
        if there is None or result.ended >= there.ended:  # the same one once more: it may have a gain now
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


def _with_gain(layout: ExperimentsLayout, result: Result) -> Result:
    """A result, with how much higher our default's log-density of the same rows is, if that is there."""
    arm = layout.arm(result.experiment, result.method, result.seed)
    if result.figures.get(LOG_DENSITY) is None or result.experiment not in EXPERIMENTS:
        return result
    if EXPERIMENTS[result.experiment].figure in (PRECISION, ACCURACY):  # ours is blurred there, or of no bridge
        return result
    ours = layout.arm(result.experiment, DEFAULT, EXPERIMENTS[result.experiment].seeds[0])
    if not ours.result_file.exists() or ours == arm:
        return result
    if read_result(ours.result_file).rows_sha256 != result.rows_sha256:
        return result
    return replace(
        result, figures=result.figures | gain_figures(_log_density(ours, True), _log_density(arm, result.is_own))
    )


def _without_gain(result: Result) -> Result:
    """A stored result whose gain was over another fit of ours."""
    kept = {name: value for name, value in result.figures.items() if name not in ("gain", "gain_se")}
    return replace(result, figures=kept)


def _log_density(arm: ArmLayout, is_own: bool) -> np.ndarray:
    """The log-density of the test rows, in the units of the file."""
    path, name, version = (
        (arm.run.density_file(TEST_SET), DENSITY_SCHEMA, DENSITY_VERSION)
        if is_own
        else (arm.scores_file, SCORES_SCHEMA, SCORES_VERSION)
    )
    return np.asarray(read_table(path, name, ["log_density"], schema_version=version)["log_density"].to_numpy())
