"""What a scoring stage is asked for: on which rows, with which settings, and whether it has been done."""

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, BinaryIO

from bayesnde_cli.artifacts import manifest as manifests
from bayesnde_cli.artifacts import plan as plans
from bayesnde_cli.artifacts.differences import compare, settings_differ
from bayesnde_cli.artifacts.discard import discard
from bayesnde_cli.artifacts.environment import computing_versions, utc_now
from bayesnde_cli.artifacts.fingerprint import set_name_of
from bayesnde_cli.artifacts.layout import TEST_SET, RunLayout
from bayesnde_cli.artifacts.manifest import StageState
from bayesnde_cli.artifacts.plan import Plan
from bayesnde_cli.artifacts.shards import ArrayTask, Shard
from bayesnde_cli.artifacts.upstream import refuse_stale, require, stale_inputs
from bayesnde_cli.config import PosteriorConfig
from bayesnde_cli.data.readers import Source, TextFormat, sources_of
from bayesnde_cli.errors import BadArtifact, SettingsDiffer, StageBusy
from bayesnde_cli.stages.reading import describe_sources, read_schema, text_format
from bayesnde_cli.stages.scoring.density_table import DENSITY_VERSION
from bayesnde_cli.stages.scoring.sharing import POLL_SECONDS
from bayesnde_cli.stages.scoring.sizes import settled

# Of the stages before, the outputs that decide a row's draws and density.
_READ = {"prepare": ("schema.json",), "refine": ("weights/model.npz", "latents.parquet")}
# Settings that a plan has fields of its own for.
_IN_PLAN = ("seed", "block_rows")
# The setting of a plan that says with which columns densities were begun; the first plans had none.
_TABLE_VERSION = "table_version"


@dataclass(frozen=True)
class Asked:
    """What the user asked for, beside the settings."""

    data: Sequence[Path] = ()  # none: the test rows
    stdin: BinaryIO | None = None
    shard: Shard | ArrayTask | None = None
    is_restart: bool = False
    is_exporting: bool = False  # `posterior`: the draws go into one file for other programs, too


@dataclass(frozen=True)
class Job:
    """A scoring stage on one data set."""

    layout: RunLayout
    config: PosteriorConfig
    set_name: str
    run_id: str
    inputs: dict[str, dict[str, Any]]
    sources: Sequence[Source]  # none: the test rows
    text: TextFormat
    started: str

    @property
    def stage(self) -> str:
        return self.config.stage

    @property
    def folder(self) -> Path:
        return self.layout.stage_dir(self.stage, self.set_name)

    @property
    def seed(self) -> int:
        assert self.config.seed is not None
        return self.config.seed

    @property
    def hashes(self) -> dict[str, str]:
        return {name: entry["sha256"] for name, entry in self.inputs.items()}

    @property
    def identity(self) -> dict[str, Any]:
        return {"settings": self.config.identity(), "inputs": self.hashes}

    def plan(self, n_rows: int) -> Plan:
        """The blocks of the set, if it has so many rows."""
        settings = {name: value for name, value in self.config.identity().items() if name not in _IN_PLAN}
        if self.stage == "density":
            settings[_TABLE_VERSION] = DENSITY_VERSION
        assert self.config.block_rows is not None
        return Plan(
            self.stage, self.set_name, self.run_id, n_rows=n_rows, block_rows=self.config.block_rows, seed=self.seed,
            inputs=self.hashes, settings=settings, packages=computing_versions(),
        )  # fmt: skip

    def refuse_other_model(self) -> None:
        """Raise `BadArtifact` if the files of `refine` are damaged, `StaleArtifact` if the plan names others."""
        refined = require(self.layout, "refine", reading=_READ["refine"])
        hashes = {f"refine/{name}": refined.outputs[name]["sha256"] for name in _READ["refine"]}
        changed = [name for name, digest in hashes.items() if self.hashes[name] != digest]
        refuse_stale(self.layout, self.stage, self.set_name, self.not_as_read(changed))

    def not_as_read(self, names: Iterable[str]) -> list[str]:
        """A line for each file that is not the one that this stage has read."""
        label = self.layout.label(self.stage, self.set_name)
        return [f"{name} is not the one that {label} read" for name in sorted(names)]

    def of_draws(self) -> "Job":
        """The job of `posterior` that makes the draws of this one."""
        names = [item.name for item in fields(PosteriorConfig)]
        return replace(self, config=PosteriorConfig(**{name: getattr(self.config, name) for name in names}))


def make_job(layout: RunLayout, asked: Asked, config: PosteriorConfig) -> Job:
    """The job, if the stages before it are complete and fresh."""
    started = utc_now()
    read = {stage: [*names] for stage, names in _READ.items()}
    if not asked.data:
        read["prepare"].append(layout.split_file(TEST_SET).name)
    upstream = {stage: require(layout, stage, reading=names) for stage, names in read.items()}
    prepared = upstream["prepare"]
    sources = sources_of(asked.data, stdin=asked.stdin) if asked.data else []
    inputs = {
        f"{stage}/{name}": {**upstream[stage].outputs[name], "path": f"{stage}/{name}"}
        for stage, names in read.items()
        for name in names
    }
    set_name = TEST_SET
    if sources:
        described = describe_sources(sources, asked.data)
        first = Path("stdin") if str(asked.data[0]) == "-" else asked.data[0]
        set_name = set_name_of(first, [entry["sha256"] for entry in described.values()])
        inputs |= described
    return Job(
        layout=layout,
        config=settled(
            replace(config, seed=prepared.seed if config.seed is None else config.seed), read_schema(layout)
        ),
        set_name=set_name,
        run_id=prepared.run_id,
        inputs=inputs,
        sources=sources,
        text=text_format(prepared.config),
        started=started,
    )


def is_up_to_date(job: Job, *, is_restart: bool) -> bool:
    """Whether the stage is complete. One that was made, or begun, from other files or settings is refused.

    A restart removes such a one, and a complete one; a restart that was itself interrupted goes on, so that the
    shards of an array may all be told to restart.
    """
    layout, stage, set_name = job.layout, job.stage, job.set_name
    manifest_file, plan_file = layout.manifest_file(stage, set_name), layout.plan_file(stage, set_name)
    if is_restart and _is_to_go(job):
        _remove(job)
    if manifest_file.exists():
        refuse_stale(layout, stage, set_name, stale_inputs(layout, manifests.read(manifest_file)))
        return manifests.stage_state(layout, stage, job.identity, set_name) is StageState.UP_TO_DATE
    if plan_file.exists():
        found = plans.read(plan_file)
        changed = [name for name, digest in job.hashes.items() if found.inputs.get(name) != digest]
        refuse_stale(layout, stage, set_name, job.not_as_read(changed))
        refuse_earlier(job, found)
        if differences := _differences(found, job):
            raise settings_differ(layout, stage, set_name, differences)
    return False


def refuse_earlier(job: Job, found: Plan) -> None:
    """Raise `SettingsDiffer` if the plan of densities is that of an earlier bayesnde, with other columns."""
    version = found.settings.get(_TABLE_VERSION, 1)
    if job.stage == "density" and version in range(1, DENSITY_VERSION):
        layout, stage, set_name = job.layout, job.stage, job.set_name
        is_complete = layout.manifest_file(stage, set_name).exists()
        raise SettingsDiffer(
            f"{layout.label(stage, set_name)} was {'made' if is_complete else 'begun'} by an earlier bayesnde",
            found=f"its tables: version {version}, those of this bayesnde: version {DENSITY_VERSION}",
            hint=f"run `{layout.command(stage, set_name, '--restart')}` with the same options to make it again",
        )


def _remove(job: Job) -> None:
    """Remove what is there, unless another process has done so and begun anew."""
    try:
        discard(job.layout, job.stage, job.set_name, is_wanted=lambda: _is_to_go(job))
    except StageBusy:  # perhaps by another shard of an array whose shards are all told to restart
        time.sleep(POLL_SECONDS)
        if _is_to_go(job):
            raise


def _is_to_go(job: Job) -> bool:
    """Whether a restart removes what is there: it is complete, or was begun otherwise."""
    if job.layout.manifest_file(job.stage, job.set_name).exists():
        return True
    path = job.layout.plan_file(job.stage, job.set_name)
    if not path.exists():
        return False
    try:
        return bool(_differences(plans.read(path), job))
    except BadArtifact:
        return True


def _differences(found: Plan, job: Job) -> list[str]:
    """What the job asks for otherwise than a plan on disk; how many rows there are is no question of settings."""
    return compare(found.identity, job.plan(found.n_rows).identity)
