"""The results as a page in Markdown: a table for each experiment, each row with the command that makes it again."""

import math
import shlex
from collections import defaultdict
from collections.abc import Callable, Container, Mapping, Sequence
from pathlib import Path
from statistics import fmean, stdev

from bayesnde_cli.stages.reporting import counted, duration
from bayesnde_cli.stages.reproduce.experiments import (
    ACCURACY,
    DEFAULT,
    EXPERIMENTS,
    LOG_DENSITY,
    PAPER,
    PRECISION,
    SPEARMAN,
    Experiment,
    typed,
)
from bayesnde_cli.stages.reproduce.method_names import method_name
from bayesnde_cli.stages.reproduce.result import Result

_FIGURE_NAMES = {
    LOG_DENSITY: "mean log-density", SPEARMAN: "Spearman", PRECISION: "precision at k", ACCURACY: "accuracy"
}  # fmt: skip
# What stands beside the figure of an experiment.
_BESIDE = {
    SPEARMAN: {"mean log-density": LOG_DENSITY}, PRECISION: {"AUROC": "auroc"},
    ACCURACY: {"bits per dimension": "bits_per_dimension", "gradients an image": "n_gradients"},
}  # fmt: skip
# Of Roundtrip: the share of test rows whose Monte-Carlo error is larger. Their log-density comes out too low.
_SHARE_ABOVE = "share_above_0.3"


def results_page(results: Sequence[Result], folder: Path) -> str:
    """The page. Words and pictures are taken from the folder it will lie in: `results/NAME.md`, `results-*.svg`.

    Words are those of `introduction` and of each experiment; what is not there is left out.
    """
    by_folder: dict[str, list[Result]] = defaultdict(list)
    for result in results:
        by_folder[result.experiment].append(result)
    parts = [_words(folder, "introduction") or "# Results\n"]
    for experiment in EXPERIMENTS.values():
        own = [r for r in by_folder[experiment.folder_name] if r.method in (*experiment.recipes, *experiment.methods)]
        parts.append(_section(experiment, own, folder))
    return "\n".join(parts)


def _section(experiment: Experiment, results: Sequence[Result], folder: Path) -> str:
    lines = [f"## {experiment.name}", "", f"{experiment.summary[0].upper()}{experiment.summary[1:]}."]
    if words := _words(folder, experiment.name):
        lines += ["", words.strip()]
    pictures = {"gmm-25": "dimensions", "budget-sweep": "budget"}
    picture = f"results-{pictures.get(experiment.name, experiment.name)}.svg"
    table = {"budget-sweep": _budgets, "timing": _times}.get(experiment.name, _figures)
    lines += ["", *(table(experiment, results) if results else [f"Not run yet: `{_command(experiment, None)}`."])]
    if results and (left := _left_out(experiment, results, experiment.paper if table is _figures else ())):
        between = "; " if any("," in name for name in left) else ", "
        lines += ["", f"Not run: {between.join(left)}."]
    if (folder / picture).exists():
        lines += ["", f"![{experiment.summary}]({picture})"]
    return "\n".join([*lines, ""])


def _left_out(experiment: Experiment, results: Sequence[Result], listed: Container[str]) -> list[str]:
    """The names of the methods that have no result, and no line in the table that says so."""
    groups = _by_method(results)
    return [
        method_name(name, is_own=name in experiment.recipes)
        for name in (*experiment.recipes, *experiment.methods)
        if name not in groups and name not in listed
    ]


def _words(folder: Path, name: str) -> str:
    """What was written by hand for a section."""
    path = folder / "results" / f"{name}.md"
    return path.read_text("utf-8") if path.exists() else ""


def _figures(experiment: Experiment, results: Sequence[Result]) -> list[str]:
    """Our recipes, then the competitors, the best first."""
    figure = experiment.figure
    groups = _by_method(results)
    own = [name for name in experiment.recipes if name in groups]
    others = sorted((name for name in groups if name not in own), key=lambda name: -_mean(groups[name], figure))
    has_gain = figure in (SPEARMAN, LOG_DENSITY) and DEFAULT in groups
    beside = _BESIDE.get(figure, {})
    header = ["method", _FIGURE_NAMES[figure], "in the paper"]
    header += list(beside)
    header += ["ours above it by"] if has_gain else []
    header += ["test rows", "seeds", "time", "command"]
    rows = []
    for name in (*own, *others):
        group = groups[name]
        cells = [_name(experiment, name), _figure(group, figure), _number(experiment.paper.get(name))]
        cells += [_figure(group, name) for name in beside.values()]
        if has_gain:
            cells.append(_gain(group))
        rows.append([*cells, *_origin(experiment, group)])
        if name in (DEFAULT, PAPER) and experiment.name.startswith("ablation"):
            without = [{"figures": r.figures["importance"]} for r in group]
            cells = [f"{_name(experiment, name)}, importance sampling instead of the bridge"]
            cells += [_number(fmean(r["figures"][figure] for r in without))]
            cells += [_number(experiment.paper_importance.get(name))]
            cells += [_number(fmean(r["figures"][LOG_DENSITY] for r in without))] if figure == SPEARMAN else []
            cells += [""] if has_gain else []
            rows.append([*cells, *_origin(experiment, group)])
    for name, value in experiment.paper.items():
        if name not in groups:
            blank = [""] * (len(header) - 4)
            rows.append([_name(experiment, name), "not run", _number(value), *blank, f"`{_command(experiment, name)}`"])
    return _table(header, rows)


def _budgets(experiment: Experiment, results: Sequence[Result]) -> list[str]:
    groups = _by_method(results)
    header = ["draws", "Spearman, bridge", "Spearman, importance sampling", "difference", "bridge in the paper",
              "importance sampling in the paper", "error, bridge", "error, importance sampling", "error told, bridge",
              "command"]  # fmt: skip
    rows = []
    for name in (name for name in experiment.recipes if name in groups):
        group = groups[name]
        bridge = [r.figures[SPEARMAN] for r in group]
        importance = [r.figures["importance"][SPEARMAN] for r in group]
        gain = [a - b for a, b in zip(bridge, importance, strict=True)]
        rows.append(
            [name.removeprefix("budget-"), _over_seeds(bridge), _over_seeds(importance), _over_seeds(gain),
             _number(experiment.paper.get(name)), _number(experiment.paper_importance.get(name)),
             _over_seeds([r.figures["error"] for r in group]),
             _over_seeds([r.figures["importance"]["error"] for r in group]),
             _number(fmean(r.figures["mean_mc_se"] for r in group)), _commands(experiment, group)]
        )  # fmt: skip
    return _table(header, rows)


def _times(experiment: Experiment, results: Sequence[Result]) -> list[str]:
    groups = _by_method(results)
    ours = groups.get(DEFAULT)
    header = ["method", "fitting", "scoring", "in all", "as a ratio to ours", "in the paper (GPU)",
              "as a ratio to the paper's own", "device", "command"]  # fmt: skip
    rows = []
    for name, group in sorted(groups.items(), key=lambda item: item[1][0].seconds):
        first = group[0]
        ratio = _ratio(first.seconds, ours[0].seconds) if ours else ""
        paper = experiment.paper.get(name)
        printed = ["", ""] if paper is None else [duration(paper), _ratio(paper, experiment.paper[PAPER])]
        rows.append(
            [_name(experiment, name), duration(first.seconds_fit), duration(first.seconds_score),
             duration(first.seconds), ratio, *printed, first.device, _commands(experiment, group)]
        )  # fmt: skip
    return _table(header, rows)


def _ratio(seconds: float, own: float) -> str:
    """Two decimals; two digits that count, where these would be too few."""
    ratio = seconds / own
    return _fixed(ratio, 1 - _exponent(ratio) if 0 < ratio < 0.01 else 2)


def _origin(experiment: Experiment, group: Sequence[Result]) -> list[str]:
    seeds = ", ".join(str(r.seed) for r in group)
    time = duration(fmean(r.seconds for r in group))
    return [_test_rows(group), seeds, time, _commands(experiment, group)]


def _test_rows(group: Sequence[Result]) -> str:
    """How many there are, and of how many of them the density is known well, if that is told."""
    n_rows, n_all = f"{group[0].figures['n']:,}", sum(r.figures["n"] for r in group)
    reliable = [r.figures.get("n_reliable") for r in group]
    if None not in reliable:
        return f"{n_rows}, {100 * sum(n or 0 for n in reliable) // n_all} % reliable"  # not all of them: never 100
    above = [r.chosen.get(_SHARE_ABOVE) for r in group]
    if None in above:
        return n_rows
    n_above = sum(round((share or 0) * r.figures["n"]) for share, r in zip(above, group, strict=True))
    return f"{n_rows}, {100 * (n_all - n_above) // n_all} % with an error below 0.3"


def _commands(experiment: Experiment, group: Sequence[Result]) -> str:
    """What the user types for these arms of one method: once more for seeds that were run otherwise."""
    alike: dict[tuple[object, ...], list[Result]] = defaultdict(list)
    for result in group:
        alike[result.test_rows, *result.settings].append(result)
    commands = [_command(experiment, part[0].method, part) for part in alike.values()]
    return "<br>".join(f"`{command}`" for command in commands).replace("|", "\\|")  # a bar would end the cell


def _command(experiment: Experiment, method: str | None, group: Sequence[Result] = ()) -> str:
    """What the user types for these arms, all run with the same settings."""
    words = ["bayesnde", "reproduce", *typed(experiment).split()]
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


def _by_method(results: Sequence[Result]) -> Mapping[str, list[Result]]:
    groups: dict[str, list[Result]] = defaultdict(list)
    for result in results:
        groups[result.method].append(result)
    return groups


def _name(experiment: Experiment, method: str) -> str:
    name = method_name(method, is_own=method in experiment.recipes)
    return f"**{name}**" if method == DEFAULT else name


def _mean(group: Sequence[Result], figure: str) -> float:
    values = [value for r in group if (value := r.figures.get(figure)) is not None]
    return fmean(values) if values else -math.inf


def _figure(group: Sequence[Result], figure: str) -> str:
    """The mean over seeds; with one seed the error over test rows, with several all of them."""
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


def _gain(group: Sequence[Result]) -> str:
    """The gain over the rows, and its error with two digits that count, or four decimals."""
    gain, se = (group[0].figures.get(name) for name in ("gain", "gain_se"))
    if gain is None:
        return ""
    decimals = min(4, max(2, 1 - _exponent(se))) if se else 2
    return _fixed(gain, decimals) if se is None else f"{_fixed(gain, decimals)} ± {_fixed(se, decimals)}"


def _over_seeds(values: Sequence[float]) -> str:
    mean = _number(fmean(values))
    return mean if len(values) < 2 else f"{mean} ± {stdev(values) / math.sqrt(len(values)):.4f}"


def _number(value: float | None) -> str:
    if value is None:
        return ""
    return _fixed(value, 4 if abs(value) < 1.5 else 2)


def _fixed(value: float, decimals: int) -> str:
    """A number with so many decimals; what is rounded to zero has no sign."""
    return f"{round(value, decimals) + 0.0:.{decimals}f}"


def _exponent(value: float) -> int:
    """That of the power of ten in front of which it is written, rounded to two digits."""
    return int(f"{value:.1e}".partition("e")[2])


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    line: Callable[[Sequence[str]], str] = lambda cells: f"| {' | '.join(cells)} |"  # noqa: E731
    return [line(header), line(["---"] * len(header)), *map(line, rows)]
