"""`fit`: all stages in order, from a table to a report. Finished stages are skipped, interrupted ones resume."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

from bayesnde_cli import stopping
from bayesnde_cli.errors import BadArtifact, SettingsDiffer, StaleArtifact
from bayesnde_cli.formatting import Advance, Report
from bayesnde_cli.runs.layout import RunLayout
from bayesnde_cli.settings.stage_settings import PipelineSettings
from bayesnde_cli.stages.evaluate import Evaluated, run_evaluate
from bayesnde_cli.stages.loading import EngineFactory
from bayesnde_cli.stages.prepare import Prepared, run_prepare
from bayesnde_cli.stages.score import DensityResult, ShardResult, run_density
from bayesnde_cli.stages.scoring_job import Asked
from bayesnde_cli.stages.train import Trained, run_refine, run_warmstart
from bayesnde_cli.tables.sources import sources_of

STAGES = ("prepare", "warmstart", "refine", "density", "evaluate")
Result = TypeVar("Result")


@dataclass(frozen=True)
class Fitted:
    """The results of the stages, and commands to try next."""

    run: str
    prepared: Prepared
    refined: Trained
    scored: DensityResult | ShardResult
    evaluated: Evaluated
    next_commands: Sequence[str]

    def as_dict(self) -> dict[str, Any]:
        return {
            "run": self.run,
            "prepare": self.prepared.as_dict(),
            "refine": self.refined.as_dict(),
            "density": self.scored.as_dict(),
            "evaluate": self.evaluated.as_dict(),
        }

    def __str__(self) -> str:
        commands = [f"  {line}" for line in self.next_commands]
        return "\n".join([f"run directory: {self.run}", str(self.evaluated), "next:", *commands])


def run_fit(
    layout: RunLayout,
    data: Sequence[Path],
    settings: PipelineSettings,
    report: Report,
    *,
    stdin: BinaryIO,
    is_restart: bool,
    is_verbose: bool,
    factory: EngineFactory,
) -> Fitted:
    """Run the stages that are not done; a restart replaces those that were made with other settings or data."""
    if settings.evaluate.baseline:
        from bayesnde_cli.competitors import require_packages

        require_packages(settings.evaluate.baseline)  # now, and not after hours
    of = {stage: _NumberedReport(report, f"{index}/{len(STAGES)}") for index, stage in enumerate(STAGES, 1)}
    run = partial(_run_stage, is_restart=is_restart)

    sources = sources_of(data, stdin=stdin)  # once: a pipe cannot be read again
    prepared = run(partial(run_prepare, layout, data, sources, settings.prepare, of["prepare"]))
    report.note(str(prepared))

    def warm_start(is_restart: bool) -> Trained:
        flags = {"is_restart": is_restart, "is_verbose": is_verbose}
        return run_warmstart(layout, settings.warmstart, of["warmstart"], refine=settings.refine, **flags)

    report.note(str(run(warm_start)))
    refined = run(partial(run_refine, layout, settings.refine, of["refine"], is_verbose=is_verbose))
    report.note(str(refined))

    def score(is_restart: bool) -> DensityResult | ShardResult:
        return run_density(layout, Asked(is_restart=is_restart), settings.density, of["density"], factory=factory)

    def evaluate(is_restart: bool) -> Evaluated:
        return run_evaluate(layout, Asked(is_restart=is_restart), settings.evaluate, of["evaluate"], factory=factory)

    scored = run(score)
    report.note(str(scored))
    evaluated = run(evaluate)
    commands = [layout.command(name) for name in ("sample 1000", "outliers", "density new.csv --out scored.csv")]
    return Fitted(str(layout.root), prepared, refined, scored, evaluated, commands)


def _run_stage(stage: Callable[..., Result], *, is_restart: bool) -> Result:
    """The result of a stage. A restart replaces only results that differ: interrupted and run again, it resumes."""
    stopping.check()
    try:
        return stage(is_restart=False)
    except (SettingsDiffer, StaleArtifact, BadArtifact) as error:
        if not is_restart and isinstance(error, BadArtifact):
            raise
        if not is_restart:
            hint = (
                "add --restart to this command to replace this stage and those after it; "
                "or use another run directory with `--run OTHER`"
            )
            raise type(error)(error.what, found=error.found, hint=hint) from error
    return stage(is_restart=True)


class _NumberedReport:
    """A report whose progress begins with the number of the stage."""

    def __init__(self, report: Report, place: str) -> None:
        self._report, self._place = report, place
        self.note, self.warn, self.table = report.note, report.warn, report.table

    def progress(self, label: str, total: int | None, unit: str) -> AbstractContextManager[Advance]:
        return self._report.progress(f"{self._place} {label}", total, unit)
