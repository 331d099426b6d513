"""What `evaluate` is asked for: on which rows, from which files, and whether it has been done."""

from dataclasses import dataclass, fields, replace
from typing import Any

from bayesnde_cli.artifacts import manifest as manifests
from bayesnde_cli.artifacts.layout import RunLayout
from bayesnde_cli.artifacts.manifest import StageState
from bayesnde_cli.artifacts.upstream import refuse_stale, require, stale_inputs
from bayesnde_cli.config import DensityConfig, EvaluateConfig
from bayesnde_cli.stages.scoring import Asked
from bayesnde_cli.stages.scoring.job import Job, make_job

# Rows that fit the baselines, and rows that choose among them.
_SPLITS = ("train.parquet", "validation.parquet")


@dataclass(frozen=True)
class EvaluateJob:
    """`evaluate` on one data set."""

    layout: RunLayout
    config: EvaluateConfig
    scoring: Job  # of `density` on the same rows
    density: DensityConfig  # what their densities were made with
    inputs: dict[str, dict[str, Any]]

    @property
    def set_name(self) -> str:
        return self.scoring.set_name

    @property
    def seed(self) -> int:
        assert self.config.seed is not None
        return self.config.seed

    @property
    def identity(self) -> dict[str, Any]:
        hashes = {name: entry["sha256"] for name, entry in self.inputs.items()}
        settings = self.config.identity()
        # None asked for is as before there were any: what was made then is up to date.
        return {"settings": settings | {"baseline": settings["baseline"] or None}, "inputs": hashes}


def make_evaluate_job(layout: RunLayout, asked: Asked, config: EvaluateConfig) -> EvaluateJob:
    """The job, if the densities of the set are there and fresh."""
    scoring = make_job(layout, asked, DensityConfig())
    density = layout.density_file(scoring.set_name)
    scored = require(layout, "density", scoring.set_name, reading=[density.name])
    prepared = require(layout, "prepare", reading=_SPLITS)
    outputs = {f"{layout.label('density', scoring.set_name)}/{density.name}": scored.outputs[density.name]}
    outputs |= {f"prepare/{name}": prepared.outputs[name] for name in _SPLITS}
    return EvaluateJob(
        layout=layout,
        config=replace(config, seed=prepared.seed if config.seed is None else config.seed),
        scoring=scoring,
        density=_density_config(scored.config),
        inputs=scoring.inputs | {name: {**entry, "path": name} for name, entry in outputs.items()},
    )


def is_up_to_date(job: EvaluateJob) -> bool:
    """Whether the stage is complete; one that was made from other files or settings is refused."""
    layout, set_name = job.layout, job.set_name
    path = layout.manifest_file("evaluate", set_name)
    if path.exists():
        refuse_stale(layout, "evaluate", set_name, stale_inputs(layout, manifests.read(path)))
    return manifests.stage_state(layout, "evaluate", job.identity, set_name) is StageState.UP_TO_DATE


def _density_config(stored: dict[str, Any]) -> DensityConfig:
    """The settings that the densities were made with; those that a later version has more are its defaults."""
    names = {item.name for item in fields(DensityConfig)}
    return DensityConfig(**{name: value for name, value in stored.items() if name in names})
