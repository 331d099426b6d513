"""The stage `evaluate`: how good the densities of a data set are, as metrics.json and as a report."""

import itertools
import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from bayesnde_cli import competitors, stopping
from bayesnde_cli.competitors import PLAIN, Method, Tables
from bayesnde_cli.formatting import Report, aligned, counted
from bayesnde_cli.inference.bridge import ERROR_ABOVE_TARGET, VERDICTS
from bayesnde_cli.report.page import report_page
from bayesnde_cli.rng import derive_seed
from bayesnde_cli.rows import Rows
from bayesnde_cli.runs import manifest
from bayesnde_cli.runs.files import missing, read_object, sha256_bytes, write_bytes, write_json
from bayesnde_cli.runs.layout import LATENTS, SCHEMA, TEST_SET, WEIGHTS, RunLayout, split_name
from bayesnde_cli.runs.manifest import FileRecord, Manifest
from bayesnde_cli.runs.parquet_files import Stamp, read_table
from bayesnde_cli.settings.stage_settings import DensitySettings, EvaluateSettings
from bayesnde_cli.stages import loading, measures
from bayesnde_cli.stages.loading import EngineFactory, Model, ModelFactory, rows_at_once, score_classes
from bayesnde_cli.stages.measures import Figures
from bayesnde_cli.stages.score import DENSITY_SCHEMA
from bayesnde_cli.stages.scoring_job import Asked, DataSet, find_data_set
from bayesnde_cli.tables import model_rows
from bayesnde_cli.tables.columns import Kind
from bayesnde_cli.tables.model_rows import read_split
from bayesnde_cli.tables.schema import Schema
from bayesnde_cli.tables.sources import open_sources

METRICS_SCHEMA, METRICS_VERSION = "metrics", 1
# What the manifest repeats.
_HEADLINE = ("mean_log_density", "mean_log_density_se", "mean_log_density_mc_se", "rows")
# Rows that fit baselines, and rows that choose among them.
_SPLITS = (split_name("train"), split_name("validation"))
_SCORES = ("row_id", "log_density", "log_density_scaled", "mc_se", "reliable", "verdict", "method")
_NOT_ASKED = "not asked for"
_NO_CONDITION = "the model has no condition"
_NO_COMPLETE_ROW = "every row has missing cells"
_BLURRED = "the model is blurred: its density is not that of the rows"
# A Monte-Carlo error, in nats, with which a log-density says little.
_VERY_WIDE = 1.0


def run_evaluate(
    layout: RunLayout,
    asked: Asked,
    config: EvaluateSettings,
    report: Report,
    *,
    models: ModelFactory | None = None,
    factory: EngineFactory | None = None,
) -> "Evaluated":
    """Evaluate the densities of a data set, which `density` has computed."""
    job = make_evaluate_job(layout, asked, config)
    set_name = job.data.name
    metrics_file, report_file = layout.metrics_file(set_name), layout.report_file(set_name)
    is_done = not asked.is_restart and is_up_to_date(job)
    if is_done:
        manifest.tidy(layout, "evaluate", set_name)
    else:
        competitors.require_packages(job.config.baseline)
        if asked.data and not layout.rows_file("density", set_name).exists():
            raise missing(layout.rows_file("density", set_name))
        with manifest.workplace(layout, "evaluate", set_name) as place:
            model = (models or loading.open_model)(layout, job.config)
            metrics = make_metrics(job, model, factory or loading.open_engine, report)
            write_json(place.folder / metrics_file.name, metrics)
            figures = measures.model_figures(model, layout, set_name)
            write_bytes(place.folder / report_file.name, report_page(layout, set_name, metrics, figures))
            place.finish(
                [metrics_file.name, report_file.name],
                job.config,
                seed=job.seed,
                identity=job.identity,
                inputs=job.inputs,
                run_id=job.scored.run_id,
                device=model.device,
                result={key: metrics[key] for key in _HEADLINE},
            )
    return Evaluated(str(metrics_file), str(report_file), is_done, read_object(metrics_file))


@dataclass(frozen=True)
class EvaluateJob:
    """`evaluate` on one data set."""

    layout: RunLayout
    config: EvaluateSettings
    seed: int
    data: DataSet
    prepared: Manifest
    scored: Manifest  # of `density`
    inputs: dict[str, FileRecord]

    @property
    def identity(self) -> dict[str, Any]:
        hashes = {name: entry["sha256"] for name, entry in self.inputs.items()}
        return {"settings": self.config.identity(), "inputs": hashes}


def make_evaluate_job(layout: RunLayout, asked: Asked, config: EvaluateSettings) -> EvaluateJob:
    """The job, if the densities of the set are complete and up to date."""
    splits = _SPLITS if asked.data else (*_SPLITS, split_name(TEST_SET))
    prepared = manifest.require(layout, "prepare", reading=[SCHEMA, *splits])
    manifest.require(layout, "refine", reading=[WEIGHTS, LATENTS])
    data = find_data_set(asked)
    density = layout.density_file(data.name).name
    scored = manifest.require(layout, "density", data.name, reading=[density])
    outputs = {f"{layout.label('density', data.name)}/{density}": scored.outputs[density]}
    outputs |= {f"prepare/{name}": prepared.outputs[name] for name in _SPLITS}
    inputs = scored.inputs | {name: {**entry, "path": name} for name, entry in outputs.items()}
    config = config.fill_in({"seed": prepared.seed})
    assert config.seed is not None
    return EvaluateJob(layout, config, config.seed, data, prepared, scored, inputs)


def is_up_to_date(job: EvaluateJob) -> bool:
    """Whether the stage is complete; one that was made from other files or settings is refused."""
    layout, set_name = job.layout, job.data.name
    path = layout.manifest_file("evaluate", set_name)
    if path.exists():
        manifest.refuse_stale(layout, "evaluate", set_name, manifest.stale_inputs(layout, Manifest.read(path)))
    return manifest.is_stage_done(layout, "evaluate", job.identity, set_name)


# Rows and their labels


def read_rows(job: EvaluateJob, schema: Schema) -> Rows:
    """The rows of the data set with their values; the user's files are read again."""
    if job.data.name == TEST_SET:
        return read_split(job.layout, TEST_SET, with_values=True)
    table = open_sources(job.data.sources, model_rows.text_format(job.prepared.config))
    rows = Rows.concatenate(list(model_rows.scale_table(table, model_rows.match_table(table, schema)[0])))
    condition = schema.roles.condition
    return replace(rows, y=schema.one_hot(rows.labels[condition].to_pylist())) if condition else rows


def true_log_density(rows: Rows, schema: Schema) -> np.ndarray | None:
    """The column of true log-densities, (rows,) float64; None without one."""
    column = rows.labels.get(schema.roles.truth or "")
    return None if column is None else column.to_numpy().astype(np.float64)


def outlier_labels(rows: Rows, schema: Schema) -> np.ndarray | None:
    """Which rows are labelled as outliers, (rows,) bool; None without labels."""
    column = rows.labels.get(schema.roles.outlier_label or "")
    return None if column is None else column.to_numpy() == 1


# The document metrics.json. A section that these rows do not have is None, and `reasons` says why.


def make_metrics(job: EvaluateJob, model: Model, factory: EngineFactory, report: Report) -> dict[str, Any]:
    """metrics.json, section by section."""
    schema, layout, run_id = model_rows.read_schema(job.layout), job.layout, job.scored.run_id
    table = read_table(layout.density_file(job.data.name), Stamp(DENSITY_SCHEMA, run_id), _SCORES)
    scores = {name: table[name].to_numpy() for name in _SCORES}
    density = DensitySettings(**job.scored.config)
    found = _Evaluation(job, schema, density, read_rows(job, schema), scores, report)
    return {
        "schema": METRICS_SCHEMA,
        "schema_version": METRICS_VERSION,
        "run_id": run_id,
        "blur": density.blur,
        "rows": found.counts(),
        **found.means(),
        **found.by_class(),
        **found.truth(),
        **found.outliers(),
        **found.accuracy(factory),
        **found.own_rows(model),
        **found.baselines(),
        "reasons": found.reasons,  # last: the sections above fill it
    }


@dataclass(frozen=True)
class _Evaluation:
    """The rows of a data set with their densities, and the sections of the document."""

    job: EvaluateJob
    schema: Schema
    density: DensitySettings  # of the scores
    rows: Rows
    scores: dict[str, np.ndarray]  # columns of density.parquet, (rows,) each
    report: Report
    reasons: dict[str, str] = field(default_factory=dict)  # why a section is missing

    def _missing(self, reason: str, *sections: str) -> Figures:
        """Sections without values, for this reason."""
        self.reasons.update(dict.fromkeys(sections, reason))
        return dict.fromkeys(sections)

    @property
    def in_mean(self) -> np.ndarray:
        """Rows of the mean, (rows,) bool: finite and complete, as the density of fewer cells is another quantity."""
        return self.rows.is_complete & np.isfinite(self.scores["log_density"])

    def counts(self) -> Figures:
        scores, values = self.scores, self.rows.values
        assert values is not None
        assert np.array_equal(self.rows.row_ids, scores["row_id"])
        is_wide = (scores["verdict"] == ERROR_ABOVE_TARGET) & (scores["mc_se"] > _VERY_WIDE)
        return {
            "set": self.job.data.name,
            "n": len(self.rows),
            "n_reliable": int(scores["reliable"].sum()),
            "n_not_finite": int((~np.isfinite(scores["log_density"])).sum()),
            "n_incomplete": int((~self.rows.is_complete).sum()),
            "n_in_mean": int(self.in_mean.sum()),
            "n_above_1_nat": int(is_wide.sum()),
            "verdicts": {**dict.fromkeys(VERDICTS, 0), **Counter(scores["verdict"].tolist())},
            "methods": dict(Counter(scores["method"].tolist())),
            "audit": self.job.scored.result.get("audit"),
            # Of the cells in the units of the file, row by row, each a little-endian float64.
            "sha256": sha256_bytes(np.ascontiguousarray(values, "<f8").tobytes()),
        }

    def means(self) -> Figures:
        """The mean log-density of all rows and, of images, bits per dimension."""
        if not self.rows.is_complete.any():
            self._missing(_NO_COMPLETE_ROW, "mean_log_density")
        figures, image = self._mean(self.in_mean), self.schema.image
        if image is not None and not self.density.blur:
            return figures | measures.bits_figures(figures, image.n_pixels)
        reason = "the rows are not images" if image is None else _BLURRED
        return figures | self._missing(reason, "bits_per_dimension") | {"bits_per_dimension_se": None}

    def _mean(self, kept: np.ndarray) -> Figures:
        names = ("log_density", "log_density_scaled", "mc_se")
        return measures.log_density_figures(*(self.scores[name][kept] for name in names))

    def by_class(self) -> Figures:
        classes = self.rows.classes
        if classes is None:
            return self._missing(_NO_CONDITION, "classes")
        kept = {name: self.in_mean & (classes == index) for index, name in enumerate(self.schema.classes)}
        return {"classes": {name: {"n": int(own.sum()), **self._mean(own)} for name, own in kept.items()}}

    def truth(self) -> Figures:
        truth, kept = true_log_density(self.rows, self.schema), self.rows.is_complete
        if truth is None or self.density.blur:
            return self._missing("the rows have no true log-density" if truth is None else _BLURRED, "truth")
        return {"truth": measures.truth_figures(self.scores["log_density"][kept], truth[kept])}

    def outliers(self) -> Figures:
        is_outlier, kept = outlier_labels(self.rows, self.schema), self.rows.is_complete
        if is_outlier is None:
            return self._missing("the rows have no outlier label", "outliers")
        score = measures.outlier_score(self.scores["log_density"][kept])
        return {"outliers": measures.outlier_figures(score, is_outlier[kept])}

    def accuracy(self, factory: EngineFactory) -> Figures:
        """Accuracy and confusion matrix of the likeliest class; of a large table, on a random sample."""
        job, names = self.job, self.schema.classes
        if self.rows.y is None or not job.config.accuracy_rows:
            missing = self._missing(_NO_CONDITION if self.rows.y is None else _NOT_ASKED, "accuracy")
            return missing | {"accuracy_se": None, "confusion_matrix": None}
        # Classes are nats apart, and a row may never reach the target under a wrong class: no escalations.
        changes = {"escalations": 0, "device": job.config.device, "threads": job.config.threads}
        settings = self.density.model_copy(update=changes)
        assert settings.block_rows is not None
        seed = derive_seed(job.seed, "evaluate", "classes")
        rows, prior = self.rows.sample(job.config.accuracy_rows, seed), np.full(len(names), 1.0 / len(names))
        opened, size, parts = factory(job.layout, settings), rows_at_once(settings.block_rows), []
        with self.report.progress("classes", len(rows), "rows") as advance:
            for index, start in enumerate(range(0, len(rows), size)):
                stopping.check()
                own = rows.take(slice(start, start + size))
                if own.is_complete.all():  # only complete rows are screened
                    own = replace(own, observed=None)
                address = derive_seed(seed, index)
                parts.append(score_classes(opened, own, prior, address, block_rows=settings.block_rows))
                advance(len(own))
        log_density, mc_se = (
            np.concatenate([getattr(own, name) for own in parts]) for name in ("log_density", "mc_se")
        )
        assert rows.classes is not None
        return measures.accuracy_figures(log_density, mc_se, rows.classes, names)

    def own_rows(self, model: Model) -> Figures:
        """Comparisons of complete rows with rows of the model."""
        complete, config = self.rows.take(self.rows.is_complete), self.job.config
        if not len(complete):
            return self._missing(_NO_COMPLETE_ROW, "generation", "typicality")
        seeds = [derive_seed(self.job.seed, "evaluate", section) for section in ("generation", "typicality")]
        names = self.schema.classes
        return {
            "generation": measures.generation(model, complete, config.generated_rows, seeds[0], names),
            "typicality": measures.typicality(model, complete, config.typicality_rows, seeds[1]),
        }

    def baselines(self) -> Figures:
        """Other estimators by name: the plain ones, and those that the user named."""
        job, schema, kept = self.job, self.schema, self.rows.is_complete
        reason = _why_no_baselines(schema) if kept.any() else _NO_COMPLETE_ROW
        if not job.config.baselines and not job.config.baseline:
            reason = _NOT_ASKED
        if reason:
            return self._missing(reason, "baselines")
        evaluated = self.rows.take(kept)
        is_outlier = outlier_labels(evaluated, schema)
        train, validation = (read_split(job.layout, split, with_values=True) for split in ("train", "validation"))
        spaces = competitors.make_spaces(Tables(train, validation, evaluated), schema)
        # A name, the kind of competitor, its spaces and its methods.
        fits: list[tuple[str, str, Mapping[str, Tables], Mapping[str, Method]]] = []
        if job.config.baselines:
            file = {"file": spaces["file"]}
            fits = [(name, name, file, PLAIN) for name in competitors.DENSITIES]
            fits.append(("gaussian_mixture_scaled", "gaussian_mixture", {"model": spaces["model"]}, PLAIN))
            fits += [(name, name, file, PLAIN) for name in competitors.DETECTORS if is_outlier is not None]
            if schema.image is not None:  # every EM step has a covariance of all pixels
                self.reasons["gaussian_mixture"] = f"too slow for images of {schema.image.n_pixels:,} pixels"
                fits = [fit for fit in fits if fit[1] != "gaussian_mixture"]
        fits += [(name, name, spaces, competitors.make_methods()) for name in dict.fromkeys(job.config.baseline)]
        # A blurred density is not that of the rows, so the means are not compared.
        log_density = np.full(len(evaluated), np.nan) if self.density.blur else self.scores["log_density"][kept]
        seed, figures = derive_seed(job.seed, "evaluate", "baselines"), Figures()
        with self.report.progress("baselines", len(fits), "fits") as advance:
            for name, kind, own, methods in fits:
                stopping.check()
                found = competitors.fit_competitor(kind, own, seed=seed, methods=methods, class_names=schema.classes)
                own_figures = measures.baseline_figures(found.log_density, log_density) if found.is_density else {}
                outliers = None
                if is_outlier is not None:
                    outliers = measures.outlier_figures(measures.outlier_score(found.log_density), is_outlier)
                chosen = found.chosen
                if methods is PLAIN:  # they have no choice of scaling
                    chosen = chosen.get("classes", {key: chosen[key] for key in chosen if key != "scaling"})
                figures[name] = own_figures | {"chosen": chosen, "outliers": outliers}
                advance(1)
        return {"baselines": figures}


def _why_no_baselines(schema: Schema) -> str | None:
    """Why baselines have no density in these columns, if they have none."""
    for feature in schema.features:
        if feature.kind is not Kind.CONTINUOUS and feature.map.noise is None:
            return f"column '{feature.name}' is {feature.kind} and without noise: it has no continuous density"
    return None


# The result in words

# Numbers of this size and above are written with a power of ten.
_LARGE = 1e6
_MOST_CLASSES = 20  # in the table of classes
# Standard errors beyond which a difference is more than chance, and the number of rows that tells little.
_CLEAR, _FEW_ROWS = 2.0, 250


@dataclass(frozen=True)
class Evaluated:
    """The result of `evaluate`. `metrics` is the document metrics.json."""

    file: str
    report: str
    is_up_to_date: bool
    metrics: dict[str, Any]

    def as_dict(self) -> dict[str, Any]:
        return self.metrics

    def __str__(self) -> str:
        rows = self.metrics["rows"]
        first = f"{self.file}: {counted(rows['n'], 'row')}, {rows['n_reliable']:,} reliable"
        lines = [f"{first} (up to date)" if self.is_up_to_date else first, *_sentences(self.metrics)]
        tables = [_compare_methods(self.metrics), *([format_classes(self.metrics)] if self.metrics["classes"] else [])]
        return "\n".join([*lines, f"report: {self.report}", *(f"\n{table}" for table in tables)])


def _sentences(metrics: Mapping[str, Any]) -> Iterator[str]:
    rows, reasons, typicality = metrics["rows"], metrics["reasons"], metrics["typicality"]
    if metrics["mean_log_density"] is not None:
        part = f"of which Monte-Carlo: {_number(metrics['mean_log_density_mc_se'], 2.0)}"
        if n_doubtful := rows["n"] - rows["n_reliable"]:
            part += f", which may be too low for {counted(n_doubtful, 'row')} not reliable"
        yield f"mean log-density: {_with_error(metrics, 'mean_log_density')} (units of the file, ± 2 s.e., {part})"
        yield f"in the model's space: {_with_error(metrics, 'mean_log_density_scaled')}"
        if metrics["bits_per_dimension"] is not None:
            yield f"bits per dimension: {_with_error(metrics, 'bits_per_dimension')} (less is better)"
        if rows["n_incomplete"]:
            yield f"left out of the mean: {counted(rows['n_incomplete'], 'row')} with missing cells"
    elif reason := reasons.get("mean_log_density"):
        yield f"no mean log-density: {reason}"
    if rows["n_not_finite"]:
        yield f"left out: {counted(rows['n_not_finite'], 'row')} without a finite log-density"
    if truth := metrics["truth"]:
        names = {"spearman": "Spearman", "pearson": "Pearson", "rmse": "RMSE", "mean_difference": "mean difference"}
        values = ", ".join(f"{label} {_number(truth[name])}" for name, label in names.items())
        yield f"against the truth: {values}"
    if metrics["accuracy"] is not None:
        n = counted(metrics["confusion_matrix"]["n"], "row")
        yield f"accuracy of the likeliest class: {_with_error(metrics, 'accuracy')} ({n})"
    if typicality and typicality["ks"] is None:
        yield f"typicality: {typicality['verdict']}"
    elif typicality:
        tests = f"KS {typicality['ks']:.4f}, p = {typicality['ks_p_value']:.2g}; {typicality['n_below_all']:,}"
        tests += f" less likely than all of the model's, p = {typicality['n_below_all_p_value']:.2g}"
        yield f"typicality: {typicality['verdict']} ({counted(typicality['rows']['n'], 'row')}, {tests})"
    for name, label in (("baselines", "baselines"), ("gaussian_mixture", "Gaussian mixtures")):
        if name in reasons:
            yield f"no {label}: {reasons[name]}"


def _compare_methods(metrics: Mapping[str, Any]) -> str:
    """A table of this model and the baselines, the best one first."""
    baselines = metrics["baselines"] or {}
    methods = {"this model": metrics}
    for name in sorted(baselines, key=lambda name: -(baselines[name].get("mean_log_density") or -math.inf)):
        methods[name.replace("_", " ")] = baselines[name]
    header = ["", "mean log-density", "± 2 s.e."]
    lines = [
        [name, _number(own.get("mean_log_density")), _number(own.get("mean_log_density_se"), 2.0)]
        for name, own in methods.items()
    ]
    if baselines:
        header.append("this model is better by")
        for line, own in zip(lines, methods.values(), strict=True):
            line.append("" if own.get("gain") is None else _with_error(own, "gain"))
    if metrics["outliers"]:
        header += [f"precision@{metrics['outliers']['n_outliers']}", "AUROC", "average precision"]
        for line, own in zip(lines, methods.values(), strict=True):
            line += [_number(own["outliers"][name]) for name in ("precision_at_k", "auroc", "average_precision")]
    return "\n".join([aligned(header, lines), *_what_rows_show(metrics)])


def _what_rows_show(metrics: Mapping[str, Any]) -> Iterator[str]:
    """Which differences from the baselines are more than chance."""
    known = {name: own for name, own in (metrics["baselines"] or {}).items() if own.get("gain_se")}
    if not known:
        return
    errors = {name: own["gain"] / own["gain_se"] for name, own in known.items()}
    groups = {
        "is clearly better than": [name for name, error in errors.items() if error > _CLEAR],
        "is clearly worse than": [name for name, error in errors.items() if error < -_CLEAR],
        "cannot be told apart from": [name for name, error in errors.items() if abs(error) <= _CLEAR],
    }
    found = [f"{label} {', '.join(names).replace('_', ' ')}" for label, names in groups.items() if names]
    n_rows = min(own["n"] for own in known.values())
    yield f"on {counted(n_rows, 'row')} this model {'; it '.join(found)}"
    if n_rows < _FEW_ROWS:
        least = [_CLEAR * own["gain_se"] for own in known.values()]
        yield f"these are few rows: differences below {min(least):.2g} to {max(least):.2g} nats may be chance"
    for name, own in known.items():
        if n_left_out := own["n_not_finite"]:
            yield f"without {counted(n_left_out, 'row')} where {name.replace('_', ' ')} has no finite density"


def format_classes(metrics: Mapping[str, Any]) -> str:
    """A table with the mean log-density of each class."""
    classes = metrics["classes"]
    lines = [
        [name, f"{own['n']:,}", _number(own["mean_log_density"]), _number(own["mean_log_density_se"], 2.0)]
        for name, own in itertools.islice(classes.items(), _MOST_CLASSES)
    ]
    table = aligned(["class", "rows", "mean log-density", "± 2 s.e."], lines)
    n_more = len(classes) - len(lines)
    return f"{table}\n… and {counted(n_more, 'more class', 'more classes')} in metrics.json" if n_more else table


def _with_error(figures: Mapping[str, Any], name: str) -> str:
    """A figure with two standard errors, if it has any."""
    se = figures.get(f"{name}_se")
    return _number(figures[name]) + ("" if se is None else f" ± {_number(se, 2.0)}")


def _number(value: float | None, times: float = 1.0) -> str:
    if value is None:
        return "–"
    return f"{times * value:.4f}" if abs(times * value) < _LARGE else f"{times * value:.3e}"
