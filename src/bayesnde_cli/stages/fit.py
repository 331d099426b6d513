"""`fit`: all stages in order, from a table to figures. Each goes on where it was stopped; what is done is skipped."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from bayesnde_cli.artifacts.layout import RunLayout
from bayesnde_cli.config import DensityConfig, EvaluateConfig, PrepareConfig, RefineConfig, WarmstartConfig
from bayesnde_cli.stages import prepare
from bayesnde_cli.stages.evaluate import Evaluated, run_evaluate
from bayesnde_cli.stages.reporting import Advance, Report
from bayesnde_cli.stages.scoring import Asked, Scored, run_density
from bayesnde_cli.stages.scoring.engine import EngineFactory
from bayesnde_cli.stages.training import Trained, run_refine, run_warmstart

STAGES = ("prepare", "warmstart", "refine", "density", "evaluate")


class FitSettings(NamedTuple):
    """The settings of every stage."""

    prepare: PrepareConfig
    warmstart: WarmstartConfig
    refine: RefineConfig
    density: DensityConfig
    evaluate: EvaluateConfig


@dataclass(frozen=True)
class Fitted:
    """What `fit` made."""

    run: str
    prepared: prepare.Prepared
    refined: Trained
    scored: Scored
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
        lines = [
            f"run directory: {self.run}",
            str(self.evaluated),
            "next:",
            *(f"  {line}" for line in self.next_commands),
        ]
        return "\n".join(lines)


def run_fit(
    layout: RunLayout, data: Sequence[Path], settings: FitSettings, report: Report,
    *, stdin: BinaryIO, is_restart: bool, is_verbose: bool, factory: EngineFactory,
) -> Fitted:  # fmt: skip
    """Run the stages that are not done."""

    def of(stage: str) -> Report:
        return _Numbered(report, f"{STAGES.index(stage) + 1}/{len(STAGES)}")

    prepared = prepare.run(layout, data, settings.prepare, of("prepare"), stdin=stdin, is_restart=is_restart)
    report.note(str(prepared))
    started = run_warmstart(layout, settings.warmstart, of("warmstart"), is_restart=is_restart, is_verbose=is_verbose)
    report.note(str(started))
    refined = run_refine(layout, settings.refine, of("refine"), is_restart=is_restart, is_verbose=is_verbose)
    report.note(str(refined))
    asked = Asked(is_restart=is_restart)
    scored = run_density(layout, asked, settings.density, of("density"), factory=factory)
    assert isinstance(scored, Scored)  # no shard was asked for
    report.note(str(scored))
    evaluated = run_evaluate(layout, asked, settings.evaluate, of("evaluate"), factory=factory)
    return Fitted(str(layout.root), prepared, refined, scored, evaluated, _next_commands(layout))


def _next_commands(layout: RunLayout) -> list[str]:
    return [layout.command(name) for name in ("sample 1000", "outliers", "density new.csv --out scored.csv")]


class _Numbered:
    """A report whose progress says which stage of how many it is of."""

    def __init__(self, report: Report, place: str) -> None:
        self._report, self._place = report, place

    def note(self, text: str) -> None:
        self._report.note(text)

    def warn(self, text: str) -> None:
        self._report.warn(text)

    def table(self, title: str, header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        self._report.table(title, header, rows)

    @contextmanager
    def progress(self, label: str, total: int | None, unit: str) -> Iterator[Advance]:
        with self._report.progress(f"{self._place} {label}", total, unit) as advance:
            yield advance
