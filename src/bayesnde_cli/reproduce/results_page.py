"""The page of all results: a table for each experiment, each row with the command that computes it again.

`--collect` merges the results of a run directory with those in `results.json` next to the page, so that run directories
can be collected one by one and removed. Density maps are kept in the same way, in `results-maps`.
"""

import math
import shlex
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from bayesnde_cli.errors import BadArtifact, BadUsage
from bayesnde_cli.formatting import counted, duration
from bayesnde_cli.reproduce import experiments, pictures
from bayesnde_cli.reproduce.experiments import DEFAULT, EXPERIMENTS, LOG_DENSITY, TABLE, Experiment, Key, Result
from bayesnde_cli.runs.files import cannot_write, read_object, write_bytes, write_json
from bayesnde_cli.runs.layout import TEST_SET, ExperimentsLayout
from bayesnde_cli.runs.parquet_files import read_table
from bayesnde_cli.stages.measures import gain_figures
from bayesnde_cli.stages.score import DENSITY_SCHEMA

COLLECTION_SCHEMA, COLLECTION_VERSION = "experiment_results", 1
# Figures that compare a result with our default of the same experiment.
_GAIN = ("gain", "gain_se")
# Of Roundtrip: the share of test rows whose Monte-Carlo error is larger. Their log-density is underestimated.
_SHARE_ABOVE = "share_above_0.3"


def results_page(results: Sequence[Result], folder: Path) -> str:
    """The page. Texts and pictures come from its folder: `results/NAME.md`, `results-*.svg`, where they exist.

    There is a text for `introduction` and for each experiment.
    """
    from jinja2 import Environment, PackageLoader, StrictUndefined

    loader = PackageLoader("bayesnde_cli", "reproduce")
    templates = Environment(loader=loader, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    templates.filters |= {
        "command": _command,
        "commands": _commands,
        "duration": duration,
        "figure": _figure,
        "gain": _gain,
        "mean": fmean,
        "method": lambda e, method: f"**{e.method_name(method)}**" if method == DEFAULT else e.method_name(method),
        "number": _number,
        "over_seeds": _over_seeds,
        "ratio": _ratio,
        "test_rows": _test_rows,
    }
    sections = [_section(experiment, results, folder) for experiment in EXPERIMENTS.values()]
    introduction = _read_text(folder, "introduction") or "# Results\n"
    template = templates.get_template("results_page.md")
    return template.render(introduction=introduction, sections=sections, names=TABLE["page"]).rstrip() + "\n"


def _section(experiment: Experiment, results: Sequence[Result], folder: Path) -> dict[str, Any]:
    """The results of an experiment by method: our recipes, then the competitors, best first; and missing methods."""
    groups: dict[str, list[Result]] = defaultdict(list)
    for result in results:
        if result.experiment == experiment.folder_name and result.method in experiment.all_methods:
            groups[result.method].append(result)
    own = [name for name in experiment.recipes if name in groups]
    others = [name for name in groups if name not in own]
    others.sort(key=lambda name: -_mean(groups[name], experiment.figure))
    listed = {*groups, *(experiment.paper if experiment.name not in ("budget-sweep", "timing") else ())}
    missing = [experiment.method_name(name) for name in experiment.all_methods if groups and name not in listed]
    picture = f"results-{experiment.picture or experiment.name}.svg"
    return {
        "experiment": experiment,
        "groups": {name: groups[name] for name in (*own, *others)},
        "text": _read_text(folder, experiment.name).strip(),
        "missing": ("; " if any("," in name for name in missing) else ", ").join(missing),
        "picture": picture if (folder / picture).exists() else "",
    }


def _read_text(folder: Path, name: str) -> str:
    path = folder / "results" / f"{name}.md"
    return path.read_text("utf-8") if path.exists() else ""


# Cells


def _test_rows(group: Sequence[Result]) -> str:
    """The number of test rows, and the share whose density is known well, where that is reported."""
    n_rows, n_all = f"{group[0].figures['n']:,}", sum(r.figures["n"] for r in group)
    reliable = [r.figures.get("n_reliable") for r in group]
    if None not in reliable:  # rounded down: 100 % only if it is all of them
        return f"{n_rows}, {100 * sum(n or 0 for n in reliable) // n_all} % reliable"
    above = [r.chosen.get(_SHARE_ABOVE) for r in group]
    if None in above:
        return n_rows
    n_above = sum(round((share or 0) * r.figures["n"]) for share, r in zip(above, group, strict=True))
    return f"{n_rows}, {100 * (n_all - n_above) // n_all} % with an error below 0.3"


def _commands(group: Sequence[Result], experiment: Experiment) -> str:
    """The commands of these arms of one method: one for all seeds that were run alike."""
    alike: dict[tuple[object, ...], list[Result]] = defaultdict(list)
    for result in group:
        alike[result.test_rows, *result.settings].append(result)
    commands = [_command(experiment, part[0].method, part) for part in alike.values()]
    return "<br>".join(f"`{command}`" for command in commands).replace("|", "\\|")  # a bar would end the cell


def _command(experiment: Experiment, method: str | None, group: Sequence[Result] = ()) -> str:
    """The command of these arms, all run with the same settings."""
    words = ["bayesnde", "reproduce", experiment.command]
    if method is not None and (method,) != experiment.first:
        words += ["--recipe" if method in experiment.recipes else "--method", method]
    if group:
        if tuple(r.seed for r in group) != experiment.seeds:
            words += ["--seeds", ",".join(str(r.seed) for r in group)]
        if group[0].test_rows != experiment.test_rows:
            words += ["--test-rows", str(group[0].test_rows)]
        for setting in group[0].settings:
            words += ["--set", shlex.quote(setting)]
    return " ".join(words)


def _mean(group: Sequence[Result], figure: str) -> float:
    values = [value for r in group if (value := r.figures.get(figure)) is not None]
    return fmean(values) if values else -math.inf


def _figure(group: Sequence[Result], figure: str) -> str:
    """The mean over seeds; with one seed its s.e. over test rows, with several the figure of each."""
    mean = _mean(group, figure)
    if mean == -math.inf:
        return "–"
    text = _number(mean)
    if len(group) > 1:
        text = f"{text} ({', '.join(_number(r.figures.get(figure)) or '–' for r in group)})"
    elif (se := group[0].figures.get(f"{figure}_se")) is not None:
        text = f"{text} ± {se:.{2 if figure == LOG_DENSITY else 3}f}"
    n_lost = sum(r.figures.get("n_not_finite", 0) for r in group) if figure == LOG_DENSITY else 0
    return f"{text}, without {counted(n_lost, 'row')} at -∞" if n_lost else text


def _gain(result: Result) -> str:
    """The gain over the rows and its s.e., with two significant digits of the latter, or four decimals."""
    gain, se = (result.figures.get(name) for name in _GAIN)
    if gain is None:
        return ""
    decimals = min(4, max(2, 1 - _exponent(se))) if se else 2
    return f"{gain:z.{decimals}f}" + ("" if se is None else f" ± {se:.{decimals}f}")


def _over_seeds(values: Iterable[float]) -> str:
    mean, se = pictures.mean_over_seeds(list(values))
    return _number(mean) if math.isnan(se) else f"{_number(mean)} ± {se:.4f}"


def _ratio(seconds: float, own: float) -> str:
    """A ratio with two decimals; with two significant digits where these would be too few."""
    ratio = seconds / own
    return f"{ratio:.{1 - _exponent(ratio) if 0 < ratio < 0.01 else 2}f}"


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:z.{4 if abs(value) < 1.5 else 2}f}"  # z: zero has no sign


def _exponent(value: float) -> int:
    """The power of ten in scientific notation, after rounding to two digits."""
    return int(f"{value:.1e}".partition("e")[2])


# Collecting


@dataclass(frozen=True)
class Collected:
    """The page that was written, and how many results it has."""

    page: str
    n_results: int
    n_new: int

    def as_dict(self) -> dict[str, Any]:
        return vars(self)

    def __str__(self) -> str:
        return f"{self.page}: {counted(self.n_results, 'result')}, {self.n_new:,} of them from this run directory"


def collect_results(root: Path, page: Path) -> Collected:
    """Write the page of all results: those of this run directory, and those that were collected before."""
    if page.suffix != ".md":
        raise BadUsage(
            f"--out {page} is not a page", found="a name that does not end in .md", hint="name it as results.md"
        )
    layout, folder, store = ExperimentsLayout(root), page.parent, page.with_suffix(".json")
    old = _read_store(store)
    new = [experiments.parse_result(read_object(arm.result_file), arm.result_file) for arm in layout.results()]
    merged = _add_gains(layout, old, new)
    if not merged:
        raise BadUsage(
            f"there is nothing to collect in {layout.folder}",
            found="no result.json of an experiment",
            hint="run one first, for instance `bayesnde reproduce involute`",
        )
    refuse_other_rows(merged)
    before, here = {result.fit for result in old}, {result.fit for result in new}
    maps: dict[Key, pictures.DensityMap] = {}
    for result in filter(_has_map, merged):
        arm_file = layout.arm(*result.key).map_file
        stored = folder / "results-maps" / f"{result.experiment}-{result.method}-seed{result.seed}.parquet"
        if result.fit in here and arm_file.exists():
            found = pictures.read_map(arm_file)
            with np.errstate(over="ignore"):  # below the range of float32 the density is 0 anyway
                small = found.log_density.astype(np.float32)  # a file of 11 kB
            pictures.write_map(stored, found.with_values(small))
        elif result.fit not in before:  # the stored map is of an earlier fit
            with cannot_write(folder):
                stored.unlink(missing_ok=True)
        if stored.exists():
            maps[result.key] = pictures.read_map(stored)
    write_pictures(maps, merged, folder)
    text = results_page(merged, folder)
    document = {"schema": COLLECTION_SCHEMA, "schema_version": COLLECTION_VERSION}
    write_json(store, document | {"results": [result.as_dict() for result in merged]})  # after the page could be made
    write_bytes(page, text.encode())
    return Collected(str(page), len(merged), sum(result.fit in here for result in merged))


def write_pictures(maps: Mapping[Key, pictures.DensityMap], results: Sequence[Result], folder: Path) -> list[Path]:
    """Write the pictures that have numbers; older pictures without new numbers are kept."""
    drawn = {
        name: pictures.draw_experiment(experiment, maps)
        for name, experiment in EXPERIMENTS.items()
        if experiment.map_title and not experiment.folder
    }
    drawn |= {"dimensions": pictures.draw_dimensions(results), "budget": pictures.draw_budgets(results)}
    written = {folder / f"results-{name}.svg": picture for name, picture in drawn.items() if picture is not None}
    for path, picture in written.items():
        write_bytes(path, picture)
    return list(written)


def merge(old: Iterable[Result], new: Iterable[Result]) -> list[Result]:
    """One result of every arm, the newer one, in the order of the experiments, then of methods and seeds."""
    by_key = {result.key: result for result in sorted((*old, *new), key=lambda result: result.ended)}
    places = {name: index for index, name in enumerate(EXPERIMENTS)}
    return sorted(by_key.values(), key=lambda r: (places.get(r.experiment, len(places)), not r.is_own, *r.key[1:]))


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


def _read_store(store: Path) -> list[Result]:
    if not store.exists():
        return []
    found = read_object(store)
    if found.get("schema") != COLLECTION_SCHEMA:
        what, hint = f"{store} does not hold results of experiments", "name another page with --out"
        raise BadArtifact(what, found="another document", hint=hint)
    return [experiments.parse_result(entry, store) for entry in found["results"]]


def _add_gains(layout: ExperimentsLayout, old: Sequence[Result], new: Sequence[Result]) -> list[Result]:
    """All results, each with how much higher our default's log-density of the same rows is, where that is known.

    It is computed where both fits are in this run directory; a stored gain is kept while both fits are the same.
    """
    merged = merge(old, new)
    ours = {
        result.experiment: result
        for result in merged
        if (experiment := EXPERIMENTS.get(result.experiment)) and result.key[1:] == (DEFAULT, experiment.seeds[0])
    }
    before, here = {result.fit for result in old}, {result.fit for result in new}
    stored = {result.fit: {name: result.figures[name] for name in _GAIN if name in result.figures} for result in old}
    found = []
    for result in merged:
        default = ours.get(result.experiment, result)
        both = {default.fit, result.fit}
        gain: dict[str, Any] = {}
        if len(both) == 2 and both <= here and _is_comparable(result, default):
            gain = gain_figures(_read_log_density(layout, default), _read_log_density(layout, result))
        elif both <= before:
            gain = stored[result.fit]
        plain = {name: value for name, value in result.figures.items() if name not in _GAIN}
        found.append(replace(result, figures=plain | gain))
    return found


def _is_comparable(result: Result, default: Result) -> bool:
    """Whether the log-densities of both can be compared row by row."""
    # For outliers our density is blurred; for images it is not from the bridge.
    if EXPERIMENTS[result.experiment].figure in (experiments.PRECISION, experiments.ACCURACY):
        return False
    return result.figures.get(LOG_DENSITY) is not None and result.rows_sha256 == default.rows_sha256


def _read_log_density(layout: ExperimentsLayout, result: Result) -> np.ndarray:
    """The log-density of the test rows, in the units of the file."""
    arm = layout.arm(*result.key)
    path, name = arm.scores_file, experiments.SCORES_SCHEMA
    if result.is_own:
        path, name = arm.run.density_file(TEST_SET), DENSITY_SCHEMA
    return np.asarray(read_table(path, name, ["log_density"])["log_density"].to_numpy())


def _has_map(result: Result) -> bool:
    """Whether a picture shows the map of this arm."""
    experiment = EXPERIMENTS.get(result.experiment)
    return experiment is not None and bool(experiment.map_title) and result.method in experiment.all_methods
