"""`reproduce` runs the arms of an experiment: a method is fitted to the training rows, and the test rows are scored.

Every method gets the same rows: downloaded or simulated, and prepared by the experiment's protocol. An arm of a recipe
is a run directory. With a `base`, it scores with a copy of that arm's model; with images, it classifies test images. A
finished arm is not run again.
"""

import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from bayesnde_cli import __version__, stopping
from bayesnde_cli.answers import fitted_run
from bayesnde_cli.competitors import Tables, fit_competitor, make_methods, make_spaces, require_packages
from bayesnde_cli.errors import BadArtifact, MissingArtifact, SettingsDiffer, StageBusy
from bayesnde_cli.formatting import Report
from bayesnde_cli.model.backend import load_tensorflow
from bayesnde_cli.report.collect import stage_seconds
from bayesnde_cli.reproduce import experiments, pictures
from bayesnde_cli.reproduce.experiments import EXPERIMENTS, LOG_DENSITY, Experiment, Reproduced, Request, Result
from bayesnde_cli.rng import derive_seed
from bayesnde_cli.rows import Rows
from bayesnde_cli.runs import files as run_files
from bayesnde_cli.runs.layout import STAGES, TEST_SET, WEIGHTS, ArmLayout, ExperimentsLayout, RunLayout, split_name
from bayesnde_cli.runs.manifest import Manifest, discard
from bayesnde_cli.runs.parquet_files import Stamp, read_table, write_table
from bayesnde_cli.settings.stage_settings import PipelineSettings, PrepareSettings
from bayesnde_cli.stages import loading, measures, prepare
from bayesnde_cli.stages.evaluate import outlier_labels, run_evaluate, true_log_density
from bayesnde_cli.stages.loading import score_classes
from bayesnde_cli.stages.score import DENSITY_SCHEMA, run_density
from bayesnde_cli.stages.scoring_job import Asked
from bayesnde_cli.stages.train import run_refine, run_warmstart
from bayesnde_cli.tables.columns import TRUTH_NAME
from bayesnde_cli.tables.model_rows import ROWS_SCHEMA, read_schema, read_split
from bayesnde_cli.tables.schema import Schema
from bayesnde_cli.tables.simulator_catalogue import make_simulator, simulate_rows
from bayesnde_cli.tables.sources import sources_of

SIMULATED_ROWS, SIMULATED_SEED = 20_000, 1024
BLOCK_ROWS = 32  # images that are classified, and stored, together
_FITTING = ("prepare", "warmstart", "refine")
_SPLITS = ("train", "validation", TEST_SET)
_WAIT_SECONDS = 0.5


@dataclass(frozen=True)
class Arm:
    """One method with one seed, as requested."""

    layout: ExperimentsLayout
    experiment: Experiment
    method: str
    seed: int
    request: Request

    @property
    def folder(self) -> ArmLayout:
        return self.layout.arm(self.experiment.folder_name, self.method, self.seed)

    @property
    def is_own(self) -> bool:
        return self.method in self.experiment.recipes

    @property
    def test_rows(self) -> int | None:
        return self.request.test_rows or self.experiment.test_rows

    @property
    def settings(self) -> tuple[str, ...]:
        """The user's settings; a competitor has none."""
        return self.request.settings if self.is_own else ()

    def stage_settings(self) -> PipelineSettings:
        """The settings of every stage, for a recipe."""
        recipe, rows = self.experiment.recipes[self.method], self.test_rows
        return experiments.arm_settings(self.experiment, recipe, seed=self.seed, test_rows=rows, more=self.settings)

    def data_files(self) -> list[Path]:
        """The raw rows: checked files, or simulated rows that all arms of the experiment share."""
        experiment = self.experiment
        if experiment.simulator is None:
            return experiments.find_files(self.request.data_dir, experiment.files)
        path = self.layout.simulated_file(experiment.folder_name)
        if not path.exists():
            simulator = make_simulator(experiment.simulator, dim=experiment.dim, latent_dim=None, rotate=False)
            chunks = [np.column_stack(chunk) for chunk in simulate_rows(simulator, SIMULATED_ROWS, SIMULATED_SEED)]
            columns = list(np.concatenate(chunks).T.copy())
            with run_files.writing(path) as draft:
                pq.write_table(pa.table(columns, [*simulator.names, TRUTH_NAME]), draft)
        return [path]

    def prepare_shared(self, scaling: str, settings: tuple[str, ...], report: Report) -> RunLayout:
        """A run directory with rows that several arms read; --restart of one arm leaves it alone."""
        run = self.layout.prepared(self.experiment.folder_name, scaling, self.test_rows)
        config = experiments.prepare_settings(self.experiment, self.test_rows, settings)
        hint = f"remove the folder {run.root} and run the same command again"
        _make_shared(lambda: prepare_rows(run, self.data_files(), config, report), hint)
        return run


# Running arms


def run_reproduce(root: Path, experiment: Experiment, request: Request, report: Report) -> Reproduced:
    """Run the requested arms, one after the other. Bad settings of any arm are refused before the first one starts."""
    layout = ExperimentsLayout(root)
    arms = [Arm(layout, experiment, *which, request) for which in experiments.list_arms(experiment, request)]
    experiments.check_settings(experiment, [arm.method for arm in arms], request.settings)
    for arm in arms:
        if arm.is_own:
            arm.stage_settings()
    require_packages([arm.method for arm in arms if not arm.is_own], "--method")
    if request.is_download and arms:
        experiments.download(request.data_dir, experiment.files, report)
    return Reproduced(experiment, [_run_arm(arm, report) for arm in arms])


def _run_arm(arm: Arm, report: Report) -> Result:
    folder, experiment = arm.folder, arm.experiment
    report.note(f"{experiment.name}: {arm.method}, seed {arm.seed}")
    if arm.request.is_restart:
        _forget(folder)
    if folder.result_file.exists():
        found = experiments.parse_result(run_files.read_object(folder.result_file), folder.result_file)
        _forget_fits(folder)
        _refuse_other(found, arm)
        return found
    if not arm.is_own:
        outcome = run_competitor(arm, report)
    elif experiment.figure == experiments.ACCURACY:
        outcome = run_images(arm, report)
    else:
        outcome = run_own(arm, report)
    shift = unit_interval_shift(arm, report)
    for figures in (outcome["figures"], outcome["figures"].get("importance") or {}):
        if figures.get(LOG_DENSITY) is not None:
            figures[LOG_DENSITY] += shift
    result = Result(
        experiment=experiment.folder_name,
        method=arm.method,
        is_own=arm.is_own,
        seed=arm.seed,
        settings=list(arm.settings),
        test_rows=arm.test_rows,
        ended=run_files.utc_now(),
        version=__version__,
        **outcome,
    )
    run_files.write_json(folder.result_file, result.as_dict())
    _forget_fits(folder)
    return result


def _run_base(arm: Arm, recipe: str, report: Report) -> RunLayout:
    """Run the arm whose model another one takes, with its own settings; its run directory."""
    whole = EXPERIMENTS[arm.experiment.folder_name]
    plain = replace(arm.request, settings=(), is_restart=False)
    base = Arm(arm.layout, whole, recipe, whole.seeds[0], plain)
    hint = f"run `bayesnde reproduce {whole.command} --recipe {recipe} --restart` first"
    _make_shared(lambda: _run_arm(base, report), hint)
    return base.folder.run


def _make_shared(make: Callable[[], object], hint: str) -> None:
    """Make what several shards need; while another process makes it, wait. The hint is for other settings."""
    while True:
        try:
            make()
            return
        except StageBusy:
            stopping.sleep(_WAIT_SECONDS)
        except SettingsDiffer as error:
            raise SettingsDiffer(error.what, found=error.found, hint=hint) from error


def _refuse_other(found: Result, arm: Arm) -> None:
    pairs = (("settings", found.settings, list(arm.settings)), ("test rows", found.test_rows, arm.test_rows))
    differences = [f"{name}: {was} -> {now}" for name, was, now in pairs if was != now]
    if differences:
        raise SettingsDiffer(
            f"{arm.folder.root} was run with other settings",
            found=differences,
            hint="add --restart to run it again, or keep it and use another directory with --run OTHER",
        )


def _forget(arm: ArmLayout) -> None:
    """Remove everything of an arm, its result first: a partly removed arm has no result."""
    with run_files.cannot_write(arm.root):
        for file in (arm.result_file, arm.map_file, arm.scores_file, *arm.classes_dir.glob("*")):
            file.unlink(missing_ok=True)
    _forget_fits(arm)
    for stage in reversed(STAGES):
        discard(arm.run, stage.name, TEST_SET if stage.is_per_set else None)


def _forget_fits(arm: ArmLayout) -> None:
    """Remove the states of unfinished fits, which a finished arm does not need."""
    with run_files.cannot_write(arm.root):
        for file in arm.fit_files():
            file.unlink(missing_ok=True)


# Rows


def prepare_rows(run: RunLayout, files: list[Path], config: PrepareSettings, report: Report) -> None:
    """Run the stage `prepare` in a run directory."""
    prepare.run_prepare(run, files, sources_of(files), config, report)


def read_tables(run: RunLayout) -> tuple[Schema, Tables]:
    """The schema of a run directory, and its training, validation and test rows."""
    return read_schema(run), Tables(*(read_split(run, split, with_values=True) for split in _SPLITS))


def competitor_tables(arm: Arm, report: Report) -> tuple[Schema, Tables]:
    """All rows for a competitor, in the units of the file and mapped through the columns' own distributions."""
    settings = ("prepare.scale=marginal", "prepare.scale_on=train")
    return read_tables(arm.prepare_shared("marginal", settings, report))


def unit_interval_shift(arm: Arm, report: Report) -> float:
    """The shift of a log-density from the units of the file to rows scaled to [0, 1]; 0 if the paper does not scale."""
    if not arm.experiment.is_unit_interval:
        return 0.0
    run = arm.prepare_shared("protocol", (), report)
    table = read_table(run.split_file(TEST_SET), ROWS_SCHEMA, ["log_jacobian"])
    return -float(table["log_jacobian"][0].as_py())  # the same for all rows: the scaling is linear


def rows_sha256(schema: Schema, tables: Tables) -> str:
    """The hash of everything that a method is given and judged by: training, validation and evaluated rows.

    For each: the cells in the units of the file, with their noise, row by row; then row ids, classes, true
    log-densities and outlier labels, where there are any. All as little-endian float64.
    """
    pieces = []
    for rows in tables:
        known = (rows.row_ids, rows.classes, *_known_of(rows, schema))
        assert rows.values is not None
        arrays = [schema.noisy(rows.values, rows.row_ids), *(array for array in known if array is not None)]
        pieces += [np.ascontiguousarray(array, "<f8").tobytes() for array in arrays]
    return run_files.sha256_bytes(b"".join(pieces))


def _known_of(rows: Rows, schema: Schema) -> tuple[np.ndarray | None, np.ndarray | None]:
    """The true log-density and the outlier label of every row, where the table has them."""
    return true_log_density(rows, schema), outlier_labels(rows, schema)


# Our model


def run_own(arm: Arm, report: Report) -> dict[str, Any]:
    """Run the stages that are not finished; if the recipe has a base, on a copy of that arm's fitted model."""
    run, settings, base = arm.folder.run, arm.stage_settings(), None
    if recipe := arm.experiment.recipes[arm.method].base:
        base = _run_base(arm, recipe, report)
        _copy_model(base, run)
    else:
        _fit_model(arm, settings, report)
    report.note(str(run_density(run, Asked(), settings.density, report, factory=loading.open_engine)))
    metrics = run_evaluate(run, Asked(), settings.evaluate, report).metrics
    schema, tables = read_tables(run)
    scored = Manifest.read(run.manifest_file("density", TEST_SET))
    if pictures.map_simulator(arm.experiment) is not None:
        pictures.write_own_map(arm.folder, settings.evaluate)
    outcome = _describe_fit(run)
    prepared, warmstart = (Manifest.read(run.manifest_file(stage)).config for stage in _FITTING[:2])
    outcome["chosen"] |= {
        "latent_dim": warmstart["latent_dim"] or "by the number of columns",
        "scale": prepared["scale"],
    }
    figures = own_figures(run, *_known_of(tables.evaluated, schema), base)
    return outcome | {
        "figures": figures | {"n_reliable": metrics["rows"]["n_reliable"]},
        "rows_sha256": rows_sha256(schema, tables),
        "seconds_score": stage_seconds(scored),
        "device": scored.device if "none" not in scored.device else outcome["device"],
    }


def _fit_model(arm: Arm, settings: PipelineSettings, report: Report) -> None:
    """Run the stages up to `refine` that are not finished."""
    run = arm.folder.run
    prepare_rows(run, arm.data_files(), settings.prepare, report)
    report.note(str(run_warmstart(run, settings.warmstart, report, is_restart=False, is_verbose=False)))
    report.note(str(run_refine(run, settings.refine, report, is_restart=False, is_verbose=False)))


def _describe_fit(run: RunLayout) -> dict[str, Any]:
    """Selected checkpoints, time and device of the stages up to `refine`: fields of a `Result`."""
    stages = {stage: Manifest.read(run.manifest_file(stage)) for stage in _FITTING}
    return {
        "chosen": {stage: stages[stage].result["chosen"] for stage in ("warmstart", "refine")},
        "seconds_fit": sum(map(stage_seconds, stages.values())),
        "device": stages["refine"].device,
    }


def _copy_model(base: RunLayout, run: RunLayout) -> None:
    """Copy the fitted model of another arm, stage by stage; a copy of the same model is kept."""
    run_files.sweep(run.root)
    for stage in _FITTING:
        copied, original = run.manifest_file(stage), base.manifest_file(stage)
        if copied.exists() and copied.read_bytes() == original.read_bytes():
            continue
        discard(run, stage)  # of another model, or half a copy
        folder = run.stage_dir(stage)
        with run_files.cannot_write(folder):
            folder.parent.mkdir(parents=True, exist_ok=True)
            draft = run_files.temporary_beside(folder)
            shutil.copytree(base.stage_dir(stage), draft)
            draft.rename(folder)


def own_figures(
    run: RunLayout, truth: np.ndarray | None, is_outlier: np.ndarray | None, base: RunLayout | None = None
) -> dict[str, Any]:
    """The figures of the test rows; `importance` has those of importance sampling from the same proposals.

    With a `base` of the same model, `error` is the root mean square difference from its log-densities.
    """
    bridge, importance, mc_se = _read_scores(run)
    assert bridge is not None
    assert mc_se is not None
    figures = density_figures(bridge, truth, is_outlier)
    figures["mean_mc_se"] = measures.mean_figures(mc_se[np.isfinite(mc_se)])[0]
    figures["importance"] = None if importance is None else density_figures(importance, truth, is_outlier)
    if base is not None:
        known = _read_scores(base)[0]
        assert known is not None
        for found, part in ((bridge, figures), (importance, figures["importance"])):
            if found is not None and part is not None:
                part["error"] = measures.truth_figures(found, known)["rmse"]
    return figures


def _read_scores(run: RunLayout) -> list[np.ndarray | None]:
    """Log-densities, those of importance sampling with the bridge's proposals, and the standard errors of the first.

    Rows that were not bridged have no such proposal: then the second are None.
    """
    names = ["log_density", "log_density_is", "mc_se"]
    table = read_table(run.density_file(TEST_SET), DENSITY_SCHEMA, names)
    return [None if table[name].null_count else table[name].to_numpy() for name in names]


def density_figures(log_density: np.ndarray, truth: np.ndarray | None, is_outlier: np.ndarray | None) -> dict[str, Any]:
    """Mean log-density, agreement with the true density, and how well low densities detect outliers."""
    finite = np.isfinite(log_density)
    mean, se = measures.mean_figures(log_density[finite])
    figures: dict[str, Any] = {"n": len(log_density), "n_not_finite": int((~finite).sum())}
    figures |= {"mean_log_density": mean, "mean_log_density_se": se}
    if truth is not None:
        agreement = measures.truth_figures(log_density, truth)
        figures |= {name: agreement[name] for name in ("spearman", "rmse", "mean_difference")}
    if is_outlier is not None:
        found = measures.outlier_figures(measures.outlier_score(log_density), is_outlier)
        figures |= {name: found[name] for name in ("precision_at_k", "auroc", "n_outliers")}
    return figures


# Competitors


class _FitStates:
    """The states of a competitor's unfinished fits, in the folder of its arm: a `Keeper`."""

    def __init__(self, arm: ArmLayout) -> None:
        self._arm = arm

    def read(self, digest: str) -> dict[str, np.ndarray] | None:
        run_files.sweep(self._arm.root)
        try:
            return run_files.read_arrays(self._arm.fit_file(digest))[0]
        except (MissingArtifact, BadArtifact):  # only time is lost
            return None

    def write(self, digest: str, arrays: Mapping[str, np.ndarray]) -> None:
        run_files.write_arrays(self._arm.fit_file(digest), arrays, {"fit": digest})


def run_competitor(arm: Arm, report: Report) -> dict[str, Any]:
    """Fit the competitor, score the test rows, and store its density map if the experiment has maps."""
    report.note(f"fitting {arm.method}")
    schema, tables = competitor_tables(arm, report)
    methods = make_methods(_FitStates(arm.folder))
    spaces = make_spaces(tables, schema)
    found = fit_competitor(arm.method, spaces, seed=arm.seed, methods=methods, class_names=schema.classes)
    rows, digest = tables.evaluated, rows_sha256(schema, tables)
    scores = pa.table({"row_id": rows.row_ids, "log_density": found.log_density})
    write_table(arm.folder.scores_file, scores, Stamp(experiments.SCORES_SCHEMA, digest[:16]))
    if pictures.map_simulator(arm.experiment) is not None:
        pictures.write_competitor_map(arm.folder, schema, tables, found)
    figures = density_figures(found.log_density, *_known_of(rows, schema))
    if not found.is_density:  # the score of a detector is not a density
        figures |= {"mean_log_density": None, "mean_log_density_se": None}
    return {
        "figures": figures,
        "chosen": found.chosen,
        "rows_sha256": digest,
        "seconds_fit": found.seconds_fit,
        "seconds_score": found.seconds_score,
        "device": "cpu" if arm.method == "roundtrip" else "cpu, 1 thread",
    }


# Images
#
# The bridge would take hours for every test image without a GPU, and the class of most images is clear after a first
# estimate: rows are classified as by `classify`, and their densities given each class are stored block by block.


def run_images(arm: Arm, report: Report) -> dict[str, Any]:
    """Fit the model and classify the test images under equal prior probabilities; finished blocks are skipped."""
    run, settings = arm.folder.run, arm.stage_settings()
    _fit_model(arm, settings, report)
    fitted = fitted_run(run, settings.density)
    load_tensorflow(device=fitted.config.device, threads=fitted.config.threads)  # quietly, before others import it
    rows = read_split(run, TEST_SET)
    assert rows.y is not None
    classes = rows.y.argmax(axis=1)
    prior = np.full(len(fitted.classes), 1.0 / len(fitted.classes))
    model = Manifest.read(run.manifest_file("refine")).outputs[WEIGHTS]
    identity = run_files.sha256_json({"model": model, "config": fitted.config.identity()})
    engine = loading.LazyEngine(run, fitted.config, loading.open_engine)
    blocks, seconds = [], 0.0
    with report.progress("classifying", len(rows), "images") as advance:
        for block, start in enumerate(range(0, len(rows), BLOCK_ROWS)):
            stopping.check()
            path, own = arm.folder.classes_file(block), slice(start, start + BLOCK_ROWS)
            arrays, facts = run_files.read_arrays(path) if path.exists() else ({}, {})
            if facts.get("identity") != identity:
                began = time.perf_counter()
                seed = derive_seed(fitted.seed, "reproduce", "classes", block)
                options: dict[str, Any] = {"block_rows": fitted.block_rows, "known": classes[own]}
                scored = score_classes(engine.opened, Rows(rows.x[own]), prior, seed, **options)
                arrays = dict(zip(scored._fields, scored, strict=True))
                facts = {"identity": identity, "seconds": time.perf_counter() - began}
                run_files.write_arrays(path, arrays, facts)
            blocks.append(arrays)
            seconds += facts["seconds"]
            advance(len(rows.x[own]))
    names = ("log_density", "mc_se", "n_gradients")
    log_density, mc_se, n_gradients = (np.concatenate([arrays[name] for arrays in blocks]) for name in names)
    figures = density_figures(log_density[np.arange(len(classes)), classes] + rows.log_jacobian, None, None)
    accuracy = measures.accuracy_figures(log_density, mc_se, classes, fitted.classes)
    figures |= {name: accuracy[name] for name in ("accuracy", "accuracy_se")}
    figures |= measures.bits_figures(figures, rows.x.shape[1]) | {"n_gradients": float(n_gradients.mean())}
    prepared = Manifest.read(run.manifest_file("prepare")).outputs
    digest = run_files.sha256_json([prepared[split_name(name)]["sha256"] for name in _SPLITS])
    return {**_describe_fit(run), "figures": figures, "rows_sha256": digest, "seconds_score": seconds}
