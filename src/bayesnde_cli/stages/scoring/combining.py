"""All blocks of a data set in one table, with a manifest: from here on the stage is complete."""

import time

import pyarrow as pa

from bayesnde_cli.artifacts import manifest as manifests
from bayesnde_cli.artifacts.claims import sweep_blocks
from bayesnde_cli.artifacts.manifest import Manifest, StageState
from bayesnde_cli.artifacts.tables import write_table
from bayesnde_cli.errors import StageBusy
from bayesnde_cli.stages.outputs import workplace
from bayesnde_cli.stages.scoring.sharing import POLL_SECONDS
from bayesnde_cli.stages.scoring.work import Work


def combined(work: Work) -> Manifest:
    """The manifest of the whole; if another process is combining, its manifest."""
    job = work.job
    while manifests.stage_state(job.layout, job.stage, job.identity, job.set_name) is StageState.FRESH:
        try:
            return _combine(work)
        except StageBusy:
            time.sleep(POLL_SECONDS)
    return manifests.read(job.layout.manifest_file(job.stage, job.set_name))


def _combine(work: Work) -> Manifest:
    job, plan, summary = work.job, work.plan, work.summary()

    def added(table: pa.Table) -> pa.Table:
        summary.add(table)
        return table

    with workplace(job.layout, job.stage, job.set_name, started=job.started) as place:
        batches = (batch for table in work.tables() for batch in added(table).to_batches())
        write_table(
            place.folder / work.file.name, batches, schema_name=work.schema_name, schema_version=work.schema_version,
            run_id=plan.run_id, plan_hash=plan.plan_hash,
        )  # fmt: skip
        manifest = place.finish(
            [work.file.name], job.config, seed=job.seed, identity=job.identity, inputs=job.inputs, run_id=job.run_id,
            device=work.device, result=summary.result(),
        )  # fmt: skip
        sweep_blocks(job.folder)
    return manifest
