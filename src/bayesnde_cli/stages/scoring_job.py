"""A scoring stage on one data set: what decides its result, whether it is done, and the rows that it reads."""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from bayesnde_cli import stopping
from bayesnde_cli.errors import BadArtifact, BadInput, MissingArtifact, StageBusy
from bayesnde_cli.formatting import Report
from bayesnde_cli.rows import Rows
from bayesnde_cli.runs import files, manifest
from bayesnde_cli.runs.blocks import ArrayTask, Plan, Shard
from bayesnde_cli.runs.layout import LATENTS, SCHEMA, TEST_SET, WEIGHTS, RunLayout
from bayesnde_cli.runs.manifest import FileRecord, Manifest, discard, tidy
from bayesnde_cli.runs.parquet_files import RowRanges, Stamp, column_names, writing_table
from bayesnde_cli.settings.stage_settings import PosteriorSettings
from bayesnde_cli.tables import model_rows
from bayesnde_cli.tables.columns import listed
from bayesnde_cli.tables.schema import Schema, label_fields
from bayesnde_cli.tables.sources import Source, TextFormat, describe_sources, open_sources, sources_of

# The outputs of earlier stages that decide a row's draws and density.
_READ = {"prepare": (SCHEMA,), "refine": (WEIGHTS, LATENTS)}
# Time between two checks on the work of other processes.
_POLL_SECONDS = 0.5
STORED_ROWS = "model-rows"  # schema name of `rows.parquet`


@dataclass(frozen=True)
class Asked:
    """A user's request, apart from the settings."""

    data: Sequence[Path] = ()  # none: the test rows
    stdin: BinaryIO | None = None
    shard: Shard | ArrayTask | None = None
    is_restart: bool = False
    is_exporting: bool = False  # `posterior` also writes the draws to one file for other programs


@dataclass(frozen=True)
class Job:
    """A scoring stage on one data set."""

    layout: RunLayout
    config: PosteriorSettings
    set_name: str
    run_id: str
    inputs: dict[str, FileRecord]
    sources: Sequence[Source]  # none: the test rows
    text: TextFormat
    started: str

    @property
    def stage(self) -> str:
        return self.config.stage

    @property
    def label(self) -> str:
        return self.layout.label(self.stage, self.set_name)

    @property
    def folder(self) -> Path:
        return self.layout.stage_dir(self.stage, self.set_name)

    @property
    def manifest_file(self) -> Path:
        return self.layout.manifest_file(self.stage, self.set_name)

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
        """The blocks of a set with this number of rows."""
        settings = self.config.identity()
        return Plan(
            stage=self.stage,
            set_name=self.set_name,
            run_id=self.run_id,
            n_rows=n_rows,
            # Small sets have small blocks: two rows are not filled up to hundreds.
            block_rows=min(settings.pop("block_rows"), 1 << max(n_rows - 1, 0).bit_length()),
            seed=settings.pop("seed"),
            inputs=self.hashes,
            settings=settings,
        )

    def stored_plan(self) -> Plan | None:
        """The plan on disk, if the stage was started."""
        path = self.layout.plan_file(self.stage, self.set_name)
        return Plan.read(path) if path.exists() else None

    def of_draws(self) -> "Job":
        """The job of `posterior` that makes the draws of this one."""
        shared = self.config.model_dump(include=set(PosteriorSettings.model_fields))
        return replace(self, config=PosteriorSettings(**shared))


class DataSet(NamedTuple):
    """The test rows, or the user's files under a name that their content decides."""

    name: str = TEST_SET
    sources: Sequence[Source] = ()
    files: Mapping[str, FileRecord] = {}


def find_data_set(asked: Asked) -> DataSet:
    """The data set that the user asked for."""
    if not asked.data:
        return DataSet()
    sources = sources_of(asked.data, stdin=asked.stdin)
    described = describe_sources(sources, asked.data)
    first = Path("stdin") if str(asked.data[0]) == "-" else asked.data[0]
    name = files.set_name_of(first, [entry["sha256"] for entry in described.values()])
    return DataSet(name, sources, described)


def make_job(layout: RunLayout, asked: Asked, config: PosteriorSettings) -> Job:
    """The job, if the stages before it are complete and up to date."""
    started = files.utc_now()
    read = {stage: [*names] for stage, names in _READ.items()}
    if not asked.data:
        read["prepare"].append(layout.split_file(TEST_SET).name)
    upstream = {stage: manifest.require(layout, stage, reading=names) for stage, names in read.items()}
    inputs: dict[str, FileRecord] = {
        f"{stage}/{name}": {**upstream[stage].outputs[name], "path": f"{stage}/{name}"}
        for stage, names in read.items()
        for name in names
    }
    data = find_data_set(asked)
    inputs |= data.files
    prepared, are_images = upstream["prepare"], model_rows.read_schema(layout).image is not None
    return Job(
        layout=layout,
        config=config.fill_in({"seed": prepared.seed}).with_defaults(are_images=are_images),
        set_name=data.name,
        run_id=prepared.run_id,
        inputs=inputs,
        sources=data.sources,
        text=model_rows.text_format(prepared.config),
        started=started,
    )


# Is it done?


def is_up_to_date(job: Job, *, is_restart: bool) -> bool:
    """Whether the stage is complete. If it was made or started with other files or settings, it is refused.

    A restart removes such a stage, and a complete one. It resumes one that was started with the same settings, so that
    all shards of an array may be started with `--restart`.
    """
    layout, stage, set_name = job.layout, job.stage, job.set_name
    if is_restart and _is_to_remove(job):
        _remove(job)
    if job.manifest_file.exists():
        stale = manifest.stale_inputs(layout, Manifest.read(job.manifest_file))
        manifest.refuse_stale(layout, stage, set_name, stale)
        is_done = manifest.is_stage_done(layout, stage, job.identity, set_name)
        if is_done:
            tidy(layout, stage, set_name)
        return is_done
    found = job.stored_plan()
    if found is not None:
        changed = sorted(name for name, digest in job.hashes.items() if found.inputs.get(name) != digest)
        stale = [f"{name} is not the one that {job.label} read" for name in changed]
        manifest.refuse_stale(layout, stage, set_name, stale)
        if differences := found.differences(job.plan(found.n_rows)):
            raise manifest.settings_differ(layout, stage, set_name, differences)
    return False


def _is_to_remove(job: Job) -> bool:
    """Whether a restart removes the stage: it is complete, or was started with other files or settings."""
    if job.manifest_file.exists():
        return True
    try:
        found = job.stored_plan()
    except BadArtifact:
        return True
    return found is not None and found != job.plan(found.n_rows)


def _remove(job: Job) -> None:
    """Remove the stage, unless another process has done so and started again."""
    try:
        discard(job.layout, job.stage, job.set_name, is_wanted=lambda: _is_to_remove(job))
    except StageBusy:  # perhaps by another shard of the same array, which restarts as well
        stopping.sleep(_POLL_SECONDS)
        if _is_to_remove(job):
            raise


# Waiting for other processes


def wait_turns(report: Report, reason: Callable[[], str]) -> Iterator[None]:
    """Turns in which to try something that another process may be doing, with a pause and one note after the first."""
    yield
    report.note(f"waiting for {reason()}")
    while True:
        stopping.sleep(_POLL_SECONDS)
        yield


def holder_of(job: Job) -> str:
    """The stage and the process that is working on it, for a note."""
    who = files.holder(job.layout.claim_file(job.stage, job.set_name))
    return f"{job.label}: {who}" if who else job.label


@contextlib.contextmanager
def alone(job: Job, report: Report) -> Iterator[None]:
    """Hold the claim on the whole stage, after waiting for the process that has it."""
    for _ in wait_turns(report, lambda: holder_of(job)):
        with files.holding(job.layout.claim_file(job.stage, job.set_name)) as ours:
            if ours is not None:
                yield
                return


# Rows


class SetRows:
    """The rows of a data set, in a file of the run."""

    def __init__(self, path: Path, stamp: Stamp, schema: Schema) -> None:
        there = [*column_names(path, stamp), schema.roles.condition]  # the model needs its condition
        absent = {field.name for field in label_fields(schema)}.difference(there)
        columns = [name for name in model_rows.model_schema(schema).names if name not in absent]
        self._schema, self._ranges = schema, RowRanges(path, stamp, columns)
        self.label_fields = [field for field in label_fields(schema) if field.name not in absent]
        self.n_rows, self.n_features = self._ranges.n_rows, len(schema.features)

    def block(self, start: int, stop: int) -> Rows:
        """The rows from `start` up to `stop`."""
        return model_rows.rows_from_table(self._ranges.read(start, stop), self._schema)


def open_rows(job: Job, report: Report) -> SetRows:
    """The rows of the job's data set. One process reads the user's table and stores its rows for all."""
    schema = model_rows.read_schema(job.layout)
    if job.set_name == TEST_SET:
        return SetRows(job.layout.split_file(TEST_SET), Stamp(model_rows.ROWS_SCHEMA, job.run_id), schema)
    path, stamp = job.layout.rows_file(job.stage, job.set_name), stored_rows_stamp(job.run_id, job.hashes)
    try:
        return SetRows(path, stamp, schema)
    except MissingArtifact:
        pass
    except BadArtifact as error:
        report.warn(f"{error.what} ({'; '.join(error.found)}): the rows are read again")
    with alone(job, report):
        with contextlib.suppress(MissingArtifact, BadArtifact):  # stored by another process in the meantime
            return SetRows(path, stamp, schema)
        return store_rows(job, path, stamp, schema, report)


def stored_rows_stamp(run_id: str, hashes: Mapping[str, str]) -> Stamp:
    """The stamp of stored rows: the hashes of the user's files and of the schema, among those of a stage's inputs."""
    sources = {name: hashes[name] for name in hashes if name.startswith("data-") or name == f"prepare/{SCHEMA}"}
    return Stamp(STORED_ROWS, run_id, files.sha256_json(sources))


def store_rows(job: Job, path: Path, stamp: Stamp, schema: Schema, report: Report) -> SetRows:
    """Read the user's table and store its rows in a file."""
    table = open_sources(job.sources, job.text)
    report.note(f"read as: {table.description}")
    matched, ignored = model_rows.match_table(table, schema)
    if ignored:
        report.note(f"not used: {listed(ignored)}")
    columns, n_rows = model_rows.model_schema(matched), 0
    with report.progress("reading", None, "rows") as advance, writing_table(path, columns, stamp) as writer:
        for rows in model_rows.scale_table(table, matched):
            stopping.check()
            writer.write(model_rows.rows_to_batch(rows, columns))
            n_rows += len(rows)
            advance(len(rows))
        if n_rows == 0:
            found = f"read as: {table.description}"
            raise BadInput("the input has no rows", found=found, hint="give a table with rows")
    return SetRows(path, stamp, schema)
