"""All blocks of a data set in one table, with a manifest: from here on the stage is complete."""

import time
from collections import Counter

import pyarrow as pa

from bayesnde_cli.artifacts import manifest as manifests
from bayesnde_cli.artifacts.manifest import Manifest, StageState
from bayesnde_cli.artifacts.tables import made_with, write_table
from bayesnde_cli.errors import StageBusy
from bayesnde_cli.stages.outputs import Workplace, workplace
from bayesnde_cli.stages.scoring.job import Job
from bayesnde_cli.stages.scoring.sharing import POLL_SECONDS, waiting_for
from bayesnde_cli.stages.scoring.versions import warn_of_mixed_versions
from bayesnde_cli.stages.scoring.work import Work


def combined(work: Work) -> Manifest:
    """The manifest of the whole; if another process is combining, or has just done so, its manifest."""
    job = work.job
    is_told = False
    while True:
        try:
            with workplace(job.layout, job.stage, job.set_name, started=job.started) as place:
                return _found(job) or _combine(work, place)
        except StageBusy:
            if not is_told:
                work.report.note(waiting_for(job.layout, job.stage, job.set_name))
                is_told = True
            time.sleep(POLL_SECONDS)


def _found(job: Job) -> Manifest | None:
    """The manifest of a stage that is complete. To be asked when the claim is ours: then nobody completes it."""
    if manifests.stage_state(job.layout, job.stage, job.identity, job.set_name) is StageState.FRESH:
        return None
    return manifests.read(job.layout.manifest_file(job.stage, job.set_name))


def _combine(work: Work, place: Workplace) -> Manifest:
    job, plan, summary = work.job, work.plan, work.summary()
    versions: Counter[str] = Counter()

    def added(table: pa.Table) -> pa.Table:
        summary.add(table)
        versions[made_with(table)] += 1
        return table

    batches = (batch for table in work.tables() for batch in added(table).to_batches())
    write_table(
        place.folder / work.file.name, batches, schema_name=work.schema_name, schema_version=work.schema_version,
        run_id=plan.run_id, plan_hash=plan.plan_hash,
    )  # fmt: skip
    manifest = place.finish(
        [work.file.name], job.config, seed=job.seed, identity=job.identity, inputs=job.inputs, run_id=job.run_id,
        device=work.device, result={**summary.result(), "made_with": dict(versions)},
    )  # fmt: skip
    warn_of_mixed_versions(job.layout, plan, versions, work.report)
    return manifest
