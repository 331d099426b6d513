"""Commands that run stages: `fit`, `prepare`, `warmstart`, `refine`, `posterior`, `density`, `slurm`, `evaluate`."""

import contextlib
import functools
import itertools
import math
import operator
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from bayesnde_cli.cli.options import DATA, FORMAT, SHARD, TABLE, Call, argument, flag, option, with_options
from bayesnde_cli.errors import BadUsage, RequirementNotMet, bad_choice, escaped, nearest_hint
from bayesnde_cli.settings import stage_settings

if TYPE_CHECKING:
    from bayesnde_cli.stages.score import DensityResult

_STAGE_OPTIONS = ("run", "restart", "json", "quiet", "verbose")
# Signs of --require.
_SIGNS = {">=": operator.ge, "<=": operator.le, "==": operator.eq, ">": operator.gt, "<": operator.lt}
# The last sign counts: a class may be called a>b. A name that ends in another sign, as in a=>3, is a mistake.
_REQUIREMENT = re.compile(r"\s*(?P<name>.*?[^=!<>~\s])\s*(?P<sign>>=|<=|==|>|<)\s*(?P<value>[^<>=]+?)\s*", re.DOTALL)
# The names in sections that a set of rows may lack; other names depend on the run.
_SECTIONS = {
    "truth": ("n", "spearman", "pearson", "rmse", "mean_difference"),
    "outliers": ("n", "n_outliers", "precision_at_k", "auroc", "average_precision"),
}


@with_options("assignments", *_STAGE_OPTIONS, config=stage_settings.PrepareSettings)
def fit(
    call: Call,
    config: stage_settings.PrepareSettings,
    data: list[Path] = TABLE,
    minutes: float | None = option(
        "M",
        "Train for about three quarters of this time, with the best weights so far; the rest is for scoring.",
        min=1,
    ),
) -> None:
    """Go from a table to a report: prepare, warmstart, refine, density of the test rows, evaluate.

    Run it again to resume; finished stages are skipped. --restart replaces stages that were made with other settings
    or data, and keeps those that are up to date. The options are those of `prepare`; settings of the other stages come
    from --set, --config or --preset.

    \b
    Example:
      bayesnde fit data.csv
      bayesnde fit data.csv --minutes 10 --run first
      bayesnde fit vehicle.csv --condition class --set refine.epochs=50
    """
    from bayesnde_cli.stages.fit import run_fit

    warmstart, refine = call.resolve(stage_settings.WarmstartSettings), call.resolve(stage_settings.RefineSettings)
    if minutes is not None:
        warmstart = warmstart.fill_in({"minutes": stage_settings.WARMSTART_TIME * minutes})
        refine = refine.fill_in({"minutes": stage_settings.REFINE_TIME * minutes})
    settings = stage_settings.PipelineSettings(
        config,
        warmstart,
        refine,
        call.resolve(stage_settings.DensitySettings),
        call.resolve(stage_settings.EvaluateSettings),
    )
    ways: dict[str, Any] = {"is_restart": call.restart, "is_verbose": call.is_verbose, "factory": call.open_engine}
    call.finish(run_fit(call.layout, data, settings, call.console, stdin=call.stdin, **ways))


@with_options("run", "restart", "json", "quiet", config=stage_settings.PrepareSettings)
def prepare(call: Call, config: stage_settings.PrepareSettings, data: list[Path] = TABLE) -> None:
    """Check, type, split and scale a table; the first stage of a run.

    Format, separators, header and column types are detected and shown. The scaling is fitted to training rows only,
    and log-densities are always reported in the units of the file.

    \b
    Example:
      bayesnde prepare data.csv
      bayesnde prepare bank.csv --drop duration --condition y --run bank
      bayesnde prepare photos/ --condition label --run photos
      bayesnde simulate moons --rows 5000 | bayesnde prepare -
    """
    from bayesnde_cli.stages.prepare import run_prepare
    from bayesnde_cli.tables.sources import sources_of

    layout, sources = call.layout, sources_of(data, stdin=call.stdin)
    call.finish(run_prepare(layout, data, sources, config, call.console, is_restart=call.restart))


@with_options(*_STAGE_OPTIONS, config=stage_settings.WarmstartSettings)
def warmstart(call: Call, config: stage_settings.WarmstartSettings) -> None:
    """Fit the generative model from scratch; the second stage of a run.

    The default objective is the evidence lower bound; --objective egm is the paper's adversarial warm start. The
    weights of the best validation check are kept; test rows are never read. If it is interrupted, run it again to
    resume from the last checkpoint; the result is the same.

    \b
    Example:
      bayesnde warmstart
      bayesnde warmstart --latent-dim 8 --epochs 300 --run bank
      bayesnde warmstart --preset paper-bank --run bank
    """
    from bayesnde_cli.stages.train import run_warmstart

    call.finish(run_warmstart(call.layout, config, call.console, is_restart=call.restart, is_verbose=call.is_verbose))


@with_options(*_STAGE_OPTIONS, config=stage_settings.RefineSettings)
def refine(call: Call, config: stage_settings.RefineSettings) -> None:
    """Refine the warm start; the third stage of a run.

    By default it maximises the importance-weighted bound, an estimate of the marginal likelihood from weighted draws of
    the encoder. --latent-update posterior uses Markov chains instead; --latent-update map maximises over the latents,
    as the paper does, and needs its regularisers. Selection, checkpoints and resumption work as in `warmstart`.

    \b
    Example:
      bayesnde refine
      bayesnde refine --draws 16 --run bank
      bayesnde refine --preset paper-bank --run bank
    """
    from bayesnde_cli.stages.train import run_refine

    call.finish(run_refine(call.layout, config, call.console, is_restart=call.restart, is_verbose=call.is_verbose))


@with_options(*_STAGE_OPTIONS, config=stage_settings.PosteriorSettings)
def posterior(
    call: Call,
    config: stage_settings.PosteriorSettings,
    data: list[Path] | None = DATA,
    shard: str | None = SHARD,
    export: str | None = option("FORMAT", "Also write all draws to one file: netcdf, which ArviZ reads."),
) -> None:
    """Draw from the latent posterior of every row, for `density` to use.

    Rows are processed in blocks, and any number of processes can share the work. If it is interrupted, run it again
    to compute the missing blocks; the result is the same.

    \b
    Example:
      bayesnde posterior
      bayesnde posterior new.csv --draws 400 --run bank
      bayesnde posterior --shard 3/8
      bayesnde posterior --export netcdf
    """
    from bayesnde_cli.stages.posterior_draws import run_posterior

    if export not in (None, "netcdf"):
        raise bad_choice("--export", export, ("netcdf",))
    if export is not None:
        _refuse_shard(f"--export {export}", shard)
    asked = replace(call.asked(data, shard), is_exporting=export is not None)
    call.finish(run_posterior(call.layout, asked, config, call.console, factory=call.open_engine))


def _refuse_shard(option: str, shard: str | None) -> None:
    if shard is not None:
        raise BadUsage(
            f"{option.split()[0]} writes the whole result, and --shard computes a part of it",
            found=f"{option} --shard {shard}",
            hint="run all shards first, then once without --shard",
        )


@with_options(*_STAGE_OPTIONS, config=stage_settings.DensitySettings)
def density(
    call: Call,
    config: stage_settings.DensitySettings,
    data: list[Path] | None = DATA,
    shard: str | None = SHARD,
    out: Path | None = option("FILE|-", "Also write the table to this file; - is stdout.", "--out", "-o"),
    format: str | None = FORMAT,
    columns: list[str] | None = option("A,B,C", "Columns of --out in this order; patterns work. [default: all]"),
) -> None:
    """Compute the log-density of every row, with its Monte-Carlo error and a verdict.

    Draws that `posterior` made with the same settings are reused. Rows are processed in blocks, and any number of
    processes can share the work; without --shard, missing blocks are computed and all blocks are combined. A row with
    missing cells gets the density of its observed cells.

    \b
    Example:
      bayesnde density
      bayesnde density new.csv --out scored.csv --columns row_id,log_density,mc_se
      bayesnde density --shard 3/8
    """
    from bayesnde_cli.cli.console import output_format
    from bayesnde_cli.stages.score import DensityResult, run_density

    if columns and out is None:
        raise BadUsage("--columns says how to write a table", found="no --out", hint="add --out FILE, or --out -")
    chosen = output_format(out, format, is_json=call.json)
    if out is not None:
        _refuse_shard(f"--out {out}", shard)
    asked = call.asked(data, shard)
    outcome = run_density(call.layout, asked, config, call.console, columns=columns or (), factory=call.open_engine)
    if out is not None and isinstance(outcome, DensityResult):
        _write_densities(call, outcome, out, chosen)
    call.finish(outcome, out)


def _write_densities(call: Call, scored: "DensityResult", out: Path, format: str) -> None:
    from bayesnde_cli.cli.console import write_rows
    from bayesnde_cli.runs.parquet_files import iter_batches
    from bayesnde_cli.stages.score import DENSITY_SCHEMA

    stored = iter_batches(call.layout.density_file(scored.set_name), DENSITY_SCHEMA, scored.columns)
    batches = (batch.select(scored.columns).replace_schema_metadata(None) for batch in stored)
    first = next(batches)
    write_rows(out, format, first.schema, itertools.chain([first], batches))


@with_options(
    "assignments", *_STAGE_OPTIONS, config=(stage_settings.DensitySettings, ()), request=stage_settings.SlurmRequest
)
def slurm(
    call: Call,
    config: stage_settings.DensitySettings,
    request: stage_settings.SlurmRequest,
    data: list[Path] | None = argument("DATA", "Files with the columns of the model. [default: the test rows]", None),
    submit: bool = flag("Submit both jobs to SLURM.", "--submit"),
) -> None:
    """Score rows on a SLURM cluster: write, and optionally submit, an array job and its gather job.

    The scripts are written to the run directory; you can read and change them. A task that runs out of time is queued
    again; `status` says how to resubmit a shard that failed. Shards that are done or queued are not submitted again.
    Settings of `density` come from --set, --config or --preset.

    \b
    Example:
      bayesnde slurm new.csv --shards 16 --time 01:00:00 --partition cpu
      bayesnde slurm --gpus-per-task 1 --setup cluster.sh --submit
      bayesnde slurm --set density.draws=400
    """
    from bayesnde_cli import cluster
    from bayesnde_cli.stages.score import create_plan
    from bayesnde_cli.stages.scoring_job import make_job

    if submit:
        cluster.require_sbatch()
    asked = call.asked(data)
    cluster.require_files(asked.data)
    job = make_job(call.layout, asked, config)
    with cluster.hints_of_slurm():
        plan = create_plan(job, call.console, is_restart=asked.is_restart)
    if plan is None:
        call.finish(cluster.NothingToDo(job.set_name, f"{call.layout.density_file(job.set_name)} is up to date"))
        return
    written = cluster.write_jobs(call.layout, plan, config, request, asked.data, call.console)
    if submit and isinstance(written, cluster.ArrayWritten):
        written = cluster.submit_jobs(written)
    call.finish(written)


@with_options(*_STAGE_OPTIONS, config=stage_settings.EvaluateSettings)
def evaluate(
    call: Call,
    config: stage_settings.EvaluateSettings,
    data: list[Path] | None = DATA,
    require: list[str] | None = option(
        "NAME>=VALUE", "Limit for a value in metrics.json (>=, <=, >, <, ==); repeatable."
    ),
) -> None:
    """Measure how good the densities are, and compare them with classical estimators on the same rows.

    It reads the densities of the test rows, or of DATA, and writes metrics.json and report.html. The exit code is 5 if
    a metric fails a --require.

    \b
    Example:
      bayesnde evaluate
      bayesnde evaluate new.csv --json
      bayesnde evaluate --require 'mean_log_density>=-4.1' --require 'truth.spearman>=0.97'
    """
    from bayesnde_cli.stages import loading
    from bayesnde_cli.stages.evaluate import run_evaluate

    requirements = [parse_requirement(text) for text in require or ()]
    models = functools.partial(loading.open_model, is_verbose=call.is_verbose)
    outcome = run_evaluate(call.layout, call.asked(data), config, call.console, models=models, factory=call.open_engine)
    call.finish(outcome)
    check_requirements(requirements, outcome.metrics)


# Requirements: limits for values in metrics.json, as in `truth.spearman>=0.97`


class Requirement(NamedTuple):
    """A limit for the value of this name."""

    name: str
    sign: str
    value: float

    def miss(self, found: float | None) -> str | None:
        """What is wrong with a value, in one line; None if nothing is."""
        if found is None:
            return f"{self.name} has no value here, wanted {self.sign} {self.value:g}"
        if _SIGNS[self.sign](found, self.value):
            return None
        gap = abs(found - self.value)
        return f"{self.name} is {found:.6g}, wanted {self.sign} {self.value:g}: missed by {gap:.3g}"


def parse_requirement(text: str) -> Requirement:
    """The requirement in the user's text."""
    match = _REQUIREMENT.fullmatch(text)
    with contextlib.suppress(ValueError):
        if match and not math.isnan(value := float(match["value"])):
            return Requirement(match["name"], match["sign"], value)
    raise BadUsage(
        f"--require {escaped(text)} is not of the form NAME OP VALUE",
        found=f"OP is one of {' '.join(_SIGNS)}, VALUE a number",
        hint="for instance --require 'mean_log_density>=-4.1'",
    )


def check_requirements(requirements: Sequence[Requirement], metrics: Mapping[str, Any]) -> None:
    """Nothing, if all are met; `BadUsage` for an unknown name, else `RequirementNotMet`."""
    figures = dict(_flatten(metrics))
    for section in _SECTIONS.keys() & figures.keys():  # None, and not a mapping
        del figures[section]
        figures |= {f"{section}.{name}": None for name in _SECTIONS[section]}
    for name, *_ in requirements:
        parts = name.split(".")
        is_section_missing = any(figures.get(".".join(parts[:n]), 0.0) is None for n in range(1, len(parts)))
        if name not in figures and not is_section_missing:
            raise BadUsage(
                f"--require: there is no figure '{escaped(name)}'",
                found=f"figures: {', '.join(figures)}",
                hint=nearest_hint(name, list(figures), "use one of the figures above"),
            )
    missed = [line for item in requirements if (line := item.miss(figures.get(item.name)))]
    if missed:
        what = f"{len(missed)} of {len(requirements)} requirements {'is' if len(missed) == 1 else 'are'} not met"
        raise RequirementNotMet(
            what if len(requirements) > 1 else "the requirement is not met",
            found=missed,
            hint="see all figures with --json",
        )


def _flatten(metrics: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, float | None]]:
    """The dotted name of every number, and of every missing one (None)."""
    for key, value in metrics.items():
        if isinstance(value, Mapping):
            yield from _flatten(value, f"{prefix}{key}.")
        elif value is None or (isinstance(value, int | float) and not isinstance(value, bool)):
            yield f"{prefix}{key}", value
