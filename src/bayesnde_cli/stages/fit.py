"""`fit`: all stages in order, from a table to figures. Each goes on where it was stopped; what is done is skipped."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, TypeVar

from bayesnde_cli.artifacts.layout import RunLayout
from bayesnde_cli.config import DensityConfig, EvaluateConfig, PrepareConfig, RefineConfig, WarmstartConfig
from bayesnde_cli.data.readers import sources_of
from bayesnde_cli.errors import BadArtifact, SettingsDiffer, StaleArtifact
from bayesnde_cli.evaluation.baselines.neural import require_packages
from bayesnde_cli.stages import prepare
from bayesnde_cli.stages.evaluate import Evaluated, run_evaluate
from bayesnde_cli.stages.reading import describe_sources
from bayesnde_cli.stages.reporting import Advance, Report
from bayesnde_cli.stages.scoring import Asked, Scored, run_density
from bayesnde_cli.stages.scoring.engine import EngineFactory
from bayesnde_cli.stages.training import Trained, run_refine, run_warmstart

STAGES = ("prepare", "warmstart", "refine", "density", "evaluate")
Made = TypeVar("Made")
_HINT = (
    "add --restart to this command: this stage and those after it are made again, what is up to date is kept; "
    "or keep it and use another run directory with `--run OTHER`"
)


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
    """Run the stages that are not done; a restart replaces those that were made with other settings or data."""

    def of(stage: str) -> Report:
        return _Numbered(report, f"{STAGES.index(stage) + 1}/{len(STAGES)}")

    def score(is_restart: bool) -> Scored:
        asked = Asked(is_restart=is_restart)
        scored = run_density(layout, asked, settings.density, of("density"), factory=factory)
        assert isinstance(scored, Scored)  # no shard was asked for
        return scored

    def evaluate(is_restart: bool) -> Evaluated:
        return run_evaluate(layout, Asked(is_restart=is_restart), settings.evaluate, of("evaluate"), factory=factory)

    require_packages(settings.evaluate.baseline)  # now, and not after hours
    made = partial(_made, is_restart=is_restart)
    sources = sources_of(data, stdin=stdin)  # once: a pipe cannot be read again
    inputs = describe_sources(sources, data)
    prepared = made(partial(prepare.run_on, layout, sources, inputs, settings.prepare, of("prepare")))
    report.note(str(prepared))
    train = partial(run_warmstart, layout, settings.warmstart, of("warmstart"), is_verbose=is_verbose)
    report.note(str(made(train)))
    refined = made(partial(run_refine, layout, settings.refine, of("refine"), is_verbose=is_verbose))
    report.note(str(refined))
    scored = made(score)
    report.note(str(scored))
    evaluated = made(evaluate)
    return Fitted(str(layout.root), prepared, refined, scored, evaluated, _next_commands(layout))


def _made(make: Callable[..., Made], *, is_restart: bool) -> Made:
    """What a stage makes. A restart replaces what differs only: interrupted and typed again, it goes on."""
    try:
        return make(is_restart=False)
    except (SettingsDiffer, StaleArtifact) as error:
        if not is_restart:
            raise type(error)(error.what, found=error.found, hint=_HINT) from error
    except BadArtifact:
        if not is_restart:
            raise
    return make(is_restart=True)


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
