"""`reproduce`: the paper's experiments by name, ours and its competitors', each arm in a folder of its own."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from bayesnde_cli import __version__
from bayesnde_cli.artifacts import environment
from bayesnde_cli.artifacts.experiments_layout import ExperimentsLayout
from bayesnde_cli.artifacts.shards import Shard, blocks_of
from bayesnde_cli.config import nearest_hint
from bayesnde_cli.errors import BadUsage, SettingsDiffer
from bayesnde_cli.stages.reporting import Report, aligned, duration
from bayesnde_cli.stages.reproduce.experiments import (
    ACCURACY,
    EXPERIMENTS,
    LOG_DENSITY,
    SECONDS,
    Experiment,
    Recipe,
    typed,
)
from bayesnde_cli.stages.reproduce.result import Result, read_result, write_result

ALL = "all"
_SCORING = ("density.", "evaluate.")


@dataclass(frozen=True)
class Asked:
    """What the user asks of an experiment."""

    recipes: tuple[str, ...] = ()
    methods: tuple[str, ...] = ()
    seeds: tuple[int, ...] = ()
    test_rows: int | None = None
    settings: tuple[str, ...] = ()
    data_dir: Path = Path("data")
    is_download: bool = False
    shard: Shard | None = None
    is_restart: bool = False


@dataclass(frozen=True)
class Reproduced:
    """The arms that were run, or were there."""

    experiment: Experiment
    results: Sequence[Result]

    def as_dict(self) -> dict[str, Any]:
        return {"experiment": self.experiment.name, "results": [result.as_dict() for result in self.results]}

    def __str__(self) -> str:
        if not self.results:
            return f"{self.experiment.name}: no arm in this shard"
        figure = self.experiment.figure
        rows = [
            [result.method, str(result.seed), shown((result.figures | {SECONDS: result.seconds}).get(figure)),
             self._paper(result.method), duration(result.seconds)]
            for result in self.results
        ]  # fmt: skip
        header = [self.experiment.name, "seed", figure, "in the paper", "time"]
        return aligned(header, rows)

    def _paper(self, method: str) -> str:
        return shown(self.experiment.paper.get(method))


def shown(value: float | None) -> str:
    """A figure for people."""
    return "–" if value is None else f"{value:.4g}" if abs(value) < 1 else f"{value:.2f}"


def run_reproduce(root: Path, experiment: Experiment, asked: Asked, report: Report) -> Reproduced:
    """Run the arms that are asked for, one after the other; what is done is not done again."""
    layout = ExperimentsLayout(root)
    arms = arms_of(experiment, asked)
    if asked.settings and not any(method in experiment.recipes for method, _ in arms):
        raise BadUsage(
            "--set changes recipes of ours, and none was asked for",
            found=", ".join(f"--set {text}" for text in asked.settings),
            hint="leave it out, or name a recipe with --recipe",
        )
    from bayesnde_cli.evaluation.baselines.neural import require_packages
    from bayesnde_cli.stages.reproduce.settings import arm_settings

    for method, seed in arms:  # bad settings of the last arm are told before the first one is run
        if method in experiment.recipes:
            recipe = experiment.recipes[method]
            _refuse_settings_of_ablation(asked.settings, method, recipe)
            arm_settings(experiment, recipe, seed=seed, test_rows=asked.test_rows, more=asked.settings)
    require_packages([method for method, _ in arms if method not in experiment.recipes], "--method")
    if asked.is_download and arms:
        from bayesnde_cli.stages.reproduce.downloading import download

        download(asked.data_dir, experiment.files, report)
    return Reproduced(experiment, [_run_arm(layout, experiment, asked, method, seed, report) for method, seed in arms])


def arms_of(experiment: Experiment, asked: Asked) -> list[tuple[str, int]]:
    """Recipes and methods by seeds, those of the shard; without any named, the recipes that are to run first."""
    recipes = _named("recipe", asked.recipes, tuple(experiment.recipes), experiment)
    methods = _named("method", asked.methods, experiment.methods, experiment)
    chosen = (*recipes, *methods) or experiment.first
    seeds = dict.fromkeys(asked.seeds or experiment.seeds)
    arms = [(method, seed) for method in chosen for seed in seeds]
    return arms if asked.shard is None else [arms[index] for index in blocks_of(asked.shard, len(arms))]


def _named(kind: str, asked: Sequence[str], known: Sequence[str], experiment: Experiment) -> tuple[str, ...]:
    if ALL in asked and known:
        return tuple(known)
    for name in asked:
        if name not in known:
            raise BadUsage(
                f"{experiment.name} has no {kind} '{name}'",
                found=f"{kind}s: {', '.join((*known, ALL)) if known else '(none)'}",
                hint=nearest_hint(name, list(known), f"use one of these with --{kind}")
                if known
                else f"leave --{kind} out",
            )
    return tuple(dict.fromkeys(asked))


def _run_arm(
    layout: ExperimentsLayout, experiment: Experiment, asked: Asked, method: str, seed: int, report: Report
) -> Result:
    from bayesnde_cli.stages.reproduce.competitor_arm import forget_fits, run_competitor
    from bayesnde_cli.stages.reproduce.maps import simulator_of, write_own_map
    from bayesnde_cli.stages.reproduce.own_arm import forget_arm, run_own
    from bayesnde_cli.stages.reproduce.rows import data_files, unit_interval_shift
    from bayesnde_cli.stages.reproduce.settings import arm_settings

    arm = layout.arm(experiment.folder_name, method, seed)
    test_rows = asked.test_rows or experiment.test_rows
    is_own = method in experiment.recipes
    settings = list(asked.settings) if is_own else []
    report.note(f"{experiment.name}: {method}, seed {seed}")
    if asked.is_restart:
        forget_arm(arm)
    if arm.result_file.exists():
        there = read_result(arm.result_file)
        forget_fits(arm)
        _refuse_other(there, settings, test_rows, str(arm.root))
        if not arm.map_file.exists():
            _add_map(layout, experiment, asked, there, report)
        return there
    files = data_files(layout, experiment, asked.data_dir)
    if is_own:
        recipe = experiment.recipes[method]
        own = arm_settings(experiment, recipe, seed=seed, test_rows=test_rows, more=asked.settings)
        base = None
        if recipe.base is not None:  # the model of the experiment whose folder it shares
            _refuse_settings_of_model(asked.settings, method)
            whole = EXPERIMENTS[experiment.folder_name]
            _run_base(layout, whole, asked, recipe.base, report)
            base = layout.arm(whole.name, recipe.base, whole.seeds[0])
        if experiment.figure == ACCURACY:
            from bayesnde_cli.stages.reproduce.image_arm import run_images

            found = run_images(arm, files, own, report)
        else:
            found = run_own(arm, files, own, report, base=base)
        if simulator_of(experiment) is not None:
            write_own_map(arm, own.evaluate)
    else:
        found = run_competitor(layout, experiment, arm, method, files, report, seed=seed, test_rows=test_rows)
    shift = unit_interval_shift(layout, experiment, files, test_rows, report)
    result = Result(
        experiment=experiment.folder_name, method=method, is_own=is_own, seed=seed, settings=settings,
        test_rows=test_rows, figures=_shifted(found.figures, shift), chosen=found.chosen,
        rows_sha256=found.rows_sha256, seconds_fit=found.seconds_fit, seconds_score=found.seconds_score,
        device=found.device, ended=environment.utc_now(), version=__version__,
    )  # fmt: skip
    write_result(arm.result_file, result)
    forget_fits(arm)
    return result


def _run_base(layout: ExperimentsLayout, whole: Experiment, asked: Asked, recipe: str, report: Report) -> None:
    """The arm whose model another one takes."""
    from bayesnde_cli.stages.reproduce.rows import waiting

    plain = replace(asked, settings=(), is_restart=False)
    try:
        waiting(lambda: _run_arm(layout, whole, plain, recipe, whole.seeds[0], report))
    except SettingsDiffer as error:
        line = f"bayesnde reproduce {typed(whole)} --recipe {recipe} --restart"
        raise SettingsDiffer(error.what, found=error.found, hint=f"run `{line}` first") from error


def _add_map(
    layout: ExperimentsLayout, experiment: Experiment, asked: Asked, there: Result, report: Report
) -> None:  # fmt: skip
    """The map of a finished arm that has none; its result stays as it is."""
    from bayesnde_cli.stages.reproduce.competitor_arm import map_competitor
    from bayesnde_cli.stages.reproduce.maps import simulator_of, write_own_map
    from bayesnde_cli.stages.reproduce.rows import data_files
    from bayesnde_cli.stages.reproduce.settings import arm_settings

    arm = layout.arm(*there.key)
    if simulator_of(experiment) is None:
        return
    if not there.is_own:
        files = data_files(layout, experiment, asked.data_dir)
        map_competitor(
            layout, experiment, arm, there.method, files, report, seed=there.seed, test_rows=there.test_rows
        )  # fmt: skip
    elif arm.run.manifest_file("refine").exists():  # without its model, all that is left is the result
        recipe = experiment.recipes[there.method]
        own = arm_settings(experiment, recipe, seed=there.seed, test_rows=there.test_rows, more=asked.settings)
        write_own_map(arm, own.evaluate)


def _refuse_other(there: Result, settings: list[str], test_rows: int | None, folder: str) -> None:
    """An arm that was run with other settings is no answer."""
    pairs = (("settings", there.settings, settings), ("test rows", there.test_rows, test_rows))
    differences = [f"{name}: {was} -> {now}" for name, was, now in pairs if was != now]
    if differences:
        raise SettingsDiffer(
            f"{folder} was run with other settings",
            found=differences,
            hint="add --restart to run it again, or keep it and use another directory with --run OTHER",
        )


def _refuse_settings_of_model(settings: Sequence[str], method: str) -> None:
    """A recipe that takes another one's model cannot change it."""
    idle = [text for text in settings if not text.startswith(_SCORING)]
    if idle:
        raise BadUsage(
            f"{method} scores with a model that is there",
            found=[f"--set {text} would change nothing" for text in idle],
            hint="set only what density and evaluate have",
        )


def _refuse_settings_of_ablation(settings: Sequence[str], method: str, recipe: Recipe) -> None:
    """An ablation without what it takes away would be none."""
    taken = {text.partition("=")[0]: text for text in recipe.fixed}
    undone = [text for text in settings if text.partition("=")[0].strip().replace("-", "_") in taken]
    if undone:
        raise BadUsage(
            f"{method} is the recipe with {', '.join(recipe.fixed)}, which cannot be changed",
            found=[f"--set {text}" for text in undone],
            hint="leave it out, or name the other recipes with --recipe",
        )


def _shifted(figures: dict[str, Any], shift: float) -> dict[str, Any]:
    """Figures with mean log-densities in the paper's units."""
    moved = dict(figures)
    if moved.get(LOG_DENSITY) is not None:
        moved[LOG_DENSITY] += shift
    if "importance" in moved:
        moved["importance"] = _shifted(moved["importance"], shift)
    return moved
